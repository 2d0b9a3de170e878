//! The controller's side of a helper process, which launches and serves a container, and exits with
//! it.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{Pid, PidfdFlags, Signal};
use sandbox_helper::wire::{self, Reply, Request};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::{JoinHandle, spawn_blocking};

use crate::error::EngineError;
use crate::lock;
use crate::program::ProgramOnce;
use crate::store::HELPER_NAME;

/// The variable that names a point of a launch.
#[cfg(feature = "failpoints")]
const FAILPOINT: &str = "SANDBOX_FAILPOINT";

/// The number of spare helpers in a controller that creates many containers.
const SPARES: usize = 2;

/// A running helper. When this is dropped, it removes its container and exits.
#[derive(Debug)]
pub(super) struct Helper {
    socket: AsyncFd<OwnedFd>,
    pidfd: OwnedFd,
    exited: JoinHandle<()>,
    /// The number of answers still to come, including those whose callers did not wait.
    unanswered: usize,
}

impl Helper {
    /// Sends a request, without waiting for its answer. If the caller stops waiting, the helper may have
    /// a part of it: it is of no use any more.
    pub async fn send(
        &self,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), EngineError> {
        let packets = wire::packets(request, descriptors).map_err(|error| lost(&error))?;
        for packet in packets {
            let sent = self.socket.async_io(Interest::WRITABLE, |socket| packet.send(socket));
            sent.await.map_err(|error| lost(&error))?;
        }
        Ok(())
    }

    /// Sends a request and waits for its answer. If the caller stops waiting, the next call skips
    /// that answer.
    pub async fn call(
        &mut self,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(Reply, Vec<OwnedFd>), EngineError> {
        self.send(request, descriptors).await?;
        self.unanswered += 1;
        loop {
            let answer = self.socket.async_io(Interest::READABLE, receive).await;
            let answer = answer.map_err(|error| lost(&error))?;
            self.unanswered -= 1;
            match answer {
                _ if self.unanswered > 0 => {}
                (Reply::Failed { reason }, _) => return Err(EngineError::Refused(reason)),
                answer => return Ok(answer),
            }
        }
    }

    /// Waits for it to exit, so that no child process is left for others to reap.
    pub async fn exited(&mut self) {
        _ = (&mut self.exited).await;
    }

    /// Kills it without a request; its container dies with it.
    pub fn kill(&self) {
        _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
    }
}

fn receive(socket: &OwnedFd) -> io::Result<(Reply, Vec<OwnedFd>)> {
    wire::receive(socket)?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

fn lost(error: &io::Error) -> EngineError {
    EngineError::Connection(format!("the helper is gone: {error}"))
}

/// Starts helpers, some of them before their containers are requested: starting one takes about as
/// long as creating a container.
#[derive(Debug)]
pub(super) struct Helpers {
    program: ProgramOnce,
    data_dir: PathBuf,
    /// Where control groups are mounted; none without root.
    groups: Vec<PathBuf>,
    spares: Mutex<Spares>,
}

#[derive(Debug, Default)]
struct Spares {
    ready: Vec<Helper>,
    starting: usize,
    /// The number of requested containers.
    taken: usize,
}

impl Spares {
    /// If there was a second container, a third is likely.
    const fn expect_more(&self) -> bool {
        self.taken > 1
    }
}

impl Helpers {
    pub fn new(data_dir: PathBuf, groups: Vec<PathBuf>) -> Arc<Self> {
        let (program, spares) = (ProgramOnce::helper(), Mutex::default());
        Arc::new(Self { program, data_dir, groups, spares })
    }

    /// What they execute.
    pub const fn program(&self) -> &ProgramOnce {
        &self.program
    }

    /// Starts the helper for the first container.
    pub fn start_ahead(&self) {
        // If it cannot be started, `take` returns the error.
        if let Ok(helper) = self.start() {
            lock(&self.spares).ready.push(helper);
        }
    }

    /// Whether further containers are likely.
    pub fn expect_more(&self) -> bool {
        lock(&self.spares).expect_more()
    }

    /// Returns a helper that serves no container yet.
    pub async fn take(self: &Arc<Self>) -> Result<Helper, EngineError> {
        let (ready, missing) = {
            let mut spares = lock(&self.spares);
            spares.taken += 1;
            let ready = spares.ready.pop();
            let wanted = if spares.expect_more() { SPARES } else { 0 };
            let missing = wanted.saturating_sub(spares.ready.len() + spares.starting);
            spares.starting += missing;
            (ready, missing)
        };
        for _ in 0..missing {
            let helpers = self.clone();
            spawn_blocking(move || {
                let started = helpers.start();
                let mut spares = lock(&helpers.spares);
                spares.starting -= 1;
                spares.ready.extend(started);
            });
        }
        if let Some(helper) = ready {
            return Ok(helper);
        }
        let helpers = self.clone();
        let started = spawn_blocking(move || helpers.start()).await.map_err(io::Error::other);
        started
            .flatten()
            .map_err(|error| EngineError::Connection(format!("cannot start the helper: {error}")))
    }

    fn start(&self) -> io::Result<Helper> {
        let (ours, theirs) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        let mut command = tokio::process::Command::new(self.program.get()?.path());
        command
            .arg0(OsStr::from_bytes(HELPER_NAME.to_bytes()))
            .arg(&self.data_dir)
            .args(&self.groups)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        // A test holds a launch at a point of it.
        #[cfg(feature = "failpoints")]
        command.envs(std::env::var_os(FAILPOINT).map(|point| (FAILPOINT, point)));
        let mut child = command.spawn()?;
        let pid = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        let pid = pid.ok_or_else(|| io::Error::other("it has ended"))?;
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
        let exited = tokio::spawn(async move {
            if let Err(error) = child.wait().await {
                tracing::debug!(%error, "cannot wait for a helper");
            }
        });
        Ok(Helper { socket: watch(ours)?, pidfd, exited, unanswered: 0 })
    }
}

/// Waits for a descriptor with tokio.
#[expect(
    deprecated,
    reason = "what is unsound is another type's AsRawFd: an OwnedFd's is constant"
)]
pub(super) fn watch(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::new(descriptor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_abandoned_reply_is_not_taken_for_the_next() {
        let (ours, theirs) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        for socket in [&ours, &theirs] {
            rustix::io::ioctl_fionbio(socket, true).unwrap();
        }
        let pidfd = rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty());
        let mut helper = Helper {
            socket: watch(ours).unwrap(),
            pidfd: pidfd.unwrap(),
            exited: tokio::spawn(async {}),
            unanswered: 0,
        };
        let heard = async {
            while wire::receive::<Request>(&theirs).is_err() {
                tokio::task::yield_now().await;
            }
        };
        // Cancelled after the request was sent.
        tokio::select! {
            answer = helper.call(&Request::Wait, &[]) => panic!("{answer:?}"),
            () = heard => {}
        }
        wire::send(&theirs, &Reply::Failed { reason: "the first one's".to_owned() }, &[]).unwrap();
        wire::send(&theirs, &Reply::Exited { code: 137, over_memory: false }, &[]).unwrap();
        let (answer, _) = helper.call(&Request::Wait, &[]).await.unwrap();
        assert_eq!(answer, Reply::Exited { code: 137, over_memory: false });
    }
}
