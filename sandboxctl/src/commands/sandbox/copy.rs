//! `sandbox cp`: a file into a sandbox, or out of it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use futures_util::stream;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use sandbox_api::operation::{Exists, OperationRequest};

use super::super::Context;
use super::super::executions::save;
use super::super::transfer::Source;
use super::find;
use crate::error::Error;
use crate::input::{is_stdin, reason};
use crate::lock;
use crate::remote::{Client, RequestBody};

/// One of the two sides of a copy.
#[derive(Debug, PartialEq, Eq)]
enum Side<'a> {
    /// A path in a sandbox: the word that means it, and the path.
    Sandbox(&'a str, &'a str),
    /// A file of this machine, or `-`.
    Host(&'a Path),
}

impl<'a> Side<'a> {
    /// `ID:PATH`, unless a slash precedes the colon: then it is a file.
    fn of(written: &'a OsStr) -> Self {
        match written.to_str().and_then(|text| text.split_once(':')) {
            Some((sandbox, path)) if !sandbox.is_empty() && !sandbox.contains('/') => {
                Self::Sandbox(sandbox, path)
            }
            _ => Self::Host(Path::new(written)),
        }
    }
}

pub async fn copy(
    context: &Context<'_>,
    client: &Client,
    from: &OsStr,
    to: &OsStr,
) -> Result<u8, Error> {
    match (Side::of(from), Side::of(to)) {
        (Side::Host(file), Side::Sandbox(word, path)) => {
            let sandbox = find(client, word).await?.id;
            let name = if is_stdin(file) { None } else { file.file_name() };
            let path = inside(client, &sandbox, path, name).await?;
            put(client, &sandbox, &path, file).await.map(|()| 0)
        }
        (Side::Sandbox(word, path), Side::Host(file)) => {
            let sandbox = find(client, word).await?.id;
            if path.is_empty() || path.ends_with('/') {
                return Err(Error::usage("FROM", "it is a directory, and cp copies one file")
                    .with_hint("`sandboxctl sandbox exec ID tar c DIR > dir.tar` gets many"));
            }
            let file = match file.is_dir() {
                true => file.join(path.rsplit('/').next().unwrap_or(path)),
                false => PathBuf::from(file),
            };
            context.check_output("TO", &file)?;
            let content = client.read_file(&sandbox, path).await?;
            save(context.output, content, "TO", &file).await
        }
        _ => Err(Error::usage("TO", "one of the two is in a sandbox, and the other one is here")
            .with_hint(
                "a path in a sandbox is ID:PATH: sandboxctl sandbox cp data.csv ID:data.csv",
            )),
    }
}

/// Where a file goes: in a directory it has its own name.
async fn inside(
    client: &Client,
    sandbox: &str,
    path: &str,
    name: Option<&OsStr>,
) -> Result<String, Error> {
    let is_directory = path.is_empty() || path.ends_with('/') || {
        let request = OperationRequest::from(Exists::new(path.as_bytes()));
        let envelope = client.operate(sandbox, &request).await?;
        envelope["data"]["type"] == "directory"
    };
    if !is_directory {
        return Ok(path.to_owned());
    }
    let name = name.and_then(OsStr::to_str).ok_or_else(|| {
        Error::usage("TO", "it is a directory, and what is copied has no name of its own")
            .with_hint("name the file in it: ID:PATH")
    })?;
    Ok(match path.strip_suffix('/') {
        Some(directory) => format!("{directory}/{name}"),
        None if path.is_empty() => name.to_owned(),
        None => format!("{path}/{name}"),
    })
}

/// Sends a file, or stdin. If it cannot be read to its end, nothing is written.
async fn put(client: &Client, sandbox: &str, path: &str, file: &Path) -> Result<(), Error> {
    let what = || format!("FROM {}", file.display());
    let source = match is_stdin(file) {
        true => Source::stdin(),
        false => Source::file(file),
    };
    let source = source.map_err(|error| match error.kind() {
        std::io::ErrorKind::IsADirectory => {
            Error::usage(what(), "it is a directory, and cp copies one file")
                .with_hint("`tar c DIR | sandboxctl sandbox cp - ID:dir.tar` makes one of many")
        }
        _ => Error::usage(what(), reason(&error)),
    })?;
    let failure = Arc::new(Mutex::new(None));
    let written = client.write_file(sandbox, path, body(source, failure.clone())).await;
    match lock(&failure).take() {
        Some(source) => Err(Error::Content { what: what(), source }),
        None => Ok(written?),
    }
}

/// The pieces of a source as the body of a request. Why it cannot be read is the failure.
fn body(source: Source, failure: Arc<Mutex<Option<std::io::Error>>>) -> RequestBody {
    let pieces = stream::unfold((source, failure), |(mut source, failure)| async move {
        match source.next().await {
            Ok(Some(piece)) => Some((Ok(Frame::data(piece.into())), (source, failure))),
            Ok(None) => None,
            Err(error) => {
                let kind = error.kind();
                *lock(&failure) = Some(error);
                Some((Err(kind.into()), (source, failure)))
            }
        }
    });
    StreamBody::new(pieces).boxed_unsync()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colon_after_a_word_makes_a_path_in_a_sandbox() {
        let side = |text: &'static str| Side::of(OsStr::new(text));
        assert_eq!(side("build:"), Side::Sandbox("build", ""));
        assert_eq!(side("7f3c:/io/a:b"), Side::Sandbox("7f3c", "/io/a:b"));
        for file in ["a", "-", "./a:b", "/a:b", ":a", ""] {
            assert_eq!(side(file), Side::Host(Path::new(file)));
        }
    }
}
