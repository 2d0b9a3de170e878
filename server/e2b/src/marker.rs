//! What E2B's API knows of a sandbox and the service does not: one member of its metadata.

use sandbox_api::service::{SandboxStatus, SandboxView, Time};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The member, which callers neither see nor set by E2B's API.
pub(crate) const MARKER: &str = "sandboxctl.e2b";

/// What happens to a sandbox when its time is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum OnTimeout {
    /// It is removed.
    #[default]
    Kill,
    /// It is frozen, and the service keeps it for as long as it keeps any.
    Pause,
}

/// What is known of a sandbox.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Marker {
    /// The template that it was made of.
    pub template: String,
    /// How long it was to live when it was created or resumed last, in seconds.
    pub timeout: u64,
    pub on_timeout: OnTimeout,
    /// When it is paused, if it is to be.
    pub ends_at: Option<Time>,
    /// Whether a request to it resumes it.
    pub auto_resume: bool,
    pub is_paused: bool,
    /// Whether its ports need the traffic access token.
    pub is_private: bool,
    /// What its programs see as the host of requests; `${PORT}` is the port.
    pub mask_host: Option<String>,
    /// As it was asked for.
    pub internet: Option<bool>,
    /// As it was asked for.
    pub network: Option<Value>,
}

impl Marker {
    /// That of a sandbox, if it is one of E2B's.
    pub fn of(metadata: &Map<String, Value>) -> Option<Self> {
        Self::deserialize(metadata.get(MARKER)?).ok()
    }

    /// The metadata with this in it.
    pub fn put(&self, metadata: &mut Map<String, Value>) {
        let value = serde_json::to_value(self).unwrap_or_default();
        metadata.insert(MARKER.to_owned(), value);
    }

    /// Whether its sandbox is to be frozen: its time is over, and it is to be paused then; or it is paused, and was
    /// thawed by what was let in before that.
    pub fn is_to_be_frozen(&self, view: &SandboxView, now: Time) -> bool {
        let is_over = self.ends_at.is_some_and(|end| end <= now);
        match self.is_paused {
            true => view.status == SandboxStatus::Ready,
            false => is_over && self.on_timeout == OnTimeout::Pause,
        }
    }

    /// When the time of its sandbox is over.
    pub fn end(&self, view: &SandboxView) -> Time {
        match self.on_timeout {
            OnTimeout::Pause => self.ends_at.unwrap_or(view.expires_at),
            OnTimeout::Kill => view.expires_at,
        }
    }
}
