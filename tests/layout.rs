//! The layout of the workspace: which crate may use which, which module of the controller may use
//! which, and how large they may become. A new dependency fails here, with a sentence that says
//! where the code belongs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A crate or a module, what it contains, and what it may use.
type Row = (&'static str, &'static str, &'static [&'static str]);

/// The crates that are shipped, from the bottom up.
const CRATES: &[Row] = &[
    ("sandbox-protocol", "the wire", &[]),
    ("sandbox-dirfd", "files by directory descriptors", &[]),
    ("sandbox-api", "plain data that callers ask and get", &["sandbox-dirfd", "sandbox-protocol"]),
    (
        "sandbox-artifacts",
        "files that a run left",
        &["sandbox-api", "sandbox-dirfd", "sandbox-protocol"],
    ),
    ("sandbox-receipts", "the inputs and outputs of a run", &["sandbox-api", "sandbox-dirfd"]),
    (
        "sandbox-grants",
        "what a run is given beyond its sandbox",
        &["sandbox-api", "sandbox-protocol", "sandbox-receipts"],
    ),
    (
        "sandbox-redact",
        "secrets replaced in what a sandbox says",
        &["sandbox-api", "sandbox-protocol"],
    ),
    ("sandbox-intercept", "connections whose TLS the controller terminates", &["sandbox-api"]),
    ("sandbox-rootfs", "image archives", &["sandbox-api", "sandbox-dirfd"]),
    ("sandbox-warm-pool", "which sandboxes are started ahead", &[]),
    ("sandbox-staging", "io dirs that change whole or not", &["sandbox-api", "sandbox-dirfd"]),
    ("sandbox-tls", "the server name of a connection", &["sandbox-api"]),
    ("sandbox-helper", "one container of the embedded engine", &[]),
    (
        "sandbox-engine",
        "what runs containers",
        &["sandbox-api", "sandbox-dirfd", "sandbox-helper", "sandbox-protocol", "sandbox-rootfs"],
    ),
    ("sandbox-session", "the connection to an agent", &["sandbox-engine", "sandbox-protocol"]),
    ("sandbox-agent", "what is inside a sandbox", &["sandbox-dirfd", "sandbox-protocol"]),
    (
        "sandbox-controller",
        "sandboxes, and what runs in them",
        &[
            "sandbox-api", "sandbox-artifacts", "sandbox-dirfd", "sandbox-engine",
            "sandbox-grants", "sandbox-intercept", "sandbox-protocol", "sandbox-receipts",
            "sandbox-redact", "sandbox-session", "sandbox-staging", "sandbox-tls",
            "sandbox-warm-pool",
        ],
    ),
    ("sandbox-env", "the configuration that an environment implies", &["sandbox-controller"]),
    (
        "sandbox-store",
        "what a service must not forget",
        &["sandbox-api", "sandbox-dirfd", "sandbox-protocol"],
    ),
    ("sandbox-auth", "who calls a service", &["sandbox-api", "sandbox-dirfd"]),
    (
        "sandbox-service",
        "executions and sandboxes that are kept",
        &[
            "sandbox-api", "sandbox-controller", "sandbox-dirfd", "sandbox-protocol",
            "sandbox-store",
        ],
    ),
    (
        "sandbox-tools",
        "tools for workflow steps",
        &["sandbox-api", "sandbox-controller", "sandbox-dirfd", "sandbox-protocol"],
    ),
    (
        "sandbox-upstream",
        "tools of other MCP servers",
        &["sandbox-api", "sandbox-client", "sandbox-controller", "sandbox-protocol"],
    ),
    (
        "sandbox-mcp",
        "tools for agents",
        &["sandbox-api", "sandbox-dirfd", "sandbox-service", "sandbox-upstream"],
    ),
    (
        "sandbox-http",
        "the HTTP API",
        &["sandbox-api", "sandbox-auth", "sandbox-dirfd", "sandbox-service"],
    ),
    (
        "sandbox-e2b",
        "E2B's protocol",
        &["sandbox-api", "sandbox-auth", "sandbox-dirfd", "sandbox-http", "sandbox-service"],
    ),
    (
        "sandbox-render",
        "text of results, for people and reports",
        &["sandbox-api", "sandbox-protocol"],
    ),
    ("sandbox-client", "requests to a service", &["sandbox-api"]),
    (
        "sandbox-config",
        "settings, and where they are from",
        &[
            "sandbox-api", "sandbox-controller", "sandbox-dirfd", "sandbox-e2b", "sandbox-env",
            "sandbox-mcp", "sandbox-protocol", "sandbox-service", "sandbox-upstream",
        ],
    ),
    (
        "sandboxctl",
        "the command line",
        &[
            "sandbox-api", "sandbox-auth", "sandbox-client", "sandbox-config",
            "sandbox-controller", "sandbox-dirfd", "sandbox-e2b", "sandbox-env", "sandbox-http",
            "sandbox-mcp", "sandbox-protocol", "sandbox-render", "sandbox-service",
            "sandbox-store", "sandbox-tools", "sandbox-upstream",
        ],
    ),
];
/// Crates that are not shipped: they may use any.
const TOOLS: &[&str] = &["sandbox-bench"];

/// The modules of the controller, from the bottom up.
const MODULES: &[Row] = &[
    ("step", "the steps of a sandbox's life, and their time limits", &[]),
    ("clock", "the time of a sandbox, which can stand still", &[]),
    ("failpoint", "where tests hold a controller", &["step"]),
    ("mounts", "what the host has mounted", &["error"]),
    ("error", "what can fail on our side", &["mounts", "step"]),
    ("engine_call", "calls to the engine", &["error", "failpoint", "step"]),
    ("audit", "one line for each operation", &["error"]),
    ("io_dir", "files on the host's side", &["clock", "error"]),
    ("config", "the controller's configuration", &["mounts"]),
    ("gc", "nothing is left", &["config", "engine_call", "error", "io_dir", "step"]),
    ("egress", "connections of commands", &["audit"]),
    ("process", "processes that live on, and their events", &["clock", "error"]),
    (
        "sandbox",
        "one container, from its launch to its removal",
        &[
            "audit", "clock", "egress", "engine_call", "error", "failpoint", "gc", "io_dir",
            "mounts", "process", "step",
        ],
    ),
    (
        "execution",
        "scripts, commands and processes in a sandbox",
        &["audit", "clock", "error", "failpoint", "io_dir", "mounts", "process", "sandbox", "step"],
    ),
    ("pool", "sandboxes that are started ahead", &["error", "io_dir", "sandbox"]),
    ("ports", "connections to a sandbox's ports", &["audit", "error", "sandbox"]),
    ("files", "file operations on a sandbox", &["audit", "error", "io_dir", "sandbox"]),
    (
        "controller",
        "an engine, and the sandboxes on it",
        &[
            "audit", "config", "engine_call", "error", "failpoint", "gc", "io_dir", "mounts",
            "pool", "sandbox", "step",
        ],
    ),
    ("check", "whether a script compiles", &["controller", "error", "execution"]),
    ("doctor", "diagnosis", &["config", "controller", "error", "gc", "io_dir", "sandbox"]),
];

/// Lines of the controller, its tests apart.
const MAX_LINES: usize = 16_500;
/// Lines of code in one file, its tests apart.
const MAX_FILE_LINES: usize = 700;
/// Source files side by side in one folder.
const MAX_FILES: usize = 12;

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("it lies in the workspace").to_owned()
}

fn row(table: &[Row], name: &str) -> Row {
    *table
        .iter()
        .find(|row| row.0 == name)
        .unwrap_or_else(|| panic!("{name} is new: say in this test what it is and what it may use"))
}

/// Fails for what `user` uses beyond its row.
fn check(table: &[Row], user: &str, used: &str) -> Result<(), String> {
    let (_, owns, may_use) = row(table, user);
    if user == used || may_use.contains(&used) {
        return Ok(());
    }
    let (_, used_owns, _) = row(table, used);
    Err(format!(
        "{user} ({owns}) uses {used} ({used_owns}): move what it needs of that into {user}, or into \
         what both may use ({}), or hand it over from above as a value",
        shared(table, user, used),
    ))
}

/// What both may use.
fn shared(table: &[Row], one: &str, other: &str) -> String {
    let both: Vec<_> =
        row(table, one).2.iter().filter(|it| row(table, other).2.contains(it)).collect();
    match &*both {
        [] => "there is nothing yet".to_owned(),
        both => both.iter().map(|it| **it).collect::<Vec<_>>().join(", "),
    }
}

/// The packages of the workspace.
fn metadata() -> serde_json::Value {
    let metadata = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version", "1", "--locked", "--offline"])
        .current_dir(workspace())
        .output()
        .unwrap();
    assert!(metadata.status.success(), "{}", String::from_utf8_lossy(&metadata.stderr));
    serde_json::from_slice(&metadata.stdout).unwrap()
}

#[test]
fn crates_depend_on_those_below_them_alone() {
    let metadata = metadata();
    let packages = metadata["packages"].as_array().unwrap();
    let names: BTreeSet<_> = packages.iter().map(|it| it["name"].as_str().unwrap()).collect();
    let mut wrong = Vec::new();
    for package in packages {
        let name = package["name"].as_str().unwrap();
        if TOOLS.contains(&name) {
            continue;
        }
        let needs = package["dependencies"].as_array().unwrap();
        // Tests may reach further.
        let needs = needs.iter().filter(|it| it["kind"].as_str() != Some("dev"));
        let needs = needs.map(|it| it["name"].as_str().unwrap()).filter(|it| names.contains(it));
        wrong.extend(needs.filter_map(|used| check(CRATES, name, used).err()));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A crate's source files by their module's path, without tests.
struct Sources(BTreeMap<String, String>);

impl Sources {
    fn of_the_controller() -> Self {
        Self::read(&workspace().join("controller/src"))
    }

    fn read(root: &Path) -> Self {
        let mut files = BTreeMap::new();
        let mut folders = vec![root.to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                let name = path.file_name().unwrap().to_str().unwrap().to_owned();
                if path.is_dir() {
                    if name != "tests" {
                        folders.push(path);
                    }
                } else if name.ends_with(".rs") && name != "tests.rs" {
                    let module = path.strip_prefix(root).unwrap().with_extension("");
                    let module = module.to_str().unwrap();
                    let module = module.strip_suffix("/mod").unwrap_or(module);
                    files.insert(module.to_owned(), fs::read_to_string(&path).unwrap());
                }
            }
        }
        Self(files)
    }

    /// The module that a path leads to, seen from another.
    fn target(&self, from: &str, path: &str) -> Option<&str> {
        let mut segments: Vec<&str> = path.split("::").collect();
        let mut base: Vec<&str> = from.split('/').collect();
        match segments[0] {
            "crate" => {
                base.clear();
                segments.remove(0);
            }
            "self" => _ = segments.remove(0),
            "super" => {
                while segments.first() == Some(&"super") {
                    segments.remove(0);
                    base.pop();
                }
            }
            first if self.0.contains_key(&format!("{from}/{first}")) => {}
            _ => return None,
        }
        base.extend(segments);
        // The longest that is a file: what follows is an item in it.
        (1..=base.len()).rev().find_map(|length| {
            let module = base[..length].join("/");
            self.0.get_key_value(&module).map(|(module, _)| &**module)
        })
    }

    /// Which modules each one uses.
    fn uses(&self) -> BTreeMap<&str, BTreeSet<&str>> {
        // They only name what others have.
        let others =
            self.0.iter().filter(|(module, _)| !matches!(&***module, "lib" | "main" | "fuzz"));
        others
            .map(|(module, source)| {
                let paths = paths(source);
                let targets = paths.iter().filter_map(|path| self.target(module, path));
                (&**module, targets.filter(|target| target != module).collect())
            })
            .collect()
    }
}

/// The code, without its tests and comments.
fn code(source: &str) -> String {
    let mut code = String::new();
    let mut lines = source.lines();
    while let Some(line) = lines.next() {
        if line.trim_start().starts_with("#[cfg(test)]") {
            // What it stands before: a line, or a block up to its end.
            let indent = &line[..line.len() - line.trim_start().len()];
            let mut item = lines.next().unwrap_or_default();
            while !item.ends_with([';', '{', ',', '}']) {
                item = lines.next().unwrap_or("}");
            }
            if item.ends_with('{') {
                let end = format!("{indent}}}");
                _ = lines.by_ref().find(|line| *line == end);
            }
            continue;
        }
        code.push_str(line.split("//").next().unwrap_or_default());
        code.push('\n');
    }
    code
}

/// The paths in the code.
fn paths(source: &str) -> Vec<String> {
    // Who may see an item is not an import.
    let code = code(source).replace("pub(in crate", "pub(");
    let mut found = Vec::new();
    let (uses, rest): (Vec<&str>, Vec<&str>) = code.split(';').partition(|statement| {
        let last = statement.trim_start().lines().last().unwrap_or_default();
        statement.contains("use ") && (last.contains("use ") || statement.contains("::{"))
    });
    for statement in uses {
        let start = statement.rfind("use ").map_or(0, |at| at + 4);
        leaves(statement[start..].trim(), "", &mut found);
    }
    for statement in rest {
        let is_part = |char: char| char.is_alphanumeric() || char == '_' || char == ':';
        let words = statement.split(|char| !is_part(char));
        let is_path = |word: &&str| {
            ["crate::", "super::", "self::"].iter().any(|start| word.starts_with(start))
        };
        found.extend(words.filter(is_path).map(|word| word.trim_end_matches(':').to_owned()));
    }
    found
}

/// The paths of a `use`, each written out.
fn leaves(tree: &str, before: &str, found: &mut Vec<String>) {
    let Some(open) = tree.find('{') else {
        let path = tree.split(" as ").next().unwrap_or_default().trim();
        found.push(format!("{before}{path}").trim_end_matches("::self").to_owned());
        return;
    };
    // Text of a message has braces too, in any order.
    let end = tree.rfind('}').filter(|end| *end > open).unwrap_or(tree.len());
    let before = format!("{before}{}", tree[..open].trim());
    let inner = &tree[open + 1..end];
    let (mut depth, mut start) = (0, 0);
    for (at, char) in inner.char_indices().chain([(inner.len(), ',')]) {
        match char {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                let part = inner[start..at].trim();
                if !part.is_empty() {
                    leaves(part, &before, found);
                }
                start = at + 1;
            }
            _ => {}
        }
    }
}

#[test]
fn modules_of_the_controller_use_only_those_below() {
    let sources = Sources::of_the_controller();
    let top_level = |module: &str| module.split('/').next().unwrap().to_owned();
    let mut wrong = BTreeSet::new();
    let mut arrows = 0;
    for (module, targets) in sources.uses() {
        for target in targets {
            arrows += 1;
            wrong.extend(check(MODULES, &top_level(module), &top_level(target)).err());
        }
    }
    assert!(
        arrows > 100,
        "only {arrows} imports were found: this test does not read them any more"
    );
    assert!(wrong.is_empty(), "{}", wrong.into_iter().collect::<Vec<_>>().join("\n"));
}

/// Files that import each other, directly or by others.
fn circles(sources: &Sources) -> BTreeSet<Vec<&str>> {
    let uses = sources.uses();
    let reached = |from: &str| {
        let mut reached = BTreeSet::new();
        let mut open: Vec<&str> = uses.get(from).into_iter().flatten().copied().collect();
        while let Some(module) = open.pop() {
            if reached.insert(module) {
                open.extend(uses.get(module).into_iter().flatten());
            }
        }
        reached
    };
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        uses.keys().map(|module| (*module, reached(module))).collect();
    let mut circles = BTreeSet::new();
    for (module, targets) in &reached {
        if targets.contains(module) {
            let circle =
                targets.iter().filter(|it| reached.get(*it).is_some_and(|it| it.contains(module)));
            circles.insert(circle.copied().collect::<Vec<_>>());
        }
    }
    circles
}

#[test]
fn files_do_not_import_each_other() {
    let mut wrong = Vec::new();
    for (name, folder) in crate_folders() {
        let sources = Sources::read(&folder);
        let circles = circles(&sources);
        if !circles.is_empty() {
            wrong.push(format!(
                "{name} has files that import each other: {circles:?}; move what they share into a \
                 file below them",
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn files_are_short_enough_to_be_read() {
    let mut long = Vec::new();
    for (name, folder) in crate_folders() {
        for (module, source) in Sources::read(&folder).0 {
            let lines = code(&source).lines().filter(|line| !line.trim().is_empty()).count();
            if lines > MAX_FILE_LINES {
                long.push(format!("{name}: {module} has {lines} lines of code"));
            }
        }
    }
    assert!(
        long.is_empty(),
        "{}: a file has one concept, and at most {MAX_FILE_LINES}",
        long.join("\n")
    );
}

/// The crates that are shipped, with their sources.
fn crate_folders() -> Vec<(&'static str, PathBuf)> {
    let metadata = metadata();
    let packages = metadata["packages"].as_array().unwrap();
    let folder = |name: &str| {
        let package = packages.iter().find(|it| it["name"] == name).unwrap();
        let manifest = Path::new(package["manifest_path"].as_str().unwrap());
        manifest.parent().unwrap().join("src")
    };
    CRATES.iter().map(|row| (row.0, folder(row.0))).collect()
}

#[test]
fn controller_stays_small_and_its_folders_can_be_read_at_a_glance() {
    let sources = Sources::of_the_controller();
    let lines: usize = sources.0.values().map(|source| source.lines().count()).sum();
    assert!(
        lines <= MAX_LINES,
        "controller/src has {lines} lines without its tests: what needs no sandbox belongs in a crate below"
    );
    let mut folders: BTreeMap<PathBuf, usize> = BTreeMap::new();
    let mut open = vec![workspace().join("controller/src")];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                *folders.entry(folder.clone()).or_default() += 1;
            }
        }
    }
    for (folder, files) in folders {
        assert!(
            files <= MAX_FILES,
            "{} has {files} files side by side: what belongs together gets a folder of its own",
            folder.display()
        );
    }
}

#[test]
fn architecture_names_every_package_and_every_module_of_the_controller() {
    let page = fs::read_to_string(workspace().join("docs/src/architecture.md")).unwrap();
    let metadata = metadata();
    let packages = metadata["packages"].as_array().unwrap().iter().map(|package| {
        let manifest = Path::new(package["manifest_path"].as_str().unwrap());
        let folder = manifest.parent().unwrap().strip_prefix(workspace()).unwrap();
        folder.to_str().unwrap().to_owned()
    });
    let clients = fs::read_dir(workspace().join("clients"))
        .unwrap()
        .map(|entry| format!("clients/{}", entry.unwrap().file_name().to_str().unwrap()));
    let mut missing: Vec<String> = packages
        .chain(clients)
        .map(|folder| format!("`{folder}/`"))
        .filter(|name| !page.contains(name))
        .collect();
    let modules = page.split_once("| in `controller/src/` |").expect("its table").1;
    let modules = modules.split("\n\n").next().unwrap();
    missing.extend(MODULES.iter().map(|row| row.0.to_owned()).filter(|module| {
        !modules.contains(&format!("`{module}/`")) && !modules.contains(&format!("`{module}.rs`"))
    }));
    assert!(missing.is_empty(), "docs/src/architecture.md does not name {}", missing.join(", "));
}

#[test]
fn source_files_that_the_docs_name_exist() {
    let mut open = vec![workspace().join("docs/src")];
    let mut missing = Vec::new();
    let mut found = 0;
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        let text = fs::read_to_string(&path).unwrap_or_default();
        // What stands between backquotes is every second piece.
        let names = text.split('`').skip(1).step_by(2).filter(|name| {
            let is_source = name.ends_with(".rs") && !name.contains([' ', '{', '*', '<']);
            is_source && name.split('/').next().is_some_and(|top| workspace().join(top).is_dir())
        });
        for name in names {
            found += 1;
            if !workspace().join(name).exists() {
                missing.push(format!("{}: {name}", path.display()));
            }
        }
    }
    assert!(found > 10, "only {found} names were found: this test does not read them any more");
    assert!(missing.is_empty(), "the docs name files that do not exist:\n{}", missing.join("\n"));
}
