//! The script API in little space, for the description of `execute_script` and for the prompt. It
//! is made from the declarations that the documentation has and that `sandboxctl types` prints.

use std::fmt::Write as _;

use sandbox_api::{LimitKey, Limits};

/// The script API as Luau declarations.
pub const SCRIPT_API: &str = include_str!("../../../docs/src/reference/sandbox.d.luau");

/// What a script has in addition to the language.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Abilities {
    /// It has files.
    pub files: bool,
    /// It can start programs.
    pub programs: bool,
    /// It can call tools of other servers.
    pub tools: bool,
}

/// The names of declarations that need files.
const FILES: &[&str] =
    &["ReadFormat", "OpenMode", "file", "io", "EntryType", "Entry", "Line", "FileInfo", "fs"];
/// Those that need programs.
const PROGRAMS: &[&str] = &["ProgramResult", "process"];
/// Those that need tools of other servers.
const TOOLS: &[&str] = &["ToolFile", "tools"];
/// Those that no script of an agent needs.
const OTHERS: &[&str] = &["secrets", "test"];

/// The declarations that hold, each in one line and without its comments.
pub(crate) fn declarations(abilities: Abilities) -> String {
    let mut text = String::new();
    let mut item = String::new();
    for line in SCRIPT_API.lines() {
        let code = line.trim();
        let begins = ["declare ", "export type "].iter().any(|word| line.starts_with(word));
        if begins {
            push_item(&mut text, &item, abilities);
            item.clear();
        }
        if code.is_empty() || code.starts_with("--") {
            continue;
        }
        if !item.is_empty() {
            item.push(' ');
        }
        item.push_str(code);
    }
    push_item(&mut text, &item, abilities);
    text
}

fn push_item(text: &mut String, item: &str, abilities: Abilities) {
    let mut words = item.split([' ', ':', '(']);
    let name = words
        .find(|word| !matches!(*word, "declare" | "export" | "type" | "extern" | "function" | ""));
    let Some(name) = name else { return };
    let is_left_out = OTHERS.contains(&name)
        || (!abilities.files && FILES.contains(&name))
        || (!abilities.programs && PROGRAMS.contains(&name))
        || (!abilities.tools && TOOLS.contains(&name));
    if !is_left_out {
        let item = item.strip_prefix("export ").unwrap_or(item);
        text.push_str(&item.replace(", }", " }").replace("( ", "(").replace(" )", ")"));
        text.push('\n');
    }
}

/// The sentence about names that are absent, from the head of the declarations.
fn absent() -> String {
    let head = SCRIPT_API.lines().skip_while(|line| !line.contains("names that are absent"));
    let lines = head.take_while(|line| line.starts_with("-- "));
    let text: Vec<&str> = lines.map(|line| line.trim_start_matches("-- ")).collect();
    let text = text.join(" ");
    text.split_once(". Every").map_or(text.clone(), |(names, _)| format!("{names}."))
}

/// The text that teaches the script API: what there is, the limits in force, examples.
pub(crate) fn taught(abilities: Abilities, limits: &Limits, mount_path: &str) -> String {
    let mut text = String::from(
        "Scripts are Luau (Lua 5.1 with types, `continue`, `+=`, string interpolation by backticks), \
         each in a fresh sandbox. `return VALUE` gives the result as JSON; `print` writes the log; \
         an error ends the script. ",
    );
    if abilities.files {
        _ = write!(
            text,
            "Files are in {mount_path}, the working directory: they stay for the next call. Paths \
             are relative, or absolute below {mount_path}; no `..`, no links. Functions on files \
             raise on failure; use pcall to catch. "
        );
    } else {
        text.push_str("Files are off: `io`, `fs`, `os.remove` and `os.rename` are nil. ");
    }
    if abilities.programs {
        text.push_str("`process.exec` runs programs of the image. ");
    } else {
        text.push_str("There are no programs and no network. ");
    }
    text.push_str(&absent());
    text.push_str("\n\nBeside Luau's standard library:\n");
    text.push_str(&declarations(abilities));
    text.push_str("\nLimits:");
    let keys = [LimitKey::Timeout, LimitKey::VmMemory, LimitKey::Memory];
    let of_files = [LimitKey::MaxWrite, LimitKey::Entries, LimitKey::MaxFileSize];
    let of_files = of_files.iter().filter(|_| abilities.files);
    for key in keys.iter().chain(of_files) {
        _ = write!(text, " {} {};", key.key(), limits.get(*key));
    }
    text.pop();
    text.push_str(".\n\nExamples:\n");
    text.push_str(match abilities.files {
        true => FILE_EXAMPLES,
        false => EXAMPLES,
    });
    text
}

const FILE_EXAMPLES: &str = "\
local sum = 0
for line in io.lines(\"data.csv\") do sum += tonumber(line:match(\"([^,]+)$\")) or 0 end
return { sum = sum }

local changed = {}
for _, path in fs.glob(\"src/**/*.md\") do
  local text, count = fs.read(path):gsub(\"colour\", \"color\")
  if count > 0 then fs.write(path, text); table.insert(changed, path) end
end
print(#changed .. \" files\")
return json.array(changed)
";

const EXAMPLES: &str = "\
local total = 0
for _, n in args.numbers do total += n end
return { total = total, mean = total / #args.numbers }

local words = {}
for word in args.text:gmatch(\"%a+\") do words[word] = (words[word] or 0) + 1 end
return words
";

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Abilities = Abilities { files: true, programs: true, tools: true };
    const NONE: Abilities = Abilities { files: false, programs: false, tools: false };

    #[test]
    fn declarations_are_those_of_the_documentation_in_little_space() {
        let all = declarations(ALL);
        for name in ["print", "args", "io", "fs", "json", "process", "file", "FileInfo", "os"] {
            let is_declared = all.lines().any(|line| {
                let words: Vec<&str> = line.split([' ', ':', '(']).collect();
                words.iter().take(4).any(|word| *word == name)
            });
            assert!(is_declared, "{name} in\n{all}");
        }
        assert!(!all.contains("--"), "{all}");
        assert!(all.len() < 5_000, "{} bytes", all.len());
        let none = declarations(NONE);
        for name in ["declare io", "declare fs", "process", "OpenMode", "tools"] {
            assert!(!none.contains(name), "{none}");
        }
    }

    #[test]
    fn api_is_taught_as_reviewed() {
        let limits = Limits::default();
        insta::assert_snapshot!(taught(Abilities { files: true, ..NONE }, &limits, "/io"));
        let off = taught(NONE, &limits, "/io");
        assert!(off.contains("Files are off: `io`, `fs`"), "{off}");
        assert!(!off.contains("io.lines"), "{off}");
    }
}
