//! The archive as a file: its members and their content.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::io::{BufRead as _, Read as _};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use sandbox_dirfd::split;

use crate::budget::Budget;
use crate::error::{RootfsError, TarProblem};
use crate::section::Section;
use crate::stream::{Compression, CountedReader, Plain};
use crate::tar::{Entries, Kind, SparseExtent};

/// The maximum length of a chain of links between members. `docker save` writes a link if an image
/// has a layer twice.
const MAX_LINKS: usize = 4;

/// An image archive.
#[derive(Debug)]
pub(super) struct Archive {
    /// The file as it was opened.
    pub file: Arc<OwnedFd>,
    whole: Section,
    members: HashMap<Vec<u8>, Member>,
}

#[derive(Debug, Clone)]
enum Member {
    Content(SparseExtent),
    /// Another member's name.
    Link(Vec<u8>),
}

impl Archive {
    /// Opens it, and lists its members. If it is compressed as a whole, it is first decompressed
    /// into `spool`'s file: its members are not read in file order.
    pub fn open(
        path: &Path,
        budget: &Budget,
        spool: impl FnOnce() -> Result<File, RootfsError>,
    ) -> Result<Self, RootfsError> {
        let failed = |source| RootfsError::Open { path: path.to_owned(), source };
        // Opening a FIFO without a writer would block.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(path, flags, Mode::empty());
        let file = opened.map(File::from).map_err(|errno| failed(errno.into()))?;
        if !file.metadata().map_err(failed)?.is_file() {
            return Err(RootfsError::NoFile { path: path.to_owned() });
        }
        let opened = Arc::new(file.try_clone().map_err(failed)?.into());
        let mut whole = Section::whole(file)?;
        let mut reader = whole.clone().buffered();
        if Compression::of(reader.fill_buf()?) != Compression::None {
            let mut plain = spool()?;
            let budget = budget.anew();
            io::copy(&mut CountedReader::new(Plain::new(reader)?, &budget), &mut plain)?;
            whole = Section::whole(plain)?;
        }
        let members = members(whole.clone(), budget)?;
        Ok(Self { file: opened, whole, members })
    }

    pub fn has(&self, name: &str) -> bool {
        self.members.contains_key(name.as_bytes())
    }

    /// The content of a member.
    pub fn section(&self, name: &str) -> Result<Section, RootfsError> {
        let missing = || RootfsError::Missing { member: shown(name.as_bytes()) };
        let mut name = resolved(b"", name.as_bytes()).ok_or_else(missing)?;
        for _ in 0..=MAX_LINKS {
            match self.members.get(&name).ok_or_else(missing)? {
                Member::Link(other) => name.clone_from(other),
                Member::Content(extent) => return Ok(self.whole.part(*extent)),
            }
        }
        Err(missing())
    }

    /// All of a small member.
    pub fn document(&self, name: &str, budget: &Budget) -> Result<Vec<u8>, RootfsError> {
        budget.entry(name.as_bytes())?;
        let section = self.section(name)?;
        let limit = budget.bounds.document;
        if section.length() > limit {
            return Err(RootfsError::Limit { what: "bytes in a manifest or configuration", limit });
        }
        let mut bytes = Vec::new();
        section.buffered().read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

/// The members of a tar, without their content. The last of two with the same name counts.
fn members(tar: Section, budget: &Budget) -> Result<HashMap<Vec<u8>, Member>, RootfsError> {
    let mut members = HashMap::new();
    let mut entries = Entries::new(tar);
    while let Some(entry) = entries.next()? {
        budget.entry(&entry.path)?;
        let Some(name) = resolved(b"", &entry.path) else { continue };
        let member = match entry.kind {
            Kind::File => match *entry.extents.as_slice() {
                [SparseExtent { offset: 0, length }] if length == entry.size => {
                    Some(Member::Content(SparseExtent {
                        offset: entries.source().position(),
                        length,
                    }))
                }
                _ => return Err(TarProblem::Sparse.into()),
            },
            Kind::HardLink => resolved(b"", &entry.link).map(Member::Link),
            Kind::Symlink => resolved(split(&name).0, &entry.link).map(Member::Link),
            Kind::Directory | Kind::Special => None,
        };
        if let Some(member) = member {
            members.insert(name, member);
        }
    }
    Ok(members)
}

/// The name of a member relative to a directory of the archive; `None` if it is not in it.
fn resolved(directory: &[u8], name: &[u8]) -> Option<Vec<u8>> {
    let directory = if name.starts_with(b"/") { b"" } else { directory };
    let mut components: Vec<&[u8]> = Vec::new();
    for component in directory.split(|&byte| byte == b'/').chain(name.split(|&byte| byte == b'/')) {
        match component {
            b"" | b"." => {}
            b".." => drop(components.pop()?),
            _ => components.push(component),
        }
    }
    (!components.is_empty()).then(|| components.join(&b'/'))
}

/// Escapes untrusted text for messages, so that no terminal interprets it.
pub(super) fn shown(text: &[u8]) -> String {
    const LONGEST: usize = 256;
    let text = String::from_utf8_lossy(text);
    let mut shown: String = text.chars().take(LONGEST).flat_map(char::escape_debug).collect();
    if text.chars().nth(LONGEST).is_some() {
        shown.push('…');
    }
    shown
}
