//! What the kernel makes up (`/proc`, `/sys`, `/dev`): file operations refuse it. A command in the sandbox reads it,
//! with the rights that every command has there, and within a bound.

use std::collections::HashMap;
use std::time::Duration;

use axum::http::StatusCode;
use futures_util::StreamExt as _;
use sandbox_api::operation::{EntryKind, permissions_text};
use sandbox_api::process::SCROLLBACKS;
use sandbox_api::service::{CommandRequest, Content, Time};
use sandbox_api::{
    ByteSize, ExecutionEvent, Exit, OutputStream, ProcessRequest, ReadFrom, ReadMode, Recorded,
    millis,
};
use sandbox_service::ServiceError;
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use super::{Found, entry_json};
use crate::connect::{Code, ConnectError};
use crate::envd::Call;
use crate::envd::paths::KERNEL_TAG;
use crate::error::Error;

/// The most that is read, and for how long.
const MOST: usize = 1 << 20;
const TIME: Duration = Duration::from_secs(10);
/// What is waited longer for its end. The clock of a paused sandbox stands still.
const GRACE: Duration = Duration::from_secs(2);
/// The most that is listed, as of other directories.
const MOST_ENTRIES: usize = 10_000;
/// What is printed of each entry, and then of what it leads to.
const ENTRY: &str = "= %f %s %Y %U %G %N";
const MEANT: &str = "> %f %N";

/// What a command has printed, and how it ended.
#[derive(Default)]
struct Printed {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    /// It has printed more than this is.
    is_cut: bool,
    exit: Option<Exit>,
}

impl Call {
    /// The content of a file of the kernel's.
    pub(crate) async fn read_kernels(&self, path: &str) -> Result<Vec<u8>, Error> {
        let Printed { stdout, stderr, is_cut, exit } = self.print("cat", &[path]).await?;
        let why = String::from_utf8_lossy(&stderr);
        match exit {
            _ if is_cut => {
                let message = format!("path '{path}' is longer than 1 MiB: read it by a command");
                Err(Error::invalid(message))
            }
            Some(Exit::Code(0)) => Ok(stdout),
            Some(Exit::Code(_)) if why.contains("No such file") => {
                Err(Error::new(StatusCode::NOT_FOUND, format!("path '{path}' does not exist")))
            }
            Some(Exit::Code(_)) => {
                let why = why.lines().next().unwrap_or_default();
                Err(Error::invalid(format!("path '{path}' cannot be read: {why}")))
            }
            _ => Err(Error::invalid(format!("path '{path}' is not read within 10 s"))),
        }
    }

    /// What is at a path of the kernel's, and then what is in it so deep.
    pub(super) async fn kernels(&self, path: &str, depth: u32) -> Result<Vec<Value>, ConnectError> {
        let depth = depth.min(u16::MAX.into()).to_string();
        let find = ["-H", path, "-maxdepth", &depth];
        let entry = ["-exec", "stat", "-c", ENTRY, "{}", "+"];
        let meant = ["-exec", "stat", "-L", "-c", MEANT, "{}", "+"];
        let args = [&find[..], &entry, &meant].concat();
        let Printed { stdout, is_cut, exit, .. } = self.print("find", &args).await?;
        let refused = |why| Err(ConnectError::new(Code::FailedPrecondition, why));
        let printed = String::from_utf8_lossy(&stdout);
        let count = printed.lines().filter(|line| line.starts_with("= ")).count();
        if is_cut || count > MOST_ENTRIES {
            return refused("there are too many entries");
        }
        if !matches!(exit, Some(Exit::Code(_))) {
            return refused("the path is not listed within 10 s");
        }
        // Some may be gone since they were found.
        let entries = entries_of(path, &printed);
        match entries.first().is_some_and(|first| first["path"] == path) {
            true => Ok(entries),
            false => Err(ConnectError::new(Code::NotFound, format!("path not found: {path}"))),
        }
    }

    async fn print(&self, program: &str, args: &[&str]) -> Result<Printed, ServiceError> {
        let env = [("LC_ALL", "C"), ("QUOTING_STYLE", "escape")];
        let command = CommandRequest {
            program: Some(program.into()),
            args: args.iter().map(|&arg| arg.into()).collect(),
            env: env.map(|(name, value)| (name.to_owned(), Content::from(value))).into(),
            ..CommandRequest::default()
        };
        let (tag, timeout_ms) = (Some(KERNEL_TAG.to_owned()), Some(millis(TIME)));
        let scrollback = Some(ByteSize::b(*SCROLLBACKS.start()));
        let usual = ProcessRequest::default();
        let request = ProcessRequest { command, tag, timeout_ms, scrollback, ..usual };
        let (service, subject) = (self.service(), &self.subject);
        let view = service.start_process(subject, &self.sandbox, request, None).await?.value;
        let (place, from) = (self.place(&view), ReadFrom::After(0));
        let events = service.process_events(subject, &place, view.id, from, ReadMode::Wait);
        let (mut events, mut printed) = (events.await?, Printed::default());
        let until = Instant::now() + TIME + GRACE;
        while let Ok(Some(record)) = timeout_at(until, events.next()).await {
            let record = record?;
            match &record.event {
                Recorded::Event(ExecutionEvent::Output { stream, data }) => match stream {
                    OutputStream::Stdout => printed.stdout.extend_from_slice(data),
                    OutputStream::Stderr => printed.stderr.extend_from_slice(data),
                },
                Recorded::Event(ExecutionEvent::Omitted) => printed.is_cut = true,
                Recorded::Event(ExecutionEvent::Exited(exit)) => printed.exit = Some(*exit),
                _ => {}
            }
            printed.is_cut |= printed.stdout.len() + printed.stderr.len() > MOST;
            if printed.is_cut {
                break;
            }
        }
        if printed.exit.is_none() {
            _ = service.stop_process(subject, &place, view.id, Duration::ZERO).await;
        }
        Ok(printed)
    }
}

/// The entries at and below a path that were printed, in the order of a list.
fn entries_of(top: &str, printed: &str) -> Vec<Value> {
    let meant = |line: &str| {
        let (mode, path) = line.strip_prefix("> ")?.split_once(' ')?;
        Some((plain(path), of_mode(mode)?))
    };
    let meant: HashMap<_, _> = printed.lines().filter_map(meant).collect();
    // A name of the guest's may be read as a line of its own where the image is busybox.
    let is_below = |entry: &Found| {
        let rest = entry.path.strip_prefix(top);
        rest.is_some_and(|rest| top.ends_with('/') || rest.is_empty() || rest.starts_with('/'))
    };
    let mut entries: Vec<_> = printed.lines().filter_map(entry_of).filter(is_below).collect();
    entries.sort_by(|one, other| one.path.split('/').cmp(other.path.split('/')));
    entries.iter().map(|entry| entry_json(&entry.path, entry, meant.get(&entry.path))).collect()
}

fn entry_of(line: &str) -> Option<Found> {
    let mut words = line.strip_prefix("= ")?.splitn(6, ' ');
    let mut next = || words.next();
    let (found, size, seconds) = (of_mode(next()?)?, next()?, next()?.parse::<i64>().ok()?);
    let (owner, group, name) = (next()?.to_owned(), next()?.to_owned(), next()?);
    let (path, target) = name.split_once(" -> ").map_or((name, None), |(it, to)| (it, Some(to)));
    Some(Found {
        path: plain(path),
        size: size.parse().ok()?,
        modified: Some(Time::from_unix_millis(seconds.saturating_mul(1000)).to_string()),
        owner,
        group,
        target: target.map(plain),
        ..found
    })
}

/// A name as it is. GNU has escapes in it, and busybox has quotes around it.
fn plain(name: &str) -> String {
    if let Some(name) = name.strip_prefix('\'').and_then(|name| name.strip_suffix('\'')) {
        return name.to_owned();
    }
    let mut plain = Vec::with_capacity(name.len());
    let mut bytes = name.bytes().peekable();
    while let Some(byte) = bytes.next() {
        if byte != b'\\' {
            plain.push(byte);
            continue;
        }
        let mut octal = None;
        for _ in 0..3 {
            if let Some(digit) = bytes.next_if(|it| matches!(it, b'0'..=b'7')) {
                octal = Some(octal.unwrap_or(0_u8).wrapping_mul(8).wrapping_add(digit - b'0'));
            }
        }
        let named = |byte| match byte {
            b'a' => 7,
            b'b' => 8,
            b't' => b'\t',
            b'n' => b'\n',
            b'v' => 11,
            b'f' => 12,
            b'r' => b'\r',
            other => other,
        };
        plain.extend(octal.or_else(|| bytes.next().map(named)));
    }
    String::from_utf8_lossy(&plain).into_owned()
}

fn of_mode(hex: &str) -> Option<Found> {
    let mode = u32::from_str_radix(hex, 16).ok()?;
    let kind = match mode & 0o170_000 {
        0o100_000 => EntryKind::File,
        0o040_000 => EntryKind::Directory,
        0o120_000 => EntryKind::Symlink,
        _ => EntryKind::Other,
    };
    let (permissions, mode) = (permissions_text(mode & 0o7777), format!("{:o}", mode & 0o7777));
    Some(Found { kind: Some(kind), permissions, mode, ..Found::default() })
}

#[cfg(test)]
mod tests {
    use sandbox_api::{ErrorKind, Failure};
    use serde_json::json;

    use super::*;
    use crate::envd::paths::is_kernels;

    #[test]
    fn only_what_was_refused_as_the_kernels_is_read_by_a_command() {
        let refused = |path: &str, kind| {
            is_kernels(path, &ServiceError::sandbox(Failure::new(kind, "refused", None)))
        };
        for path in ["/proc", "/proc/1/mem", "/sys/kernel", "/dev/null"] {
            assert!(refused(path, ErrorKind::SpecialFile), "{path}");
            assert!(!refused(path, ErrorKind::NotFound), "{path}");
        }
        for path in ["/process", "/home/user/pipe", "/tmp/proc/x"] {
            assert!(!refused(path, ErrorKind::SpecialFile), "{path}");
        }
    }

    #[test]
    fn entries_are_read_as_both_kinds_of_programs_print_them() {
        let printed = "= 41ed 300 0 user user /dev\n= a1ff 13 0 user user /dev/stdin -> null\n\
                       = a1ff 13 0 user user '/dev/fd' -> '/proc/self/fd'\n= x\nanything\n\
                       = 21b6 0 1 root root /dev/null\n= 8124 0 1 user user '/dev/a'\n\
                       > 41ed /dev\n> 4140 /dev/fd\n> 21b6 /dev/null\n> 8124 /dev/a\n> y\n";
        let entries = entries_of("/dev", printed);
        let paths: Vec<_> = entries.iter().map(|entry| entry["path"].clone()).collect();
        assert_eq!(paths, ["/dev", "/dev/a", "/dev/fd", "/dev/null", "/dev/stdin"]);
        let expected = json!({
            "name": "fd", "type": "FILE_TYPE_DIRECTORY", "path": "/dev/fd", "size": "13",
            "mode": 0o500, "permissions": "Lrwxrwxrwx", "owner": "user", "group": "user",
            "modifiedTime": "1970-01-01T00:00:00.000Z", "symlinkTarget": "/proc/self/fd",
        });
        assert_eq!(entries[2], expected);
        let types: Vec<_> = entries.iter().map(|entry| entry["type"].clone()).collect();
        assert_eq!(
            (&types[1], &types[3]),
            (&json!("FILE_TYPE_FILE"), &json!("FILE_TYPE_UNSPECIFIED"))
        );
        // It leads nowhere.
        assert_eq!(types[4], "FILE_TYPE_SYMLINK");
    }

    #[test]
    fn a_name_is_no_entry_of_its_own() {
        let top = "/proc/self/root/w";
        let printed = "= 41ed 1 0 user user /proc/self/root/w\n\
                       = 41ed 1 0 user user /proc/self/root/w/x\\n= 81a4 7 0 root root\\040\\\\y\\303\\251\n\
                       = 81a4 7 0 root root /proc\n= 81a4 7 0 root root /proc/self/root/wz\n";
        let entries = entries_of(top, printed);
        let paths: Vec<_> = entries.iter().map(|entry| entry["path"].clone()).collect();
        assert_eq!(paths, [top, &format!("{top}/x\n= 81a4 7 0 root root \\yé")]);
    }
}
