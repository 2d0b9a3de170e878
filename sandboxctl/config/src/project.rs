//! Restrictions on a project's file. It comes with the project, so it is not trusted: it may narrow
//! what the user, the system or the defaults allow, and never widen it.

use std::cmp::Reverse;
use std::fmt::Display;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use sandbox_api::hosts::Allowlist;
use sandbox_api::image_matches;
use sandbox_controller::ConfinementPolicy;
use sandbox_protocol::message::{Access, AllowedPath};
use sandbox_protocol::path::GuestPath;

use super::key::Key;
use super::network;
use super::network::Presets;
use super::value::Value;
use super::value_error::ValueError;

/// Whether a project's file may set `key` to `value`, if the layers below set `below` and define
/// these presets.
///
/// # Errors
///
/// If it may not.
pub fn check(
    key: Key,
    value: &Value,
    below: Option<&Value>,
    presets: &Presets,
) -> Result<(), ValueError> {
    const BELOW: &str = "only name a directory below the working directory";
    let refused = match (key, value, below) {
        (Key::Limit(_) | Key::Exec(_), Value::Limit(value), Some(Value::Limit(below))) => value
            .is_over(*below)
            .then(|| format!("only lower it, and {value} is more than {below}")),
        (Key::IoEnabled, Value::Switch(true), Some(Value::Switch(false))) => {
            Some("not turn on what is turned off outside it".to_owned())
        }
        (Key::IoEnabled, Value::Switch(_), _) => None,
        (Key::Confinement, Value::Text(word), _) => match ConfinementPolicy::from_word(word) {
            Some(ConfinementPolicy::Required) => None,
            Some(ConfinementPolicy::BestEffort) | None => Some("only require it".to_owned()),
        },
        (Key::AllowedPaths, Value::Paths(paths), Some(Value::Paths(below))) => {
            // Access changes only at the paths of rules: check those of both lists.
            let more = |place: &GuestPath| access(place, paths) > access(place, below);
            let places = paths.iter().chain(below).map(|rule| GuestPath::new(&rule.path));
            let path = places.flatten().find(more);
            path.map(|path| format!("not allow {path}, which is not allowed so outside it"))
        }
        (Key::AllowedOutPaths, Value::Dirs(dirs), Some(Value::Dirs(below))) => {
            let dir = dirs.iter().find(|dir| !below.iter().any(|outer| is_below(dir, outer)));
            dir.map(|dir| outside(dir.display()))
        }
        (Key::AllowedImages, Value::Names(names), Some(Value::Names(below))) => {
            // A pattern covers itself, and names without `*`.
            let covered = |name: &String| {
                below.contains(name)
                    || below.iter().any(|outer| {
                        outer == "*" || (!name.contains('*') && image_matches(outer, name))
                    })
            };
            names.iter().find(|name| !covered(name)).map(outside)
        }
        (Key::Pull, Value::Text(word), _) if word == "never" => None,
        (Key::Pull, ..) => Some("only set it to never".to_owned()),
        (Key::Allow, Value::Hosts(entries), Some(Value::Hosts(below))) => {
            let unknown = |name| format!("there is no preset @{name} outside the project's file");
            let asked =
                network::resolve(entries, presets).map_err(|name| ValueError::of(unknown(name)))?;
            // An undefined preset allows nothing.
            let known = below
                .iter()
                .filter_map(|entry| network::resolve(std::slice::from_ref(entry), presets).ok());
            let below: Allowlist = known.flat_map(|list| list.rules().to_vec()).collect();
            asked.rules().iter().find(|rule| !below.covers(rule)).map(outside)
        }
        (Key::IoDir, Value::Path(dir), _) => {
            let mut names = dir.components().filter(|part| *part != Component::CurDir).peekable();
            let is_here = names.peek().is_none();
            let why = names.find_map(|part| match part {
                // They contain hooks, editor tasks, pipelines and agents' settings: files there are
                // executed by other programs. Any list of such names would be incomplete.
                Component::Normal(name) if name.as_bytes().starts_with(b".") => {
                    Some("not name a directory that begins with a dot, as .git does")
                }
                Component::Normal(_) => None,
                _ => Some(BELOW),
            });
            why.or(is_here.then_some(BELOW)).map(str::to_owned)
        }
        // How failures are reported, and how text is decoded, grants no access. Protected names are
        // added to those below.
        (Key::IoErrors | Key::DefaultEncoding | Key::Protected, _, _) => None,
        // Everything else is the user's or the system's: engines, images, where files are, what a
        // service allows. A project that redefines a preset would widen the requests of others that
        // use it; how a private io dir is kept protects the machine, including its memory.
        _ => Some("not set it".to_owned()),
    };
    refused.map_or(Ok(()), refuse)
}

fn refuse(what: impl Display) -> Result<(), ValueError> {
    Err(ValueError::of(format!("a project's file may {what}")))
}

fn outside(what: impl Display) -> String {
    format!("not allow {what}, which is not allowed outside it")
}

/// The access that these rules allow at a path, from none to write, as an agent applies them: the
/// most specific rule decides, and of two with the same path the narrower one.
fn access(place: &GuestPath, rules: &[AllowedPath]) -> u8 {
    let rules = rules.iter().filter_map(|rule| {
        let path = GuestPath::new(&rule.path).ok()?;
        let access = match rule.access {
            Access::Read => 1,
            Access::Write => 2,
        };
        place.is_under(&path).then(|| (path.components().count(), access))
    });
    let decides = rules.max_by_key(|&(depth, access)| (depth, Reverse(access)));
    decides.map_or(0, |(_, access)| access)
}

/// Whether a directory is another one or below it, judging only by the paths.
fn is_below(dir: &Path, outer: &Path) -> bool {
    let parts = |path: &'_ Path| -> Vec<_> {
        path.components()
            .filter(|part| *part != Component::CurDir)
            .map(|part| part.as_os_str().to_owned())
            .collect()
    };
    !dir.components().any(|part| part == Component::ParentDir)
        && dir.is_absolute() == outer.is_absolute()
        && parts(dir).starts_with(&parts(outer))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(name: &str, value: &str) -> Result<(), String> {
        let key = Key::from_name(name).unwrap();
        let value = toml::de::DeValue::parse(value).unwrap();
        let value = Value::from_toml(key, &value).unwrap();
        check(key, &value, key.default().as_ref(), &Presets::new())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_project_may_narrow() {
        for (key, value) in [
            ("limits.timeout", "'30s'"),
            ("limits.timeout", "'1s'"),
            ("limits.cpus", "0.5"),
            ("io.max_bytes", "0"),
            ("io.enabled", "false"),
            ("io.enabled", "true"),
            ("io.errors", "'return'"),
            ("policy.confinement", "'required'"),
            ("io.dir", "'./out/a'"),
            ("filesystem.allowed_paths", "[]"),
            ("filesystem.allowed_paths", "[{ path = '/io/a', access = 'write' }]"),
            ("filesystem.allowed_paths", "[{ path = '/in', access = 'read' }]"),
            ("filesystem.protected", "['.bashrc']"),
            ("filesystem.max_depth", "9"),
            ("network.allow", "[]"),
            ("network.connections", "1"),
            ("network.max_bytes", "0"),
            ("programs.pull", "'never'"),
            ("tools.allowed_images", "['python:*', 'debian:13']"),
            ("tools.allowed_out_paths", "[]"),
            ("tools.allowed_out_paths", "['.', './out', 'a/b']"),
        ] {
            assert_eq!(judged(key, value), Ok(()), "{key} = {value}");
        }
    }

    #[test]
    fn a_project_may_not_widen() {
        let cases = [
            ("limits.timeout", "'31s'"),
            ("limits.memory", "'257MiB'"),
            ("limits.pids", "65"),
            ("limits.ceiling.timeout", "'1s'"),
            ("policy.confinement", "'best-effort'"),
            ("engine.kind", "'docker'"),
            ("engine.host", "'tcp://192.0.2.1:2375'"),
            ("engine.runtime", "'runc'"),
            ("engine.image", "'x'"),
            ("engine.data_dir", "'/x'"),
            ("engine.rootless_limits", "'best-effort'"),
            ("audit.file", "'/x'"),
            ("server.listen", "'0.0.0.0:80'"),
            ("server.concurrency", "1"),
            ("server.jwt.issuer", "'me'"),
            ("filesystem.max_depth", "11"),
            ("io.dir", "'/etc'"),
            ("io.dir", "'.'"),
            ("io.dir", "'.//./'"),
            ("io.dir", "'.git/hooks'"),
            ("io.dir", "'./vendor/.GIT'"),
            ("io.dir", "'.vscode'"),
            ("filesystem.allowed_paths", "[{ path = '/', access = 'read' }]"),
            ("filesystem.allowed_paths", "[{ path = '/iox', access = 'read' }]"),
            ("filesystem.allowed_paths", "[{ path = '/in', access = 'write' }]"),
            ("network.allow", "['example.org']"),
            ("network.allow", "['@pypi']"),
            ("network.presets", "{ pypi = [] }"),
            ("network.max_bytes", "'5GiB'"),
            ("network.idle_timeout", "'1h'"),
            ("programs.pull", "'always'"),
            ("programs.pull", "'missing'"),
            ("tools.allowed_out_paths", "['/']"),
            ("tools.allowed_out_paths", "['out', '../x']"),
            ("tools.allowed_out_paths", "['out/../..']"),
            ("mcp.upstream", "{ a = { command = ['x'] } }"),
            ("mcp.upstream", "{}"),
            ("mcp.tool_rules", "['*']"),
            ("mcp.expose", "['*']"),
            ("server.upstream", "{ a = { url = 'http://x' } }"),
        ];
        let answers = cases.map(|(key, value)| {
            format!("{key} = {value}: {}", judged(key, value).expect_err("it widens"))
        });
        let answers = answers.join("\n");
        insta::assert_snapshot!(answers);

        let rules = |rules: &str| Value::from_text(Key::AllowedPaths, rules).unwrap();
        let below =
            rules("[{ path = '/io', access = 'write' }, { path = '/io/keep', access = 'read' }]");
        for (project, widened) in [
            // A narrower rule below stays in force, whether it is omitted or bypassed.
            ("[{ path = '/io', access = 'write' }]", Some("/io/keep")),
            ("[{ path = '/io/keep/a', access = 'write' }]", Some("/io/keep/a")),
            ("[{ path = '/', access = 'read' }]", Some("/")),
            ("[{ path = '/io', access = 'read' }]", None),
            ("[{ path = '/io/keep/a', access = 'read' }]", None),
            ("[{ path = '/io/a', access = 'write' }, { path = '/io/a', access = 'read' }]", None),
        ] {
            let judged = check(Key::AllowedPaths, &rules(project), Some(&below), &Presets::new());
            let expected = widened.map_or(Ok(()), |path| {
                refuse(format!("not allow {path}, which is not allowed so outside it"))
            });
            assert_eq!(judged, expected, "{project}");
        }

        let images = |images: &str| Value::from_text(Key::AllowedImages, images).unwrap();
        let below = images("['python:*', 'debian:13']");
        for (project, widened) in [
            ("[]", None),
            ("['python:*']", None),
            ("['python:3.13', 'debian:13']", None),
            ("['python:3*']", Some("python:3*")),
            ("['debian:12']", Some("debian:12")),
            ("['*']", Some("*")),
        ] {
            let judged = check(Key::AllowedImages, &images(project), Some(&below), &Presets::new());
            let expected = widened.map_or(Ok(()), |image| refuse(outside(image)));
            assert_eq!(judged, expected, "{project}");
        }

        let below = Some(Value::Switch(false));
        assert_eq!(
            check(Key::IoEnabled, &Value::Switch(true), below.as_ref(), &Presets::new()),
            refuse("not turn on what is turned off outside it")
        );
    }

    #[test]
    fn a_project_may_reach_a_part_of_what_is_allowed_outside_it() {
        let hosts = |hosts: &str| Value::from_text(Key::Allow, hosts).unwrap();
        let presets =
            "{ pypi = ['packages.example.org', '*.cdn.example.org'], db = ['db.example:5432'] }";
        let Ok(Value::Presets(presets)) = Value::from_text(Key::Presets, presets) else { panic!() };
        let below = hosts("['example.org', '@pypi', '@unknown']");
        for (project, expected) in [
            ("[]", Ok(())),
            ("['example.org:443', 'files.cdn.example.org']", Ok(())),
            ("['@pypi']", Ok(())),
            ("['example.org', 'example.org:22']", refuse(outside("example.org:22"))),
            ("['www.example.org']", refuse(outside("www.example.org"))),
            ("['*.org']", refuse(outside("*.org"))),
            ("['db.example:5432']", refuse(outside("db.example:5432"))),
            ("['@db']", refuse(outside("db.example:5432"))),
            (
                "['@unknown']",
                Err(ValueError::of("there is no preset @unknown outside the project's file")),
            ),
        ] {
            let judged = check(Key::Allow, &hosts(project), Some(&below), &presets);
            assert_eq!(judged, expected, "{project}");
        }
    }
}
