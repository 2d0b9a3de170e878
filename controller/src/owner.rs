//! Names of users and groups, as this machine knows them.

use std::time::Duration;

use nix::unistd::{Gid, Group, Uid, User};

/// How long a directory of users on the network may take.
const PATIENCE: Duration = Duration::from_secs(1);

/// The names of a user and a group; their numbers where nobody names them, or not in time.
pub(crate) async fn names(uid: u32, gid: u32) -> (String, String) {
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
        assert_eq!(names(0, 0).await, ("root".to_owned(), "root".to_owned()));
        let nobody = (3_999_999_999, 3_999_999_998);
        let numbers = ("3999999999".to_owned(), "3999999998".to_owned());
        assert_eq!(names(nobody.0, nobody.1).await, numbers);
    }
}
