//! Landlock: what the kernel lets this process do to files, whatever descriptor or path it comes
//! by. For scripts that is the mounts and nothing else.

use std::io;
use std::os::fd::BorrowedFd;

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, LandlockStatus,
    PathBeneath, RestrictionStatus, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError,
    RulesetStatus, Scope, make_bitflags,
};
use sandbox_protocol::message::Access;

/// The first ABI that counts: the one before it forbids every rename from one directory to
/// another.
const LEAST: ABI = ABI::V2;
/// The last one that this code was written for. What it has beyond [`LEAST`] is taken where the
/// kernel has it: truncation, devices' ioctls, TCP ports, signals and abstract sockets.
const LATEST: ABI = ABI::V9;

/// A directory, or a single file, that scripts may use.
#[derive(Debug, Clone, Copy)]
pub struct Grant<'a> {
    /// It, opened.
    pub fd: BorrowedFd<'a>,
    /// Reading, or reading and writing.
    pub access: Access,
    /// Which of the two it is.
    pub kind: GrantKind,
}

/// What a [`Grant`] is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GrantKind {
    /// A directory and all that is beneath it.
    Directory,
    /// One file.
    File,
}

impl Grant<'_> {
    fn rights(self) -> BitFlags<AccessFs> {
        let read = make_bitflags!(AccessFs::{ReadFile | ReadDir});
        // No device, and nothing to execute. What is neither file nor directory is only ever
        // renamed, to which Landlock takes the right to make it; the filter has no call that does.
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
        }
    }
}

/// Why Landlock is not in force.
#[derive(Debug, thiserror::Error)]
pub enum LandlockError {
    /// The kernel's answer is none of a kernel's.
    #[error("cannot ask for Landlock: {0}")]
    Ask(#[source] io::Error),
    /// The rules cannot be made or put in force.
    #[error("cannot apply Landlock: {0}")]
    Apply(#[from] RulesetError),
    /// The kernel took the rules and says that they are not in force.
    #[error("cannot apply Landlock: the kernel took the rules and does not enforce them")]
    NotEnforced,
}

/// What the kernel has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Support {
    /// An ABI that counts.
    Abi(u32),
    /// None at all, or one that is too old.
    None(&'static str),
}

/// Asks the kernel. An answer that no kernel gives, as of a filter that refuses the question, is
/// an error: who refuses it may hide a Landlock that is there.
///
/// # Errors
///
/// [`LandlockError::Ask`].
pub fn support() -> Result<Support, LandlockError> {
    const CREATE_RULESET_VERSION: libc::c_uint = 1;
    let nothing = std::ptr::null::<libc::c_void>();
    #[expect(unsafe_code, reason = "the crate takes any failure for a kernel without Landlock")]
    // SAFETY: with a null pointer, size 0 and this flag the call reads no memory and makes
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

/// Restricts this thread, and those that it starts, to the grants, and gives the ABI in force.
/// The kernel must [support](support()) it.
///
/// # Errors
///
/// [`LandlockError`], and nothing has changed.
pub fn restrict<'a>(grants: impl Iterator<Item = Grant<'a>>) -> Result<u32, LandlockError> {
    let rules = grants.map(|grant| {
        Ok::<_, RulesetError>(
            PathBeneath::new(grant.fd, grant.rights()).set_compatibility(CompatLevel::BestEffort),
        )
    });
    let RestrictionStatus { ruleset, landlock, .. } = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(LEAST))?
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(LATEST))?
        // Without a rule for any port: nothing of a sandbox's speaks TCP itself.
        .handle_access(AccessNet::from_all(LATEST))?
        .scope(Scope::from_all(LATEST))?
        .create()?
        .add_rules(rules)?
        .restrict_self()?;
    match (ruleset, landlock) {
        (
            RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced,
            LandlockStatus::Available { effective_abi, .. },
        ) => Ok(effective_abi as u32),
        _ => Err(LandlockError::NotEnforced),
    }
}
