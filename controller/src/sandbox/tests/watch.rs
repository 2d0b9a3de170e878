//! Watches, with a scripted agent: they end with their readers, and an agent that contradicts itself is
//! lost.

use futures_util::StreamExt as _;
use sandbox_api::{FileChange, WatchRecord, WatchRequest};
use sandbox_protocol::message::{Cancel, ChangedEntry, Changes, ControlReply, Done, Watched};

use super::exec::{launch, with_programs};
use super::fake::{Scripted, greeted};
use super::*;

fn request() -> WatchRequest {
    WatchRequest { path: "a".into(), recursive: true }
}

fn changes(request: u64) -> FromAgent<'static> {
    let entry = ChangedEntry { name: "b".into(), change: FileChange::Write, kind: None };
    FromAgent::Changes(Changes { request, omitted: 0, entries: vec![entry] })
}

/// Waits for the request of a watch.
async fn asked(agent: &mut Scripted) -> u64 {
    let (id, request) = agent.agent.request().await.unwrap();
    let Request::Watch(watch) = request else { panic!("{request:?}") };
    assert!(watch.path == "a" && watch.recursive);
    id
}

#[tokio::test(start_paused = true)]
async fn watch_reports_changes_until_its_reader_is_gone() {
    let (ended, has_ended) = tokio::sync::oneshot::channel();
    let world = greeted(async move |mut agent: Scripted, _| {
        let id = asked(&mut agent).await;
        agent.notify(FromAgent::Watched(Watched { request: id })).await;
        let (flush, request) = agent.agent.request().await.unwrap();
        assert!(matches!(request, Request::Flush(_)), "{request:?}");
        agent.notify(changes(id)).await;
        agent.agent.answer(flush, Done {}).await;
        let (cancel, request) = agent.agent.request().await.unwrap();
        assert_eq!(request, Request::from(Cancel { id, at_once: false }));
        agent.agent.answer(cancel, ControlReply { found: true }).await;
        agent.agent.answer(id, Done {}).await;
        _ = ended.send(());
        agent.rest().await;
    });
    let sandbox = launch(&world, with_programs(&world)).await;
    let mut watch = sandbox.watch_files(request()).await.unwrap();
    watch.flushed().await;
    let record = watch.next().await.unwrap().unwrap();
    let WatchRecord::Event(event) = record else { panic!("{record:?}") };
    assert_eq!((event.seq, event.change), (1, FileChange::Write));
    assert!(event.name == "b");
    drop(watch);
    has_ended.await.unwrap();
    assert!(sandbox.ended().is_none());
}

#[tokio::test(start_paused = true)]
async fn watch_ends_when_its_directory_is_gone_and_fails_with_its_sandbox() {
    for is_answered in [true, false] {
        let world = greeted(async move |mut agent: Scripted, _| {
            let id = asked(&mut agent).await;
            agent.notify(FromAgent::Watched(Watched { request: id })).await;
            if is_answered {
                agent.agent.answer(id, Done {}).await;
                agent.rest().await;
            }
        });
        let sandbox = launch(&world, with_programs(&world)).await;
        let mut watch = sandbox.watch_files(request()).await.unwrap();
        let last = watch.next().await;
        assert_eq!(last.is_some_and(|it| it.is_err()), !is_answered);
        assert!(watch.next().await.is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn agent_that_contradicts_itself_about_a_watch_is_lost() {
    for what in ["changes before", "an answer before", "twice"] {
        let world = greeted(async move |mut agent: Scripted, _| {
            let id = asked(&mut agent).await;
            match what {
                "changes before" => agent.notify(changes(id)).await,
                "an answer before" => agent.agent.answer(id, Done {}).await,
                _ => {
                    agent.notify(FromAgent::Watched(Watched { request: id })).await;
                    agent.notify(FromAgent::Watched(Watched { request: id })).await;
                }
            }
            agent.rest().await;
        });
        let sandbox = launch(&world, with_programs(&world)).await;
        match sandbox.watch_files(request()).await {
            Ok(mut watch) => assert!(watch.next().await.unwrap().is_err(), "{what}"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::AgentLost, "{what}"),
        }
        assert!(sandbox.ended().is_some(), "{what}");
    }
}
