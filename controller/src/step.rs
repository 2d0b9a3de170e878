//! The steps of a sandbox's life, each with its time limit.

use std::time::Duration;

sandbox_protocol::words! {
    /// A step of a sandbox's life, or another call to the engine. Each has its own time limit.
    #[non_exhaustive]
    pub enum Step {
        /// Connecting to an engine and identifying it.
        Connect = "connecting to the engine",
        /// Finding or building the sandbox image.
        Image = "preparing the sandbox image",
        /// Pulling, unpacking or inspecting the root filesystem that commands run in.
        Programs = "preparing the image",
        /// Creating the container.
        Create = "creating the container",
        /// Attaching to the container's stdin and stdout.
        Attach = "attaching to the container",
        /// Starting the container.
        Start = "starting the container",
        /// The agent's answer to `hello`.
        Hello = "greeting the agent",
        /// The agent's answer to `configure`.
        Configure = "configuring the agent",
        /// The agent's answer to `shutdown`.
        Shutdown = "shutting the agent down",
        /// Freezing the container.
        Pause = "pausing the container",
        /// Letting a frozen container go on.
        Resume = "resuming the container",
        /// Killing the container.
        Kill = "killing the container",
        /// Waiting for the container to exit.
        Exit = "waiting for the container's end",
        /// Reading how the container exited.
        Evidence = "reading how the container ended",
        /// Removing the container.
        Remove = "removing the container",
        /// Removing an image.
        RemoveImage = "removing the image",
        /// Listing containers or images.
        List = "listing what the engine has",
    }
}

impl Step {
    /// The time limit of the step. It is generous: an engine under load is slow, not dead.
    pub const fn time_limit(self) -> Duration {
        let seconds = match self {
            Self::Connect => return sandbox_engine::CONNECT_TIMEOUT,
            Self::Image => 120,
            // Docker answers them when its other work with images lets it, such as the deletion of
            // layers: tens of seconds on a busy disk.
            Self::List | Self::RemoveImage => 120,
            // A slow registry, an image of gigabytes.
            Self::Programs => 1800,
            Self::Create | Self::Start | Self::Remove => 30,
            Self::Attach | Self::Hello | Self::Configure | Self::Kill | Self::Exit => 10,
            Self::Evidence | Self::Pause | Self::Resume => 10,
            Self::Shutdown => 2,
        };
        Duration::from_secs(seconds)
    }
}
