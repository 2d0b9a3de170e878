//! What really happened: the runs, by the files that they write on the nodes' disks, and the changes, by a trigger in
//! the database. Neither is what a service says of itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::nodes::{Cluster, NODES};

/// Records each change of what an execution is, in the order of the changes of a subject: who begins one has the
/// lock of its share, and who ends one commits after this.
const TRIGGER: &str = "
    CREATE TABLE witness (number bigint GENERATED ALWAYS AS IDENTITY, id text, subject text, session bigint,
        status text, has_ended boolean);
    CREATE FUNCTION witness() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO witness (id, subject, session, status, has_ended)
        VALUES (NEW.id, NEW.subject, NEW.session, NEW.status, NEW.ended_at IS NOT NULL);
        RETURN NULL;
    END $$;
    CREATE TRIGGER witness AFTER INSERT OR UPDATE OF session, status, ended_at ON executions
        FOR EACH ROW EXECUTE FUNCTION witness()";

/// Makes the database record its changes.
pub fn record_changes(cluster: &Cluster<'_>) {
    _ = cluster.rows(TRIGGER);
}

/// Asserts what holds for the changes of all executions: each began once at most and ended once, and no subject held
/// more than this at one time.
pub fn check_changes(cluster: &Cluster<'_>, limit: usize) {
    let mut begun: BTreeMap<String, u32> = BTreeMap::new();
    let mut ended: BTreeSet<String> = BTreeSet::new();
    let mut held: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut last: BTreeMap<String, String> = BTreeMap::new();
    for row in
        cluster.rows("SELECT id, subject, session, status, has_ended FROM witness ORDER BY number")
    {
        let [id, subject, session, status, has_ended] = &*row else { panic!("{row:?}") };
        let before = last.insert(id.clone(), status.clone());
        if status == "running" && before.as_deref() != Some("running") {
            let times = begun.entry(id.clone()).or_default();
            *times += 1;
            assert_eq!(*times, 1, "{id} began more than once");
        }
        let has_ended = has_ended == "t";
        if has_ended {
            assert!(ended.insert(id.clone()), "{id} ended more than once: {row:?}");
        }
        let its = held.entry(subject.clone()).or_default();
        match !session.is_empty() && !has_ended {
            true => _ = its.insert(id.clone()),
            false => _ = its.remove(id),
        }
        assert!(its.len() <= limit, "of {subject} are held {its:?}, and {limit} may be");
    }
}

/// The files of each number: the node, and its inode.
type Seen = BTreeMap<u64, BTreeSet<(usize, u64)>>;

/// Watches the directories where scripts of the nodes write, and remembers every file that is named by a number.
pub struct Runs {
    seen: Arc<Mutex<Seen>>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Runs {
    /// Begins to watch.
    pub fn watch(cluster: &Cluster<'_>) -> Self {
        let dirs: Vec<PathBuf> = (0..NODES).map(|node| cluster.data_dir(node)).collect();
        let (seen, is_over) = (Arc::<Mutex<_>>::default(), Arc::new(AtomicBool::new(false)));
        let (into, stops) = (seen.clone(), is_over.clone());
        let thread = thread::spawn(move || {
            while !stops.load(Ordering::Acquire) {
                for (node, dir) in dirs.iter().enumerate() {
                    look(node, dir, &into);
                }
                thread::sleep(Duration::from_millis(25));
            }
            for (node, dir) in dirs.iter().enumerate() {
                look(node, dir, &into);
            }
        });
        Self { seen, is_over, thread: Some(thread) }
    }

    /// How often each number ran.
    pub fn end(mut self) -> BTreeMap<u64, usize> {
        self.is_over.store(true, Ordering::Release);
        self.thread.take().unwrap().join().unwrap();
        self.seen.lock().unwrap().iter().map(|(number, files)| (*number, files.len())).collect()
    }
}

impl Drop for Runs {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
    }
}

/// A file is the same one when its directory was moved: its number on the disk is the same. One that a run has
/// removed, and another one has its number, counts as one: what is found is at least what happened twice.
fn look(node: usize, data_dir: &Path, seen: &Mutex<Seen>) {
    for parent in ["scratch", "files"] {
        let dirs = fs::read_dir(data_dir.join(parent)).into_iter().flatten().flatten();
        for file in dirs.filter_map(|dir| fs::read_dir(dir.path()).ok()).flatten().flatten() {
            let Some(number) = file.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            if let Ok(metadata) = file.metadata() {
                seen.lock().unwrap().entry(number).or_default().insert((node, metadata.ino()));
            }
        }
    }
}
