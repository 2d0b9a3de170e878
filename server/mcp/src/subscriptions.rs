//! The files of which a client hears when a call of the workspace has changed them.
//!
//! What calls change is known without a look at the files, and while processes run, their sandbox watches the
//! files: a subscription neither starts a sandbox nor keeps one. What other programs change at other times is
//! not known.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Mutex;

use rmcp::model::ErrorData;
use sandbox_api::GuestPath;
use tokio::sync::Notify;

use crate::lock;
use crate::uris;

/// How many files a session subscribes to, or one `subscriptions/listen`.
pub(crate) const MAX_SUBSCRIPTIONS: usize = 64;

/// The file that a URI names.
pub(crate) fn file(uri: &str) -> Option<GuestPath> {
    GuestPath::new(uris::path(uri)?).ok()
}

pub(crate) fn too_many() -> ErrorData {
    let message = format!("a client subscribes to at most {MAX_SUBSCRIPTIONS} files at a time");
    ErrorData::invalid_params(message, None)
}

/// The files of one client, by their URIs as it writes them. Several changes of one count as one until the
/// client is notified: a slow client costs no memory.
#[derive(Debug, Default)]
pub(crate) struct Subscriptions {
    files: Mutex<BTreeMap<String, Subscribed>>,
    touched: Notify,
}

#[derive(Debug)]
struct Subscribed {
    path: GuestPath,
    is_touched: bool,
}

impl Subscriptions {
    pub fn add(&self, uri: &str) -> Result<(), ErrorData> {
        let no_file = || ErrorData::invalid_params("only files can be subscribed to", None);
        let path = file(uri).ok_or_else(no_file)?;
        let mut files = lock(&self.files);
        if files.len() >= MAX_SUBSCRIPTIONS && !files.contains_key(uri) {
            return Err(too_many());
        }
        files.entry(uri.to_owned()).or_insert(Subscribed { path, is_touched: false });
        Ok(())
    }

    pub fn remove(&self, uri: &str) {
        lock(&self.files).remove(uri);
    }

    pub fn is_empty(&self) -> bool {
        lock(&self.files).is_empty()
    }

    /// These files, and what is in these directories, have changed; without paths, any file may have.
    pub fn touch(&self, paths: Option<&[GuestPath]>) {
        for Subscribed { path, is_touched } in lock(&self.files).values_mut() {
            *is_touched |= paths.is_none_or(|paths| paths.iter().any(|it| path.is_under(it)));
        }
        self.touched.notify_one();
    }

    /// The URI of a file that has changed since it was given last. Cancel-safe.
    pub async fn updated(&self) -> String {
        loop {
            let updated = lock(&self.files)
                .iter_mut()
                .find_map(|(uri, file)| mem::take(&mut file.is_touched).then(|| uri.clone()));
            match updated {
                Some(uri) => return uri,
                None => self.touched.notified().await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn of(uris: &[&str]) -> Subscriptions {
        let subscriptions = Subscriptions::default();
        uris.iter().for_each(|uri| subscriptions.add(uri).unwrap());
        subscriptions
    }

    /// What its client is notified of now.
    fn updated(subscriptions: &Subscriptions) -> Vec<String> {
        let mut uris = Vec::new();
        while let Some(uri) = subscriptions.updated().now_or_never() {
            uris.push(uri);
        }
        uris
    }

    #[test]
    fn changed_directory_has_changed_the_files_in_it_and_no_others() {
        let [inside, spelt] = ["sandbox:///io/a/deep/x", "sandbox:///io/./b%2Ecsv"];
        let subscriptions = of(&[inside, spelt, "sandbox:///io/ab", "sandbox:///io"]);
        let paths = ["/io/a", "/io/b.csv"].map(|path| GuestPath::new(path).unwrap());
        subscriptions.touch(Some(&paths));
        assert_eq!(updated(&subscriptions), [spelt, inside]);
    }

    #[test]
    fn changes_that_were_not_sent_to_a_client_yet_count_as_one() {
        let [a, b] = ["sandbox:///io/a", "sandbox:///io/b"];
        let subscriptions = of(&[a, b]);
        let path = GuestPath::new("/io/b").unwrap();
        for _ in 0..1000 {
            subscriptions.touch(Some(std::slice::from_ref(&path)));
        }
        assert_eq!(updated(&subscriptions), [b]);
        subscriptions.touch(None);
        assert_eq!(updated(&subscriptions), [a, b], "each may have changed");
        subscriptions.remove(b);
        subscriptions.touch(None);
        assert_eq!(updated(&subscriptions), [a]);
    }

    #[test]
    fn subscription_over_the_limit_is_refused_until_another_one_ends() {
        let uri = |number| format!("sandbox:///io/{number}");
        let subscriptions = of(&[]);
        for number in 0..MAX_SUBSCRIPTIONS {
            subscriptions.add(&uri(number)).unwrap();
        }
        subscriptions.add(&uri(0)).expect("there is one already");
        assert_eq!(subscriptions.add("sandbox:///io/x"), Err(too_many()));
        subscriptions.remove(&uri(0));
        subscriptions.add("sandbox:///io/x").unwrap();
        let long = format!("sandbox:///{}", "x/".repeat(3000));
        for wrong in ["sandbox://output/1/stdout", "skill://x", "sandbox:///io/../x", &*long] {
            assert!(of(&[]).add(wrong).is_err(), "{wrong}");
        }
    }
}
