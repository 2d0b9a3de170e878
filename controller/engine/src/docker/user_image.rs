//! Users' images, in which commands run: found by any name, and used by their ids.

use bollard::Docker;
use bollard::models::ImageInspect;
use sandbox_api::{Pull, is_image_reference};
use sandbox_dirfd::clean;

use super::response::engine_error;
use crate::error::EngineError;
use crate::image::check_env;
use crate::{Prepared, ProgramRoot, Progress};

/// Finds the image with this name or id, or pulls it.
pub(super) async fn find(
    docker: &Docker,
    reference: &str,
    pull: Pull,
    progress: Progress<'_>,
) -> Result<Prepared, EngineError> {
    let refused = |reason: String, hint| EngineError::ProgramImage {
        reference: reference.to_owned(),
        reason,
        hint,
    };
    let missing = |hint| refused("is not there".to_owned(), Some(hint));
    if !is_image_reference(reference) {
        let hint = "a name is like python:3.13-slim or registry.example.org/team/tool:1";
        return Err(refused("is not the name of an image".to_owned(), Some(hint)));
    }
    let inspect = async || match docker.inspect_image(reference).await.map_err(engine_error) {
        Ok(image) => Ok(Some(image)),
        Err(EngineError::NotFound(_)) => Ok(None),
        // An invalid image name is refused with that message, which comes from no registry.
        Err(EngineError::Refused(why)) => Err(refused(format!("cannot be inspected: {why}"), None)),
        Err(error) => Err(error),
    };
    let there = match pull {
        Pull::Always => None,
        Pull::Missing | Pull::Never => inspect().await?,
    };
    let image = match (there, pull) {
        (Some(image), _) => image,
        (None, Pull::Never) => {
            return Err(missing("`docker pull` fetches it, and so does --pull missing"));
        }
        (None, Pull::Missing | Pull::Always) => {
            super::pull::pull(docker, reference, progress).await?;
            let fetched = inspect().await?;
            fetched.ok_or_else(|| missing("it was fetched, and has been removed since"))?
        }
    };
    let prepared = prepared(reference, image).map_err(|reason| refused(reason, None))?;
    check_env(reference, &prepared.env)?;
    Ok(prepared)
}

/// The required facts about an image; the reason if a sandbox cannot be made from it.
fn prepared(reference: &str, image: ImageInspect) -> Result<Prepared, String> {
    let platform = |os: &str, architecture: &str| format!("{os}/{architecture}");
    let is = platform(
        image.os.as_deref().unwrap_or("linux"),
        image.architecture.as_deref().unwrap_or(ARCHITECTURE),
    );
    let needed = platform("linux", ARCHITECTURE);
    if is != needed {
        return Err(format!("is for {is}, and a sandbox runs what is for {needed}"));
    }
    let id = image.id.ok_or("has no id")?;
    let config = image.config.unwrap_or_default();
    let declared = config.volumes.unwrap_or_default();
    // The engine mounts such a volume itself, in an order of its own: also above a sandbox's mount.
    if let Some(path) = declared.iter().find(|path| !path.starts_with('/')) {
        return Err(format!("declares the volume {path:?}, which is not an absolute path"));
    }
    let mut volumes: Vec<String> = declared.iter().map(|path| clean(path)).collect();
    volumes.sort();
    volumes.dedup();
    Ok(Prepared {
        root: ProgramRoot::Image { id, reference: reference.to_owned(), volumes },
        env: config.env.unwrap_or_default(),
        workdir: config.working_dir.unwrap_or_default(),
        named: None,
    })
}

/// The name of the agent's architecture in images.
pub(super) const ARCHITECTURE: &str = match std::env::consts::ARCH.as_bytes() {
    b"x86_64" => "amd64",
    b"aarch64" => "arm64",
    _ => std::env::consts::ARCH,
};

#[cfg(test)]
mod tests {
    use super::*;
    use bollard::models::ImageConfig;

    fn image() -> ImageInspect {
        ImageInspect {
            id: Some("sha256:1".to_owned()),
            os: Some("linux".to_owned()),
            architecture: Some(ARCHITECTURE.to_owned()),
            ..ImageInspect::default()
        }
    }

    #[test]
    fn environment_and_workdir_of_the_image_are_kept() {
        let volumes = ["/data/", "/a/../data", "/io/./x"].map(str::to_owned);
        let config = ImageConfig {
            env: Some(vec!["PATH=/opt/bin".to_owned()]),
            working_dir: Some("/srv".to_owned()),
            volumes: Some(volumes.into()),
            ..ImageConfig::default()
        };
        let image = prepared("x", ImageInspect { config: Some(config), ..image() }).unwrap();
        assert_eq!(
            image,
            Prepared {
                root: ProgramRoot::Image {
                    id: "sha256:1".to_owned(),
                    reference: "x".to_owned(),
                    volumes: vec!["/data".to_owned(), "/io/x".to_owned()],
                },
                env: vec!["PATH=/opt/bin".to_owned()],
                workdir: "/srv".to_owned(),
                named: None,
            }
        );
    }

    #[test]
    fn an_image_with_a_relative_volume_is_refused() {
        for path in ["../../../tmp", "tmp", "io/", "../io", ".", ""] {
            let config =
                ImageConfig { volumes: Some(vec![path.to_owned()]), ..ImageConfig::default() };
            let image = ImageInspect { config: Some(config), ..image() };
            let error = prepared("x", image).unwrap_err();
            assert!(error.contains(&format!("{path:?}")), "{error}");
        }
    }

    #[test]
    fn an_image_for_another_machine_is_refused() {
        let other = |os: &str, architecture: &str| {
            let image = ImageInspect {
                os: Some(os.to_owned()),
                architecture: Some(architecture.to_owned()),
                ..image()
            };
            prepared("x", image).unwrap_err()
        };
        let error = other("windows", ARCHITECTURE);
        assert!(error.starts_with("is for windows/"), "{error}");
        assert!(other("linux", "riscv64").starts_with("is for linux/riscv64, and"));
    }
}
