//! The user that a sandbox runs as.

use sandbox_engine::UserMapping;
use sandbox_protocol::User;

use crate::error::Error;

/// The user of a sandbox without an io dir: an unassigned id. It is below 65534, so that engines
/// with user namespaces map it, and outside every range that systemd or a distribution assigns.
const NO_IO_USER: User = match User::new(60_700, 60_700) {
    Ok(user) => user,
    Err(_) => panic!("it is not -1"),
};
/// The uid of `nobody`: on some hosts it may use the disk's reserved blocks, and it owns files
/// without an owner.
const NOBODY: u32 = 65_534;
/// The number of users that a remapping engine maps, one by one.
const REMAPPED_USERS: u32 = 65_536;

/// The uid and gid of the container. `highest` is the engine's highest one.
pub(crate) fn container_user(
    mapping: UserMapping,
    io_dir_owner: Option<(u32, u32)>,
    asked: Option<User>,
    highest: u32,
) -> Result<User, Error> {
    let refuse =
        |(uid, gid), reason: &str| Err(Error::User { uid, gid, reason: reason.to_owned() });
    let (uid, gid) = match (asked, io_dir_owner, mapping) {
        (Some(user), _, _) => (user.uid(), user.gid()),
        (None, None, _) => (NO_IO_USER.uid(), NO_IO_USER.gid()),
        (None, Some(owner), UserMapping::Identity) => owner,
        (None, Some(owner), UserMapping::Rootless { owner: engine }) => {
            if owner.0 != engine {
                let reason = format!(
                    "the engine is rootless, and its user ({engine}) does not own the io dir"
                );
                return refuse(owner, &reason);
            }
            (0, 0)
        }
        (None, Some(owner), UserMapping::Single { uid, gid }) => {
            if owner.0 != uid {
                let reason =
                    format!("without root all is done as user {uid}, and the io dir is another's");
                return refuse(owner, &reason);
            }
            (uid, gid)
        }
        (None, Some(owner), UserMapping::Remapped { uid, gid }) => {
            let map =
                |id: u32, base: u32| id.checked_sub(base).filter(|&mapped| mapped < REMAPPED_USERS);
            match (map(owner.0, uid), map(owner.1, gid)) {
                (Some(uid), Some(gid)) => (uid, gid),
                _ => {
                    let reason = format!(
                        "the engine maps users from {uid}:{gid} on, and the io dir's owner is \
                         none of them"
                    );
                    return refuse(owner, &reason);
                }
            }
        }
    };
    if uid == NOBODY || gid == NOBODY {
        return refuse((uid, gid), "65534 is \"nobody\", the owner of files that have no owner");
    }
    let user = User::new(uid, gid);
    if user.is_ok() && uid.max(gid) > highest {
        return refuse((uid, gid), &format!("the engine takes users and groups up to {highest}"));
    }
    user.or_else(|error| refuse((uid, gid), &error.to_string()))
}

/// The host user that a container's user maps to. `None` if that is unknown: the engine's own user,
/// or one of a rootless engine's range.
pub(crate) fn host_user(mapping: UserMapping, user: User) -> Option<(u32, u32)> {
    match mapping {
        UserMapping::Identity => Some((user.uid(), user.gid())),
        UserMapping::Single { uid, gid } => Some((uid, gid)),
        UserMapping::Remapped { uid, gid } => {
            Some((uid.checked_add(user.uid())?, gid.checked_add(user.gid())?))
        }
        UserMapping::Rootless { .. } => None,
    }
}

#[cfg(test)]
mod tests;
