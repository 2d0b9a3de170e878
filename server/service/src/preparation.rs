//! Processes that sandboxes have before they are asked for, as an operator names them. Pure.

use std::collections::BTreeMap;

use sandbox_api::process::SCROLLBACKS;
use sandbox_api::service::{CommandRequest, Content, KeptSpec};
use sandbox_api::{ByteSize, ProcessRequest, Processes};
use serde::{Deserialize, Serialize};

/// The most sandboxes of one preparation, and the longest name.
const MAX_COUNT: u16 = 64;
const MAX_NAME: usize = 64;

/// A process that sandboxes have before a caller asks for them: `[[pool.prepared]]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preparation {
    /// By which `spec.prepared` of a request names it; the tag of its process.
    pub name: String,
    /// The image; by default what commands run in that name none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// The program, and its arguments. Its stdin stays open.
    pub command: Vec<String>,
    /// When it is ready.
    pub ready: Ready,
    /// How many sandboxes wait with it.
    pub count: u16,
    /// What else its sandboxes are, for a front end that makes all of them alike. Then there need not be a command,
    /// and without one a request may have an environment: it is that of later commands.
    #[serde(skip)]
    pub shape: Option<Box<KeptSpec>>,
}

/// When a process is ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ready {
    /// When it has printed this.
    Text(String),
    /// When something in its sandbox listens on this TCP port.
    Port(u16),
    /// When it has been started.
    Started,
}

impl Preparation {
    /// What is wrong with it.
    ///
    /// # Errors
    ///
    /// The problem.
    pub fn check(&self) -> Result<(), &'static str> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let Self { name, image: _, command, ready, count, shape: _ } = self;
        if !(1..=MAX_NAME).contains(&name.len()) || !name.bytes().all(is_plain) {
            return Err("a name has 1 to 64 letters, digits, '.', '_' and '-'");
        }
        if command.first().is_none_or(String::is_empty) {
            return Err("a command names a program");
        }
        if matches!(ready, Ready::Text(text) if text.is_empty()) {
            return Err("a text is not empty");
        }
        match (1..=MAX_COUNT).contains(count) {
            true => Ok(()),
            false => Err("a count is 1 to 64"),
        }
    }

    /// The spec of the sandboxes that wait.
    pub(crate) fn spec(&self) -> KeptSpec {
        KeptSpec {
            prepared: Some(self.name.clone()),
            image: self.image.clone(),
            processes: Processes::Kept,
            ..self.shape.as_deref().cloned().unwrap_or_default()
        }
    }

    /// Whether one of the sandboxes that wait is what this spec asks for.
    pub(crate) fn is_for(&self, spec: &KeptSpec) -> bool {
        match &self.shape {
            None => *spec == self.spec(),
            // What runs already has no other environment.
            Some(_) if !self.command.is_empty() => *spec == self.spec(),
            Some(_) => KeptSpec { env: BTreeMap::new(), ..spec.clone() } == self.spec(),
        }
    }

    /// The request for its process.
    pub(crate) fn process(&self) -> ProcessRequest {
        let mut words = self.command.iter().map(|word| Content(word.clone().into_bytes()));
        let command = CommandRequest {
            program: words.next(),
            args: words.collect(),
            ..CommandRequest::default()
        };
        let tag = Some(self.name.clone());
        // A front end repeats none of its output, which counts as long as the sandbox lives.
        let scrollback = self.shape.is_some().then(|| ByteSize::b(*SCROLLBACKS.start()));
        ProcessRequest { command, tag, stdin: true, scrollback, ..ProcessRequest::default() }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Of an interpreter.
    pub(crate) fn preparation() -> Preparation {
        Preparation {
            name: "numpy".to_owned(),
            image: None,
            command: vec!["python3".to_owned(), "-i".to_owned()],
            ready: Ready::Text(">>> ".to_owned()),
            count: 2,
            shape: None,
        }
    }

    #[test]
    fn preparation_that_cannot_work_is_refused() {
        assert_eq!(preparation().check(), Ok(()));
        assert_eq!(Preparation { count: 64, ..preparation() }.check(), Ok(()));
        for wrong in [
            Preparation { name: String::new(), ..preparation() },
            Preparation { name: "a b".to_owned(), ..preparation() },
            Preparation { command: Vec::new(), ..preparation() },
            Preparation { ready: Ready::Text(String::new()), ..preparation() },
            Preparation { count: 0, ..preparation() },
            Preparation { count: 65, ..preparation() },
        ] {
            assert!(wrong.check().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn environment_of_a_request_matters_to_what_runs_already() {
        let env = BTreeMap::from([("A".to_owned(), Content(b"1".to_vec()))]);
        let shape = KeptSpec { mount_path: Some("/home/user".to_owned()), ..KeptSpec::default() };
        let alike = Preparation { shape: Some(Box::new(shape)), ..preparation() };
        let empty = Preparation { command: Vec::new(), ..alike.clone() };
        for (preparation, is_for) in [(preparation(), false), (alike, false), (empty, true)] {
            let spec = preparation.spec();
            assert!(preparation.is_for(&spec));
            let other = KeptSpec { env: env.clone(), ..spec.clone() };
            assert_eq!(preparation.is_for(&other), is_for);
            let other = KeptSpec { workdir: Some("/tmp".to_owned()), ..spec };
            assert!(!preparation.is_for(&other));
        }
    }
}
