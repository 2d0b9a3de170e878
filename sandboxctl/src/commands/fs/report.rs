//! The result of an operation: data for JSON, text for people.

use std::fmt::Write as _;

use sandbox_api::files::{
    Entry, GlobData, GrepData, ListData, OperationStats, ReadData, StatData, TextView, Timestamp,
    ViewData, time_text,
};
use sandbox_api::operation::OperationOutput;
use sandbox_controller::Error as ControllerError;
use sandbox_protocol::WireString;
use serde::Serialize;

use crate::error::Error;
use crate::output::Output;
use crate::render::{escaped_line, escaped_text, table};

/// The report of a completed operation.
#[derive(Debug, Default)]
pub struct Report {
    /// For JSON; `None` if everything has been printed.
    pub data: Option<OperationOutput>,
    /// For stdout, without JSON.
    pub text: Vec<u8>,
    /// The text is that of a file.
    pub is_content: bool,
    /// A warning of what it does not list.
    pub cut_off: Option<String>,
    /// The exit code.
    pub code: u8,
}

impl Report {
    /// Without JSON there is nothing to print.
    pub fn silent(data: &(impl OperationStats + Serialize)) -> Result<Self, Error> {
        let unusable = |source| ControllerError::Operation { source };
        Ok(Self { data: Some(OperationOutput::new(data).map_err(unusable)?), ..Self::default() })
    }
}

/// `read`: the content, unchanged.
pub fn read(read: &ReadData, output: &Output) -> Result<Report, Error> {
    let text = match output.stdout_is_terminal {
        true => escaped_text(&read.content).into_owned(),
        false => read.content.clone(),
    };
    Ok(Report { is_content: true, text: text.into(), ..Report::silent(read)? })
}

/// `view`, which is used only with JSON.
pub fn view(mut view: ViewData) -> Result<Report, Error> {
    if let ViewData::Text(TextView { footer: Some(footer), .. }) = &mut view {
        *footer = in_flags(footer);
    }
    Report::silent(&view)
}

/// How a text goes on, in flags in place of options.
fn in_flags(footer: &str) -> String {
    footer
        .replace("read with encoding=\"utf-8\", offset=", "--encoding utf-8 --offset ")
        .replace("lines={\"offset\":", "--lines ")
        .replace("} to continue", ": to continue")
}

/// `ls`: one name per line, or a table. Names in subdirectories are printed with their path
/// relative to the listed directory.
pub fn list(list: &ListData, long: bool, output: &Output) -> Result<Report, Error> {
    let text = match long {
        true => table_of(list).into_bytes(),
        false => lines_of(list.entries.iter().map(|entry| shown(list, entry)), output),
    };
    let cut_off = cut_off(list.entries.len() as u64, "entries", list.note.as_deref());
    Ok(Report { text, cut_off, ..Report::silent(list)? })
}

/// `glob`: one path per line.
pub fn glob(found: &GlobData, output: &Output) -> Result<Report, Error> {
    let text = lines_of(found.matches.iter().map(|path| path.name.as_bytes()), output);
    let cut_off = cut_off(found.matches.len() as u64, "paths", found.note.as_deref());
    Ok(Report { text, cut_off, ..Report::silent(found)? })
}

/// `grep`: `path:line:text`, context as `path-line-text`, with `--` between groups of lines.
pub fn grep(found: &GrepData, output: &Output) -> Result<Report, Error> {
    let mut text = Vec::new();
    let has_context = found.lines.iter().any(|line| line.context);
    let mut last: Option<(&WireString, u64)> = None;
    for line in &found.lines {
        let follows =
            last.is_none_or(|(path, number)| (path, number + 1) == (&line.path, line.line));
        if has_context && !follows {
            text.extend_from_slice(b"--\n");
        }
        last = Some((&line.path, line.line));
        push_name(&mut text, line.name.as_bytes(), output);
        let mark = if line.context { '-' } else { ':' };
        let shown = match output.stdout_is_terminal {
            true => escaped_line(&line.text),
            false => line.text.as_str().into(),
        };
        text.extend_from_slice(format!("{mark}{}{mark}{shown}\n", line.line).as_bytes());
    }
    let code = if found.matches == 0 { 1 } else { 0 };
    let cut_off = cut_off(found.matches, "matches", found.note.as_deref());
    Ok(Report { text, cut_off, code, ..Report::silent(found)? })
}

/// The warning that a result is a part.
fn cut_off(shown: u64, what: &str, note: Option<&str>) -> Option<String> {
    note.map(|note| format!("only {shown} {what} are shown: {note}"))
}

/// A name as it is, or with control characters escaped for a terminal.
fn push_name(text: &mut Vec<u8>, name: &[u8], output: &Output) {
    match output.stdout_is_terminal {
        true => text.extend_from_slice(escaped_line(&String::from_utf8_lossy(name)).as_bytes()),
        false => text.extend_from_slice(name),
    }
}

/// A line for each name.
fn lines_of<'a>(names: impl Iterator<Item = &'a [u8]>, output: &Output) -> Vec<u8> {
    let mut text = Vec::new();
    for name in names {
        push_name(&mut text, name, output);
        text.push(b'\n');
    }
    text
}

fn table_of(list: &ListData) -> String {
    let row = |entry: &Entry| {
        [
            entry.kind.as_str().to_owned(),
            entry.size.to_string(),
            to_the_second(entry.modified),
            escaped_line(&String::from_utf8_lossy(shown(list, entry))).into_owned(),
        ]
    };
    table(["TYPE", "SIZE", "MODIFIED", "NAME"], list.entries.iter().map(row), None)
}

fn shown<'a>(list: &ListData, entry: &'a Entry) -> &'a [u8] {
    below(list.path.as_bytes(), entry.path.as_bytes())
}

/// A path relative to the directory above it.
fn below<'a>(base: &[u8], path: &'a [u8]) -> &'a [u8] {
    match path.strip_prefix(base) {
        Some(rest) => rest.strip_prefix(b"/").unwrap_or(rest),
        None => path,
    }
}

/// `stat`: one line each.
pub fn stat(stat: &StatData, output: &Output) -> Result<Report, Error> {
    let mut text = String::new();
    let person = |name: &str, number: u32| match name == number.to_string() {
        true => name.to_owned(),
        false => format!("{name} ({number})"),
    };
    let lines = [
        ("path", stat.path.to_string_lossy().into_owned()),
        ("type", stat.kind.as_str().to_owned()),
        ("size", stat.size.to_string()),
        ("permissions", format!("{} ({})", stat.permissions, stat.mode)),
        ("owner", person(&stat.owner, stat.uid)),
        ("group", person(&stat.group, stat.gid)),
        ("modified", time(stat.modified)),
        ("accessed", time(stat.accessed)),
        ("created", time(stat.created)),
    ];
    for (name, value) in lines {
        let value = match output.stdout_is_terminal {
            true => escaped_line(&value),
            false => value.as_str().into(),
        };
        _ = writeln!(text, "{:13}{value}", format!("{name}:"));
    }
    Ok(Report { text: text.into(), ..Report::silent(stat)? })
}

fn time(time: Option<Timestamp>) -> String {
    time.and_then(time_text).unwrap_or_else(|| "unknown".to_owned())
}

fn to_the_second(modified: Option<Timestamp>) -> String {
    time(modified.map(|time| Timestamp { nanoseconds: 0, ..time }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Verbosity;
    use sandbox_api::files::EntryKind;

    fn entry(path: &str, kind: EntryKind, size: u64) -> Entry {
        let name = path.rsplit('/').next().unwrap().into();
        let modified = Some(Timestamp { seconds: 1_790_000_000, nanoseconds: 5 });
        Entry { name, path: path.into(), kind, size, modified, details: None }
    }

    fn some_list() -> ListData {
        let odd = Entry { path: b"/io/odd\xff".into(), ..entry("/io/odd", EntryKind::Other, 0) };
        ListData {
            path: "/io".into(),
            entries: vec![
                entry("/io/a\nerror: forged", EntryKind::File, 3),
                entry("/io/dir", EntryKind::Directory, 4096),
                entry("/io/dir/b.csv", EntryKind::File, 1_048_576),
                entry("/io/link", EntryKind::Symlink, 7),
                odd,
            ],
            truncated: true,
            note: None,
        }
    }

    #[test]
    fn a_list_is_names_below_what_is_listed() {
        let list = some_list();
        let mut output = Output::new(Verbosity::Quiet);
        let mut lines = |is_terminal: bool| {
            output.stdout_is_terminal = is_terminal;
            lines_of(list.entries.iter().map(|entry| shown(&list, entry)), &output)
        };
        let escaped = "a\\nerror: forged\ndir\ndir/b.csv\nlink\nodd\u{fffd}\n";
        assert_eq!(lines(true), escaped.as_bytes());
        assert_eq!(lines(false), b"a\nerror: forged\ndir\ndir/b.csv\nlink\nodd\xff\n");
        insta::assert_snapshot!(table_of(&list), @r"
        TYPE       SIZE     MODIFIED              NAME
        file       3        2026-09-21T14:13:20Z  a\nerror: forged
        directory  4096     2026-09-21T14:13:20Z  dir
        file       1048576  2026-09-21T14:13:20Z  dir/b.csv
        symlink    7        2026-09-21T14:13:20Z  link
        other      0        2026-09-21T14:13:20Z  odd�
        ");
    }

    #[test]
    fn a_path_is_distinguished_from_its_parents() {
        assert_eq!(below(b"/io", b"/io/a/b"), b"a/b");
        assert_eq!(below(b"/", b"/a"), b"a");
        assert_eq!(below(b"/io/x", b"/io/other"), b"/io/other");
    }
}
