//! 100 MB that a program downloads through the tunnel: at one time, and as ten downloads at once,
//! which share. Compared with the same program on this machine, without a sandbox. The server is
//! the benchmark's, on the loopback.

use std::path::Path;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use futures_util::future::LocalBoxFuture;
use sandbox_api::hosts::HOST_LOOPBACK;
use sandbox_api::{ByteSize, Limits, RootFs, SandboxSpec};
use sandbox_controller::{Command, Controller, Sandbox};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::Scenario;
use crate::bench::{Bench, Counts, Entry, Here};
use crate::engines::On;
use crate::error::Error;
use crate::image::{BUSYBOX, Image};
use crate::report::{Row, Unit, compare};

pub const SCENARIO: Scenario = Scenario {
    id: "egress",
    title: "100 MB through the tunnel",
    counts: Counts { warm_up: 1, samples: 20 },
    measure,
    work: None,
};

const TOTAL: u64 = 100_000_000;
const AT_ONCE: u64 = 10;

fn measure(bench: &Bench, counts: Counts) -> LocalBoxFuture<'_, Result<Vec<Row>, Error>> {
    async move {
        let peer = format!("`{BUSYBOX} wget`, without a sandbox");
        if !Path::new(BUSYBOX).exists() {
            let why = format!("no {BUSYBOX}: apt install busybox-static");
            return Ok(vec![Row::missing(peer, why)]);
        }
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .map_err(Error::file("listen on", "127.0.0.1"))?;
        let address = listener.local_addr().map_err(Error::file("listen on", "127.0.0.1"))?;
        let server = tokio::spawn(serve(listener));
        let root = bench.folder("egress")?;
        let program = root.join("busybox");
        std::fs::copy(BUSYBOX, &program).map_err(Error::file("copy to", &program))?;
        let image = Image::import(bench, &root).await?;
        let url = format!("http://{address}");
        let rule = format!("{HOST_LOOPBACK}:{}", address.port());
        let by_proxy = format!("http://{rule}");
        let rows = bench
            .with_engines(async |docker, embedded| {
                let launch = async |on: On, engine: Here<'_, Controller>| {
                    let root = match (on, &image) {
                        (On::Embedded, _) => RootFs::Directory(root.clone()),
                        (On::Docker, Ok(image)) => image.root(),
                        (On::Docker, Err(why)) => return Ok(Err(why.clone())),
                    };
                    let Ok(engine) = engine else { return Ok(Err(engine.unwrap_err().to_owned())) };
                    // Enough for all rounds.
                    let limits = Limits {
                        network_bytes: ByteSize::b(1 << 40),
                        timeout: Duration::from_secs(120),
                        ..Limits::default()
                    };
                    let list = rule.parse().into_iter().collect();
                    let spec = SandboxSpec::new().root(root).limits(limits).allow(list);
                    Ok::<_, Error>(engine.launch(spec).await.map_err(|error| error.full_message()))
                };
                let docker = launch(On::Docker, docker).await?;
                let embedded = launch(On::Embedded, embedded).await?;
                let mut entries = vec![Entry::new(&*peer, || async {
                    let line = downloads(&program, &url, 1);
                    bench.time(bench.command(Path::new("/bin/sh"), ["-c", &line])).await
                })];
                for (on, sandbox) in [(On::Docker, &docker), (On::Embedded, &embedded)] {
                    for count in [1, AT_ONCE] {
                        let what = match count {
                            1 => format!("{on}: one of 100 MB"),
                            _ => format!("{on}: ten of 10 MB at once"),
                        };
                        entries.push(match sandbox {
                            Ok(sandbox) => {
                                let line = downloads(Path::new("/busybox"), &by_proxy, count);
                                Entry::new(what, move || download(sandbox, line.clone(), count))
                            }
                            Err(why) => Entry::missing(what, why.clone()),
                        });
                    }
                }
                let rows = bench.by_turns(counts, Unit::Seconds, entries).await;
                for sandbox in [docker, embedded].into_iter().flatten() {
                    sandbox.close().await?;
                }
                rows
            })
            .await;
        server.abort();
        if let Ok(image) = image {
            image.remove().await?;
        }
        let mut rows = rows?;
        for index in 1..rows.len() {
            compare(&mut rows, index, 0, None);
        }
        Ok(rows)
    }
    .boxed_local()
}

/// A line of the shell's that downloads so much by so many at once, and prints how much that was.
fn downloads(busybox: &Path, url: &str, count: u64) -> String {
    let busybox = busybox.display();
    let one = format!("{busybox} wget -q -O - {url}/{} | {busybox} wc -c", TOTAL / count);
    let all = vec![format!("{one} &"); count as usize].join(" ");
    format!("{all} wait")
}

async fn download(sandbox: &Sandbox, line: String, count: u64) -> Result<f64, Error> {
    let command = Command::new("/busybox").args(["sh", "-c", &line]);
    let started = Instant::now();
    let result = sandbox.run(command).await?;
    let took = started.elapsed();
    let expected = format!("{}\n", TOTAL / count).repeat(count as usize);
    if result.stdout().bytes == expected.as_bytes() {
        Ok(took.as_secs_f64())
    } else {
        let said = String::from_utf8_lossy(&result.stderr().bytes).into_owned();
        Err(Error::Operation(format!("a download ({said})")))
    }
}

/// A server of as many bytes as the path says.
async fn serve(listener: TcpListener) {
    while let Ok((client, _)) = listener.accept().await {
        tokio::spawn(answer(client));
    }
}

async fn answer(mut client: TcpStream) -> Option<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if client.read_buf(&mut head).await.ok()? == 0 {
            return None;
        }
    }
    let head = String::from_utf8(head).ok()?;
    let bytes: usize = head.split_whitespace().nth(1)?.strip_prefix('/')?.parse().ok()?;
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {bytes}\r\nConnection: close\r\n\r\n");
    client.write_all(head.as_bytes()).await.ok()?;
    let block = vec![0x5a; 64 << 10];
    let mut left = bytes;
    while left > 0 {
        let now = left.min(block.len());
        client.write_all(&block[..now]).await.ok()?;
        left -= now;
    }
    client.shutdown().await.ok()
}
