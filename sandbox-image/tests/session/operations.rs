//! File operations over the wire: requests, streams, pages, cancel.

use std::os::unix::ffi::OsStrExt as _;

use sandbox_protocol::limits::{INITIAL_CREDIT, LIST_PAGE, MAX_CHUNK_BYTES};
use sandbox_protocol::message::{
    Chunk, Credit, Edit, EntryKind, Exists, List, Mkdir, Read, Remove, Rename, Stat, Timestamp,
    Touch, View, ViewContent, ViewLines, Write, WriteMode, WriteReply,
};
use sandbox_protocol::{Base64, WireString};

use super::*;

fn list(path: &str) -> List {
    List { recursive: true, ..List::new(path) }
}

impl Agent {
    /// Reads a file whole.
    fn content(&mut self, path: &str) -> Result<Vec<u8>, WireError> {
        let stream = self.incoming();
        let answer = self.call_with(Read::new(path), Some(stream));
        let (window, content) = self.received.remove(&stream).unwrap();
        answer.map(|reply| {
            assert_eq!(reply.bytes, content.len() as u64);
            assert!(window.is_ended());
            content
        })
    }

    /// The number of a new stream from the agent.
    fn incoming(&mut self) -> u32 {
        let stream = u32::try_from(self.last_id).unwrap() + 1000;
        self.received.insert(stream, (ReceiveWindow::new(stream), Vec::new()));
        stream
    }

    /// Begins to write a file.
    fn begin(&mut self, path: &str) -> (u64, u32) {
        let stream = u32::try_from(self.last_id).unwrap() + 1000;
        self.sending.insert(stream, SendWindow::new(stream));
        (self.send_with(Write::new(path), Some(stream)), stream)
    }

    /// Sends content as far as there is credit; stops where the request is answered.
    pub(super) fn feed(&mut self, id: u64, stream: u32, mut content: &[u8], last: bool) {
        loop {
            let credit = self.sending[&stream].capacity().min(content.len());
            let (piece, rest) = content.split_at(credit);
            let is_last = last && rest.is_empty();
            if credit > 0 || is_last {
                let window = self.sending.get_mut(&stream).unwrap();
                let chunk = window.chunk(piece.to_vec(), is_last).unwrap();
                self.raw(&ToAgent::Chunk(chunk).encode().unwrap());
                content = rest;
            }
            if content.is_empty() || self.answers.contains_key(&id) {
                return;
            }
            if self.sending[&stream].capacity() == 0 {
                assert!(Agent::read(self));
            }
        }
    }

    fn put(&mut self, path: &str, content: &[u8]) -> Result<WriteReply, WireError> {
        let (id, stream) = self.begin(path);
        self.feed(id, stream, content, true);
        self.reply::<Write>(id)
    }

    pub(super) fn peak_memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    }
}

fn kind<T>(answer: Result<T, WireError>) -> ErrorKind {
    answer.map(drop).unwrap_err().kind()
}

#[test]
fn each_operation_is_answered_with_its_data() {
    let directory = temporary();
    let root = io(directory.path()).to_string();
    let at = |name: &str| WireString::from(format!("{root}/{name}"));
    let mut agent = Agent::greeted(directory.path());
    let made = agent.call(Mkdir::new("sub")).unwrap();
    assert_eq!((made.path, made.created), (at("sub"), true));
    assert!(!agent.call(Mkdir::new("sub")).unwrap().created);
    let mtime = Some(Timestamp { seconds: -7, nanoseconds: 500_000_000 });
    let touched = agent.call(Touch { mtime, ..Touch::new("sub/empty") }).unwrap();
    assert_eq!((touched.path, touched.created), (at("sub/empty"), true));
    assert_eq!(agent.call(Stat::new("sub/empty")).unwrap().modified, mtime);
    agent.call(Remove::new("sub/empty")).unwrap();
    let written = agent.put("sub/./a.txt", b"one\ntwo\nthree\n").unwrap();
    assert_eq!((written.path, written.bytes_written, written.created), (at("sub/a.txt"), 14, true));
    assert_eq!(agent.content("sub/a.txt").unwrap(), b"one\ntwo\nthree\n");
    let stream = agent.incoming();
    let range = Read { offset: 4, limit: Some(3), ..Read::new("sub/a.txt") };
    let ranged = agent.call_with(range, Some(stream)).unwrap();
    assert_eq!((ranged.bytes, ranged.size), (3, 14));
    assert_eq!(agent.received[&stream].1, b"two");
    let stream = agent.incoming();
    let lines = ViewLines { offset: 2, limit: Some(1) };
    let view = |path: &str| View { lines, ..View::new(path) };
    let viewed = agent.call_with(view("sub/a.txt"), Some(stream));
    let ViewContent::Text(window) = viewed.unwrap().content else { panic!("it is text") };
    assert_eq!((window.text.as_str(), window.total_lines), ("two\n", 3));
    let image = b"GIF89a and so on";
    fs::write(directory.path().join("i.gif"), image).unwrap();
    let viewed = agent.call_with(view("i.gif"), Some(stream));
    let ViewContent::Image(shown) = viewed.unwrap().content else { panic!("it is an image") };
    assert_eq!((shown.mime_type.as_str(), shown.bytes), ("image/gif", 16));
    assert_eq!(agent.received[&stream].1, image);
    let edit = Edit::new("sub/a.txt", "two", "2");
    assert_eq!(agent.call(edit.clone()).unwrap().replacements, 1);
    assert_eq!(kind(agent.call(edit)), ErrorKind::InvalidRequest);
    let id = agent.send(list("."));
    let listed = agent.reply::<List>(id).unwrap();
    assert_eq!((listed.entries, listed.cut), (3, None));
    let names: Vec<_> =
        agent.entries[&id].iter().map(|entry| entry.name.to_string_lossy()).collect();
    assert_eq!(names, ["i.gif", "sub", "sub/a.txt"]);
    let stat = agent.call(Stat::new("~/sub/a.txt")).unwrap();
    assert_eq!((stat.kind, stat.size, stat.permissions), (EntryKind::File, 12, 0o644));
    let rename = |overwrite| Rename { overwrite, ..Rename::new("sub/a.txt", "i.gif") };
    assert_eq!(kind(agent.call(rename(false))), ErrorKind::AlreadyExists);
    let renamed = agent.call(rename(true)).unwrap();
    assert_eq!((renamed.from, renamed.to), (at("sub/a.txt"), at("i.gif")));
    assert_eq!(agent.call(Exists::new("sub/a.txt")).unwrap().kind, None);
    assert_eq!(agent.call(Exists::new("sub")).unwrap().kind, Some(EntryKind::Directory));
    let remove = |path: &str, recursive, force| Remove { path: path.into(), recursive, force };
    fs::write(directory.path().join("sub/x"), "").unwrap();
    assert_eq!(kind(agent.call(remove("sub", false, true))), ErrorKind::NotEmpty);
    let removed = agent.call(remove("sub", true, false)).unwrap();
    assert_eq!((removed.removed, removed.entries), (true, 2));
    let removed = agent.call(remove("sub", true, true)).unwrap();
    assert_eq!((removed.removed, removed.entries), (false, 0));
    let error = agent.content("sub/a.txt").unwrap_err();
    assert_eq!(error.message, "sub/a.txt: No such file or directory");
    assert_eq!(kind(agent.content("/etc/passwd")), ErrorKind::PathEscape);
    assert!(agent.notes.is_empty(), "the answer says what an operation did: {:?}", agent.notes);
    agent.send(Shutdown {});
    assert_eq!(agent.exit_code(), DONE);
}

#[test]
fn names_that_are_not_utf8_travel_as_bytes() {
    let directory = temporary();
    let mut agent = Agent::greeted(directory.path());
    let name = b"n\xff.txt";
    let path = directory.path().join(std::ffi::OsStr::from_bytes(name));
    fs::write(&path, "x").unwrap();
    let id = agent.send(list("."));
    agent.reply::<List>(id).unwrap();
    let entry = agent.entries[&id][0].clone();
    assert_eq!(entry.name.as_bytes(), name);
    let stream = agent.incoming();
    let reply = agent.call_with(Read::new(entry.name), Some(stream)).unwrap();
    assert_eq!(reply.path.as_bytes(), path.as_os_str().as_bytes());
    assert_eq!(agent.received[&stream].1, b"x");
    assert_eq!(kind(agent.content("n\u{fffd}.txt")), ErrorKind::NotFound);
}

#[test]
fn a_list_comes_in_pages() {
    let directory = temporary();
    let mut agent = Agent::greeted(directory.path());
    let count = 2 * LIST_PAGE + 1;
    for number in 0..count {
        fs::write(directory.path().join(format!("{number:04}")), "").unwrap();
    }
    let id = agent.send(list("."));
    let mut pages = Vec::new();
    while !agent.answers.contains_key(&id) {
        let before = agent.entries.get(&id).map_or(0, Vec::len);
        assert!(Agent::read(&mut agent));
        pages.push(agent.entries.get(&id).map_or(0, Vec::len) - before);
    }
    assert_eq!(pages, [LIST_PAGE, LIST_PAGE, 1, 0]);
    assert!(agent.entries[&id].is_sorted_by_key(|entry| entry.name.clone()));
}

#[test]
fn content_of_any_size_moves_in_bounded_memory() {
    let directory = temporary();
    let mut agent = Agent::over(directory.path());
    let mut rules = rules(directory.path());
    rules.limits.file_bytes = 1 << 30;
    rules.limits.write_bytes = 1 << 30;
    agent.greet(rules);
    let content: Vec<u8> =
        (0..32_u32 << 20).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    agent.put("warm", &content[..1 << 20]).unwrap();
    assert!(agent.content("warm").unwrap() == content[..1 << 20]);
    let before = agent.peak_memory();
    agent.put("large", &content).unwrap();
    assert!(agent.content("large").unwrap() == content);
    let append = Write { mode: WriteMode::Append, ..Write::new("large") };
    agent.sending.insert(1, SendWindow::new(1));
    let id = agent.send_with(append, Some(1));
    agent.feed(id, 1, &content, true);
    assert_eq!(agent.reply::<Write>(id).unwrap().bytes_written, content.len() as u64);
    assert_eq!(fs::metadata(directory.path().join("large")).unwrap().len(), 64 << 20);
    let grown = agent.peak_memory() - before;
    assert!(grown < 8 << 20, "{grown} bytes");
}

#[test]
fn a_waiting_operation_blocks_no_other() {
    let directory = temporary();
    fs::write(directory.path().join("f"), "here").unwrap();
    let mut agent = Agent::greeted(directory.path());
    let mut writers: Vec<_> =
        (0..MAX_IN_FLIGHT - 1).map(|number| agent.begin(&format!("w{number}"))).collect();
    // Fifteen wait for content; the sixteenth is done all the same.
    assert_eq!(agent.content("f").unwrap(), b"here");
    writers.push(agent.begin("last"));
    assert_eq!(kind(agent.call(Exists::new("f"))), ErrorKind::Busy);
    // What ends work is never refused.
    let (first, _) = writers.remove(0);
    assert!(agent.call(Cancel { id: first, at_once: false }).unwrap().found);
    assert_eq!(kind(agent.reply::<Write>(first)), ErrorKind::Cancelled);
    assert!(!agent.call(Cancel { id: first, at_once: false }).unwrap().found);
    assert_eq!(agent.call(Exists::new("f")).unwrap().kind, Some(EntryKind::File));
    for (id, stream) in writers.drain(1..) {
        agent.feed(id, stream, b"content", true);
        assert!(agent.reply::<Write>(id).unwrap().created);
    }
    assert_eq!(agent.call(Exists::new("w1")).unwrap().kind, None, "it still waits");
    assert_eq!(agent.call(Exists::new("w2")).unwrap().kind, Some(EntryKind::File));
    agent.send(Shutdown {});
    let (status, complaint) = agent.wait();
    assert_eq!((status.code(), complaint.as_str()), (Some(DONE), ""));
    assert!(!directory.path().join("w1").exists());
}

/// A controller's side of a session: as many concurrent requests as the protocol permits, and
/// cancels.
struct Burst<'a> {
    agent: &'a mut Agent,
    requests: Vec<u64>,
    cancels: Vec<u64>,
}

impl Burst<'_> {
    /// Sends a cancel, as soon as one more may be in flight.
    fn cancel(&mut self, id: u64) {
        while self.cancels.len() == MAX_IN_FLIGHT {
            assert!(Agent::read(self.agent));
            self.take_answers();
        }
        self.cancels.push(self.agent.send(Cancel { id, at_once: false }));
    }

    /// What has been answered is done or cancelled, and never refused.
    fn take_answers(&mut self) {
        let answers = &mut self.agent.answers;
        self.cancels.retain(|id| match answers.remove(id) {
            None => true,
            Some(answer) => answer.is_err_and(|error| panic!("a cancel is refused: {error}")),
        });
        self.requests.retain(|id| match answers.remove(id) {
            None => true,
            Some(Ok(_)) => false,
            Some(Err(error)) => {
                assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
                false
            }
        });
    }
}

#[test]
fn cancels_in_random_bursts_never_make_the_agent_refuse_a_request() {
    const BURSTS: u32 = 1_000;
    let directory = temporary();
    fs::write(directory.path().join("f"), vec![b'x'; 100_000]).unwrap();
    let mut agent = Agent::greeted(directory.path());
    let mut burst = Burst { agent: &mut agent, requests: Vec::new(), cancels: Vec::new() };
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % below
    };
    for _ in 0..BURSTS {
        for _ in 0..random(33) {
            // Some of them end only by a cancel.
            if burst.requests.len() == MAX_IN_FLIGHT {
                break;
            }
            let id = match random(3) {
                0 => {
                    let stream = burst.agent.incoming();
                    burst.agent.send_with(Read::new("f"), Some(stream))
                }
                // Waits for content that never comes.
                _ => burst.agent.begin("never").0,
            };
            burst.requests.push(id);
        }
        let mut targets = burst.requests.clone();
        for _ in 0..random(targets.len() as u64 + 1) {
            burst.cancel(targets.swap_remove(random(targets.len() as u64) as usize));
        }
        // The next script, as soon as it fits.
        let mut waiting = burst.requests.clone();
        while burst.requests.len() == MAX_IN_FLIGHT {
            if let Some(target) = waiting.pop() {
                burst.cancel(target);
            }
            assert!(Agent::read(burst.agent));
            burst.take_answers();
        }
        let reply = burst.agent.run("return 1").unwrap();
        assert_eq!(returned(reply), "1");
        burst.take_answers();
    }
    agent.send(Shutdown {});
    assert_eq!(agent.exit_code(), DONE);
}

#[test]
fn operations_go_on_beside_a_run_and_see_its_files() {
    let directory = temporary();
    let mut agent = Agent::greeted(directory.path());
    let source = "io.open('made', 'w'):write('x'):close() print('made') while true do end";
    let run = agent.send(script(source, LONG));
    while !agent.notes.iter().any(|note| note == "log made") {
        assert!(Agent::read(&mut agent));
    }
    assert_eq!(agent.content("made").unwrap(), b"x");
    agent.put("from outside", b"y").unwrap();
    assert!(agent.call(Cancel { id: run, at_once: false }).unwrap().found);
    let end = agent.reply::<Run>(run).unwrap().end;
    assert!(matches!(end, RunEnd::Failed(error) if error.kind == ErrorKind::Cancelled));
    assert_eq!(agent.content("from outside").unwrap(), b"y");
}

#[test]
fn a_read_stops_at_its_credit_and_at_a_cancel() {
    let directory = temporary();
    let content = vec![7; 1 << 20];
    fs::write(directory.path().join("f"), &content).unwrap();
    let mut agent = Agent::greeted(directory.path());
    let id = agent.send_with(Read::new("f"), Some(1));
    let mut window = ReceiveWindow::new(1);
    let mut received = 0;
    while received < INITIAL_CREDIT {
        received += agent.chunk(&mut window);
    }
    assert_eq!(received, INITIAL_CREDIT);
    // Nothing else comes on the stream; other answers do.
    assert_eq!(agent.call(Exists::new("f")).unwrap().kind, Some(EntryKind::File));
    let credit = window.consumed(MAX_CHUNK_BYTES as u64);
    agent.raw(&ToAgent::Credit(credit).encode().unwrap());
    assert_eq!(agent.chunk(&mut window), MAX_CHUNK_BYTES as u64);
    assert!(agent.call(Cancel { id, at_once: false }).unwrap().found);
    assert_eq!(kind(agent.reply::<Read>(id)), ErrorKind::Cancelled);
    assert!(!window.is_ended(), "what was cut short has no last chunk");
    // The number is free again, and late credit is ignored.
    agent.raw(&ToAgent::Credit(Credit { stream: 1, bytes: 1 }).encode().unwrap());
    agent.received.insert(1, (ReceiveWindow::new(1), Vec::new()));
    agent.call_with(Read::new("f"), Some(1)).unwrap();
    assert!(agent.received[&1].1 == content);
}

impl Agent {
    /// Reads one message, which is a chunk, without giving credit back; its size.
    fn chunk(&mut self, window: &mut ReceiveWindow) -> u64 {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        let FromAgent::Chunk(chunk) = FromAgent::decode(line.trim_end()).unwrap() else {
            panic!("{line}")
        };
        window.receive(&chunk).unwrap();
        chunk.data.0.len() as u64
    }
}

#[test]
fn a_write_that_is_refused_or_cancelled_changes_nothing_and_the_session_goes_on() {
    let directory = temporary();
    let file = directory.path().join("f");
    fs::write(&file, "old").unwrap();
    let mut agent = Agent::greeted(directory.path());
    // The limit is 10 MiB.
    let error = agent.put("f", &vec![0; 11 << 20]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge);
    assert_eq!(error.message, "f: more than 10 MiB are too many");
    let (id, stream) = agent.begin("missing/../x");
    assert_eq!(kind(agent.reply::<Write>(id)), ErrorKind::PathEscape);
    // What was on its way for a stream that has ended is dropped.
    agent.feed(id, stream, b"late", true);
    let (id, stream) = agent.begin("f");
    agent.feed(id, stream, &vec![1; 1 << 20], false);
    assert!(agent.call(Cancel { id, at_once: false }).unwrap().found);
    assert_eq!(kind(agent.reply::<Write>(id)), ErrorKind::Cancelled);
    agent.feed(id, stream, b"late", true);
    assert_eq!(agent.content("f").unwrap(), b"old");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    assert!(agent.notes.is_empty(), "{:?}", agent.notes);
}

#[test]
fn a_controller_that_dies_in_the_middle_of_a_write_leaves_the_old_file_and_nothing_else() {
    let directory = temporary();
    fs::write(directory.path().join("f"), "old").unwrap();
    for path in ["f", "new", "a/b/new"] {
        let mut agent = Agent::greeted(directory.path());
        let (id, stream) = agent.begin(path);
        agent.feed(id, stream, &vec![1; 1 << 20], false);
        assert_eq!(agent.hang_up(), LOST);
        assert_eq!(fs::read(directory.path().join("f")).unwrap(), b"old");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}

#[test]
fn a_stream_has_one_request_and_its_rules_are_kept() {
    let directory = temporary();
    let mut agent = Agent::greeted(directory.path());
    let (id, stream) = agent.begin("f");
    let error = agent.call_with(Write::new("g"), Some(stream)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidRequest);
    assert_eq!(error.message, format!("the stream {stream} is open already"));
    agent.feed(id, stream, b"", true);
    agent.reply::<Write>(id).unwrap();
    let chunk = |seq, data| Chunk { stream: 7, seq, data: Base64(data), last: false };
    let full = vec![0; MAX_CHUNK_BYTES];
    for (breach, complaint) in [
        (chunk(1, vec![]), "out of order"),
        (chunk(0, vec![0; MAX_CHUNK_BYTES + 1]), "has more than 65536 bytes"),
    ] {
        let mut agent = Agent::greeted(directory.path());
        agent.send_with(Write::new("f"), Some(7));
        agent.raw(&ToAgent::Chunk(breach).encode().unwrap());
        let (status, said) = agent.wait();
        assert_eq!(status.code(), Some(PROTOCOL), "{said}");
        assert!(said.contains(complaint), "{said}");
    }
    // Credit is given for what is sent, and chunks come only where they are awaited.
    let mut agent = Agent::greeted(directory.path());
    fs::write(directory.path().join("large"), vec![0; 1 << 20]).unwrap();
    agent.received.insert(7, (ReceiveWindow::new(7), Vec::new()));
    agent.send_with(Read::new("large"), Some(7));
    agent.raw(&ToAgent::Chunk(chunk(0, full)).encode().unwrap());
    let (status, said) = agent.wait();
    assert_eq!(status.code(), Some(PROTOCOL), "{said}");
}

#[test]
fn an_operation_out_of_time_says_so_and_one_before_hello_is_refused() {
    let directory = temporary();
    let mut agent = Agent::over(directory.path());
    assert_eq!(kind(agent.call(Exists::new("f"))), ErrorKind::InvalidRequest);
    let mut rules = rules(directory.path());
    rules.limits.operation_timeout_ms = 0;
    agent.greet(rules);
    fs::write(directory.path().join("f"), "x").unwrap();
    let error = agent.call(list(".")).unwrap_err();
    assert_eq!(
        (error.kind(), error.message.as_str()),
        (ErrorKind::Timeout, "not done within 0 ms")
    );
    assert_eq!(kind(agent.content("f")), ErrorKind::Timeout);
}

#[test]
fn a_request_with_other_options_is_refused_by_name() {
    let directory = temporary();
    let mut agent = Agent::greeted(directory.path());
    for (params, named) in [
        (r#"{"path":"a","parents":true,"mode":"777"}"#, "unknown field `mode`"),
        (r#"{"parents":true}"#, "missing field `path`"),
        (r#"{"path":"a","parents":"yes"}"#, "invalid type: string"),
    ] {
        agent.last_id += 1;
        let id = agent.last_id;
        let line = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"mkdir","params":{params}}}"#);
        agent.raw(format!("{line}\n").as_bytes());
        let error = agent.reply::<Mkdir>(id).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidRequest);
        assert!(error.message.contains(named), "{}", error.message);
    }
}

/// An agent over `directory`, on a file system that has no files without names.
fn without_nameless_files(directory: &Path) -> Agent {
    let flags = u64::try_from(libc::O_TMPFILE).unwrap();
    let is_nameless = seccompiler::SeccompCondition::new(
        2,
        seccompiler::SeccompCmpArgLen::Dword,
        seccompiler::SeccompCmpOp::MaskedEq(flags),
        flags,
    );
    let rule = SeccompRule::new(vec![is_nameless.unwrap()]).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_sandbox-agent"));
    command.args(arguments(directory, Mode::Script).to_args());
    refuse(&mut command, libc::SYS_openat, vec![rule], libc::EOPNOTSUPP);
    let mut agent = Agent::start(&mut command);
    agent.greet(rules(directory));
    agent
}

#[test]
fn an_unfinished_write_is_in_no_list_and_leaves_nothing() {
    let directory = temporary();
    let names = || {
        let entries = fs::read_dir(directory.path()).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    let mut agent = without_nameless_files(directory.path());
    agent.put("f", b"one").unwrap();
    agent.put("f", b"two").unwrap();
    let stream = agent.incoming();
    agent.received.remove(&stream);
    agent.sending.insert(stream, SendWindow::new(stream));
    let append =
        agent.send_with(Write { mode: WriteMode::Append, ..Write::new("f") }, Some(stream));
    agent.feed(append, stream, b"three", true);
    agent.reply::<Write>(append).unwrap();
    assert_eq!(agent.content("f").unwrap(), b"twothree");
    assert_eq!(names(), ["f"]);
    let (id, stream) = agent.begin("f");
    agent.feed(id, stream, &vec![1; 1 << 20], false);
    // It has answered this, so the content before it has come.
    let listed = agent.send(list("."));
    assert_eq!(agent.reply::<List>(listed).unwrap().entries, 1);
    assert_eq!(returned(agent.run("return #io.list(), #fs.list()").unwrap()), "[1,1]");
    let found = names();
    assert!(found.len() == 2 && found[0].starts_with(".sandboxctl-"), "{found:?}");
    assert!(agent.call(Cancel { id, at_once: false }).unwrap().found);
    assert_eq!(kind(agent.reply::<Write>(id)), ErrorKind::Cancelled);
    assert_eq!(names(), ["f"]);
    assert_eq!(agent.put("f", &vec![0; 11 << 20]).unwrap_err().kind(), ErrorKind::TooLarge);
    assert_eq!(names(), ["f"]);
    for path in ["f", "new"] {
        let (id, stream) = agent.begin(path);
        agent.feed(id, stream, &vec![1; 1 << 20], false);
    }
    assert_eq!(agent.hang_up(), LOST);
    assert_eq!(names(), ["f"]);
    assert_eq!(fs::read(directory.path().join("f")).unwrap(), b"twothree");
}

#[test]
fn a_failure_that_may_pass_is_tried_again_and_then_busy() {
    let directory = temporary();
    fs::write(directory.path().join("f"), "x").unwrap();
    let mut agent =
        refused(directory.path(), ConfinementPolicy::Required, libc::SYS_unlinkat, libc::EBUSY);
    agent.greet(rules(directory.path()));
    let remove = |path: &str| Remove { path: path.into(), recursive: true, force: false };
    let error = agent.call(remove("f")).unwrap_err();
    assert_eq!((error.kind(), &*error.message), (ErrorKind::Busy, "f: Device or resource busy"));
    // What is never going to pass is not the same.
    assert_eq!(kind(agent.call(remove("."))), ErrorKind::PermissionDenied);
}
