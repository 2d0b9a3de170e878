//! The data directory of a node: which cluster it belongs to, and which node it is.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;

use sandbox_api::service::DATABASE_FILE;
use sandbox_dirfd::{create_private_dir, random_hex};

use crate::data_dir::{CLUSTER_FILE, directory, lock, private_file};
use crate::error::StoreError;

/// The id of the node.
const NODE_FILE: &str = "node-id";
/// The most of a host's name that the id of a node begins with.
const HOST_NAME: usize = 32;

/// The data directory of a node, which no other process has as long as this.
#[derive(Debug)]
pub struct NodeDir {
    node: String,
    _lock: File,
}

impl NodeDir {
    /// Opens the data directory of a node of this cluster, or makes it one.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the directory cannot be used, if another process has it, or if it belongs to
    /// another cluster.
    pub fn open(data_dir: &Path, cluster: &str) -> Result<Self, StoreError> {
        create_private_dir(data_dir).map_err(|error| directory(data_dir, error))?;
        let lock = lock(data_dir)?;
        if data_dir.join(DATABASE_FILE).exists() {
            let path = data_dir.display();
            return Err(StoreError::refused(
                format!("the data directory {path} has the store of a single server"),
                "give the node a --data-dir of its own",
            ));
        }
        let id = |name, new: &dyn Fn() -> String| {
            id(data_dir, name, new).map_err(|error| directory(data_dir, error))
        };
        let found = id(CLUSTER_FILE, &|| cluster.to_owned())?;
        if found != cluster {
            let path = data_dir.display();
            return Err(StoreError::refused(
                format!("the data directory {path} belongs to the cluster {found}"),
                "use another --data-dir, or the database that the directory was used with",
            ));
        }
        Ok(Self { node: id(NODE_FILE, &new_node)?, _lock: lock })
    }

    /// The id of the node: the name of its host, and something random.
    #[must_use]
    pub fn node(&self) -> &str {
        &self.node
    }
}

/// The id in a file, which is made if it is missing.
fn id(data_dir: &Path, name: &str, new: &dyn Fn() -> String) -> io::Result<String> {
    let file = data_dir.join(name);
    match fs::read_to_string(&file) {
        Ok(text) if !text.trim().is_empty() => return Ok(text.trim().to_owned()),
        Ok(_) => return Err(io::Error::other(format!("{name} is empty"))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    // It is there whole, or not at all.
    let (id, part) = (new(), data_dir.join(format!("{name}.part")));
    let mut written =
        private_file(&part, OpenOptions::new().create(true).write(true).truncate(true))?;
    writeln!(written, "{id}")?;
    written.sync_all()?;
    fs::rename(&part, &file)?;
    File::open(data_dir)?.sync_all()?;
    Ok(id)
}

fn new_node() -> String {
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy().to_ascii_lowercase();
    let label = host.split('.').next().unwrap_or_default();
    let label: String = label
        .chars()
        .filter(|it| it.is_ascii_alphanumeric() || *it == '-')
        .take(HOST_NAME)
        .collect();
    let label = if label.is_empty() { "node" } else { &label };
    format!("{label}-{}", random_hex::<3>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Durability, Store};

    #[test]
    fn data_directory_is_that_of_a_node_or_of_a_single_server() {
        let parent = tempfile::tempdir().unwrap();
        let (node, single) = (parent.path().join("node"), parent.path().join("single"));
        drop(NodeDir::open(&node, "c1").unwrap());
        let refused = Store::open(&node, Durability::Disk).unwrap_err();
        assert!(refused.to_string().ends_with("of a node of the cluster c1"), "{refused}");
        assert!(!node.join(DATABASE_FILE).exists());
        drop(Store::open(&single, Durability::Disk).unwrap());
        let refused = NodeDir::open(&single, "c1").unwrap_err();
        assert!(refused.to_string().ends_with("of a single server"), "{refused}");
        assert!(!single.join(CLUSTER_FILE).exists());
    }

    #[test]
    fn data_directory_stays_the_same_node_of_one_cluster() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("data");
        let first = NodeDir::open(&path, "c1").unwrap();
        let node = first.node().to_owned();
        assert!(matches!(NodeDir::open(&path, "c1"), Err(StoreError::InUse { .. })));
        drop(first);
        assert_eq!(NodeDir::open(&path, "c1").unwrap().node(), node);
        let other = NodeDir::open(&path, "c2").unwrap_err();
        assert!(other.to_string().ends_with("to the cluster c1"), "{other}");
        let elsewhere = NodeDir::open(&parent.path().join("other"), "c1").unwrap();
        assert_ne!(elsewhere.node(), node);
    }
}
