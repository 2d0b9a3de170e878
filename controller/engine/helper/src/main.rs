//! The embedded engine's helper: `sandbox-helper DATA_DIR [MOUNT_POINT…]`, with the mount points of the control
//! groups. Without root there are none: it looks for them itself.
//!
//! It serves one container, from its launch to the removal of everything that belongs to it. It
//! gets its requests from the engine over the socket that is its stdin. EOF on that socket requests
//! the removal, so a controller that is killed leaves nothing. A helper that is killed takes its
//! container with it ([`launch`]), and leaves a record by whose name the next sweep removes the
//! control groups.
//!
//! It has one thread: it forks.

mod container;
mod devices;
mod failed;
mod failpoint;
mod launch;
mod mount_ns;
mod rootless;
mod watch;

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rustix::fs::{Mode, OFlags};
use rustix::process::{Resource, Rlimit};
use sandbox_helper::spec::Descriptors;
use sandbox_helper::wire::{self, Reply, Request};

use crate::container::Container;
use crate::failed::{Failed, Step as _};
use crate::failpoint::At;
use crate::launch::{process, sys};
use crate::mount_ns::MountNamespace;

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1).map(PathBuf::from);
    let Some(data_dir) = args.next() else { return ExitCode::from(2) };
    let groups: Vec<_> = args.collect();
    let Ok(control) = detach() else { return ExitCode::FAILURE };
    failpoint::open();
    match serve(&control, &data_dir, &groups) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Takes the control socket from stdin, and detaches this process from its parent's environment.
fn detach() -> io::Result<OwnedFd> {
    close_inherited()?;
    // It is executed by a descriptor, whose number would be its name.
    rustix::thread::set_name(c"sandbox-helper")?;
    rustix::process::setsid()?;
    for signal in process::IGNORED {
        sys::set_disposition(*signal, libc::SIG_IGN);
    }
    rustix::process::chdir("/")?;
    rustix::process::umask(Mode::from_raw_mode(0o022));
    if rustix::process::geteuid().is_root() {
        rustix::thread::set_thread_groups(&[])?;
    }
    // A launch may have a mount for each of a thousand inputs.
    let Rlimit { maximum, .. } = rustix::process::getrlimit(Resource::Nofile);
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?;
    let control = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(control)
}

/// Closes every descriptor over 2: a program that embeds the engine may have some that it does not
/// close on exec, and a helper lives for as long as its container.
#[expect(unsafe_code, reason = "descriptors that no Rust value owns can only be closed raw")]
fn close_inherited() -> io::Result<()> {
    // SAFETY: nothing in this process owns a descriptor over 2 yet.
    if unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) } == 0 {
        return Ok(());
    }
    match io::Error::last_os_error() {
        // Before Linux 5.9: they stay the helper's, and its launches fail.
        error if error.raw_os_error() == Some(libc::ENOSYS) => Ok(()),
        error => Err(error),
    }
}

/// Serves the engine's requests, until the container is removed or could not be launched.
fn serve(control: &OwnedFd, data_dir: &Path, groups: &[PathBuf]) -> Result<(), Failed> {
    // An error here is reported as the answer to the launch: nothing is read before.
    let is_root = rustix::process::geteuid().is_root();
    let place = is_root.then(|| MountNamespace::prepare(data_dir, groups));
    failpoint::hold(At::Prepared);
    let Some((Request::Launch(launch), descriptors)) = next(control) else { return Ok(()) };
    failpoint::hold(At::Received);
    let given = Descriptors::of(&launch, descriptors).step("find the launch's descriptors");
    let launched = given.and_then(|mut given| {
        // The user namespace is that of the container's user.
        let place =
            place.unwrap_or_else(|| MountNamespace::without_root(data_dir, &launch, &mut given))?;
        Container::launch(&place, &launch, given)
    });
    drop(launch);
    let mut container = match launched {
        Ok(container) => container,
        Err(failed) => {
            answer(control, Err(failed));
            return Ok(());
        }
    };
    if wire::send(control, &Reply::Launched, &[container.pidfd()]).is_err() {
        return container.remove();
    }
    loop {
        container.watch_until_request(control);
        let answered = match next(control) {
            Some((Request::Wait, _)) => container.wait(),
            // The kernel takes longer to unmount what is attached than for all else, and nothing waits for that.
            Some((Request::Remove, _mounted)) => {
                // Often no controller reads it: one requests the removal, and exits.
                answer(control, container.remove().map(|()| Reply::Done));
                return Ok(());
            }
            Some((Request::Launch(_), _)) => Err(Failed("there is a container already".to_owned())),
            // The controller is gone.
            None => return container.remove(),
        };
        if !answer(control, answered) {
            return container.remove();
        }
    }
}

/// The next request; `None` if the controller is gone, or breaks the protocol.
fn next(control: &OwnedFd) -> Option<(Request, Vec<OwnedFd>)> {
    wire::receive(control).ok().flatten()
}

/// Answers a request, and says whether the controller is there.
fn answer(control: &OwnedFd, result: Result<Reply, Failed>) -> bool {
    let reply = result.unwrap_or_else(|Failed(reason)| Reply::Failed { reason });
    wire::send(control, &reply, &[]).is_ok()
}
