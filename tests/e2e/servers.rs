//! Servers for tests, on the loopback: of tools (`tests/servers/mcp.py`, and published ones) and of HTTP over
//! TLS (`tests/servers/https.py`), and an authority that certifies them.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::fixture::{finish, workspace};
use crate::shared::once;
use crate::tls::OPENSSL;

/// Where the published servers of tools are, which `scripts/upstreams` installs.
pub fn published() -> PathBuf {
    once("upstreams", || {
        let ended = finish(Command::new(workspace().join("scripts/upstreams")));
        ended.assert_code(0).stdout.trim().to_owned()
    })
    .into()
}

/// The server of tools that the tests have, as words of a command line. It writes its notes there.
pub fn mcp(notes: &Path, more: &[&str]) -> Vec<String> {
    let program = workspace().join("tests/servers/mcp.py");
    let words = ["python3", program.to_str().unwrap(), notes.to_str().unwrap()];
    words.iter().chain(more).map(|&word| word.to_owned()).collect()
}

/// A server in Python that goes with this value.
#[derive(Debug)]
pub struct Python {
    child: Child,
    /// What it has printed first.
    pub at: String,
}

impl Python {
    /// Starts a program of `tests/servers`, and waits until it listens.
    pub fn start(words: &[String]) -> Self {
        let mut child = Command::new(&words[0])
            .args(&words[1..])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut at = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut at).unwrap();
        assert!(at.ends_with('\n'), "{words:?} did not start");
        Self { child, at: at.trim().to_owned() }
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// A server of HTTP that notes what it is sent.
#[derive(Debug)]
pub struct Http {
    python: Python,
    notes: PathBuf,
}

impl Http {
    /// Over TLS, with a certificate and its key.
    pub fn over_tls((certificate, key): &(PathBuf, PathBuf), more: &[&str]) -> Self {
        let pair = ["--certificate", certificate.to_str().unwrap(), key.to_str().unwrap()];
        Self::start(certificate.parent().unwrap(), &[&pair[..], more].concat())
    }

    /// Without TLS, with its notes in this folder.
    pub fn plain(folder: &Path) -> Self {
        Self::start(folder, &[])
    }

    fn start(folder: &Path, more: &[&str]) -> Self {
        let notes = tempfile::Builder::new().prefix("notes-").tempfile_in(folder).unwrap();
        let notes = notes.into_temp_path().keep().unwrap();
        let program = workspace().join("tests/servers/https.py");
        let words = ["python3", program.to_str().unwrap(), notes.to_str().unwrap()];
        let words: Vec<_> = words.iter().chain(more).map(|&word| word.to_owned()).collect();
        Self { python: Python::start(&words), notes }
    }

    pub fn port(&self) -> u16 {
        self.python.at.parse().unwrap()
    }

    /// What it has noted.
    fn notes(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.notes).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The heads and bodies of all requests so far.
    pub fn requests(&self) -> Vec<String> {
        let notes = self.notes();
        let requests = notes.iter().filter_map(|it| {
            Some(format!("{}{}", it["head"].as_str()?, it["body"].as_str().unwrap()))
        });
        requests.collect()
    }

    /// The protocols that its clients agreed on, one a connection over TLS.
    pub fn protocols(&self) -> Vec<Value> {
        self.notes().iter().filter_map(|it| it.get("hello").cloned()).collect()
    }
}

/// An authority of its own, and what it has certified.
#[derive(Debug)]
pub struct Authority(TempDir);

impl Authority {
    pub fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("sandboxctl-authority-").tempdir().unwrap();
        let authority = Self(folder);
        let its = ["-subj", "/CN=authority", "-addext", "basicConstraints=critical,CA:TRUE"];
        authority.make("authority", &its, None);
        authority
    }

    pub fn folder(&self) -> &Path {
        self.0.path()
    }

    /// Its own certificate, which who trusts it needs.
    pub fn certificate(&self) -> PathBuf {
        self.folder().join("authority.pem")
    }

    /// A certificate for this name, and its key.
    pub fn certify(&self, name: &str) -> (PathBuf, PathBuf) {
        self.make(name, &["-CA", "authority.pem", "-CAkey", "authority.key"], Some(name))
    }

    /// One that is signed by itself alone.
    pub fn self_signed(&self, name: &str) -> (PathBuf, PathBuf) {
        self.make(&format!("self-{name}"), &[], Some(name))
    }

    fn make(&self, file: &str, options: &[&str], server: Option<&str>) -> (PathBuf, PathBuf) {
        let [certificate, key] =
            ["pem", "key"].map(|kind| self.folder().join(format!("{file}.{kind}")));
        let mut command = Command::new(OPENSSL);
        command.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]);
        command.args(["-nodes", "-days", "2"]).args(options);
        if let Some(name) = server {
            command.args(["-subj", &format!("/CN={name}"), "-addext"]);
            command.args([&format!("subjectAltName=DNS:{name}"), "-addext"]);
            // A certificate of an authority is not valid for a server.
            command.arg("basicConstraints=critical,CA:FALSE");
        }
        command.arg("-keyout").arg(&key).arg("-out").arg(&certificate);
        command.current_dir(self.folder());
        finish(command).assert_code(0);
        (certificate, key)
    }
}
