use futures_util::FutureExt as _;
use sandbox_protocol::message::{Chunk, Done, Flush};
use sandbox_protocol::{Base64, FromAgent};
use sandbox_session::Session;
use sandbox_session::fake::pipe;

use super::*;

#[tokio::test]
async fn an_answer_overtakes_no_report_however_soon_it_is_there() {
    let (attached, mut agent) = pipe();
    let session = Session::start(attached, None).unwrap();
    let (sender, mut delivered) = mpsc::unbounded_channel();
    let reporter = Arc::new(Reporter { sender, flows: OnceLock::new() });
    let console = ConsoleSpec { most: u64::MAX, kept: Some(reporter), ..ConsoleSpec::default() };
    let params = request(Command::new("true"), None, Term::Kept(None), Duration::ZERO).unwrap();
    let asked = session.converse(InFlightPermit::of_kept(), console, params);
    let (reply, Console { output, .. }) = asked.await.unwrap();
    let (request, _) = agent.request().await.unwrap();
    let (stream, end) = (output.numbers().next().unwrap(), ExecEnd::Exited(0));
    let last = Chunk { stream, seq: 0, data: Base64(Vec::new()), last: true };
    for message in [
        FromAgent::Started(Started { request, pid: 15 }),
        FromAgent::Chunk(last),
        FromAgent::Exited(Exited { request, end, stopped: None }),
    ] {
        agent.send(message.encode().unwrap()).await;
    }
    let answer = ExecReply {
        end,
        stopped: None,
        stdout_bytes: 0,
        stderr_bytes: 0,
        cpu_ms: 1,
        peak_memory_bytes: 1,
        signs: Vec::new(),
    };
    agent.answer(request, answer).await;
    // What the agent says later is delivered after all of that.
    let (flushed, ()) = tokio::join!(session.call(Flush {}), async {
        let (request, _) = agent.request().await.unwrap();
        agent.answer(request, Done {}).await;
    });
    flushed.unwrap();
    // As if each report came when it had just been looked for.
    let (late, received) = mpsc::unbounded_channel();
    let mut reports = Reports { received, reply };
    assert!(reports.next().now_or_never().is_none());
    assert!(late.send(delivered.recv().await.unwrap()).is_ok());
    assert!(matches!(reports.next().await, Report::Started(15)));
    assert!(reports.next().now_or_never().is_none());
    assert!(late.send(delivered.recv().await.unwrap()).is_ok());
    assert!(matches!(reports.next().await, Report::Exited(..)));
    assert!(reports.next().now_or_never().is_none());
    // The session has no more of them.
    assert!(delivered.recv().await.is_none());
    drop(late);
    assert!(matches!(reports.next().await, Report::Answered(Ok(_))));
}
