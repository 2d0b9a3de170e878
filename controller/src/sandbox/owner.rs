//! Names of users and groups on this machine.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::unistd::{Gid, Group, Uid, User};
use tokio::sync::OnceCell;

/// How long a lookup may take: a user directory on the network can be slow.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a result is cached. A lookup needs a thread and reads two files, which is more than the
/// rest of a `stat`.
const FRESH: Duration = Duration::from_secs(30);
/// The maximum number of cached owners. The files of a sandbox have one, or a few.
const MAX_KNOWN: usize = 64;

/// A uid and a gid.
type Ids = (u32, u32);
/// Their names.
type Names = (String, String);

/// Since when names are cached or being looked up.
type Known = (Instant, Arc<OnceCell<Names>>);

/// A cache of recently requested names.
#[derive(Default)]
pub(crate) struct Owners(Mutex<HashMap<Ids, Known>>);

impl Owners {
    /// The names of a user and a group; their numbers if they have no names, or if the lookup is
    /// too slow.
    pub async fn names(&self, uid: u32, gid: u32) -> Names {
        let ids = (uid, gid);
        // Concurrent callers wait for the same lookup.
        self.known(ids, Instant::now()).get_or_init(|| look_up(ids)).await.clone()
    }

    fn known(&self, ids: Ids, now: Instant) -> Arc<OnceCell<Names>> {
        let mut known = crate::lock(&self.0);
        if known.len() >= MAX_KNOWN && !known.contains_key(&ids) {
            // Rare, so clearing the whole cache is good enough.
            known.clear();
        }
        let (since, names) = known.entry(ids).or_insert_with(|| (now, Arc::default()));
        if now.duration_since(*since) >= FRESH {
            (*since, *names) = (now, Arc::default());
        }
        names.clone()
    }
}

async fn look_up((uid, gid): Ids) -> Names {
    let look_up = tokio::task::spawn_blocking(move || {
        let user = User::from_uid(Uid::from_raw(uid)).ok().flatten().map(|user| user.name);
        let group = Group::from_gid(Gid::from_raw(gid)).ok().flatten().map(|group| group.name);
        (user, group)
    });
    let (user, group) = match tokio::time::timeout(LOOKUP_TIMEOUT, look_up).await {
        Ok(Ok(names)) => names,
        Ok(Err(_)) | Err(_) => (None, None),
    };
    (user.unwrap_or_else(|| uid.to_string()), group.unwrap_or_else(|| gid.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn owner_without_a_name_is_shown_by_number() {
        let owners = Owners::default();
        assert_eq!(owners.names(0, 0).await, ("root".to_owned(), "root".to_owned()));
        let unknown = (3_999_999_999, 3_999_999_998);
        let numbers = ("3999999999".to_owned(), "3999999998".to_owned());
        assert_eq!(owners.names(unknown.0, unknown.1).await, numbers);
    }

    #[test]
    fn names_are_believed_for_a_while_and_only_so_many_are_known() {
        let (owners, now) = (Owners::default(), Instant::now());
        let first = owners.known((1, 2), now);
        let is_first = |ids, at| Arc::ptr_eq(&first, &owners.known(ids, at));
        assert!(is_first((1, 2), now + FRESH - Duration::from_nanos(1)));
        assert!(!is_first((2, 1), now));
        assert!(!is_first((1, 2), now + FRESH));
        for uid in 0..1000 {
            let names = owners.known((uid, 0), now);
            assert!(owners.0.lock().unwrap().len() <= MAX_KNOWN);
            assert!(Arc::ptr_eq(&names, &owners.known((uid, 0), now)));
        }
    }
}
