//! Real servers that get a secret, and real programs that do not have it.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Stdio};

use super::*;
use crate::conformance::debian::TOOLS;
use crate::rootfs::Debian;

/// A server that goes with this value.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// OpenSSL's own server, which a test talks through.
struct Openssl {
    running: Running,
    port: u16,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Openssl {
    fn start((certificate, key): &(PathBuf, PathBuf)) -> Self {
        let mut child = HostCommand::new(OPENSSL)
            .args(["s_server", "-accept", "127.0.0.1:0", "-naccept", "1", "-ign_eof"])
            .arg("-cert")
            .arg(certificate)
            .arg("-key")
            .arg(key)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let port = loop {
            let line = lines.next().expect("it starts").unwrap();
            if let Some((_, port)) = line.split_once("ACCEPT 127.0.0.1:") {
                break port.trim().parse().unwrap();
            }
        };
        Self { running: Running(child), port, lines }
    }

    /// The head of the request that it gets, to which it answers this.
    fn answer(&mut self, answer: &str) -> String {
        let mut head = String::new();
        loop {
            let line = self.lines.next().expect("a request").unwrap();
            let begins = head.is_empty() && !line.contains(" HTTP/1.1");
            if begins {
                continue;
            }
            if line.trim().is_empty() {
                break;
            }
            head += &(line + "\n");
        }
        self.running.0.stdin.as_mut().unwrap().write_all(answer.as_bytes()).unwrap();
        head
    }
}

#[test]
fn server_of_openssl_gets_the_secret() {
    let injected = Injected::new();
    let mut server = Openssl::start(&injected.authority.certify(HOST_LOOPBACK));
    let target = format!("{HOST_LOOPBACK}:{}", server.port);
    let inject = ["--inject".to_owned(), format!("{target}: X-Api-Key: env:TOKEN")];
    let script = format!("target={target}\n{}", asking("openssl", &get("/things")));
    let mut command = injected.command(&inject, &script);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let body = format!("the key is {SECRET}.");
    let answer = format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let head = server.answer(&answer);
    assert!(head.starts_with("GET /things HTTP/1.1"), "{head}");
    assert!(
        head.to_lowercase().contains(&format!("x-api-key: {}", SECRET.to_lowercase())),
        "{head}"
    );
    let ended = crate::fixture::wait(child);
    let answers = Answers::read(ended.assert_code(0));
    let replaced = format!("the key is {}.", "*".repeat(SECRET.len()));
    assert!(answers.text("openssl").ends_with(&replaced), "{}", answers.text("openssl"));
}

#[test]
fn server_of_go_gets_the_secret_and_its_compressed_answer_is_refused() {
    let injected = Injected::new();
    // Of Debian's packages, unpacked.
    let debian = Debian::new(&["caddy"]);
    let (certificate, key) = injected.authority.certify(HOST_LOOPBACK);
    let free = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let config = format!(
        "{{\n admin off\n auto_https off\n}}\nhttps://{HOST_LOOPBACK}:{port} {{\n bind 127.0.0.1\n tls {} {}\n \
         handle /gzip {{\n  header Content-Type text/plain\n  \
         header Content-Encoding gzip\n  respond \"{{header.Authorization}}\"\n }}\n \
         handle {{\n  respond \"you sent {{header.Authorization}} by {{method}} over {{http.request.proto}}\"\n }}\n}}\n",
        certificate.display(),
        key.display(),
    );
    let file = injected.place.write("given/Caddyfile", config);
    let mut caddy = HostCommand::new(debian.path().join("usr/bin/caddy"));
    caddy.args(["run", "--adapter", "caddyfile", "--config"]).arg(file);
    caddy.env("HOME", injected.authority.folder()).stdout(Stdio::null()).stderr(Stdio::null());
    let _running = Running(caddy.spawn().unwrap());
    eventually("the server listens", || std::net::TcpStream::connect(("127.0.0.1", port)).ok());
    let target = format!("{HOST_LOOPBACK}:{port}");
    let inject = ["--inject".to_owned(), format!("{target}: Authorization: Bearer env:TOKEN")];
    let script = format!(
        "target={target}\n{}{}",
        asking("go", &get("/")),
        asking("gzip", &request("GET", "/gzip", &["Accept-Encoding: gzip"]))
    );
    let answers = Answers::read(&injected.shell(&inject, &script));
    let said = answers.text("go");
    let replaced = format!("Bearer {} by GET over HTTP/1.1", "*".repeat(SECRET.len()));
    assert!(said.contains(&replaced), "{said}");
    assert!(!answers.leaks("go") && !answers.leaks("gzip"));
    assert_eq!(answers.status("gzip"), 502, "{}", answers.text("gzip"));
}

#[test]
fn git_pip_npm_curl_and_clients_of_languages_work_with_a_secret_that_they_do_not_have() {
    let files = tempfile::Builder::new().prefix("sandboxctl-registry-").tempdir().unwrap();
    let build = r#"
        cd "$0"
        git init -q --bare repository.git
        git -C repository.git config http.receivepack true
        git -C repository.git config receive.denyCurrentBranch ignore
        git init -q -b main work && cd work
        git config user.name tester && git config user.email tester@example.org
        echo text >file && git add file && git commit -q -m first
        git push -q ../repository.git main:main && git -C ../repository.git symbolic-ref HEAD refs/heads/main
        cd .. && mkdir -p files/simple/seven files/npm package
        python3 - <<'END'
import base64, hashlib, io, json, tarfile, zipfile
with zipfile.ZipFile("files/simple/seven/seven-1.0-py3-none-any.whl", "w") as wheel:
    about = "seven-1.0.dist-info"
    wheel.writestr("seven.py", "value = 7\n")
    wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: seven\nVersion: 1.0\n")
    wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr(f"{about}/RECORD", "")
page = '<!DOCTYPE html><a href="seven-1.0-py3-none-any.whl">seven-1.0-py3-none-any.whl</a>'
open("files/simple/seven/index.html", "w").write(page)
with tarfile.open("files/npm/six-1.0.0.tgz", "w:gz") as archive:
    for name, content in {"package.json": '{"name": "six", "version": "1.0.0"}', "index.js": "module.exports = 6"}.items():
        member = tarfile.TarInfo(f"package/{name}")
        member.size, member.mode = len(content), 0o644
        archive.addfile(member, io.BytesIO(content.encode()))
digest = hashlib.sha512(open("files/npm/six-1.0.0.tgz", "rb").read()).digest()
integrity = "sha512-" + base64.b64encode(digest).decode()
open("files/npm/integrity", "w").write(integrity)
END
        mkdir files/npm/six"#;
    let mut shell = HostCommand::new("sh");
    shell.args(["-ec", build]).arg(files.path()).env("HOME", files.path());
    finish(shell).assert_code(0);
    let (served, git) = (files.path().join("files"), files.path().display().to_string());
    let provided = Debian::with_npm(TOOLS).provide();
    let injected = Injected::of(provided, &["--files", served.to_str().unwrap(), "--git", &git]);
    let target = injected.target();
    let packument = json!({
        "name": "six",
        "dist-tags": { "latest": "1.0.0" },
        "versions": { "1.0.0": {
            "name": "six",
            "version": "1.0.0",
            "dist": {
                "tarball": format!("https://{target}/files/npm/six-1.0.0.tgz"),
                "integrity": std::fs::read_to_string(served.join("npm/integrity")).unwrap(),
            },
        } },
    });
    // A registry answers with it at the package's name.
    std::fs::write(served.join("npm/six/index.html"), packument.to_string()).unwrap();
    let script = format!(
        "set -e
        url=https://{target}
        export HOME=/tmp/home; mkdir -p $HOME; cd $HOME
        git clone -q $url/git/repository.git
        cd repository
        git config user.name inside; git config user.email inside@example.org
        head -c 3000000 /dev/urandom >large; git add large; git commit -q -m second
        git push -q origin HEAD
        git log --format=%s
        cd ..
        python3 -m pip install --quiet --disable-pip-version-check --no-cache-dir --index-url $url/files/simple/ --target lib seven
        PYTHONPATH=lib python3 -c 'import seven; print(seven.value)'
        node /usr/lib/npm/package/bin/npm-cli.js install --silent --no-audit --no-fund --registry $url/files/npm/ six
        node -p \"require('six')\"
        curl -sS $url/echo | grep -i '^authorization' | grep -cF '***'
        wget -qO- $url/plain
        /usr/lib/apt/apt-helper -qq download-file $url/plain plain
        cat plain
        python3 -c \"import urllib.request as u; print(u.urlopen('$url/plain').status)\"
        python3 -c \"import urllib.request as u; print('***' in u.urlopen('$url/echo').read().decode())\""
    );
    let inject = ["--inject".to_owned(), format!("{target}: basic me:env:TOKEN")];
    let mut flags = inject.to_vec();
    flags.extend(["--memory", "1GiB", "--tmpfs-size", "256MiB"].map(str::to_owned));
    let ended = injected.shell(&flags, &script);
    let lines: Vec<_> = ended.stdout.lines().collect();
    assert_eq!(
        lines,
        ["second", "first", "7", "6", "1", "hello", "hello", "200", "True"],
        "{ended:#?}"
    );
    let expected = format!("Basic {}\r\n", STANDARD.encode(format!("me:{SECRET}")));
    for head in injected.server.requests() {
        assert!(head.contains(&expected), "{head}");
    }
}

#[test]
fn redirect_that_a_program_follows_takes_no_secret_along() {
    let injected = Injected::of(Debian::with_npm(TOOLS).provide(), &[]);
    // The same name at other ports, with TLS and without.
    let plain = Http::plain(injected.authority.folder());
    let other = Http::over_tls(&injected.authority.certify(HOST_LOOPBACK), &[]);
    let mut flags = injected.bearer().to_vec();
    for server in [&plain, &other] {
        flags.extend(["--allow".to_owned(), on_host(server)]);
    }
    // What a program says itself it may say anywhere.
    let script = format!(
        "follow() {{ curl -sSkL --http1.1 --location-trusted -H \"Authorization: Bearer $TOKEN\" \"https://$target$1\"; }}
        follow '/redirect/with?to=https://{other}/echo'
        follow '/redirect?to=http://{plain}/echo'",
        plain = on_host(&plain),
        other = on_host(&other),
    );
    let ended = injected.shell(&flags, &script);
    assert_eq!(ended.stdout.matches("you sent").count(), 2, "{ended:#?}");
    let sent = injected.server.requests();
    assert!(sent.len() == 2 && sent.iter().all(|it| it.contains(SECRET)), "{sent:#?}");
    for server in [&plain, &other] {
        let sent = server.requests();
        assert!(sent.len() == 1 && !leaks(sent[0].as_bytes()), "{sent:#?}");
        assert!(sent[0].contains("Bearer sandboxctl-injected-TOKEN\r\n"), "{sent:#?}");
    }
}
