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
use std::sync::{Arc, PoisonError, RwLock};

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
    /// Of all of them, of those that were given, and of those that are injected.
    patterns: Option<Arc<Patterns>>,
    apart: Option<[Patterns; 2]>,
}

impl Redactions {
    /// Adds the secrets of a script or a command, before it is sent.
    pub fn add(&self, secrets: &Secrets) {
        self.add_to(|known| &mut known.given, secrets);
    }

    /// Adds secrets that no guest has: where it could see what is replaced, they are replaced whole, so that
    /// it cannot guess them in parts.
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
        known.patterns = Some(Arc::new(Patterns::of(known.given.iter().chain(&known.injected))));
        known.apart = Some([&known.given, &known.injected].map(Patterns::of));
    }

    /// Replaces the secrets in a text of a guest's that it can see again: no part of an injected one.
    pub fn visible(&self, text: &mut String) {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if let Some([given, injected]) = &known.apart {
            given.text(text);
            injected.whole(text);
        }
    }

    /// What is looked for; `None` without any secret.
    pub fn patterns(&self) -> Option<Arc<Patterns>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).patterns.clone()
    }

    /// Bytes without the secrets.
    pub fn bytes<'a>(&self, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        self.patterns().map_or(Cow::Borrowed(bytes), |patterns| patterns.bytes(bytes))
    }

    /// Replaces the secrets in a text.
    pub fn text(&self, text: &mut String) {
        if let Some(patterns) = self.patterns() {
            patterns.text(text);
        }
    }
}
