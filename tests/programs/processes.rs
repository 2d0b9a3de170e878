//! Kept commands, as an agent plays them that an honest one is not.

use super::{answer, note, number_after, say};

/// `hi`, and a line's end.
const DATA: &str = "aGkK";

/// Plays a request `exec` that is kept, by what `play` says; returns whether it was one.
pub fn play(name: &str, id: u64, line: &str) -> bool {
    if !line.contains("\"method\":\"exec\"") || !line.contains("\"kept\":true") {
        return false;
    }
    let stdout = number_after(line, "\"stdout\":");
    let started = |request: u64| {
        say(&note("started", &format!(r#"{{"request":{request},"pid":15}}"#)));
    };
    let exited = |code: u8| {
        say(&note("exited", &format!(r#"{{"request":{id},"end":{{"exited":{code}}}}}"#)));
    };
    let chunk = |seq: u64, data: &str, last: bool| {
        let params = format!(r#"{{"stream":{stdout},"seq":{seq},"data":"{data}","last":{last}}}"#);
        say(&note("chunk", &params));
    };
    let reply = |code: u8, bytes: u64| {
        let counts = format!(r#""stdout_bytes":{bytes},"stderr_bytes":0,"cpu_ms":1"#);
        answer(
            id,
            &format!(
                r#"{{"end":{{"exited":{code}}},"stopped":null,{counts},"peak_memory_bytes":2,"signs":[]}}"#
            ),
        );
    };
    match name {
        "started-twice" => {
            started(id);
            started(id);
        }
        "started-for-nobody" => started(id + 1000),
        "exited-first" => exited(0),
        "exited-twice" => {
            started(id);
            exited(0);
            exited(0);
        }
        "prints-first" => chunk(0, DATA, false),
        "answers-without-exited" => {
            started(id);
            chunk(0, "", true);
            reply(0, 0);
        }
        "answers-otherwise" => {
            started(id);
            exited(0);
            chunk(0, "", true);
            reply(1, 0);
        }
        "miscounts" => {
            started(id);
            chunk(0, DATA, false);
            exited(0);
            chunk(1, "", true);
            reply(0, 4);
        }
        "exited-after-the-answer" => {
            started(id);
            exited(0);
            chunk(0, "", true);
            reply(0, 0);
            exited(0);
        }
        "floods" => {
            started(id);
            for seq in 0.. {
                chunk(seq, &"eHh4".repeat(20_000), false);
            }
        }
        _ => {
            started(id);
            chunk(0, DATA, false);
            exited(0);
            chunk(1, "", true);
            reply(0, 3);
        }
    }
    true
}
