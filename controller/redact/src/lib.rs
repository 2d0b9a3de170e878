//! Secrets replaced by value (`***`) in what a sandbox says: log entries, results, messages, names,
//! and byte streams that arrive in pieces.
//!
//! It runs on the host, because a guest is hostile. It is no protection against a hostile guest,
//! which can encode a secret. It protects against accidents, such as a program that prints its
//! environment.
//!
//! [`Patterns`] is what is looked for, [`Stream`] replaces it in a stream, [`Console`] in the output
//! of a command; [`Redactions`] has the secrets of one sandbox for its lifetime.

#![forbid(unsafe_code)]

mod console;
mod patterns;
mod results;
mod stream;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use sandbox_api::Secrets;

pub use console::Console;
pub use patterns::{MASK, Patterns};
pub use stream::Stream;

impl Patterns {
    /// The patterns of all of these secrets.
    pub fn of<'a>(secrets: impl IntoIterator<Item = &'a Secrets>) -> Self {
        let all = secrets.into_iter().flat_map(Secrets::iter);
        Self::new(all.map(|(_, value)| value.as_bytes()))
    }
}

/// The secrets that a sandbox has been given so far. What one command has written another one may
/// print, so all of them are replaced until the sandbox ends.
#[derive(Debug, Default)]
pub struct Redactions(RwLock<Known>);

#[derive(Debug, Default)]
struct Known {
    given: Vec<Secrets>,
    injected: Vec<Secrets>,
    /// Of those that were given, and of those that are injected.
    patterns: Option<Arc<Patterns>>,
    whole: Option<Arc<Patterns>>,
}

impl Redactions {
    /// Adds the secrets of a script or a command, before it is sent.
    pub fn add(&self, secrets: &Secrets) {
        self.add_to(|known| &mut known.given, secrets);
    }

    /// Adds secrets that no guest has. They are replaced in what is finished, and whole: what a stream holds
    /// back, and what is replaced of a part, would say whether a guess begins with a secret.
    pub fn add_injected(&self, secrets: &Secrets) {
        self.add_to(|known| &mut known.injected, secrets);
    }

    fn add_to(&self, kind: fn(&mut Known) -> &mut Vec<Secrets>, secrets: &Secrets) {
        if secrets.is_empty() {
            return;
        }
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if kind(&mut known).contains(secrets) {
            return;
        }
        kind(&mut known).push(secrets.clone());
        let of =
            |secrets: &Vec<Secrets>| (!secrets.is_empty()).then(|| Arc::new(Patterns::of(secrets)));
        (known.patterns, known.whole) = (of(&known.given), of(&known.injected));
    }

    /// What is looked for in a stream; `None` without any secret that was given.
    pub fn patterns(&self) -> Option<Arc<Patterns>> {
        self.known().patterns.clone()
    }

    /// Bytes without the secrets.
    pub fn bytes<'a>(&self, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        self.finished().bytes(bytes)
    }

    /// Replaces the secrets in a text.
    pub fn text(&self, text: &mut String) {
        self.finished().text(text);
    }

    /// What is looked for in what is finished.
    fn finished(&self) -> Finished {
        let known = self.known();
        Finished { given: known.patterns.clone(), injected: known.whole.clone() }
    }

    fn known(&self) -> RwLockReadGuard<'_, Known> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The patterns for a text that has come to its end.
struct Finished {
    given: Option<Arc<Patterns>>,
    injected: Option<Arc<Patterns>>,
}

impl Finished {
    fn bytes<'a>(&self, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        let shown = self.given.as_ref().map_or(Cow::Borrowed(bytes), |given| given.bytes(bytes));
        match self.injected.as_ref().and_then(|injected| injected.whole(&shown)) {
            Some(replaced) => Cow::Owned(replaced),
            None => shown,
        }
    }

    fn text(&self, text: &mut String) {
        if let Cow::Owned(replaced) = self.bytes(text.as_bytes()) {
            *text = stream::to_text(replaced);
        }
    }
}
