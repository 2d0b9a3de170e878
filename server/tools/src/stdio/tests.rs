//! Lines and calls, with a test tool that does what its arguments say.

use super::*;
use crate::metadata::Json;
use serde_json::json;
use std::pin::Pin;
use tokio::io::{AsyncReadExt, BufReader, DuplexStream, ReadHalf, WriteHalf};
use tokio::sync::mpsc;

type Boxed = Pin<Box<dyn Future<Output = ToolResponse> + Send>>;

/// `say TEXT` answers it; `wait` waits to be stopped; `fail` panics; `large N` answers N bytes;
/// anything else is unknown.
fn tool(tool: &str, args: &RawValue, stop: Stop) -> Boxed {
    let args: Value = serde_json::from_str(args.get()).unwrap();
    let say = |content: String| {
        let data: Json = Box::new(json!({"content": content}));
        ToolResponse { outcome: Ok(data.into()), took: Duration::ZERO }
    };
    match tool {
        "say" => Box::pin(async move { say(args.as_str().unwrap().to_owned()) }),
        "large" => {
            Box::pin(
                async move { say("x".repeat(usize::try_from(args.as_u64().unwrap()).unwrap())) },
            )
        }
        "wait" => Box::pin(async move { ToolResponse::refused(stop.stopped().await.into()) }),
        "fail" => Box::pin(async { panic!("as requested") }),
        _ => {
            let error = ToolError::invalid(format!("unknown tool '{tool}'"));
            Box::pin(async { ToolResponse::refused(error) })
        }
    }
}

async fn served(
    input: impl AsyncBufRead + Unpin,
    output: impl AsyncWrite + Unpin + Send + 'static,
) -> io::Result<()> {
    let ended =
        serve(input, output, &Callbacks::default(), tool, std::future::pending::<()>()).await?;
    assert_eq!(ended, None);
    Ok(())
}

/// A running server, and both ends of it.
struct Running {
    input: Option<WriteHalf<DuplexStream>>,
    output: BufReader<ReadHalf<DuplexStream>>,
    task: tokio::task::JoinHandle<io::Result<()>>,
}

impl Running {
    fn new() -> Self {
        let (near, far) = tokio::io::duplex(64 << 10);
        let (from, to) = tokio::io::split(far);
        let (output, input) = tokio::io::split(near);
        let task = tokio::spawn(async move { served(BufReader::new(from), to).await });
        Self { input: Some(input), output: BufReader::new(output), task }
    }

    async fn send(&mut self, text: impl AsRef<[u8]>) {
        self.input.as_mut().unwrap().write_all(text.as_ref()).await.unwrap();
    }

    async fn call(&mut self, id: &str, tool: &str, args: Value) {
        self.send(format!("{}\n", json!({"id": id, "tool": tool, "args": args}))).await;
    }

    async fn next(&mut self) -> Value {
        let mut line = String::new();
        self.output.read_line(&mut line).await.unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:.100}"))
    }

    /// Closes the input, and returns the remaining answers.
    async fn end(mut self) -> Vec<Value> {
        let mut input = self.input.take().unwrap();
        input.shutdown().await.unwrap();
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).await.unwrap();
        self.task.await.unwrap().unwrap();
        rest.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// All answers to an input that is available at once.
async fn answers(input: &[u8]) -> Vec<Value> {
    let (near, far) = tokio::io::duplex(64 << 10);
    let input = input.to_vec();
    let reading = tokio::spawn(async move {
        let mut near = near;
        let mut text = String::new();
        near.read_to_string(&mut text).await.unwrap();
        text
    });
    served(&mut input.as_slice(), far).await.unwrap();
    let text = reading.await.unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn by_id(answers: &[Value], id: impl Into<Value>) -> &Value {
    let id = id.into();
    let found: Vec<_> = answers.iter().filter(|answer| answer["id"] == id).collect();
    assert_eq!(found.len(), 1, "{id}: {answers:#?}");
    found[0]
}

#[tokio::test]
async fn every_call_is_answered_when_the_input_ends_at_once() {
    let mut input = String::new();
    for number in 0..500 {
        input += &format!("{}\n", json!({"id": number, "tool": "say", "args": number.to_string()}));
    }
    input += "\n  \r\n";
    input += &json!({"id": "last", "tool": "say", "args": "without a newline"}).to_string();
    let answers = answers(input.as_bytes()).await;
    assert_eq!(answers.len(), 501);
    for number in 0..500 {
        let answer = by_id(&answers, number);
        assert_eq!(answer["data"]["content"], number.to_string());
        assert_eq!(answer["type"], "text");
        assert!(answer["metadata"]["durationMs"].is_u64());
    }
    assert_eq!(by_id(&answers, "last")["data"]["content"], "without a newline");
}

#[tokio::test]
async fn a_line_that_is_no_call_is_answered_and_the_next_one_is_read() {
    let long = "x".repeat(MAX_ID_BYTES + 1);
    let lines = [
        "garbage",
        "[]",
        "\"text\"",
        "{",
        "{\"id\": \"a\"} {}",
        "{}",
        r#"{"tool": "say", "args": "x"}"#,
        r#"{"id": null, "tool": "say", "args": "x"}"#,
        r#"{"id": [], "tool": "say", "args": "x"}"#,
        r#"{"id": 1.5, "tool": "say", "args": "x"}"#,
        r#"{"id": true, "tool": "say", "args": "x"}"#,
        r#"{"id": "b", "id": "b", "tool": "say", "args": "x"}"#,
        r#"{"cancel": "x", "id": "y"}"#,
        r#"{"cancel": {}}"#,
        &format!(r#"{{"id": "{long}", "tool": "say", "args": "x"}}"#),
        "[26]",
        "[1, 2]",
    ];
    let mut input = lines.join("\n").into_bytes();
    input.extend_from_slice(b"\n\xff\xfe\n");
    let answers = answers(&input).await;
    assert_eq!(answers.len(), lines.len() + 1);
    let with_an_id: Vec<_> = answers.iter().filter_map(|answer| answer["id"].as_str()).collect();
    assert_eq!(with_an_id, ["a", "b"], "where it was found");
    let errors: Vec<_> = answers
        .iter()
        .map(|answer| {
            assert_eq!(answer["metadata"]["kind"], "invalid_request");
            assert_eq!(answer["metadata"]["retryable"], false);
            answer["error"].as_str().unwrap().to_owned()
        })
        .collect();
    insta::assert_snapshot!(errors.join("\n"));
}

#[tokio::test]
async fn an_id_that_is_none_is_never_made_a_value() {
    // As a value either would be refused for its depth, but only after it had been built up to
    // there.
    let deep = "[".repeat(1000) + &"]".repeat(1000);
    let lines =
        format!("{{\"id\": {deep}, \"tool\": \"say\", \"args\": \"x\"}}\n{{\"cancel\": {deep}}}\n");
    let answers = answers(lines.as_bytes()).await;
    let errors: Vec<_> = answers.iter().map(|answer| answer["error"].as_str().unwrap()).collect();
    let is_none = "it is neither a string nor a whole number";
    assert_eq!(errors, [format!("id: {is_none}"), format!("cancel: {is_none}")]);
}

#[tokio::test]
async fn an_id_is_as_long_as_its_text_however_it_is_written() {
    let longest = "\\u0041".repeat(MAX_ID_BYTES);
    let lines = format!(
        "{{\"id\": \"{longest}\", \"tool\": \"say\", \"args\": \"x\"}}\n\
         {{\"id\": \"{longest}A\", \"tool\": \"say\", \"args\": \"x\"}}\n"
    );
    let answers = answers(lines.as_bytes()).await;
    let ids: Vec<_> = answers.iter().map(|answer| answer["id"].as_str().map(str::len)).collect();
    assert!(ids.contains(&Some(MAX_ID_BYTES)) && ids.contains(&None), "{ids:?}");
}

#[tokio::test]
async fn a_call_that_is_refused_keeps_its_id() {
    let answers = answers(
        br#"{"id": "a", "tool": "say"}
            {"id": "b", "tool": "say", "args": "x", "timeout": 1}
            {"id": "c", "tool": 1, "args": "x"}
            {"id": "d", "tool": "say", "args": "x", "timeout_ms": -1}
            {"id": "e", "tool": "say", "args": "x", "timeout_ms": 0}
            {"id": "f", "tool": "nothing", "args": {}}"#,
    )
    .await;
    for (id, names) in [
        ("a", "`args`"),
        ("b", "`timeout`"),
        ("c", "expected a string"),
        ("d", "-1"),
        ("e", "timeout_ms"),
        ("f", "unknown tool 'nothing'"),
    ] {
        let error = by_id(&answers, id)["error"].as_str().unwrap();
        assert!(error.contains(names), "{error}");
    }
}

#[tokio::test]
async fn a_line_that_is_too_long_is_answered_before_it_ends_and_passed_over() {
    let mut running = Running::new();
    running.call("before", "say", json!("1")).await;
    assert_eq!(running.next().await["id"], "before");
    running.send(r#"{"id": "long", "tool": "say", "args": ""#).await;
    let piece = vec![b'x'; 1 << 20];
    for _ in 0..MAX_LINE_BYTES >> 20 {
        running.send(&piece).await;
    }
    let answer = running.next().await;
    assert_eq!(answer["id"], "long");
    assert_eq!(answer["error"], "the line is longer than 64 MiB");
    assert_eq!(answer["metadata"]["kind"], "too_large");
    for _ in 0..8 {
        running.send(&piece).await;
    }
    running.send("\n").await;
    running.call("after", "say", json!("2")).await;
    assert_eq!(running.next().await["data"]["content"], "2");
    assert_eq!(running.end().await, Vec::<Value>::new());
}

#[tokio::test]
async fn a_line_that_is_too_long_is_answered_with_the_id_at_its_end() {
    let line = |end: &str| {
        let mut line = br#"{"tool": "say", "args": ""#.to_vec();
        line.resize(line.len() + MAX_LINE_BYTES, b'x');
        line.extend_from_slice(end.as_bytes());
        line
    };
    for (end, id) in [(r#"", "id": "last"}"#, json!("last")), ("\"}", json!(null))] {
        let refused = answers(&line(end)).await;
        assert_eq!((&refused[0]["id"], refused.len()), (&id, 1), "{end}");
        assert_eq!(refused[0]["metadata"]["kind"], "too_large");
    }
}

#[tokio::test]
async fn a_line_that_cannot_be_read_is_answered_with_its_id() {
    let nested = "[".repeat(100_000);
    for line in [
        &b"{\"id\": 77, \"tool\": \"say\", \"args\": \"\xff\"}"[..],
        br#"{"id": 77, "tool": "say", "args": nonsense}"#,
        br#"{"id": 77, "tool": "\ud83d", "args": 0}"#,
        br#"{"id": 77, "tool": "say", "args": 0, }"#,
        format!(r#"{{"id": 77, "tool": "say", "args": {nested}"#).as_bytes(),
    ] {
        let line = line.to_vec();
        let refused = answers(&[&line[..], b"\n"].concat()).await;
        let shown = String::from_utf8_lossy(&line[..line.len().min(60)]).into_owned();
        assert_eq!((&refused[0]["id"], refused.len()), (&json!(77), 1), "{shown}");
        assert_eq!(refused[0]["metadata"]["kind"], "invalid_request", "{shown}");
    }
}

#[tokio::test]
async fn the_longest_line_is_taken() {
    let start = r#"{"id": "a", "tool": "large", "args": 3"#;
    let mut input = start.as_bytes().to_vec();
    input.resize(MAX_LINE_BYTES - 1, b' ');
    input.push(b'}');
    assert_eq!(input.len(), MAX_LINE_BYTES);
    let whole = answers(&input).await;
    assert_eq!(whole[0]["data"]["content"], "xxx");
    input.push(b' ');
    assert_eq!(answers(&input).await[0]["metadata"]["kind"], "too_large");
}

#[tokio::test]
async fn an_answer_that_is_too_long_says_so() {
    let input = json!({"id": "a", "tool": "large", "args": MAX_LINE_BYTES});
    let answers = answers(input.to_string().as_bytes()).await;
    assert_eq!(answers[0]["metadata"]["kind"], "too_large");
    assert_eq!(answers[0]["metadata"]["hint"], "read a part of it: offset and limit");
}

#[tokio::test]
async fn answers_come_in_any_order_and_a_call_can_be_cancelled() {
    let mut running = Running::new();
    running.call("slow", "wait", json!({})).await;
    running.call("quick", "say", json!("x")).await;
    assert_eq!(running.next().await["id"], "quick");
    // For a call that has been answered, and for an unknown one.
    running.send("{\"cancel\": \"quick\"}\n{\"cancel\": \"nobody\"}\n").await;
    running.send("{\"cancel\": \"slow\"}\n").await;
    let answer = running.next().await;
    assert_eq!(answer["id"], "slow");
    assert_eq!(answer["metadata"]["kind"], "cancelled");
    assert_eq!(running.end().await, Vec::<Value>::new());
}

#[tokio::test]
async fn an_id_is_free_again_once_its_call_has_been_answered() {
    let mut running = Running::new();
    running.call("a", "wait", json!({})).await;
    running.call("a", "say", json!("x")).await;
    let refused = running.next().await;
    assert_eq!(refused["error"], "a call with id \"a\" is in progress");
    running.send("{\"cancel\": \"a\"}\n").await;
    assert_eq!(running.next().await["metadata"]["kind"], "cancelled");
    running.call("a", "say", json!("x")).await;
    assert_eq!(running.next().await["data"]["content"], "x");
    // A number and its text are different ids.
    running.send("{\"id\": 1, \"tool\": \"wait\", \"args\": 0}\n").await;
    running.call("1", "say", json!("text")).await;
    assert_eq!(running.next().await["id"], "1");
    running.send("{\"cancel\": 1}\n").await;
    assert_eq!(running.end().await[0]["id"], 1);
}

#[tokio::test(start_paused = true)]
async fn a_call_has_the_time_that_its_caller_gives_it() {
    let answers = answers(br#"{"id": "a", "tool": "wait", "args": 0, "timeout_ms": 1500}"#).await;
    assert_eq!(answers[0]["metadata"]["kind"], "timeout");
    assert_eq!(answers[0]["error"], "the call took longer than its timeout_ms of 1500");
}

#[tokio::test(start_paused = true)]
async fn call_that_waits_for_a_slot_is_answered_when_it_times_out_or_is_cancelled() {
    let mut running = Running::new();
    let busy = |id: usize| format!("{}\n", json!({"id": id, "tool": "wait", "args": 0}));
    running.send((0..MAX_CALLS).map(busy).collect::<String>()).await;
    running.send("{\"id\": \"ever\", \"tool\": \"say\", \"args\": \"x\"}\n").await;
    for (id, timeout) in [("late", 2000), ("early", 500), ("unlimited", u64::MAX)] {
        let call = json!({"id": id, "tool": "say", "args": "x", "timeout_ms": timeout});
        running.send(format!("{call}\n")).await;
    }
    running.call("cancelled", "say", json!("x")).await;
    running.send("{\"cancel\": \"cancelled\"}\n").await;
    for (id, kind) in [("cancelled", "cancelled"), ("early", "timeout"), ("late", "timeout")] {
        let answer = running.next().await;
        assert_eq!((&answer["id"], &answer["metadata"]["kind"]), (&json!(id), &json!(kind)));
    }
    // Its id is free again, and the others have kept their order.
    running.call("early", "say", json!("y")).await;
    running.send("{\"cancel\": 0}\n").await;
    assert_eq!(running.next().await["id"], 0);
    for (id, content) in [("ever", "x"), ("unlimited", "x"), ("early", "y")] {
        let answer = running.next().await;
        assert_eq!((&answer["id"], &answer["data"]["content"]), (&json!(id), &json!(content)));
    }
    for id in 1..MAX_CALLS {
        running.send(format!("{{\"cancel\": {id}}}\n")).await;
    }
    assert_eq!(running.end().await.len(), MAX_CALLS - 1);
}

#[tokio::test(start_paused = true)]
async fn input_is_read_while_the_answer_of_a_call_that_timed_out_waiting_is_not() {
    let mut running = Running::new();
    // Fills the pipe.
    running.call("large", "large", json!(100_000)).await;
    let busy = |id: usize| format!("{}\n", json!({"id": id, "tool": "wait", "args": 0}));
    running.send((1..MAX_CALLS).map(busy).collect::<String>()).await;
    let late = json!({"id": "late", "tool": "say", "args": "x", "timeout_ms": 500});
    running.send(format!("{late}\n")).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let more_than_the_pipe_holds = running.send("\n".repeat(200 << 10));
    tokio::time::timeout(Duration::from_secs(1), more_than_the_pipe_holds).await.unwrap();
    for id in 1..MAX_CALLS {
        running.send(format!("{{\"cancel\": {id}}}\n")).await;
    }
    assert_eq!(running.end().await.len(), MAX_CALLS + 1);
}

#[tokio::test]
async fn a_tool_that_panics_answers_and_the_others_go_on() {
    let mut running = Running::new();
    running.call("a", "fail", json!(0)).await;
    assert_eq!(running.next().await["metadata"]["kind"], "internal");
    running.call("b", "say", json!("x")).await;
    assert_eq!(running.next().await["data"]["content"], "x");
    running.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_reader_who_does_not_read_holds_up_the_input() {
    const CALLS: usize = 5000;
    let mut running = Running::new();
    let call = |id: usize| format!("{}\n", json!({"id": id, "tool": "large", "args": 10_000}));
    let input: String = (0..CALLS).map(call).collect();
    let mut sent = 0;
    // Answers that are not read fill the pipe, and then no more lines are read: far fewer than
    // there are.
    let mut stdin = running.input.take().unwrap();
    let idle = Duration::from_secs(1);
    while let Ok(written) = tokio::time::timeout(idle, stdin.write(&input.as_bytes()[sent..])).await
    {
        sent += written.unwrap();
        assert!(sent < input.len(), "all of it was taken");
    }
    let between_us = (64 << 10) + (8 << 10);
    let most = between_us + (MAX_CALLS + MAX_WAITING + 10) * call(CALLS).len();
    assert!(sent <= most, "{sent} bytes were taken, and not just {most}");
    let rest = input.clone().into_bytes().split_off(sent);
    let sender = tokio::spawn(async move { stdin.write_all(&rest).await.map(|()| stdin) });
    for _ in 0..CALLS {
        assert_eq!(running.next().await["data"]["content"].as_str().unwrap().len(), 10_000);
    }
    running.input = Some(sender.await.unwrap().unwrap());
    assert_eq!(running.end().await, Vec::<Value>::new());
}

#[tokio::test]
async fn a_reader_who_is_gone_ends_everything() {
    let mut running = Running::new();
    running.call("a", "wait", json!({})).await;
    running.call("b", "say", json!("x")).await;
    assert_eq!(running.next().await["id"], "b");
    let Running { input, output, task } = running;
    let mut near = output.into_inner().unsplit(input.unwrap());
    near.write_all(b"{\"id\": \"c\", \"tool\": \"say\", \"args\": \"x\"}\n").await.unwrap();
    drop(near);
    // `a` is dropped; it would wait forever.
    task.await.unwrap().unwrap();
}

#[tokio::test]
async fn an_interruption_gives_up_the_calls_and_waits_for_no_input() {
    let (mut near, far) = tokio::io::duplex(64 << 10);
    let (from, to) = tokio::io::split(far);
    let (interrupt, interrupted) = tokio::sync::oneshot::channel();
    let (begun, mut begins) = mpsc::unbounded_channel::<Arc<()>>();
    let witness = Arc::new(());
    let call = {
        let witness = witness.clone();
        move |name: &str, args: &RawValue, stop: Stop| {
            let (held, work) = (witness.clone(), tool(name, args, stop));
            begun.send(held.clone()).unwrap();
            async move {
                let _held = held;
                work.await
            }
        }
    };
    let task = tokio::spawn(async move {
        let callbacks = Callbacks::default();
        serve(BufReader::new(from), to, &callbacks, call, interrupted).await
    });
    near.write_all(b"{\"id\": \"a\", \"tool\": \"wait\", \"args\": 0}\n").await.unwrap();
    drop(begins.recv().await.unwrap());
    interrupt.send("a signal").unwrap();
    assert_eq!(task.await.unwrap().unwrap(), Some(Ok("a signal")));
    assert_eq!(Arc::strong_count(&witness), 1, "the call is gone when serve has ended");
}
