//! The pages of the docs are whole: every link leads to a file and a heading, every example is the
//! file that it shows, every promise has tests. No engine is needed; `tests/e2e/docs.rs` runs the
//! commands that the pages show.

mod markdown;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use markdown::{pages, read, workspace};

/// Precedes a code block that shows a file.
const FILE_MARK: &str = "<!-- file: ";

/// The text without its code blocks.
fn prose(text: &str) -> String {
    let mut fence = false;
    let mut prose = String::new();
    for line in text.lines() {
        let is_fence = line.trim_start().starts_with("```");
        if !is_fence && !fence {
            prose.push_str(line);
            prose.push('\n');
        }
        fence ^= is_fence;
    }
    prose
}

/// The text without its code spans, which may go on in the next line.
fn without_code(text: &str) -> String {
    let mut rest = text;
    let mut plain = String::new();
    while let Some(start) = rest.find('`') {
        plain.push_str(&rest[..start]);
        let span = &rest[start..];
        let quote = &span[..span.len() - span.trim_start_matches('`').len()];
        let inside = &span[quote.len()..];
        rest = match inside.split("\n\n").next().and_then(|paragraph| paragraph.find(quote)) {
            Some(end) => &inside[end + quote.len()..],
            None => inside,
        };
    }
    plain + rest
}

/// Where the links and the images of a page lead.
fn links(text: &str) -> Vec<String> {
    let plain = without_code(&prose(text));
    let targets = plain.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.map(str::to_owned).collect()
}

/// The names by which a link refers to the page's headings, as mdbook and the forges form them.
fn heading_ids(text: &str) -> BTreeSet<String> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let mut ids = BTreeSet::new();
    for line in prose(text).lines() {
        let title = line.trim_start_matches('#');
        if title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        // A link's text alone.
        let title = title.replace("](", "\u{0}");
        let title = title.split('\u{0}').enumerate().map(|(index, piece)| match index {
            0 => piece,
            _ => piece.split_once(')').map_or(piece, |(_, after)| after),
        });
        let id: String = title
            .collect::<String>()
            .trim()
            .chars()
            .filter_map(|char| match char {
                ' ' => Some('-'),
                '-' | '_' => Some(char),
                _ if char.is_alphanumeric() => Some(char.to_ascii_lowercase()),
                _ => None,
            })
            .collect();
        let count = seen.entry(id.clone()).or_default();
        ids.insert(if *count == 0 { id.clone() } else { format!("{id}-{count}") });
        *count += 1;
    }
    ids
}

#[test]
fn heading_ids_follow_the_rules_of_mdbook_and_forges() {
    let page = "# One\n\n## `tools --stdio`\n```\n# code\n```\n## What's [new](x.md)?\n## One\n";
    let ids = heading_ids(page);
    let expected = ["one", "one-1", "tools---stdio", "whats-new"].map(str::to_owned);
    assert_eq!(ids, expected.into());
}

#[test]
fn links_in_code_are_not_followed() {
    let page = "[a](b.md) `[c](d.md)`\n```\n[e](f.md)\n```\n`g\nh` ![i](j.svg)\n";
    assert_eq!(links(page), ["b.md", "j.svg"]);
}

#[test]
fn links_lead_to_existing_files_and_headings() {
    let root = workspace();
    let book = root.join("docs/src");
    let pages = pages();
    let ids: BTreeMap<PathBuf, BTreeSet<String>> =
        pages.iter().map(|page| (page.canonicalize().unwrap(), heading_ids(&read(page)))).collect();
    let mut wrong = Vec::new();
    let (mut files, mut headings) = (0, 0);
    for page in &pages {
        for link in links(&read(page)) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let mut say = |why: &str| wrong.push(format!("{}: {link}: {why}", page.display()));
            let (file, heading) = link.split_once('#').unwrap_or((&link, ""));
            let target = match file {
                "" => page.clone(),
                file => page.parent().unwrap().join(file),
            };
            let Ok(target) = target.canonicalize() else {
                say("no such file");
                continue;
            };
            files += 1;
            if page.starts_with(&book) && !target.starts_with(&book) {
                say("the book does not contain it");
            }
            if !heading.is_empty() {
                headings += 1;
                match ids.get(&target) {
                    Some(ids) if ids.contains(heading) => {}
                    _ => say("no such heading"),
                }
            }
        }
    }
    assert!(files > 100 && headings > 20, "only {files} links, {headings} to headings were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_page_of_the_book_is_in_its_summary() {
    let book = workspace().join("docs/src");
    let summary = links(&read(&book.join("SUMMARY.md")));
    let linked: BTreeSet<PathBuf> = summary.iter().map(|link| book.join(link)).collect();
    let in_book = pages().into_iter().filter(|page| page.starts_with(&book));
    let missing: Vec<_> =
        in_book.filter(|page| !page.ends_with("SUMMARY.md") && !linked.contains(page)).collect();
    assert!(missing.is_empty(), "SUMMARY.md lacks {missing:?}");
}

/// The page with every example as its file is now, and the files that it shows.
fn with_current_examples(page: &Path) -> (String, BTreeSet<PathBuf>) {
    let text = read(page);
    let mut lines = text.lines();
    let mut current = String::new();
    let mut shown = BTreeSet::new();
    while let Some(line) = lines.next() {
        current.push_str(line);
        current.push('\n');
        let Some(name) = line.strip_prefix(FILE_MARK) else { continue };
        let at = format!("{}: {line}", page.display());
        let name = name.strip_suffix(" -->").unwrap_or_else(|| panic!("{at}: no end"));
        let file = workspace().join(name);
        let fence = lines.next().filter(|line| line.starts_with("```"));
        current.push_str(fence.unwrap_or_else(|| panic!("{at}: no code block follows")));
        current.push('\n');
        assert!(lines.any(|line| line == "```"), "{at}: the code block does not end");
        let source = read(&file);
        assert!(!source.contains("```"), "{at}: the file would end the code block");
        current.push_str(source.trim_end());
        current.push_str("\n```\n");
        shown.insert(file);
    }
    (current, shown)
}

#[test]
fn examples_in_pages_equal_their_files() {
    let mut shown = BTreeSet::new();
    for page in pages() {
        let text = read(&page);
        assert!(
            !prose(&text).contains("{{#") && !text.contains("{{#include"),
            "{}: a forge shows mdbook's directives as they are written: put the text into the \
             page, after a line `{FILE_MARK}PATH -->`",
            page.display()
        );
        let (current, files) = with_current_examples(&page);
        shown.extend(files);
        if std::env::var_os("BLESS").is_some() {
            fs::write(&page, current).unwrap();
        } else {
            assert!(
                text == current,
                "{}: an example is not its file any more; BLESS=1 cargo test --test pages copies \
                 the files into the pages",
                page.display()
            );
        }
    }
    let library = fs::read_dir(workspace().join("controller/examples")).unwrap();
    for example in library.map(|entry| entry.unwrap().path()) {
        assert!(shown.contains(&example), "no page shows {}", example.display());
    }
}

#[test]
fn recording_shows_the_commands_of_the_readme() {
    let readme = read(&workspace().join("README.md"));
    let recording = read(&workspace().join("docs/src/session.svg"));
    let recording = recording.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    let start = readme.split("\n## ").next().unwrap();
    let commands: Vec<_> = start.lines().filter(|line| line.starts_with("$ ")).collect();
    assert!(commands.len() >= 3, "only {commands:?} were found");
    for command in commands {
        assert!(
            recording.lines().any(|line| line == command),
            "docs/src/session.svg lacks `{command}`: ./scripts/record makes it again"
        );
    }
}

#[test]
fn commands_of_every_page_are_run() {
    let root = workspace();
    let tests = read(&root.join("tests/e2e/docs.rs"));
    let list = tests.split("\npages! {\n").nth(1).unwrap().split("}").next().unwrap();
    let listed: BTreeSet<PathBuf> =
        list.split('"').skip(1).step_by(2).map(|page| root.join(page)).collect();
    let shows_commands = |page: &PathBuf| {
        let text = read(page);
        let blocks = text.split("```console\n").skip(1).filter_map(|rest| rest.split_once("\n```"));
        let mut lines = blocks.flat_map(|(block, _)| block.lines());
        lines.any(|line| line.starts_with("$ "))
    };
    let with_commands: BTreeSet<PathBuf> = pages().into_iter().filter(shows_commands).collect();
    assert_eq!(listed, with_commands, "tests/e2e/docs.rs lists the pages that show commands");
}

/// The tests below a folder of the workspace, by the names that promises have for them.
fn test_names(folder: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut open = vec![workspace().join(folder)];
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let file = path.strip_prefix(workspace()).unwrap().with_extension("");
            let file = file.strip_prefix("tests/e2e").unwrap_or(&file).to_str().unwrap();
            let parts: Vec<_> = file.split('/').filter(|part| *part != "src").collect();
            let mut is_test = false;
            let text = read(&path);
            // Cases that a macro makes a test of each engine of.
            let cases = text.split_once("\nsuite! {\n").and_then(|(_, it)| it.split_once("\n}"));
            let cases = cases.map_or("", |(cases, _)| cases).split_whitespace();
            names.extend(cases.map(|case| format!("{}::{case}", parts.join("::"))));
            for line in text.lines().map(str::trim_start) {
                is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
                let Some((_, function)) = line.split_once("fn ") else { continue };
                if is_test && let Some((name, _)) = function.split_once('(') {
                    names.insert(format!("{}::{name}", parts.join("::")));
                }
                is_test = false;
            }
        }
    }
    names
}

#[test]
fn every_promise_has_tests_that_exist() {
    let crates = [
        "protocol", "dirfd", "api", "sandbox-image", "controller", "env", "server", "sandboxctl",
        "tests",
    ];
    let all: BTreeSet<_> = crates.iter().flat_map(|folder| test_names(folder)).collect();
    let tests = read(&workspace().join("docs/src/reference/guarantee-tests.md"));
    let (table, lists) = tests.split_once("\n## ").unwrap();
    let rows: BTreeMap<&str, &str> = table
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once("` | "))
        .flat_map(|(tests, engines)| tests.split("`, `").map(move |test| (test, engines)))
        .collect();
    let lanes: toml::Table = toml::from_str(&read(&workspace().join("tests/lanes.toml"))).unwrap();
    let rows_in = |lane: &str, module: &str| {
        let rows = lanes[lane].as_table().unwrap().keys();
        rows.filter(|row| row.split("::").next() == Some(module)).count()
    };
    for (module, engines) in &rows {
        let is =
            ["both", "docker", "embedded", "embedded-only"].map(|lane| rows_in(lane, module) > 0);
        let expected = match () {
            // Some of its modules for each commit, all of them each night.
            () if *module == "conformance" => [true, false, true, false],
            () if engines.starts_with("Docker and the embedded engine") => {
                [true, false, false, false]
            }
            () if engines.starts_with("Docker") => [false, true, false, false],
            () if engines.starts_with("the embedded engine, and Docker each night") => {
                [false, false, true, false]
            }
            // Its faults do not depend on the engine, its sandboxes do.
            () if *module == "cluster" => [true, false, false, true],
            () => [false, false, false, true],
        };
        assert_eq!(is, expected, "the lanes of {module}: both, Docker, embedded, embedded alone");
    }
    let promises = read(&workspace().join("docs/src/guarantees.md"));
    let promises: Vec<&str> = promises.split("\n## ").skip(1).collect();
    assert!(promises.len() >= 10, "only {} promises were found", promises.len());
    let lists: Vec<(&str, &str)> =
        lists.lines().filter_map(|line| line.split_once(". `")).collect();
    assert_eq!(lists.len(), promises.len(), "guarantee-tests.md has a list for each promise");
    for (index, (promise, (number, tests))) in promises.iter().zip(lists).enumerate() {
        let expected = format!("{}. ", index + 1);
        assert!(promise.starts_with(&expected), "'{promise}' is not number {expected}");
        assert_eq!(format!("{number}. "), expected, "the lists are in the order of the promises");
        for test in tests.split('`').step_by(2) {
            assert!(all.contains(test), "promise {number} names {test}: no such test");
            let first = test.split("::").next().unwrap();
            let is_known = crates.contains(&first) || rows.contains_key(first);
            assert!(is_known, "{number} names {test}: the table does not say where it runs");
        }
    }
}
