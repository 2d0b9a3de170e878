//! File operations with a scripted agent: late answers of an honest one, any answer of a hostile
//! one.

use std::time::Duration;

use sandbox_api::Script;
use sandbox_api::operation::{Exists, List, Operation, Read, Rename, Stat, Write};
use sandbox_protocol::limits::{CREDIT_STEP, INITIAL_CREDIT, LIST_PAGE, MAX_CHUNK_BYTES};
use sandbox_protocol::message::{
    Chunk, ControlReply, Credit, Entry, EntryKind, ExistsReply, ListReply, Page, ReadReply,
    RenameReply, Touched, WriteReply,
};
use sandbox_protocol::{Base64, ErrorKind, ToAgent, WireError};
use serde::Serialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::fake::{Scripted, World, greeted};
use super::*;
use crate::mounts::tests::looks_that_find;

type Line = Vec<u8>;

fn chunk(stream: u32, seq: u64, bytes: usize, last: bool) -> Line {
    let data = Base64(vec![b'x'; bytes]);
    FromAgent::Chunk(Chunk { stream, seq, data, last }).encode().unwrap()
}

fn credit(stream: u32, bytes: u64) -> Line {
    FromAgent::Credit(Credit { stream, bytes }).encode().unwrap()
}

fn page(request: u64, names: &[&str]) -> Line {
    let entry = |name: &&str| Entry {
        name: (*name).into(),
        kind: EntryKind::File,
        size: 1,
        modified: None,
        details: None,
    };
    let entries = names.iter().map(entry).collect();
    FromAgent::Page(Page { request, entries }).encode().unwrap()
}

fn reply(id: u64, reply: impl Serialize) -> Line {
    FromAgent::encode_reply(id, Ok(reply)).unwrap()
}

fn refusal(id: u64, kind: ErrorKind) -> Line {
    FromAgent::encode_reply::<()>(id, Err(WireError::new(kind, "a: no"))).unwrap()
}

fn read_reply(id: u64, path: &str, bytes: u64) -> Line {
    reply(id, ReadReply { path: path.into(), bytes, size: bytes })
}

fn write_reply(id: u64, bytes_written: u64) -> Line {
    reply(id, WriteReply { path: "/io/a".into(), bytes_written, created: true })
}

fn list_reply(id: u64, path: &str, entries: u64) -> Line {
    reply(id, ListReply { path: path.into(), entries, cut: None })
}

/// A world whose agent sends `lines` at the first request, and then nothing.
fn says(lines: impl FnOnce(u64, u32) -> Vec<Line> + Send + 'static) -> World {
    greeted(move |mut agent: Scripted, _| async move {
        let (id, _) = agent.agent.request().await.unwrap();
        for line in lines(id, agent.agent.stream) {
            agent.agent.send(line).await;
        }
        while agent.agent.message().await.is_some() {}
    })
}

/// The error of an operation whose agent breaks the protocol, which ends the sandbox.
async fn breach<T>(world: World, work: impl AsyncFnOnce(&Sandbox) -> Result<T, Error>) -> String {
    let sandbox = world.launch().await.unwrap();
    let Err(error) = work(&sandbox).await else { panic!("it was taken for an answer") };
    assert_eq!(error.kind(), ErrorKind::AgentLost, "{error}");
    let mut running = world.fake.running.subscribe();
    running.wait_for(|running| !running).await.unwrap();
    assert!(world.fake.calls().contains(&"kill"), "{error}");
    let next = sandbox.call(Exists::new("a")).await.unwrap_err();
    assert!(matches!(next, Error::Ended { .. }), "{next}");
    error.to_string()
}

async fn read(sandbox: &Sandbox) -> Result<String, Error> {
    sandbox.read(Read::new("a"), None).await.map(|read| read.content)
}

#[tokio::test(start_paused = true)]
async fn a_read_is_its_chunks_in_order() {
    let world = says(|id, stream| {
        vec![chunk(stream, 0, 3, false), chunk(stream, 1, 2, true), read_reply(id, "/io/a", 5)]
    });
    let sandbox = world.launch().await.unwrap();
    let read = sandbox.read(Read::new("./a"), None).await.unwrap();
    assert_eq!((read.path, &*read.content, read.bytes), ("/io/a".into(), "xxxxx", 5));
    assert_eq!(read.mime_type, "text/plain");
}

#[tokio::test(start_paused = true)]
async fn a_read_that_contradicts_itself_or_its_request_ends_the_sandbox() {
    type Play = fn(u64, u32) -> Vec<Line>;
    let plays: [(&str, Play); 11] = [
        ("out of order", |_, stream| vec![chunk(stream, 1, 1, false)]),
        ("no stream", |_, stream| vec![chunk(stream + 1, 0, 1, false)]),
        ("after the last", |_, stream| vec![chunk(stream, 0, 1, true), chunk(stream, 1, 1, true)]),
        ("too large a chunk", |_, stream| vec![chunk(stream, 0, MAX_CHUNK_BYTES + 1, true)]),
        ("fewer bytes reported", |id, stream| {
            vec![chunk(stream, 0, 2, true), read_reply(id, "/io/a", 1)]
        }),
        ("more bytes reported", |id, stream| {
            vec![chunk(stream, 0, 2, true), read_reply(id, "/io/a", 3)]
        }),
        ("another path", |id, stream| vec![chunk(stream, 0, 2, true), read_reply(id, "/io/b", 2)]),
        ("a path of another form", |id, stream| {
            vec![chunk(stream, 0, 2, true), read_reply(id, "/io/./a", 2)]
        }),
        ("after its answer", |id, stream| {
            vec![refusal(id, ErrorKind::NotFound), chunk(stream, 0, 1, true)]
        }),
        ("credit for what we receive", |_, stream| vec![credit(stream, 1)]),
        ("entries for an unknown list", |id, _| vec![page(id, &["a"])]),
    ];
    for (what, play) in plays {
        let error = breach(says(play), async |sandbox: &Sandbox| {
            // An honest refusal may be handled before the breach is.
            match read(sandbox).await {
                Err(error) if error.kind() == ErrorKind::NotFound => read(sandbox).await,
                other => other,
            }
        })
        .await;
        assert!(error.contains("ended"), "{what}: {error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_read_that_brings_more_than_was_asked_for_ends_the_sandbox() {
    let world = says(|_, stream| vec![chunk(stream, 0, 4, false)]);
    breach(world, async |sandbox: &Sandbox| {
        sandbox.read_bytes(Read { offset: 0, limit: Some(3), ..Read::new("a") }).await
    })
    .await;
    // Without a limit of its own it has that of a file.
    let world = says(|_, stream| vec![chunk(stream, 0, 1001, false)]);
    let mut spec = world.spec();
    spec.limits.max_file_size = ByteSize::b(1000);
    let sandbox = Sandbox::launch(world.shared.clone(), spec).await.unwrap();
    assert_eq!(read(&sandbox).await.unwrap_err().kind(), ErrorKind::AgentLost);
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_stands_still_gives_no_credit() {
    let chunks = INITIAL_CREDIT / MAX_CHUNK_BYTES as u64;
    let world = greeted(move |mut agent: Scripted, fake| async move {
        agent.agent.request().await.unwrap();
        let stream = agent.agent.stream;
        for seq in 0..chunks {
            agent.agent.send(chunk(stream, seq, MAX_CHUNK_BYTES, false)).await;
        }
        // The start consumed one chunk, for which there is credit when another one is requested.
        agent.agent.send(chunk(stream, chunks, 1, false)).await;
        fake.running.subscribe().wait_for(|running| !running).await.unwrap();
    });
    let sandbox = world.launch().await.unwrap();
    let mut reader = sandbox.reader(Read::new("a")).await.unwrap();
    world.fake.running.subscribe().wait_for(|running| !running).await.unwrap();
    // Content that arrived before is still returned; then the error.
    let mut content = Vec::new();
    let error = reader.read_to_end(&mut content).await.unwrap_err();
    let error = error.get_ref().and_then(|error| error.downcast_ref::<Error>()).unwrap();
    assert_eq!(error.kind(), ErrorKind::AgentLost);
    assert_eq!(content.len() as u64, INITIAL_CREDIT);
}

#[tokio::test(start_paused = true)]
async fn a_write_goes_as_fast_as_the_agent_takes_it() {
    let world = greeted(|mut agent: Scripted, _| async move {
        let (id, _) = agent.agent.request().await.unwrap();
        let stream = agent.agent.stream;
        let (mut left, mut bytes) = (INITIAL_CREDIT, 0);
        loop {
            let Some(ToAgent::Chunk(chunk)) = agent.agent.message().await else { panic!("more") };
            let length = chunk.data.0.len() as u64;
            (left, bytes) = (left - length, bytes + length);
            if chunk.last {
                break;
            }
            // As late, and as little, as an agent may.
            let owed = INITIAL_CREDIT - left;
            if owed >= CREDIT_STEP {
                let bytes = owed + 1 - CREDIT_STEP;
                left += bytes;
                agent.agent.send(credit(stream, bytes)).await;
            }
        }
        agent.agent.send(write_reply(id, bytes)).await;
        agent.rest().await;
    });
    let sandbox = world.launch().await.unwrap();
    let content = vec![7; 1_000_000];
    let written = sandbox.write(Write::new("a"), &content).await.unwrap();
    assert_eq!(
        (written.path, written.bytes_written, written.created),
        ("/io/a".into(), 1_000_000, true)
    );
    sandbox.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_write_that_is_refused_early_says_why() {
    let world = says(|id, _| vec![refusal(id, ErrorKind::TooLarge)]);
    let sandbox = world.launch().await.unwrap();
    let content = vec![7; 1_000_000];
    let error = sandbox.write(Write::new("a"), &content).await.unwrap_err();
    assert_eq!((error.kind(), error.exit_code()), (ErrorKind::TooLarge, 120));

    let world = says(|id, _| vec![refusal(id, ErrorKind::DiskFull)]);
    let sandbox = world.launch().await.unwrap();
    let mut writer = sandbox.writer(Write::new("a")).await.unwrap();
    let broken = async {
        loop {
            if let Err(error) = writer.write_all(&content).await {
                break error.kind();
            }
        }
    };
    assert_eq!(broken.await, std::io::ErrorKind::BrokenPipe);
    assert_eq!(writer.finish().await.unwrap_err().kind(), ErrorKind::DiskFull);
}

#[tokio::test(start_paused = true)]
async fn a_write_that_contradicts_itself_ends_the_sandbox() {
    type Play = fn(u64, u32) -> Vec<Line>;
    let plays: [(&str, Play); 6] = [
        ("acknowledged before its end", |id, _| vec![write_reply(id, 1_000_000)]),
        ("absurd credit", |_, stream| vec![credit(stream, u64::MAX); 2]),
        ("credit for an unknown stream", |_, stream| vec![credit(stream + 1, 1)]),
        ("chunks of what we send", |_, stream| vec![chunk(stream, 0, 1, false)]),
        ("a log", |request, _| {
            let (level, text) = (LogLevel::Print, "x".to_owned());
            vec![
                FromAgent::Log(Log { request, level, text, lossy: false, cut: false })
                    .encode()
                    .unwrap(),
            ]
        }),
        ("a change outside the mounts", |request, _| {
            let path = "/etc/passwd";
            let (existed, change) = (true, Change::Write);
            vec![
                FromAgent::Touched(Touched { request, path: path.into(), existed, change })
                    .encode()
                    .unwrap(),
            ]
        }),
    ];
    for (what, play) in plays {
        let content = vec![7; 1_000_000];
        let error = breach(says(play), async |sandbox: &Sandbox| {
            sandbox.write(Write::new("a"), &content).await
        })
        .await;
        assert!(error.contains("ended"), "{what}: {error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_writer_that_is_dropped_changes_nothing() {
    let world = greeted(|mut agent: Scripted, _| async move {
        let (id, _) = agent.agent.request().await.unwrap();
        loop {
            match agent.agent.message().await.unwrap() {
                ToAgent::Chunk(chunk) => assert!(!chunk.last, "the write was declared whole"),
                ToAgent::Request { id: cancel, request: Request::Cancel(asked), .. } => {
                    assert_eq!(asked.id, id);
                    agent.agent.send(refusal(id, ErrorKind::Cancelled)).await;
                    agent.agent.answer(cancel, ControlReply { found: true }).await;
                    break;
                }
                other => panic!("{other:?}"),
            }
        }
        agent.rest().await;
    });
    let sandbox = world.launch().await.unwrap();
    let mut writer = sandbox.writer(Write::new("a")).await.unwrap();
    writer.write_all(b"half").await.unwrap();
    drop(writer);
    sandbox.close().await.unwrap();
    assert!(!world.fake.calls().contains(&"kill"));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_operation_is_cancelled_and_its_place_is_free_again() {
    let world = greeted(|mut agent: Scripted, _| async move {
        let mut asked = Vec::new();
        for _ in 0..MAX_IN_FLIGHT {
            asked.push(agent.agent.request().await.unwrap().0);
        }
        for _ in 0..MAX_IN_FLIGHT {
            let (id, Request::Cancel(cancel)) = agent.agent.request().await.unwrap() else {
                panic!("another request while all places are taken")
            };
            asked.retain(|&id| id != cancel.id);
            agent.agent.send(refusal(cancel.id, ErrorKind::Cancelled)).await;
            agent.agent.answer(id, ControlReply { found: true }).await;
        }
        assert!(asked.is_empty());
        let (id, _) = agent.agent.request().await.unwrap();
        let (path, exists, kind) = ("/io/a".into(), false, None);
        agent.agent.answer(id, ExistsReply { path, exists, kind }).await;
        agent.rest().await;
    });
    let sandbox = world.launch().await.unwrap();
    let all =
        futures_util::future::join_all((0..MAX_IN_FLIGHT).map(|_| sandbox.stat(Stat::new("a"))));
    assert!(tokio::time::timeout(Duration::from_secs(1), all).await.is_err());
    assert!(!sandbox.call(Exists::new("a")).await.unwrap().exists);
    sandbox.close().await.unwrap();
    assert!(!world.fake.calls().contains(&"kill"));
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_never_answers_has_its_deadline_and_then_its_end() {
    let world = says(|_, _| Vec::new());
    let sandbox = world.launch().await.unwrap();
    let error = sandbox.stat(Stat::new("a")).await.unwrap_err();
    assert_eq!((error.kind(), error.exit_code()), (ErrorKind::Timeout, 124));
    assert!(error.to_string().contains("filesystem.timeout (5s)"), "{error}");
    // It was asked to cancel, and does not answer that either.
    world.fake.running.subscribe().wait_for(|running| !running).await.unwrap();
    let error = sandbox.call(Exists::new("a")).await.unwrap_err();
    let message = error.to_string();
    assert!(message.contains("a file operation did not stop"), "{message}");
    assert!(!message.contains("protocol"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_dies_in_the_middle_is_judged_by_the_engines_evidence() {
    let world = greeted(|mut agent: Scripted, fake| async move {
        agent.agent.request().await.unwrap();
        let stream = agent.agent.stream;
        agent.agent.send(chunk(stream, 0, 3, false)).await;
        fake.ends_with(Some(137), true);
    });
    let sandbox = world.launch().await.unwrap();
    let error = read(&sandbox).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AgentLost);
    assert!(error.to_string().contains("it ran out of memory"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_list_is_its_pages() {
    let world =
        says(|id, _| vec![page(id, &["a", "d"]), page(id, &["d/b"]), list_reply(id, "/io", 3)]);
    let sandbox = world.launch().await.unwrap();
    let list = sandbox.list(List { recursive: true, ..List::new(".") }).await.unwrap();
    let entries = list.entries.into_iter().map(|entry| (entry.name, entry.path));
    let expected = [("a", "/io/a"), ("d", "/io/d"), ("b", "/io/d/b")]
        .map(|(name, path)| (name.into(), path.into()));
    assert_eq!(entries.collect::<Vec<_>>(), expected);
}

#[tokio::test(start_paused = true)]
async fn a_list_that_contradicts_itself_or_its_request_ends_the_sandbox() {
    type Play = fn(u64, u32) -> Vec<Line>;
    let plays: [(&str, Play); 9] = [
        ("more than asked for", |id, _| vec![page(id, &["a"; LIST_PAGE])]),
        ("fewer than reported", |id, _| vec![page(id, &["a"]), list_reply(id, "/io", 2)]),
        ("another directory", |id, _| vec![list_reply(id, "/in", 0)]),
        ("above the directory", |id, _| vec![page(id, &["../x"]), list_reply(id, "/io", 1)]),
        ("an absolute name", |id, _| vec![page(id, &["/etc"]), list_reply(id, "/io", 1)]),
        ("no name", |id, _| vec![page(id, &[""]), list_reply(id, "/io", 1)]),
        ("a name of another form", |id, _| vec![page(id, &["a//b"]), list_reply(id, "/io", 1)]),
        ("a name that no operation takes", |id, _| {
            vec![page(id, &[&"n".repeat(256)]), list_reply(id, "/io", 1)]
        }),
        ("the list of another request", |id, _| vec![page(id + 1, &["a"])]),
    ];
    for (what, play) in plays {
        let error = breach(says(play), async |sandbox: &Sandbox| {
            let limit = Some(LIST_PAGE as u64 - 1);
            sandbox.list(List { limit, ..List::new(".") }).await
        })
        .await;
        assert!(error.contains("ended"), "{what}: {error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_rename_is_answered_about_both_of_its_paths() {
    let answers = |to: &'static str| {
        greeted(move |mut agent: Scripted, _| async move {
            let (id, Request::File(Operation::Rename(Rename { overwrite, .. }))) =
                agent.agent.request().await.unwrap()
            else {
                panic!("another request")
            };
            assert!(!overwrite);
            let (from, to) = ("/io/a".to_owned(), to.to_owned());
            let reply = RenameReply { from: from.into(), to: to.into() };
            agent.agent.answer(id, reply).await;
            while agent.agent.message().await.is_some() {}
        })
    };
    let rename = async |sandbox: &Sandbox| sandbox.call(Rename::new("a", "~/d/b")).await;
    let world = answers("/io/d/b");
    assert_eq!(rename(&world.launch().await.unwrap()).await.unwrap().to, "/io/d/b");
    breach(answers("/io/d/c"), rename).await;
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_that_is_asked_nothing_ends_at_its_idle_limit_and_says_so() {
    let world = greeted(|mut agent: Scripted, _| async move {
        while let Some((id, request)) = agent.agent.request().await {
            match request {
                Request::File(Operation::Exists(_)) => {
                    let (path, exists, kind) = ("/io/a".into(), false, None);
                    agent.agent.answer(id, ExistsReply { path, exists, kind }).await;
                }
                Request::Run(_) => {
                    tokio::time::sleep(Duration::from_secs(25)).await;
                    agent.returned(id, "null").await;
                }
                other => panic!("{other:?}"),
            }
        }
    });
    let spec = world.spec().idle_limit(Some(Duration::from_secs(10)));
    let sandbox = Sandbox::launch(world.shared.clone(), spec).await.unwrap();
    tokio::time::sleep(Duration::from_secs(9)).await;
    sandbox.call(Exists::new("a")).await.unwrap();
    tokio::time::sleep(Duration::from_secs(9)).await;
    // A running script is not idle, however long it takes.
    sandbox.run(Script::new("x")).await.unwrap();
    tokio::time::sleep(Duration::from_secs(9)).await;
    assert!(*world.fake.running.borrow());
    world.fake.running.subscribe().wait_for(|running| !running).await.unwrap();
    let error = sandbox.call(Exists::new("a")).await.unwrap_err();
    assert!(error.to_string().contains("idle timeout"), "{error}");
}

#[tokio::test]
async fn a_sandbox_that_lost_a_mount_is_not_used_though_it_cannot_be_killed() {
    let world = greeted(async |mut agent: Scripted, _| {
        // Any request other than a shutdown.
        agent.rest().await;
    });
    let mut sandbox = world.launch().await.unwrap();
    let inner = Arc::get_mut(&mut sandbox.inner).unwrap();
    inner.mount_looks = looks_that_find(world.io.path());
    world.fake.is_dead.store(true, Ordering::Relaxed);
    let lost = |error: Error| assert!(matches!(error, Error::MountLost { .. }), "{error}");
    lost(sandbox.call(Exists::new("a")).await.unwrap_err());
    lost(sandbox.read(Read::new("a"), None).await.unwrap_err());
    lost(sandbox.write(Write::new("a"), "1").await.unwrap_err());
    lost(sandbox.run(Script::new("x")).await.unwrap_err());
    lost(sandbox.ended().unwrap());
    assert!(world.fake.calls().contains(&"kill"));
    assert!(*world.fake.running.borrow());
}

#[tokio::test]
async fn a_run_in_a_sandbox_that_lost_a_mount_says_so_though_it_cannot_be_killed() {
    let world =
        greeted(async |mut agent: Scripted, _| agent.agent.request().await.map_or((), drop));
    let mut sandbox = world.launch().await.unwrap();
    let inner = Arc::get_mut(&mut sandbox.inner).unwrap();
    inner.mount_looks = looks_that_find(world.io.path());
    world.fake.is_dead.store(true, Ordering::Relaxed);
    let result = sandbox.run(Script::new("x")).await.unwrap();
    let failure = result.outcome.failure().unwrap();
    assert!(failure.message.contains("cannot stay mounted"), "{}", failure.message);
}
