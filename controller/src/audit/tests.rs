use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt as _;

use proptest::prelude::*;
use rustix::fs::{CWD, FileType, Mode};
use sandbox_api::Base64;
use sandbox_protocol::path::MAX_PATH_BYTES;
use serde::Deserialize;
use serde_json::Value;

use super::*;

fn read(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap();
    assert!(text.is_empty() || text.ends_with('\n'), "{text}");
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn write<'a>(path: &'a [u8]) -> Event<'a> {
    Event { path: Some(path), bytes: Some(5), ..Event::new("1f", "write") }
}

fn fifo(folder: &Path) -> PathBuf {
    let path = folder.join("fifo");
    rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    path
}

fn reader(fifo: &Path) -> File {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    File::options().read(true).custom_flags(flags).open(fifo).unwrap()
}

fn refused(file: &Path) -> String {
    let error = Audit::open(file).unwrap_err();
    assert_eq!(error.exit_code(), 2, "{error}");
    error.to_string()
}

impl Audit {
    /// Waits until its writer has nothing to do. A flush waits for less than a busy machine may take for it, and not at
    /// all where the clock is stopped.
    pub(crate) async fn idle(&self) {
        let queue = self.0.as_ref().unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while !crate::lock(&queue.state).is_idle() {
            assert!(Instant::now() < deadline, "the writer goes on");
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn each_event_is_a_line_of_json() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("audit.log");
    let audit = Audit::open(&file).unwrap();
    audit.record(&write(b"/io/a"));
    audit.record(&Event {
        by: By::Script,
        outcome: "protected",
        to: Some(b"/io/.bashrc"),
        duration: Some(Duration::from_micros(2500)),
        ..Event { path: Some(b"/io/a\xff"), ..Event::new("1f-2", "rename") }
    });
    let report = audit.flush().await.unwrap();
    assert_eq!((report.written, report.lost, report.failure), (2, 0, None));
    assert_eq!(file.metadata().unwrap().mode() & 0o7777, 0o600);
    let lines = read(&file);
    for line in &lines {
        let time = line["time"].as_str().unwrap();
        assert!(humantime::parse_rfc3339(time).is_ok(), "{time}");
    }
    let timeless = |line: &Value| {
        let mut line = line.clone();
        line.as_object_mut().unwrap().remove("time");
        line
    };
    assert_eq!(
        timeless(&lines[0]),
        serde_json::json!({
            "run_id": "1f", "operation": "write", "by": "caller", "path": "/io/a",
            "outcome": "ok", "bytes": 5, "duration_ms": null,
        })
    );
    assert_eq!(
        timeless(&lines[1]),
        serde_json::json!({
            "run_id": "1f-2", "operation": "rename", "by": "script",
            "path": "/io/a\u{fffd}", "path_b64": "L2lvL2H/", "to": "/io/.bashrc",
            "outcome": "protected", "bytes": null, "duration_ms": 2,
        })
    );
}

#[test]
fn a_path_is_bounded_and_steers_no_terminal() {
    let path = "\x1b\n\u{9b}\u{202e}\x7f".repeat(2000);
    let line = write(path.as_bytes()).line();
    assert!(line.len() < 7 * MAX_PATH_BYTES, "{}", line.len());
    let (newline, text) = line.split_last().unwrap();
    assert_eq!(*newline, b'\n');
    assert!(text.iter().all(|byte| (b' '..=b'~').contains(byte)), "only what is visible");
    let line: Value = serde_json::from_slice(text).unwrap();
    assert!(path.starts_with(line["path"].as_str().unwrap().trim_end_matches('\u{fffd}')));
    // Other characters are unchanged.
    assert!(String::from_utf8(write("/io/Zoë ☃".as_bytes()).line()).unwrap().contains("Zoë ☃"));
}

proptest! {
    #[test]
    fn any_path_is_written_in_one_line(
        path in proptest::collection::vec(any::<u8>(), 0..6000),
        to in ".{0,6000}",
    ) {
        let line = Event { to: Some(to.as_bytes()), ..write(&path) }.line();
        prop_assert!(line.len() <= 64 << 10);
        let (newline, text) = line.split_last().unwrap();
        prop_assert_eq!(*newline, b'\n');
        let text = str::from_utf8(text).unwrap();
        prop_assert!(!text.contains(char::is_control));
        let line: Value = serde_json::from_str(text).unwrap();
        let exact = match line.get("path_b64") {
            Some(bytes) => Base64::deserialize(bytes).unwrap().0,
            None => line["path"].as_str().unwrap().as_bytes().to_vec(),
        };
        prop_assert_eq!(exact, &path[..path.len().min(MAX_PATH_BYTES)]);
    }
}

#[tokio::test]
async fn several_share_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("audit.log");
    fs::write(&file, "{\"old\":true}\n").unwrap();
    let path = vec![b'x'; 4000];
    let audits: Vec<_> = (0..4).map(|_| Audit::open(&file).unwrap()).collect();
    std::thread::scope(|scope| {
        for audit in &audits {
            scope.spawn(|| (0..500).for_each(|_| audit.record(&write(&path))));
        }
    });
    let mut written = 0;
    for audit in &audits {
        audit.idle().await;
        let report = audit.flush().await.unwrap();
        assert_eq!(report.failure, None);
        assert_eq!(report.written + report.lost, 500);
        written += report.written;
    }
    let lines = read(&file);
    assert_eq!(lines[0], serde_json::json!({"old": true}));
    let events = lines.iter().filter(|line| line["operation"] == "write").count() as u64;
    assert_eq!(events, written);
}

#[tokio::test]
async fn a_stalled_reader_blocks_nothing_and_losses_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let fifo = fifo(folder.path());
    let mut reader = reader(&fifo);
    let audit = Audit::open(&fifo).unwrap();
    let count = 2 * MAX_LINES as u64;
    for _ in 0..count {
        audit.record(&write(b"/io/a"));
    }
    let report = audit.flush().await.unwrap();
    assert_eq!(report.failure.as_deref(), Some("it accepts no data"));
    assert_eq!(report.written + report.lost, count);
    assert!(report.lost > count / 2, "{report:?}");

    // The reader finally reads.
    let read = std::thread::spawn(move || {
        let mut text = String::new();
        let mut lost = 0;
        let mut events = 0;
        while events + lost < count {
            let mut piece = [0; 4096];
            let length = match reader.read(&mut piece) {
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let mut fds = [PollFd::new(&reader, PollFlags::IN)];
                    rustix::event::poll(&mut fds, None).unwrap();
                    continue;
                }
                Err(error) => panic!("{error}"),
            };
            assert_ne!(length, 0, "the writer is gone: {events} and {lost} of {count}");
            text.push_str(str::from_utf8(&piece[..length]).unwrap());
            while let Some((line, rest)) = text.split_once('\n') {
                let line: Value = serde_json::from_str(line).unwrap();
                match line["event"].as_str() {
                    Some("lost") => lost += line["count"].as_u64().unwrap(),
                    _ => events += 1,
                }
                text = rest.to_owned();
            }
        }
        (events, lost)
    });
    let (events, lost) = tokio::task::spawn_blocking(|| read.join().unwrap()).await.unwrap();
    audit.idle().await;
    let report = audit.flush().await.unwrap();
    assert_eq!((report.written, report.lost), (events, lost));
}

#[tokio::test]
async fn an_audit_that_is_dropped_leaves_no_thread_behind() {
    let folder = tempfile::tempdir().unwrap();
    let fifo = fifo(folder.path());
    let _reader = reader(&fifo);
    let audit = Audit::open(&fifo).unwrap();
    let queue = Arc::downgrade(audit.0.as_ref().unwrap());
    for _ in 0..2000 {
        audit.record(&write(b"/io/a"));
    }
    drop(audit);
    let deadline = Instant::now() + Duration::from_secs(60);
    while queue.upgrade().is_some() {
        assert!(Instant::now() < deadline, "the writer goes on");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_full_disk_is_reported() {
    let audit = Audit::open(Path::new("/dev/full")).unwrap();
    for _ in 0..3 {
        audit.record(&write(b"/io/a"));
    }
    audit.idle().await;
    let report = audit.flush().await.unwrap();
    assert_eq!((report.written, report.lost), (0, 3));
    assert!(report.failure.unwrap().contains("No space left"));
}

#[tokio::test]
async fn line_cut_by_a_full_disk_is_ended_before_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let fifo = fifo(folder.path());
    let mut end = reader(&fifo);
    let queue = Arc::new(Queue {
        path: fifo.clone(),
        state: Mutex::default(),
        added: Condvar::new(),
        is_idle: Notify::new(),
    });
    let file = File::options()
        .append(true)
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
        .open(&fifo)
        .unwrap();
    let mut writer = Writer { queue: queue.clone(), file, is_torn: false };
    crate::lock(&queue.state).closing_since = Instant::now().checked_sub(2 * FLUSH_TIMEOUT);
    // Longer than a pipe's buffer, and the writer does not wait.
    let long = [&vec![b'x'; 4 << 20][..], b"\n"].concat();
    writer.write(long).unwrap_err();
    let mut text = vec![0; 8 << 20];
    let mut length = end.read(&mut text).unwrap();
    writer.write(b"{}\n".to_vec()).unwrap();
    while let Ok(more) = end.read(&mut text[length..]) {
        length += more;
    }
    let text = str::from_utf8(&text[..length]).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 2);
    assert!(lines[0].bytes().all(|byte| byte == b'x'));
    assert_eq!(lines[1], "{}");
}

#[test]
fn unwritable_audit_file_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    assert!(refused(folder.path()).contains("Is a directory"));
    assert!(refused(&folder.path().join("a/b")).contains("No such file"));
    assert!(refused(&fifo(folder.path())).contains("a FIFO without a reader"));
    let socket = folder.path().join("socket");
    let _socket = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    assert!(refused(&socket).contains("or a socket"));
}
