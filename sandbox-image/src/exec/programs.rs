//! What all commands of a sandbox share, and the permission to run one.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use sandbox_protocol::argv::AgentArgs;
use sandbox_protocol::message::{Ca, ListeningPort};
use sandbox_protocol::{ErrorKind, WireError};

use super::certificates;
use super::command::{Defaults, own_name};
use super::reaper::Reaper;
use super::signs::OwnPlaces;
use super::spawner::Spawner;
use super::tree::Marks;
use crate::confine::{Layers, seccomp};
use crate::proxy::{Listening, Proxy};

/// What commands need that must be opened before the agent is confined.
#[derive(Debug)]
pub struct ExecContext {
    pub(super) defaults: Defaults,
    pub(super) marks: Marks,
    pub(super) layers: Arc<Layers>,
    /// The stdin of a command without input.
    pub(super) null: Arc<OwnedFd>,
    /// The file systems of their own that commands may write to.
    pub(super) places: OwnPlaces,
    listening: Listening,
}

impl ExecContext {
    /// Opens it.
    ///
    /// # Errors
    ///
    /// If there is no `/dev/null`, or `/proc` does not show the running processes.
    pub fn prepare(args: &AgentArgs, proxy: Option<&TcpListener>) -> io::Result<Self> {
        let mut defaults = Defaults::new(std::env::vars_os(), args.home.clone(), args.base());
        defaults.add_what_programs_expect(&own_name());
        if let Some(listener) = proxy {
            defaults.set_proxy(listener.local_addr()?);
        }
        let null = Arc::new(OwnedFd::from(File::open("/dev/null")?));
        let home = args.home.as_ref().map(|home| Path::new(OsStr::from_bytes(home.as_bytes())));
        let (marks, places) = (Marks::new()?, OwnPlaces::open(home, args.disk));
        let listening = Listening::open();
        Ok(Self { defaults, marks, layers: Arc::default(), null, places, listening })
    }

    /// Puts every command under these layers.
    #[must_use]
    pub fn under(self, layers: Layers) -> Self {
        Self { layers: Arc::new(layers), ..self }
    }
}

/// Runs commands.
pub struct Programs {
    pub(super) context: ExecContext,
    pub(super) spawner: Spawner,
    pub(super) reaper: Arc<Reaper>,
    /// Their way to the network, if they have one.
    proxy: Option<Arc<Proxy>>,
    running: Mutex<usize>,
    /// CPU time in milliseconds of the commands that scripts ran.
    pub(super) scripts_cpu: AtomicU64,
}

impl Programs {
    /// Starts the reaper thread, and restricts the one that starts commands.
    ///
    /// # Errors
    ///
    /// If a thread cannot be started, or the kernel refuses a filter.
    pub fn start(
        context: ExecContext,
        spawner: Spawner,
        proxy: Option<Arc<Proxy>>,
    ) -> io::Result<Arc<Self>> {
        let layers = context.layers.clone();
        let restricted = spawner.run(move || layers.inherited.iter().try_for_each(seccomp::apply));
        restricted.map_err(io::Error::other)?;
        let (reaper, running) = (Reaper::start()?, Mutex::default());
        let scripts_cpu = AtomicU64::new(0);
        Ok(Arc::new(Self { context, spawner, reaper, proxy, running, scripts_cpu }))
    }

    /// Lets commands trust this authority, beside those of the image. Before the first one.
    ///
    /// # Errors
    ///
    /// If its files cannot be written.
    pub fn trust(&self, ca: &Ca) -> Result<(), WireError> {
        let defaults = &self.context.defaults;
        let of_image = |name: &str| defaults.variable(name.as_bytes());
        let trusted = certificates::install(&ca.certificate, of_image).map_err(|error| {
            let message = format!("cannot write the certificates to /tmp: {error}");
            WireError::new(ErrorKind::Internal, message)
        })?;
        let trusted = trusted.into_iter().map(|(name, path)| (name.into(), path.into()));
        let added = ca.variables.iter();
        let added = added.map(|it| (it.name.as_bytes().to_vec(), it.value.as_bytes().to_vec()));
        defaults.add(trusted.chain(added));
        Ok(())
    }

    /// The sockets that listen in the sandbox, but for the proxy's.
    pub fn listening(&self) -> Vec<ListeningPort> {
        self.context.listening.ports(self.proxy.as_ref().and_then(|proxy| proxy.port))
    }

    /// CPU time in milliseconds of the commands that scripts ran and that have ended.
    pub fn scripts_cpu(&self) -> u64 {
        self.scripts_cpu.load(Ordering::Relaxed)
    }
}

/// Permission to run. Only one at a time if the kernel cannot distinguish commands. The proxy has
/// clients while there is one.
pub struct RunningPermit(Arc<Programs>);

impl RunningPermit {
    /// Takes one.
    ///
    /// # Errors
    ///
    /// `busy` if there is none.
    pub fn take(programs: &Arc<Programs>) -> Result<Self, WireError> {
        let mut running = programs.running.lock().unwrap();
        if *running > 0 && !programs.context.marks.tell_apart() {
            let message =
                "another program is running, and this kernel cannot distinguish their processes";
            return Err(WireError::busy(message));
        }
        if *running == 0 {
            programs.proxy.iter().for_each(|proxy| proxy.accept_clients());
        }
        *running += 1;
        Ok(Self(programs.clone()))
    }

    /// What it was taken of.
    pub fn programs(&self) -> &Programs {
        &self.0
    }
}

impl Drop for RunningPermit {
    fn drop(&mut self) {
        // Held: a command that starts meanwhile keeps its connections.
        let mut running = self.0.running.lock().unwrap();
        *running -= 1;
        if *running == 0 {
            self.0.proxy.iter().for_each(|proxy| proxy.drop_clients());
        }
    }
}
