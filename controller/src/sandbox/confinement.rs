//! Checks that an agent's confinement meets the policy. The controller checks it too, before any
//! guest code runs, and does not rely on the agent alone.

use sandbox_protocol::argv::ConfinementPolicy;
use sandbox_protocol::message::{Confinement, UnixSockets};

use crate::error::Error;

/// The minimum Landlock ABI: version 1 forbids renames between directories.
pub(crate) const LEAST_LANDLOCK: u32 = 2;

/// Refuses a sandbox whose agent's confinement is weaker than the policy requires.
/// `kernel_landlock` is the Landlock ABI of the agent's kernel, if it is known independently of the
/// agent.
///
/// # Errors
///
/// [`Error::Unconfined`].
pub(crate) fn check(
    policy: ConfinementPolicy,
    confinement: &Confinement,
    kernel_landlock: Option<u32>,
) -> Result<(), Error> {
    if policy == ConfinementPolicy::BestEffort {
        return Ok(());
    }
    let Confinement { no_new_privileges, undumpable, landlock_abi, seccomp, unix_sockets, missing } =
        confinement;
    let has_landlock = landlock_abi.is_some_and(|abi| abi >= LEAST_LANDLOCK);
    let kernel_has_landlock = kernel_landlock.is_some_and(|abi| abi >= LEAST_LANDLOCK);
    let lack = if !no_new_privileges {
        "it can gain privileges"
    } else if !undumpable {
        "other processes can access it"
    } else if !seccomp {
        "it has no system call filter of its own"
    } else if !has_landlock && kernel_has_landlock {
        "it has no Landlock, and the kernel does"
    } else if *unix_sockets == UnixSockets::Unrestricted {
        "its programs can connect to UNIX sockets of the host that a mount shows"
    } else {
        return Ok(());
    };
    let detail = match missing.as_slice() {
        [] => lack.to_owned(),
        missing => format!("{lack} ({})", missing.join("; ")),
    };
    Err(Error::Unconfined { detail })
}

/// The Landlock ABI of this process's kernel; `None` if it has none, or if the call is not allowed.
pub(crate) fn kernel_landlock() -> Option<u32> {
    const CREATE_RULESET_VERSION: u32 = 1;
    #[expect(unsafe_code, reason = "neither rustix nor the landlock crate asks only that")]
    // SAFETY: with a null pointer, size 0 and this flag the call reads no memory and creates
    // nothing: it returns the version, or -1.
    let abi = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<libc::c_void>(),
            0_usize,
            CREATE_RULESET_VERSION,
        )
    };
    u32::try_from(abi).ok()
}

/// Describes the layers of confinement in one line.
pub(crate) fn describe(confinement: &Confinement) -> String {
    let Confinement { no_new_privileges, undumpable, landlock_abi, seccomp, unix_sockets, missing } =
        confinement;
    let landlock = match landlock_abi {
        Some(abi) => format!("Landlock ABI {abi}"),
        None => "no Landlock".to_owned(),
    };
    let seccomp = if *seccomp { "system call filter" } else { "no system call filter" };
    let mut parts = vec![landlock, seccomp.to_owned()];
    if *unix_sockets != UnixSockets::None {
        parts.push(describe_unix_sockets(*unix_sockets).to_owned());
    }
    if !no_new_privileges {
        parts.push("can gain privileges".to_owned());
    }
    if !undumpable {
        parts.push("accessible to other processes".to_owned());
    }
    parts.extend(missing.iter().cloned());
    parts.join(", ")
}

/// Describes which UNIX sockets commands can connect to.
pub(crate) const fn describe_unix_sockets(unix_sockets: UnixSockets) -> &'static str {
    match unix_sockets {
        UnixSockets::None => "no UNIX sockets",
        UnixSockets::Landlock => "UNIX sockets of the sandbox only (Landlock)",
        UnixSockets::Supervised => "UNIX sockets of the sandbox only (supervised connects)",
        UnixSockets::Pairs => "no UNIX sockets but pairs",
        UnixSockets::Unrestricted => "UNIX sockets, those of mounts too",
    }
}

#[cfg(test)]
mod tests;
