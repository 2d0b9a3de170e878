//! Sandboxes that a service keeps: their files, their generations and their ends.

use serde_json::{Value, json};

use super::service::{Service, serve};
use crate::engine::engine;
use crate::engines::{Feature, has};
use crate::fixture::{Fixture, eventually};
use crate::rootfs::{Provided, Rootfs};

/// Scripts have files there.
const WITH_FILES: &[(&str, &str)] = &[("SANDBOXCTL_IO_ENABLED", "true")];

/// An answer: its status, the generation and whether it was started for that, and the body.
#[derive(Debug)]
struct Response {
    status: u16,
    generation: Option<(u64, bool)>,
    body: String,
}

impl Response {
    #[track_caller]
    fn json(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{self:?}");
        serde_json::from_str(&self.body).unwrap()
    }
}

/// A caller of a service.
struct Caller<'a, 's> {
    service: &'s Service<'a>,
    token: &'s str,
}

impl Caller<'_, '_> {
    fn send(&self, method: &str, path: &str, body: &str) -> Response {
        let headers = format!("authorization: Bearer {}\r\n", self.token);
        let (status, head, body) = self.service.exchange(method, path, &headers, body);
        let header = |name: &str| {
            let line = head.lines().find(|line| line.starts_with(name))?;
            line.split_once(": ").map(|(_, value)| value.to_owned())
        };
        let generation = header("sandbox-generation").map(|generation| {
            let restarted = header("sandbox-restarted").unwrap();
            (generation.parse().unwrap(), restarted == "true")
        });
        Response { status, generation, body }
    }

    fn create(&self, request: &Value) -> Response {
        self.send("POST", "/v1/sandboxes", &request.to_string())
    }

    fn get(&self, sandbox: &str) -> Response {
        self.send("GET", &format!("/v1/sandboxes/{sandbox}"), "")
    }

    fn file(&self, sandbox: &str, path: &str) -> Response {
        self.send("GET", &format!("/v1/sandboxes/{sandbox}/files/{path}"), "")
    }

    fn run(&self, sandbox: &str, wait: u32, script: &str) -> Response {
        let path = format!("/v1/sandboxes/{sandbox}/executions?wait={wait}");
        let limits = json!({ "timeout_ms": 300_000 });
        self.send("POST", &path, &json!({ "script": script, "limits": limits }).to_string())
    }

    /// Submits a script, and returns its execution.
    fn submit(&self, sandbox: &str, script: &str) -> String {
        let accepted = self.run(sandbox, 0, script).json(202);
        let execution = accepted["id"].as_str().unwrap().to_owned();
        self.until(&execution, "running");
        execution
    }

    /// A sandbox, and the execution of a script that runs there for ever.
    fn looping(&self) -> (String, String) {
        let id = self.create(&json!({})).json(201)["id"].as_str().unwrap().to_owned();
        let looping = self.submit(&id, "fs.write('first', '') while true do end");
        eventually("it runs", || (self.file(&id, "first").status == 200).then_some(()));
        (id, looping)
    }

    fn until(&self, execution: &str, status: &str) -> Value {
        eventually(&format!("{execution} is {status}"), || {
            let path = format!("/v1/executions/{execution}");
            let execution = self.send("GET", &path, "").json(200);
            (execution["status"] == status).then_some(execution)
        })
    }
}

/// A token of this subject, for everything but the server itself.
fn token(place: &Fixture, subject: &str) -> String {
    let create = ["token", "create", "--data-dir", "service", "--subject", subject];
    let scopes = ["sandboxes", "executions:write", "executions:read"];
    let scopes = scopes.iter().flat_map(|scope| ["--scope", scope]);
    let created = place.sandboxctl(create.into_iter().chain(scopes));
    created.assert_code(0).stdout.trim_end().to_owned()
}

fn start(place: &Fixture) -> Service<'_> {
    Service::start(place, serve(place, &["--listen", "127.0.0.1:0"], WITH_FILES))
}

#[test]
fn kept_sandbox_has_its_files_through_a_restart_and_is_of_its_subject_alone() {
    let place = Fixture::new();
    let [alice, bob] = ["alice", "bob"].map(|subject| token(&place, subject));
    let request = json!({ "name": "notes", "ttl_ms": 600_000 });
    let service = start(&place);
    let caller = Caller { service: &service, token: &alice };
    let created = caller.create(&request);
    assert_eq!(created.generation, Some((1, false)));
    let created = created.json(201);
    let id = created["id"].as_str().unwrap();
    let of = |path: &str| format!("/v1/sandboxes/{id}/{path}");
    assert_eq!(place.containers().len(), 1);

    let written = caller.send("PUT", &of("files/a.txt"), "one");
    assert_eq!((written.status, written.generation), (200, Some((1, false))), "{written:?}");
    let read = json!({ "operation": "read", "path": "a.txt" }).to_string();
    let read = caller.send("POST", &of("operations"), &read).json(200);
    assert_eq!(read["success"], true, "{read}");
    let append = "fs.write('b.txt', fs.read('a.txt') .. ' two') return fs.read('b.txt')";
    let ran = caller.run(id, 60, append).json(200);
    assert_eq!((&ran["status"], &ran["result"]), (&json!("ok"), &json!("one two")), "{ran}");
    assert_eq!((&ran["generation"], &ran["restarted"]), (&json!(1), &json!(false)));
    // It was started for its creation, not for this.
    assert_eq!((&ran["timing"]["start"], &ran["timing"]["start_ms"]), (&Value::Null, &Value::Null));
    assert_eq!(caller.file(id, "b.txt").body, "one two");
    let extend = json!({ "ttl_ms": 7_200_000 }).to_string();
    let extended = caller.send("POST", &of("extend"), &extend).json(200);
    assert!(extended["expires_at"].as_str() > created["expires_at"].as_str(), "{extended}");

    let stranger = Caller { service: &service, token: &bob };
    assert_eq!(stranger.get(id).status, 404);
    assert_eq!(stranger.send("GET", "/v1/sandboxes", "").json(200)["sandboxes"], json!([]));
    // A name is of its subject.
    let theirs = stranger.create(&request).json(201)["id"].as_str().unwrap().to_owned();
    assert_eq!(stranger.file(&theirs, "a.txt").status, 404);
    assert_eq!(stranger.send("DELETE", &format!("/v1/sandboxes/{theirs}"), "").status, 204);
    service.stop();

    let service = start(&place);
    let caller = Caller { service: &service, token: &alice };
    let stopped = caller.get(id).json(200);
    assert_eq!((&stopped["status"], &stopped["generation"]), (&json!("stopped"), &json!(1)));
    assert_eq!(stopped["expires_at"], extended["expires_at"]);
    assert_eq!(caller.file(id, "a.txt?generation=1").status, 410);
    let file = caller.file(id, "b.txt");
    assert_eq!((&*file.body, file.generation), ("one two", Some((2, true))));
    assert_eq!(caller.create(&request).json(200)["id"], *id);
    let ran = caller.run(id, 60, "return fs.read('a.txt')").json(200);
    assert_eq!((&ran["result"], &ran["generation"]), (&json!("one"), &json!(2)), "{ran}");
    assert!(place.path("service/files").join(id).exists());
    assert_eq!(caller.send("DELETE", &format!("/v1/sandboxes/{id}"), "").status, 204);
    assert_eq!((caller.get(id).status, caller.file(id, "a.txt").status), (410, 410));
    assert!(!place.path("service/files").join(id).exists());
    assert_eq!(place.containers(), Vec::<String>::new());
    service.stop();
}

#[test]
fn sandbox_of_a_service_without_io_says_that_it_has_no_files() {
    let place = Fixture::new();
    let token = token(&place, "alice");
    let service = Service::start(&place, serve(&place, &["--listen", "127.0.0.1:0"], &[]));
    let caller = Caller { service: &service, token: &token };
    let id = caller.create(&json!({})).json(201)["id"].as_str().unwrap().to_owned();
    let problem = caller.send("PUT", &format!("/v1/sandboxes/{id}/files/a"), "x").json(403);
    let list = json!({ "operation": "list", "path": "a" }).to_string();
    let listed = caller.send("POST", &format!("/v1/sandboxes/{id}/operations"), &list).json(200);
    let error = &listed["error"];
    for (kind, message, hint) in [
        (&problem["kind"], &problem["detail"], &problem["hint"]),
        (&error["kind"], &error["message"], &error["hint"]),
    ] {
        assert_eq!(kind, "not_allowed");
        assert_eq!(message, "a: the sandbox has no io dir, because io is off");
        assert!(hint.as_str().unwrap().contains("`[io] enabled = true`"), "{hint}");
    }
    service.stop();
}

#[test]
fn script_that_waits_for_another_in_its_sandbox_is_cancelled_unrun() {
    let place = Fixture::new();
    let token = token(&place, "alice");
    let service = start(&place);
    let caller = Caller { service: &service, token: &token };
    let (id, looping) = caller.looping();
    let waiting = caller.submit(&id, "fs.write('second', '')");
    let cancel = |execution: &str| {
        caller.send("DELETE", &format!("/v1/executions/{execution}"), "").json(200);
        caller.until(execution, "cancelled")
    };
    let cancelled = cancel(&waiting);
    assert_eq!(cancelled["error"]["message"], "cancelled before it began", "{cancelled}");
    caller.until(&looping, "running");
    cancel(&looping);
    assert_eq!(caller.run(&id, 60, "return fs.exists('second')").json(200)["result"], false);
    service.stop();
}

/// They ended with `agent_lost`, or because another run was under way.
#[test]
fn scripts_of_a_sandbox_that_is_deleted_are_cancelled() {
    let place = Fixture::new();
    let token = token(&place, "alice");
    let service = start(&place);
    let caller = Caller { service: &service, token: &token };
    let (id, looping) = caller.looping();
    let waiting: Vec<_> = (0..3).map(|_| caller.submit(&id, "return 1")).collect();
    assert_eq!(caller.send("DELETE", &format!("/v1/sandboxes/{id}"), "").status, 204);
    caller.until(&looping, "cancelled");
    for waiting in &waiting {
        caller.until(waiting, "cancelled");
    }
    let put = caller.send("PUT", &format!("/v1/sandboxes/{id}/files/a.txt"), "late");
    assert_eq!(put.status, 410, "{put:?}");
    service.stop();
    eventually("nothing of it is left", || engine().remains(&place).is_empty().then_some(()));
}

#[test]
fn kept_sandbox_has_no_container_while_it_is_idle_and_none_of_it_is_left_at_its_end() {
    let place = Fixture::new();
    let token = token(&place, "alice");
    let service = start(&place);
    let caller = Caller { service: &service, token: &token };
    let create = |request: Value| {
        let created = caller.create(&request).json(201);
        created["id"].as_str().unwrap().to_owned()
    };
    let idle = create(json!({ "idle_ms": 100 }));
    eventually("it has no container", || {
        let stopped = caller.get(&idle).json(200)["status"] == "stopped";
        (stopped && place.containers().is_empty()).then_some(())
    });
    let path = format!("/v1/sandboxes/{idle}/files/a.txt");
    assert_eq!(caller.send("PUT", &path, "kept").generation, Some((2, true)));
    // It has one id everywhere; the numbers of its containers differ. It may be idle again before it is listed.
    let listed = eventually("it is listed with its generation", || {
        let (generation, _) = caller.send("PUT", &path, "kept").generation.unwrap();
        let listed = place.sandboxctl(["ps", "--json"]);
        let listed: Value = serde_json::from_str(&listed.assert_code(0).stdout).unwrap();
        let is_it = |it: &&Value| it["id"] == *idle && it["generation"] == generation;
        listed.as_array().unwrap().iter().find(is_it).cloned()
    });
    assert_eq!(listed["state"], "running");
    eventually("its container has its id and generation", || {
        let (generation, _) = caller.send("PUT", &path, "kept").generation.unwrap();
        let names = place.containers().into_iter().filter_map(|it| engine().name_of(&it));
        names.eq([format!("sandboxctl-{idle}-g{generation}")]).then_some(())
    });
    let short = create(json!({ "ttl_ms": 3000 }));
    eventually("it is gone", || (caller.get(&short).status == 410).then_some(()));
    eventually("nothing of it is left", || {
        let files = std::fs::read_dir(place.path("service/files")).unwrap().count();
        (files == 1 && place.containers().is_empty()).then_some(())
    });
    assert_eq!(caller.file(&idle, "a.txt").body, "kept");
    service.stop();
    eventually("no helper is left", || engine().remains(&place).is_empty().then_some(()));
}

/// Loop devices of images below this place.
fn loop_devices(place: &Fixture) -> Vec<String> {
    let devices = std::fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let files = devices
        .filter_map(|device| std::fs::read_to_string(device.path().join("loop/backing_file")).ok());
    files.filter(|file| file.starts_with(place.path("").to_str().unwrap())).collect()
}

#[test]
fn files_of_a_kept_sandbox_with_programs_are_in_an_image_that_outlives_a_killed_service() {
    if !has(Feature::SharedKernel) {
        // Another kernel mounts no image of this one.
        return;
    }
    let place = Fixture::new();
    let provided = Rootfs::busybox().provide();
    let root = provided.args();
    let limits = json!({ "write_bytes": 64_000_000 });
    let (own, spec) = match &provided {
        Provided::Image(name) => {
            (["--allowed-image", name], json!({ "limits": limits, "image": name }))
        }
        _ => ([&*root[0], &*root[1]], json!({ "limits": limits })),
    };
    let token = token(&place, "alice");
    let start = || {
        let flags = [&["--listen", "127.0.0.1:0"], &own[..]].concat();
        Service::start(&place, serve(&place, &flags, &[]))
    };
    let service = start();
    let caller = Caller { service: &service, token: &token };
    let created = caller.create(&json!({ "name": "a", "spec": spec })).json(201);
    let id = created["id"].as_str().unwrap();
    let shell = |caller: &Caller<'_, '_>, line: &str| {
        let path = format!("/v1/sandboxes/{id}/executions?wait=60");
        let command = json!({ "command": { "shell": line } });
        let ended = caller.send("POST", &path, &command.to_string()).json(200);
        assert_eq!(ended["status"], "ok", "{ended}");
        ended
    };
    let filled = shell(&caller, "echo x > kept; head -c 100000000 /dev/zero > f; wc -c < f");
    let disk = &filled["disk"];
    let expected = (&json!("kernel"), &json!("ext4"), &json!(64_000_000));
    assert_eq!((&disk["bound"], &disk["backend"], &disk["bytes"]), expected, "{filled}");
    let taken: u64 = filled["stdout"].as_str().unwrap().trim().parse().unwrap();
    assert!((63_000_000..68_200_000).contains(&taken), "{taken}");
    let image = place.path("service/files").join(id);
    assert!(image.is_file());
    service.stop();
    eventually("it is not mounted", || loop_devices(&place).is_empty().then_some(()));

    let service = start();
    let caller = Caller { service: &service, token: &token };
    let held = shell(&caller, "echo y >> kept; head -c 9000000 /dev/zero > g; wc -c < g");
    assert_eq!(held["generation"], 2, "{held}");
    let more: u64 = held["stdout"].as_str().unwrap().trim().parse().unwrap();
    // What the first generation left counts.
    assert!(taken + more < 68_200_000, "{taken} and {more}");
    place.expect_a_dead_instance();
    service.kill();
    let service = start();
    let caller = Caller { service: &service, token: &token };
    let kept = shell(&caller, "cat kept; wc -c < f");
    assert_eq!(kept["stdout"], format!("x\ny\n{taken}\n"), "{kept}");
    assert_eq!(caller.send("DELETE", &format!("/v1/sandboxes/{id}"), "").status, 204);
    assert!(!image.exists());
    service.stop();
    eventually("no loop device is left", || loop_devices(&place).is_empty().then_some(()));
}

#[test]
fn sandbox_of_a_service_without_files_has_none_for_scripts() {
    let place = Fixture::new();
    let service = Service::open(&place);
    let create = |body: &str| service.http("POST", "/v1/sandboxes", "", body);
    let (status, created) = create("{}");
    assert_eq!(status, 201, "{created}");
    let id = serde_json::from_str::<Value>(&created).unwrap()["id"].as_str().unwrap().to_owned();
    let path = format!("/v1/sandboxes/{id}/executions?wait=60");
    let script = json!({ "script": "return (pcall(function() fs.list('/io') end))" }).to_string();
    let (status, ran) = service.http("POST", &path, "", &script);
    assert_eq!(status, 200, "{ran}");
    let ran: Value = serde_json::from_str(&ran).unwrap();
    assert_eq!(ran["result"], false, "{ran}");
    let put = service.http("PUT", &format!("/v1/sandboxes/{id}/files/a"), "", "x");
    assert!((400..500).contains(&put.0), "{put:?}");
    let (status, refused) = create(r#"{"spec":{"inputs":{"a":"x"}}}"#);
    assert_eq!(status, 403, "{refused}");
    service.stop();
}

#[test]
fn no_route_of_a_service_shows_one_subject_what_another_has() {
    let place = Fixture::new();
    let [alice, bob] = ["alice", "bob"].map(|subject| token(&place, subject));
    let service = start(&place);
    let [alice, bob] = [&alice, &bob].map(|token| Caller { service: &service, token });
    let script = json!({ "script": "fs.write('a.txt', 'of alice')" }).to_string();
    let ran = alice.send("POST", "/v1/executions?wait=60", &script).json(200);
    let execution = ran["id"].as_str().unwrap();
    let sandbox = alice.create(&json!({})).json(201)["id"].as_str().unwrap().to_owned();
    let path = format!("/v1/sandboxes/{sandbox}/files/a.txt");
    assert_eq!(alice.send("PUT", &path, "of alice").status, 200);

    let document = alice.send("GET", "/v1/openapi.json", "").json(200);
    let mut tried = 0;
    for (template, methods) in document["paths"].as_object().unwrap() {
        let id = if template.contains("/sandboxes/") { &*sandbox } else { execution };
        let of = |id: &str| {
            template.replace("{id}", id).replace("{path}", "a.txt").replace("{process}", "1")
        };
        for (method, operation) in methods.as_object().unwrap() {
            let json = &operation["requestBody"]["content"]["application/json"]["example"];
            let body = if json.is_null() { "theirs".to_owned() } else { json.to_string() };
            let body = if operation["requestBody"].is_null() { String::new() } else { body };
            let send = |id: &str| bob.send(&method.to_uppercase(), &of(id), &body);
            if template.contains("{id}") {
                tried += 1;
                let [mut theirs, mut unknown] = [id, "unknown"].map(|id| send(id).json(404));
                theirs["detail"] = theirs["detail"].as_str().unwrap().replace(id, "unknown").into();
                (theirs["instance"], unknown["instance"]) = (Value::Null, Value::Null);
                assert_eq!(theirs, unknown, "{method} {template}");
            } else if method == "get" {
                let seen = send("").body;
                assert!(!seen.contains(execution) && !seen.contains(&sandbox), "{template}");
            }
        }
    }
    assert!(tried >= 14, "{tried}");
    assert_eq!(alice.file(&sandbox, "a.txt").body, "of alice");
    let path = format!("/v1/executions/{execution}/files/a.txt");
    assert_eq!(alice.send("GET", &path, "").body, "of alice");
    service.stop();
}
