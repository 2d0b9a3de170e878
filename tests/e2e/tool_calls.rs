//! Functions of a program, which the scripts that it runs call: over `tools --stdio`, and of the library.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use sandbox_api::{HostTool, SandboxSpec, Script, Status, ToolEffect, ToolOutcome};
use sandbox_controller::CancelHandle;
use sandbox_controller::host_tools::{HostAnswer, HostFile, HostToolError, HostTools, ToolGrant};
use serde_json::{Map, Value, json};

use crate::fixture::{Fixture, in_its_time};
use crate::library::Library;

/// Longer than any answer of these tests takes.
const TIMEOUT: Duration = Duration::from_secs(300);

/// `sandboxctl tools --stdio`, and the program that answers its calls.
struct Program<'a> {
    place: &'a Fixture,
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<Value>,
}

impl<'a> Program<'a> {
    fn new(place: &'a Fixture) -> Self {
        let mut command = place.command(["tools", "--stdio"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (sender, lines) = channel();
        let stdout = BufReader::new(child.stdout.take().unwrap()).lines();
        std::thread::spawn(move || {
            for line in stdout {
                let line = serde_json::from_str(&line.unwrap()).expect("a line is JSON");
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let stdin = child.stdin.take();
        let mut program = Self { place, child, stdin, lines };
        let init = json!({ "containerId": "c", "projectOutPath": "sandbox-files" });
        program.send(&json!({ "id": 0, "tool": "sandbox_init", "args": init }));
        assert_eq!(program.next()["data"]["containerId"], "c");
        program
    }

    fn send(&mut self, line: &Value) {
        writeln!(self.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    fn next(&self) -> Value {
        self.lines.recv_timeout(TIMEOUT).expect("a line")
    }

    /// Runs a script that may call `app.price` and `app.fail`.
    fn script(&mut self, id: u64, source: &str) {
        let tools = json!([
            { "name": "app.price", "description": "The price of an item" },
            { "name": "app.fail", "effect": "destructive" },
        ]);
        let args = json!({ "containerId": "c", "script": source, "tools": tools });
        self.send(&json!({ "id": id, "tool": "sandbox_execute_script", "args": args }));
    }

    /// The next line is a call; answers it by these members.
    fn answer(&mut self, tool: &str, mut answer: Value) -> Value {
        let line = self.next();
        let call = line.get("call").unwrap_or_else(|| panic!("{line:#}"));
        assert_eq!(call["tool"], tool, "{line:#}");
        answer["id"] = call["id"].clone();
        self.send(&json!({ "result": answer }));
        call["arguments"].clone()
    }

    fn end(mut self) {
        drop(self.stdin.take());
        assert_eq!(self.lines.iter().count(), 0);
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
        assert_eq!(self.place.containers(), Vec::<String>::new());
    }
}

#[test]
fn script_calls_functions_of_the_program_and_no_others() {
    let place = Fixture::new();
    let mut program = Program::new(&place);
    program.script(
        1,
        "local price = tools.app.price { item = 'tea' } \
         local ok, why = pcall(tools.app.fail) \
         local found = tools.search('price') \
         local other, unknown = pcall(tools.app.prize, {}) \
         return { price = price, ok = ok, why = why, found = found[1].name, other = other, \
         unknown = unknown }",
    );
    assert_eq!(program.answer("app.price", json!({ "value": 3.5 })), json!({ "item": "tea" }));
    assert_eq!(program.answer("app.fail", json!({ "error": "no such item" })), json!({}));
    let answer = program.next();
    let result = &answer["data"]["result"];
    assert_eq!(result["price"], 3.5, "{answer:#}");
    assert_eq!((&result["ok"], &result["why"]), (&json!(false), &json!("no such item")));
    assert_eq!((&result["found"], &result["other"]), (&json!("app.price"), &json!(false)));
    let unknown = result["unknown"].as_str().unwrap();
    assert!(unknown.contains("did you mean 'app.price'"), "{unknown}");

    // What one script was given, another one was not.
    let args = json!({ "containerId": "c", "script": "return tools == nil" });
    program.send(&json!({ "id": 2, "tool": "sandbox_execute_script", "args": args }));
    assert_eq!(program.next()["data"]["result"], true);

    for (name, what) in [("search.x", "function of tools"), ("x", "GROUP.TOOL")] {
        let tools = json!([{ "name": name }]);
        let args = json!({ "containerId": "c", "script": "return 1", "tools": tools });
        program.send(&json!({ "id": 3, "tool": "sandbox_execute_script", "args": args }));
        let refused = program.next();
        assert!(refused["error"].as_str().is_some_and(|it| it.contains(what)), "{refused:#}");
    }
    program.send(&json!({ "result": { "id": 1, "value": 1, "error": "both" } }));
    assert_eq!(program.next()["metadata"]["kind"], "invalid_request");
    program.end();
}

#[test]
fn call_ends_with_its_script() {
    let place = Fixture::new();
    let mut program = Program::new(&place);
    program.script(1, "return tools.app.price {}");
    let call = program.next()["call"].clone();
    program.send(&json!({ "cancel": 1 }));
    let answer = program.next();
    assert_eq!((&answer["id"], &answer["metadata"]["kind"]), (&json!(1), &json!("cancelled")));
    // No call waits for it any more.
    program.send(&json!({ "result": { "id": call["id"], "value": 1 } }));
    program.script(2, "return tools.app.price {}");
    program.answer("app.price", json!({ "value": null }));
    assert_eq!(program.next()["data"]["result"], Value::Null);

    // No answer can come any more after the end of the input.
    program.script(3, "return select(2, pcall(tools.app.price, {}))");
    assert_eq!(program.next()["call"]["tool"], "app.price");
    drop(program.stdin.take());
    let answer = program.next();
    let why = answer["data"]["result"].as_str().unwrap_or_default();
    assert!(why.contains("the program answers no calls"), "{answer:#}");
    program.end();
}

/// Tools of the library's user.
#[derive(Debug, Default)]
struct Tools {
    calls: Mutex<Vec<String>>,
}

#[async_trait]
impl HostTools for Tools {
    async fn list(&self) -> Result<Arc<[HostTool]>, HostToolError> {
        let tool = |(name, effect): (&str, ToolEffect)| HostTool {
            name: name.to_owned(),
            effect,
            ..HostTool::default()
        };
        let all = [
            ("t.picture", ToolEffect::ReadOnly),
            ("t.hang", ToolEffect::ReadOnly),
            ("t.remove", ToolEffect::Destructive),
        ];
        Ok(all.map(tool).into())
    }

    async fn call(
        &self,
        tool: &str,
        _arguments: Map<String, Value>,
        _permitted: ToolEffect,
    ) -> Result<HostAnswer, HostToolError> {
        self.calls.lock().unwrap().push(tool.to_owned());
        if tool == "t.hang" {
            std::future::pending::<()>().await;
        }
        let file = HostFile { mime_type: "image/png".to_owned(), data: b"\x89PNG".to_vec() };
        Ok(HostAnswer { value: json!({ "width": 1 }), files: vec![file] })
    }
}

#[test]
fn library_gives_a_run_tools_whose_files_are_in_its_io_dir() {
    let place = Fixture::new();
    let library = Library::new(&place);
    let sandbox = library.launch(SandboxSpec::new().io_dir(place.path("out")));
    let tools = Arc::<Tools>::default();
    let run = |script: Script| {
        let grant = Some(ToolGrant::new(tools.clone()));
        library.wait(async {
            sandbox.start_with_tools(script, grant, CancelHandle::new()).await?.wait().await
        })
    };
    let source = "local value, files = tools.t.picture {} \
                  return { value.width, files[1].path, (pcall(tools.t.remove, {})) }";
    let result = run(Script::new(source)).unwrap();
    assert_eq!(result.outcome.status(), Status::Ok, "{:?}", result.outcome);
    assert_eq!(std::fs::read(place.path("out/tool-files/t.picture-1-1.png")).unwrap(), b"\x89PNG");
    assert_eq!(result.files_touched.files.len(), 1);
    let outcomes: Vec<_> = result.tool_calls().0.iter().map(|call| call.outcome).collect();
    assert_eq!(outcomes, [ToolOutcome::Ok, ToolOutcome::Refused]);
    assert_eq!(*tools.calls.lock().unwrap(), ["t.picture"]);

    // Waiting counts towards the deadline.
    let result = in_its_time(
        |time| run(Script::new("tools.t.hang {}").timeout(time)).unwrap(),
        |result| !result.tool_calls().0.is_empty(),
    );
    assert_eq!(result.outcome.status(), Status::Timeout, "{:?}", result.outcome);
    assert_eq!(result.tool_calls().0[0].outcome, ToolOutcome::Cancelled);
    library.wait(sandbox.close()).unwrap();
}
