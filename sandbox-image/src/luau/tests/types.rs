//! The declarations that `sandboxctl types` prints match the VM exactly.

use std::collections::BTreeSet;

use super::*;

const DECLARATIONS: &str = include_str!("../../../../docs/src/reference/sandbox.d.luau");

/// Luau's own globals, apart from `os` and `print`, which are declared.
const STANDARD: [&str; 28] = [
    "_G", "_VERSION", "assert", "bit32", "buffer", "coroutine", "debug", "error", "getmetatable",
    "ipairs", "math", "next", "pairs", "pcall", "rawequal", "rawget", "rawlen", "rawset", "select",
    "setmetatable", "string", "table", "tonumber", "tostring", "type", "typeof", "unpack", "utf8",
];

fn name(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len());
    &text[..end]
}

/// Every declared name, fields as `table.field`, methods as `file:method`.
fn declared() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut inside = String::new();
    for line in DECLARATIONS.lines() {
        if line.starts_with("export type ") {
            // Fields of a type are not in any table of the VM.
            inside.clear();
        } else if let Some(rest) = line.strip_prefix("declare extern type ") {
            inside = format!("{}:", name(rest));
        } else if let Some(rest) = line.strip_prefix("declare ") {
            let global = name(rest.strip_prefix("function ").unwrap_or(rest));
            names.insert(global.to_owned());
            inside = format!("{global}.");
        } else if let Some(field) = line.strip_prefix('\t')
            && field.starts_with(|c: char| c.is_ascii_lowercase())
            && !inside.is_empty()
        {
            let field = field.strip_prefix("function ").unwrap_or(field);
            names.insert(format!("{inside}{}", name(field)));
        }
    }
    names
}

#[test]
fn the_declarations_are_what_the_vm_has() {
    let source = "local names = {} \
                  for global in _G do table.insert(names, global) end \
                  for _, library in {'io', 'fs', 'os', 'json', 'test'} do \
                      for field in _G[library] do table.insert(names, library .. '.' .. field) end \
                  end \
                  local f = io.open('f', 'w') \
                  for _, m in {'read', 'write', 'lines', 'seek', 'flush', 'close', 'setvbuf'} do \
                      if f[m] then table.insert(names, 'file:' .. m) end \
                  end \
                  return names";
    let found: BTreeSet<String> = serde_json::from_value(value(source)).unwrap();
    let standard = STANDARD.into_iter().chain(["vector", "xpcall"]).map(str::to_owned).collect();
    let ours: BTreeSet<String> = found.difference(&standard).cloned().collect();
    // These exist if commands are supported: `tests/session/exec.rs` checks them.
    let of_programs = ["process", "process.exec"];
    // These exist if the run was given tools: `tools.rs` checks them.
    let of_tools = ["tools", "tools.search", "tools.describe"];
    let others = of_programs.into_iter().chain(of_tools).map(str::to_owned).collect();
    assert_eq!(declared(), ours.union(&others).cloned().collect());
}

#[test]
fn standard_names_that_are_absent_are_listed_as_absent() {
    let list = DECLARATIONS.split_once("Standard names that are absent: ").unwrap().1;
    let list = list.split_once(". Every table").unwrap().0.replace("\n--", "");
    let listed: BTreeSet<_> = list.split(", ").collect();
    // What Lua's manual has in `io`, `os` and a file.
    let io =
        "close flush input lines open output popen read stderr stdin stdout tmpfile type write";
    let os = "clock date difftime execute exit getenv remove rename setlocale time tmpname";
    let file = "close flush lines read seek setvbuf write";
    for (place, names) in [("io.", io), ("os.", os), ("file:", file)] {
        for name in names.split(' ').map(|name| format!("{place}{name}")) {
            assert_ne!(declared().contains(&name), listed.contains(&*name), "{name}");
        }
    }
    let globals: Vec<_> = listed.iter().filter(|name| !name.contains(':')).collect();
    for name in globals {
        assert_eq!(value(&format!("return {name} == nil")), json!(true), "{name}");
    }
}
