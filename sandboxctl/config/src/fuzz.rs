//! Properties that hold for every configuration, with any files and variables.

use std::path::{Component, Path};

use sandbox_api::{LimitKey, image_matches};
use sandbox_protocol::message::{Access, AllowedPath};
use sandbox_protocol::path::GuestPath;

use super::settings::Setting;
use super::{Error, Key, Layer, Origin, Settings, Value, file, network};
use sandbox_env::{Environment, VARIABLE_PREFIX};

/// Three files (the system's, the user's and the project's) and lines `NAME=VALUE` for the
/// variables, separated by NULs. Missing parts are empty.
pub fn config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let mut parts = text.splitn(4, '\0');
    let mut part = || parts.next().unwrap_or_default();
    let files = [(Layer::System, part()), (Layer::User, part()), (Layer::Project, part())];
    let variables: Vec<(String, &str)> = part()
        .lines()
        .filter_map(|line| line.split_once('='))
        .filter(|(name, value)| !name.contains('\0') && !value.contains('\0'))
        .map(|(name, value)| (format!("{VARIABLE_PREFIX}{name}"), value))
        .collect();
    let variables: Vec<(&str, &str)> =
        variables.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    let environment = Environment::new(Path::new("/work"), 1000, &variables);

    match loaded(&files, &environment) {
        Ok(settings) => {
            is_consistent(&settings);
            is_printed_as_it_is_read(&settings);
            let without = loaded(&files[..2], &environment).expect("it is a part of what is right");
            project_narrows(&settings, &without);
        }
        Err(error) => is_reported(error, &files),
    }
}

fn loaded(files: &[(Layer, &str)], environment: &Environment) -> Result<Settings, Error> {
    let mut settings = Settings::defaults();
    for &(layer, text) in files {
        settings.apply(layer, file::parse(Path::new("f.toml"), text)?)?;
    }
    settings.read_variables(environment)?;
    settings.lower_defaults();
    Ok(settings)
}

/// An error has a valid position, and a message of one line without terminal control characters.
fn is_reported(error: Error, files: &[(Layer, &str)]) {
    let Error::At { origin, .. } = &error else {
        panic!("no file of the machine was read: {error:?}");
    };
    match origin {
        Origin::File { line, .. } => {
            let longest = files.iter().map(|(_, text)| text.split('\n').count()).max();
            assert!((1..=longest.unwrap_or(1)).contains(line), "line {line}: {error:?}");
        }
        Origin::Variable(name) => assert!(name.starts_with(VARIABLE_PREFIX)),
        Origin::Default | Origin::Ceiling(..) | Origin::Flag(_) => panic!("{error:?}"),
    }
    assert!(!error.to_string().is_empty());
}

fn is_consistent(settings: &Settings) {
    let (limits, ceiling) = (settings.limits(), settings.ceiling());
    for &limit in LimitKey::ALL {
        // The effective value is the configured one.
        let said = |key| settings.setting(key).value.clone();
        assert_eq!(said(Key::Limit(limit)), Some(Value::Limit(limits.get(limit))));
        assert_eq!(said(Key::Ceiling(limit)), Some(Value::Limit(ceiling.0.get(limit))));
        // A ceiling must not refuse a default.
        if settings.setting(Key::Limit(limit)).layer == Layer::Default {
            assert!(settings.refusal(Key::Limit(limit)).is_none(), "{limit:?}");
        }
    }
    match settings.allowed_limits() {
        Ok(allowed) => assert!(allowed.check(&ceiling).is_ok()),
        Err(error) => assert!(limits.check(&ceiling).is_err() && error.hint().is_some()),
    }
}

/// `config show` prints a configuration file with the same settings.
fn is_printed_as_it_is_read(settings: &Settings) {
    let set = || {
        Key::all().filter_map(|key| {
            let Setting { value, layer, .. } = settings.setting(key);
            Some((key, value.as_ref()?, *layer))
        })
    };
    let text: String = set().map(|(key, value, _)| format!("{} = {value}\n", key.name())).collect();
    let again = file::parse(Path::new("again.toml"), &text)
        .unwrap_or_else(|error| panic!("{error:?} in what is printed:\n{text}"));
    assert_eq!(again.len(), set().count());
    for (key, value, layer) in set() {
        let entry = again.iter().find(|entry| entry.key == key).expect("it was printed");
        assert_eq!(entry.value, *value, "{}", key.name());
        assert!(layer != Layer::Flag);
    }
}

/// A project's file never allows more than without it.
fn project_narrows(with: &Settings, without: &Settings) {
    for key in Key::all() {
        let (now, before) = (with.setting(key), without.setting(key));
        if key == Key::Protected {
            // The values of all layers are combined.
            let (now, before) = (with.protected(), without.protected());
            assert!(before.iter().all(|name| now.contains(name)), "{now:?} {before:?}");
            continue;
        }
        if now.layer != Layer::Project {
            assert_eq!(now.value, before.value, "{}", key.name());
            continue;
        }
        match (key, now.value.as_ref().expect("the project set it"), &before.value) {
            (Key::Limit(limit), _, Some(_)) => {
                let ceiling = sandbox_api::Ceiling(without.limits());
                let mut alone = ceiling.0;
                alone.set(limit, with.limits().get(limit)).expect("it was read by its key");
                // A default that a ceiling has lowered meanwhile is refused later, by its ceiling.
                let is_lowered = matches!(before.origin, Origin::Ceiling(..));
                assert!(is_lowered || alone.check(&ceiling).is_ok(), "{}", key.name());
                assert!(!is_lowered || with.setting(key).layer == Layer::Project);
            }
            (Key::Exec(limit), Value::Limit(now), Some(Value::Limit(below))) => {
                // A default that a ceiling has lowered meanwhile is refused later, by its ceiling.
                let is_lowered = matches!(before.origin, Origin::Ceiling(..));
                let with = |value| {
                    let mut limits = sandbox_api::Limits::default();
                    limits.set(limit, value).expect("it was read by its key");
                    limits
                };
                let is_within = with(*now).check(&sandbox_api::Ceiling(with(*below))).is_ok();
                assert!(is_lowered || is_within, "{}", key.name());
            }
            (Key::IoEnabled, Value::Switch(now), Some(Value::Switch(before))) => {
                assert!(*before || !now);
            }
            (Key::AllowedPaths, Value::Paths(paths), Some(Value::Paths(before))) => {
                for AllowedPath { path, access: _ } in paths.iter().chain(before) {
                    // There and below, if no other rule applies.
                    for place in [path.clone(), format!("{path}/no-such-name")] {
                        let (now, before) = (allowed(paths, &place), allowed(before, &place));
                        assert!(now <= before, "{place}: {now:?}, and {before:?} without");
                    }
                }
            }
            (Key::AllowedOutPaths, Value::Dirs(dirs), Some(Value::Dirs(before))) => {
                let plain = |dir: &Path| -> std::path::PathBuf {
                    dir.components().filter(|part| *part != Component::CurDir).collect()
                };
                for dir in dirs {
                    assert!(dir.components().all(|part| part != Component::ParentDir));
                    let is_below = |outer: &std::path::PathBuf| {
                        dir.is_absolute() == outer.is_absolute()
                            && plain(dir).starts_with(plain(outer))
                    };
                    assert!(before.iter().any(is_below), "{dir:?}");
                }
            }
            (Key::AllowedImages, Value::Names(names), Some(Value::Names(before))) => {
                let is_below = |name: &String| {
                    before.contains(name) || before.iter().any(|outer| image_matches(outer, name))
                };
                assert!(names.iter().all(is_below), "{names:?} {before:?}");
            }
            (Key::Pull, Value::Text(word), _) => assert_eq!(word, "never"),
            (Key::Allow, Value::Hosts(_), Some(_)) => {
                let now = with.allow().expect("its presets are known");
                let Some(Value::Hosts(before)) = &before.value else { panic!("{before:?}") };
                // A preset that was undefined below allowed nothing.
                let known = before.iter().filter_map(|entry| {
                    network::resolve(std::slice::from_ref(entry), without.presets()).ok()
                });
                let before: sandbox_api::hosts::Allowlist =
                    known.flat_map(|list| list.rules().to_vec()).collect();
                assert!(now.rules().iter().all(|rule| before.covers(rule)), "{now:?} {before:?}");
            }
            (Key::IoDir, Value::Path(dir), _) => {
                assert!(dir.is_relative() && !dir.as_os_str().is_empty());
                for part in dir.components() {
                    let Component::Normal(name) = part else {
                        assert_eq!(part, Component::CurDir);
                        continue;
                    };
                    assert!(!name.to_string_lossy().starts_with('.'));
                }
            }
            (Key::IoErrors | Key::DefaultEncoding, Value::Text(_), _) => {}
            (key, ..) => panic!("a project's file set {}", key.name()),
        }
    }
}

/// Whether a path may be read, and whether it may be written.
fn allowed(rules: &[AllowedPath], place: &str) -> (bool, bool) {
    let path = |path: &str| GuestPath::new(path).expect("it was read");
    let place = path(place);
    // From the path upward: the first path with rules decides, and all of them must agree.
    let mut above: Vec<GuestPath> = vec![path("/")];
    for name in place.components() {
        above.push(above[above.len() - 1].join(name).expect("it is a part of one"));
    }
    let decide = above.iter().rev().find_map(|above| {
        let here: Vec<_> = rules.iter().filter(|rule| path(&rule.path) == *above).collect();
        (!here.is_empty()).then(|| here.iter().all(|rule| rule.access == Access::Write))
    });
    (decide.is_some(), decide == Some(true))
}

#[cfg(test)]
#[path = "../../../fuzz/corpus.rs"]
mod corpus;

#[cfg(test)]
mod tests {
    #[test]
    fn config_properties_hold_for_the_corpus() {
        super::corpus::replay("config", super::config);
    }
}
