//! The manifest of what changed.

use std::ffi::OsStr;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use sandbox_api::changes::{Before, Change, ChangeManifest, ChangeOp, ChangeType};
use sandbox_dirfd::{FileStamp, Root, hex};

use crate::changed::{Changed, target};
use crate::compare::Comparison;
use crate::tree::kind_of;

impl Comparison {
    /// The manifest, with at most `most` changes. `copy` is the copy that was compared.
    pub(crate) fn manifest(&self, copy: BorrowedFd<'_>, most: usize) -> ChangeManifest {
        let copy = Root::new(copy).ok();
        let root = self.root_before().map(|before| {
            let change = Changed::new(ChangeOp::Mode, Some(self.root), Some(before.into()));
            document(b".", &change, None)
        });
        let listed =
            self.changed.iter().map(|(path, change)| document(path, change, copy.as_ref()));
        let count = self.changed.len() + usize::from(root.is_some());
        ChangeManifest {
            changes: root.into_iter().chain(listed).take(most).collect(),
            truncated: count > most,
            ..ChangeManifest::default()
        }
    }
}

fn document(path: &[u8], change: &Changed, copy: Option<&Root<'_>>) -> Change {
    let kind = change.kind();
    let is_link = |stamp: FileStamp| kind_of(stamp) == ChangeType::Symlink;
    let before = change.before.map(|before| Before {
        bytes: bytes(before.original),
        sha256: change.digests.before.map(|digest| hex(&digest)),
        mode: mode(before.original),
    });
    let is_file = kind == ChangeType::File && change.op != ChangeOp::Removed;
    let mime = is_file.then(|| mime_guess::from_path(Path::new(OsStr::from_bytes(path))));
    let target = match (change.now, copy) {
        (Some(now), Some(copy)) if is_link(now) => target(copy, path),
        _ => None,
    };
    Change {
        path: path.into(),
        op: change.op,
        kind,
        bytes: change.now.and_then(bytes),
        sha256: change.digests.now.map(|digest| hex(&digest)),
        mode: change.now.and_then(mode),
        mime: mime.and_then(|guess| Some(guess.first()?.essence_str().to_owned())),
        target: target.map(|target| String::from_utf8_lossy(&target).into_owned()),
        from: change.from.as_ref().map(|from| String::from_utf8_lossy(from).into_owned()),
        before,
    }
}

fn bytes(stamp: FileStamp) -> Option<u64> {
    matches!(kind_of(stamp), ChangeType::File | ChangeType::Symlink).then_some(stamp.size)
}

fn mode(stamp: FileStamp) -> Option<String> {
    (kind_of(stamp) != ChangeType::Symlink).then(|| format!("{:04o}", stamp.permissions()))
}
