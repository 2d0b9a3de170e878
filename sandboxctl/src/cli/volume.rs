//! Mounts as Docker writes them: `-v SRC:DST[:ro]`.
//!
//! A sandbox has one writable directory, its io dir. So a read-only mount is an input with a path of
//! its own, and the writable one is the io dir at that path.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use clap::{ArgAction, Args, ValueHint};

use super::sandbox::FileArgs;
use super::values::written;
use crate::error::Error;
use crate::input::InputArgument;

/// `--volume`, and `--verbose` without its short form, which is that of `--volume` here.
#[derive(Debug, Args)]
pub struct VolumeArgs {
    /// Mount SRC of the host at DST, as Docker does; the one that is not :ro is the io dir;
    /// repeatable
    #[arg(short = 'v', long = "volume", visible_alias = "mount", value_name = "SRC:DST[:ro]",
        help_heading = "Files", value_hint = ValueHint::AnyPath,
        value_parser = written(Volume::parse))]
    pub volumes: Vec<Volume>,

    /// Print more on stderr; repeat for more detail
    // It shadows the global `-v`, whose value it takes.
    #[arg(long, action = ArgAction::Count, help_heading = "Global options")]
    verbose: u8,
}

impl VolumeArgs {
    /// Adds the mounts to the files of a sandbox.
    ///
    /// # Errors
    ///
    /// If two of them are writable, or one is and the io dir is named.
    pub fn add_to(&self, files: &mut FileArgs) -> Result<(), Error> {
        for volume in &self.volumes {
            let Volume { source, target, is_read_only, written } = volume;
            if *is_read_only {
                files.inputs.push(volume.input()?);
                continue;
            }
            let refuse = |why: &str| {
                Error::usage(format!("--volume {written}"), why).with_hint(format!(
                    "--volume {}:{target}:ro mounts it read-only",
                    source.display()
                ))
            };
            if files.io_dir.is_some() {
                return Err(refuse("a sandbox has one writable directory, and another is named"));
            }
            if files.mount_path.is_some() {
                return Err(refuse("--mount-path is of the writable directory, as this path is"));
            }
            files.io_dir = Some(source.clone());
            files.io_dir_is_volume = true;
            files.mount_path = Some(target.clone());
        }
        Ok(())
    }
}

/// `-v SRC:DST[:ro]`, or `--mount type=bind,source=SRC,target=DST[,readonly]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    source: PathBuf,
    target: String,
    is_read_only: bool,
    written: String,
}

impl Volume {
    /// The input that it is, if it is read-only.
    ///
    /// # Errors
    ///
    /// If it can be written.
    pub fn input(&self) -> Result<InputArgument, Error> {
        let Self { source, target, is_read_only, written } = self;
        if !is_read_only {
            let why = "it is writable, and an input is not";
            return Err(Error::usage(format!("--volume {written}"), why)
                .with_hint(format!("--volume {}:{target}:ro", source.display())));
        }
        Ok(InputArgument::at(source, target, written))
    }

    /// Reads either form.
    pub(super) fn parse(written: &OsStr) -> Result<Self, String> {
        let bytes = written.as_bytes();
        // `-vv`: what it means on other commands.
        if !bytes.is_empty() && bytes.iter().all(|byte| *byte == b'v') {
            return Err("-v is a mount on this command; more output is --verbose".to_owned());
        }
        let is_long = [&b"type="[..], b"source=", b"src=", b"target=", b"dst="]
            .iter()
            .any(|start| bytes.starts_with(start));
        let (source, target, is_read_only) =
            if is_long { long_form(bytes)? } else { short_form(bytes)? };
        let target = std::str::from_utf8(target).map_err(|_| "its target is not UTF-8 text")?;
        if !target.starts_with('/') {
            return Err(format!("'{target}' is not an absolute path in the sandbox"));
        }
        let source = OsStr::from_bytes(source);
        let has_slash = source.as_bytes().contains(&b'/');
        if !has_slash && source != "." && source != ".." {
            let name = source.to_string_lossy();
            return Err(format!(
                "'{name}' is the name of a Docker volume, which a sandbox cannot have; a directory is \
                 ./{name}"
            ));
        }
        Ok(Self {
            source: source.into(),
            target: target.to_owned(),
            is_read_only,
            written: written.to_string_lossy().into_owned(),
        })
    }
}

type Parts<'a> = (&'a [u8], &'a [u8], bool);

/// `SRC:DST[:ro]`.
fn short_form(bytes: &[u8]) -> Result<Parts<'_>, String> {
    const EXPECTED: &str = "expected SRC:DST or SRC:DST:ro";
    let cut = |bytes| split_last(bytes, b':').ok_or(EXPECTED);
    let (rest, last) = cut(bytes)?;
    let (source, target, is_read_only) = match last {
        b"ro" | b"rw" => {
            let (source, target) = cut(rest)?;
            (source, target, last == b"ro")
        }
        _ if last.starts_with(b"/") => (rest, last, false),
        _ if rest.contains(&b':') => {
            let option = String::from_utf8_lossy(last);
            return Err(format!("there is no option '{option}' of a mount but ro and rw"));
        }
        _ => (rest, last, false),
    };
    match source.is_empty() || target.is_empty() {
        true => Err(EXPECTED.to_owned()),
        false => Ok((source, target, is_read_only)),
    }
}

/// `type=bind,source=SRC,target=DST[,readonly]`.
fn long_form(bytes: &[u8]) -> Result<Parts<'_>, String> {
    let (mut source, mut target, mut is_read_only) = (None, None, false);
    for part in bytes.split(|&byte| byte == b',') {
        let (key, value) = match part.iter().position(|&byte| byte == b'=') {
            Some(at) => (&part[..at], &part[at + 1..]),
            None => (part, &b"true"[..]),
        };
        match key {
            b"type" if value == b"bind" => {}
            b"type" => return Err("of the types of mounts there is only bind".to_owned()),
            b"source" | b"src" => source = Some(value),
            b"target" | b"dst" | b"destination" => target = Some(value),
            b"readonly" | b"ro" => is_read_only = value == b"true" || value == b"1",
            _ => {
                let key = String::from_utf8_lossy(key);
                return Err(format!("there is no '{key}' of a mount"));
            }
        }
    }
    match (source, target) {
        (Some(source), Some(target)) if !source.is_empty() => Ok((source, target, is_read_only)),
        _ => Err("expected source=SRC,target=DST".to_owned()),
    }
}

fn split_last(bytes: &[u8], at: u8) -> Option<(&[u8], &[u8])> {
    let index = bytes.iter().rposition(|&byte| byte == at)?;
    Some((&bytes[..index], &bytes[index + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_is_a_source_a_target_and_whether_it_is_read_only() {
        let parse = |text: &str| {
            Volume::parse(text.as_ref())
                .map(|it| (it.source.display().to_string(), it.target, it.is_read_only))
        };
        let made = |source: &str, target: &str, is_read_only| {
            Ok((source.to_owned(), target.to_owned(), is_read_only))
        };
        for text in
            ["./a:/b:ro", "type=bind,source=./a,target=/b,readonly", "src=./a,dst=/b,ro=true"]
        {
            assert_eq!(parse(text), made("./a", "/b", true), "{text}");
        }
        for text in ["./a:/b", "./a:/b:rw", "type=bind,src=./a,destination=/b"] {
            assert_eq!(parse(text), made("./a", "/b", false), "{text}");
        }
        assert_eq!(parse("/a:b:/c"), made("/a:b", "/c", false));
        assert_eq!(parse(".:/c"), made(".", "/c", false));
        for (text, why) in [
            ("v", "more output is --verbose"),
            ("/a", "expected SRC:DST"),
            (":/b", "expected SRC:DST"),
            ("/a:", "expected SRC:DST"),
            ("/a:/b:z", "no option 'z'"),
            ("/a:b", "'b' is not an absolute path"),
            ("cache:/b", "a directory is ./cache"),
            ("type=tmpfs,target=/b", "only bind"),
            ("type=bind,target=/b", "expected source=SRC"),
            ("source=/a,target=/b,bind-propagation=shared", "no 'bind-propagation'"),
        ] {
            let refused = parse(text).unwrap_err();
            assert!(refused.contains(why), "{text}: {refused}");
        }
    }
}
