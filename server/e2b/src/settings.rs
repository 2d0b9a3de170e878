//! What an operator decides: the templates of sandboxes, and who their user is.

use std::collections::BTreeMap;
use std::path::PathBuf;

use sandbox_api::service::{KeptSpec, NetworkRequest};
use sandbox_api::{FileScope, LimitsRequest, Ports, Processes, Pull, RootFs};
use sandbox_service::{Preparation, Ready};
use serde::{Deserialize, Serialize};

/// The name of the user of every sandbox.
pub(crate) const USER: &str = "user";
/// Their home: the sandbox's io dir.
pub(crate) const HOME: &str = "/home/user";
/// The template that a server must have.
pub(crate) const BASE: &str = "base";
/// The longest name of a template, and the most sandboxes of one that are started ahead.
const MAX_NAME: usize = 60;
const MAX_PREPARED: u16 = 64;

/// The name of a template that a request has perhaps with a tag: `latest` is the only one that there is.
pub(crate) fn untagged(name: &str) -> &str {
    name.strip_suffix(":latest").unwrap_or(name)
}

/// What an operator decides.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Settings {
    /// What sandboxes can be made of, by name.
    pub templates: BTreeMap<String, Template>,
    /// Below which the hosts of sandboxes are: `PORT-ID.DOMAIN`.
    pub domain: Option<String>,
    /// Whether ports of sandboxes need no token, unless a sandbox asks for one.
    pub public_ports: bool,
    /// The hosts of a sandbox that asks for no others.
    pub network: NetworkRequest,
    /// The limits of every sandbox that are not the service's own.
    pub limits: LimitsRequest,
}

/// What a sandbox can be made of: an image, and what runs in it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Template {
    /// Its image, where the engine has images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Its image archive, for the embedded engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archive: Option<PathBuf>,
    /// What runs in a sandbox from its creation on, as a line for bash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<String>,
    /// When that is ready; a sandbox is created then. By default when it has been started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<Ready>,
    /// How many sandboxes of it are started ahead.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub prepared: u16,
}

fn is_zero(count: &u16) -> bool {
    *count == 0
}

impl Template {
    /// What is wrong with a template of this name.
    ///
    /// # Errors
    ///
    /// The problem.
    pub fn check(&self, name: &str) -> Result<(), &'static str> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if !(1..=MAX_NAME).contains(&name.len()) || !name.bytes().all(is_plain) {
            return Err("a name has 1 to 60 letters, digits, '.', '_' and '-'");
        }
        match self {
            Self { image: Some(_), archive: None, .. } => {}
            Self { image: None, archive: Some(archive), .. } if archive.is_absolute() => {}
            Self { image: None, archive: Some(_), .. } => {
                return Err("archive is an absolute path");
            }
            _ => return Err("it has either image or archive"),
        }
        if self.start.as_ref().is_some_and(String::is_empty) {
            return Err("start is not empty");
        }
        if self.ready.is_some() && self.start.is_none() {
            return Err("ready is of start, which it does not have");
        }
        match self.prepared <= MAX_PREPARED {
            true => Ok(()),
            false => Err("prepared is at most 64"),
        }
    }

    /// By which name requests mean its root file system.
    fn root_name(&self, name: &str) -> String {
        self.image.clone().unwrap_or_else(|| format!("e2b-template/{name}"))
    }
}

impl Settings {
    /// The root file systems of the templates, by the names that requests have for them.
    #[must_use]
    pub fn roots(&self, pull: Pull) -> BTreeMap<String, RootFs> {
        let root = |(name, template): (&String, &Template)| {
            let root = match (&template.image, &template.archive) {
                (_, Some(archive)) => RootFs::Archive(archive.clone()),
                (image, None) => {
                    RootFs::Image { reference: image.clone().unwrap_or_default(), pull }
                }
            };
            (template.root_name(name), root)
        };
        self.templates.iter().map(root).collect()
    }

    /// What the service prepares for the templates, whether sandboxes wait with it or not.
    #[must_use]
    pub fn preparations(&self) -> Vec<Preparation> {
        let with_one = |it: &(&String, &Template)| is_prepared(it.1);
        let preparation = |(name, template): (&String, &Template)| {
            let words =
                |start: &String| ["/bin/bash", "-l", "-c", start].map(str::to_owned).to_vec();
            Preparation {
                name: prepared_name(name),
                image: Some(template.root_name(name)),
                command: template.start.as_ref().map(words).unwrap_or_default(),
                ready: template.ready.clone().unwrap_or(Ready::Started),
                count: template.prepared,
                shape: Some(Box::new(self.spec(name, template))),
            }
        };
        self.templates.iter().filter(with_one).map(preparation).collect()
    }

    /// A sandbox of this template.
    pub(crate) fn spec(&self, name: &str, template: &Template) -> KeptSpec {
        KeptSpec {
            image: Some(template.root_name(name)),
            prepared: is_prepared(template).then(|| prepared_name(name)),
            mount_path: Some(HOME.to_owned()),
            processes: Processes::Kept,
            ports: Ports::Any,
            files: FileScope::All,
            network: self.network.clone(),
            limits: self.limits,
            ..KeptSpec::default()
        }
    }
}

fn is_prepared(template: &Template) -> bool {
    template.start.is_some() || template.prepared > 0
}

fn prepared_name(template: &str) -> String {
    format!("e2b.{template}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(name: &str) -> Template {
        Template { image: Some(name.to_owned()), ..Template::default() }
    }

    #[test]
    fn template_that_cannot_work_is_refused() {
        let archive = Template { archive: Some("/srv/a.tar".into()), ..Template::default() };
        let started = Template {
            start: Some("serve".to_owned()),
            ready: Some(Ready::Port(49999)),
            ..image("a")
        };
        for right in [&image("a"), &archive, &started, &Template { prepared: 64, ..image("a") }] {
            assert_eq!(right.check("code-interpreter-v1"), Ok(()));
        }
        for wrong in [
            Template::default(),
            Template { archive: Some("/srv/a.tar".into()), ..image("a") },
            Template { archive: Some("a.tar".into()), ..Template::default() },
            Template { start: Some(String::new()), ..image("a") },
            Template { start: None, ..started },
            Template { prepared: 65, ..image("a") },
        ] {
            assert!(wrong.check("base").is_err(), "{wrong:?}");
        }
        assert!(image("a").check("a b").is_err() && image("a").check("").is_err());
    }

    #[test]
    fn sandboxes_of_a_template_are_those_that_wait_for_it() {
        let started = Template { start: Some("serve".to_owned()), ..image("b") };
        let templates = [("base", image("a")), ("other", started)];
        let templates = templates.map(|(name, it)| (name.to_owned(), it)).into();
        let settings = Settings { templates, ..Settings::default() };
        let preparations = settings.preparations();
        let [prepared] = &*preparations else { panic!("one has a process") };
        assert_eq!(
            (&*prepared.name, prepared.count, &prepared.ready),
            ("e2b.other", 0, &Ready::Started)
        );
        assert_eq!(prepared.command, ["/bin/bash", "-l", "-c", "serve"]);
        let spec = settings.spec("other", &settings.templates["other"]);
        assert_eq!(spec.prepared.as_ref(), Some(&prepared.name));
        assert_eq!(prepared.shape.as_deref(), Some(&spec));
        let plain = settings.spec("base", &settings.templates["base"]);
        assert_eq!((plain.prepared, plain.image.as_deref()), (None, Some("a")));
        assert_eq!(settings.roots(Pull::Never).len(), 2);
    }
}
