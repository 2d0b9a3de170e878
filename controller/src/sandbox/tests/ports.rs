//! Connections to ports with a scripted agent.

use sandbox_api::{ListeningPort, Ports};
use sandbox_protocol::limits::{INITIAL_CREDIT, MAX_CHUNK_BYTES, MAX_LISTENING};
use sandbox_protocol::message::{Chunk, Close, ClosedReason, Credit, Dial, Done, ListPortsReply};
use sandbox_protocol::{Base64, ToAgent, WireError};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::Notify;

use super::audited::{closed, lines, whole};
use super::exec::{launch, with_programs};
use super::fake::{Scripted, greeted};
use super::*;

/// The next request, which is for a connection.
async fn dial(agent: &mut Scripted) -> (u64, Dial) {
    let (id, request) = agent.agent.request().await.unwrap();
    let Request::Dial(dial) = request else { panic!("{request:?}") };
    (id, dial)
}

/// The same, which is accepted.
async fn dialled(agent: &mut Scripted) -> u32 {
    let (id, Dial { tunnel, port: 8080 }) = dial(agent).await else { panic!("another port") };
    agent.agent.answer(id, Done {}).await;
    tunnel
}

async fn refuse(agent: &mut Scripted, id: u64, kind: ErrorKind) {
    let error = WireError::new(kind, "no");
    agent.agent.send(FromAgent::encode_reply::<()>(id, Err(error)).unwrap()).await;
}

async fn chunk(agent: &mut Scripted, stream: u32, seq: u64, data: Vec<u8>, last: bool) {
    agent.notify(FromAgent::Chunk(Chunk { stream, seq, data: Base64(data), last })).await;
}

/// The controller closes a connection so.
async fn is_closed(agent: &mut Scripted, tunnel: u32, reason: ClosedReason) {
    let said = agent.agent.message().await;
    let Some(ToAgent::Closed(closed)) = said else { panic!("{said:?}") };
    assert_eq!((closed.tunnel, closed.reason), (tunnel, reason));
    agent.notify(FromAgent::Close(Close { tunnel })).await;
}

#[tokio::test]
async fn connection_holds_back_what_is_not_read_and_ends_as_its_owner_says() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("audit.log");
    let done = Arc::new(Notify::new());
    let seen = done.clone();
    let world = greeted(async move |mut agent: Scripted, _| {
        let tunnel = dialled(&mut agent).await;
        for seq in 0..4 {
            chunk(&mut agent, tunnel, seq, vec![7; MAX_CHUNK_BYTES], false).await;
        }
        // It may send no more before some of that is read.
        let said = agent.agent.message().await;
        let Some(ToAgent::Credit(Credit { stream, bytes })) = said else { panic!("{said:?}") };
        assert!(stream == tunnel && bytes <= INITIAL_CREDIT, "{bytes}");
        chunk(&mut agent, tunnel, 4, Vec::new(), true).await;
        let mut asked = Vec::new();
        loop {
            match agent.agent.message().await {
                Some(ToAgent::Credit(_)) => {}
                Some(ToAgent::Chunk(chunk)) => {
                    asked.extend(chunk.data.0);
                    if chunk.last {
                        break;
                    }
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(asked, b"bye");
        is_closed(&mut agent, tunnel, ClosedReason::Done).await;
        seen.notify_one();
        let tunnel = dialled(&mut agent).await;
        is_closed(&mut agent, tunnel, ClosedReason::Reset).await;
        seen.notify_one();
        agent.rest().await;
    })
    .audited(&file);
    let sandbox = launch(&world, with_programs(&world).ports(Ports::Any)).await;
    let mut stream = sandbox.dial(8080).await.unwrap();
    assert!(!sandbox.inner().activity.is_idle());
    stream.read_exact(&mut vec![0; 4 * MAX_CHUNK_BYTES]).await.unwrap();
    assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
    stream.write_all(b"bye").await.unwrap();
    stream.shutdown().await.unwrap();
    drop(stream);
    done.notified().await;
    drop(sandbox.dial(8080).await.unwrap());
    done.notified().await;
    assert!(sandbox.inner().activity.is_idle());
    let id = sandbox.id().to_owned();
    sandbox.close().await.unwrap();
    closed(&world).await;

    let dial = |outcome, bytes| {
        let mut line = whole("port.dial", outcome, Some(bytes));
        line["connection"] = serde_json::json!({ "target": "localhost:8080", "address": null });
        line
    };
    let expected = [
        whole("launch", "ok", None),
        dial("ok", 4 * MAX_CHUNK_BYTES as u64 + 3),
        dial("reset", 0),
        whole("close", "ok", None),
    ];
    assert_eq!(lines(&file, &id), expected);
}

#[tokio::test]
async fn port_that_is_not_listed_is_not_asked_for() {
    let world = greeted(async |mut agent: Scripted, _| {
        for kind in [ErrorKind::NotFound, ErrorKind::Timeout, ErrorKind::NotAllowed] {
            let (id, _) = dial(&mut agent).await;
            refuse(&mut agent, id, kind).await;
        }
        let (id, _) = dial(&mut agent).await;
        refuse(&mut agent, id, ErrorKind::Busy).await;
        agent.rest().await;
    });
    let scripts = world.spec().ports(Ports::Any);
    let refused = Sandbox::launch(world.shared.clone(), scripts).await;
    assert!(matches!(refused, Err(Error::ExecUnsupported)), "{refused:?}");
    let listed = Ports::Listed(vec![8080.try_into().unwrap()]);
    let sandbox = launch(&world, with_programs(&world).ports(listed)).await;
    for port in [80, 0, 8081] {
        let error = sandbox.dial(port).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Policy, "{error}");
    }
    for _ in 0..3 {
        let error = sandbox.dial(8080).await.unwrap_err();
        assert!(matches!(error, Error::PortClosed { port: 8080 }), "{error:?}");
    }
    assert!(matches!(sandbox.dial(8080).await, Err(Error::TooMany { .. })));
    sandbox.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn connection_breaks_with_its_sandbox() {
    let world = greeted(async |mut agent: Scripted, _| {
        let tunnel = dialled(&mut agent).await;
        chunk(&mut agent, tunnel, 0, b"half".into(), false).await;
        while agent.agent.message().await.is_some() {}
    });
    let sandbox = launch(&world, with_programs(&world).ports(Ports::Any)).await;
    let mut stream = sandbox.dial(8080).await.unwrap();
    let mut half = [0; 4];
    stream.read_exact(&mut half).await.unwrap();
    sandbox.close().await.unwrap();
    let error = stream.read(&mut half).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    // One that is written is taken, as by a socket, and the next one fails.
    _ = stream.write_all(b"x").await;
    stream.flush().await.unwrap_err();
    assert!(sandbox.dial(8080).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn agent_that_answers_no_dial_is_abandoned() {
    let world = greeted(async |mut agent: Scripted, _| {
        _ = dial(&mut agent).await;
        std::future::pending().await
    });
    let sandbox = launch(&world, with_programs(&world).ports(Ports::Any)).await;
    let error = sandbox.dial(8080).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AgentLost);
    assert!(sandbox.ended().is_some());
}

#[tokio::test]
async fn agent_that_lists_more_ports_than_there_may_be_breaks_the_protocol() {
    let world = greeted(async |mut agent: Scripted, _| {
        for count in [1, MAX_LISTENING + 1] {
            let (id, request) = agent.agent.request().await.unwrap();
            assert!(matches!(request, Request::ListPorts(_)), "{request:?}");
            let port = ListeningPort { port: 80, address: [0; 4].into() };
            agent.agent.answer(id, ListPortsReply { listening: vec![port; count] }).await;
        }
        agent.rest().await;
    });
    let sandbox = launch(&world, with_programs(&world)).await;
    assert_eq!(sandbox.listening_ports().await.unwrap().ports[0].port, 80);
    let error = sandbox.listening_ports().await.unwrap_err();
    assert!(error.to_string().contains("too many ports"), "{error}");
}
