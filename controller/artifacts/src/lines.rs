//! Where a file first differs from another one, for people.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::AsFd as _;
use std::path::PathBuf;

use rustix::fs::{Mode, OFlags};
use sandbox_api::artifacts::LineDifference;
use sandbox_dirfd::hex;
use sha2::{Digest as _, Sha256};

use crate::copy::open;
use crate::cursor::{Cursor, MissingDir};
use crate::error::text;

/// The largest file whose lines are compared.
const MAX_BYTES: u64 = 4 << 20;
/// The longest line that is shown, in characters.
const MAX_LINE: usize = 200;

/// A directory with files that others are compared with.
#[derive(Debug, Clone)]
pub struct Reference {
    /// The directory.
    pub dir: PathBuf,
    /// The digests of the files that count, by their paths. Any other content is not compared.
    pub digests: BTreeMap<Vec<u8>, String>,
}

impl Reference {
    /// Whether the file of this path has this digest.
    pub(crate) fn has(&self, path: &[u8], digest: &str) -> bool {
        self.digests.get(path).is_some_and(|known| known == digest)
    }

    /// Where a file of this path first differs. `None` if that cannot be said: one of the two is not a
    /// small text, or the reference is not what its digest says.
    pub(crate) fn first_difference(&self, path: &[u8], file: File) -> Option<LineDifference> {
        let expected_digest = self.digests.get(path)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(&self.dir, flags, Mode::empty()).ok()?;
        let mut cursor = Cursor::new(dir.as_fd(), MissingDir::Fail);
        let expected = content(open(&mut cursor, path).ok()?)?;
        if hex(&Sha256::digest(&expected)) != *expected_digest {
            return None;
        }
        let (expected, actual) = (String::from_utf8(expected).ok()?, content(file)?);
        let actual = String::from_utf8(actual).ok()?;
        let (mut expected, mut actual) = (expected.split('\n'), actual.split('\n'));
        let mut line = 0;
        loop {
            line += 1;
            match (expected.next(), actual.next()) {
                (None, None) => return None,
                (one, other) if one == other => {}
                (one, other) => {
                    let shown =
                        |line: Option<&str>| line.map(|line| line.chars().take(MAX_LINE).collect());
                    let (expected, actual) = (shown(one), shown(other));
                    return Some(LineDifference { path: text(path), line, expected, actual });
                }
            }
        }
    }
}

fn content(file: File) -> Option<Vec<u8>> {
    let mut content = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut content).ok()?;
    (content.len() as u64 <= MAX_BYTES && !content.contains(&0)).then_some(content)
}
