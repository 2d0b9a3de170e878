//! Real servers for TLS, on the loopback: OpenSSL's, and one of Go's library, which containerd is that
//! every Docker Engine brings. And what a client says to them.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::agent::network;

/// `scripts/test` installs it.
pub const OPENSSL: &str = "/usr/bin/openssl";

/// A server that goes with this value.
pub struct Server {
    process: Child,
    port: u16,
    _folder: TempDir,
}

impl Server {
    /// OpenSSL's, with these options.
    pub fn openssl(options: &[&str]) -> Self {
        let folder = certificate();
        let mut command = Command::new(OPENSSL);
        command
            .args(["s_server", "-accept", "127.0.0.1:0", "-cert", "cert.pem", "-key", "key.pem"])
            // Answers to HTTP, and has all ciphers that there are, as old servers do.
            .args(["-www", "-cipher", "ALL:@SECLEVEL=0"])
            .args(options)
            .current_dir(folder.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        Self::start(command, folder, |process| process.stdout.take().unwrap(), "ACCEPT 127.0.0.1:")
    }

    /// A server of Go's `crypto/tls`.
    pub fn go() -> Self {
        let folder = certificate();
        let at = |name: &str| folder.path().join(name).display().to_string();
        // Its sockets are root's unless they are somebody else's.
        let owner = format!(
            "uid = {}\ngid = {}\n",
            rustix::process::geteuid().as_raw(),
            rustix::process::getegid().as_raw()
        );
        let config = format!(
            "version = 2\nroot = '{root}'\nstate = '{state}'\n\
             disabled_plugins = ['io.containerd.grpc.v1.cri']\n\
             [grpc]\naddress = '{socket}'\ntcp_address = '127.0.0.1:0'\n\
             tcp_tls_cert = '{cert}'\ntcp_tls_key = '{key}'\n{owner}\
             [ttrpc]\naddress = '{socket}.ttrpc'\n{owner}",
            root = at("root"),
            state = at("state"),
            socket = at("containerd.sock"),
            cert = at("cert.pem"),
            key = at("key.pem"),
        );
        std::fs::write(folder.path().join("config.toml"), config).unwrap();
        let mut command = Command::new("containerd");
        command
            .args(["--config", "config.toml", "--log-level", "info"])
            .current_dir(folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let log = |process: &mut Child| process.stderr.take().unwrap();
        Self::start(command, folder, log, "address=\"127.0.0.1:")
    }

    /// Starts it, and reads from what it says on which port it listens.
    fn start<R: Read + Send + 'static>(
        mut command: Command,
        folder: TempDir,
        log: impl FnOnce(&mut Child) -> R,
        before_port: &str,
    ) -> Self {
        let mut process = command
            .stdin(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("{:?}: {error}", command.get_program()));
        let mut lines = BufReader::new(log(&mut process)).lines();
        let mut seen = String::new();
        let port = loop {
            let Some(Ok(line)) = lines.next() else {
                _ = process.kill();
                _ = process.wait();
                panic!("{:?} did not start: {seen}", command.get_program());
            };
            if let Some((_, rest)) = line.split_once(before_port) {
                let digits = rest.split(|it: char| !it.is_ascii_digit()).next();
                break digits.unwrap().parse().unwrap();
            }
            seen += &(line + "\n");
        };
        // An unread log would block it.
        std::thread::spawn(move || lines.for_each(drop));
        Self { process, port, _folder: folder }
    }

    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Its reply to each of these on one connection, without a proxy.
    pub fn answers(&self, says: &[Vec<u8>]) -> Vec<TlsReply> {
        let output = Command::new(network())
            .env_remove("HTTPS_PROXY")
            .args(["exchange", &format!("127.0.0.1:{}", self.port)])
            .args(says.iter().map(|bytes| hex(bytes)))
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap().lines().map(TlsReply::read).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        _ = self.process.kill();
        _ = self.process.wait();
    }
}

/// A folder with a key, and a certificate for `localhost`.
fn certificate() -> TempDir {
    let folder = tempfile::Builder::new().prefix("sandboxctl-tls-").tempdir().unwrap();
    certify(folder.path());
    folder
}

/// Makes `key.pem`, and `cert.pem` for `localhost`.
pub fn certify(folder: &Path) {
    let made = Command::new(OPENSSL)
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"])
        .args(["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"])
        // A certificate of an authority is not valid for a server.
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .args(["-keyout", "key.pem", "-out", "cert.pem"])
        .current_dir(folder)
        .output()
        .unwrap_or_else(|error| panic!("{OPENSSL}: {error}"));
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

/// What a server answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TlsReply {
    ServerHello,
    /// A HelloRetryRequest.
    Retry,
    /// The connection was broken off.
    Reset,
    /// Anything else, as it came.
    Other(String),
}

impl TlsReply {
    /// Reads a line of `network exchange`.
    pub fn read(line: &str) -> Self {
        // It may follow a HelloRetryRequest, and come with what is next.
        const CHANGE_CIPHER_SPEC: &str = "140303000101";
        let line = line.strip_prefix(CHANGE_CIPHER_SPEC).unwrap_or(line);
        // Both have the record's type and version, a length, and the message's type; then its
        // length and version, and a random that distinguishes them.
        let is_hello = line.starts_with("1603") && line.get(10..12) == Some("02");
        match line.get(22..30) {
            _ if line == "ConnectionReset" => Self::Reset,
            Some("cf21ad74") if is_hello => Self::Retry,
            Some(_) if is_hello => Self::ServerHello,
            _ => Self::Other(line.to_owned()),
        }
    }
}

/// A ClientHello of TLS 1.3 that a server can answer.
pub struct Hello {
    name: &'static str,
    group: u16,
    share: Vec<u8>,
}

const X25519: u16 = 0x1d;
const P384: u16 = 0x18;

impl Hello {
    /// With this server name, and a key share for X25519.
    pub fn for_name(name: &'static str) -> Self {
        Self { name, group: X25519, share: vec![9; 32] }
    }

    /// With a key share for P-384 in its place: the curve's generator, whose secret everybody knows.
    pub fn with_p384(self) -> Self {
        let generator = "04\
            aa87ca22be8b05378eb1c71ef320ad746e1d3b628ba79b9859f741e082542a38\
            5502f25dbf55296c3a545e3872760ab73617de4a96262c6f5d9e98bf9292dc29\
            f8f41dbd289a147ce9da3113b5f0b8c00a60b1ce1d7e819d7a431d7c90ea0e5f";
        let digits: Vec<char> = generator.chars().collect();
        let byte =
            |pair: &[char]| u8::from_str_radix(&pair.iter().collect::<String>(), 16).unwrap();
        Self { group: P384, share: digits.chunks(2).map(byte).collect(), ..self }
    }

    /// The handshake's message.
    pub fn message(&self) -> Vec<u8> {
        let extension =
            |kind: u16, data: &[u8]| [&kind.to_be_bytes()[..], &vector(2, data)].concat();
        let name = vector(2, &[&[0][..], &vector(2, self.name.as_bytes())].concat());
        let share = [&self.group.to_be_bytes()[..], &vector(2, &self.share)].concat();
        let signatures = [4, 3, 8, 4, 8, 5, 8, 6, 4, 1, 5, 1, 6, 1];
        let extensions = [
            extension(0, &name),
            extension(10, &vector(2, &[0, X25519 as u8, 0, P384 as u8])),
            extension(13, &vector(2, &signatures)),
            extension(43, &vector(1, &[3, 4])),
            extension(51, &vector(2, &share)),
        ];
        let body = [
            &[3, 3][..],
            &[7; 32],
            &vector(1, &[9; 32]),
            &vector(2, &[0x13, 1, 0x13, 2, 0x13, 3]),
            &vector(1, &[0]),
            &vector(2, &extensions.concat()),
        ]
        .concat();
        [&[1][..], &vector(3, &body)].concat()
    }

    /// In one record of this version.
    pub fn record(&self, version: [u8; 2]) -> Vec<u8> {
        record(version, &self.message())
    }
}

/// A record of a handshake.
pub fn record(version: [u8; 2], piece: &[u8]) -> Vec<u8> {
    [&[22][..], &version, &vector(2, piece)].concat()
}

/// A ClientHello for TLS 1.2 in the format of SSLv2, which has no server name.
pub fn ssl2_hello() -> Vec<u8> {
    let ciphers = [0, 0, 0x2f, 0, 0, 0x9c];
    let head = [1, 3, 3, 0, ciphers.len() as u8, 0, 0, 0, 32];
    let message = [&head[..], &ciphers, &[5; 32]].concat();
    [&[0x80, message.len() as u8][..], &message].concat()
}

fn vector(length_bytes: usize, bytes: &[u8]) -> Vec<u8> {
    let length = (bytes.len() as u32).to_be_bytes();
    [&length[4 - length_bytes..], bytes].concat()
}

/// In hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
