//! The data directory of a server, which one process has at a time.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use sandbox_api::service::LOCK_FILE;

use crate::error::StoreError;

/// How long a server that starts waits for the lock of one that ends.
const LOCK_TIMEOUT: Duration = Duration::from_millis(500);
/// The id of the cluster that a data directory belongs to: it is that of a node then.
pub(crate) const CLUSTER_FILE: &str = "cluster-id";

pub(crate) fn directory(path: &Path, error: io::Error) -> StoreError {
    StoreError::Directory { path: path.to_owned(), source: Arc::new(error) }
}

pub(crate) fn private_file(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    options.mode(0o600).custom_flags(OFlags::NOFOLLOW.bits().cast_signed()).open(path)
}

pub(crate) fn lock(data_dir: &Path) -> Result<File, StoreError> {
    let open =
        private_file(&data_dir.join(LOCK_FILE), OpenOptions::new().create(true).append(true));
    let file = open.map_err(|error| directory(data_dir, error))?;
    let since = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            // A server that was just killed, or that is between a fork and an exec, has it still.
            Err(TryLockError::WouldBlock) if since.elapsed() < LOCK_TIMEOUT => {
                std::thread::sleep(LOCK_TIMEOUT / 20);
            }
            Err(TryLockError::WouldBlock) => {
                return Err(StoreError::InUse { path: data_dir.to_owned() });
            }
            Err(TryLockError::Error(error)) => return Err(directory(data_dir, error)),
        }
    }
}

/// Locks the data directory of a single server. That of a node is refused: what the node keeps there is not in the
/// store of a single server, which would remove it.
pub(crate) fn lock_single(data_dir: &Path) -> Result<File, StoreError> {
    let file = lock(data_dir)?;
    match std::fs::read_to_string(data_dir.join(CLUSTER_FILE)) {
        Ok(cluster) => {
            let (path, cluster) = (data_dir.display(), cluster.trim());
            Err(StoreError::refused(
                format!("the data directory {path} is that of a node of the cluster {cluster}"),
                "name the cluster's --database, or use another --data-dir for a server without one",
            ))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(file),
        Err(error) => Err(directory(data_dir, error)),
    }
}
