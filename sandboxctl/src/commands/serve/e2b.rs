//! E2B's protocol at `/e2b`: its templates, and what a developer types to use it.

use std::collections::BTreeMap;
use std::path::Path;

use sandbox_api::hosts::AllowRule;
use sandbox_api::service::NetworkRequest;
use sandbox_api::{EngineKind, LimitKey, LimitsRequest, ProgramImage, Pull};
use sandbox_auth::Token;
use sandbox_controller::Controller;
use sandbox_e2b::{Settings, Template};
use sandbox_env::Environment;
use sandbox_service::{HostPolicy, Ready, ServiceConfig};

use crate::config::{Key, Settings as Configured};
use crate::error::Error;

type Recipe = (&'static str, &'static str, Option<(&'static str, u16)>);

/// The template that every SDK asks for.
const BASE: &str = "base";
/// The recipes of this repository: the template, the recipe, and what runs in it with its port.
const RECIPES: [Recipe; 2] = [
    (BASE, "e2b-base", None),
    (
        "code-interpreter-v1",
        "e2b-code-interpreter",
        Some(("/usr/lib/code-interpreter/start", 49999)),
    ),
];

/// Whose a service is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// A developer's, who sees what is wrong at once.
    Developers,
    /// That of others, which serves the templates that it can.
    Others,
}

/// What is offered to E2B's SDKs; the service is to know its templates. A developer's ports are public, as E2B's are.
///
/// # Errors
///
/// Without a template `base`, or without one of its files.
pub async fn settings(
    configured: &Configured,
    environment: &Environment,
    controller: &Controller,
    service: &mut ServiceConfig,
    whose: Whose,
    public_ports: bool,
) -> Result<Settings, Error> {
    let mut templates = configured.e2b_templates();
    if templates.is_empty() {
        templates = match controller.engine().kind {
            EngineKind::Docker => from_images(controller).await?,
            EngineKind::Embedded => from_archives(&environment.user_data_dir().join("templates")),
        };
    }
    check(&templates, configured, controller.engine().kind)?;
    if controller.engine().kind == EngineKind::Docker {
        let images = controller.program_images().await?;
        let missing = missing_images(&templates, &images);
        match (missing.first(), service.pull, whose) {
            (None, ..) => {}
            (Some((template, image)), Pull::Never, Whose::Developers) => {
                let why = format!("template '{template}': there is no image '{image}' here");
                return Err(Error::usage(configured.named(Key::E2bTemplates), why));
            }
            _ => missing.iter().for_each(|(template, image)| {
                tracing::warn!(template, image, "the image of a template of E2B's is not here");
            }),
        }
    }
    let hosts = match &service.hosts {
        HostPolicy::Any { usual } => usual,
        HostPolicy::Listed(list) => list,
    };
    let allow: Vec<String> = hosts.rules().iter().map(AllowRule::to_string).collect();
    // A sandbox may have all that the operator lists.
    service.request.hosts = service.request.hosts.max(allow.len());
    let domain = service.previews.as_ref().map(|it| it.domain.clone());
    // E2B knows none of these: each is what the operator allows at most.
    let largest = [LimitKey::MaxFileSize, LimitKey::ListDepth, LimitKey::OperationTimeout];
    let ceiling = service.programs.map_or(service.ceiling, |it| it.ceiling);
    let limits = LimitsRequest::of(&largest, &ceiling.0);
    let network = NetworkRequest { allow };
    let settings = Settings { templates, domain, public_ports, network, limits };
    service.roots.extend(settings.roots(service.pull));
    service.prepared.extend(settings.preparations());
    Ok(settings)
}

fn check(
    templates: &BTreeMap<String, Template>,
    configured: &Configured,
    engine: EngineKind,
) -> Result<(), Error> {
    let name = configured.named(Key::E2bEnabled);
    if !templates.contains_key(BASE) {
        let made = match engine {
            EngineKind::Docker => "templates/e2b-base/build makes the image",
            EngineKind::Embedded => "templates/e2b-base/build makes the archive",
        };
        return Err(Error::usage(name, "there is no template 'base' for E2B's sandboxes").with_hint(
            format!("{made} that is taken where nothing is configured; [server.e2b] templates names others"),
        ));
    }
    let archives = templates.iter().filter_map(|(name, it)| Some((name, it.archive.as_ref()?)));
    for (template, archive) in archives {
        if engine == EngineKind::Docker || !archive.is_file() {
            let why = match engine {
                EngineKind::Docker => "Docker takes an image in place of an archive".to_owned(),
                EngineKind::Embedded => format!("{} is not a file", archive.display()),
            };
            return Err(Error::usage(
                configured.named(Key::E2bTemplates),
                format!("template '{template}': {why}"),
            ));
        }
    }
    Ok(())
}

fn recipe(start: Option<(&str, u16)>) -> Template {
    // What takes seconds to start waits for the next sandbox.
    let prepared = u16::from(start.is_some());
    let (start, ready) = start.map(|(start, port)| (start.to_owned(), Ready::Port(port))).unzip();
    Template { start, ready, prepared, ..Template::default() }
}

/// The recipes whose images Docker has.
async fn from_images(controller: &Controller) -> Result<BTreeMap<String, Template>, Error> {
    let images = controller.program_images().await?;
    let template = |(name, recipe_name, start): Recipe| {
        let reference = format!("sandboxctl-{recipe_name}:latest");
        let image = is_among(&images, &reference).then_some(reference)?;
        Some((name.to_owned(), Template { image: Some(image), ..recipe(start) }))
    };
    Ok(RECIPES.into_iter().filter_map(template).collect())
}

fn is_among(images: &[ProgramImage], reference: &str) -> bool {
    // Podman names its registry.
    let is_it = |name: &String| name.strip_prefix("localhost/").unwrap_or(name) == reference;
    images.iter().flat_map(|image| &image.names).any(is_it)
}

/// The templates whose images are not among these, with the image. Of one by its digest nothing is known.
fn missing_images<'a>(
    templates: &'a BTreeMap<String, Template>,
    images: &[ProgramImage],
) -> Vec<(&'a str, &'a str)> {
    let is_missing = |image: &str| {
        let short = ["docker.io/library/", "docker.io/"].into_iter();
        let short = short.filter_map(|of_hub| image.strip_prefix(of_hub)).next().unwrap_or(image);
        let has_tag = short.rsplit('/').next().is_some_and(|name| name.contains(':'));
        let tagged = if has_tag { short.to_owned() } else { format!("{short}:latest") };
        !image.contains('@') && !is_among(images, &tagged)
    };
    let named = templates.iter().filter_map(|(name, it)| Some((&**name, it.image.as_deref()?)));
    named.filter(|(_, image)| is_missing(image)).collect()
}

/// The recipes whose archives are there.
fn from_archives(dir: &Path) -> BTreeMap<String, Template> {
    let template = |(name, recipe_name, start): Recipe| {
        let file = dir.join(format!("{recipe_name}.tar"));
        let archive = file.is_file().then_some(file)?;
        Some((name.to_owned(), Template { archive: Some(archive), ..recipe(start) }))
    };
    RECIPES.into_iter().filter_map(template).collect()
}

/// What a developer types to use it. The key is the same token, as clients of all ages take it.
pub fn next_steps(server: &str, token: &Token) -> String {
    let key = token.expose_as_e2b();
    format!(
        "\nFor programs with E2B's SDKs:\n  export E2B_API_URL={server}/e2b E2B_SANDBOX_URL={server}/e2b\n  \
         export E2B_API_KEY={key}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recipes_whose_archives_are_there_are_templates() {
        let folder = tempfile::tempdir().unwrap();
        assert!(from_archives(folder.path()).is_empty());
        std::fs::write(folder.path().join("e2b-code-interpreter.tar"), "").unwrap();
        let found = from_archives(folder.path());
        let (name, template) = found.iter().next().unwrap();
        assert_eq!(
            (&**name, template.check(name), found.len()),
            ("code-interpreter-v1", Ok(()), 1)
        );
        assert_eq!((template.ready.clone(), template.prepared), (Some(Ready::Port(49999)), 1));
        std::fs::write(folder.path().join("e2b-base.tar"), "").unwrap();
        assert_eq!(from_archives(folder.path())[BASE].prepared, 0);
    }

    #[test]
    fn template_whose_image_is_not_here_is_found() {
        let images = [ProgramImage {
            id: "a".to_owned(),
            engine: EngineKind::Docker,
            names: vec![
                "localhost/base:latest".to_owned(),
                "registry.example.org:5000/a:1".to_owned(),
            ],
            since: std::time::SystemTime::UNIX_EPOCH,
            size: 1,
        }];
        let all = [
            "base", "docker.io/library/base", "base:2", "registry.example.org:5000/a", "b@sha256:0",
        ];
        let template =
            |image: &str| Template { image: Some(image.to_owned()), ..Template::default() };
        let templates = all.map(|image| (image.to_owned(), template(image))).into();
        let missing = missing_images(&templates, &images);
        let missing: Vec<_> = missing.into_iter().map(|(_, image)| image).collect();
        assert_eq!(missing, ["base:2", "registry.example.org:5000/a"]);
    }

    #[test]
    fn developer_gets_all_that_an_sdk_needs() {
        let token = Token::generate();
        let text = next_steps("http://127.0.0.1:8470", &token);
        assert!(text.contains("E2B_API_URL=http://127.0.0.1:8470/e2b "), "{text}");
        assert!(text.contains("E2B_SANDBOX_URL=http://127.0.0.1:8470/e2b\n"), "{text}");
        let key = text.split("E2B_API_KEY=").nth(1).unwrap().trim();
        assert_eq!(Token::parse(key), Some(token));
    }
}
