//! What is known of an entry beyond its type, size and times: permissions, owners and their names,
//! the target of a link, metadata.
//!
//! Names and metadata are looked up only for operations that may go anywhere in the container. Names
//! are those of the container's own files, which may be hostile: they are read up to a bound, and
//! through no link. Metadata are extended attributes: `user.sbx.KEY` and `user.e2b.KEY`. The programs
//! of a sandbox can set some only where its io dir is bounded: elsewhere they would hide how much space they take.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{
    FileType, OFlags, Stat, XattrFlags, fgetxattr, flistxattr, fremovexattr, fsetxattr, readlinkat,
};
use rustix::io::Errno;
use sandbox_dirfd::{Root, retry, split};
use sandbox_protocol::WireString;
use sandbox_protocol::message::{EntryDetails, SetMetadata, SetMetadataReply};
use sandbox_protocol::operation::{MAX_METADATA_BYTES, MAX_METADATA_KEYS, METADATA_NAMESPACES};

use super::access::Files;
use super::error::FileError;
use super::follow::LastLink;
use super::mounts::{GROUPS, LocatedPath, MountTarget, Mounts, USERS};

/// The longest file of names that is read.
const NAMES_BYTES: u64 = 1 << 20;
/// The longest name.
const NAME_BYTES: usize = 256;
/// Linux `XATTR_LIST_MAX`.
const LIST_BYTES: usize = 64 << 10;
/// Linux `XATTR_NAME_MAX`.
const ATTRIBUTE_NAME_BYTES: usize = 255;
/// What the names of attributes begin with that anyone may set who may write a file.
const USER: &str = "user.";
/// Flags to open an entry to read its attributes: without waiting for the other end of a FIFO.
const FLAGS: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// The names of users and groups in the container.
#[derive(Debug, Default)]
pub(super) struct Owners {
    users: HashMap<u32, String>,
    groups: HashMap<u32, String>,
}

/// The names in a file of lines `NAME:PASSWORD:ID:…`; none if it is not there, or is no such file.
fn names(mounts: &Mounts, path: &str) -> HashMap<u32, String> {
    // A regular file: nothing else is mounted as one.
    let opened = mounts.container_file(path).and_then(|file| file.open_file(FLAGS).ok());
    let Some(opened) = opened else { return HashMap::new() };
    let mut content = Vec::new();
    if File::from(opened).take(NAMES_BYTES).read_to_end(&mut content).is_err() {
        return HashMap::new();
    }
    let mut names = HashMap::new();
    for line in String::from_utf8_lossy(&content).lines() {
        let mut fields = line.split(':');
        let (name, id) = (fields.next(), fields.nth(1).and_then(|id| id.parse().ok()));
        if let (Some(name), Some(id)) = (name, id)
            && (1..=NAME_BYTES).contains(&name.len())
        {
            names.entry(id).or_insert_with(|| name.to_owned());
        }
    }
    names
}

/// The metadata of an open file, by `NAMESPACE.KEY`, up to the bounds.
fn metadata(file: &OwnedFd) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut list = vec![0_u8; LIST_BYTES];
    // A file system without them has none.
    let Ok(length) = retry(|| flistxattr(file, &mut list[..])) else { return found };
    let mut bytes = 0;
    for attribute in list[..length].split(|&byte| byte == 0) {
        let Some(name) = std::str::from_utf8(attribute).ok().and_then(name_of) else { continue };
        let mut value = [0_u8; MAX_METADATA_BYTES];
        let Ok(length) = retry(|| fgetxattr(file, attribute, &mut value[..])) else { continue };
        let value = String::from_utf8_lossy(&value[..length]).into_owned();
        bytes += name.len() + value.len();
        if found.len() == MAX_METADATA_KEYS || bytes > MAX_METADATA_BYTES {
            break;
        }
        found.insert(name.to_owned(), value);
    }
    found
}

/// `NAMESPACE.KEY` of an attribute.
fn name_of(attribute: &str) -> Option<&str> {
    let name = attribute.strip_prefix(USER)?;
    let (namespace, _) = name.split_once('.')?;
    METADATA_NAMESPACES.contains(&namespace).then_some(name)
}

impl Files {
    /// The names of owners, if they are looked up.
    pub(super) fn owners(&self) -> Owners {
        if !self.follows {
            return Owners::default();
        }
        Owners { users: names(&self.mounts, USERS), groups: names(&self.mounts, GROUPS) }
    }

    /// The details of an entry of a directory.
    pub(super) fn details_in(
        &self,
        (root, directory, name): (&Root<'_>, impl AsFd, &[u8]),
        stat: &Stat,
        owners: &Owners,
    ) -> EntryDetails {
        let mut details = self.details(stat, owners);
        if !self.follows {
            return details;
        }
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Symlink => {
                let target = readlinkat(&directory, name, Vec::new());
                details.target = target.ok().map(|target| WireString::new(target.as_bytes()));
            }
            FileType::RegularFile | FileType::Directory => {
                // What cannot be read shows no metadata.
                let opened = root.child(directory.as_fd(), name, FLAGS);
                details.metadata = opened.map(|opened| metadata(&opened)).unwrap_or_default();
            }
            _ => {}
        }
        details
    }

    pub(super) fn details(&self, stat: &Stat, owners: &Owners) -> EntryDetails {
        EntryDetails {
            permissions: stat.st_mode & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
            owner: owners.users.get(&stat.st_uid).cloned(),
            group: owners.groups.get(&stat.st_gid).cloned(),
            target: None,
            metadata: BTreeMap::new(),
        }
    }

    /// The details of a located path.
    pub(super) fn details_of(&self, located: &LocatedPath<'_>, stat: &Stat) -> EntryDetails {
        let owners = self.owners();
        match &located.target {
            _ if !self.follows => self.details(stat, &owners),
            MountTarget::File => {
                let opened = located.mount.open_file(FLAGS);
                let metadata = opened.map(|opened| metadata(&opened)).unwrap_or_default();
                EntryDetails { metadata, ..self.details(stat, &owners) }
            }
            MountTarget::Beneath(root, relative) => {
                let (parent, name) = split(relative);
                let name: &[u8] = if relative.is_empty() { b"." } else { name };
                match root.directory(parent) {
                    Ok(directory) => self.details_in((root, directory, name), stat, &owners),
                    Err(_) => self.details(stat, &owners),
                }
            }
        }
    }

    /// Replaces the metadata of a file or a directory in one namespace.
    ///
    /// # Errors
    ///
    /// [`FileError`]; `invalid_request` for what is no key, for too much, and on a file system without
    /// extended attributes. Some may have been replaced if the disk is full.
    pub fn set_metadata(&self, request: &SetMetadata) -> Result<SetMetadataReply, FileError> {
        let written = request.path.as_bytes();
        self.expect_following(written)?;
        let refuse = |reason: String| FileError::invalid(reason, written);
        let SetMetadata { namespace, metadata: wanted, .. } = request;
        if !METADATA_NAMESPACES.contains(&&**namespace) {
            return Err(refuse(format!("no namespace of metadata is called '{namespace}'")));
        }
        let attribute = |key: &str| format!("{USER}{namespace}.{key}");
        for key in wanted.keys() {
            let is_text = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic());
            if !is_text || attribute(key).len() > ATTRIBUTE_NAME_BYTES {
                let key = key.escape_debug();
                return Err(refuse(format!("'{key}' cannot be a key of metadata")));
            }
        }
        let located = self.locate_to_write(written, LastLink::Follow)?;
        let (file, _) = self.open_existing(&located, written)?;
        let own = format!("{namespace}.");
        let (old, others): (BTreeMap<_, _>, BTreeMap<_, _>) =
            metadata(&file).into_iter().partition(|(name, _)| name.starts_with(&own));
        let bytes = |name: &str, value: &str| name.len() + value.len();
        let of_others: usize = others.iter().map(|(name, value)| bytes(name, value)).sum();
        let of_own: usize = wanted.iter().map(|(key, it)| own.len() + bytes(key, it)).sum();
        if others.len() + wanted.len() > MAX_METADATA_KEYS
            || of_others + of_own > MAX_METADATA_BYTES
        {
            return Err(refuse(format!(
                "a file has at most {MAX_METADATA_KEYS} keys of metadata, and {MAX_METADATA_BYTES} \
                 bytes of keys and values"
            )));
        }
        let fail = |errno| match errno {
            Errno::OPNOTSUPP => {
                refuse("this file system stores no metadata (extended attributes)".to_owned())
            }
            errno => FileError::system(errno, written),
        };
        for key in old.keys().filter_map(|name| name.strip_prefix(&own)) {
            if !wanted.contains_key(key) {
                retry(|| fremovexattr(&file, attribute(key))).map_err(fail)?;
            }
        }
        for (key, value) in wanted {
            let set = || fsetxattr(&file, attribute(key), value.as_bytes(), XattrFlags::empty());
            retry(set).map_err(fail)?;
        }
        Ok(SetMetadataReply { path: (&located.path).into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_attributes_are_metadata() {
        for (attribute, name) in [
            ("user.sbx.a", Some("sbx.a")),
            ("user.e2b.a.b", Some("e2b.a.b")),
            ("user.other.a", None),
            ("user.sbx", None),
            ("security.sbx.a", None),
        ] {
            assert_eq!(name_of(attribute), name, "{attribute}");
        }
    }
}
