//! `fs cp`: copies a file from the host into the sandbox, or out of it, and files and directories
//! within it.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use sandbox_api::files::{EntryKind, OperationStats};
use sandbox_api::operation::{self, Exists, Read, Stat, Write};
use sandbox_controller::Sandbox;
use serde::Serialize;

use super::super::progress::Progress;
use super::super::transfer::{Sink, Source};
use super::report::Report;
use super::stream::{failed, fill, pour, poured, stdout};
use crate::cli::fs::Side;
use crate::error::Error;
use crate::output::Output;
use crate::target::Target;

/// A copy with its host side open.
pub enum Copy<'a> {
    Into { source: Source, written: &'a Side, name: Option<&'a OsStr>, to: &'a OsStr },
    OutOf { from: &'a OsStr, target: Target, path: PathBuf },
    ToStdout(&'a OsStr),
    Within { from: &'a OsStr, to: &'a OsStr, recursive: bool },
}

/// The `--json` report: both sides as `cp` accepts them.
#[derive(Debug, Serialize)]
struct Copied {
    from: String,
    to: String,
    bytes: u64,
    /// Files and directories, of a copy within the sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    entries: Option<u64>,
}

impl OperationStats for Copied {
    fn bytes(&self) -> Option<u64> {
        Some(self.bytes)
    }

    fn items(&self) -> Option<u64> {
        self.entries
    }
}

impl<'a> Copy<'a> {
    /// Opens the host side. Nothing changes yet.
    pub fn prepare(from: &'a Side, to: &'a Side, recursive: bool) -> Result<Self, Error> {
        if recursive && !matches!((from, to), (Side::Sandbox(_), Side::Sandbox(_))) {
            let hint = match from {
                Side::Sandbox(_) => {
                    "the io dir is a directory of this machine: cp -r copies out of it"
                }
                _ => "`tar c DIR | sandboxctl fs cp - :dir.tar` makes one file of a directory",
            };
            return Err(
                Error::usage("--recursive", "it copies within the sandbox only").with_hint(hint)
            );
        }
        let written = from;
        Ok(match (from, to) {
            (Side::Sandbox(from), Side::Sandbox(to)) => Self::Within { from, to, recursive },
            (Side::Sandbox(from), Side::Stdio) => Self::ToStdout(from),
            (Side::Sandbox(from), Side::Host(_)) => {
                let path = destination(written, to).unwrap_or_default();
                let target =
                    Target::open(&path).map_err(|error| Error::unusable("TO", &path, &error))?;
                Self::OutOf { from, target, path }
            }
            (Side::Stdio, Side::Sandbox(to)) => {
                let source = Source::stdin().map_err(|error| failed("stdin", error))?;
                Self::Into { source, written, name: None, to }
            }
            (Side::Host(path), Side::Sandbox(to)) => {
                let source = Source::file(path).map_err(|error| match error.kind() {
                    io::ErrorKind::IsADirectory => Error::unusable("FROM", path, &error)
                        .with_hint("cp copies one file; `tar c DIR | sandboxctl fs cp - :dir.tar` makes one of many"),
                    _ => Error::unusable("FROM", path, &error),
                })?;
                Self::Into { source, written, name: path.file_name(), to }
            }
            (Side::Stdio | Side::Host(_), Side::Stdio | Side::Host(_)) => {
                return Err(Error::usage("TO", "neither of the two is in the sandbox")
                    .with_hint("a path that begins with a colon is the sandbox's: cp data.csv :"));
            }
        })
    }

    pub async fn perform(self, sandbox: &Sandbox, output: &Output) -> Result<Report, Error> {
        let shown = |path: &OsStr| format!(":{}", path.to_string_lossy());
        let mut entries = None;
        let (from, to, bytes) = match self {
            Self::Into { mut source, written, name, to } => {
                let path = inside(sandbox, to, name).await?;
                let mut progress = Progress::shown(output, source.size);
                let mut writer = sandbox.writer(Write::new(path)).await?;
                let what = written.to_string();
                fill(&mut writer, &mut source, &mut progress, &what).await?;
                let copied = writer.finish().await?;
                (what, format!(":{}", copied.path), copied.bytes_written)
            }
            Self::OutOf { from, target, path } => {
                let mut progress = progress_of(sandbox, from, output).await?;
                let mut reader = sandbox.reader(Read::new(from.as_bytes())).await?;
                let what = path.display().to_string();
                let sink = target.writer().and_then(Sink::new);
                let sink = sink.map_err(|error| failed(&what, error))?;
                if !pour(&mut reader, sink, &mut progress, &what).await? {
                    // Only part of the file was copied: that is acceptable for stdout, but not for
                    // a copy.
                    return Err(failed(&what, io::ErrorKind::BrokenPipe.into()));
                }
                target.finish().map_err(|error| failed(&what, error))?;
                (shown(from), what, progress.bytes)
            }
            Self::ToStdout(from) => {
                let mut reader = sandbox.reader(Read::new(from.as_bytes())).await?;
                let mut progress = Progress::hidden();
                return pour(&mut reader, stdout()?, &mut progress, "stdout").await.map(poured);
            }
            Self::Within { from, to, recursive } => {
                let name = last_name(from.as_bytes());
                let to = inside(sandbox, to, name.as_deref()).await?;
                let copy = operation::Copy::new(from.as_bytes(), to);
                let copy = operation::Copy { recursive, overwrite: true, ..copy };
                let copied = sandbox.call(copy).await?;
                entries = Some(copied.entries);
                (shown(from), format!(":{}", copied.to), copied.bytes)
            }
        };
        Report::silent(&Copied { from, to, bytes, entries })
    }
}

/// The progress of a copy out of the sandbox. The size is queried only if it is displayed.
async fn progress_of(sandbox: &Sandbox, path: &OsStr, output: &Output) -> Result<Progress, Error> {
    if !output.shows_progress() {
        return Ok(Progress::hidden());
    }
    let size = sandbox.stat(Stat::new(path.as_bytes())).await?.size;
    Ok(Progress::shown(output, Some(size)))
}

/// The guest path to write to: in a directory, a file with the source's name.
async fn inside(sandbox: &Sandbox, path: &OsStr, name: Option<&OsStr>) -> Result<Vec<u8>, Error> {
    let mut path = path.as_bytes().to_vec();
    let Some(name) = name else { return Ok(path) };
    let is_directory = path.ends_with(b"/")
        || sandbox.call(Exists::new(&*path)).await?.kind == Some(EntryKind::Directory);
    if is_directory {
        if !path.ends_with(b"/") {
            path.push(b'/');
        }
        path.extend_from_slice(name.as_bytes());
    }
    Ok(path)
}

/// The last component of a guest path; none if it ends in a mount's root, or in the working
/// directory.
fn last_name(path: &[u8]) -> Option<OsString> {
    let end = path.iter().rposition(|&byte| byte != b'/')? + 1;
    let path = &path[..end];
    let start = path.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    match &path[start..] {
        b"." | b".." | b"~" => None,
        name => Some(OsString::from_vec(name.to_vec())),
    }
}

/// The file of the host that a copy writes, if it writes one: in a directory it has the name of what is
/// copied.
pub fn destination(from: &Side, to: &Side) -> Option<PathBuf> {
    let Side::Host(path) = to else { return None };
    let name = match from {
        Side::Sandbox(from) => last_name(from.as_bytes()),
        Side::Host(_) | Side::Stdio => None,
    };
    Some(match (names_directory(path), name) {
        (true, Some(name)) => path.join(name),
        _ => path.clone(),
    })
}

/// Whether a host path denotes a directory, existing or not.
fn names_directory(path: &Path) -> bool {
    path.as_os_str().as_bytes().ends_with(b"/") || path.is_dir()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_gets_a_file_of_the_same_name() {
        let name = |path: &[u8]| last_name(path).map(OsString::into_vec);
        assert_eq!(name(b"a/b.txt").unwrap(), b"b.txt");
        assert_eq!(name(b"/io/b\xff").unwrap(), b"b\xff");
        assert_eq!(name(b"a/b//").unwrap(), b"b");
        assert_eq!(name(b"b").unwrap(), b"b");
        for none in [&b""[..], b"/", b".", "~".as_bytes(), b"a/.."] {
            assert_eq!(name(none), None);
        }
        assert!(names_directory(Path::new("/tmp")));
        assert!(names_directory(Path::new("none/")));
        assert!(!names_directory(Path::new("/dev/null")));
    }

    #[test]
    fn a_copy_has_the_sandbox_on_one_side() {
        let folder = tempfile::tempdir().unwrap();
        let host = |name: &str| Side::Host(folder.path().join(name));
        let refused = |from: &Side, to: &Side| match Copy::prepare(from, to, false) {
            Ok(_) => panic!("it is taken"),
            Err(error) => error.to_text().replace(folder.path().to_str().unwrap(), ""),
        };
        let guest = Side::Sandbox("a".into());
        let texts = [
            refused(&host("a"), &host("b")),
            refused(&Side::Stdio, &Side::Stdio),
            refused(&host("none"), &guest),
            refused(&host(""), &guest),
            refused(&guest, &host("none/a")),
            refused(&Side::Sandbox(".".into()), &host("")),
        ];
        insta::assert_snapshot!(texts.join("\n"));
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
        assert!(Copy::prepare(&guest, &host(""), false).is_ok());
    }
}
