//! Translates a [`ContainerSpec`] into an OCI configuration: a pure function, so that every setting
//! of the hardening table can be tested separately.
//!
//! The bind mounts are not part of it: the helper makes them before, from descriptors.

use serde_json::{Map, Value, json};

use crate::ContainerSpec;
use crate::hardening::{HOSTNAME, MASKED_PATHS, READONLY_PATHS, SYSCTLS};
use crate::image::variables_of_image;

/// The root of the container in the helper's mount namespace.
const ROOT: &str = "/rootfs";
/// The period of the CPU quota in microseconds: Docker's.
const CPU_PERIOD: u64 = 100_000;
const UMASK: u32 = 0o022;
/// The name of the agent. It has no path: the helper executes it from memory.
const AGENT_NAME: &str = "sandbox-agent";
/// The same as Docker's.
const DEFAULT_ENV: &[&str] = &[
    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOSTNAME=sandbox",
    "HOME=/",
];

/// Whether the kernel accounts swap, so that it can be limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Swap {
    Counted,
    NotCounted,
}

/// The OCI configuration. `max_descriptors` is the engine's own limit, which a process without
/// `CAP_SYS_RESOURCE` cannot raise.
pub(super) fn config(spec: &ContainerSpec, swap: Swap, max_descriptors: i64) -> Value {
    let (uid, gid) = (spec.user.uid(), spec.user.gid());
    let args: Vec<String> = [AGENT_NAME.to_owned()].into_iter().chain(spec.agent_args()).collect();
    let rlimits = spec.ulimits.iter().map(|&(name, value)| {
        let value = if name == "nofile" { value.min(max_descriptors) } else { value };
        let name = format!("RLIMIT_{}", name.to_uppercase());
        json!({"type": name, "hard": value, "soft": value})
    });
    let mut memory = json!({"limit": spec.memory});
    if swap == Swap::Counted {
        // Memory and swap together, so no swap.
        memory["swap"] = spec.memory.into();
    }
    let namespaces = ["pid", "mount", "network", "ipc", "uts", "cgroup"];
    // Without it, libcontainer looks the user up in the host's files.
    let mut env = vec!["HOME=/".to_owned()];
    let mut mounts = vec![
        json!({
            "destination": "/proc", "type": "proc", "source": "proc",
            "options": ["nosuid", "nodev", "noexec"],
        }),
        json!({
            "destination": "/dev", "type": "tmpfs", "source": "tmpfs",
            "options": ["nosuid", "noexec", "mode=755", "size=64k", "nr_inodes=32"],
        }),
    ];
    // The default devices are allowed after it.
    let mut devices = vec![json!({"allow": false, "access": "rwm"})];
    let mut sysctls = Map::new();
    if let Some(programs) = &spec.programs {
        let shm = format!("size={}", programs.shm_bytes);
        env.extend(variables_of_image(&with_defaults(&programs.env)));
        mounts.extend([
            json!({
                "destination": "/dev/pts", "type": "devpts", "source": "devpts",
                "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "max=64"],
            }),
            json!({
                "destination": "/dev/shm", "type": "tmpfs", "source": "shm",
                "options": ["nosuid", "nodev", "noexec", "mode=1777", shm],
            }),
        ]);
        sysctls.extend(SYSCTLS.map(|(name, value)| (name.to_owned(), value.into())));
        // Its own terminals.
        devices.extend([
            json!({"allow": true, "type": "c", "major": 5, "minor": 2, "access": "rw"}),
            json!({"allow": true, "type": "c", "major": 136, "access": "rw"}),
        ]);
    }
    mounts.extend(spec.hidden.iter().map(|path| {
        json!({
            "destination": path, "type": "tmpfs", "source": "tmpfs",
            "options": ["ro", "nosuid", "nodev", "noexec", "mode=0555", "size=4k"],
        })
    }));
    json!({
        "ociVersion": "1.0.2",
        "hostname": HOSTNAME,
        "root": {"path": ROOT, "readonly": true},
        "process": {
            "terminal": false,
            // Its own group as the only supplementary one: without any, the helper's would remain.
            "user": {"uid": uid, "gid": gid, "umask": UMASK, "additionalGids": [gid]},
            "args": args,
            "env": env,
            "cwd": "/",
            "capabilities": {
                "bounding": [], "effective": [], "inheritable": [], "permitted": [],
                "ambient": [],
            },
            "rlimits": rlimits.collect::<Vec<_>>(),
            "noNewPrivileges": true,
        },
        "mounts": mounts,
        "linux": {
            "namespaces": namespaces.map(|kind| json!({"type": kind})),
            "cgroupsPath": format!("/{}", spec.name),
            "resources": {
                "devices": devices,
                "memory": memory,
                "cpu": {"period": CPU_PERIOD, "quota": quota(spec.nano_cpus)},
                "pids": {"limit": spec.pids},
            },
            "readonlyPaths": READONLY_PATHS,
            // Not an empty list, for which libcontainer would mount a `/proc`.
            "sysctl": (!sysctls.is_empty()).then_some(sysctls),
        },
    })
}

/// The paths that the helper masks: those of `/proc`. No `/sys` is mounted: such a path belongs to
/// the image, and may be a link.
pub(super) fn masked_paths() -> Vec<String> {
    let paths = MASKED_PATHS.iter().filter(|path| path.starts_with("/proc/"));
    paths.map(|&path| path.to_owned()).collect()
}

/// The variables of an image, and those that every program expects.
fn with_defaults(env: &[String]) -> Vec<String> {
    let missing = DEFAULT_ENV.iter().filter(|variable| {
        let name = variable.split('=').next();
        !env.iter().any(|given| given.split('=').next() == name)
    });
    env.iter().cloned().chain(missing.map(|&variable| variable.to_owned())).collect()
}

/// The CPU quota in microseconds per period. The kernel requires at least 1 ms.
fn quota(nano_cpus: i64) -> i64 {
    let period = i64::try_from(CPU_PERIOD).unwrap_or(i64::MAX);
    (nano_cpus.saturating_mul(period) / 1_000_000_000).max(1_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::spec;
    use crate::{ProgramRoot, Programs};

    #[test]
    fn every_setting_of_the_hardening_table_is_in_it() {
        let config = config(&spec(), Swap::Counted, i64::MAX);
        for (pointer, value) in [
            ("/root", json!({"path": "/rootfs", "readonly": true})),
            (
                "/process/args",
                json!(["sandbox-agent", "script", "--user", "1000:100", "--write", "/io"]),
            ),
            ("/process/terminal", json!(false)),
            ("/process/noNewPrivileges", json!(true)),
            ("/process/user/uid", json!(1000)),
            ("/process/user/gid", json!(100)),
            ("/process/user/additionalGids", json!([100])),
            ("/process/user/umask", json!(0o022)),
            ("/linux/cgroupsPath", json!("/sandboxctl-1")),
            ("/linux/resources/memory", json!({"limit": 256 << 20, "swap": 256 << 20})),
            ("/linux/resources/cpu", json!({"period": 100_000, "quota": 150_000})),
            ("/linux/resources/pids", json!({"limit": 64})),
            ("/linux/readonlyPaths", json!(READONLY_PATHS)),
        ] {
            assert_eq!(config.pointer(pointer), Some(&value), "{pointer}");
        }
        for set in ["bounding", "effective", "inheritable", "permitted", "ambient"] {
            assert_eq!(config["process"]["capabilities"][set], json!([]), "{set}");
        }
        assert_eq!(
            config["process"]["rlimits"],
            json!([
                {"type": "RLIMIT_CORE", "hard": 0, "soft": 0},
                {"type": "RLIMIT_NOFILE", "hard": 128, "soft": 128},
            ])
        );
        let namespaces = config["linux"]["namespaces"].as_array().unwrap();
        let namespaces: Vec<_> = namespaces.iter().map(|it| it["type"].as_str().unwrap()).collect();
        assert_eq!(namespaces, ["pid", "mount", "network", "ipc", "uts", "cgroup"]);
        // The host's /sys is not mounted, and its cgroups are not.
        let mounts = config["mounts"].as_array().unwrap();
        let mounts: Vec<_> = mounts.iter().map(|it| it["destination"].as_str().unwrap()).collect();
        assert_eq!(mounts, ["/proc", "/dev"]);
    }

    #[test]
    fn descriptors_are_within_the_limit_of_the_engine() {
        let config = config(&spec(), Swap::Counted, 100);
        let nofile = json!({"type": "RLIMIT_NOFILE", "hard": 100, "soft": 100});
        assert_eq!(config["process"]["rlimits"][1], nofile);
    }

    #[test]
    fn swap_is_limited_where_it_is_counted() {
        let config = config(&spec(), Swap::NotCounted, i64::MAX);
        assert_eq!(config["linux"]["resources"]["memory"], json!({"limit": 256 << 20}));
    }

    #[test]
    fn a_little_processor_time_is_what_the_kernel_takes_at_least() {
        assert_eq!(quota(1_000_000_000), 100_000);
        assert_eq!(quota(1), 1_000);
    }

    #[test]
    fn hidden_directory_is_covered_by_an_empty_one() {
        let spec = ContainerSpec { hidden: vec!["/in/a/state".into()], ..spec() };
        let config = config(&spec, Swap::Counted, i64::MAX);
        let last = config["mounts"].as_array().unwrap().last().unwrap();
        assert_eq!((&last["destination"], &last["type"]), (&json!("/in/a/state"), &json!("tmpfs")));
        assert_eq!(last["options"][0], "ro");
    }

    fn with_programs(env: &[&str]) -> Value {
        let programs = Programs {
            root: ProgramRoot::Directory("/rootfs".into()),
            env: env.iter().map(|&variable| variable.to_owned()).collect(),
            tmpfs_bytes: 1,
            tmpfs_inodes: 1,
            shm_bytes: 2,
        };
        config(&ContainerSpec { programs: Some(programs), ..spec() }, Swap::Counted, i64::MAX)
    }

    #[test]
    fn programs_have_the_images_environment_and_what_every_program_expects() {
        let env = |env: &[&str]| with_programs(env)["process"]["env"].clone();
        assert_eq!(
            env(&["PATH=/opt/bin", "HOME=/root", "A=1=2"]),
            json!([
                "HOME=/",
                "image:PATH=/opt/bin",
                "image:HOME=/root",
                "image:A=1=2",
                "image:HOSTNAME=sandbox"
            ])
        );
        let path = "image:PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
        assert_eq!(env(&[]), json!(["HOME=/", path, "image:HOSTNAME=sandbox", "image:HOME=/"]));
        assert_eq!(config(&spec(), Swap::Counted, i64::MAX)["process"]["env"], json!(["HOME=/"]));
    }

    #[test]
    fn programs_have_terminals_and_bounded_shared_memory_and_the_rest_is_as_for_scripts() {
        let mut of_programs = with_programs(&[]);
        let mounts = of_programs["mounts"].as_array_mut().unwrap().split_off(2);
        assert_eq!(mounts[0]["destination"], "/dev/pts");
        assert_eq!(
            mounts[1]["options"],
            json!(["nosuid", "nodev", "noexec", "mode=1777", "size=2"])
        );
        let devices = &mut of_programs["linux"]["resources"]["devices"];
        let allowed = devices.as_array_mut().unwrap().split_off(1);
        let numbers: Vec<_> = allowed.iter().map(|it| (&it["major"], &it["minor"])).collect();
        assert_eq!(numbers, [(&json!(5), &json!(2)), (&json!(136), &Value::Null)]);
        let sysctls = of_programs["linux"]["sysctl"].take();
        assert_eq!(
            sysctls,
            json!({
                "net.ipv4.ip_unprivileged_port_start": "0",
                "net.ipv4.ping_group_range": "0 2147483647",
            })
        );
        of_programs["process"]["env"] = json!(["HOME=/"]);
        assert_eq!(of_programs, config(&spec(), Swap::Counted, i64::MAX));
    }
}
