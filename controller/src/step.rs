//! The steps of a sandbox's life, each with its time limit.

use std::time::Duration;

/// A step of a sandbox's life, or another call to the engine. Each has its own time limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Step {
    /// Connecting to an engine and identifying it.
    Connect,
    /// Finding or building the sandbox image.
    Image,
    /// Pulling, unpacking or inspecting the root filesystem that commands run in.
    Programs,
    /// Creating the container.
    Create,
    /// Attaching to the container's stdin and stdout.
    Attach,
    /// Starting the container.
    Start,
    /// The agent's answer to `hello`.
    Hello,
    /// The agent's answer to `configure`.
    Configure,
    /// The agent's answer to `shutdown`.
    Shutdown,
    /// Freezing the container.
    Pause,
    /// Letting a frozen container go on.
    Resume,
    /// Killing the container.
    Kill,
    /// Waiting for the container to exit.
    Exit,
    /// Reading how the container exited.
    Evidence,
    /// Removing the container.
    Remove,
    /// Removing an image.
    RemoveImage,
    /// Listing containers or images.
    List,
}

impl Step {
    /// Its name in messages.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Connect => "connecting to the engine",
            Self::Image => "preparing the sandbox image",
            Self::Programs => "preparing the image",
            Self::Create => "creating the container",
            Self::Attach => "attaching to the container",
            Self::Start => "starting the container",
            Self::Hello => "greeting the agent",
            Self::Configure => "configuring the agent",
            Self::Shutdown => "shutting the agent down",
            Self::Pause => "pausing the container",
            Self::Resume => "resuming the container",
            Self::Kill => "killing the container",
            Self::Exit => "waiting for the container's end",
            Self::Evidence => "reading how the container ended",
            Self::Remove => "removing the container",
            Self::RemoveImage => "removing the image",
            Self::List => "listing what the engine has",
        }
    }

    /// The time limit of the step. It is generous: an engine under load is slow, not dead.
    #[must_use]
    pub const fn time_limit(self) -> Duration {
        let seconds = match self {
            Self::Connect => return sandbox_engine::CONNECT_TIMEOUT,
            Self::Image => 120,
            // A slow registry, an image of gigabytes.
            Self::Programs => 1800,
            Self::Create | Self::Start | Self::Remove | Self::RemoveImage => 30,
            Self::Attach | Self::Hello | Self::Configure | Self::Kill | Self::Exit => 10,
            Self::Evidence | Self::List | Self::Pause | Self::Resume => 10,
            Self::Shutdown => 2,
        };
        Duration::from_secs(seconds)
    }
}

impl std::fmt::Display for Step {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.pad(self.as_str())
    }
}
