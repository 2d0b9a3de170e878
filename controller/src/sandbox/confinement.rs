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
mod tests {
    use super::*;

    fn full() -> Confinement {
        Confinement {
            no_new_privileges: true,
            undumpable: true,
            landlock_abi: Some(7),
            seccomp: true,
            unix_sockets: UnixSockets::None,
            missing: Vec::new(),
        }
    }

    fn programs(unix_sockets: UnixSockets) -> Confinement {
        Confinement { unix_sockets, ..full() }
    }

    #[test]
    fn required_confinement_is_seccomp_and_the_kernels_landlock() {
        use ConfinementPolicy::{BestEffort, Required};
        let without = || Confinement { landlock_abi: None, ..full() };
        let old = || Confinement { landlock_abi: Some(1), ..full() };
        for (confinement, kernel, why) in [
            (full(), Some(7), None),
            (full(), None, None),
            (without(), None, None),
            (without(), Some(1), None),
            (without(), Some(2), Some("no Landlock")),
            (old(), Some(2), Some("no Landlock")),
            (old(), Some(1), None),
            (Confinement { seccomp: false, ..full() }, Some(7), Some("system call filter")),
            (Confinement { undumpable: false, ..full() }, Some(7), Some("other processes")),
            (Confinement { no_new_privileges: false, ..full() }, Some(7), Some("privileges")),
            (programs(UnixSockets::Landlock), Some(7), None),
            (programs(UnixSockets::Supervised), Some(7), None),
            (programs(UnixSockets::Pairs), Some(7), None),
            (programs(UnixSockets::Unrestricted), Some(7), Some("UNIX sockets")),
        ] {
            let refused = check(Required, &confinement, kernel).err();
            match (&refused, why) {
                (None, None) => {}
                (Some(error), Some(why)) => {
                    assert!(error.to_string().contains(why), "{error}");
                    assert_eq!(error.exit_code(), 125);
                    assert!(error.hint().unwrap().contains("--confinement best-effort"));
                }
                _ => panic!("{confinement:?} {kernel:?}: {refused:?}"),
            }
            assert!(check(BestEffort, &confinement, kernel).is_ok());
        }
    }

    #[test]
    fn why_a_layer_is_missing_is_told() {
        let lacking =
            Confinement { seccomp: false, missing: vec!["it is refused".into()], ..full() };
        let error = check(ConfinementPolicy::Required, &lacking, None).unwrap_err();
        assert!(error.to_string().ends_with("(it is refused)"), "{error}");
        assert!(describe(&lacking).ends_with("no system call filter, it is refused"));
        assert_eq!(describe(&full()), "Landlock ABI 7, system call filter");
        assert!(describe(&programs(UnixSockets::Supervised)).ends_with("(supervised connects)"));
    }
}
