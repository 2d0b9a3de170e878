//! Pulls images from registries, with the engine. Without credentials.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use bollard::Docker;
use bollard::models::CreateImageInfo;
use bollard::query_parameters::CreateImageOptionsBuilder;
use futures_util::StreamExt;
use sandbox_protocol::limits::size_text;

use super::response::engine_error;
use crate::Progress;
use crate::error::EngineError;

/// How long the engine may report nothing during a pull. It reports often, except while it verifies
/// a layer.
const SILENCE: Duration = Duration::from_secs(300);

/// How often progress is reported at most. An engine reports each layer many times a second.
const REPORT_INTERVAL: Duration = Duration::from_millis(200);

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
    let mut events = docker.create_image(Some(options), None, None);
    let mut layers = Layers::default();
    let mut reported = None::<Instant>;
    loop {
        let next = tokio::time::timeout(SILENCE, events.next()).await;
        let next = next.map_err(|_| EngineError::TimedOut { after: SILENCE })?;
        match next {
            None => return Ok(()),
            Some(Ok(info)) => {
                layers.take(info);
                if !layers.0.is_empty() && reported.is_none_or(|at| at.elapsed() >= REPORT_INTERVAL)
                {
                    progress(&format!("fetching {reference}: {layers}"));
                    reported = Some(Instant::now());
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
    } else if says(&["no such host", "timeout", "refused", "unreachable", "name resolution"]) {
        "the engine cannot reach the registry: check its network or proxy; `docker load` brings an \
         image without one"
    } else {
        "with --pull never, only images that the engine has are used"
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

/// The layers of an image.
#[derive(Debug, Default)]
struct Layers(BTreeMap<String, Layer>);

#[derive(Debug, Default, Clone, Copy)]
struct Layer {
    is_complete: bool,
    /// Bytes that are downloaded, and all that are to be, as far as the engine reported them.
    downloaded: u64,
    total: u64,
}

impl Layers {
    /// Handles a progress message.
    fn take(&mut self, info: CreateImageInfo) {
        let (Some(id), Some(status)) = (info.id, info.status) else { return };
        let is_complete = match status.as_str() {
            "Pull complete" | "Already exists" => true,
            "Pulling fs layer" | "Waiting" | "Downloading" | "Verifying Checksum"
            | "Download complete" | "Extracting" => false,
            // About the image as a whole.
            _ => return,
        };
        let layer = self.0.entry(id).or_default();
        layer.is_complete = is_complete;
        match (status.as_str(), info.progress_detail) {
            ("Downloading", Some(detail)) => {
                let size = |bytes: Option<i64>| bytes.and_then(|bytes| u64::try_from(bytes).ok());
                layer.downloaded = size(detail.current).unwrap_or(layer.downloaded);
                layer.total = size(detail.total).unwrap_or(layer.total);
            }
            ("Downloading" | "Pulling fs layer" | "Waiting", _) => {}
            _ => layer.downloaded = layer.total,
        }
    }
}

/// `2 of 5 layers, 12.3 MiB of 48.1 MiB`. Of layers that wait the size is not known yet.
impl fmt::Display for Layers {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let complete = self.0.values().filter(|layer| layer.is_complete).count();
        let sum =
            |bytes: fn(&Layer) -> u64| self.0.values().map(bytes).fold(0, u64::saturating_add);
        write!(formatter, "{complete} of {} layers", self.0.len())?;
        match sum(|layer| layer.total) {
            0 => Ok(()),
            total => {
                let downloaded = size_text(sum(|layer| layer.downloaded));
                write!(formatter, ", {downloaded} of {}", size_text(total))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bollard::models::ProgressDetail;

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
    fn unreachable_registry_is_distinguished_from_a_wrong_name() {
        for (why, expected) in [
            (
                "Get https://registry.example/v2/: dial tcp: lookup registry.example: no such host",
                "network",
            ),
            ("dial tcp 10.0.0.1:443: connect: connection refused", "network"),
            ("pull access denied for a", "password"),
            ("manifest for a:9 not found: manifest unknown", "its tag"),
            ("no space left on device", "--pull never"),
        ] {
            assert!(hint(why).contains(expected), "{why}: {}", hint(why));
        }
    }

    #[test]
    fn layers_and_bytes_are_counted() {
        let mut layers = Layers::default();
        let mut take = |id: &str, status: &str, bytes: Option<(i64, i64)>| {
            let progress_detail = bytes.map(|(current, total)| ProgressDetail {
                current: Some(current),
                total: Some(total),
            });
            let (id, status) = (Some(id.to_owned()), Some(status.to_owned()));
            layers.take(CreateImageInfo {
                id,
                status,
                progress_detail,
                ..CreateImageInfo::default()
            });
            layers.to_string()
        };
        assert_eq!(take("13", "Pulling from library/debian", None), "0 of 0 layers");
        assert_eq!(take("a", "Pulling fs layer", None), "0 of 1 layers");
        assert_eq!(take("b", "Already exists", None), "1 of 2 layers");
        let text = take("a", "Downloading", Some((512 << 10, 2 << 20)));
        assert_eq!(text, "1 of 2 layers, 512 KiB of 2 MiB");
        // The engine reports extracted bytes likewise.
        let text = take("a", "Extracting", Some((1, 9 << 20)));
        assert_eq!(text, "1 of 2 layers, 2 MiB of 2 MiB");
        for _ in 0..2 {
            let text = take("a", "Pull complete", None);
            assert_eq!(text, "2 of 2 layers, 2 MiB of 2 MiB");
        }
    }
}
