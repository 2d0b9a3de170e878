//! Scripts and io dirs that mean harm: nothing outside the io dir is read, written or named.

use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use sandbox_api::{Limits, Script};
use serde_json::{Value, json};

use crate::fixture::{Fixture, files_below};
use crate::library::Guest;
use crate::shared::cases;

/// A file outside the io dir, and an io dir full of ways to it.
fn planted(place: &Fixture) {
    place.write("outside/secret", "secret");
    let io_dir = place.path("sandbox-files");
    std::fs::create_dir_all(io_dir.join("real")).unwrap();
    std::fs::write(io_dir.join("real/file"), "inside").unwrap();
    symlink(place.path("outside/secret"), io_dir.join("link")).unwrap();
    symlink(place.path("outside"), io_dir.join("dir")).unwrap();
    symlink("../outside", io_dir.join("relative")).unwrap();
    symlink("real/file", io_dir.join("within")).unwrap();
    symlink("/proc/self/root", io_dir.join("magic")).unwrap();
    let fifo = io_dir.join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o666.into(), 0)
        .unwrap();
}

#[test]
fn planted_links_and_fifos_are_refused_at_once() {
    let place = Fixture::new();
    planted(&place);
    let document = place.run_json(
        r#"
            local seen = {}
            local function try(name, f, ...)
                local ok, e = pcall(f, ...)
                seen[name] = if ok then "done" else "refused"
            end
            for _, name in { "link", "dir/secret", "relative/secret", "within", "magic/etc/passwd", "fifo",
                "../outside/secret", "/etc/passwd", "/proc/self/environ", "~/../x", "real/../../outside/secret",
                "/io/../etc/passwd", "./link", "dir/./secret" } do
                for _, mode in { "r", "w", "a", "r+", "w+", "a+" } do
                    try(`{mode} {name}`, io.open, name, mode)
                end
                try(`lines {name}`, io.lines, name)
            end
            try("list dir", io.list, "dir")
            try("list relative", io.list, "relative")
            try("remove through", os.remove, "dir/secret")
            try("rename through", os.rename, "dir/secret", "stolen")
            try("rename out", os.rename, "real/file", "dir/planted")
            try("new through", io.open, "dir/new", "w")
            try("new below", io.open, "link/new/deep", "w")
            return seen
        "#,
        &[],
    );
    assert_eq!(document["status"], "ok", "{document:#}");
    for (name, answer) in document["result"].as_object().unwrap() {
        assert_eq!(answer, "refused", "{name}");
    }
    assert_eq!(document["files_touched"], json!([]), "{document:#}");
    assert_eq!(place.read("outside/secret"), "secret");
    assert_eq!(std::fs::read_dir(place.path("outside")).unwrap().count(), 1);
}

#[test]
fn removing_and_renaming_a_link_moves_the_link_itself() {
    let place = Fixture::new();
    planted(&place);
    let document =
        place.run_json("os.rename('link', 'moved') os.remove('dir') return io.list()", &[]);
    assert_eq!(document["status"], "ok", "{document:#}");
    assert_eq!(place.read("outside/secret"), "secret");
    assert!(place.path("sandbox-files/moved").symlink_metadata().unwrap().is_symlink());
    assert!(place.path("sandbox-files/dir").symlink_metadata().is_err());
}

#[test]
fn script_errors_name_no_host_path() {
    let place = Fixture::new();
    planted(&place);
    place.write("given.txt", "x");
    let host = place.work();
    let host = host.to_str().unwrap();
    // The one mount whose source and name differ, a link that names the host, and failures.
    let document = place.run_json(
        r#"
            local reported = { debug.traceback(), tostring(io.open("/in/given.txt")) }
            local function try(f, ...) table.insert(reported, (select(2, pcall(f, ...)))) end
            try(io.open, "link") try(io.open, "dir/secret") try(io.open, "none/x")
            try(io.open, "/in/other") try(os.rename, "real/file", "/in/given.txt")
            try(os.remove, "/in/given.txt") try(io.list, "relative") try(io.open, "/in/given.txt", "w")
            return reported
        "#,
        &["--in", "given.txt"],
    );
    assert_eq!(document["status"], "ok", "{document:#}");
    let reported = document["result"].to_string();
    assert!(!reported.contains(host) && !reported.contains("outside/"), "{reported}");
}

/// Exchanges two names as fast as it can, until it is dropped.
struct Swapper {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Swapper {
    fn start(a: PathBuf, b: PathBuf) -> Self {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        let over = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&over);
        let thread = std::thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                // The script may just have moved one of them away.
                _ = renameat_with(CWD, &a, CWD, &b, RenameFlags::EXCHANGE);
            }
        });
        Self { over, thread: Some(thread) }
    }
}

impl Drop for Swapper {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            _ = thread.join();
        }
    }
}

#[test]
fn a_host_that_swaps_directories_and_links_during_a_run_leads_it_nowhere() {
    let place = Fixture::new();
    planted(&place);
    place.write("outside/file", "a secret");
    place.write("sandbox-files/real/mine", "inside");
    let at = |name: &str| place.path("sandbox-files").join(name);
    let swappers = [Swapper::start(at("real"), at("dir")), Swapper::start(at("one"), at("link"))];
    let document = place.run_json(
        r#"
            local done, refused, stolen = 0, 0, 0
            local function try(f, ...)
                local ok, answer = pcall(f, ...)
                if ok then done += 1 else refused += 1 end
                return if ok then answer else nil
            end
            local function read(name)
                local f = io.open(name)
                local text = f:read("a")
                f:close()
                if string.find(text, "secret") then stolen += 1 end
            end
            local function write(name, mode)
                local f = io.open(name, mode)
                f:write("inside")
                f:close()
            end
            local round = 0
            repeat
                round += 1
                try(read, "real/file") try(read, "real/secret") try(read, "one")
                try(write, "real/file", "w") try(write, "real/more", "a") try(write, "one", "w")
                try(write, "real/new/deep/file", "w") try(os.remove, "real/new/deep/file")
                try(os.rename, "real/file", "real/moved") try(os.rename, "real/moved", "real/file")
                try(os.remove, "real/secret") try(os.remove, "real/more")
                for _, name in try(io.list, "real") or {} do
                    if name == "secret" then stolen += 1 end
                end
            until round >= 30000 or (round >= 300 and done > 100 and refused > 100)
            return { done = done > 100, refused = refused > 100, stolen = stolen }
        "#,
        // Time for all of its rounds, on any machine.
        &["--timeout", "10m"],
    );
    drop(swappers);
    assert_eq!(document["status"], "ok", "{document:#}");
    let expected = json!({ "done": true, "refused": true, "stolen": 0 });
    assert_eq!(document["result"], expected, "{document:#}");
    assert_eq!(place.read("outside/secret"), "secret");
    assert_eq!(place.read("outside/file"), "a secret");
    assert_eq!(std::fs::read_dir(place.path("outside")).unwrap().count(), 2);
}

/// Every operation on what is swapped, and on what is below it. Nothing outside may leak: its
/// contents are `stolen`, and the one name that only exists there is `only-outside`.
fn operations() -> Vec<Value> {
    let mut operations = Vec::new();
    for path in ["real/file", "real/secret", "real/sub/secret", "one"] {
        operations.extend([
            json!({"operation": "read", "path": path}),
            json!({"operation": "view", "path": path}),
            json!({"operation": "stat", "path": path}),
            json!({"operation": "exists", "path": path}),
            json!({"operation": "write", "path": path, "content": "inside"}),
            json!({"operation": "write", "path": path, "content": "inside", "atomic": false}),
            json!({"operation": "write", "path": path, "content": "inside", "mode": "append"}),
            json!({"operation": "edit", "path": path, "old": "stolen", "new": "inside"}),
            json!({"operation": "rename", "from": path, "to": "real/moved", "overwrite": true}),
            json!({"operation": "rename", "from": "real/moved", "to": path}),
        ]);
    }
    operations.extend([
        json!({"operation": "list", "path": "real", "recursive": true}),
        json!({"operation": "list", "path": ".", "recursive": true}),
        json!({"operation": "write", "path": "real/new/deep", "content": "inside", "mode": "create_new"}),
        json!({"operation": "mkdir", "path": "real/made/deep"}),
        json!({"operation": "remove", "path": "real/made", "recursive": true, "force": true}),
        json!({"operation": "remove", "path": "real/new", "recursive": true, "force": true}),
        json!({"operation": "remove", "path": "real/secret", "force": true}),
        json!({"operation": "remove", "path": "real/sub", "recursive": true, "force": true}),
        json!({"operation": "remove", "path": "tree", "recursive": true, "force": true}),
    ]);
    operations
}

#[test]
fn a_host_that_swaps_directories_and_links_leads_no_operation_anywhere() {
    let place = Fixture::new();
    planted(&place);
    for name in ["secret", "file", "sub/secret", "sub/only-outside", "only-outside"] {
        place.write(&format!("outside/{name}"), "stolen");
    }
    // Both sides have the same names, so that a step that is led away finds what it looks for.
    place.write("sandbox-files/real/sub/mine", "inside");
    place.write("sandbox-files/one", "inside");
    // The script runs for as long as the operations take, on any machine.
    let limits = Limits { timeout: Duration::from_secs(600), ..Limits::default() };
    let guest = Guest::in_place(place, |spec| spec.limits(limits));
    let at = |name: &str| guest.place.path("sandbox-files").join(name);
    std::fs::create_dir_all(at("tree")).unwrap();
    let swappers = [
        Swapper::start(at("real"), at("dir")),
        Swapper::start(at("one"), at("link")),
        Swapper::start(at("tree/sub"), at("dir")),
    ];
    // And from inside, as far as a script can: it moves a directory away and back.
    let source = "repeat pcall(fs.rename, 'real', 'away') pcall(fs.rename, 'away', 'real') \
                  until fs.exists('stop')";
    let enough = cases(100, 1000);
    let (done, refused) = std::thread::scope(|scope| {
        let run = scope.spawn(|| guest.wait(guest.sandbox.run(Script::new(source))).unwrap());
        let (mut done, mut refused) = (0, 0);
        for round in 0..400 {
            for operation in operations() {
                let envelope = guest.perform(&operation);
                if envelope["success"] == true {
                    done += 1;
                    let reported = envelope["data"].to_string();
                    let is_stolen =
                        reported.contains("stolen") || reported.contains("only-outside");
                    assert!(!is_stolen, "{operation}: {reported}");
                } else {
                    refused += 1;
                    let kind = envelope["error"]["kind"].as_str().unwrap();
                    assert_ne!(kind, "agent_lost", "{operation}: {envelope:#}");
                }
            }
            // What was removed is to be there again.
            _ = std::fs::create_dir_all(at("tree/sub"));
            if round >= 8 && done > enough && refused > enough {
                break;
            }
        }
        std::fs::write(at("stop"), "").unwrap();
        assert_eq!(run.join().unwrap().outcome.status().as_str(), "ok");
        (done, refused)
    });
    drop(swappers);
    assert!(done > enough && refused > enough, "{done} done, {refused} refused");
    let outside = files_below(&guest.place.path("outside"));
    assert_eq!(outside.len(), 5, "{outside:?}");
    for file in outside {
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "stolen", "{}", file.display());
    }
}

#[test]
fn every_byte_in_a_name_reaches_the_result_and_none_of_them_the_terminal() {
    let place = Fixture::new();
    let source = r#"
        for byte = 1, 255 do
            local name = string.char(byte)
            if name ~= "/" and name ~= "." then io.open("./" .. name, "w"):close() end
        end
        io.open("\27[2J\u{202e}\u{9b}31m", "w"):close()
    "#;
    let document = place.run_json(source, &[]);
    assert_eq!(document["status"], "ok", "{document:#}");
    let touched = document["files_touched"].as_array().unwrap();
    assert_eq!(touched.len(), 254);
    // What is not UTF-8 is there as bytes too.
    let exact = touched.iter().filter(|file| file["name_b64"].is_null()).count();
    assert_eq!(exact, 125 + 1, "{document:#}");
    assert_eq!(std::fs::read_dir(place.path("sandbox-files")).unwrap().count(), 254);

    place.write("script.luau", r#"io.open("\27[2J\u{202e}\u{9b}31m/missing")"#);
    let ended = place.sandboxctl(["run", "script.luau"]);
    ended.assert_code(1).assert_stderr_has("/missing");
    let shown = ended.stderr.replace('\n', "");
    assert!(!shown.contains(char::is_control) && !shown.contains('\u{202e}'), "{shown:?}");
}
