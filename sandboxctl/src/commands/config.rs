//! `config show`: every setting in force, and where it comes from.

use std::fmt::Write as _;

use serde::Serialize;

use super::Context;
use crate::cli::ConfigCommand;
use crate::config::{Key, Layer, Settings, Value};
use crate::error::Error;

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
}

pub fn config(context: &Context<'_>, command: &ConfigCommand) -> Result<u8, Error> {
    let ConfigCommand::Show { origin, json } = command;
    let settings = context.settings()?;
    if *json {
        context.output.document(&document(&settings))?;
    } else {
        context.output.text(&text(&settings, *origin))?;
    }
    Ok(0)
}

fn document(settings: &Settings) -> Document<'_> {
    let shown = |key: Key| {
        let setting = settings.setting(key);
        Shown {
            key: key.name(),
            value: setting.value.as_ref(),
            layer: setting.layer,
            origin: setting.place.to_string(),
        }
    };
    Document {
        files: settings.files.iter().map(|file| file.display().to_string()).collect(),
        settings: Key::all().map(shown).collect(),
    }
}

/// A configuration file that says the same; what is not set is a comment.
fn text(settings: &Settings, with_origin: bool) -> String {
    let lines: Vec<(String, String)> = Key::all()
        .map(|key| {
            let setting = settings.setting(key);
            let line = match &setting.value {
                Some(value) => format!("{} = {value}", key.name()),
                None => format!("# {} is not set", key.name()),
            };
            (line, setting.place.to_string())
        })
        .collect();
    let width = lines.iter().map(|(line, _)| line.chars().count()).max().unwrap_or(0).min(50);
    let mut text = String::new();
    for (line, place) in lines {
        _ = if with_origin {
            writeln!(text, "{line:<width$}  # {place}")
        } else {
            writeln!(text, "{line}")
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Flags;
    use crate::environment::Environment;
    use std::path::Path;

    #[test]
    fn what_is_shown_is_a_configuration_file_and_says_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let environment = Environment::made_up(
            folder.path(),
            &[("SANDBOXCTL_LIMITS_PIDS", "20"), ("SANDBOXCTL_ENGINE_RUNTIME", "run\"sc")],
        );
        let settings = Settings::load(&environment, Flags::default()).unwrap();
        let shown = text(&settings, true);
        assert!(shown.contains("# SANDBOXCTL_LIMITS_PIDS"), "{shown}");

        let file = folder.path().join("shown.toml");
        std::fs::write(&file, &shown).unwrap();
        let again = Environment::made_up(Path::new("/"), &[]);
        let again = Settings::load(&again, Flags { file: Some(file), ..Flags::default() }).unwrap();
        for key in Key::all() {
            assert_eq!(again.setting(key).value, settings.setting(key).value, "{}", key.name());
        }
    }
}
