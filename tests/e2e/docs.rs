//! The docs are true: every command that they show is run. `tests/pages.rs` checks the rest of them.

use std::path::Path;
use std::process::Command;

use sandbox_store::fixture::Postgres;

use crate::engine::{Engine, engine};
use crate::engines::{Feature, has};
use crate::fixture::{Fixture, files_below, finish, sandboxctl, workspace};
use crate::markdown;
use crate::shared::{once, remove_image_at_end, run_id};

/// Commands that a document may show and that are not run here, and why.
const NOT_RUN_HERE: &[(&str, &str)] = &[
    ("./scripts/test", "CI runs it; it runs this test"),
    ("./scripts/record", "changes the checkout"),
    ("git clone", "needs the place that it clones from"),
    ("cd sandboxctl", "belongs to git clone"),
    ("cargo install --path sandboxctl", "the binary is built already"),
    ("cargo ", "CI runs cargo's commands through ./scripts/test"),
    ("BLESS=1 ", "changes the checkout"),
];

/// A fenced `console` block: commands after `$ `, and what each prints.
struct Shown {
    command: String,
    output: Vec<String>,
}

fn shown(page: &Path) -> Vec<Shown> {
    let text = markdown::read(page);
    let mut all: Vec<Shown> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        if line.starts_with("```") {
            inside = line == "```console";
        } else if inside {
            match line.strip_prefix("$ ") {
                Some(command) => {
                    all.push(Shown { command: command.to_owned(), output: Vec::new() });
                }
                None => all
                    .last_mut()
                    .unwrap_or_else(|| panic!("{}: output before a command", page.display()))
                    .output
                    .push(line.to_owned()),
            }
        }
    }
    all
}

/// Whether `line` is what `pattern` shows; `…` stands for anything.
fn matches(pattern: &str, line: &str) -> bool {
    let mut parts = pattern.split('…');
    let Some(mut rest) = line.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let mut exact = true;
    for part in parts {
        exact = false;
        match rest.find(part) {
            _ if part.is_empty() => rest = "",
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    !exact || rest.is_empty()
}

fn copy_tree(from: &Path, to: &Path) {
    for file in files_below(from) {
        let copy = to.join(file.strip_prefix(from).unwrap());
        std::fs::create_dir_all(copy.parent().unwrap()).unwrap();
        std::fs::copy(&file, &copy).unwrap();
    }
}

/// The prefix of the images that a page makes, in place of `example/`: other pages have images of
/// their own.
fn images() -> String {
    format!("sandboxctl-docs-{}/", std::process::id())
}

/// The image that some pages name. The tests have no registry: [`stand_in`] replaces it.
const IMAGE: &str = "python:3.13-slim";

/// An image of this machine's packages, made once for all pages.
fn stand_in() -> String {
    once("stand-in", || {
        let name = format!("sandboxctl-test/stand-in:{}", run_id());
        remove_image_at_end(&name);
        let make =
            format!("examples/image-of-packages python3 dash coreutils | docker import - {name}");
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(make).current_dir(workspace());
        finish(shell).assert_code(0);
        name
    })
}

/// Removes the images that a page made.
struct MadeImages;

impl Drop for MadeImages {
    fn drop(&mut self) {
        let list = format!("--filter=reference={}*", images());
        let list = ["image", "ls", "--format={{.Repository}}:{{.Tag}}", &list];
        let Ok(listed) = Command::new("docker").args(list).output() else { return };
        let names = String::from_utf8_lossy(&listed.stdout).into_owned();
        _ = Command::new("docker").args(["image", "rm"]).args(names.lines()).output();
    }
}

/// A test a page: its commands in the order in which it shows them. `tests/pages.rs` fails for a page
/// that is not listed.
macro_rules! pages {
    ($($name:ident: $page:literal,)*) => {
        /// The names of their tests.
        pub const PAGES: &[&str] = &[$(stringify!($name)),*];
        $(
            #[test]
            fn $name() {
                run_commands_of($page);
            }
        )*
    };
}

pages! {
    readme: "README.md",
    contributing: "CONTRIBUTING.md",
    docker_run: "docs/src/docker-run.md",
    installation: "docs/src/installation.md",
    artifacts: "docs/src/guides/artifacts.md",
    changes: "docs/src/guides/changes.md",
    cluster: "docs/src/guides/cluster.md",
    console: "docs/src/guides/console.md",
    ci: "docs/src/guides/ci.md",
    command_line: "docs/src/guides/command-line.md",
    commands: "docs/src/guides/commands.md",
    injected_secrets: "docs/src/guides/injected-secrets.md",
    learnt_rules: "docs/src/guides/learnt-rules.md",
    library: "docs/src/guides/library.md",
    living_sandboxes: "docs/src/guides/living-sandboxes.md",
    mcp: "docs/src/guides/mcp.md",
    pipelines: "docs/src/guides/pipelines.md",
    ports: "docs/src/guides/ports.md",
    receipts: "docs/src/guides/receipts.md",
    reports: "docs/src/guides/reports.md",
    service: "docs/src/guides/service.md",
    tools_in_scripts: "docs/src/guides/tools-in-scripts.md",
    workflows: "docs/src/guides/workflows.md",
    quick_start: "docs/src/quick-start.md",
    recipes: "docs/src/recipes.md",
    audit: "docs/src/reference/audit.md",
    auth: "docs/src/reference/auth.md",
    cli: "docs/src/reference/cli.md",
    config: "docs/src/reference/config.md",
    http: "docs/src/reference/http.md",
    tools: "docs/src/reference/tools.md",
}

fn run_commands_of(page: &str) {
    let page = workspace().join(page);
    // What `docker run` does of itself is Docker's, and Podman's is otherwise.
    if page.ends_with("docker-run.md") && !has(Feature::OutOfMemory) {
        return;
    }
    let place = Fixture::new();
    copy_tree(&workspace().join("examples"), &place.path("examples"));
    let commands = shown(&page);
    let kills =
        |it: &Shown| it.command.contains("-s KILL 2 sandboxctl") || it.command.contains("kill -9");
    if commands.iter().any(kills) {
        place.expect_a_dead_instance();
    }
    let _made = MadeImages;
    // What the page says that its reader has: a database, named by a variable.
    let server = page.ends_with("guides/cluster.md").then(Postgres::shared);
    let database = server.as_ref().map(Postgres::database);
    // Removals that were not waited for are checked on the same engine as the commands, by its
    // address.
    let last = Shown { command: "sandboxctl gc".to_owned(), output: Vec::new() };
    for shown in commands.into_iter().chain([last]) {
        run_command(&place, &page, database.as_deref(), &shown);
    }
}

fn run_command(
    place: &Fixture,
    page: &Path,
    database: Option<&str>,
    Shown { command, output }: &Shown,
) {
    // `scripts/test` has built the examples of the library next to the binary.
    let this = std::env::current_exe().unwrap();
    let examples = this.parent().unwrap().with_file_name("examples").join("");
    let mut line = command
        .replace("cargo run --release -- ", "sandboxctl ")
        .replace("./target/release/sandboxctl", "sandboxctl")
        .replace(" example/", &format!(" {}", images()))
        .replace("=example/", &format!("={}", images()))
        .replace(
            "cargo run -p sandbox-controller --example ",
            examples.to_str().expect("a path of UTF-8"),
        );
    if line.contains(IMAGE) {
        line = line.replace(IMAGE, &stand_in());
    }
    if NOT_RUN_HERE.iter().any(|(start, _)| line.starts_with(start)) {
        return;
    }
    let mut shell = Command::new("sh");
    let path = std::env::join_paths(
        std::iter::once(sandboxctl().parent().unwrap().to_owned())
            .chain(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())),
    );
    shell.arg("-c").arg(format!("exec 2>&1\n{line}\n")).current_dir(place.work()).env_clear();
    shell.env("PATH", path.unwrap()).env("HOME", place.home());
    shell.env("XDG_RUNTIME_DIR", place.state());
    // A server of its own.
    shell.env("TMUX_TMPDIR", place.home());
    // Where a page names no engine, Docker's is used if it answers.
    if engine() == Engine::Embedded {
        shell.env("SANDBOXCTL_ENGINE_KIND", "embedded");
        shell.env("SANDBOXCTL_ENGINE_DATA_DIR", place.data());
    }
    shell.envs(database.map(|url| ("SANDBOXCTL_SERVER_DATABASE", url)));
    // Instead of an installed package.
    shell.env("PYTHONPATH", workspace().join("clients/python/src"));
    let at = format!("{}: $ {command}", page.display());
    // The last one of a page that fails is the one that did not end.
    println!("{at}");
    let ended = finish(shell);
    assert!(!ended.stdout.contains("not found"), "{at}: {ended:#?}");
    if output.is_empty() {
        ended.assert_code(0);
        return;
    }
    let printed: Vec<&str> = ended.stdout.lines().collect();
    let same = match output.iter().position(|line| line == "…") {
        Some(cut) => {
            let (first, last) = (&output[..cut], &output[cut + 1..]);
            printed.len() >= output.len() - 1
                && first.iter().zip(&printed).all(|(a, b)| matches(a, b))
                && last.iter().rev().zip(printed.iter().rev()).all(|(a, b)| matches(a, b))
        }
        None => {
            output.len() == printed.len() && output.iter().zip(&printed).all(|(a, b)| matches(a, b))
        }
    };
    assert!(same, "{at}\nshown: {output:#?}\nprinted: {printed:#?}");
}
