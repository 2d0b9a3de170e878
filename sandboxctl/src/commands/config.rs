//! `config show`: every effective setting, and its source. `config check`: what is wrong with them.

use std::fmt::Write as _;

use sandbox_env::Environment;
use serde::Serialize;

use super::Context;
use crate::cli::ConfigCommand;
use crate::config::{Error, Key, Layer, Origin, Settings, Value};
use crate::render::escaped_line;

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
    let (keys, origin, json) = match command {
        ConfigCommand::Show { keys, origin, json } => (keys, origin, json),
        ConfigCommand::Check { json } => return check(context, *json),
    };
    let keys = keys_named(keys)?;
    let settings = context.settings()?;
    let document = document(&settings, &keys);
    context.output.show(*json, &document, |_| text(&settings, &keys, *origin))?;
    Ok(0)
}

#[derive(Serialize)]
struct CheckDocument {
    files: Vec<String>,
    problems: Vec<Problem>,
}

#[derive(Serialize)]
struct Problem {
    message: String,
    hint: Option<String>,
}

/// Prints everything that is wrong with the configuration.
fn check(context: &Context<'_>, json: bool) -> Result<u8, crate::error::Error> {
    let (files, problems) = match context.settings() {
        // Where a setting cannot be read, the others have no meaning.
        Err(error) => (Vec::new(), vec![error]),
        Ok(settings) => (
            settings.files.iter().map(|file| file.display().to_string()).collect(),
            problems(&settings, &context.environment),
        ),
    };
    let code = if problems.is_empty() { 0 } else { 2 };
    if json {
        let problem =
            |error: &crate::error::Error| Problem { message: error.message(), hint: error.hint() };
        let problems = problems.iter().map(problem).collect();
        context.output.document(&CheckDocument { files, problems })?;
        return Ok(code);
    }
    problems.iter().for_each(|problem| context.output.error(problem));
    if problems.is_empty() {
        let files = match &*files {
            [] => "no file was read".to_owned(),
            files => escaped_line(&files.join(", ")).into_owned(),
        };
        context.output.text(&format!("the configuration is valid: {files}\n"))?;
    }
    Ok(code)
}

/// What no run or service accepts. A service is asked for if a setting of it is made.
fn problems(settings: &Settings, environment: &Environment) -> Vec<crate::error::Error> {
    let refused = Key::all().filter_map(|key| settings.refusal(key));
    let mut problems: Vec<_> = refused.chain(settings.allow().err()).map(Into::into).collect();
    let is_of_service = |key: &Key| {
        key.name().starts_with("server.") && settings.setting(*key).layer != Layer::Default
    };
    if Key::all().any(|key| is_of_service(&key)) {
        problems.extend(super::serve::plan::problems(settings, environment));
    }
    problems
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
    let Error::OverCeiling { ceiling, .. } = settings.refusal(key)? else { return None };
    Some(format!("above its ceiling of {ceiling}"))
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
    use std::path::Path;

    use super::*;
    use crate::config::Flags;

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
    fn all_that_is_wrong_is_found_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        let found = |variables: &[(&str, &str)]| {
            let environment = Environment::new(folder.path(), 1000, variables);
            let settings = Settings::load(&environment, Flags::default()).unwrap();
            let found = problems(&settings, &environment);
            found.iter().map(crate::error::Error::message).collect::<Vec<_>>()
        };
        assert_eq!(found(&[]), Vec::<String>::new());
        let (certificate, secret) = (at("none.pem"), at("secret"));
        std::fs::write(folder.path().join("secret"), "s".repeat(40)).unwrap();
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o644);
        std::fs::set_permissions(&secret, open).unwrap();
        let found = found(&[
            ("SANDBOXCTL_LIMITS_TIMEOUT", "1h"),
            ("SANDBOXCTL_SERVER_LISTEN", "nowhere"),
            ("SANDBOXCTL_SERVER_URL", "sandbox.example.org"),
            ("SANDBOXCTL_SERVER_TLS_CERT", &certificate),
            ("SANDBOXCTL_SERVER_TLS_KEY", &certificate),
            ("SANDBOXCTL_SERVER_JWT_ISSUER", "https://id.example.org"),
            ("SANDBOXCTL_SERVER_JWT_AUDIENCE", "sandboxes"),
            ("SANDBOXCTL_SERVER_JWT_SECRET_FILE", &secret),
            ("SANDBOXCTL_SERVER_DATABASE", "postgres://sandboxctl@db.example.org/sandboxctl"),
            ("SANDBOXCTL_SERVER_DATABASE_PASSWORD_FILE", &secret),
            ("SANDBOXCTL_SERVER_ADVERTISE", "m1"),
        ]);
        let expected = [
            "above its ceiling", "'nowhere' is neither", "none.pem", "it is not a URL of HTTP",
            "is open to others", "is open to others", "it is not a host with a port",
        ];
        assert_eq!(found.len(), expected.len(), "{found:#?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.contains(expected), "{found}");
        }
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
