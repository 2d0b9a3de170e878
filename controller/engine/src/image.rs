//! The sandbox image, as seen by callers.

use std::time::SystemTime;

use sandbox_api::{ImageInfo, ProgramImage};
use sandbox_protocol::argv::IMAGE_VARIABLE;

use crate::error::EngineError;

/// The longest variable with which the kernel starts a program, with the zero at its end: the
/// `MAX_ARG_STRLEN` of pages of 4 KiB.
const MAX_VARIABLE_BYTES: usize = 128 << 10;
/// The most variables: an engine looks each up among all others when it creates and when it starts a
/// container, for which no time limit holds. An ordinary image has fewer than 50.
const MAX_VARIABLES: usize = 1024;
/// The most bytes of all variables. The kernel takes a quarter of the limit of the stack, which is
/// 8 MiB, and engines and helpers keep several copies.
const MAX_ENV_BYTES: usize = 512 << 10;

/// Refuses an image whose variables would prevent programs, and the agent, from starting, or delay
/// the start without bound.
pub(crate) fn check_env(reference: &str, env: &[String]) -> Result<(), EngineError> {
    let is_long = |variable: &&String| variable.len() + IMAGE_VARIABLE.len() >= MAX_VARIABLE_BYTES;
    let long = env.iter().find(is_long);
    let all: usize = env.iter().map(|variable| variable.len() + 1).sum();
    let reason = match long {
        Some(variable) => {
            let (name, bytes) = (variable.split('=').next().unwrap_or_default(), variable.len());
            // The name may be what is long.
            let name: String = name.chars().take(100).collect();
            format!(
                "sets the variable {name:?} of {bytes} bytes, and a program can be started with \
                 one of at most {}: argument list too long",
                MAX_VARIABLE_BYTES - IMAGE_VARIABLE.len() - 1
            )
        }
        None if env.len() > MAX_VARIABLES => {
            format!(
                "sets {} variables, and a sandbox starts with {MAX_VARIABLES} at most",
                env.len()
            )
        }
        None if all > MAX_ENV_BYTES => format!(
            "sets variables of {all} bytes together, and a sandbox starts with {MAX_ENV_BYTES} at most"
        ),
        None => return Ok(()),
    };
    Err(EngineError::ProgramImage {
        reference: reference.to_owned(),
        reason,
        hint: Some("make an image with fewer or smaller variables (ENV), and put them in a file"),
    })
}

/// The variables of the agent's process that give commands those of an image. None has a name that
/// the process itself looks up before it is confined, such as `GLIBC_TUNABLES` or `RUST_MIN_STACK`.
pub(crate) fn variables_of_image(env: &[String]) -> impl Iterator<Item = String> {
    env.iter().map(|variable| format!("{IMAGE_VARIABLE}{variable}"))
}

/// The images to remove.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageSelector {
    /// The images with these ids, or id prefixes.
    Ids(Vec<String>),
    /// All but the current one.
    Stale,
    /// All.
    All,
}

/// The minimum length of an id prefix.
const MIN_ID: usize = 4;

/// An id does not identify exactly one sandbox image.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot use the image id '{which}': {reason}")]
pub struct ImageIdError {
    /// The id as given.
    pub which: String,
    /// What is wrong with it.
    pub reason: &'static str,
}

impl ImageSelector {
    /// Selects from `images`: every id must match exactly one of them.
    pub fn choose(self, images: Vec<ImageInfo>) -> Result<Vec<ImageInfo>, ImageIdError> {
        match self {
            Self::All => Ok(images),
            Self::Stale => Ok(images.into_iter().filter(|it| !it.current).collect()),
            Self::Ids(ids) => by_ids(ids, &images, |image| &image.id),
        }
    }

    /// Selects from what programs can run in, which is never stale.
    pub fn choose_programs(
        self,
        images: Vec<ProgramImage>,
    ) -> Result<Vec<ProgramImage>, ImageIdError> {
        match self {
            Self::All | Self::Stale => Ok(images),
            Self::Ids(ids) => by_ids(ids, &images, |image| &image.id),
        }
    }
}

/// Every id must match exactly one of them.
fn by_ids<T: Clone + PartialEq>(
    ids: Vec<String>,
    images: &[T],
    id: impl Fn(&T) -> &str,
) -> Result<Vec<T>, ImageIdError> {
    let mut chosen: Vec<T> = Vec::with_capacity(ids.len());
    for which in ids {
        let start = bare(&which);
        let mut found = images.iter().filter(|image| bare(id(image)).starts_with(start));
        let reason = match (found.next(), found.next()) {
            _ if start.len() < MIN_ID => "it is too short",
            (None, _) => "no image has it",
            (Some(_), Some(_)) => "several images have it",
            (Some(image), None) => {
                // If given twice, it is removed once.
                if !chosen.contains(image) {
                    chosen.push(image.clone());
                }
                continue;
            }
        };
        return Err(ImageIdError { which, reason });
    }
    Ok(chosen)
}

/// The id without the prefix of its hash algorithm.
fn bare(id: &str) -> &str {
    id.strip_prefix("sha256:").unwrap_or(id)
}

/// Whether to rebuild an existing image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rebuild {
    /// Build it only if it is missing.
    IfMissing,
    /// Always build it.
    Always,
}

/// Seconds since 1970; 0 for earlier times.
pub fn seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use sandbox_api::EngineKind;

    use super::*;

    #[test]
    fn variables_that_no_program_can_be_started_with_are_refused() {
        let variable = |bytes: usize| format!("NAME={}", "x".repeat(bytes - 5));
        let refused = |env: &[String]| check_env("image", env).unwrap_err().to_string();
        let longest = MAX_VARIABLE_BYTES - IMAGE_VARIABLE.len() - 1;
        check_env("image", &[variable(longest), String::new()]).unwrap();
        let error = refused(&["A=1".to_owned(), variable(longest + 1)]);
        assert!(error.contains("'image' sets the variable \"NAME\" of 131066 bytes"), "{error}");
        let error = refused(&vec![variable(100_000); 6]);
        assert!(error.contains("sets variables of 600006 bytes together"), "{error}");
        let many = |count: usize| vec![variable(400); count];
        check_env("image", &many(1024)).unwrap();
        let error = refused(&many(1025));
        assert!(error.contains("sets 1025 variables, and a sandbox starts with 1024"), "{error}");
        assert!(refused(&["x".repeat(1 << 20)]).len() < 400);
    }

    fn image(id: &str, current: bool) -> ImageInfo {
        ImageInfo {
            id: format!("sha256:{id}"),
            engine: EngineKind::Docker,
            agent: String::new(),
            created: SystemTime::UNIX_EPOCH,
            size: 0,
            current,
        }
    }

    fn choose(which: ImageSelector) -> Result<Vec<String>, String> {
        let images = vec![image("abcd1", true), image("abcd2", false), image("ef012", false)];
        let chosen = which.choose(images).map_err(|error| error.to_string())?;
        Ok(chosen.into_iter().map(|image| image.id).collect())
    }

    fn ids(ids: &[&str]) -> Result<Vec<String>, String> {
        choose(ImageSelector::Ids(ids.iter().map(|&id| id.to_owned()).collect()))
    }

    #[test]
    fn images_are_chosen_by_their_ids_or_the_starts_of_them() {
        let (first, third) = ("sha256:abcd1".to_owned(), "sha256:ef012".to_owned());
        assert_eq!(ids(&["ef01"]), Ok(vec![third.clone()]));
        assert_eq!(ids(&["sha256:ef01", "ef012"]), Ok(vec![third.clone()]));
        assert_eq!(ids(&["sha256:abcd1", "ef01"]), Ok(vec![first, third]));
        assert_eq!(choose(ImageSelector::Stale).unwrap().len(), 2);
        assert_eq!(choose(ImageSelector::All).unwrap().len(), 3);
    }

    #[test]
    fn an_id_that_names_no_image_says_why_and_spoils_the_others() {
        for (id, reason) in [
            ("ffff", "no image has it"),
            ("ef0", "it is too short"),
            ("sha256:", "it is too short"),
            ("", "it is too short"),
            ("abcd", "several images have it"),
        ] {
            assert_eq!(
                ids(&["ef012", id]),
                Err(format!("cannot use the image id '{id}': {reason}"))
            );
        }
    }
}
