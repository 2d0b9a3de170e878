//! The list of the sandboxes' containers.

use std::collections::{HashMap, HashSet};

use bollard::Docker;
use bollard::models::ContainerSummaryStateEnum;
use bollard::query_parameters::ListContainersOptionsBuilder;
use futures_util::{StreamExt as _, stream};

use super::response::{engine_error, stopped_is_exited};
use super::system::unix_time;
use crate::error::EngineError;
use crate::{ContainerSummary, sandbox_of};

/// How many images are inspected at once.
const AT_ONCE: usize = 8;

/// Lists the sandboxes' containers with this label.
pub(super) async fn list(
    docker: &Docker,
    label: &str,
) -> Result<Vec<ContainerSummary>, EngineError> {
    let filters = HashMap::from([("label", vec![label])]);
    let options = ListContainersOptionsBuilder::new().all(true).filters(&filters).build();
    let mut listed = stopped_is_exited(docker.list_containers(Some(options)).await)?;
    // The creator of a container chooses its name.
    listed.retain(|container| sandbox_of(name(container)).is_some());
    // Every container inherits the labels of its image, which the image's author chose. A
    // controller's own have random values.
    let images: HashSet<_> = listed.iter().filter_map(|it| it.image_id.clone()).collect();
    let images = stream::iter(images).map(async |image| {
        let of_image = label_of_image(docker, &image, label).await;
        (image, of_image)
    });
    let of_images: HashMap<_, _> = images.buffer_unordered(AT_ONCE).collect().await;
    listed.retain(|container| {
        let own = container.labels.as_ref().and_then(|labels| labels.get(label));
        match container.image_id.as_ref().and_then(|image| of_images.get(image)) {
            Some(Ok(image)) => own != image.as_ref(),
            // Its image is unknown, so it is left out; those of other images are listed.
            Some(Err(error)) => {
                tracing::debug!(%error, "cannot read the labels of a container's image");
                false
            }
            None => own.is_some(),
        }
    });
    let summary = |container: bollard::models::ContainerSummary| {
        Some(ContainerSummary {
            name: name(&container).to_owned(),
            id: container.id?,
            labels: container.labels.unwrap_or_default().into_iter().collect(),
            running: container.state == Some(ContainerSummaryStateEnum::RUNNING),
            created: unix_time(container.created.unwrap_or(0)),
        })
    };
    Ok(listed.into_iter().filter_map(summary).collect())
}

/// The engine puts a slash before a name, and one between the names of links.
fn name(container: &bollard::models::ContainerSummary) -> &str {
    let names = container.names.iter().flatten();
    let mut names = names.filter_map(|name| name.strip_prefix('/'));
    names.find(|name| !name.contains('/')).unwrap_or_default()
}

/// The value of a label in an image; `None` also if the image is gone.
async fn label_of_image(
    docker: &Docker,
    image: &str,
    label: &str,
) -> Result<Option<String>, EngineError> {
    match docker.inspect_image(image).await.map_err(engine_error) {
        Ok(image) => Ok(image.config.and_then(|config| config.labels?.remove(label))),
        Err(EngineError::NotFound(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use serde_json::{Value, json};

    use super::super::tests::engine::with_engine;
    use super::*;

    fn container(id: &str, name: &str, image: &str) -> Value {
        json!({ "Id": id, "Names": [name], "ImageID": image, "Labels": { "instance": id } })
    }

    #[tokio::test]
    async fn container_of_an_unreadable_image_is_left_alone_and_others_are_listed() {
        let names = [1, 2, 3, 4].map(|number| format!("/sandboxctl-{number:016x}"));
        let containers = json!([
            container("good", &names[0], "plain"),
            container("inherited", &names[1], "labelled"),
            container("unreadable", &names[2], "broken"),
            container("orphan", &names[3], "removed"),
            container("foreign", "/database", "foreign"),
        ])
        .to_string();
        let inspected = Mutex::new(Vec::new());
        let answer = async |path: &str| {
            let Some(image) =
                path.strip_suffix("/json").and_then(|path| path.split("/images/").nth(1))
            else {
                return (200, containers.clone());
            };
            inspected.lock().unwrap().push(image.to_owned());
            match image {
                "plain" => (200, json!({}).to_string()),
                "labelled" => {
                    let labels = json!({ "instance": "inherited" });
                    (200, json!({ "Config": { "Labels": labels } }).to_string())
                }
                "removed" => (404, json!({ "message": "no such image" }).to_string()),
                _ => (500, json!({ "message": "layer does not exist" }).to_string()),
            }
        };
        let listed = with_engine(answer, async |docker| list(docker, "instance").await).await;
        let ids: Vec<_> = listed.unwrap().into_iter().map(|it| it.id).collect();
        assert_eq!(ids, ["good", "orphan"]);
        let mut inspected = inspected.into_inner().unwrap();
        inspected.sort_unstable();
        assert_eq!(inspected, ["broken", "labelled", "plain", "removed"]);
    }
}
