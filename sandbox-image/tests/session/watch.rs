//! Watched directories: what is reported of them, and when.

use sandbox_protocol::limits::{MAX_IN_FLIGHT, MAX_WATCHES};
use sandbox_protocol::message::{Flush, Mkdir, Watch};

use super::exec::elsewhere;
use super::*;

impl Agent {
    /// Begins a watch, and waits until it is on.
    fn watch(&mut self, path: &str, recursive: bool) -> u64 {
        let id = self.send(Watch { path: path.into(), recursive });
        self.await_note(&format!("watched {id}"));
        self.notes.clear();
        id
    }

    /// What was reported since, up to now.
    fn flushed(&mut self) -> Vec<String> {
        self.call(Flush {}).unwrap();
        std::mem::take(&mut self.notes)
    }
}

#[test]
fn changes_come_with_the_answer_to_a_flush_and_none_after_the_watch() {
    let directory = elsewhere();
    let mut agent = Agent::with_programs(directory.path());
    agent.call(Flush {}).unwrap();
    let id = agent.watch(".", true);
    agent.call(Mkdir::new("new")).unwrap();
    fs::write(directory.path().join("new/file"), "x").unwrap();
    assert_eq!(agent.flushed(), ["create new", "create new/file", "write new/file"]);
    // Those of commands too, by themselves.
    agent.says("echo > late");
    agent.await_note("write late");
    assert!(agent.call(Cancel { id, at_once: false }).unwrap().found);
    agent.reply::<Watch>(id).unwrap();
    agent.notes.clear();
    fs::write(directory.path().join("unseen"), "x").unwrap();
    assert!(agent.flushed().is_empty());
    assert!(!agent.call(Cancel { id, at_once: false }).unwrap().found);
    agent.call(Shutdown {}).unwrap();
    assert_eq!(agent.exit_code(), DONE);
}

#[test]
fn watches_have_a_bound_and_are_not_among_the_requests_in_flight() {
    const { assert!(MAX_WATCHES < MAX_IN_FLIGHT) };
    let directory = elsewhere();
    let mut agent = Agent::with_programs(directory.path());
    let ids: Vec<_> = (0..MAX_WATCHES).map(|_| agent.watch(".", false)).collect();
    let refused = agent.call(Watch { path: ".".into(), recursive: false }).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Busy);
    assert!(agent.call(Cancel { id: ids[0], at_once: false }).unwrap().found);
    agent.reply::<Watch>(ids[0]).unwrap();
    let missing = agent.call(Watch { path: "missing".into(), recursive: false }).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    agent.watch(".", false);
    // Each of those that are left is answered before the agent ends.
    agent.call(Shutdown {}).unwrap();
    agent.reply::<Watch>(ids[1]).unwrap();
    assert_eq!(agent.exit_code(), DONE);
}

#[test]
fn directory_that_is_removed_ends_its_watch() {
    let directory = elsewhere();
    fs::create_dir(directory.path().join("sub")).unwrap();
    let mut agent = Agent::with_programs(directory.path());
    let id = agent.watch("sub", true);
    agent.says("rmdir sub");
    agent.reply::<Watch>(id).unwrap();
    assert_eq!(agent.notes, ["remove "]);
}

#[test]
fn sandbox_without_programs_watches_nothing() {
    let directory = temporary();
    let mut agent = Agent::greeted(directory.path());
    let refused = agent.call(Watch { path: ".".into(), recursive: false }).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidRequest);
    agent.call(Flush {}).unwrap();
}
