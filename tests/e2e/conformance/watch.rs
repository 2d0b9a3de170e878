//! Watched directories of sandboxes: over HTTP in a kept one, and in the library over an overlay.

use std::future::poll_fn;
use std::pin::Pin;

use futures_util::Stream as _;
use sandbox_api::operation::{Mkdir, Write};
use sandbox_api::{WatchRecord, WatchRequest};
use sandbox_controller::Command;
use sandbox_controller::files::FileWatch;
use serde_json::{Value, json};

use super::living::{Living, Reader};
use crate::engines::{Feature, has};
use crate::fixture::Fixture;
use crate::library::{Guest, kind_of};
use crate::rootfs::Rootfs;

fn watch(living: &Living<'_>, path: &str, recursive: bool) -> Reader {
    let query = format!("path={path}&recursive={recursive}");
    let path = format!("/v1/sandboxes/{}/watch?{query}", living.id);
    Reader::open(&living.service.url, &path)
}

fn words(event: &Value) -> String {
    assert_eq!(event["event"], "change", "{event}");
    format!("{} {}", event["change"].as_str().unwrap(), event["name"].as_str().unwrap())
}

/// The changes up to this one.
#[track_caller]
fn until(reader: &mut Reader, last: &str) -> Vec<String> {
    let mut seen = Vec::new();
    while seen.last().is_none_or(|it| it != last) {
        let event = reader.next().unwrap_or_else(|| panic!("no {last:?} in {seen:?}"));
        seen.push(words(&event));
    }
    seen
}

#[test]
fn changes_by_operations_and_programs_are_reported_from_when_the_watch_is_on() {
    let place = Fixture::new();
    let Some(living) = Living::new(&place) else { return };
    living.run("mkdir -p dir/old; echo before > dir/before");
    let mut all = watch(&living, "dir", true);
    let mut top = watch(&living, "/io/dir", false);
    // Whole at once, by an operation.
    let (status, answer) = living.send("PUT", "/files/dir/up", "content");
    assert_eq!(status, 200, "{answer}");
    assert_eq!(until(&mut all, "create up"), ["create up"]);
    living.run("echo x >> dir/up; mv dir/up dir/old/moved; chmod 600 dir/old/moved; rm dir/before");
    let seen = until(&mut all, "remove before");
    assert_eq!(seen[..3], ["write up", "rename up", "create old/moved"]);
    assert_eq!(seen[3..], ["chmod old/moved", "remove before"]);
    // What is written in a new directory at once is not missed.
    living.run("mkdir -p dir/new/deep; echo x > dir/new/deep/file");
    let seen = until(&mut all, "write new/deep/file");
    for made in ["create new", "create new/deep", "create new/deep/file"] {
        assert_eq!(seen.iter().filter(|it| *it == made).count(), 1, "{seen:?}");
    }
    assert_eq!(
        until(&mut top, "create new"),
        ["create up", "write up", "rename up", "remove before", "create new"]
    );
    living.run("rm -r dir");
    assert_eq!(until(&mut top, "remove ").last().unwrap(), "remove ");
    assert!(top.next().is_none(), "it ends with its directory");
    living.end();
}

#[test]
fn watches_are_refused_for_what_is_no_directory_and_beyond_their_bound() {
    let place = Fixture::new();
    let Some(living) = Living::new(&place) else { return };
    living.touch("file");
    let refused = |path: &str| {
        let (status, problem) = living.send("GET", &format!("/watch?path={path}"), "");
        assert!((400..500).contains(&status), "{status} {problem}");
        problem
    };
    assert!(refused("missing").contains("No such file"), "{}", refused("missing"));
    assert!(refused("file").contains("Not a directory"), "{}", refused("file"));
    let readers: Vec<Reader> = (0..8).map(|_| watch(&living, ".", false)).collect();
    let (status, problem) = living.send("GET", "/watch?path=.", "");
    assert!(status >= 400 && problem.contains("watched already"), "{status} {problem}");
    // They take no place of other requests.
    assert_eq!(living.run("echo on"), "on\n");
    drop(readers);
    // Those who read nothing hinder neither its end.
    living.end();
}

#[test]
fn watch_goes_where_operations_may_go() {
    let place = Fixture::new();
    let more = json!({ "spec": { "files": "all" } });
    let Some(living) = Living::with(&place, &Rootfs::busybox(), more) else { return };
    living.run("mkdir /tmp/there; ln -s /tmp/there link");
    let mut reader = watch(&living, "link", true);
    living.run("mkdir /tmp/there/sub; echo x > /tmp/there/sub/file");
    let seen = until(&mut reader, "write sub/file");
    assert_eq!(seen, ["create sub", "create sub/file", "write sub/file"]);
    drop(reader);
    living.end();
}

async fn next(watch: &mut FileWatch) -> String {
    let record = poll_fn(|context| Pin::new(&mut *watch).poll_next(context)).await;
    match record.unwrap().unwrap() {
        WatchRecord::Event(event) => format!("{} {}", event.change.as_str(), event.name),
        WatchRecord::Omitted { events } => format!("omitted {events}"),
    }
}

/// What is there to be read after a flush.
async fn flushed(watch: &mut FileWatch, count: usize) -> Vec<String> {
    watch.flushed().await;
    let mut seen = Vec::new();
    for _ in 0..count {
        let ready = tokio::time::timeout(std::time::Duration::from_millis(1), next(watch));
        seen.push(ready.await.expect("it is there after the flush"));
    }
    seen
}

#[test]
fn changes_of_an_overlay_are_there_after_a_flush() {
    if !has(Feature::KeptProcesses) {
        return;
    }
    let place = Fixture::new();
    std::fs::create_dir_all(place.path("sandbox-files/lower")).unwrap();
    std::fs::write(place.path("sandbox-files/lower/file"), "below").unwrap();
    let provided = Rootfs::busybox().provide();
    let guest = Guest::in_place(place, |spec| spec.root(provided.root()).staged());
    let request = |path: &str| WatchRequest { path: path.into(), recursive: true };
    let mut watch = guest.wait(guest.sandbox.watch_files(request("."))).unwrap();
    guest.wait(async {
        guest.sandbox.call(Mkdir::new("made")).await.unwrap();
        assert_eq!(flushed(&mut watch, 1).await, ["create made"]);
        guest.sandbox.write(Write::new("made/file"), b"x").await.unwrap();
        assert_eq!(flushed(&mut watch, 1).await, ["create made/file"]);
        guest.sandbox.write(Write::new("made/file"), b"y").await.unwrap();
        assert_eq!(flushed(&mut watch, 1).await, ["write made/file"]);
        guest.sandbox.run(Command::shell("echo x >> lower/file")).await.unwrap();
        assert_eq!(flushed(&mut watch, 1).await, ["write lower/file"]);
    });
    let missing = guest.wait(guest.sandbox.watch_files(request("missing")));
    assert_eq!(kind_of(missing), "not_found");
    assert_eq!(guest.data(json!({"operation": "exists", "path": "made"}))["exists"], true);
}
