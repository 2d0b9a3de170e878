//! Launches a container: one process, in namespaces and control groups of its own, which builds its
//! root, renounces its privileges, and becomes the agent.
//!
//! ```text
//! helper                                child
//! make and limit the control groups
//! clone ─────────────────────────────>  die with the helper
//! wait for a report                     ordinary priorities, a session keyring of its own
//!   │                                   enter the groups
//!   │                                   mount its root, and everything in it
//!   │                                   a control group namespace of its own
//!   │                                   make the root the only one; mask and seal paths
//!   │                                   limits, user, capabilities, filters
//!   │ <───── what failed, or the end ─  execute the agent
//! ```
//!
//! The child is a copy of the helper, so it has everything without another message. Whatever it
//! opens is closed on exec; so is the pipe of the report, whose end says that it executes the agent, or has ended.
//!
//! Nothing that a child makes outlives it, but what it leaves in its control groups. The kernel kills it
//! with the helper. So a launch that was killed at any point leaves the groups alone, which are
//! found by the container's name.

pub mod loopback;
mod mounts;
pub mod process;
mod root;
pub mod sys;

use std::convert::Infallible;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};

use rustix::fs::{CWD, FileType, Mode};
use rustix::mount::OpenTreeFlags;
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, PidfdFlags, WaitOptions};
use rustix::thread::UnshareFlags;
use sandbox_helper::cgroup::{Groups, Tenant};
use sandbox_helper::mounts::{NODEV, NOEXEC, NOSUID, RDONLY, Reach};
use sandbox_helper::spec::{Descriptors, Launch, Mount, Programs};

use self::mounts::{make, restrict};
use self::process::Program;
use self::root::Root;
use self::sys::Side;
use crate::devices::DEVICES;
use crate::failed::{Failed, Step as _};
use crate::failpoint::{self, At};
use crate::rootless::Rootless;

/// The highest score: the first to be killed when the machine runs out of memory.
const OOM_SCORE_ADJ: &str = "1000";
/// The kernel's default: a new UTS namespace has a copy of the machine's.
const DOMAIN_NAME: &[u8] = b"(none)";
/// The exit code of a process that did not become the agent: no caller sees it.
const FAILED: i32 = 125;
/// Links in `/dev` that programs expect.
const DEVICE_LINKS: [(&str, &str); 5] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
];
/// The namespaces that a container's process is created in; it gets others from the helper
/// ([`mount_ns`](crate::mount_ns)). That of control groups is in neither: its root is the groups that its
/// creator is in, so the process makes it itself.
const NAMESPACES: UnshareFlags =
    UnshareFlags::NEWNS.union(UnshareFlags::NEWPID).union(UnshareFlags::NEWUTS);

/// A container of this launch runs commands, or scripts alone.
pub const fn tenant(wanted: &Launch) -> Tenant {
    match wanted.programs {
        None => Tenant::Scripts,
        Some(_) => Tenant::Programs,
    }
}

/// Launches a container whose control groups exist. Returns its first process, which executes the agent:
/// its number, until it is waited for, and a pidfd. On an error there is no process of it.
pub fn launch(
    wanted: &Launch,
    given: Descriptors<OwnedFd>,
    groups: &Groups,
    rootless: Option<&Rootless>,
) -> Result<(Pid, OwnedFd), Failed> {
    let (report, reporter) =
        rustix::pipe::pipe_with(PipeFlags::CLOEXEC).step("make a pipe for its report")?;
    let helper = rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty())
        .step("open the helper's own process")?;
    let group = groups.birthplace().step("open its control group")?;
    match sys::clone(NAMESPACES, group.as_ref()).step("make a process in new namespaces")? {
        Side::Child => {
            // Also when it panics: nothing of the helper may run in a copy of it.
            let end = EndOfChild;
            let failed = match become_agent(wanted, given, groups, rootless, &helper) {
                Ok(never) => match never {},
                Err(failed) => failed,
            };
            _ = File::from(reporter).write_all(failed.0.as_bytes());
            drop(end);
            unreachable!("it has ended");
        }
        Side::Parent { pid, pidfd } => {
            failpoint::hold(At::Cloned);
            // What the container has mounted must not be kept by the helper, nor its pipes.
            drop((reporter, given));
            let mut failed = String::new();
            File::from(report).read_to_string(&mut failed).step("read its report")?;
            failpoint::hold(At::Executed);
            if failed.is_empty() {
                return Ok((pid, pidfd));
            }
            _ = rustix::process::waitpid(Some(pid), WaitOptions::empty());
            Err(Failed(failed))
        }
    }
}

/// Ends the process when it is dropped.
struct EndOfChild;

impl Drop for EndOfChild {
    fn drop(&mut self) {
        sys::exit(FAILED);
    }
}

/// The life of the child until it is the agent.
fn become_agent(
    wanted: &Launch,
    given: Descriptors<OwnedFd>,
    groups: &Groups,
    rootless: Option<&Rootless>,
    helper: &OwnedFd,
) -> Result<Infallible, Failed> {
    let Descriptors { record: _record, stdio, program, root, mounts } = given;
    let program = Program::new(program.as_fd(), &wanted.process)?;
    process::die_with(helper)?;
    rustix::process::setsid().step("make a session")?;
    fs::write("/proc/self/oom_score_adj", OOM_SCORE_ADJ).step("set its OOM score")?;
    // The groups of processor time take no process of a real-time policy.
    process::reset_priorities()?;
    process::leave_session_keyring()?;
    groups.enter().step("limit the process")?;
    rustix::system::sethostname(wanted.hostname.as_bytes()).step("set the host name")?;
    rustix::system::setdomainname(DOMAIN_NAME).step("set the domain name")?;
    failpoint::hold(At::Entered);

    let root = match (&wanted.programs, root) {
        (Some(programs), Some(directory)) => {
            root_of_programs(programs, directory, groups, rootless)?
        }
        _ => Root::empty()?,
    };
    for (Mount { target, read_only }, mount) in wanted.mounts.iter().zip(&mounts) {
        let read_only = if *read_only { RDONLY } else { NOSUID };
        restrict(mount, NOSUID | NODEV | read_only, Reach::Itself)
            .step_at("restrict the mount at", target)?;
        root.mount(mount, target)?;
    }
    hide(&root, &wanted.hidden)?;
    mount_proc(&root, wanted.programs.as_ref(), rootless)?;
    mount_devices(&root, wanted.programs.as_ref(), rootless)?;
    if wanted.programs.is_some() {
        show_groups(&root, groups)?;
    }
    failpoint::hold(At::Mounted);

    enter_last_groups(groups)?;
    root.enter()?;
    wanted.read_only.iter().try_for_each(|path| mounts::make_read_only(path))?;
    mounts::mask(&wanted.masked)?;
    failpoint::hold(At::Pivoted);

    process::take_stdio(&stdio)?;
    process::limit(&wanted.process, rootless)?;
    if groups.is_none() {
        process::bind_to_processors(&wanted.limits)?;
    }
    process::renounce_privileges(&wanted.process, rootless)?;
    process::die_with(helper)?;
    program.execute()
}

/// From here on its processor time is limited too, and it sees no group but its own.
fn enter_last_groups(groups: &Groups) -> Result<(), Failed> {
    groups.enter_time().step("limit the processor time")?;
    #[expect(unsafe_code, reason = "some of unshare's flags are unsafe, so it is as a whole")]
    // SAFETY: this process has one thread, and no memory or descriptors become its own by it.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWCGROUP) }
        .step("make a control group namespace")
}

/// The root of a container that runs commands: a directory, with what a sandbox replaces in it, and a
/// `/tmp` of limited size.
fn root_of_programs(
    programs: &Programs,
    directory: OwnedFd,
    groups: &Groups,
    rootless: Option<&Rootless>,
) -> Result<Root, Failed> {
    let root = Root::above(directory, rootless)?;
    // These are mount targets by path, so no link of the directory may be there.
    for name in ["proc", "dev", "sys", "tmp"] {
        root.real_folder(name).step_at("create", name)?;
    }
    for view in groups.views() {
        root.real_folder(&view.target).step_at("create", &view.target)?;
        let (folder, name) = view.target.rsplit_once('/').unwrap_or_default();
        for link in &view.links {
            root.link(&format!("{folder}/{link}"), name)?;
        }
    }
    programs.files.iter().try_for_each(|(path, content)| root.write(path, content))?;
    // As Docker has it: programs and JVMs find their file systems there.
    root.link("/etc/mtab", "/proc/mounts")?;
    let Programs { tmp_bytes, tmp_inodes, .. } = programs;
    let options = [
        ("mode", "1777".to_owned()),
        ("size", tmp_bytes.to_string()),
        ("nr_inodes", tmp_inodes.to_string()),
    ];
    root.mount(&make("tmpfs", "tmpfs", &options, NOSUID | NODEV)?, "/tmp")?;
    Ok(root)
}

/// Covers directories of the mounts by empty ones.
fn hide(root: &Root, hidden: &[String]) -> Result<(), Failed> {
    let options = [("mode", "0555".to_owned()), ("size", "4k".to_owned())];
    let empty = || make("tmpfs", "tmpfs", &options, RDONLY | NOSUID | NODEV | NOEXEC);
    hidden.iter().try_for_each(|path| root.cover(&empty()?, path))
}

/// The processes of the container's own namespace, and settings of its network namespace, which nothing
/// in it can change.
fn mount_proc(
    root: &Root,
    programs: Option<&Programs>,
    rootless: Option<&Rootless>,
) -> Result<(), Failed> {
    let proc = make("proc", "proc", &[], NOSUID | NODEV | NOEXEC);
    let proc = proc.map_err(|failed| match rootless {
        None => failed,
        Some(_) => Failed(format!(
            "{failed}; in a container, whose /proc is masked, only root can run another one"
        )),
    })?;
    for (path, value) in programs.iter().flat_map(|programs| &programs.sysctls) {
        let setting = format!("sys/{path}");
        let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::CLOEXEC;
        let written = rustix::fs::openat(&proc, setting, flags, Mode::empty())
            .map_err(Into::into)
            .and_then(|file| File::from(file).write_all(value.as_bytes()));
        written.step_at("set the sysctl", path)?;
    }
    root.mount(&proc, "/proc")
}

/// The harmless devices, and for commands terminals and shared memory of their own. The directory is
/// read-only: a sandbox that runs as root, without any capability, could fill it. Devices can be
/// written to all the same.
fn mount_devices(
    root: &Root,
    programs: Option<&Programs>,
    rootless: Option<&Rootless>,
) -> Result<(), Failed> {
    let options =
        [("mode", "755".to_owned()), ("size", "64k".to_owned()), ("nr_inodes", "32".to_owned())];
    let devices = make("tmpfs", "tmpfs", &options, NOSUID | NOEXEC)?;
    // Until the process executes the agent, what it creates has the mode that it says.
    rustix::process::umask(Mode::empty());
    if rootless.is_none() {
        for (name, major, minor) in DEVICES {
            let (mode, number) = (Mode::from_raw_mode(0o666), rustix::fs::makedev(major, minor));
            rustix::fs::mknodat(&devices, name, FileType::CharacterDevice, mode, number)
                .step_at("create the device", name)?;
        }
    }
    for (name, target) in DEVICE_LINKS {
        rustix::fs::symlinkat(target, &devices, name).step_at("create /dev", name)?;
    }
    for name in programs.map_or(&[][..], |_| &["pts", "shm"]) {
        rustix::fs::mkdirat(&devices, *name, Mode::from_raw_mode(0o755))
            .step_at("create /dev", name)?;
    }
    root.mount(&devices, "/dev")?;
    for (name, device) in rootless.into_iter().flat_map(Rootless::devices) {
        root.mount(device, &format!("/dev/{name}"))?;
    }
    if let Some(programs) = programs {
        let options = [
            ("ptmxmode", "0666".to_owned()),
            ("mode", "0620".to_owned()),
            ("max", "64".to_owned()),
        ];
        root.mount(&make("devpts", "devpts", &options, NOSUID | NOEXEC)?, "/dev/pts")?;
        let options = [
            ("mode", "1777".to_owned()),
            ("size", programs.shm_bytes.to_string()),
            ("nr_inodes", programs.tmp_inodes.to_string()),
        ];
        root.mount(&make("tmpfs", "shm", &options, NOSUID | NODEV | NOEXEC)?, "/dev/shm")?;
    }
    restrict(&devices, RDONLY, Reach::Itself).step("make /dev read-only")
}

/// Mounts the container's own cgroups, and nothing above them, where programs look for their
/// limits. The mounts are read-only, because root owns a cgroup's files and the sandbox may run as
/// root.
fn show_groups(root: &Root, groups: &Groups) -> Result<(), Failed> {
    let copy = OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::OPEN_TREE_CLONE;
    for view in groups.views() {
        let group = match rustix::mount::open_tree(CWD, &view.group, copy) {
            // Not every container has every group.
            Err(rustix::io::Errno::NOENT) => continue,
            group => group.step_at("copy the mount", view.group.display())?,
        };
        restrict(&group, RDONLY | NOSUID | NODEV | NOEXEC, Reach::Itself)
            .step_at("make read-only", view.group.display())?;
        root.mount(&group, &view.target)?;
    }
    Ok(())
}
