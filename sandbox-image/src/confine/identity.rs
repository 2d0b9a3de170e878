//! Who the agent is. An engine is asked for a user and a group; that it took them is looked at here,
//! before anything of anybody's is read.

use std::io;

use sandbox_protocol::User;

/// The agent runs as somebody else.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The kernel does not say who it is.
    #[error("cannot ask who the agent is: {0}")]
    Ask(#[source] io::Error),
    /// Real, effective and saved ids, of which each must be the one that was asked for.
    #[error("the agent is to be {asked}, and is uids {uids:?}, gids {gids:?}")]
    Other {
        /// Who it is to be.
        asked: User,
        /// Its user ids.
        uids: [u32; 3],
        /// Its group ids.
        gids: [u32; 3],
    },
    /// A supplementary group that nobody gave it.
    #[error("the agent is to be {asked}, and is in the group {group} besides")]
    Group {
        /// Who it is to be.
        asked: User,
        /// The group.
        group: u32,
    },
}

/// Ends in an error unless this process is `asked` in every respect: real, effective and saved
/// user and group, and in no other group.
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
    match groups.find(|group| *group != asked.gid()) {
        Some(group) => Err(IdentityError::Group { asked, group }),
        None => Ok(()),
    }
}

/// Real, effective and saved ids of the user and of the group.
#[expect(unsafe_code, reason = "no safe interface gives the saved ids")]
fn ids() -> io::Result<([u32; 3], [u32; 3])> {
    let (mut uids, mut gids) = ([0; 3], [0; 3]);
    let ([real, effective, saved], [real_gid, effective_gid, saved_gid]) = (&mut uids, &mut gids);
    // SAFETY: each call writes three numbers, to three places that are there for it.
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
