//! The gate, with tools that answer as a test wants.

use std::sync::Arc;

use super::*;
use crate::host_tools::{Destructive, HostTools, ToolLimits};
use crate::permission::Permission;
use async_trait::async_trait;
use sandbox_api::{ByteSize, ToolEffect};

/// Tools `a.…` whose arguments say what they answer.
#[derive(Debug, Default)]
struct Fake {
    /// How often they were listed.
    lists: Mutex<usize>,
    /// The servers that have not listed theirs.
    missing: Mutex<Vec<String>>,
    /// The calls, and the most that the tool may do in each.
    calls: Mutex<Vec<(String, ToolEffect)>>,
}

fn tool(name: &str, effect: ToolEffect) -> HostTool {
    let output = json!({ "properties": { "result": { "type": "number" } } });
    HostTool {
        name: name.to_owned(),
        description: format!("What {name} does"),
        output: (name == "a.wrapped").then(|| output.as_object().unwrap().clone()),
        effect,
        ..HostTool::default()
    }
}

fn all() -> [HostTool; 4] {
    [
        tool("a.read", ToolEffect::ReadOnly),
        tool("a.wrapped", ToolEffect::ReadOnly),
        tool("a.write", ToolEffect::Changes),
        tool("a.remove", ToolEffect::Destructive),
    ]
}

#[async_trait]
impl HostTools for Fake {
    async fn list(&self) -> Result<Arc<[HostTool]>, HostToolError> {
        *self.lists.lock().unwrap() += 1;
        Ok(all().into())
    }

    async fn list_some(&self) -> Result<Listed, HostToolError> {
        Ok((self.list().await?, self.missing.lock().unwrap().clone()))
    }

    fn known(&self) -> Option<Listed> {
        Some((all().into(), self.missing.lock().unwrap().clone()))
    }

    async fn find(&self, tool: &str) -> Result<HostTool, HostToolError> {
        all().into_iter().find(|it| it.name == tool).ok_or(HostToolError::Unknown)
    }

    async fn call(
        &self,
        tool: &str,
        arguments: Map<String, Value>,
        permitted: ToolEffect,
    ) -> Result<HostAnswer, HostToolError> {
        self.calls.lock().unwrap().push((tool.to_owned(), permitted));
        let value = match arguments.get("do").and_then(Value::as_str) {
            Some("hang") => std::future::pending().await,
            Some("more") => return Err(HostToolError::NotPermitted),
            Some("fail") => return Err(HostToolError::Failed("no such issue".to_owned())),
            Some("long") => json!("x".repeat(MAX_TOOL_VALUE_BYTES)),
            Some("deep") => (0..MAX_VALUE_DEPTH + 1).fold(Value::Null, |inner, _| json!([inner])),
            Some("files") => {
                let mime_type = "image/png".to_owned();
                let file = HostFile { mime_type, data: vec![1; MAX_TOOL_FILE_BYTES + 1] };
                return Ok(HostAnswer { value: Value::Null, files: vec![file] });
            }
            Some("result") => json!({ "result": 7 }),
            _ => Value::Object(arguments),
        };
        Ok(HostAnswer { value, files: Vec::new() })
    }
}

/// Allows what is about `yes`.
#[derive(Debug)]
struct Asked;

#[async_trait]
impl Permission for Asked {
    async fn ask(&self, ask: &Ask<'_>) -> Answer {
        match ask {
            Ask::Tool { arguments, .. } if arguments.contains_key("yes") => Answer::Allowed,
            _ => Answer::Refused,
        }
    }
}

/// Refuses everything, as where what is asked for is only noted.
#[derive(Debug)]
struct Nobody;

#[async_trait]
impl Permission for Nobody {
    async fn ask(&self, _: &Ask<'_>) -> Answer {
        Answer::Refused
    }
}

fn gate(rules: &[&str], change: impl FnOnce(&mut ToolGrant)) -> (Gate, Arc<Fake>) {
    let tools = Arc::new(Fake::default());
    let mut grant = ToolGrant::new(tools.clone());
    grant.rules = rules.iter().map(|rule| rule.parse().unwrap()).collect();
    change(&mut grant);
    (Gate::new(grant), tools)
}

async fn call(gate: &Gate, tool: &str, arguments: Value) -> Result<Value, String> {
    let arguments = serde_json::value::to_raw_value(&arguments).unwrap();
    let ((end, _), _) = gate.call(tool, &arguments, Duration::from_secs(30)).await;
    match end {
        CallEnd::Value(value) => Ok(value),
        CallEnd::Failed { kind, message } => Err(format!("{kind}: {message}")),
    }
}

fn outcomes(gate: &Gate) -> Vec<ToolOutcome> {
    gate.calls().0.iter().map(|call| call.outcome).collect()
}

#[tokio::test(start_paused = true)]
async fn call_that_takes_too_long_is_ended() {
    let (gate, _) = gate(&[], |_| ());
    let ended = call(&gate, "a.read", json!({ "do": "hang" })).await.unwrap_err();
    assert_eq!(ended, "runtime: the tool took too long");
    assert_eq!(outcomes(&gate), [ToolOutcome::Timeout]);
}

#[tokio::test(start_paused = true)]
async fn without_a_rule_only_tools_that_read_are_given() {
    let (gate, tools) = gate(&[], |_| ());
    assert_eq!(call(&gate, "a.read", json!({ "x": 1 })).await, Ok(json!({ "x": 1 })));
    let refused = call(&gate, "a.write", json!({})).await.unwrap_err();
    assert!(refused.starts_with("policy: the tool 'a.write' was not given"), "{refused}");
    assert!(refused.contains("--tool 'a.write'"), "{refused}");
    let refused = call(&gate, "a.remove", json!({})).await.unwrap_err();
    assert!(refused.contains("--tool 'a.remove' and --allow-destructive"), "{refused}");
    let unknown = call(&gate, "a.raed", json!({})).await.unwrap_err();
    assert!(unknown.starts_with("not_found: there is no tool 'a.raed'"), "{unknown}");
    assert!(unknown.contains("did you mean 'a.read"), "{unknown}");
    assert_eq!(tools.calls.lock().unwrap().len(), 1);
    use ToolOutcome as Outcome;
    let expected = [Outcome::Ok, Outcome::Refused, Outcome::Refused, Outcome::Unknown];
    assert_eq!(outcomes(&gate), expected);
}

#[tokio::test(start_paused = true)]
async fn rule_gives_what_it_names_with_the_arguments_that_it_names() {
    let (gate, tools) = gate(&["a.write /repo=site", "a.remove"], |_| ());
    assert!(call(&gate, "a.write", json!({ "repo": "site", "x": 1 })).await.is_ok());
    let refused = call(&gate, "a.write", json!({ "repo": "other" })).await.unwrap_err();
    let why = "not given with these arguments: the rule 'a.write /repo=site' needs /repo=site";
    assert!(refused.contains(why) && !refused.contains("--tool"), "{refused}");
    assert_eq!(
        (gate.suggested_rule("a.write"), gate.suggested_rule("a.read")),
        (None, Some("a.read".into()))
    );
    assert!(call(&gate, "a.read", json!({})).await.is_err());
    let refused = call(&gate, "a.remove", json!({})).await.unwrap_err();
    assert!(refused.contains("--allow-destructive"), "{refused}");
    assert_eq!(tools.calls.lock().unwrap().len(), 1);
    // The last of two equal keys counts, for the rule and for the tool.
    let twice = RawValue::from_string(r#"{"repo":"site","repo":"other"}"#.to_owned()).unwrap();
    let ((end, _), _) = gate.call("a.write", &twice, Duration::from_secs(1)).await;
    assert!(matches!(end, CallEnd::Failed { kind: ErrorKind::Policy, .. }), "{end:?}");
}

#[tokio::test(start_paused = true)]
async fn destructive_tool_needs_a_word_for_it_or_a_permission() {
    let (allowed, _) = gate(&["a.*"], |grant| grant.destructive = Destructive::Allowed);
    assert!(call(&allowed, "a.remove", json!({})).await.is_ok());
    let (asked, tools) = gate(&["a.remove"], |grant| grant.permission = Some(Arc::new(Asked)));
    assert!(call(&asked, "a.remove", json!({})).await.is_err());
    assert!(call(&asked, "a.remove", json!({ "yes": 1 })).await.is_ok());
    // No question is asked about what no rule gives.
    assert!(call(&asked, "a.write", json!({ "yes": 1 })).await.is_err());
    assert_eq!(tools.calls.lock().unwrap().len(), 1);
    let (learning, _) = gate(&["a.read"], |grant| grant.learner = Some(Arc::new(Asked)));
    assert!(call(&learning, "a.write", json!({ "yes": 1 })).await.is_ok());
    assert!(call(&learning, "a.write", json!({})).await.is_err());
    // Who is asked by a run does not widen what is given where rules are learnt.
    let (client, tools) = gate(&["a.remove"], |grant| {
        let learning = ToolGrant { learner: Some(Arc::new(Nobody)), ..grant.clone() };
        *grant = learning.with_asker(Arc::new(Asked));
    });
    assert!(call(&client, "a.write", json!({ "yes": 1 })).await.is_err());
    assert!(call(&client, "a.remove", json!({ "yes": 1 })).await.is_ok());
    assert_eq!(tools.calls.lock().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn call_says_what_its_tool_may_do_and_lists_only_for_an_unknown_name() {
    use ToolEffect::{Changes, Destructive as Removes, ReadOnly};
    let allowed = |grant: &mut ToolGrant| grant.destructive = Destructive::Allowed;
    let asked = |grant: &mut ToolGrant| grant.permission = Some(Arc::new(Asked));
    for (rules, change, name, permitted) in [
        (&[][..], &(|_: &mut ToolGrant| ()) as &dyn Fn(&mut ToolGrant), "a.read", ReadOnly),
        (&["a.*"], &|_| (), "a.read", Changes),
        (&["a.*"], &allowed, "a.read", Removes),
        (&["a.*"], &asked, "a.remove", Removes),
    ] {
        let (gate, tools) = gate(rules, change);
        call(&gate, name, json!({ "yes": 1 })).await.unwrap();
        assert_eq!(tools.calls.lock().unwrap()[0], (name.to_owned(), permitted));
        let error = call(&gate, "a.read", json!({ "do": "more" })).await.unwrap_err();
        assert!(error.starts_with("policy: the server now marks the tool"), "{error}");
        assert_eq!(*tools.lists.lock().unwrap(), 0);
        call(&gate, "a.new", json!({})).await.unwrap_err();
        assert_eq!(*tools.lists.lock().unwrap(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn results_and_failures_are_what_a_script_may_get() {
    let (gate, _) = gate(&[], |_| ());
    let of = |what: &str| json!({ "do": what });
    assert_eq!(call(&gate, "a.wrapped", of("result")).await, Ok(json!(7)));
    assert_eq!(call(&gate, "a.read", of("result")).await, Ok(json!({ "result": 7 })));
    assert_eq!(call(&gate, "a.read", of("fail")).await, Err("runtime: no such issue".to_owned()));
    for what in ["long", "deep", "files"] {
        let error = call(&gate, "a.read", of(what)).await.unwrap_err();
        assert!(error.starts_with("too_large: "), "{error}");
    }
    let since = Instant::now();
    let error = call(&gate, "a.read", of("hang")).await.unwrap_err();
    assert!(error.starts_with("runtime: the tool took too long"), "{error}");
    // The time that the run has left is less than that of a call.
    assert_eq!(since.elapsed(), Duration::from_secs(30));
    let no_object = call(&gate, "a.read", json!([1])).await.unwrap_err();
    assert!(no_object.contains("not an object"), "{no_object}");
}

#[tokio::test(start_paused = true)]
async fn calls_bytes_and_rate_are_bounded() {
    let limits = ToolLimits { calls: 3, ..ToolLimits::default() };
    let (few, tools) = gate(&[], |grant| grant.limits = limits);
    for _ in 0..3 {
        call(&few, "a.read", json!({})).await.unwrap();
    }
    let error = call(&few, "a.read", json!({})).await.unwrap_err();
    assert!(error.starts_with("policy: this script may call tools 3 times"), "{error}");
    assert_eq!(tools.calls.lock().unwrap().len(), 3);

    let limits = ToolLimits { bytes: ByteSize::b(1000), ..ToolLimits::default() };
    let (small, tools) = gate(&[], |grant| grant.limits = limits);
    call(&small, "a.read", json!({ "x": "x".repeat(400) })).await.unwrap();
    let error = call(&small, "a.read", json!({ "x": "x".repeat(400) })).await.unwrap_err();
    assert!(error.contains("1000B of arguments and results"), "{error}");
    assert_eq!(tools.calls.lock().unwrap().len(), 1);

    let limits = ToolLimits { rate: 2, ..ToolLimits::default() };
    let (slow, _) = gate(&[], |grant| grant.limits = limits);
    let since = Instant::now();
    for _ in 0..5 {
        call(&slow, "a.read", json!({})).await.unwrap();
    }
    assert_eq!(since.elapsed(), Duration::from_secs(2));
}

#[tokio::test(start_paused = true)]
async fn every_call_is_recorded_and_one_that_is_dropped_is_cancelled() {
    let (gate, _) = gate(&[], |_| ());
    let arguments = RawValue::from_string(r#"{"do":"hang"}"#.to_owned()).unwrap();
    let dropped = gate.call("a.read", &arguments, Duration::from_secs(30));
    assert!(timeout(Duration::from_secs(1), dropped).await.is_err());
    let recorded = gate.close().unwrap();
    assert_eq!(recorded.outcome, ToolOutcome::Cancelled);
    assert_eq!(recorded.duration_ms, 1000);
    assert_eq!(recorded.arguments_sha256, sha256(r#"{"do":"hang"}"#));
    assert_eq!(gate.close(), None);
    for number in 0..ToolCall::MAX_RECORDED {
        _ = call(&gate, "a.read", json!({ "n": number })).await;
    }
    let (calls, is_truncated) = gate.calls();
    assert_eq!((calls.len(), is_truncated), (ToolCall::MAX_RECORDED, true));
    assert_eq!((calls[1].argument_bytes, calls[1].result_bytes), (7, 7));
    assert_eq!(calls[1].arguments_sha256, calls[1].result_sha256);
}

#[tokio::test(start_paused = true)]
async fn search_without_a_match_is_refused_while_tools_are_missing() {
    let (all, tools) = gate(&[], |_| ());
    tools.missing.lock().unwrap().push("b".to_owned());
    for _ in 0..2 {
        let (end, _) = all.search("elsewhere").await;
        let says = |message: &str| message.contains("'b' has not listed its tools");
        assert!(matches!(&end, CallEnd::Failed { message, .. } if says(message)), "{end:?}");
    }
    let (end, _) = all.search("read").await;
    assert!(matches!(end, CallEnd::Value(_)), "{end:?}");
    assert_eq!(*tools.lists.lock().unwrap(), 1, "servers are not waited for at each search");
    // What is there by now is known at once.
    tools.missing.lock().unwrap().clear();
    for _ in 0..2 {
        assert_eq!(all.search("elsewhere").await.0, CallEnd::Value(json!([])));
        tools.missing.lock().unwrap().push("b".to_owned());
    }
    assert_eq!(*tools.lists.lock().unwrap(), 1, "a whole list is kept");
    let (some, tools) = gate(&["a.*"], |_| ());
    tools.missing.lock().unwrap().push("b".to_owned());
    let (end, _) = some.search("elsewhere").await;
    assert_eq!(end, CallEnd::Value(json!([])), "no rule gives a tool of that server");
}

#[tokio::test(start_paused = true)]
async fn search_and_description_show_what_is_given() {
    let (gate, _) = gate(&["a.write"], |_| ());
    let (end, _) = gate.search("does").await;
    assert_eq!(
        end,
        CallEnd::Value(json!([{ "name": "a.write", "description": "What a.write does" }]))
    );
    let (none, _) = gate.search("elsewhere").await;
    assert_eq!(none, CallEnd::Value(json!([])));
    let (end, _) = gate.describe("a.write").await;
    assert_eq!(
        end,
        CallEnd::Value("tools.a.write(arguments: any) -> any\nWhat a.write does".into())
    );
    let (end, _) = gate.describe("a.read").await;
    assert!(matches!(end, CallEnd::Failed { kind: ErrorKind::NotFound, .. }), "{end:?}");
}

#[test]
fn files_have_names_of_their_own() {
    let name = |tool: &str, index, mime_type: &str| {
        let file = HostFile { mime_type: mime_type.to_owned(), data: vec![1] };
        let CallFile { name, mime_type, .. } = named(tool, 3, index, file);
        (name, mime_type)
    };
    assert_eq!(name("a.shot", 0, "image/png"), ("a.shot-3-1.png".into(), "image/png".into()));
    let other = ("x_..____y.z-3-2.octet".to_owned(), "application/octet-stream".to_owned());
    assert_eq!(name("x/../\u{e9}\n y.z", 1, "a\nb"), other);
    assert!(name(&"..".repeat(200), 0, "image/png").0.starts_with("-3-1"));
}
