//! The cost of a program's connection: 1,000 to itself on the loopback, and 1,000 through the
//! proxy, in a sandbox where the agent makes each of them. Compared with the same program on this
//! machine, without a sandbox.

use std::num::NonZeroU32;
use std::path::Path;

use futures_util::FutureExt as _;
use futures_util::future::LocalBoxFuture;
use sandbox_api::hosts::HOST_LOOPBACK;
use sandbox_api::{Limits, RootFs, SandboxSpec};
use sandbox_controller::{Command, Controller, Sandbox};
use tokio::net::TcpListener;

use super::Scenario;
use crate::bench::{Bench, Counts, Entry, Here};
use crate::engines::On;
use crate::error::Error;
use crate::image::Image;
use crate::report::{Row, Unit, compare};

pub const SCENARIO: Scenario = Scenario {
    id: "connect",
    title: "A connection of a program, of 1,000 one after another",
    counts: Counts { warm_up: 2, samples: 20 },
    measure,
    work: None,
};

const COUNT: u32 = 1000;
const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/programs/connects.rs");

fn measure(bench: &Bench, counts: Counts) -> LocalBoxFuture<'_, Result<Vec<Row>, Error>> {
    async move {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .map_err(Error::file("listen on", "127.0.0.1"))?;
        let address = listener.local_addr().map_err(Error::file("listen on", "127.0.0.1"))?;
        let server = tokio::spawn(async move { while listener.accept().await.is_ok() {} });
        let root = bench.folder("connect")?;
        let program = root.join("connects");
        compile(bench, &program).await?;
        let image = Image::import(bench, &root).await?;
        let target = format!("{HOST_LOOPBACK}:{}", address.port());
        let rows = bench
            .with_engines(async |docker, embedded| {
                let launch = async |root: Option<RootFs>, engine: Here<'_, Controller>| {
                    let (Ok(engine), Some(root)) = (engine, root) else { return Ok(None) };
                    // As many as it takes, for all rounds.
                    let connections = NonZeroU32::new(1_000_000).expect("more than 0");
                    let limits = Limits { connections, ..Limits::default() };
                    let list = target.parse().into_iter().collect();
                    let spec = SandboxSpec::new().root(root).limits(limits).allow(list);
                    Ok::<_, Error>(Some(engine.launch(spec).await?))
                };
                let docker = launch(image.as_ref().ok().map(Image::root), docker).await?;
                let embedded = launch(Some(RootFs::Directory(root.clone())), embedded).await?;
                let count = COUNT.to_string();
                let mut entries = vec![Entry::new("without a sandbox", || async {
                    let command = bench.command(&program, [&count]);
                    let output =
                        { command }.output().await.map_err(Error::file("run", &program))?;
                    each(&output.stdout)
                })];
                for (on, sandbox) in [(On::Docker, &docker), (On::Embedded, &embedded)] {
                    for (how, target) in [("direct", None), ("through the proxy", Some(&*target))] {
                        let what = format!("{on}: {how}");
                        entries.push(match sandbox {
                            Some(sandbox) => Entry::new(what, move || connect(sandbox, target)),
                            None => Entry::missing(what, "no such engine here".to_owned()),
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

/// Compiles the program, without libraries.
async fn compile(bench: &Bench, program: &Path) -> Result<(), Error> {
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut rustc = bench.command(Path::new("rustc"), ["--edition", "2024", "--target", &target]);
    rustc
        .args(["-C", "opt-level=2", "-C", "target-feature=+crt-static", SOURCE, "-o"])
        .arg(program);
    bench.time(rustc).await.map(drop)
}

async fn connect(sandbox: &Sandbox, target: Option<&str>) -> Result<f64, Error> {
    let count = COUNT.to_string();
    let args = [Some(&*count), target];
    let command = Command::new("/connects").args(args.into_iter().flatten());
    let result = sandbox.run(command).await?;
    each(&result.stdout().bytes).map_err(|_| {
        let stderr = String::from_utf8_lossy(&result.stderr().bytes).into_owned();
        Error::Operation(format!("a connection ({stderr})"))
    })
}

/// The seconds that one connection took, by what the program printed.
fn each(stdout: &[u8]) -> Result<f64, Error> {
    let text = String::from_utf8_lossy(stdout);
    let nanos: f64 =
        text.trim().parse().map_err(|_| Error::Operation(format!("connections ({text})")))?;
    Ok(nanos / f64::from(COUNT) / 1e9)
}
