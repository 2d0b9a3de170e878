//! Secrets that never enter a sandbox: a host gets one with each request, and no program finds a way to read
//! it. The servers are real ones, on the loopback.

mod answers;
mod requests;
mod servers;

use std::collections::BTreeMap;
use std::process::Command as HostCommand;

use aho_corasick::AhoCorasick;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sandbox_api::hosts::HOST_LOOPBACK;
use serde_json::{Value, json};

use crate::fixture::{Ended, Fixture, eventually, files_below, finish, sandboxctl};
use crate::rootfs::{Provided, Rootfs};
use crate::servers::{Authority, Http};
use crate::tls::OPENSSL;

/// A value that is another one in base64, in a URL and in lower case.
const SECRET: &str = "hx7/Zebra+Q9f==Lynx-44";

/// Stands in a request for the server's name and port.
const HERE: &str = "<here>";

/// A shell in a sandbox asks with OpenSSL's client, which reads until the server ends the connection. What
/// comes is printed as numbers, so that nothing on the way out of the sandbox replaces anything in it.
const ASK: &str = r#"
ask() {
    name=$1; shift
    echo "== $name"
    printf "$@" | timeout 30 openssl s_client -quiet -verify_return_error -CAfile "$SSL_CERT_FILE" \
        -verify_hostname "${target%:*}" -servername "${target%:*}" \
        -proxy 127.0.0.1:3128 -connect "$target" | od -An -v -tx1
}
"#;

/// What sandboxes of these tests have: a shell, and OpenSSL.
fn shell() -> Provided {
    Rootfs::busybox().with_host(&[OPENSSL]).provide()
}

/// A place whose sandboxes have a secret for a server.
struct Injected {
    place: Fixture,
    provided: Provided,
    authority: Authority,
    server: Http,
}

impl Injected {
    fn new() -> Self {
        Self::of(shell(), &[])
    }

    fn of(provided: Provided, options: &[&str]) -> Self {
        let authority = Authority::new();
        let server = Http::over_tls(&authority.certify(HOST_LOOPBACK), options);
        Self { place: Fixture::new(), provided, authority, server }
    }

    /// The server, as programs name it.
    fn target(&self) -> String {
        on_host(&self.server)
    }

    /// What gives it the secret in its usual place.
    fn bearer(&self) -> [String; 2] {
        ["--inject".to_owned(), format!("{}: Authorization: Bearer env:TOKEN", self.target())]
    }

    /// Runs a script of the shell with these flags, not started yet.
    fn command(&self, flags: &[impl AsRef<str>], script: &str) -> HostCommand {
        let preamble = format!("export OPENSSL_CONF=/dev/null\ntarget={}\n{ASK}", self.target());
        self.place.write("given/script", preamble + script);
        let mut command = self.place.command(["exec", "--timeout", "2m", "--in", "given/script"]);
        command.args(self.provided.args()).args(flags.iter().map(AsRef::as_ref));
        command.args(["--", "sh", "/in/script"]);
        command.env("TOKEN", SECRET).env("SSL_CERT_FILE", self.authority.certificate());
        command
    }

    /// The same, run to a good end.
    #[track_caller]
    fn shell(&self, flags: &[impl AsRef<str>], script: &str) -> Ended {
        let ended = finish(self.command(flags, script));
        ended.assert_code(0);
        assert!(!leaks(ended.stdout.as_bytes()) && !leaks(ended.stderr.as_bytes()), "{ended:#?}");
        ended
    }

    /// What comes back for each of these requests, one a connection.
    #[track_caller]
    fn ask(&self, flags: &[impl AsRef<str>], requests: &[(&str, String)]) -> Answers {
        let lines: String = requests.iter().map(|(name, request)| asking(name, request)).collect();
        Answers::read(&self.shell(flags, &lines))
    }
}

/// A line of the script that sends a request: [`HERE`] is what the script calls `$target`.
fn asking(name: &str, request: &str) -> String {
    let escape = |byte: u8| match byte {
        b'%' => "%%".to_owned(),
        byte => format!("\\{byte:03o}"),
    };
    let escaped = |text: &str| text.bytes().map(escape).collect::<String>();
    let pieces: Vec<_> = request.split(HERE).map(escaped).collect();
    let targets = " \"$target\"".repeat(pieces.len() - 1);
    format!("ask '{name}' '{}'{targets}\n", pieces.join("%s"))
}

fn on_host(server: &Http) -> String {
    format!("{HOST_LOOPBACK}:{}", server.port())
}

/// A request of a program that wants nothing more from this connection.
fn request(method: &str, path: &str, fields: &[&str]) -> String {
    let fields: String = fields.iter().map(|field| format!("{field}\r\n")).collect();
    format!("{method} {path} HTTP/1.1\r\nHost: {HERE}\r\nConnection: close\r\n{fields}\r\n")
}

fn get(path: &str) -> String {
    request("GET", path, &[])
}

/// What came back, by the names of requests.
struct Answers(BTreeMap<String, Vec<u8>>);

impl Answers {
    fn read(ended: &Ended) -> Self {
        let mut all = BTreeMap::<String, Vec<u8>>::new();
        let mut name = "";
        for line in ended.stdout.lines() {
            if let Some(next) = line.strip_prefix("== ") {
                name = next;
                all.insert(name.to_owned(), Vec::new());
            } else {
                let bytes = line.split_whitespace().map(|it| u8::from_str_radix(it, 16).unwrap());
                all.get_mut(name).unwrap().extend(bytes);
            }
        }
        Self(all)
    }

    fn bytes(&self, name: &str) -> &[u8] {
        self.0.get(name).unwrap_or_else(|| panic!("nothing was asked for {name}"))
    }

    /// Whether an answer has a part of the secret, also across the borders of its chunks.
    fn leaks(&self, name: &str) -> bool {
        let bytes = self.bytes(name);
        leaks(bytes) || leaks(&joined(bytes))
    }

    fn text(&self, name: &str) -> String {
        String::from_utf8_lossy(self.bytes(name)).into_owned()
    }

    /// The status of an answer, and 0 for none.
    fn status(&self, name: &str) -> u16 {
        let text = self.text(name);
        let status = text.split(' ').nth(1).and_then(|it| it.parse().ok());
        status.filter(|_| text.starts_with("HTTP/1.")).unwrap_or(0)
    }
}

/// The content of chunks, without what is between them.
fn joined(answer: &[u8]) -> Vec<u8> {
    let mut joined = Vec::new();
    let mut rest = answer;
    while let Some(at) = rest.windows(2).position(|it| it == b"\r\n") {
        let line = String::from_utf8_lossy(&rest[..at]).into_owned();
        rest = &rest[at + 2..];
        let size = line.split(';').next().and_then(|it| usize::from_str_radix(it, 16).ok());
        if let Some(size) = size.filter(|size| *size <= rest.len()) {
            joined.extend_from_slice(&rest[..size]);
            rest = &rest[size..];
        }
    }
    joined
}

/// Whether the bytes have a part of the secret, in one of the forms that are only another spelling.
fn leaks(bytes: &[u8]) -> bool {
    const PART: usize = 8;
    let in_base64 = |before: &str| {
        let text = STANDARD.encode(format!("{before}{SECRET}"));
        // What is of the secret alone.
        text[before.len().div_ceil(3) * 4..].trim_end_matches('=').to_owned()
    };
    let percent = |upper: bool| -> String {
        let escape = |byte: u8| match byte {
            b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' | b'-' => char::from(byte).to_string(),
            _ if upper => format!("%{byte:02X}"),
            _ => format!("%{byte:02x}"),
        };
        SECRET.bytes().map(escape).collect()
    };
    let forms = [
        SECRET.to_owned(),
        in_base64(""),
        in_base64("x"),
        in_base64("xx"),
        percent(true),
        percent(false),
    ];
    let parts = forms.iter().flat_map(|form| form.as_bytes().windows(PART));
    AhoCorasick::new(parts).unwrap().is_match(bytes)
}

#[test]
fn parts_of_a_secret_are_found_in_each_of_its_spellings() {
    for text in [
        format!("a{SECRET}b"),
        format!("only {}", &SECRET[3..12]),
        STANDARD.encode(format!("user:{SECRET}")),
        STANDARD.encode(format!("me:{SECRET}")),
        SECRET.replace('/', "%2F").replace('+', "%2B").replace('=', "%3D"),
    ] {
        assert!(leaks(text.as_bytes()), "{text}");
    }
    assert!(!leaks(b"Authorization: Bearer *** hx7 and Lynx-44"));
}

#[test]
fn host_gets_the_secret_and_no_program_finds_it_in_its_sandbox() {
    let injected = Injected::new();
    let script = asking("hello", &get("/plain"))
        + r#"
        echo "== places"
        {
            env
            cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline
            cat "$SSL_CERT_FILE"
        } 2>/dev/null | od -An -v -tx1
        echo "== keys"
        grep -rl 'PRIVATE[ ]KEY' /etc /in /run /tmp /io 2>/dev/null | od -An -v -tx1
        echo "== files"
        for it in "$SSL_CERT_FILE" "$REQUESTS_CA_BUNDLE" "$NODE_EXTRA_CA_CERTS" "$CURL_CA_BUNDLE" \
            "$GIT_SSL_CAINFO"; do
            grep -q 'BEGIN CERTIFICATE' "$it" || echo "no certificate in $it" >&2
        done
        echo "== authority"
        cat "$NODE_EXTRA_CA_CERTS" | od -An -v -tx1"#;
    let mut flags = injected.bearer().to_vec();
    flags.extend(["--audit", "audit.jsonl", "--receipt", "receipt.json"].map(str::to_owned));
    let ended = injected.shell(&flags, &script);
    let answers = Answers::read(&ended);
    assert_eq!(answers.status("hello"), 200, "{ended:#?}");
    assert!(answers.text("hello").ends_with("hello\n"), "{}", answers.text("hello"));
    let sent = injected.server.requests();
    let [sent] = &sent[..] else { panic!("{sent:#?}") };
    assert!(
        sent.contains(&format!("\r\nAuthorization: Bearer {SECRET}\r\n")) || {
            // Names of fields are the same in any case.
            sent.to_lowercase().contains("\r\nauthorization: ")
                && sent.contains(&format!("Bearer {SECRET}\r\n"))
        }
    );
    assert_eq!(injected.server.protocols(), [json!("http/1.1")], "no other version is offered");

    let places = answers.text("places");
    assert!(!answers.leaks("places"), "{places}");
    assert!(
        places.contains("TOKEN="),
        "a program that wants a variable has a placeholder: {places}"
    );
    assert_eq!(answers.text("keys"), "", "no file has the authority's key");
    assert!(!ended.stderr.contains("no certificate in"), "{ended:#?}");
    for file in files_below(&injected.place.work()) {
        assert!(!leaks(&std::fs::read(&file).unwrap()), "{}", file.display());
    }
    // Each sandbox has an authority of its own.
    let again = injected
        .shell(&flags[..2], "echo '== authority'; od -An -v -tx1 <\"$NODE_EXTRA_CA_CERTS\"");
    let (first, second) = (answers.text("authority"), Answers::read(&again).text("authority"));
    assert!(first.contains("BEGIN CERTIFICATE") && second.contains("BEGIN CERTIFICATE"));
    assert_ne!(first, second);
}

#[test]
fn configuration_of_the_user_gives_a_host_its_secret() {
    let injected = Injected::new();
    let user = injected.place.home().join(".config/sandboxctl");
    std::fs::create_dir_all(&user).unwrap();
    let [_, rule] = injected.bearer();
    std::fs::write(user.join("config.toml"), format!("[network]\ninject = [\"{rule}\"]\n"))
        .unwrap();
    let answers = injected.ask(&[""; 0], &[("echo", get("/echo"))]);
    assert_eq!(answers.status("echo"), 200, "{}", answers.text("echo"));
    assert!(!answers.leaks("echo"), "{}", answers.text("echo"));
    let sent = injected.server.requests();
    assert!(sent.len() == 1 && sent[0].contains(&format!("Bearer {SECRET}\r\n")), "{sent:#?}");
}

#[test]
fn secret_goes_to_its_host_at_its_port_over_tls_alone() {
    let injected = Injected::new();
    let (authority, target) = (&injected.authority, injected.target());
    let other = Http::over_tls(&authority.certify("other.example"), &[]);
    let same_name = Http::over_tls(&authority.certify(HOST_LOOPBACK), &[]);
    let plain = Http::plain(authority.folder());
    let mut flags = injected.bearer().to_vec();
    for server in [&other, &same_name, &plain] {
        flags.extend(["--allow".to_owned(), on_host(server)]);
    }
    let host =
        |name: &str| format!("GET /echo HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n");
    let open = |name: &str| format!("GET /echo HTTP/1.1\r\nHost: {name}\r\n\r\n");
    let requests = [
        ("another host", host("other.example")),
        ("its port left out", host(HOST_LOOPBACK)),
        ("its port", host(HERE)),
        ("another port", host(&on_host(&other))),
        (
            "two hosts",
            format!(
                "GET /echo HTTP/1.1\r\nHost: {HERE}\r\nHost: other.example\r\nConnection: close\r\n\r\n"
            ),
        ),
        ("no host", "GET /echo HTTP/1.1\r\nConnection: close\r\n\r\n".to_owned()),
        ("an absolute target", request("GET", "https://other.example/echo", &[])),
        (
            "an absolute target without TLS",
            request("GET", &format!("http://{HOST_LOOPBACK}/echo"), &[]),
        ),
        ("a name at the target", request("GET", "//other.example/echo", &[])),
        (
            "CONNECT",
            format!(
                "CONNECT {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
                on_host(&plain),
                on_host(&plain)
            ),
        ),
        ("a second request", open(HERE) + &host("other.example")),
        ("forwarded", request("GET", "/echo", &["X-Forwarded-Host: other.example"])),
    ];
    let lines: String = requests.iter().map(|(name, it)| asking(name, it)).collect();
    // The same host at other ports, where the connection is not inspected.
    let address = format!("CONNECT 127.0.0.1:{0} HTTP/1.1\\r\\n\\r\\n", injected.server.port());
    let in_tunnel = format!(
        "CONNECT {target} HTTP/1.1\\r\\n\\r\\nGET /echo HTTP/1.1\\r\\nHost: {HOST_LOOPBACK}\\r\\nConnection: close\\r\\n\\r\\n"
    );
    let by_proxy_to_other = format!(
        "GET http://{0}/echo HTTP/1.1\\r\\nHost: {0}\\r\\nConnection: close\\r\\n\\r\\n",
        on_host(&plain)
    );
    let by_proxy = format!(
        "GET http://{target}/echo HTTP/1.1\\r\\nHost: {target}\\r\\nConnection: close\\r\\n\\r\\n"
    );
    let elsewhere = format!(
        "own=$SSL_CERT_FILE\n\
         for target in {same}; do SSL_CERT_FILE=/in/authority.pem\n{ask}done\n\
         target={target}; SSL_CERT_FILE=$own\n\
         plain() {{ echo \"== $1\"; printf \"$2\" | timeout 30 nc 127.0.0.1 3128 | od -An -v -tx1; }}\n\
         plain 'by the proxy' '{by_proxy}'\nplain 'by the proxy to another' '{by_proxy_to_other}'\n\
         plain 'in a tunnel' '{in_tunnel}'\nplain 'its address' '{address}'\n\
         echo '== another name'\n\
         echo | timeout 30 openssl s_client -quiet -proxy 127.0.0.1:3128 -connect {target} -servername other.example 2>&1 | od -An -v -tx1\n\
         echo '== no name'\n\
         printf 'GET / HTTP/1.0\\r\\n\\r\\n' | timeout 30 openssl s_client -quiet -proxy 127.0.0.1:3128 -connect {target} -noservername 2>&1 | od -An -v -tx1\n\
         target={target}\n",
        same = on_host(&same_name),
        ask = asking(
            "another port of the host",
            &request("GET", "/echo", &["Authorization: Bearer of-a-program"])
        ),
    );
    flags.extend([
        "--in".to_owned(),
        format!("{}:authority.pem", authority.certificate().display()),
    ]);
    let answers = Answers::read(&injected.shell(&flags, &(lines + &elsewhere)));
    for name in answers.0.keys() {
        assert!(!answers.leaks(name), "{name}: {}", answers.text(name));
    }
    for name in ["its port", "forwarded"] {
        assert_eq!(answers.status(name), 200, "{name}: {}", answers.text(name));
    }
    for name in [
        "another host",
        "its port left out",
        "another port",
        "two hosts",
        "no host",
        "an absolute target",
        "an absolute target without TLS",
        "CONNECT",
    ] {
        let status = answers.status(name);
        assert!((400..500).contains(&status) || status == 0, "{name}: {}", answers.text(name));
    }
    assert_eq!(answers.status("another port of the host"), 200);
    // None of these servers has it.
    for server in [&other, &same_name, &plain] {
        for head in server.requests() {
            assert!(!leaks(head.as_bytes()), "{head}");
        }
    }
    assert!(same_name.requests()[0].contains("Bearer of-a-program"), "it was not changed");
    // The server has it from requests that are for it, and nothing that is for another.
    for head in injected.server.requests() {
        let hosts: Vec<_> =
            head.lines().filter(|line| line.to_lowercase().starts_with("host:")).collect();
        assert_eq!(hosts.len(), 1, "{head}");
        assert!(hosts[0].contains(HOST_LOOPBACK), "{head}");
        assert!(head.starts_with("GET /"), "{head}");
    }
}

#[test]
fn certificate_of_the_host_is_checked_before_anything_is_sent() {
    let injected = Injected::new();
    let authority = &injected.authority;
    let strangers = Authority::new();
    let servers = [
        ("signed by itself", Http::over_tls(&authority.self_signed(HOST_LOOPBACK), &[])),
        ("for another name", Http::over_tls(&authority.certify("other.example"), &[])),
        ("of another authority", Http::over_tls(&strangers.certify(HOST_LOOPBACK), &[])),
        ("without TLS", Http::plain(authority.folder())),
    ];
    for (name, server) in &servers {
        let inject = [
            "--inject".to_owned(),
            format!("{}: Authorization: Bearer env:TOKEN", on_host(server)),
        ];
        let script = format!("target={}\n{}exit 3\n", on_host(server), asking(name, &get("/echo")));
        let ended = finish(injected.command(&inject, &script));
        assert!(!leaks(ended.stdout.as_bytes()) && !leaks(ended.stderr.as_bytes()), "{ended:#?}");
        // A program need not print the answer.
        let why = format!("cannot speak TLS with {}: ", on_host(server));
        ended.assert_code(3).assert_stderr_has(&why);
        let answers = Answers::read(&ended);
        assert_eq!(answers.status(name), 502, "{name}: {}", answers.text(name));
        assert_eq!(server.requests(), Vec::<String>::new(), "{name}");
    }
}

#[test]
fn other_names_of_the_same_server_get_no_secret() {
    let injected = Injected::new();
    // A server that has both names, at an address of this machine that is listed.
    let server = Http::over_tls(&injected.authority.certify("*.example.org"), &[]);
    let (api, port) = ("api.example.org", server.port());
    let get = |name: &str| {
        format!("GET /echo HTTP/1.1\r\nHost: {name}:{port}\r\nConnection: close\r\n\r\n")
    };
    let script = format!(
        "own=$SSL_CERT_FILE\ntarget={api}:{port}\n{}target=other.example.org:{port}; SSL_CERT_FILE=/in/authority.pem\n{}{}",
        asking("api", &get(api)),
        asking("other", &get("other.example.org")),
        asking("other with the host of the first", &get(api)),
    );
    let mut flags =
        vec!["--inject".to_owned(), format!("{api}:{port}: Authorization: Bearer env:TOKEN")];
    flags.extend(["--allow".to_owned(), format!("other.example.org:{port}")]);
    flags.extend(["--allow".to_owned(), format!("{HOST_LOOPBACK}:{port}")]);
    flags.extend([
        "--in".to_owned(),
        format!("{}:authority.pem", injected.authority.certificate().display()),
    ]);
    let command = injected.command(&flags, &script);
    let mut named = HostCommand::new("unshare");
    let hosts = format!("127.0.0.1 {api} other.example.org\n");
    injected.place.write("hosts", hosts);
    named.args(["--mount", "--propagation", "private", "sh", "-c"]);
    named.arg("mount --bind hosts /etc/hosts && exec \"$@\"").arg("sh").arg(sandboxctl());
    let from = command.get_args().position(|it| it == sandboxctl()).unwrap();
    named.args(command.get_args().skip(from + 1));
    injected.place.equip(&mut named);
    named.env("TOKEN", SECRET).env("SSL_CERT_FILE", injected.authority.certificate());
    let ended = finish(named);
    let answers = Answers::read(ended.assert_code(0));
    for name in answers.0.keys() {
        assert!(!answers.leaks(name), "{name}: {}", answers.text(name));
    }
    assert_eq!((answers.status("api"), answers.status("other")), (200, 200), "{ended:#?}");
    let sent = server.requests();
    let with: Vec<_> = sent.iter().filter(|it| it.contains(SECRET)).collect();
    assert_eq!(with.len(), 1, "{sent:#?}");
    assert!(with[0].contains(&format!("{api}:{port}")), "{sent:#?}");
}

#[test]
fn secret_is_in_no_file_of_a_failed_run_and_in_no_process_of_the_engine() {
    let injected = Injected::new();
    // It goes on until the test has looked.
    let script = asking("hello", &get("/plain"))
        + "touch /io/ready\nuntil [ -e /io/go ]; do sleep 0.05; done\nexit 3\n";
    let mut flags = injected.bearer().to_vec();
    flags.extend(["--json", "--io-dir", "out", "--audit", "audit.jsonl"].map(str::to_owned));
    let child = crate::fixture::spawn(injected.command(&flags, &script));
    let own = child.id().to_string();
    eventually("the command", || injected.place.path("out/ready").exists().then_some(()));
    for entry in std::fs::read_dir("/proc").unwrap() {
        let path = entry.unwrap().path();
        let is_other = path.file_name().is_some_and(|it| {
            it.to_str().is_some_and(|it| it != own && it.bytes().all(|byte| byte.is_ascii_digit()))
        });
        let command = std::fs::read(path.join("cmdline")).unwrap_or_default();
        let is_ours = [&b"sandbox-agent"[..], b"sandbox-helper"]
            .iter()
            .any(|name| command.windows(name.len()).any(|it| it == *name));
        if is_other && is_ours {
            for name in ["environ", "cmdline"] {
                assert!(!leaks(&std::fs::read(path.join(name)).unwrap_or_default()), "{path:?}");
            }
        }
    }
    std::fs::write(injected.place.path("out/go"), "").unwrap();
    let ended = crate::fixture::wait(child);
    assert_eq!(ended.code, 3, "{ended:#?}");
    let document: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert!(!leaks(document.to_string().as_bytes()), "{document:#}");
    let folders = [injected.place.work(), injected.place.state(), injected.place.data()];
    for file in folders.iter().flat_map(|folder| files_below(folder)) {
        let is_small = file.metadata().is_ok_and(|it| it.is_file() && it.len() < 16 << 20);
        assert!(
            !is_small || !leaks(&std::fs::read(&file).unwrap_or_default()),
            "{}",
            file.display()
        );
    }
}
