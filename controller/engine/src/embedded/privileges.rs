//! Who runs containers, root or another user, and what limits them.

use std::fs;

use sandbox_helper::cgroup::Hierarchies;
use sandbox_helper::delegation::{find_delegated, take_delegated};

use crate::config::RootlessLimits;
use crate::error::EmbeddedProblem;

/// What an engine is connected to for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Containers, the first of them soon: a helper is started for it now.
    Launch,
    /// The records and images that exist.
    Reap,
}

/// The user other than root who is every container's only one, as uid and gid.
pub(super) type Rootless = Option<(u32, u32)>;

/// This process's user.
pub(super) fn user() -> Rootless {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    (!uid.is_root()).then(|| (uid.as_raw(), gid.as_raw()))
}

/// The hierarchies in which containers get their groups; [`Hierarchies::none`] if their limits are by
/// best effort.
pub(super) fn hierarchies(
    user: Rootless,
    policy: RootlessLimits,
    purpose: Purpose,
) -> Result<Hierarchies, EmbeddedProblem> {
    if user.is_some() {
        if purpose == Purpose::Reap {
            return Ok(find_delegated().unwrap_or_else(Hierarchies::none));
        }
        return match (take_delegated(), policy) {
            (Ok(hierarchies), _) => Ok(hierarchies),
            (Err(_), RootlessLimits::BestEffort) => Ok(Hierarchies::none()),
            (Err(problem), RootlessLimits::Required) => {
                Err(EmbeddedProblem::NotDelegated { problem })
            }
        };
    }
    let hierarchies = Hierarchies::here().map_err(EmbeddedProblem::Proc)?;
    match hierarchies.problem() {
        Some(problem) => Err(EmbeddedProblem::Cgroups { problem }),
        None => Ok(hierarchies),
    }
}

/// Settings of the kernel that forbid user namespaces by this value, and how to allow them.
const FORBID: [(&str, &str, &str); 3] = [
    ("user/max_user_namespaces", "0", "`sudo sysctl user.max_user_namespaces=10000` allows them"),
    (
        "kernel/unprivileged_userns_clone",
        "0",
        "`sudo sysctl kernel.unprivileged_userns_clone=1` allows them",
    ),
    (
        "kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "AppArmor allows them for one program: write `abi <abi/4.0>, profile sandboxes PATH \
         flags=(unconfined) { userns, }`, with the program's PATH, to /etc/apparmor.d/sandboxes, and load \
         it by `sudo apparmor_parser -r /etc/apparmor.d/sandboxes`",
    ),
];

/// How to allow what this user's containers need, if a setting forbids it.
pub(super) fn remedy() -> Option<&'static str> {
    let has = |setting: &str, value: &str| {
        fs::read_to_string(format!("/proc/sys/{setting}")).is_ok_and(|it| it.trim() == value)
    };
    FORBID.iter().find(|(setting, value, _)| has(setting, value)).map(|(.., remedy)| *remedy)
}

/// What callers learn of the engine: why it is this one, if no other is there, and what its limits are
/// worth.
pub(super) fn notice(
    no_other: Option<&str>,
    user: Rootless,
    hierarchies: &Hierarchies,
) -> Option<String> {
    let engine = match user {
        None => "using the embedded engine",
        Some(_) => "using the embedded engine without root",
    };
    let chosen = no_other.map(|why| format!("{why}: {engine}"));
    let limits = hierarchies
        .is_none()
        .then(|| "memory and processors are limited by best effort".to_owned());
    let parts: Vec<_> = chosen.into_iter().chain(limits).collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}
