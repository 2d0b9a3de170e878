//! The embedded engine's helper: `sandbox-helper DATA_DIR`.
//!
//! It serves one container, from its creation to the removal of everything that belongs to it. It
//! gets its requests from the engine over the socket that is its stdin. EOF on that socket requests
//! the removal, so a controller that is killed leaves nothing. A helper that is killed takes its
//! container with it ([`executor`]), and leaves a record by whose name the next sweep removes the
//! control groups.
//!
//! It has one thread: libcontainer forks.

mod container;
mod executor;
mod loopback;
mod mount_ns;
mod ns_setup;

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::ExitCode;

use rustix::fs::{Mode, OFlags};
use sandbox_helper::wire::{self, Reply, Request};

use crate::container::Container;
use crate::mount_ns::{MountNamespace, Tmp};

/// Any error: the engine gets it as text.
type Error = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    let (Some(data_dir), None) = (args.next(), args.next()) else {
        return ExitCode::from(2);
    };
    match detach().and_then(|control| serve(&control, &data_dir)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Takes the control socket from stdin, and detaches this process from its parent's environment.
fn detach() -> Result<OwnedFd, Error> {
    close_inherited()?;
    // It is executed by a descriptor, whose number would be its name.
    rustix::thread::set_name(c"sandbox-helper")?;
    rustix::process::setsid()?;
    for signal in executor::IGNORED {
        executor::set_disposition(*signal, libc::SIG_IGN);
    }
    rustix::process::chdir("/")?;
    rustix::process::umask(Mode::from_raw_mode(0o022));
    set_no_groups()?;
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
fn close_inherited() -> std::io::Result<()> {
    // SAFETY: nothing in this process owns a descriptor over 2 yet.
    if unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) } == 0 {
        return Ok(());
    }
    match std::io::Error::last_os_error() {
        // Before Linux 5.9: they stay the helper's. No container ever gets them.
        error if error.raw_os_error() == Some(libc::ENOSYS) => Ok(()),
        error => Err(error),
    }
}

#[expect(unsafe_code, reason = "no safe interface sets a process's groups")]
fn set_no_groups() -> std::io::Result<()> {
    // SAFETY: no group is read where their number is 0.
    if unsafe { libc::setgroups(0, std::ptr::null()) } == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}

/// Serves the engine's requests, until the container is removed or could not be created.
fn serve(control: &OwnedFd, data_dir: &OsStr) -> Result<(), Error> {
    // An error here is reported as the answer to the create request: nothing is read before.
    let mut place = MountNamespace::prepare(Path::new(data_dir));
    let mut container = loop {
        let Ok(Some((request, descriptors))) = wire::receive(control) else { return Ok(()) };
        match (request, &mut place) {
            (Request::Mount { target, read_only }, Ok(there)) => {
                if let Err(error) = there.mount(descriptors, &target, read_only) {
                    place = Err(format!("cannot mount at '{target}': {error}").into());
                }
            }
            (Request::Root { files, tmpfs_bytes, tmpfs_inodes }, Ok(there)) => {
                let tmp = Tmp { bytes: tmpfs_bytes, inodes: tmpfs_inodes };
                if let Err(error) = there.make_root(descriptors, &files, &tmp) {
                    place = Err(format!("cannot make a root from the directory: {error}").into());
                }
            }
            (Request::Mount { .. } | Request::Root { .. }, Err(_)) => {}
            (Request::Create { name, filters, masked }, Ok(place)) => {
                match Container::create(place, name, &filters, &masked, descriptors) {
                    Ok(container) => {
                        wire::send(control, &Reply::Created, &[container.pidfd()])?;
                        break container;
                    }
                    // The library leaves descriptors and processes behind, so the helper exits.
                    Err(error) => return Ok(wire::send(control, &failed(error), &[])?),
                }
            }
            (Request::Create { .. }, Err(error)) => {
                return Ok(wire::send(control, &Reply::Failed { reason: error.to_string() }, &[])?);
            }
            (Request::Start | Request::Wait | Request::Remove, _) => {
                return Err("there is no container yet".into());
            }
        }
    };
    loop {
        let answer = match wire::receive(control) {
            Ok(Some((Request::Start, _))) => container.start().map(|()| Reply::Done),
            Ok(Some((Request::Wait, _))) => container.wait().map(|code| Reply::Exited { code }),
            Ok(Some((Request::Remove, _))) => {
                let removed = container.remove();
                let answer = removed.map(|()| Reply::Done);
                return Ok(wire::send(control, &answer.unwrap_or_else(failed), &[])?);
            }
            Ok(Some((
                Request::Root { .. } | Request::Mount { .. } | Request::Create { .. },
                _,
            ))) => Err("there is a container already".into()),
            // The controller is gone.
            Ok(None) | Err(_) => return container.remove(),
        };
        if wire::send(control, &answer.unwrap_or_else(failed), &[]).is_err() {
            return container.remove();
        }
    }
}

fn failed(error: Error) -> Reply {
    let mut reason = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        reason = format!("{reason}: {error}");
        cause = error.source();
    }
    Reply::Failed { reason }
}
