//! Prints the hosts that commands are refused.

use sandbox_api::{Network, RefusedHost};
use sandbox_controller::RefusedHosts;

use crate::output::Output;

/// How many refused hosts are printed for each script or command; further ones are mentioned.
const HOSTS_SHOWN: usize = 10;
/// How much of a command's output is searched for [`NO_NETWORK`].
const TAIL_BYTES: usize = 16 << 10;
/// How much of it stands beside an error.
const LAST_LINES: usize = 10;
const LAST_LINES_BYTES: usize = 3 << 10;
/// What programs print, in lower case, that do not resolve a name or find no route.
const NO_NETWORK: [&str; 15] = [
    "network is unreachable",
    "name resolution",
    "name or service not known",
    "resolve host",
    "could not resolve",
    "failure resolving",
    // BusyBox.
    "bad address '",
    // Alpine's package manager.
    "error (try again later)",
    // Go.
    "no such host",
    "dial tcp",
    // Node.
    "getaddrinfo",
    // Java.
    "unknownhostexception",
    // Rust.
    "failed to lookup address",
    "dns error",
    // psql and others.
    "could not translate host name",
];
/// The same as codes of errors, which are words of their own: a `FileNotFoundError` is none of them.
const NO_NETWORK_CODES: [&str; 3] = ["ENOTFOUND", "EAI_AGAIN", "ENETUNREACH"];

/// Prints the refused hosts as they come, until there will be no more.
pub async fn print_refused(output: &Output, mut hosts: RefusedHosts) {
    let mut printed = 0;
    while let Some(host) = hosts.next().await {
        print(output, printed, &host);
        printed += 1;
    }
}

/// Prints the refused hosts of what has ended.
pub fn print_all_refused(output: &Output, network: Option<&Network>) {
    let hosts = network.into_iter().flat_map(|network| &network.refused);
    hosts.enumerate().for_each(|(printed, host)| print(output, printed, host));
}

/// Prints a refused host, if not many were `printed` before.
pub fn print(output: &Output, printed: usize, host: &RefusedHost) {
    if printed < HOSTS_SHOWN {
        output.notice(&note(host));
    } else if printed == HOSTS_SHOWN {
        output.notice("more hosts were refused; --json and --audit FILE list them");
    }
}

fn note(RefusedHost { host, port, reason, allow }: &RefusedHost) -> String {
    let refused = format!("refused {host}:{port} ({reason})");
    if allow.is_empty() {
        return refused;
    }
    let flags: Vec<_> = allow.iter().map(|rule| format!("--allow {rule}")).collect();
    format!("{refused}; to allow it: {}", flags.join(" "))
}

/// The end of what a command prints, in which it says why it fails.
#[derive(Debug, Default)]
pub struct Tail(Vec<u8>);

impl Tail {
    pub fn push(&mut self, piece: &[u8]) {
        self.0.extend_from_slice(&piece[piece.len().saturating_sub(TAIL_BYTES)..]);
        self.0.drain(..self.0.len().saturating_sub(TAIL_BYTES));
    }

    /// Its last lines, as plain text.
    pub fn last_lines(&self) -> String {
        let text = String::from_utf8_lossy(&self.0);
        let text = anstream::adapter::strip_str(&text).to_string();
        let mut bytes = 0;
        let mut lines: Vec<_> = text
            .trim_end()
            .lines()
            .rev()
            .take(LAST_LINES)
            .take_while(|line| {
                bytes += line.len();
                bytes <= LAST_LINES_BYTES
            })
            .collect();
        lines.reverse();
        lines.join("\n")
    }

    fn is_of_network(&self) -> bool {
        let text = String::from_utf8_lossy(&self.0);
        let is_in_word = |it: char| it.is_ascii_alphanumeric() || it == '_';
        let has_code = text.split(|it| !is_in_word(it)).any(|it| NO_NETWORK_CODES.contains(&it));
        let text = text.to_lowercase();
        has_code || NO_NETWORK.iter().any(|words| text.contains(words))
    }
}

/// What to try if a command failed and says that it has no network. Without allowed hosts nothing
/// could see it try.
pub fn hint(result: &ExecResult, tail: &Tail) -> Option<&'static str> {
    let had_none = result.failed() && result.network.is_none();
    (had_none && tail.is_of_network())
        .then_some("it had no network; --allow HOST lets it reach a host")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn note_of_a_refused_host_names_all_rules_that_it_needs() {
        let note = |allow: &[&str]| {
            let allow = allow.iter().map(|&rule| rule.to_owned()).collect();
            let (host, reason) = ("localhost".to_owned(), "loopback address".to_owned());
            note(&RefusedHost { host, port: 8098, reason, allow })
        };
        assert_eq!(note(&[]), "refused localhost:8098 (loopback address)");
        assert_eq!(
            note(&["127.0.0.1:8098", "[::1]:8098"]),
            "refused localhost:8098 (loopback address); to allow it: --allow 127.0.0.1:8098 --allow [::1]:8098"
        );
    }

    #[test]
    fn last_lines_are_few_and_plain() {
        let mut tail = Tail::default();
        assert_eq!(tail.last_lines(), "");
        for number in 0..5000 {
            tail.push(format!("line {number}\r\n").as_bytes());
        }
        tail.push(b"\x1b[31mError\x1b[0m: \xff\n\n");
        let text = tail.last_lines();
        assert_eq!(text.lines().count(), LAST_LINES);
        assert!(text.starts_with("line 4991\n") && text.ends_with("\nError: \u{fffd}"), "{text}");
        tail.push(&[b'x'; TAIL_BYTES]);
        assert_eq!(tail.last_lines(), "", "no line is that long");
    }

    #[test]
    fn failure_for_lack_of_network_is_known_by_the_end_of_the_output() {
        for text in [
            "wget: bad address 'example.org'",
            "curl: (6) Could not resolve host: example.org",
            "ERROR: [Errno -3] Temporary failure in name resolution",
            "npm error errno EAI_AGAIN",
            "fatal: unable to access 'https://x/': Could not resolve host: x",
            "dial tcp: lookup proxy.example.org on [::1]:53: connection refused",
        ] {
            let mut tail = Tail::default();
            tail.push(&[b'x'; 3 * TAIL_BYTES]);
            let (start, end) = text.as_bytes().split_at(text.len() / 2);
            tail.push(start);
            tail.push(end);
            assert!(tail.is_of_network(), "{text}");
            tail.push(&[b'x'; TAIL_BYTES]);
            assert!(!tail.is_of_network() && tail.0.len() == TAIL_BYTES);
        }
        for text in ["FileNotFoundError: [Errno 2] No such file: 'x'", "raise DeviceNotFound()"] {
            let mut tail = Tail::default();
            tail.push(text.as_bytes());
            assert!(!tail.is_of_network(), "{text}");
        }
    }
}
