//! The agent's user. The engine was given a user and a group; the agent checks that it runs as
//! these before it reads any input.

use std::{fs, io};

use sandbox_protocol::User;

/// What the kernel shows of a group that has no number in this user namespace.
const UNMAPPED: u32 = 65_534;

/// The agent runs as another user.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The kernel did not report the ids.
    #[error("cannot read the agent's user and groups: {0}")]
    Ask(#[source] io::Error),
    /// Real, effective and saved ids. Each must be the requested one.
    #[error("the agent should run as {asked}, but runs as uids {uids:?}, gids {gids:?}")]
    Other {
        /// The requested user.
        asked: User,
        /// Its user ids.
        uids: [u32; 3],
        /// Its group ids.
        gids: [u32; 3],
    },
    /// An unexpected supplementary group.
    #[error("the agent should run as {asked}, but also has group {group}")]
    Group {
        /// The requested user.
        asked: User,
        /// The group.
        group: u32,
    },
}

/// Returns an error unless this process runs as `asked`: real, effective and saved user and group,
/// with no other group. In a user namespace that another user than root made, nothing can drop the
/// groups of that user: those without a number there stay.
///
/// # Errors
///
/// [`IdentityError`].
pub fn check(asked: User) -> Result<(), IdentityError> {
    let (uids, gids) = ids().map_err(IdentityError::Ask)?;
    if uids != [asked.uid(); 3] || gids != [asked.gid(); 3] {
        return Err(IdentityError::Other { asked, uids, gids });
    }
    let groups = rustix::process::getgroups().map_err(|errno| IdentityError::Ask(errno.into()))?;
    let mut groups = groups.into_iter().map(rustix::process::Gid::as_raw);
    match groups.find(|&group| group != asked.gid() && !(group == UNMAPPED && are_fixed())) {
        Some(group) => Err(IdentityError::Group { asked, group }),
        None => Ok(()),
    }
}

/// Whether the kernel refuses to set groups in this user namespace.
fn are_fixed() -> bool {
    fs::read_to_string("/proc/self/setgroups").is_ok_and(|text| text.trim() == "deny")
}

/// Real, effective and saved ids of the user and of the group.
#[expect(unsafe_code, reason = "no safe interface gives the saved ids")]
fn ids() -> io::Result<([u32; 3], [u32; 3])> {
    let (mut uids, mut gids) = ([0; 3], [0; 3]);
    let ([real, effective, saved], [real_gid, effective_gid, saved_gid]) = (&mut uids, &mut gids);
    // SAFETY: each call writes three numbers, to three variables.
    let failed = unsafe {
        libc::getresuid(real, effective, saved) != 0
            || libc::getresgid(real_gid, effective_gid, saved_gid) != 0
    };
    if failed { Err(io::Error::last_os_error()) } else { Ok((uids, gids)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_user_that_was_asked_for_passes() {
        let (uids, gids) = ids().unwrap();
        let is = |uid, gid| check(User::new(uid, gid).unwrap());
        let groups = rustix::process::getgroups().unwrap();
        let alone = groups.iter().all(|group| group.as_raw() == gids[0]);
        assert_eq!(is(uids[0], gids[0]).is_ok(), alone);
        for (uid, gid) in [(uids[0] + 1, gids[0]), (uids[0], gids[0] + 1)] {
            assert!(matches!(is(uid, gid), Err(IdentityError::Other { .. })), "{uid}:{gid}");
        }
    }
}
