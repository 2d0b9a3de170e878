//! Sandboxes that were started ahead with a process in them, each for one creation: which wait, and who takes one.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use sandbox_api::Processes;
use sandbox_api::service::KeptSpec;
use tokio::sync::Notify;

use crate::error::ServiceError;
use crate::launcher::Guest;
use crate::lock;
use crate::preparation::Preparation;

/// The sandboxes that wait, by their preparations.
pub(crate) struct PreparedSandboxes(Vec<Arc<Group>>);

/// Those of a preparation.
pub(crate) struct Group {
    pub preparation: Preparation,
    pub waiting: Mutex<Waiting>,
    /// One was taken.
    pub taken: Notify,
}

/// What waits of a preparation.
#[derive(Default)]
pub(crate) struct Waiting {
    pub sandboxes: VecDeque<WaitingSandbox>,
    /// The service ends: nothing is to wait any more.
    pub is_closed: bool,
}

/// One that waits.
pub(crate) struct WaitingSandbox {
    pub id: String,
    pub guest: Arc<dyn Guest>,
    pub since: Instant,
}

/// One that was taken for a creation. It waits again if nothing was created.
pub(crate) struct Claimed {
    group: Arc<Group>,
    sandbox: Option<WaitingSandbox>,
}

impl Claimed {
    /// Its id, which is that of the sandbox to create.
    pub fn id(&self) -> &str {
        self.sandbox.as_ref().map_or("", |sandbox| &sandbox.id)
    }

    /// Its container, which is the created sandbox's from now on.
    pub fn into_guest(mut self) -> Option<Arc<dyn Guest>> {
        self.sandbox.take().map(|sandbox| sandbox.guest)
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        if let Some(sandbox) = self.sandbox.take() {
            lock(&self.group.waiting).sandboxes.push_front(sandbox);
        }
        self.group.taken.notify_one();
    }
}

impl PreparedSandboxes {
    pub fn new(preparations: &[Preparation]) -> Self {
        let group = |preparation: &Preparation| Group {
            preparation: preparation.clone(),
            waiting: Mutex::default(),
            taken: Notify::new(),
        };
        Self(preparations.iter().map(group).map(Arc::new).collect())
    }

    /// All of them.
    pub fn groups(&self) -> &[Arc<Group>] {
        &self.0
    }

    pub fn group(&self, name: &str) -> Option<&Arc<Group>> {
        self.0.iter().find(|group| group.preparation.name == name)
    }

    /// Makes a request that names a preparation ask for its image and its process.
    pub fn resolve(&self, spec: &mut KeptSpec) -> Result<(), ServiceError> {
        let Some(name) = &spec.prepared else { return Ok(()) };
        let Some(group) = self.group(name) else {
            let problem = format!("'{name}' is not prepared here");
            return Err(ServiceError::invalid("spec.prepared", problem)
                .with_hint("[[pool.prepared]] in the server's configuration lists what is"));
        };
        if spec.image.is_some() && spec.image != group.preparation.image {
            let problem = format!("'{name}' has an image of its own");
            return Err(ServiceError::invalid("spec.image", problem));
        }
        spec.image.clone_from(&group.preparation.image);
        spec.processes = Processes::Kept;
        Ok(())
    }

    /// Takes one for a creation with this spec, if one waits that is exactly this.
    pub fn claim(&self, spec: &KeptSpec) -> Option<Claimed> {
        let group = self.group(spec.prepared.as_deref()?)?;
        if !group.preparation.is_for(spec) {
            return None;
        }
        let mut waiting = lock(&group.waiting);
        // Those that have ended are removed by who starts others.
        let at = waiting.sandboxes.iter().position(|it| !it.guest.has_ended())?;
        let sandbox = waiting.sandboxes.remove(at);
        Some(Claimed { group: group.clone(), sandbox })
    }

    /// The ids of those that wait.
    pub fn ids(&self) -> Vec<String> {
        let of_group = |group: &Arc<Group>| {
            let waiting = lock(&group.waiting);
            waiting.sandboxes.iter().map(|sandbox| sandbox.id.clone()).collect::<Vec<_>>()
        };
        self.0.iter().flat_map(of_group).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preparation::tests::preparation;

    #[test]
    fn request_that_names_a_preparation_is_for_its_image_and_process() {
        let image = Some("python:3.13".to_owned());
        let prepared = [Preparation { image: image.clone(), ..preparation() }];
        let prepared = PreparedSandboxes::new(&prepared);
        let asked = |name: &str| KeptSpec { prepared: Some(name.to_owned()), ..Default::default() };
        let mut spec = asked("numpy");
        prepared.resolve(&mut spec).unwrap();
        assert_eq!(spec, prepared.0[0].preparation.spec());
        assert_eq!((&spec.image, spec.processes), (&image, Processes::Kept));
        assert!(prepared.claim(&spec).is_none(), "none waits");
        assert!(prepared.resolve(&mut asked("other")).is_err());
        let mut other = KeptSpec { image: Some("debian:13".to_owned()), ..asked("numpy") };
        assert!(prepared.resolve(&mut other).is_err());
        prepared.resolve(&mut KeptSpec::default()).unwrap();
    }
}
