//! P2: `sandboxctl run` on the embedded engine, compared with `docker run`, and with `runc run` of
//! a bundle with the same root, settings and limits.
//!
//! All are whole processes. The peers' agents compile the empty script that their stdin is; ours
//! runs one in a session. The bundle has no seccomp profile, which would cost runc more.
//! `bwrap` makes the namespaces, and mounts a proc, a dev and a tmp: no cgroup, no limits.

use std::path::{Path, PathBuf};

use futures_util::FutureExt as _;
use futures_util::future::LocalBoxFuture;
use sandbox_controller::{MASKED_PATHS, READONLY_PATHS};
use serde_json::{Value, json};

use super::Scenario;
use super::cold_run::{docker_run, script};
use crate::bench::{Bench, Counts, Entry};
use crate::bwrap::{self, AGENT, BWRAP};
use crate::error::Error;
use crate::peers::CHECK;
use crate::report::{Row, Target, Unit, compare};

pub const SCENARIO: Scenario = Scenario {
    id: "p2",
    title: "A cold run on the embedded engine, whole process",
    counts: Counts { warm_up: 3, samples: 40 },
    measure,
    work: None,
};

fn measure(bench: &Bench, counts: Counts) -> LocalBoxFuture<'_, Result<Vec<Row>, Error>> {
    async move {
        let script = script(bench, "p2")?;
        let bundle = bundle(bench)?;
        let root = bundle.join("rootfs");
        let runc = match bench.peers.runc.path() {
            Err(why) => Entry::missing("`runc run`", why),
            Ok(runc) => {
                let (bundle, name) = (&bundle, bench.name());
                Entry::new("`runc run`", move || {
                    let mut command = bench.command(runc, ["--root"]);
                    command.arg(bundle.join("state")).args(["run", "--bundle"]).arg(bundle);
                    command.arg(name);
                    bench.time(command)
                })
            }
        };
        let bwrap = match bench.peers.bwrap.path() {
            Err(why) => Entry::missing(BWRAP, why),
            Ok(bwrap) => {
                Entry::new(BWRAP, move || bench.time(bwrap::command(bench, bwrap, &root, AGENT)))
            }
        };
        let ours = "`sandboxctl run --engine embedded`";
        let ours = match &bench.embedded {
            Err(why) => Entry::missing(ours, why),
            Ok(_) => Entry::new(ours, || {
                let mut command = bench.sandboxctl(["run", "--engine", "embedded"]);
                command.arg(&script);
                bench.time(command)
            }),
        };
        let entries = vec![docker_run(bench), ours, runc, bwrap];
        let mut rows = bench.by_turns(counts, Unit::Seconds, entries).await?;
        // The peers of the other targets are in one row each.
        let [against_runc, against_bwrap] =
            ["`runc run`", BWRAP].map(|peer| rows[1].again(format!("the same, vs {peer}")));
        rows.insert(3, against_runc);
        rows.push(against_bwrap);
        compare(&mut rows, 1, 0, Some(Target::ratio_at_most(0.05)));
        compare(&mut rows, 3, 2, Some(Target::ratio_at_most(0.8)));
        compare(&mut rows, 5, 4, Some(Target::ratio_at_most(2.0)));
        compare(&mut rows, 2, 0, None);
        compare(&mut rows, 4, 0, None);
        Ok(rows)
    }
    .boxed_local()
}

/// A bundle for runc: the agent alone in a root, and the settings of a sandbox.
fn bundle(bench: &Bench) -> Result<PathBuf, Error> {
    let bundle = bench.folder("bundle")?;
    let write =
        |path: &Path, bytes: &[u8]| std::fs::write(path, bytes).map_err(Error::file("write", path));
    let make = |path: &str| {
        let path = bundle.join(path);
        std::fs::create_dir_all(&path).map_err(Error::file("make", &path)).map(|()| path)
    };
    for folder in ["rootfs/io", "io", "state"] {
        make(folder)?;
    }
    bwrap::root_of_agent(&bundle.join("rootfs"))?;
    let config = config(&bundle.join("io"), bench.name());
    write(&bundle.join("config.json"), config.to_string().as_bytes())?;
    Ok(bundle)
}

/// As the embedded engine has it, by default limits.
fn config(io: &Path, name: &str) -> Value {
    let none: [&str; 0] = [];
    let namespaces = ["pid", "mount", "network", "ipc", "uts", "cgroup"];
    let namespaces = namespaces.map(|kind| json!({"type": kind}));
    let limit = |kind: &str, value: u64| json!({"type": kind, "hard": value, "soft": value});
    json!({
        "ociVersion": "1.0.2",
        "hostname": "sandbox",
        "root": {"path": "rootfs", "readonly": true},
        "process": {
            "terminal": false,
            "user": {"uid": 0, "gid": 0, "umask": 0o022, "additionalGids": [0]},
            "args": ["/.sandbox/agent", CHECK],
            "env": ["HOME=/"],
            "cwd": "/",
            "capabilities": {
                "bounding": none, "effective": none, "inheritable": none, "permitted": none,
                "ambient": none,
            },
            "rlimits": [
                limit("RLIMIT_CORE", 0),
                limit("RLIMIT_NOFILE", 128),
                limit("RLIMIT_FSIZE", 64 << 30),
                limit("RLIMIT_MEMLOCK", 0),
                limit("RLIMIT_MSGQUEUE", 0),
                limit("RLIMIT_CPU", 35),
            ],
            "noNewPrivileges": true,
        },
        "mounts": [
            {
                "destination": "/proc", "type": "proc", "source": "proc",
                "options": ["nosuid", "nodev", "noexec"],
            },
            {
                "destination": "/dev", "type": "tmpfs", "source": "tmpfs",
                "options": ["nosuid", "noexec", "mode=755", "size=64k"],
            },
            {
                "destination": "/io", "type": "bind", "source": io,
                "options": ["bind", "rprivate", "nosuid", "nodev"],
            },
        ],
        "linux": {
            "namespaces": namespaces,
            "cgroupsPath": format!("/{name}"),
            "resources": {
                "devices": [{"allow": false, "access": "rwm"}],
                "memory": {"limit": 256 << 20, "swap": 256 << 20},
                "cpu": {"period": 100_000, "quota": 100_000},
                "pids": {"limit": 64},
            },
            "maskedPaths": MASKED_PATHS,
            "readonlyPaths": READONLY_PATHS,
        },
    })
}
