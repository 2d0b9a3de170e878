//! Pulls images from registries, with the engine. Without credentials.

use std::collections::BTreeMap;
use std::time::Duration;

use bollard::Docker;
use bollard::models::CreateImageInfo;
use bollard::query_parameters::CreateImageOptionsBuilder;
use futures_util::StreamExt;

use super::engine_error;
use crate::Progress;
use crate::error::EngineError;

/// How long the engine may report nothing during a pull. It reports often, except while it verifies
/// a layer.
const SILENCE: Duration = Duration::from_secs(300);

/// Pulls an image. Dropping the future also cancels the pull in the engine.
pub(super) async fn pull(
    docker: &Docker,
    reference: &str,
    progress: Progress<'_>,
) -> Result<(), EngineError> {
    let failed = |reason: String, hint| {
        let reference = reference.to_owned();
        EngineError::ProgramImage { reference, reason, hint }
    };
    let Some((name, tag)) = split(reference) else {
        let hint = "a registry knows an image by its name";
        return Err(failed("is not there, and an id cannot be fetched".to_owned(), Some(hint)));
    };
    progress(&format!("fetching {reference}"));
    let options = CreateImageOptionsBuilder::new().from_image(name).tag(tag).build();
    let mut told = docker.create_image(Some(options), None, None);
    let mut layers = Layers::default();
    loop {
        let next = tokio::time::timeout(SILENCE, told.next()).await;
        let next = next.map_err(|_| EngineError::TimedOut { after: SILENCE })?;
        match next {
            None => return Ok(()),
            Some(Ok(info)) => {
                if let Some((done, all)) = layers.take(info) {
                    progress(&format!("fetched {done} of {all} layers of {reference}"));
                }
            }
            Some(Err(error)) => {
                return Err(match engine_error(error) {
                    EngineError::NotFound(why) | EngineError::Refused(why) => {
                        let hint = hint(&why);
                        failed(format!("cannot be fetched: {why}"), Some(hint))
                    }
                    error => error,
                });
            }
        }
    }
}

/// A suggested next step for the engine's error message. It may come from the registry, and varies.
fn hint(why: &str) -> &'static str {
    let why = why.to_ascii_lowercase();
    let says = |words: &[&str]| words.iter().any(|word| why.contains(word));
    if says(&["denied", "unauthorized", "authentication", "no basic auth"]) {
        "an image is fetched without a password: `docker pull` uses yours, and what it has fetched \
         is found; or the name is wrong"
    } else if says(&["manifest", "not found", "invalid reference"]) {
        "the name, its tag or its digest is wrong"
    } else {
        "--pull never takes what the engine has"
    }
}

/// The repository, and the tag or digest; `None` for an id. Without a tag an engine would pull all
/// tags.
fn split(reference: &str) -> Option<(&str, &str)> {
    if reference.starts_with("sha256:") {
        return None;
    }
    let (name, digest) = match reference.split_once('@') {
        Some((name, digest)) => (name, Some(digest)),
        None => (reference, None),
    };
    let last = name.rfind('/').map_or(0, |slash| slash + 1);
    // A colon before the last slash belongs to a port.
    let (name, tag) = match name[last..].rfind(':') {
        Some(colon) => (&name[..last + colon], Some(&name[last + colon + 1..])),
        None => (name, None),
    };
    Some((name, digest.or(tag).unwrap_or("latest")))
}

/// Which layers are complete.
#[derive(Debug, Default)]
struct Layers(BTreeMap<String, bool>);

impl Layers {
    /// Handles a progress message; returns the number of complete layers and of all layers, if it
    /// changed.
    fn take(&mut self, info: CreateImageInfo) -> Option<(usize, usize)> {
        let (Some(id), Some(status)) = (info.id, info.status) else { return None };
        let done = match status.as_str() {
            "Pull complete" | "Already exists" => true,
            "Pulling fs layer" | "Waiting" | "Downloading" | "Verifying Checksum"
            | "Download complete" | "Extracting" => false,
            // About the image as a whole.
            _ => return None,
        };
        let before = self.0.insert(id, done);
        let count = self.0.values().filter(|done| **done).count();
        (done && before != Some(true)).then_some((count, self.0.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_tag_is_fetched_and_no_id() {
        for (reference, expected) in [
            ("debian", ("debian", "latest")),
            ("debian:13", ("debian", "13")),
            ("localhost:5000/a/b", ("localhost:5000/a/b", "latest")),
            ("localhost:5000/a/b:1", ("localhost:5000/a/b", "1")),
            ("a/b@sha256:12", ("a/b", "sha256:12")),
            ("a/b:1@sha256:12", ("a/b", "sha256:12")),
        ] {
            assert_eq!(split(reference), Some(expected), "{reference}");
        }
        assert_eq!(split("sha256:12"), None);
    }

    #[test]
    fn layers_are_counted_once_each() {
        let mut layers = Layers::default();
        let mut take = |id: &str, status: &str| {
            let (id, status) = (Some(id.to_owned()), Some(status.to_owned()));
            layers.take(CreateImageInfo { id, status, ..CreateImageInfo::default() })
        };
        assert_eq!(take("13", "Pulling from library/debian"), None);
        assert_eq!(take("a", "Pulling fs layer"), None);
        assert_eq!(take("b", "Already exists"), Some((1, 2)));
        assert_eq!(take("a", "Extracting"), None);
        assert_eq!(take("a", "Pull complete"), Some((2, 2)));
        assert_eq!(take("a", "Pull complete"), None);
    }
}
