//! What an AI agent, or its operator, can do about a failure: in the words of the tools, and for
//! its reader. A refusal names the rule that would allow the request.

use sandbox_api::{ErrorKind, Failure, LimitKey, Note};

use crate::settings::{Audience, Settings};

/// What an agent can do about a directory where a file is to be.
pub(crate) const IS_DIRECTORY: &str = "list_directory shows what is in a directory";
/// What the guest says of a path that no rule allows.
const NOT_ALLOWED: &str = ": not among the allowed paths";

/// A failure with the hint that fits here, where there is one.
pub(crate) fn explained(failure: Failure, settings: &Settings) -> Failure {
    let hint = hint(&failure, settings).or_else(|| failure.hint.clone());
    Failure { hint, ..failure }
}

/// The notes of a result, each in one line. A caller of a service has no flags.
pub(crate) fn noted(notes: &[Note], settings: &Settings) -> Vec<String> {
    let line = |note: &Note| {
        let mut note = note.clone();
        if settings.audience != Audience::Local {
            let failure = Failure::new(ErrorKind::Internal, &*note.message, note.hint);
            note.hint = hint(&failure, settings);
        }
        note.to_string()
    };
    notes.iter().map(line).collect()
}

fn hint(failure: &Failure, settings: &Settings) -> Option<String> {
    let is_local = settings.audience == Audience::Local;
    let whose = if is_local { "" } else { " of the service" };
    let mount_path = &settings.sandbox.mount_path;
    match failure.kind {
        ErrorKind::Protected => Some(
            match is_local {
                true => {
                    "`sandboxctl mcp --no-protect` allows it, unless filesystem.protected names it"
                }
                false => "the service protects these names, which others run or trust",
            }
            .to_owned(),
        ),
        ErrorKind::NotAllowed => {
            let path = refused_path(failure, mount_path)?;
            let path = serde_json::Value::from(path);
            Some(format!(
                "it needs a rule {{ path = {path}, access = \"read\" }}, or \"write\" to change it, in \
                 filesystem.allowed_paths{whose}"
            ))
        }
        ErrorKind::PathEscape => Some(match is_local {
            true => format!(
                "paths are relative, or absolute below {mount_path}, which is the directory of \
                 `sandboxctl mcp --io-dir DIR`"
            ),
            false => format!("paths are relative, or absolute below {mount_path}"),
        }),
        ErrorKind::IsDirectory => Some(IS_DIRECTORY.to_owned()),
        ErrorKind::ReadOnly if is_local => Some(
            "the files are read-only: `sandboxctl mcp` was started with --read-only".to_owned(),
        ),
        // A caller of a service has no flags.
        _ if !is_local => {
            let given = failure.hint.as_ref()?;
            let limit = LimitKey::ALL.iter().find(|limit| given.contains(&limit.hint()))?;
            let setting = format!("{} of the service is the limit", limit.key());
            Some(given.replace(&limit.hint(), &setting))
        }
        _ => None,
    }
}

/// The path that no rule allows, absolute.
fn refused_path(failure: &Failure, mount_path: &str) -> Option<String> {
    let written = failure.message.strip_suffix(NOT_ALLOWED)?;
    // A script's error begins with its place.
    let place = failure.line.map(|line| format!(":{line}: "));
    let written = match place.and_then(|place| Some(written.split_once(&place)?.1)) {
        Some(written) => written,
        None => written,
    };
    Some(match written.starts_with('/') {
        true => written.to_owned(),
        false => format!("{}/{written}", mount_path.trim_end_matches('/')),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::tests::settings;

    fn hint_of(kind: ErrorKind, message: &str, line: Option<u32>, audience: Audience) -> String {
        let hint = sandbox_api::operation_hint(kind);
        let failure = Failure { line, ..Failure::new(kind, message, hint) };
        explained(failure, &Settings { audience, ..settings() }).hint.unwrap()
    }

    #[test]
    fn what_is_refused_is_answered_with_the_rule_that_would_allow_it() {
        let local = |kind, message: &str, line| hint_of(kind, message, line, Audience::Local);
        let remote = |kind, message: &str| hint_of(kind, message, None, Audience::Remote);
        let protected = "/io/.git/config: a protected name";
        assert!(local(ErrorKind::Protected, protected, None).contains("--no-protect"));
        let hint = remote(ErrorKind::Protected, protected);
        assert!(!hint.contains("--") && hint.contains("protects"), "{hint}");
        for (message, line, rule) in [
            ("a/b: not among the allowed paths", None, r#"{ path = "/io/a/b", access = "read" }"#),
            (r#"/io/a": not among the allowed paths"#, None, r#"{ path = "/io/a\"", access"#),
            ("script:3: a: not among the allowed paths", Some(3), r#"{ path = "/io/a", access"#),
        ] {
            let hint = local(ErrorKind::NotAllowed, message, line);
            assert!(hint.contains(rule) && hint.contains("filesystem.allowed_paths"), "{hint}");
        }
        let hint = remote(ErrorKind::NotAllowed, "a: not among the allowed paths");
        assert!(hint.ends_with("of the service"), "{hint}");
        assert!(local(ErrorKind::PathEscape, "", None).contains("--io-dir"));
        let hint = remote(ErrorKind::PathEscape, "");
        assert_eq!(hint, "paths are relative, or absolute below /io");
    }

    #[test]
    fn hints_for_callers_of_a_service_name_no_flags() {
        for limit in LimitKey::ALL {
            let failure = Failure::new(ErrorKind::WriteLimit, "", Some(limit.hint()));
            let remote = Settings { audience: Audience::Remote, ..settings() };
            let hint = explained(failure.clone(), &remote).hint.unwrap();
            assert_eq!(hint, format!("{} of the service is the limit", limit.key()));
            assert_eq!(explained(failure, &settings()).hint, Some(limit.hint()));
        }
        let note = |hint: String| Note {
            kind: sandbox_api::NoteKind::OutOfMemory,
            message: "memory ran out".to_owned(),
            hint: Some(hint),
        };
        let notes = [note(LimitKey::Memory.hint()), note("--io-dir DIR is one".to_owned())];
        let remote = Settings { audience: Audience::Remote, ..settings() };
        let expected =
            ["memory ran out; limits.memory of the service is the limit", "memory ran out"];
        assert_eq!(noted(&notes, &remote), expected);
        assert_eq!(noted(&notes[..1], &settings()), ["memory ran out; --memory raises the limit"]);
    }
}
