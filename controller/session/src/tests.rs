use sandbox_protocol::limits::{
    FIRST_TUNNEL, INITIAL_CREDIT, MAX_CHUNK_BYTES, MAX_DIALS, MAX_FRAME_BYTES,
};
use sandbox_protocol::message::{
    Cancel, Change, Close, ClosedReason, ControlReply, Credit, LogLevel, OperationName, Shutdown,
};
use sandbox_protocol::{Base64, ErrorKind, message};

use super::fake::{FakeAgent, pipe};
use super::*;
use tokio::io::AsyncWriteExt as _;

async fn breach_of(talk: impl AsyncFnOnce(&mut FakeAgent, u64)) -> SessionEnd {
    let (attached, mut agent) = pipe();
    let session = Session::start(attached, None).unwrap();
    let call = session.call(Cancel { id: 7, at_once: false });
    let talk = async {
        let (id, _) = agent.request().await.unwrap();
        talk(&mut agent, id).await;
        session.ended().await
    };
    let (result, end) = tokio::join!(call, talk);
    // A message before the breach may have arrived or not; no caller is left waiting.
    _ = result;
    assert!(matches!(session.call(Shutdown {}).await, Err(CallError::Over)));
    end
}

#[tokio::test]
async fn a_request_gets_its_own_answer() {
    let (attached, mut agent) = pipe();
    let session = Session::start(attached, None).unwrap();
    let calls = async {
        tokio::join!(
            session.call(Cancel { id: 1, at_once: false }),
            session.call(Cancel { id: 2, at_once: false })
        )
    };
    let talk = async {
        let (first, _) = agent.request().await.unwrap();
        let (second, _) = agent.request().await.unwrap();
        agent.answer(second, ControlReply { found: false }).await;
        agent.answer(first, ControlReply { found: true }).await;
    };
    let ((first, second), ()) = tokio::join!(calls, talk);
    assert!(first.unwrap().found);
    assert!(!second.unwrap().found);
}

#[tokio::test]
async fn protocol_breach_ends_the_session() {
    let reply = |id| format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{\"found\":true}}}}\n");
    let note = |message: FromAgent<'_>| String::from_utf8(message.encode().unwrap()).unwrap();
    let log = |request| {
        let (level, text) = (LogLevel::Print, "x".to_owned());
        note(FromAgent::Log(Log { request, level, text, lossy: false, cut: false }))
    };
    let touched = |request| {
        let (path, change) = ("/io/a".into(), Change::Write);
        note(FromAgent::Touched(Touched { request, path, existed: false, change }))
    };
    let started = |request| note(FromAgent::Started(Started { request, pid: 1 }));
    let exited = |request| {
        let end = message::ExecEnd::Exited(0);
        note(FromAgent::Exited(Exited { request, end, stopped: None }))
    };
    let watched = |request| note(FromAgent::Watched(Watched { request }));
    let changes =
        |request| note(FromAgent::Changes(Changes { request, omitted: 0, entries: Vec::new() }));
    let refused = |request| {
        note(FromAgent::Refused(Refused {
            request,
            operation: OperationName::Read,
            path: "..".into(),
            kind: ErrorKind::PathEscape,
        }))
    };
    for (line, words) in [
            (reply(99), "unknown request"),
            ("garbage\n".to_owned(), "malformed envelope"),
            ("\n".to_owned(), "malformed envelope"),
            ("\u{0}\n".to_owned(), "malformed envelope"),
            // For no request, and for one in flight that is not a run.
            (log(99), "unknown run (id 99)"),
            (log(0), "unknown run (id 0)"),
            (touched(0), "unknown run (id 0)"),
            (started(99), "Started of no such command (id 99)"),
            (started(0), "Started of no such command (id 0)"),
            (exited(0), "Exited of no such command (id 0)"),
            (refused(0), "unknown run (id 0)"),
            (watched(0), "Watching of no such command (id 0)"),
            (changes(99), "Watching of no such command (id 99)"),
            (
                r#"{"jsonrpc":"2.0","method":"chunk","params":{"stream":1,"seq":0,"data":"","last":true}}"#
                    .to_owned()
                    + "\n",
                "unknown stream",
            ),
            (
                r#"{"jsonrpc":"2.0","method":"credit","params":{"stream":1,"bytes":1}}"#.to_owned()
                    + "\n",
                "unknown stream",
            ),
            ("[".repeat(100) + "\n", "nested"),
            ("x".repeat(MAX_FRAME_BYTES), "longer"),
        ] {
            let end = breach_of(async |agent: &mut FakeAgent, _| agent.send(&line).await).await;
            let SessionEnd::Breach(detail) = end else { panic!("{end:?}") };
            assert!(detail.contains(words), "{detail}");
        }
    for (what, words) in [
        ("second answer", "unknown request"),
        ("malformed answer", "malformed"),
        ("no text", "UTF-8"),
        ("a long refusal", "over the size limit"),
    ] {
        let end = breach_of(async |agent: &mut FakeAgent, id| match what {
            "second answer" => {
                agent.send(reply(id)).await;
                agent.send(reply(id)).await;
            }
            "malformed answer" => agent.answer(id, "x").await,
            "no text" => agent.send(b"\"\xff\"\n").await,
            _ => {
                let message = "x".repeat(MAX_MESSAGE_BYTES + 1);
                let error = format!(
                    r#"{{"code":-32000,"message":"{message}","data":{{"kind":"internal"}}}}"#
                );
                let line = format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"error\":{error}}}\n");
                agent.send(line).await;
            }
        })
        .await;
        let SessionEnd::Breach(detail) = end else { panic!("{end:?}") };
        assert!(detail.contains(words), "{detail}");
    }
}

#[tokio::test]
async fn of_a_flood_on_stderr_its_end_is_kept() {
    let (attached, mut agent) = pipe();
    let session = Session::start(attached, None).unwrap();
    for _ in 0..10_000 {
        agent.errors.send(vec![b'x'; 64 << 10].into()).await.unwrap();
    }
    agent.errors.send("\nthe last words".into()).await.unwrap();
    // Other requests are answered meanwhile.
    let answer = async {
        let (id, _) = agent.request().await.unwrap();
        agent.answer(id, ControlReply { found: true }).await;
    };
    assert!(tokio::join!(session.call(Cancel { id: 1, at_once: false }), answer).0.unwrap().found);
    drop(agent);
    assert_eq!(session.ended().await, SessionEnd::Eof);
    assert!(session.stderr().ends_with("the last words"), "{}", session.stderr());
    assert!(session.shared.lock().stderr.capacity() <= 1 << 20);
}

#[tokio::test]
async fn the_reason_of_a_missing_reply_is_known_with_it() {
    // On several threads: one gives up the answer, and another one waits for it.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let seen = runtime.spawn(async {
        for _ in 0..500 {
            let (attached, mut agent) = pipe();
            let session = Session::start(attached, None).unwrap();
            let call = async {
                _ = session.call(Cancel { id: 1, at_once: false }).await;
                session.end()
            };
            let answer = async {
                let (id, _) = agent.request().await.unwrap();
                agent.answer(id, "malformed").await;
            };
            let (end, ()) = tokio::join!(call, answer);
            assert!(matches!(end, Some(SessionEnd::Breach(_))), "{end:?}");
        }
    });
    seen.await.unwrap();
    runtime.shutdown_background();
}

#[tokio::test]
async fn the_end_of_stdout_fails_all_waiting_calls() {
    let (attached, mut agent) = pipe();
    let session = Session::start(attached, None).unwrap();
    let talk = async {
        agent.request().await.unwrap();
        agent.send("{\"half").await;
        drop(agent);
    };
    let (result, ()) = tokio::join!(session.call(Shutdown {}), talk);
    assert!(matches!(result, Err(CallError::Over)));
    assert_eq!(session.ended().await, SessionEnd::Eof);
}

#[tokio::test]
async fn a_breach_closes_the_connection_though_the_agent_reads_nothing() {
    let (attached, mut agent) = pipe();
    let session = Session::start(attached, None).unwrap();
    let mut calls = Vec::new();
    // More than the pipe holds, so that a write is in progress.
    for _ in 0..4 {
        let source = "x".repeat(60 << 10);
        let run = message::Run {
            source,
            args: serde_json::Map::new(),
            secrets: Vec::new(),
            timeout_ms: 1,
            seed: None,
            now: None,
            tools: false,
        };
        calls.push(session.begin(run, None).await.unwrap());
    }
    agent.output.write_all(b"no message\n").await.unwrap();
    assert!(matches!(session.ended().await, SessionEnd::Breach(_)));
    let flood = vec![b'x'; 1 << 20];
    assert!(
        agent.output.write_all(&flood).await.is_err(),
        "the closed connection was not reported"
    );
}

#[tokio::test(start_paused = true)]
async fn less_of_a_file_is_on_its_way_after_a_request_that_is_no_transfer() {
    async fn fill(outgoing: &mut Outgoing) -> u64 {
        let (piece, moment) = (vec![0_u8; MAX_CHUNK_BYTES], std::time::Duration::from_millis(1));
        let mut sent = 0;
        while let Ok(size) = tokio::time::timeout(moment, outgoing.send(&piece, Fin::More)).await {
            sent += size.unwrap() as u64;
        }
        sent
    }
    let (attached, mut agent) = pipe();
    let session = Session::start(attached, None).unwrap();
    let mut files = Vec::new();
    for name in ["a", "b"] {
        files.push(session.send(None, message::Write::new(name)).await.unwrap());
    }
    let outgoing = &mut files[0].1;
    assert_eq!(fill(outgoing).await, INITIAL_CREDIT);
    let stream = outgoing.number();
    agent.send(line(FromAgent::Credit(Credit { stream, bytes: INITIAL_CREDIT }))).await;
    let _answer = session.begin(Cancel { id: 7, at_once: false }, None).await.unwrap();
    assert!(fill(outgoing).await < INITIAL_CREDIT);
}

#[tokio::test]
async fn a_dropped_session_ends_the_agents_stdin() {
    let (attached, mut agent) = pipe();
    drop(Session::start(attached, None).unwrap());
    assert!(agent.request().await.is_none());
}

/// A connection to a port, whose agent has said yes, and its number.
async fn dialled(session: &Session, agent: &mut FakeAgent) -> (Tunnel, u32) {
    let answer = async {
        let (id, request) = agent.request().await.unwrap();
        let Request::Dial(Dial { tunnel, port: 8080 }) = request else { panic!("{request:?}") };
        agent.answer(id, Done {}).await;
        tunnel
    };
    let (tunnel, number) = tokio::join!(session.dial(8080), answer);
    (tunnel.unwrap().unwrap(), number)
}

fn line(message: FromAgent<'_>) -> Vec<u8> {
    message.encode().unwrap()
}

fn chunk(stream: u32, seq: u64, data: &[u8], last: bool) -> Vec<u8> {
    line(FromAgent::Chunk(Chunk { stream, seq, data: Base64(data.into()), last }))
}

#[tokio::test]
async fn dialled_port_is_a_tunnel_whose_last_bytes_outlive_its_end() {
    let (attached, mut agent) = pipe();
    let session = Session::start(attached, None).unwrap();
    let (tunnel, number) = dialled(&session, &mut agent).await;
    assert!((FIRST_DIAL..FIRST_TUNNEL).contains(&number), "{number}");
    tunnel.send(b"ask").await.unwrap();
    tunnel.finish().await.unwrap();
    for (data, last) in [(&b"ask"[..], false), (b"", true)] {
        let said = agent.message().await.unwrap();
        let ToAgent::Chunk(chunk) = said else { panic!("{said:?}") };
        assert_eq!((chunk.stream, &chunk.data.0[..], chunk.last), (number, data, last));
    }
    // A server that answers, and resets what it has not read.
    agent.send(chunk(number, 0, b"too large", false)).await;
    agent.send(line(FromAgent::Close(Close { tunnel: number }))).await;
    tunnel.broken().await;
    assert_eq!(tunnel.receive().await, Ok(Received::Bytes(b"too large".into())));
    assert_eq!(tunnel.receive().await, Err(Ended));
    assert!(tunnel.send(b"more").await.is_err());
    tunnel.close(ClosedReason::Reset, "").await;
    let said = agent.message().await;
    assert!(matches!(said, Some(ToAgent::Closed(closed)) if closed.tunnel == number));
    assert_eq!(session.shared.lock().tunnels.len(), 0);
    assert!(session.end().is_none());
}

#[tokio::test]
async fn refused_dials_leave_nothing_and_there_are_so_many_connections() {
    let (attached, mut agent) = pipe();
    let session = Session::start(attached, None).unwrap();
    let refuse = async {
        let (id, _) = agent.request().await.unwrap();
        let error = WireError::new(ErrorKind::NotFound, "nothing listens");
        agent.send(FromAgent::encode_reply::<()>(id, Err(error)).unwrap()).await;
    };
    let (refused, ()) = tokio::join!(session.dial(8080), refuse);
    assert!(
        matches!(refused, Err(CallError::Refused(error)) if error.message == "nothing listens")
    );
    assert_eq!(session.shared.lock().tunnels.len(), 0);
    let mut open = Vec::new();
    for _ in 0..MAX_DIALS {
        open.push(dialled(&session, &mut agent).await.0);
    }
    assert!(session.dial(8080).await.unwrap().is_none());
    // One counts until both sides have closed it.
    let number = open[0].number();
    open.swap_remove(0).close(ClosedReason::Done, "").await;
    assert!(session.dial(8080).await.unwrap().is_none());
    let said = agent.message().await;
    assert!(matches!(said, Some(ToAgent::Closed(_))), "{said:?}");
    agent.send(line(FromAgent::Close(Close { tunnel: number }))).await;
    let freed = async {
        while session.shared.lock().tunnels.len() == MAX_DIALS {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(60), freed).await.unwrap();
    let (_, again) = dialled(&session, &mut agent).await;
    assert_ne!(again, number, "a number is not used again soon");
}

#[tokio::test]
async fn agent_that_breaks_the_rules_of_a_dialled_port_ends_the_session() {
    let whole = vec![7; MAX_CHUNK_BYTES];
    for (what, words) in [
        ("a chunk before the answer", "a chunk for an unknown tunnel"),
        ("credit before the answer", "credit for an unknown tunnel"),
        ("a close before the answer", "a close of an unknown tunnel"),
        ("a chunk of another", "a chunk for an unknown tunnel"),
        ("a close of another", "a close of an unknown tunnel"),
        ("a second close", "a close of an unknown tunnel"),
        ("a chunk after its close", "a chunk for an unknown tunnel"),
        ("a second answer", "unknown request"),
        ("a chunk after a refusal", "a chunk for an unknown tunnel"),
        ("a chunk after the last", "chunk"),
        ("a chunk out of order", "chunk"),
        ("beyond its credit", "credit"),
        ("a connection that it dials itself", "without network access"),
    ] {
        let (attached, mut agent) = pipe();
        let session = Session::start(attached, None).unwrap();
        let talk = async {
            let (id, request) = agent.request().await.unwrap();
            let Request::Dial(Dial { tunnel, .. }) = request else { panic!("{request:?}") };
            let piece = |seq, last| chunk(tunnel, seq, b"x", last);
            let close = |tunnel| line(FromAgent::Close(Close { tunnel }));
            let credit = line(FromAgent::Credit(Credit { stream: tunnel, bytes: 1 }));
            match what {
                "a chunk before the answer" => agent.send(piece(0, false)).await,
                "credit before the answer" => agent.send(credit).await,
                "a close before the answer" => agent.send(close(tunnel)).await,
                "a chunk after a refusal" => {
                    let error = WireError::new(ErrorKind::Timeout, "late");
                    agent.send(FromAgent::encode_reply::<()>(id, Err(error)).unwrap()).await;
                    agent.send(piece(0, false)).await;
                }
                _ => agent.answer(id, Done {}).await,
            }
            match what {
                "a chunk of another" => agent.send(chunk(tunnel + 1, 0, b"x", false)).await,
                "a close of another" => agent.send(close(tunnel + 1)).await,
                "a second close" => agent.send([close(tunnel), close(tunnel)].concat()).await,
                "a chunk after its close" => {
                    agent.send([close(tunnel), piece(0, false)].concat()).await;
                }
                "a second answer" => agent.answer(id, Done {}).await,
                "a chunk after the last" => {
                    agent.send([piece(0, true), piece(1, false)].concat()).await;
                }
                "a chunk out of order" => agent.send(piece(1, false)).await,
                "beyond its credit" => {
                    for seq in 0..=4 {
                        agent.send(chunk(tunnel, seq, &whole, false)).await;
                    }
                }
                "a connection that it dials itself" => {
                    let (tunnel, host) = (FIRST_TUNNEL, "a".to_owned());
                    let connect = message::Connect { tunnel, host, port: 80 };
                    agent.send(line(FromAgent::Connect(connect))).await;
                }
                _ => {}
            }
            session.ended().await
        };
        let (tunnel, end) = tokio::join!(session.dial(8080), talk);
        let SessionEnd::Breach(detail) = end else { panic!("{what}: {end:?}") };
        assert!(detail.contains(words), "{what}: {detail}");
        // No call waits for it any more.
        if let Ok(Some(tunnel)) = tunnel {
            while tunnel.receive().await.is_ok_and(|received| received != Received::End) {}
        }
    }
}
