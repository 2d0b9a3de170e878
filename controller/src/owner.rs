//! Names of users and groups, as this machine knows them.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::unistd::{Gid, Group, Uid, User};

/// How long a directory of users on the network may take.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long what was found is believed. A look takes a thread and reads two files, which is more
/// than the rest of a `stat`.
const FRESH: Duration = Duration::from_secs(30);
/// Owners that are known at one time. The files of a sandbox have one, or a few.
const MAX_KNOWN: usize = 64;

/// A uid and a gid.
type Ids = (u32, u32);
/// Their names.
type Names = (String, String);

/// The names that were asked for lately.
#[derive(Default)]
pub(crate) struct Owners(Mutex<HashMap<Ids, (Instant, Names)>>);

impl Owners {
    /// The names of a user and a group; their numbers where nobody names them, or not in time.
    pub async fn names(&self, uid: u32, gid: u32) -> Names {
        let (ids, now) = ((uid, gid), Instant::now());
        if let Some(names) = self.known(ids, now) {
            return names;
        }
        let names = look_up(ids).await;
        self.keep(ids, now, names.clone());
        names
    }

    fn known(&self, ids: Ids, now: Instant) -> Option<Names> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (found, names) = known.get(&ids)?;
        (now.duration_since(*found) < FRESH).then(|| names.clone())
    }

    fn keep(&self, ids: Ids, now: Instant, names: Names) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MAX_KNOWN {
            // Rare, so that nothing finer is worth its while.
            known.clear();
        }
        known.insert(ids, (now, names));
    }
}

async fn look_up((uid, gid): Ids) -> Names {
    let look_up = tokio::task::spawn_blocking(move || {
        let user = User::from_uid(Uid::from_raw(uid)).ok().flatten().map(|user| user.name);
        let group = Group::from_gid(Gid::from_raw(gid)).ok().flatten().map(|group| group.name);
        (user, group)
    });
    let (user, group) = match tokio::time::timeout(PATIENCE, look_up).await {
        Ok(Ok(names)) => names,
        Ok(Err(_)) | Err(_) => (None, None),
    };
    (user.unwrap_or_else(|| uid.to_string()), group.unwrap_or_else(|| gid.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_has_no_name_is_told_by_number() {
        let owners = Owners::default();
        assert_eq!(owners.names(0, 0).await, ("root".to_owned(), "root".to_owned()));
        let nobody = (3_999_999_999, 3_999_999_998);
        let numbers = ("3999999999".to_owned(), "3999999998".to_owned());
        assert_eq!(owners.names(nobody.0, nobody.1).await, numbers);
    }

    #[test]
    fn names_are_believed_for_a_while_and_only_so_many_are_known() {
        let (owners, now) = (Owners::default(), Instant::now());
        let names = ("a".to_owned(), "b".to_owned());
        owners.keep((1, 2), now, names.clone());
        assert_eq!(
            owners.known((1, 2), now + FRESH - Duration::from_nanos(1)),
            Some(names.clone())
        );
        assert_eq!(owners.known((1, 2), now + FRESH), None);
        assert_eq!(owners.known((2, 1), now), None);
        for uid in 0..1000 {
            owners.keep((uid, 0), now, names.clone());
            assert!(owners.0.lock().unwrap().len() <= MAX_KNOWN);
            assert_eq!(owners.known((uid, 0), now), Some(names.clone()));
        }
    }
}
