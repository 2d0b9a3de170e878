//! `config show`: every effective setting, and its source.

use std::fmt::Write as _;

use serde::Serialize;

use super::Context;
use crate::cli::ConfigCommand;
use crate::config::{Error, Key, Layer, Origin, Settings, Value};

#[derive(Serialize)]
struct Document<'a> {
    files: Vec<String>,
    settings: Vec<Shown<'a>>,
}

#[derive(Serialize)]
struct Shown<'a> {
    key: String,
    value: Option<&'a Value>,
    layer: Layer,
    origin: String,
    /// Why no run accepts it.
    refused: Option<String>,
}

pub fn config(context: &Context<'_>, command: &ConfigCommand) -> Result<u8, crate::error::Error> {
    let ConfigCommand::Show { keys, origin, json } = command;
    let keys = keys_named(keys)?;
    let settings = context.settings()?;
    if *json {
        context.output.document(&document(&settings, &keys))?;
    } else {
        context.output.text(&text(&settings, &keys, *origin))?;
    }
    Ok(0)
}

/// The keys with these names and in the sections with these names, in order; all if none is named.
fn keys_named(names: &[String]) -> Result<Vec<Key>, Error> {
    let is_named = |key: &str, name: &str| {
        key.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    let unknown = names.iter().find(|name| !Key::all().any(|key| is_named(&key.name(), name)));
    if let Some(name) = unknown {
        return Err(Error::unknown_key(Origin::Flag("KEY"), name.clone(), false));
    }
    let is_wanted =
        |key: &Key| names.is_empty() || names.iter().any(|name| is_named(&key.name(), name));
    Ok(Key::all().filter(is_wanted).collect())
}

fn document<'a>(settings: &'a Settings, keys: &[Key]) -> Document<'a> {
    let shown = |key: Key| {
        let setting = settings.setting(key);
        Shown {
            key: key.name(),
            value: setting.value.as_ref(),
            layer: setting.layer,
            origin: setting.origin.to_string(),
            refused: refusal(settings, key),
        }
    };
    Document {
        files: settings.files.iter().map(|file| file.display().to_string()).collect(),
        settings: keys.iter().copied().map(shown).collect(),
    }
}

/// Why no run accepts a setting.
fn refusal(settings: &Settings, key: Key) -> Option<String> {
    match key {
        Key::Limit(_) | Key::Exec(_) => match settings.refusal(key)? {
            Error::OverCeiling { ceiling, .. } => Some(format!("above its ceiling of {ceiling}")),
            other => Some(other.to_string()),
        },
        _ => None,
    }
}

/// A configuration file with the same settings; unset keys are comments.
fn text(settings: &Settings, keys: &[Key], with_origin: bool) -> String {
    let lines: Vec<(String, String)> = keys
        .iter()
        .map(|&key| {
            let setting = settings.setting(key);
            let line = match &setting.value {
                Some(value) => format!("{} = {value}", key.name()),
                None => format!("# {} is not set", key.name()),
            };
            let origin = with_origin.then(|| setting.origin.to_string());
            let refused = refusal(settings, key).map(|why| format!("refused: {why}"));
            (line, origin.into_iter().chain(refused).collect::<Vec<_>>().join(", "))
        })
        .collect();
    let width = lines.iter().map(|(line, _)| line.chars().count()).max().unwrap_or(0).min(50);
    let mut text = String::new();
    for (line, remark) in lines {
        _ = if remark.is_empty() {
            writeln!(text, "{line}")
        } else {
            writeln!(text, "{line:<width$}  # {remark}")
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Flags;
    use sandbox_env::Environment;
    use std::path::Path;

    #[test]
    fn a_limit_that_no_run_takes_is_not_shown_as_in_force() {
        let folder = tempfile::tempdir().unwrap();
        let variables = [("SANDBOXCTL_LIMITS_TIMEOUT", "1h")];
        let environment = Environment::new(folder.path(), 1000, &variables);
        let settings = Settings::load(&environment, Flags::default()).unwrap();
        let why = "refused: above its ceiling of 10m";
        let all = keys_named(&[]).unwrap();
        let line = |origin| {
            let text = text(&settings, &all, origin);
            text.lines().find(|line| line.starts_with("limits.timeout")).unwrap().to_owned()
        };
        assert!(line(false).ends_with(&format!("  # {why}")), "{}", line(false));
        assert!(line(true).ends_with(&format!("# SANDBOXCTL_LIMITS_TIMEOUT, {why}")));
        let json = serde_json::to_value(document(&settings, &all)).unwrap().to_string();
        assert!(json.contains(r#""refused":"above its ceiling of 10m""#), "{json}");
        let error = settings.allowed_limits().unwrap_err();
        insta::assert_snapshot!(
            crate::error::Error::from(error).to_text(),
            @r"
        limits.timeout (SANDBOXCTL_LIMITS_TIMEOUT) is 1h, above its ceiling of 10m
        hint: limits.ceiling in the user's or the system's configuration raises the ceiling of limits.timeout
        "
        );
    }

    #[test]
    fn keys_and_sections_select_settings() {
        let named = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            keys_named(&names).map(|keys| keys.into_iter().map(Key::name).collect::<Vec<_>>())
        };
        assert_eq!(named(&["limits.timeout"]).unwrap(), ["limits.timeout"]);
        let exec = named(&["exec", "io.dir"]).unwrap();
        assert!(exec.contains(&"exec.ceiling.timeout".to_owned()), "{exec:?}");
        assert!(exec.iter().all(|key| key.starts_with("exec.") || key == "io.dir"), "{exec:?}");
        let error = named(&["limits.time"]).unwrap_err();
        insta::assert_snapshot!(
            crate::error::Error::from(error).to_text(),
            @r"
        KEY: unknown key 'limits.time'
        hint: did you mean 'limits.timeout'?
        "
        );
        assert!(named(&["limits.timeou"]).is_err() && named(&[""]).is_err());
    }

    #[test]
    fn shown_config_is_a_config_file_with_the_same_meaning() {
        let folder = tempfile::tempdir().unwrap();
        let environment = Environment::new(
            folder.path(),
            1000,
            &[("SANDBOXCTL_LIMITS_PIDS", "20"), ("SANDBOXCTL_ENGINE_RUNTIME", "run\"sc")],
        );
        let settings = Settings::load(&environment, Flags::default()).unwrap();
        let shown = text(&settings, &keys_named(&[]).unwrap(), true);
        assert!(shown.contains("# SANDBOXCTL_LIMITS_PIDS"), "{shown}");

        let file = folder.path().join("shown.toml");
        std::fs::write(&file, &shown).unwrap();
        let again = Environment::new(Path::new("/"), 1000, &[]);
        let again = Settings::load(&again, Flags { file: Some(file), ..Flags::default() }).unwrap();
        for key in Key::all() {
            assert_eq!(again.setting(key).value, settings.setting(key).value, "{}", key.name());
        }
    }
}
