//! Landlock: which file accesses the kernel allows this process, by any descriptor or path. For
//! scripts these are the mounts and nothing else. Commands can read and execute the whole image,
//! and write to the mounts, to temporary directories, and to a few devices.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, LandlockStatus,
    PathBeneath, RestrictionStatus, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError,
    RulesetStatus, Scope, make_bitflags,
};
use rustix::fs::{CWD, Mode, OFlags, openat};
use sandbox_protocol::message::Access;

/// The lowest usable ABI: the one before it forbids every rename from one directory to another.
const LEAST: ABI = ABI::V2;
/// The newest ABI that this code supports. Rights beyond [`LEAST`] are used if the kernel has them:
/// truncation, devices' ioctls, TCP ports, signals and abstract sockets.
const LATEST: ABI = ABI::V9;

/// Whether this version has a right for UNIX sockets. The session's rules handle it and grant it
/// nowhere: then a command can connect to sockets that were created under those rules, that is, to
/// any of the sandbox's, and to none of the host's. A command's own layer does not handle it,
/// because otherwise the commands of one sandbox could not connect to each other.
pub const fn holds_unix_sockets(abi: u32) -> bool {
    abi >= ABI::V9 as u32
}

/// What runs under the rules, apart from the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tenant {
    /// Scripts, in the agent itself.
    Scripts,
    /// Commands of the image, and scripts.
    Programs,
}

/// A directory, or a single file, to which access is granted.
#[derive(Debug, Clone, Copy)]
pub struct Grant<'a> {
    /// Its descriptor.
    pub fd: BorrowedFd<'a>,
    /// Read-only, or read and write.
    pub access: Access,
    /// The kind of grant.
    pub kind: GrantKind,
}

/// The kind of a [`Grant`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GrantKind {
    /// A directory and everything beneath it.
    Directory,
    /// One file.
    File,
    /// The whole image: files that can be read can also be executed.
    Image,
    /// A device, or a directory of devices, that commands use.
    Device,
}

impl Grant<'_> {
    fn rights(self) -> BitFlags<AccessFs> {
        let read = make_bitflags!(AccessFs::{ReadFile | ReadDir});
        // No device, and nothing to execute. Special files can only be renamed, for which Landlock
        // requires the right to create them; the filter allows no call that creates one.
        let change = make_bitflags!(AccessFs::{
            WriteFile | Truncate | RemoveFile | RemoveDir | MakeReg | MakeDir | Refer
            | MakeSym | MakeFifo | MakeSock
        });
        let rights = match self.access {
            Access::Read => read,
            Access::Write => read | change,
        };
        match self.kind {
            GrantKind::Directory => rights,
            GrantKind::File => rights & AccessFs::from_file(LATEST),
            GrantKind::Image => read | AccessFs::Execute,
            GrantKind::Device => read | make_bitflags!(AccessFs::{WriteFile | Truncate | IoctlDev}),
        }
    }
}

/// Where commands can write outside the mounts, if the image has it: files that are removed with the
/// sandbox.
const TEMPORARY: [&str; 2] = ["/tmp", "/dev/shm"];
/// Devices that commands can write to: they give access to nothing outside.
const DEVICES: [&str; 8] = [
    "/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/ptmx",
    "/dev/pts",
];

/// What commands can access outside the mounts: the image, temporary directories, devices.
#[derive(Debug)]
pub struct ImageGrants(Vec<(OwnedFd, Access, GrantKind)>);

impl ImageGrants {
    /// Opens the paths that exist.
    ///
    /// # Errors
    ///
    /// If the root itself cannot be opened.
    pub fn open() -> rustix::io::Result<Self> {
        let open = |path| openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        let root = (open("/")?, Access::Read, GrantKind::Image);
        let temporary = TEMPORARY.map(|path| (path, GrantKind::Directory));
        let others = temporary.into_iter().chain(DEVICES.map(|path| (path, GrantKind::Device)));
        let others =
            others.filter_map(|(path, kind)| Some((open(path).ok()?, Access::Write, kind)));
        Ok(Self(std::iter::once(root).chain(others).collect()))
    }

    /// The grants that commands need.
    pub fn grants(&self) -> impl Iterator<Item = Grant<'_>> {
        self.0.iter().map(|&(ref fd, access, kind)| Grant { fd: fd.as_fd(), access, kind })
    }
}

/// Why Landlock is not in force.
#[derive(Debug, thiserror::Error)]
pub enum LandlockError {
    /// The answer cannot be that of a kernel.
    #[error("cannot query Landlock: {0}")]
    Ask(#[source] io::Error),
    /// The ruleset cannot be created or enforced.
    #[error("cannot apply Landlock: {0}")]
    Apply(#[from] RulesetError),
    /// The kernel accepted the ruleset and reports that it is not enforced.
    #[error("cannot apply Landlock: the kernel accepted the rules but does not enforce them")]
    NotEnforced,
}

/// What the kernel supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Support {
    /// A usable ABI.
    Abi(u32),
    /// No Landlock, or one that is too old.
    None(&'static str),
}

/// Queries the kernel. An answer that no kernel gives, such as that of a filter that refuses the
/// query, is an error: the filter may hide a Landlock that exists.
///
/// # Errors
///
/// [`LandlockError::Ask`].
pub fn support() -> Result<Support, LandlockError> {
    const CREATE_RULESET_VERSION: libc::c_uint = 1;
    let nothing = std::ptr::null::<libc::c_void>();
    #[expect(unsafe_code, reason = "the crate takes any failure for a kernel without Landlock")]
    // SAFETY: with a null pointer, size 0 and this flag the call accesses no memory and creates
    // nothing: it returns the version, or -1.
    let version = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, nothing, 0_usize, CREATE_RULESET_VERSION)
    };
    match u32::try_from(version) {
        Ok(version) if version < LEAST as u32 => Ok(Support::None(
            "the kernel's Landlock is the first version, which forbids renames between directories",
        )),
        Ok(version) => Ok(Support::Abi(version)),
        Err(_) => {
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::ENOSYS) => Ok(Support::None("the kernel has no Landlock")),
                Some(libc::EOPNOTSUPP) => Ok(Support::None("the kernel's Landlock is turned off")),
                _ => Err(LandlockError::Ask(error)),
            }
        }
    }
}

/// What a command's own layer handles: everything but UNIX sockets, see [`holds_unix_sockets`].
const OF_LAYERS: BitFlags<AccessFs> = make_bitflags!(AccessFs::{
    Execute | WriteFile | ReadFile | ReadDir | RemoveDir | RemoveFile | MakeChar | MakeDir | MakeReg
    | MakeSock | MakeFifo | MakeBlock | MakeSym | Refer | Truncate | IoctlDev
});

/// Restricts this thread, and those that it starts, to the grants, and returns the ABI in force.
/// The kernel must [support](support()) it.
///
/// # Errors
///
/// [`LandlockError`], and nothing has changed.
pub fn restrict<'a>(
    tenant: Tenant,
    grants: impl Iterator<Item = Grant<'a>>,
) -> Result<u32, LandlockError> {
    let ruleset = handle_files(AccessFs::from_all(LATEST))?;
    let ruleset = match tenant {
        // Without a rule for any port: scripts have no TCP.
        Tenant::Scripts => ruleset.handle_access(AccessNet::from_all(LATEST))?,
        // Commands may use TCP: the only network device is loopback.
        Tenant::Programs => ruleset,
    };
    let RestrictionStatus { ruleset, landlock, .. } = ruleset
        .scope(Scope::from_all(LATEST))?
        .create()?
        .add_rules(rules(grants))?
        .restrict_self()?;
    match (ruleset, landlock) {
        (
            RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced,
            LandlockStatus::Available { effective_abi, .. },
        ) => Ok(effective_abi as u32),
        _ => Err(LandlockError::NotEnforced),
    }
}

/// The same rules on files, for a command to apply to itself: a process with its own ruleset can
/// neither trace the agent nor read its memory, under any user. No scope: commands that run at the
/// same time may signal each other, as they may on a kernel without scopes.
///
/// # Errors
///
/// [`LandlockError`].
pub fn layer<'a>(grants: impl Iterator<Item = Grant<'a>>) -> Result<OwnedFd, LandlockError> {
    let ruleset = handle_files(OF_LAYERS)?.create()?.add_rules(rules(grants))?;
    Option::from(ruleset).ok_or(LandlockError::NotEnforced)
}

fn handle_files(best: BitFlags<AccessFs>) -> Result<Ruleset, RulesetError> {
    Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(LEAST))?
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(best)
}

fn rules<'a>(
    grants: impl Iterator<Item = Grant<'a>>,
) -> impl Iterator<Item = Result<PathBeneath<BorrowedFd<'a>>, RulesetError>> {
    grants.map(|grant| {
        Ok(PathBeneath::new(grant.fd, grant.rights()).set_compatibility(CompatLevel::BestEffort))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unix_sockets_are_held_by_the_session_and_left_out_of_every_layer() {
        let sockets = BitFlags::from(AccessFs::ResolveUnix);
        assert_eq!(AccessFs::from_all(LATEST) & !OF_LAYERS, sockets);
        assert!(!holds_unix_sockets(8) && holds_unix_sockets(9));
        let root = openat(CWD, "/", OFlags::PATH, Mode::empty()).unwrap();
        for kind in [GrantKind::Directory, GrantKind::File, GrantKind::Image, GrantKind::Device] {
            for access in [Access::Read, Access::Write] {
                let rights = Grant { fd: root.as_fd(), access, kind }.rights();
                assert!(!rights.contains(AccessFs::ResolveUnix), "{kind:?} {access:?}");
            }
        }
    }
}
