//! Records of containers, whichever controller created them: one file each, in the data directory.
//!
//! A record is created before anything else of its container, and removed last. It is locked for as
//! long as anything of the container may still be created: by the controller during its request,
//! then by the helper and every process that the helper forks, until each becomes the agent or
//! exits. So the holder of the lock knows that only the cgroups of that name can be left.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};
use std::{fs, io, thread};

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use sandbox_helper::cgroup::Hierarchies;
use serde::{Deserialize, Serialize};

use crate::error::EngineError;
use crate::{ContainerSummary, seconds};

/// How long a helper may take to remove what it created.
const BUSY: Duration = Duration::from_secs(10);
/// How long the kernel may take to kill a container's processes.
const DEATH: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(2);

/// The records of a data directory.
#[derive(Debug, Clone)]
pub(super) struct Records {
    folder: PathBuf,
}

/// The content of a record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    labels: Vec<(String, String)>,
    /// Seconds since 1970.
    created: u64,
}

impl Records {
    pub fn new(data_dir: &Path) -> Self {
        Self { folder: data_dir.join("containers") }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Creates a record, locked for as long as the file, or a copy of its descriptor, is open.
    pub fn create(&self, name: &str, labels: &[(String, String)]) -> io::Result<File> {
        let created = seconds(SystemTime::now());
        let text = serde_json::to_vec(&Record { labels: labels.to_vec(), created })?;
        let path = self.path(name);
        loop {
            let mut options = File::options();
            let mut file =
                options.read(true).write(true).create_new(true).mode(0o600).open(&path)?;
            rustix::fs::flock(&file, FlockOperation::LockExclusive)?;
            // A sweep may have removed it as incomplete.
            if rustix::fs::fstat(&file)?.st_nlink == 0 {
                continue;
            }
            file.write_all(&text)?;
            return Ok(file);
        }
    }

    /// The containers whose records have this label.
    pub fn list(&self, label: &str) -> io::Result<Vec<ContainerSummary>> {
        let mut listed = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let Ok(name) = entry?.file_name().into_string() else { continue };
            match self.read(&name) {
                Some(Record { labels, created }) => {
                    if labels.iter().any(|(name, _)| name == label) {
                        // Its helper has the lock for as long as it exists.
                        let running = self.is_locked(&name);
                        let created = SystemTime::UNIX_EPOCH + Duration::from_secs(created);
                        let id = name.clone();
                        listed.push(ContainerSummary { id, name, labels, running, created });
                    }
                }
                None => self.forget_unfinished(&name),
            }
        }
        Ok(listed)
    }

    fn read(&self, name: &str) -> Option<Record> {
        serde_json::from_slice(&fs::read(self.path(name)).ok()?).ok()
    }

    fn is_locked(&self, name: &str) -> bool {
        let shared = FlockOperation::NonBlockingLockShared;
        File::open(self.path(name))
            .is_ok_and(|record| rustix::fs::flock(record, shared) == Err(Errno::WOULDBLOCK))
    }

    /// Removes an incomplete record: the creation of its container never began.
    fn forget_unfinished(&self, name: &str) {
        let Ok(mut file) = File::open(self.path(name)) else { return };
        let is_free = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
        let mut text = Vec::new();
        if is_free
            && file.read_to_end(&mut text).is_ok()
            && serde_json::from_slice::<Record>(&text).is_err()
        {
            _ = fs::remove_file(self.path(name));
        }
    }

    /// Kills and removes a container by its name alone. Waits if a controller or a helper is about
    /// to create or remove it.
    pub fn remove(&self, name: &str, hierarchies: &Hierarchies) -> Result<(), EngineError> {
        if name.is_empty() || name.contains('/') || name.starts_with('.') {
            return Ok(());
        }
        let path = self.path(name);
        let failed = |what: &str, error: io::Error| {
            EngineError::Refused(format!("cannot {what} {}: {error}", path.display()))
        };
        let record = match File::open(&path) {
            Ok(record) => record,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(failed("open", error)),
        };
        let groups = hierarchies.of(name);
        let deadline = Instant::now() + BUSY;
        loop {
            match rustix::fs::flock(&record, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::WOULDBLOCK) if Instant::now() < deadline => {}
                Err(Errno::WOULDBLOCK) => return Err(EngineError::TimedOut { after: BUSY }),
                Err(error) => return Err(failed("lock", error.into())),
            }
            if !path.exists() {
                return Ok(());
            }
            groups.kill();
            thread::sleep(POLL);
        }
        let removed = groups.remove(DEATH);
        removed.map_err(|error| EngineError::Refused(error.to_string()))?;
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", error)),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records() -> (tempfile::TempDir, Records, Hierarchies) {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::new(dir.path());
        fs::create_dir(&records.folder).unwrap();
        (dir, records, Hierarchies::parse(""))
    }

    fn labels() -> Vec<(String, String)> {
        vec![("sandboxctl.instance".into(), "1".into())]
    }

    #[test]
    fn a_record_is_listed_by_its_labels_until_it_is_removed() {
        let (_dir, records, nowhere) = records();
        drop(records.create("sandboxctl-1", &labels()).unwrap());
        drop(records.create("sandboxctl-2", &[]).unwrap());
        let listed = records.list("sandboxctl.instance").unwrap();
        assert_eq!(listed.len(), 1);
        assert_eq!((listed[0].id.as_str(), &listed[0].labels), ("sandboxctl-1", &labels()));
        assert!(listed[0].created.elapsed().unwrap() < Duration::from_secs(60));
        records.remove("sandboxctl-1", &nowhere).unwrap();
        assert_eq!(records.list("sandboxctl.instance").unwrap(), []);
        records.remove("sandboxctl-1", &nowhere).unwrap();
    }

    #[test]
    fn container_runs_for_as_long_as_its_record_is_locked() {
        let (_dir, records, _) = records();
        let record = records.create("sandboxctl-1", &labels()).unwrap();
        let runs = || records.list("sandboxctl.instance").unwrap()[0].running;
        assert!(runs());
        drop(record);
        assert!(!runs());
    }

    #[test]
    fn a_name_is_taken_once() {
        let (_dir, records, _) = records();
        let _record = records.create("sandboxctl-1", &labels()).unwrap();
        assert!(records.create("sandboxctl-1", &labels()).is_err());
    }

    #[test]
    fn a_record_that_was_never_finished_is_forgotten_unless_it_is_being_written() {
        let (_dir, records, _) = records();
        let dead = records.path("dead");
        fs::write(&dead, "{\"labels\":[[").unwrap();
        let writing = File::create(records.path("writing")).unwrap();
        rustix::fs::flock(&writing, FlockOperation::LockExclusive).unwrap();
        assert_eq!(records.list("x").unwrap(), []);
        assert!(!dead.exists() && records.path("writing").exists());
    }

    #[test]
    fn no_name_leads_out_of_the_folder() {
        let (dir, records, nowhere) = records();
        let outside = dir.path().join("outside");
        fs::write(&outside, "").unwrap();
        for name in ["../outside", "", ".", "..", "/etc/passwd"] {
            records.remove(name, &nowhere).unwrap();
        }
        assert!(outside.exists() && records.folder.exists());
    }
}
