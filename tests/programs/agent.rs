//! A program in the agent's place, for tests: it greets as an honest agent does, and plays what
//! the file `play` in the io dir says. Without dependencies, built by `rustc` as a static program;
//! the tests give it to `sandboxctl` as `SANDBOX_AGENT`.
//!
//! `play` holds one word, and perhaps arguments: see [`play`] and [`Operation::play`].

mod first_process;
mod operations;
mod processes;

use std::ffi::{c_char, c_int, c_long};
use std::fs;
use std::io::{self, BufRead, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::time::{Duration, Instant};

use operations::Operation;

unsafe extern "C" {
    fn fork() -> c_int;
    fn close(fd: c_int) -> c_int;
    fn syscall(number: c_long, ...) -> c_long;
}

/// The run's deadline is earlier than that; a waiting agent is killed.
const FOR_EVER: Duration = Duration::from_secs(3600);
const GIB: usize = 1 << 30;
/// Why an agent that is not confined says that it is not.
const WHY: &str = "\"the kernel has none of it\"";
const UNCONFINED: &str = r#"{"no_new_privileges":true,"undumpable":true,"landlock_abi":null,"seccomp":false,"unix_sockets":"none","missing":["the kernel has none of it"]}"#;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let play = fs::read_to_string(format!("{}/play", io_mount(&args))).unwrap_or_default();
    let mut words = play.split_whitespace();
    let name = words.next().unwrap_or("honest").to_owned();
    let words = words.map(str::to_owned).collect();
    let mut agent = Agent { args, name, words, greeted: false, writing: None };
    agent.serve();
}

/// The first mount that can be written to.
fn io_mount(args: &[String]) -> String {
    let at = args.iter().position(|arg| arg == "--write");
    at.and_then(|at| args.get(at + 1)).cloned().unwrap_or_default()
}

struct Agent {
    args: Vec<String>,
    name: String,
    words: Vec<String>,
    greeted: bool,
    /// What is answered when its content has come.
    writing: Option<Operation>,
}

impl Agent {
    fn serve(&mut self) {
        self.before_hello();
        let mut lines = io::stdin().lock().lines();
        while let Some(Ok(line)) = lines.next() {
            let id = number_after(&line, "\"id\":");
            match () {
                () if line.contains("\"method\":\"hello\"") => self.hello(id, &line),
                () if line.contains("\"method\":\"configure\"") => {
                    answer(id, "{}");
                    // From here on nothing is read.
                    if self.name == "never-reads" {
                        wait();
                    }
                }
                () if line.contains("\"method\":\"run\"") => play(self, id),
                () if line.contains("\"method\":\"call_result\"") => {
                    answer(id, r#"{"found":true}"#);
                    // What was answered is what its run returns.
                    returned(number_after(&line, "\"request\":"), &text(&line));
                }
                () if processes::play(&self.name, id, &line) => {}
                () if line.contains("\"method\":\"shutdown\"") => match &*self.name {
                    "ignores-shutdown" => wait(),
                    _ => {
                        answer(id, "{}");
                        std::process::exit(0);
                    }
                },
                () if line.contains("\"last\":true") => {
                    if let Some(writing) = self.writing.take() {
                        writing.finish();
                    }
                }
                // A cancel is not heard.
                () => {
                    if let Some(operation) = Operation::read(id, &line) {
                        operation.play(self);
                    }
                }
            }
        }
    }

    fn before_hello(&self) {
        match &*self.name {
            "exits-at-once" => std::process::exit(7),
            "never-greets" => wait(),
            "floods-before-hello" => flood(1, b'x', GIB),
            "cries-before-hello" => {
                flood(2, b'x', 64 << 20);
                eprint!("\nthe very last words");
                std::process::exit(3);
            }
            "speaks-first" => say("{\"jsonrpc\":\"2.0\",\"id\":0,\"result\":{}}\n"),
            _ => {}
        }
    }

    fn hello(&mut self, id: u64, request: &str) {
        let protocol = if self.name == "another-version" { 99 } else { 15 };
        let mut mounts = Vec::new();
        let mut args = self.args.iter();
        while let Some(arg) = args.next() {
            if let ("--write" | "--read", Some(path)) = (arg.as_str(), args.as_slice().first()) {
                let metadata = fs::metadata(path).expect("a mount is there");
                let ino = metadata.ino() + u64::from(self.name == "another-identity");
                let path = if self.name == "another-mount" { "/elsewhere" } else { path };
                let dev = metadata.dev();
                mounts.push(format!(r#"{{"path":{},"dev":{dev},"ino":{ino}}}"#, text(path)));
            }
        }
        if self.name == "one-mount-more" {
            mounts.push(r#"{"path":"/etc","dev":1,"ino":2}"#.to_owned());
        }
        // Not every kernel has one.
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let nonce = text_after(request, "\"nonce\":\"").map(|name| {
            let file = format!("{}/{name}", io_mount(&self.args));
            let content = fs::read_to_string(&file).unwrap_or_default();
            _ = fs::remove_file(file);
            format!(r#","nonce":{}"#, text(&content))
        });
        let reply = format!(
            r#"{{"protocol":{protocol},"agent":"scripted","confinement":{},"resolver":"openat2","boot_id":{},"mounts":[{}]{}}}"#,
            // It claims what the policy wants, or that it could not.
            match &*self.name {
                "unconfined" => UNCONFINED.to_owned(),
                _ => UNCONFINED.replace("false", "true").replace("null", "7").replace(WHY, ""),
            },
            text(boot_id.trim()),
            mounts.join(","),
            nonce.as_deref().unwrap_or_default(),
        );
        // The controller will ask again, with a nonce.
        if boot_id.is_empty() && nonce.is_none() {
            return answer(id, &reply);
        }
        match &*self.name {
            "greets-slowly" => slowly(&reply_line(id, &reply)),
            "greets-with-garbage" => say("hello\n"),
            "greets-with-extras" => {
                answer(id, &reply.replacen('{', "{\"root\":true,", 1));
            }
            "greets-twice" => {
                answer(id, &reply);
                answer(id, &reply);
            }
            _ => answer(id, &reply),
        }
        self.greeted = true;
        match &*self.name {
            "breaks-before-the-run" => {
                say("no frame\n");
                wait();
            }
            _ => {}
        }
    }

    fn word(&self, at: usize) -> &str {
        self.words.get(at).map_or("", String::as_str)
    }
}

/// What an agent does with its run.
fn play(agent: &Agent, id: u64) {
    match &*agent.name {
        "honest" | "unconfined" | "ignores-shutdown" => {
            log(id, "hello");
            returned(id, "1");
        }
        "says-nothing" => wait(),
        // What its controller is to stand.
        "endless-line" => flood(1, b'x', GIB),
        "endless-nesting" => flood(1, b'[', GIB),
        "empty-lines" => flood(1, b'\n', GIB),
        "byte-a-second" => slowly(&log_line(id, &"x".repeat(1000))),
        "unknown-id" => answer(4711, "{}"),
        "answers-twice" => {
            returned(id, "1");
            returned(id, "2");
            wait();
        }
        "answers-hello-again" => {
            answer(0, "{}");
            wait();
        }
        "deep" => say(&format!("{}{}\n", "[".repeat(100_000), "]".repeat(100_000))),
        "not-utf8" => {
            write(1, b"{\"jsonrpc\":\"2.0\",\"method\":\"log\",\"params\":\"\xff\xfe\"}\n");
        }
        "nul" => write(1, b"\0\0\0\0\n"),
        "cries" => {
            flood(2, b'x', 256 << 20);
            returned(id, "1");
        }
        "cries-for-ever" => flood(2, b'\n', usize::MAX),
        "closes" => {
            log(id, "before");
            for fd in &agent.words {
                // SAFETY: nothing here uses it any more.
                unsafe { close(fd.parse().unwrap()) };
            }
            wait();
        }
        "exits" => {
            log(id, "before");
            eprintln!("last words");
            std::process::exit(agent.word(0).parse().unwrap());
        }
        "logs-for-ever" => loop {
            log(id, "x");
        },
        "logs-an-entry-too-long" => log(id, &"x".repeat(1 << 20)),
        "logs-for-another" => log(id + 1, "x"),
        "result-too-large" => returned(id, &text(&"x".repeat(2 << 20))),
        "result-of-4-mib" => returned(id, &text(&"x".repeat((4 << 20) - 300))),
        "error-too-long" => {
            let message = text(&"x".repeat(3 << 20));
            let error = format!(r#"{{"kind":"runtime","message":{message}}}"#);
            answer(id, &reply(&format!(r#"{{"failed":{error}}}"#)));
        }
        "internal-error" => {
            let error = r#"{"kind":"engine","message":"the engine is gone"}"#;
            answer(id, &reply(&format!(r#"{{"failed":{error}}}"#)));
        }
        "cancels-itself" => {
            let error = r#"{"kind":"cancelled","message":"x"}"#;
            answer(id, &reply(&format!(r#"{{"failed":{error}}}"#)));
        }
        "touches" => {
            touched(id, agent.word(0));
            returned(id, "1");
        }
        "touches-for-ever" => {
            for file in 0_u64.. {
                touched(id, &format!("/io/{file:0>200}"));
            }
        }
        "lies-about-files" => {
            fs::write("/io/made", "12345").unwrap();
            for path in ["/io/made", "/io/never", "/io/link", "/io/gone/deep"] {
                touched(id, path);
            }
            let usage = format!(
                r#"{{"cpu_ms":{0},"peak_memory_bytes":{0},"written_bytes":{0}}}"#,
                u64::MAX
            );
            answer(
                id,
                &format!(r#"{{"end":{{"returned":1}},"logs_truncated":false,"usage":{usage}}}"#),
            );
        }
        "chunk" => {
            let data = "eHh4eHh4eHh4eHh4eHh4eHh4".repeat(3000);
            say(&note("chunk", &format!(r#"{{"stream":1,"seq":0,"data":"{data}","last":false}}"#)));
        }
        "credit" => {
            say(&note("credit", &format!(r#"{{"stream":1,"bytes":{}}}"#, u64::MAX)));
        }
        "refuses-for-ever" => loop {
            operations::refused(id);
        },
        "requests" => say("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"read\",\"params\":{}}\n"),
        // Calls of the host's tools, which no script has made.
        "calls" => call(id, 1, "tool", agent.word(0)),
        "searches" => call(id, 1, "search", agent.word(0)),
        "describes" => call(id, 1, "describe", agent.word(0)),
        "calls-for-another" => {
            call(id + 1, 1, "tool", agent.word(0));
            wait();
        }
        "calls-twice" => {
            call(id, 1, "tool", agent.word(0));
            call(id, 2, "tool", agent.word(0));
            wait();
        }
        "calls-after-its-end" => {
            returned(id, "1");
            call(id, 1, "tool", agent.word(0));
            wait();
        }
        // Children that hold stdout open.
        "child-outlives-the-answer" => {
            child(wait);
            log(id, "before");
            returned(id, "1");
        }
        "child-speaks-after-the-end" => {
            let (mut hears, mut tells) = io::pipe().unwrap();
            child(move || {
                hears.read_exact(&mut [0]).unwrap();
                log(id, "from the child");
                wait();
            });
            returned(id, "1");
            tells.write_all(b".").unwrap();
        }
        "child-holds-stdout" => {
            child(wait);
            log(id, "before");
            for fd in [1, 2] {
                // SAFETY: nothing here uses it any more.
                unsafe { close(fd) };
            }
            wait();
        }
        "child-outlives-init" => {
            child(wait);
            log(id, "before");
            std::process::exit(0);
        }
        // What its container is to stand.
        "fills-memory" => {
            log(id, "before");
            fill_memory();
        }
        "child-fills-memory" => {
            child(|| fill_memory());
            // Long enough for the kernel, and the answer is the same without.
            std::thread::sleep(Duration::from_millis(300));
            returned(id, "1");
        }
        "makes-threads" => {
            let mut made = 0;
            let error = loop {
                match std::thread::Builder::new().stack_size(64 << 10).spawn(wait) {
                    Ok(_) => made += 1,
                    Err(error) => break error.raw_os_error().unwrap_or(0),
                }
                if made == 10_000 {
                    break 0;
                }
            };
            returned(id, &format!(r#"{{"made":{made},"errno":{error}}}"#));
        }
        "spins" => {
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_secs(1) {
                std::hint::spin_loop();
            }
            let schedstat = fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
            let stat = fs::read_to_string("/proc/self/stat").unwrap();
            // User and system time, in hundredths of a second.
            let after = &stat[stat.rfind(')').unwrap() + 2..];
            let fields: Vec<u64> =
                after.split(' ').skip(11).take(2).map(|f| f.parse().unwrap()).collect();
            let cpu_ms = (fields[0] + fields[1]) * 10;
            let wall_ms = begin.elapsed().as_millis();
            let of = text(schedstat.trim());
            returned(id, &format!(r#"{{"cpu_ms":{cpu_ms},"wall_ms":{wall_ms},"schedstat":{of}}}"#));
        }
        "probe" => returned(id, &probe()),
        "first-process" => {
            fs::write("/io/ready", "").unwrap();
            while !fs::exists("/io/go").unwrap() {
                std::thread::sleep(Duration::from_millis(5));
            }
            returned(id, &first_process::describe());
        }
        other => panic!("no such play: {other}"),
    }
}

// What goes over the wire.

fn say(line: &str) {
    write(1, line.as_bytes());
}

/// Ends the process if there is no reader: the controller has hung up.
fn write(fd: i32, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let result = if fd == 1 { io::stdout().write(bytes) } else { io::stderr().write(bytes) };
        match result {
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => std::process::exit(9),
        }
    }
    _ = io::stdout().flush();
}

fn flood(fd: i32, byte: u8, total: usize) {
    let piece = vec![byte; 1 << 16];
    let mut left = total;
    while left > 0 {
        write(fd, &piece[..piece.len().min(left)]);
        left = left.saturating_sub(piece.len());
    }
}

fn slowly(line: &str) {
    for byte in line.as_bytes() {
        write(1, &[*byte]);
        std::thread::sleep(Duration::from_secs(1));
    }
}

fn wait() {
    std::thread::sleep(FOR_EVER);
}

fn note(method: &str, params: &str) -> String {
    format!("{{\"jsonrpc\":\"2.0\",\"method\":\"{method}\",\"params\":{params}}}\n")
}

fn reply_line(id: u64, result: &str) -> String {
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{result}}}\n")
}

fn answer(id: u64, result: &str) {
    say(&reply_line(id, result));
}

fn reply(end: &str) -> String {
    let usage = r#"{"cpu_ms":1,"peak_memory_bytes":2,"written_bytes":3}"#;
    format!(r#"{{"end":{end},"logs_truncated":false,"usage":{usage}}}"#)
}

fn returned(id: u64, json: &str) {
    answer(id, &reply(&format!(r#"{{"returned":{json}}}"#)));
}

fn log_line(request: u64, entry: &str) -> String {
    note("log", &format!(r#"{{"request":{request},"level":"print","text":{}}}"#, text(entry)))
}

fn log(request: u64, entry: &str) {
    say(&log_line(request, entry));
}

fn call(run: u64, number: u32, target: &str, name: &str) {
    say(&note(
        "call",
        &format!(
            r#"{{"request":{run},"call":{number},"target":"{target}","name":{},"arguments":{{"id":1}}}}"#,
            text(name)
        ),
    ));
}

fn touched(request: u64, path: &str) {
    let path = text(path);
    let params =
        format!(r#"{{"request":{request},"path":{path},"existed":false,"change":"write"}}"#);
    say(&note("touched", &params));
}

fn number_after(line: &str, key: &str) -> u64 {
    let at = line.find(key).map_or(line.len(), |at| at + key.len());
    let digits: String = line[at..].chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or(0)
}

/// What stands from `key` to the next quote.
fn text_after<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.split_once(key)?.1.split('"').next()
}

/// A JSON string.
fn text(text: &str) -> String {
    let mut json = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => json.extend(['\\', c]),
            c if c < ' ' => json.push_str(&format!("\\u{:04x}", c as u32)),
            c => json.push(c),
        }
    }
    json + "\""
}

fn child(work: impl FnOnce()) {
    // SAFETY: this process has one thread, and the child does what it would do itself.
    match unsafe { fork() } {
        0 => {
            work();
            std::process::exit(0);
        }
        -1 => panic!("{}", io::Error::last_os_error()),
        _ => {}
    }
}

fn fill_memory() {
    let mut kept = Vec::new();
    loop {
        // Touched, page by page.
        kept.push(vec![1_u8; 1 << 20]);
    }
}

// What a sandbox looks like from inside.

/// Everything that the container's walls can be judged by, as one JSON object.
fn probe() -> String {
    let file = |path: &str| match fs::read(path) {
        Ok(bytes) => text(&String::from_utf8_lossy(&bytes)),
        Err(_) => "null".to_owned(),
    };
    let pids = names("/proc").into_iter().filter(|name| name.bytes().all(|b| b.is_ascii_digit()));
    let environ: Vec<String> =
        std::env::vars().map(|(name, value)| format!("{name}={value}")).collect();
    let links = |folder: &str| {
        let links = names(folder).into_iter().map(|name| {
            let target = fs::read_link(format!("{folder}/{name}"));
            let target = target.map(|it| it.to_string_lossy().into_owned()).unwrap_or_default();
            format!("{}:{}", text(&name), text(&target))
        });
        format!("{{{}}}", links.collect::<Vec<_>>().join(","))
    };
    let fields = [
        ("status", file("/proc/self/status")),
        ("mountinfo", file("/proc/self/mountinfo")),
        ("cgroup", file("/proc/self/cgroup")),
        ("limits", file("/proc/self/limits")),
        ("cmdline", file("/proc/self/cmdline")),
        ("net_dev", file("/proc/net/dev")),
        ("oom_score_adj", file("/proc/self/oom_score_adj")),
        ("hostname", file("/proc/sys/kernel/hostname")),
        ("environ", list(environ)),
        ("pids", list(pids)),
        ("root", list(names("/"))),
        ("dev", devices("/dev")),
        ("fds", links("/proc/self/fd")),
        ("namespaces", links("/proc/self/ns")),
        ("readable", readable()),
        ("writable", writable()),
        ("calls", calls()),
    ];
    let fields = fields.map(|(name, json)| format!("{}:{json}", text(name)));
    format!("{{{}}}", fields.join(","))
}

fn list(items: impl IntoIterator<Item = String>) -> String {
    format!("[{}]", items.into_iter().map(|item| text(&item)).collect::<Vec<_>>().join(","))
}

fn names(folder: &str) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// What is in `/dev`, and what each is: `null c 1:3`.
fn devices(folder: &str) -> String {
    let describe = |name: String| {
        let metadata = fs::symlink_metadata(format!("{folder}/{name}")).ok();
        let kind = metadata.map_or("?".to_owned(), |it| match it.file_type() {
            kind if kind.is_char_device() => {
                let device = it.rdev();
                format!(
                    "c {}:{}",
                    (device >> 8) & 0xfff,
                    (device & 0xff) | ((device >> 12) & !0xff)
                )
            }
            kind if kind.is_block_device() => "b".to_owned(),
            kind if kind.is_symlink() => "l".to_owned(),
            kind if kind.is_dir() => "d".to_owned(),
            _ => "f".to_owned(),
        });
        format!("{name} {kind}")
    };
    list(names(folder).into_iter().map(describe))
}

/// Which of the paths that reveal or reach the host are not empty.
fn readable() -> String {
    let paths = [
        "/proc/kcore",
        "/proc/keys",
        "/proc/timer_list",
        "/proc/sched_debug",
        "/proc/interrupts",
        "/proc/kallsyms",
        "/proc/slabinfo",
        "/proc/kpagecount",
        "/proc/kpageflags",
        "/proc/kpagecgroup",
        "/proc/latency_stats",
        "/proc/pressure",
        "/proc/timer_stats",
        "/proc/acpi",
        "/proc/asound",
        "/proc/scsi",
        "/proc/buddyinfo",
        "/proc/bus",
        "/proc/cmdline",
        "/proc/config.gz",
        "/proc/devices",
        "/proc/diskstats",
        "/proc/dma",
        "/proc/driver",
        "/proc/fs",
        "/proc/iomem",
        "/proc/ioports",
        "/proc/irq",
        "/proc/key-users",
        "/proc/locks",
        "/proc/mdstat",
        "/proc/misc",
        "/proc/modules",
        "/proc/mtrr",
        "/proc/partitions",
        "/proc/schedstat",
        "/proc/softirqs",
        "/proc/swaps",
        "/proc/zoneinfo",
        "/sys/block",
        "/sys/bus",
        "/sys/dev",
        "/sys/fs/ext4",
        "/sys/kernel/irq",
        "/sys/kernel/slab",
        "/sys/module",
        "/sys/power",
        "/sys/firmware",
        "/sys/devices",
        "/sys/class",
        "/sys/kernel/debug",
        "/etc/shadow",
        "/var/run/docker.sock",
        "/run/docker.sock",
        "/dev/mem",
        "/dev/kmsg",
        "/dev/sda",
        "/dev/fuse",
        "/dev/tty",
    ];
    let has_content = |path: &str| {
        let mut piece = [0; 16];
        let reads = fs::File::open(path).and_then(|mut file| file.read(&mut piece));
        reads.is_ok_and(|length| length > 0) || !names(path).is_empty()
    };
    list(paths.into_iter().filter(|path| has_content(path)).map(str::to_owned))
}

/// Where a file can be made or written.
fn writable() -> String {
    let made = [
        "/",
        "/dev",
        "/dev/shm",
        "/dev/mqueue",
        "/proc",
        "/sys",
        "/sys/fs/cgroup",
        "/tmp",
        "/etc",
        "/run",
        "/in",
        "/.sandbox",
    ];
    let made = made.iter().filter_map(|folder| {
        let path = format!("{folder}/made-by-a-probe");
        fs::write(&path, "x").ok().map(|()| (*folder).to_owned())
    });
    let written = [
        "/proc/sys/kernel/hostname",
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/vm/drop_caches",
        "/proc/sysrq-trigger",
        "/proc/pressure/memory",
        "/.sandbox/agent",
        "/sys/fs/cgroup/cgroup.procs",
        "/sys/fs/cgroup/memory/cgroup.procs",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/pids/pids.max",
        "/sys/fs/cgroup/memory.max",
        "/sys/fs/cgroup/release_agent",
        "/sys/fs/cgroup/memory/release_agent",
        "/sys/kernel/uevent_helper",
    ];
    let written =
        written.iter().filter(|path| fs::OpenOptions::new().write(true).open(path).is_ok());
    list(made.chain(written.map(|path| (*path).to_owned())))
}

/// System calls that reach out of a sandbox: the error of each, 0 where it worked.
fn calls() -> String {
    const NEW_USER: c_long = 0x1000_0000;
    let name = |text: &'static [u8]| text.as_ptr().cast::<c_char>();
    let tries: [(&str, &[c_long]); 27] = [
        ("unshare_user", &[272, NEW_USER]),
        ("unshare_mount", &[272, 0x2_0000]),
        ("clone_user", &[56, NEW_USER | 17, 0, 0, 0, 0]),
        (
            "mount",
            &[
                165,
                name(b"none\0") as c_long,
                name(b"/io\0") as c_long,
                name(b"tmpfs\0") as c_long,
                0,
                0,
            ],
        ),
        ("umount", &[166, name(b"/proc\0") as c_long, 2]),
        ("pivot_root", &[155, name(b"/io\0") as c_long, name(b"/io\0") as c_long]),
        ("chroot", &[161, name(b"/io\0") as c_long]),
        ("setns", &[308, 0, 0]),
        ("ptrace", &[101, 0, 0, 0, 0]),
        ("process_vm_readv", &[310, 1, 0, 0, 0, 0, 0]),
        ("bpf", &[321, 0, 0, 0]),
        ("perf_event_open", &[298, 0, 0, -1, -1, 0]),
        ("keyctl", &[250, 0, -3, 0]),
        (
            "add_key",
            &[
                248,
                name(b"user\0") as c_long,
                name(b"x\0") as c_long,
                name(b"x\0") as c_long,
                1,
                -3,
            ],
        ),
        ("io_uring_setup", &[425, 1, 0]),
        ("userfaultfd", &[323, 0]),
        ("socket_inet", &[41, 2, 1, 0]),
        ("socket_unix", &[41, 1, 1, 0]),
        ("socket_packet", &[41, 17, 3, 0]),
        ("socket_netlink", &[41, 16, 3, 0]),
        ("mknod", &[133, name(b"/io/device\0") as c_long, 0o020_666, 0x101]),
        ("setuid_root", &[105, 0]),
        ("setgid_root", &[106, 0]),
        ("chmod_setuid", &[90, name(b"/io/play\0") as c_long, 0o4755]),
        ("open_by_handle_at", &[304, -100, 0, 0]),
        ("init_module", &[175, 0, 0, name(b"\0") as c_long]),
        ("sethostname", &[170, name(b"x\0") as c_long, 1]),
    ];
    let tried = tries.iter().map(|(name, call)| {
        let at = |at: usize| call.get(at).copied().unwrap_or(0);
        // SAFETY: none of them writes to this process's memory.
        let result = unsafe { syscall(at(0), at(1), at(2), at(3), at(4), at(5), at(6)) };
        if *name == "clone_user" && result == 0 {
            // The child of a clone that should have failed.
            std::process::exit(0);
        }
        let errno = match result {
            -1 => io::Error::last_os_error().raw_os_error().unwrap_or(-1),
            _ => 0,
        };
        format!("{}:{errno}", text(name))
    });
    format!("{{{}}}", tried.collect::<Vec<_>>().join(","))
}
