//! Images that are not ours, for programs: found by whatever name, used by their ids.

use bollard::Docker;
use bollard::models::ImageInspect;

use super::engine_error;
use crate::engine::{EngineError, Prepared, ProgramRoot};

/// The image that the engine has by this name or id.
pub(super) async fn find(docker: &Docker, reference: &str) -> Result<Prepared, EngineError> {
    let image = docker.inspect_image(reference).await.map_err(engine_error)?;
    prepared(reference, image).map_err(|reason| EngineError::ProgramImage {
        reference: reference.to_owned(),
        reason,
        hint: None,
    })
}

/// What is to be known of an image; the reason why not where a sandbox cannot be made from it.
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
    let mut volumes: Vec<String> =
        config.volumes.unwrap_or_default().iter().map(|path| normalised(path)).collect();
    volumes.sort();
    volumes.dedup();
    Ok(Prepared {
        root: ProgramRoot::Image { id, reference: reference.to_owned(), volumes },
        env: config.env.unwrap_or_default(),
        workdir: config.working_dir.unwrap_or_default(),
    })
}

/// What images call the processor that the agent is for.
const ARCHITECTURE: &str = match std::env::consts::ARCH.as_bytes() {
    b"x86_64" => "amd64",
    b"aarch64" => "arm64",
    _ => std::env::consts::ARCH,
};

/// A path as the engine takes it, whatever the image writes.
fn normalised(path: &str) -> String {
    let mut names = Vec::new();
    for name in path.split('/') {
        match name {
            "" | "." => {}
            ".." => _ = names.pop(),
            name => names.push(name),
        }
    }
    format!("/{}", names.join("/"))
}

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
    fn what_the_image_says_for_its_programs_is_kept() {
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
            }
        );
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
