//! Maps paths of the host to guest paths and back. Pure: no file is accessed.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use sandbox_protocol::path::GuestPath;

/// The guest path and the host path of each mount.
#[derive(Debug)]
pub(crate) struct PathMap(Vec<(GuestPath, PathBuf)>);

impl PathMap {
    pub fn new(mounts: impl Iterator<Item = (GuestPath, PathBuf)>) -> Self {
        Self(mounts.collect())
    }

    /// The guest path of a host path, by the mount with the longest host path.
    pub fn guest(&self, host: &Path) -> Option<GuestPath> {
        if !host.is_absolute() || host.components().any(|part| part == Component::ParentDir) {
            return None;
        }
        let below = self.0.iter().filter_map(|(guest, root)| {
            Some((root.components().count(), guest, host.strip_prefix(root).ok()?))
        });
        let (_, guest, rest) = below.max_by_key(|(depth, ..)| *depth)?;
        rest.components()
            .try_fold(guest.clone(), |path, part| path.join(part.as_os_str().as_bytes()).ok())
    }

    /// The host path of a guest path, by the mount with the longest guest path.
    pub fn host(&self, guest: &GuestPath) -> Option<PathBuf> {
        let below = self.0.iter().filter_map(|(mount, root)| {
            Some((mount.components().count(), root, guest.strip_prefix(mount)?))
        });
        let (_, root, rest) = below.max_by_key(|(depth, ..)| *depth)?;
        Some(if rest.is_empty() { root.clone() } else { root.join(OsStr::from_bytes(rest)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places() -> PathMap {
        let mounts =
            [("/io", "/srv/out"), ("/in/a", "/srv/out/inputs/a"), ("/in/b.csv", "/data/b.csv")];
        let mount = |(guest, host)| (GuestPath::new(guest).unwrap(), PathBuf::from(host));
        PathMap::new(mounts.into_iter().map(mount))
    }

    #[test]
    fn the_most_specific_mount_counts_by_component() {
        let guest = |host: &str| places().guest(Path::new(host)).map(|path| path.to_string());
        assert_eq!(guest("/srv/out").as_deref(), Some("/io"));
        assert_eq!(guest("/srv/out/x/./y").as_deref(), Some("/io/x/y"));
        assert_eq!(guest("/srv/out/inputs/a/b").as_deref(), Some("/in/a/b"));
        assert_eq!(guest("/srv/out/inputs/ab").as_deref(), Some("/io/inputs/ab"));
        assert_eq!(guest("/data/b.csv").as_deref(), Some("/in/b.csv"));
        for outside in ["/srv/outside", "/srv", "/data/b.csv2", "out/x", "/srv/out/../x", ""] {
            assert_eq!(guest(outside), None, "{outside}");
        }
        let host = |guest: &str| places().host(&GuestPath::new(guest).unwrap());
        assert_eq!(host("/io"), Some("/srv/out".into()));
        assert_eq!(host("/io/x"), Some("/srv/out/x".into()));
        assert_eq!(host("/in/a/b"), Some("/srv/out/inputs/a/b".into()));
        assert_eq!(host("/in/b.csv"), Some("/data/b.csv".into()));
        for outside in ["/iox", "/in", "/in/b.csv2", "/"] {
            assert_eq!(host(outside), None, "{outside}");
        }
    }
}
