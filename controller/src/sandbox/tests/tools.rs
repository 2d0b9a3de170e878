//! Calls of tools: what a hostile agent gains by them, and what is left of each.

use std::sync::atomic::AtomicBool;

use async_trait::async_trait;
use sandbox_api::{ExecutionResult, HostTool, ToolEffect, ToolOutcome};
use sandbox_protocol::limits::{MAX_TOOL_ARGUMENT_BYTES, MAX_TOOL_NAME_BYTES};
use sandbox_protocol::message::{CallEnd, CallResult, CallTarget, ControlReply, HostCall};
use serde_json::{Map, Value, json};

use super::*;
use crate::host_tools::{HostAnswer, HostToolError, HostTools, ToolGrant};

/// `a.echo` answers its arguments, and `a.hang` nothing.
#[derive(Debug, Default)]
struct Fakes {
    calls: Mutex<Vec<String>>,
    is_dropped: Arc<AtomicBool>,
}

struct SetOnDrop(Arc<AtomicBool>);

impl Drop for SetOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[async_trait]
impl HostTools for Fakes {
    async fn list(&self) -> Result<Arc<[HostTool]>, HostToolError> {
        let tool = |(name, effect): (&str, ToolEffect)| HostTool {
            name: name.to_owned(),
            effect,
            ..HostTool::default()
        };
        let tools = [
            ("a.echo", ToolEffect::ReadOnly),
            ("a.hang", ToolEffect::ReadOnly),
            ("a.write", ToolEffect::Changes),
        ];
        Ok(tools.map(tool).into())
    }

    async fn call(
        &self,
        tool: &str,
        arguments: Map<String, Value>,
        _permitted: ToolEffect,
    ) -> Result<HostAnswer, HostToolError> {
        self.calls.lock().unwrap().push(tool.to_owned());
        let _dropped = SetOnDrop(self.is_dropped.clone());
        if tool == "a.hang" {
            std::future::pending::<()>().await;
        }
        Ok(HostAnswer { value: Value::Object(arguments), files: Vec::new() })
    }
}

fn host_call(request: u64, call: u32, target: CallTarget, name: &str) -> FromAgent<'static> {
    let arguments = RawValue::from_string(r#"{"x":1}"#.to_owned()).unwrap();
    FromAgent::Call(HostCall { request, call, target, name: name.to_owned(), arguments })
}

/// Makes a call, and waits for its result.
async fn result_of(agent: &mut Scripted, call: u32, target: CallTarget, name: &str) -> CallEnd {
    agent.notify(host_call(agent.run, call, target, name)).await;
    let (id, request) = agent.agent.request().await.unwrap();
    let Request::CallResult(CallResult { request, call: of, end, .. }) = request else {
        panic!("{request:?}")
    };
    assert_eq!((request, of), (agent.run, call));
    agent.agent.answer(id, ControlReply { found: true }).await;
    end
}

async fn run_with(world: &World, tools: &Arc<Fakes>, script: Script) -> ExecutionResult {
    let sandbox = world.launch().await.unwrap();
    let tools: Arc<dyn HostTools> = tools.clone();
    let grant = Some(ToolGrant::new(tools));
    let run = sandbox.start_with_tools(script, grant, CancelHandle::new()).await.unwrap();
    let result = run.wait().await.unwrap();
    sandbox.close().await.unwrap();
    world.assert_removed().await;
    result
}

#[tokio::test(start_paused = true)]
async fn calls_are_answered_and_stand_in_the_result_and_the_audit() {
    let world = greeted(async |mut agent: Scripted, _| {
        let id = agent.run_request().await;
        let end = result_of(&mut agent, 1, CallTarget::Tool, "a.echo").await;
        assert_eq!(end, CallEnd::Value(json!({ "x": 1 })));
        let end = result_of(&mut agent, 2, CallTarget::Tool, "a.write").await;
        assert!(matches!(end, CallEnd::Failed { kind: ErrorKind::Policy, .. }), "{end:?}");
        let end = result_of(&mut agent, 3, CallTarget::Search, "echo").await;
        assert_eq!(end, CallEnd::Value(json!([{ "name": "a.echo", "description": "" }])));
        let CallEnd::Value(policy) = result_of(&mut agent, 4, CallTarget::Policy, "").await else {
            panic!("it is a value")
        };
        assert_eq!(policy["refused"][0]["tool"], "a.write", "{policy}");
        agent.returned(id, "null").await;
        agent.rest().await;
    });
    let directory = tempfile::tempdir().unwrap();
    let audit = directory.path().join("audit.log");
    let world = world.audited(&audit);
    let tools = Arc::<Fakes>::default();
    let result = run_with(&world, &tools, Script::new("x")).await;
    let (calls, is_truncated) = result.tool_calls();
    let outcomes: Vec<_> = calls.iter().map(|call| (&*call.tool, call.outcome)).collect();
    assert_eq!(outcomes, [("a.echo", ToolOutcome::Ok), ("a.write", ToolOutcome::Refused)]);
    assert!(!is_truncated);
    assert_eq!(*tools.calls.lock().unwrap(), ["a.echo"]);
    let document = ExecutionDocument::from(&result).to_json().unwrap();
    assert!(document.contains(r#""tool_calls":[{"tool":"a.echo","outcome":"ok""#), "{document}");
    audited::closed(&world).await;
    let audit = std::fs::read_to_string(&audit).unwrap();
    let lines: Vec<_> = audit.lines().filter(|line| line.contains(r#""tool""#)).collect();
    assert_eq!(lines.len(), 2, "{audit}");
    assert!(lines[1].contains(r#""program":"a.write","outcome":"refused""#), "{}", lines[1]);
}

#[tokio::test(start_paused = true)]
async fn agent_that_calls_what_it_was_not_given_is_lost() {
    let long = "x".repeat(MAX_TOOL_NAME_BYTES + 1);
    type Breach = (bool, Box<dyn Fn(u64) -> Vec<FromAgent<'static>> + Send>);
    let breaches: [Breach; 5] = [
        (false, Box::new(|run| vec![host_call(run, 1, CallTarget::Tool, "a.echo")])),
        (false, Box::new(|run| vec![host_call(run, 1, CallTarget::Search, "a")])),
        // Of another run.
        (true, Box::new(|run| vec![host_call(run + 1, 1, CallTarget::Tool, "a.echo")])),
        // A script waits for each of its calls.
        (
            true,
            Box::new(|run| {
                (1..3).map(|call| host_call(run, call, CallTarget::Tool, "a.hang")).collect()
            }),
        ),
        (true, Box::new(move |run| vec![host_call(run, 1, CallTarget::Tool, &long)])),
    ];
    for (is_granted, messages) in breaches {
        let world = greeted(async move |mut agent: Scripted, _| {
            let run = agent.run_request().await;
            for message in messages(run) {
                agent.notify(message).await;
            }
            std::future::pending().await
        });
        let tools = Arc::<Fakes>::default();
        let result = match is_granted {
            true => run_with(&world, &tools, Script::new("x")).await,
            false => world.run().await,
        };
        assert_eq!(result.outcome.status(), Status::AgentLost, "{:?}", result.outcome);
        assert!(tools.calls.lock().unwrap().iter().all(|tool| tool == "a.hang"));
    }
}

#[tokio::test(start_paused = true)]
async fn arguments_over_their_limit_are_a_breach() {
    let world = greeted(async |mut agent: Scripted, _| {
        let request = agent.run_request().await;
        let text = format!(r#"{{"x":"{}"}}"#, "x".repeat(MAX_TOOL_ARGUMENT_BYTES));
        let arguments = RawValue::from_string(text).unwrap();
        let (target, name) = (CallTarget::Tool, "a.echo".to_owned());
        let call = HostCall { request, call: 1, target, name, arguments };
        agent.notify(FromAgent::Call(call)).await;
        std::future::pending().await
    });
    let result = run_with(&world, &Arc::default(), Script::new("x")).await;
    assert_eq!(result.outcome.status(), Status::AgentLost, "{:?}", result.outcome);
}

#[tokio::test(start_paused = true)]
async fn end_of_the_run_cancels_the_call() {
    let world = greeted(async |mut agent: Scripted, _| {
        let id = agent.run_request().await;
        agent.notify(host_call(id, 1, CallTarget::Tool, "a.hang")).await;
        // It ends though its call has no result, as a script that is stopped does.
        tokio::time::sleep(Duration::from_secs(5)).await;
        agent.returned(id, "null").await;
        agent.rest().await;
    });
    let tools = Arc::<Fakes>::default();
    let result = run_with(&world, &tools, Script::new("x")).await;
    assert_eq!(result.outcome.status(), Status::Ok);
    assert!(tools.is_dropped.load(Ordering::Relaxed));
    let (calls, _) = result.tool_calls();
    assert_eq!((calls.len(), calls[0].outcome), (1, ToolOutcome::Cancelled));
}
