//! What the scripted agent does with a file operation.

use std::fs;
use std::time::Duration;

use crate::{
    Agent, answer, log, note, number_after, reply_line, say, text, text_after, touched, wait, write,
};

/// The pieces that a stream's first credit lets through.
const FIRST_CREDIT: u64 = 4;
const PIECE: usize = 64 << 10;

/// A file operation that was asked for.
pub struct Operation {
    id: u64,
    path: String,
    stream: u64,
}

impl Operation {
    /// The one in this line, if there is one.
    pub fn read(id: u64, line: &str) -> Option<Self> {
        let method = text_after(line, "\"method\":\"")?;
        let is_one =
            ["read", "view", "write", "list", "stat", "rename", "exists"].contains(&method);
        let key = if method == "rename" { "\"from\":\"" } else { "\"path\":\"" };
        let path = text_after(line, key).unwrap_or_default().to_owned();
        is_one.then(|| Self { id, path, stream: number_after(line, "\"stream\":") })
    }

    pub fn play(&self, agent: &mut Agent) {
        let &Self { id, stream, .. } = self;
        match &*agent.name.clone() {
            "answers-nothing" => wait(),
            // From here on it reads everything, and sends nothing. A file signals that to the test.
            "hears-and-says-nothing" => {
                fs::write("/io/heard", "").unwrap();
                return;
            }
            "exits-in-the-middle" => {
                chunk(stream, 0, 4, false);
                std::process::exit(7);
            }
            "answers-another-path" => self.answer_read(0, "/io/other"),
            "answers-a-path-outside" => self.answer_read(0, "/etc/passwd"),
            "answers-as-another-operation" => answer(id, r#"{"path":"/io/f","created":true}"#),
            "answers-with-extras" => {
                answer(id, r#"{"path":"/io/f","exists":false,"type":null,"root":true}"#);
            }
            "contradicts-itself" => answer(id, r#"{"path":"/io/f","exists":true,"type":null}"#),
            "internal-error" => self.fail("engine", "the engine is gone"),
            "error-too-long" => self.fail("internal", &"x".repeat(3 << 20)),
            "cancels-itself" => self.fail("cancelled", "cancelled"),
            "logs" => log(id, "x"),
            "touches" => touched(id, agent.word(0)),
            "touches-for-ever" => {
                for file in 0_u64.. {
                    touched(id, &format!("/io/{file:0>200}"));
                }
            }
            "refuses-for-ever" => loop {
                refused(id);
            },
            // Content that comes.
            "chunk-of-no-stream" => chunk(stream + 1, 0, 4, false),
            "chunk-out-of-order" => chunk(stream, 1, 4, false),
            "chunk-after-the-last" => {
                chunk(stream, 0, 0, true);
                chunk(stream, 1, 0, true);
            }
            "chunk-too-large" => chunk(stream, 0, PIECE + 3, false),
            "chunk-that-is-none" => {
                let params = format!(r#"{{"stream":{stream},"seq":0,"data":"!","last":false}}"#);
                say(&note("chunk", &params));
            }
            "chunks" => chunk(stream, 0, agent.word(0).parse().unwrap(), false),
            "chunks-beyond-credit" => {
                (0..4 * FIRST_CREDIT).for_each(|seq| chunk(stream, seq, PIECE, false))
            }
            "empty-chunks" => (0..).for_each(|seq| chunk(stream, seq, 0, false)),
            "drips" => {
                for seq in 0.. {
                    chunk(stream, seq, 1, false);
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
            "stops-in-the-middle" => chunk(stream, 0, 4, false),
            "answers-another-length" => {
                chunk(stream, 0, 4, true);
                self.answer_read(5, &self.path);
            }
            "credit-for-what-comes" => credit(stream, 1),
            "image-that-is-none" => {
                chunk(stream, 0, 9, true);
                let image = r#"{"image":{"mime_type":"image/png","bytes":9}}"#;
                answer(id, &format!(r#"{{"path":"/io/f","content":{image}}}"#));
            }
            "text-too-long" => {
                let long = text(&"x".repeat(100 << 10));
                let window = format!(
                    r#"{{"text":{long},"first_line":1,"output_lines":1,"total_lines":1,"truncated_by":null,"footer":null}}"#
                );
                answer(id, &format!(r#"{{"path":"/io/f","content":{{"text":{window}}}}}"#));
            }
            // Lists.
            "page-of-no-list" => page(id + 1, &["a"]),
            "pages-for-ever" => loop {
                page(id, &["a"; 500]);
            },
            "empty-pages" => loop {
                page(id, &[]);
            },
            "huge-names" => loop {
                page(id, &[&"x".repeat(3 << 20)]);
            },
            "lists" => {
                page(id, &[agent.words.first().map_or("", String::as_str)]);
                self.answer_list(1);
            }
            "lists-another-number" => {
                page(id, &["a"]);
                self.answer_list(2);
            }
            // Content that goes.
            "writes-nothing" => self.answer_write(0),
            // The first one may be taken, where nothing is left of the credit before.
            "absurd-credit" => (0..2).for_each(|_| credit(stream, u64::MAX)),
            "credit-for-no-stream" => credit(stream + 1, 1),
            "writes-another-length" => {
                agent.writing = Some(Self { path: self.path.clone(), ..*self });
                return;
            }
            "times-that-are-none" => {
                let time = r#"{"seconds":9223372036854775807,"nanoseconds":4294967295}"#;
                answer(
                    id,
                    &format!(
                        r#"{{"path":"/io/f","type":"file","size":{},"permissions":4294967295,"uid":4294967295,"gid":4294967295,"modified":{time},"accessed":null,"created":{time}}}"#,
                        u64::MAX
                    ),
                );
                return;
            }
            other => panic!("no such play: {other}"),
        }
        wait();
    }

    /// All that was to be written has come.
    pub fn finish(&self) {
        self.answer_write(1);
    }

    fn answer_read(&self, bytes: u64, path: &str) {
        let path = text(path);
        answer(self.id, &format!(r#"{{"path":{path},"bytes":{bytes},"size":{bytes}}}"#));
    }

    fn answer_list(&self, entries: u64) {
        answer(self.id, &format!(r#"{{"path":"/io","entries":{entries},"cut":null}}"#));
    }

    fn answer_write(&self, bytes: u64) {
        let path = text(&self.path);
        answer(self.id, &format!(r#"{{"path":{path},"bytes_written":{bytes},"created":true}}"#));
    }

    fn fail(&self, kind: &str, message: &str) {
        let error =
            format!(r#"{{"code":-32000,"message":{},"data":{{"kind":"{kind}"}}}}"#, text(message));
        let line =
            reply_line(self.id, "null").replace("\"result\":null", &format!("\"error\":{error}"));
        say(&line);
    }
}

fn chunk(stream: u64, seq: u64, size: usize, last: bool) {
    let tail = ["", "AA==", "AAA="][size % 3];
    let data = "AAAA".repeat(size / 3) + tail;
    let params = format!(r#"{{"stream":{stream},"seq":{seq},"data":"{data}","last":{last}}}"#);
    write(1, note("chunk", &params).as_bytes());
}

fn credit(stream: u64, bytes: u64) {
    say(&note("credit", &format!(r#"{{"stream":{stream},"bytes":{bytes}}}"#)));
}

fn page(request: u64, names: &[&str]) {
    let entry = |name: &&str| {
        format!(r#"{{"name":{},"type":"file","size":1,"modified":null}}"#, text(name))
    };
    let entries = names.iter().map(entry).collect::<Vec<_>>().join(",");
    say(&note("page", &format!(r#"{{"request":{request},"entries":[{entries}]}}"#)));
}

pub fn refused(request: u64) {
    let refused = format!(
        r#"{{"request":{request},"operation":"read","path":"/etc/passwd","kind":"path_escape"}}"#
    );
    say(&note("refused", &refused));
}
