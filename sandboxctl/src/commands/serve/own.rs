//! This user's own service, which keeps the sandboxes of `sandbox`: where it is, what it says of itself, and
//! when it has nothing more to do.
//!
//! The command that starts it binds its socket, so that no client polls for it: a client that connects is in the
//! queue of the socket. One lock is held by the process that binds or unlinks it. The lock of the data directory
//! is the service's, from its start to the end of its process.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};
use sandbox_api::Failure;
use sandbox_api::service::Time;
use sandbox_controller::Controller;
use sandbox_dirfd::{check_private_dir, create_private_dir};
use sandbox_env::Environment;
use sandbox_service::Service;
use serde::{Deserialize, Serialize};

use crate::cli::root::LocalRootArgs;
use crate::config::{Key, Settings};
use crate::error::Error;

/// The version of what commands and clients rely on in a service of their user: flags, first line, API.
pub const PROTOCOL: u32 = 1;
/// For how long it stays without a sandbox, an execution and a connection.
const UNUSED: Duration = Duration::from_secs(60);
/// How often that is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// The bytes of the log from which on another one is begun. One older is kept.
const MAX_LOG: u64 = 1 << 20;
/// The settings that it has for all sandboxes: who asks for others cannot use it.
pub const FIXED: [Key; 5] =
    [Key::EngineKind, Key::EngineHost, Key::EngineRuntime, Key::Confinement, Key::RootlessLimits];

/// Where it is.
#[derive(Debug, Clone)]
pub struct Place {
    /// The directory of the socket, which ends with the session or the machine.
    runtime: PathBuf,
    /// That of the data and the log.
    lasting: PathBuf,
    /// Those that have to be this user's alone.
    parents: [PathBuf; 2],
}

/// What it says of itself.
#[derive(Debug, Serialize, Deserialize)]
pub struct Record {
    pub protocol: u32,
    pub version: String,
    pub pid: u32,
    pub started_at: Time,
    /// Where it listens.
    pub addresses: Vec<String>,
    /// The [`FIXED`] settings that have a value; the engine is the one that was found.
    pub settings: BTreeMap<String, String>,
    /// What programs run in, where no image is named.
    pub root: LocalRootArgs,
}

impl Record {
    /// That of this process.
    pub fn new(
        controller: &Controller,
        settings: &Settings,
        root: &LocalRootArgs,
        addresses: &[String],
    ) -> Self {
        let value = |key: Key| match key {
            Key::EngineKind => Some(controller.engine().kind.to_string()),
            key => settings.text(key).map(str::to_owned),
        };
        Self {
            protocol: PROTOCOL,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            started_at: Time::now(),
            addresses: addresses.to_vec(),
            settings: FIXED.into_iter().filter_map(|key| Some((key.name(), value(key)?))).collect(),
            root: root.clone(),
        }
    }
}

impl Place {
    pub fn of(environment: &Environment) -> Self {
        let parents = [environment.state_dir(), environment.lasting_state_dir()];
        let [runtime, lasting] = parents.each_ref().map(|parent| parent.join("local"));
        Self { runtime, lasting, parents }
    }

    pub fn socket(&self) -> PathBuf {
        self.runtime.join("sock")
    }

    pub fn data_dir(&self) -> PathBuf {
        self.lasting.join("data")
    }

    /// The log, and the older one.
    pub fn logs(&self) -> [PathBuf; 2] {
        ["log", "log.1"].map(|name| self.lasting.join(name))
    }

    fn record_file(&self) -> PathBuf {
        self.runtime.join("service.json")
    }

    fn failure_file(&self) -> PathBuf {
        self.runtime.join("failure.json")
    }

    /// Makes its directories, or checks that they are this user's alone.
    ///
    /// # Errors
    ///
    /// If they are not.
    pub fn create(&self) -> Result<(), Error> {
        for path in self.parents.iter().chain([&self.runtime, &self.lasting]) {
            create_private_dir(path)
                .map_err(|error| Error::system(path.display().to_string(), error))?;
        }
        Ok(())
    }

    /// Whether it answers at its socket.
    ///
    /// # Errors
    ///
    /// If another user does, or has its directory.
    pub fn is_served(&self) -> Result<bool, Error> {
        let socket = self.socket();
        let failed = |source| Error::System { what: socket.display().to_string(), source };
        let Ok(connection) = UnixStream::connect(&socket) else { return Ok(false) };
        check_private_dir(&self.runtime).map_err(failed)?;
        // The kernel says who listens: the user who bound it.
        let peer = socket_peercred(&connection).map_err(|error| failed(error.into()))?;
        match peer.uid == geteuid() {
            true => Ok(true),
            false => Err(failed(io::Error::other("another user listens there"))),
        }
    }

    /// The lock of the process that binds or unlinks the socket.
    ///
    /// # Errors
    ///
    /// If it cannot be had.
    pub fn lock(&self) -> io::Result<OwnedFd> {
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(self.runtime.join("start.lock"))?;
        rustix::io::retry_on_intr(|| flock(&file, FlockOperation::LockExclusive))?;
        Ok(file.into())
    }

    /// Binds the socket, under the lock, where nothing is served.
    ///
    /// # Errors
    ///
    /// If it cannot be bound.
    pub fn bind(&self) -> io::Result<UnixListener> {
        self.clear();
        let listener = UnixListener::bind(self.socket())?;
        fs::set_permissions(self.socket(), fs::Permissions::from_mode(0o600))?;
        Ok(listener)
    }

    /// Removes what a service has in the directory of its socket.
    fn clear(&self) {
        for file in [self.socket(), self.record_file(), self.failure_file()] {
            _ = fs::remove_file(file);
        }
    }

    /// What the service that runs says of itself; `None` if none has said something.
    pub fn record(&self) -> Option<Record> {
        serde_json::from_slice(&fs::read(self.record_file()).ok()?).ok()
    }

    /// Says it.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn write_record(&self, record: &Record) -> Result<(), Error> {
        self.write(&self.record_file(), record)
    }

    /// What programs run in, in its sandboxes, also in those that an earlier service has left. A command that
    /// starts it names another one, or none.
    ///
    /// # Errors
    ///
    /// If it cannot be kept.
    pub fn root(&self, named: &LocalRootArgs) -> Result<LocalRootArgs, Error> {
        let file = self.lasting.join("root.json");
        if named.is_named() {
            return self.write(&file, named).map(|()| named.clone());
        }
        let kept = fs::read(file).ok().and_then(|kept| serde_json::from_slice(&kept).ok());
        Ok(kept.unwrap_or_default())
    }

    /// Why the service that was started last did not come to its work.
    pub fn failure(&self) -> Option<Failure> {
        serde_json::from_slice(&fs::read(self.failure_file()).ok()?).ok()
    }

    /// Says it.
    pub fn write_failure(&self, failure: &Failure) {
        // Then it is in the log alone.
        _ = self.write(&self.failure_file(), failure);
    }

    /// It came to its work after all.
    pub fn forget_failure(&self) {
        _ = fs::remove_file(self.failure_file());
    }

    fn write(&self, file: &Path, value: &impl Serialize) -> Result<(), Error> {
        let failed = |source| Error::System { what: file.display().to_string(), source };
        let fresh = file.with_extension("new");
        let json = serde_json::to_vec(value).map_err(|error| failed(error.into()))?;
        fs::write(&fresh, json).and_then(|()| fs::rename(&fresh, file)).map_err(failed)
    }

    /// The log, to which lines are added.
    ///
    /// # Errors
    ///
    /// If it cannot be opened.
    pub fn open_log(&self) -> io::Result<File> {
        let [log, older] = self.logs();
        if fs::metadata(&log).is_ok_and(|found| found.len() > MAX_LOG) {
            fs::rename(&log, older)?;
        }
        File::options().create(true).append(true).mode(0o600).open(log)
    }

    /// Begins another log, if this one is full.
    fn rotate_log(&self) {
        let [log, _] = self.logs();
        if fs::metadata(log).is_ok_and(|found| found.len() > MAX_LOG)
            && let Ok(fresh) = self.open_log()
        {
            _ = dup2_stdout(&fresh);
            _ = dup2_stderr(&fresh);
        }
    }

    /// Returns when the service has had nothing to do for a while. Its socket is gone then.
    pub async fn unused(&self, service: &Service, connections: impl Fn() -> usize) {
        let is_used = || {
            let counters = service.counters();
            counters.sandboxes + counters.running + counters.queued > 0 || connections() > 0
        };
        let mut since = Instant::now();
        loop {
            tokio::time::sleep(LOOK).await;
            self.rotate_log();
            if is_used() {
                since = Instant::now();
            } else if since.elapsed() >= UNUSED {
                let lock = tokio::task::block_in_place(|| self.lock());
                // A client that connected since then is served first.
                if lock.is_ok() && !is_used() {
                    self.clear();
                    return;
                }
            }
        }
    }

    /// Removes the socket, before the service ends for another reason.
    pub fn leave(&self) {
        let lock = tokio::task::block_in_place(|| self.lock());
        let is_own = |record: Record| record.pid == std::process::id();
        if lock.is_ok() && self.record().is_some_and(is_own) {
            self.clear();
        }
    }
}

/// The listener that is passed as stdin.
///
/// # Errors
///
/// If there is none.
pub fn passed_listener() -> io::Result<OwnedFd> {
    let listener = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    dup2_stdin(File::open("/dev/null")?)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(folder: &Path) -> Place {
        let folder = folder.to_str().unwrap();
        let uid = geteuid().as_raw();
        let variables = [("XDG_RUNTIME_DIR", folder), ("XDG_STATE_HOME", folder)];
        let place = Place::of(&Environment::new(Path::new("/"), uid, &variables));
        place.create().unwrap();
        place
    }

    #[test]
    fn socket_is_bound_again_where_a_killed_service_left_it() {
        let folder = tempfile::tempdir().unwrap();
        let place = place(folder.path());
        assert!(!place.is_served().unwrap());
        let listener = place.bind().unwrap();
        assert!(place.is_served().unwrap());
        place.write_failure(&Failure::new(sandbox_api::ErrorKind::Engine, "no", None));
        assert_eq!(place.failure().unwrap().message, "no");
        drop(listener);
        assert!(!place.is_served().unwrap() && place.socket().exists());
        let _listener = place.bind().unwrap();
        assert!(place.is_served().unwrap() && place.failure().is_none());
    }

    #[test]
    fn directories_that_others_may_enter_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let place = place(folder.path());
        let _listener = place.bind().unwrap();
        let parent = folder.path().join("sandboxctl");
        let own = parent.join("local");
        for directory in [&parent, &own] {
            let found = fs::metadata(directory).unwrap().permissions().mode() & 0o777;
            assert_eq!(found, 0o700, "{}", directory.display());
            fs::set_permissions(directory, fs::Permissions::from_mode(0o722)).unwrap();
            let refused = place.create().unwrap_err().to_text();
            assert!(refused.contains("other users may enter it"), "{refused}");
            // The service that answers there may be another one.
            assert_eq!(place.is_served().is_err(), *directory == own);
            fs::set_permissions(directory, fs::Permissions::from_mode(0o700)).unwrap();
        }
        assert!(place.is_served().unwrap());
    }

    #[test]
    fn root_stays_until_another_one_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let place = place(folder.path());
        let none = LocalRootArgs::default();
        assert_eq!(place.root(&none).unwrap(), none);
        let named = LocalRootArgs { rootfs: Some("/x".into()), image_archive: None };
        assert_eq!(place.root(&named).unwrap(), named);
        assert_eq!(place.root(&none).unwrap(), named);
    }

    #[test]
    fn full_log_is_kept_once() {
        let folder = tempfile::tempdir().unwrap();
        let place = place(folder.path());
        let [log, older] = place.logs();
        for text in ["a", "b"] {
            fs::write(&log, text.repeat(MAX_LOG as usize + 1)).unwrap();
            place.open_log().unwrap();
            assert_eq!(fs::metadata(&log).unwrap().len(), 0);
            assert!(fs::read_to_string(&older).unwrap().starts_with(text));
        }
    }
}
