//! Translates a [`ContainerSpec`] into a launch: a pure function, so that every setting of the hardening
//! table can be tested separately.
//!
//! Descriptors, and the files that replace an image's, are not part of it.

use sandbox_helper::spec::{Launch, Limits, Mount, Process, Programs, Rlimit};

use super::seccomp;
use crate::hardening::{HOSTNAME, MASKED_PATHS, READONLY_PATHS, SYSCTLS};
use crate::image::variables_of_image;
use crate::{ContainerSpec, Ulimit};

/// The period of the CPU quota in microseconds: Docker's.
const CPU_PERIOD: u64 = 100_000;
/// The name of the agent. It has no path: the helper executes it by a descriptor.
const AGENT_NAME: &str = "sandbox-agent";
/// The same as Docker's.
const DEFAULT_ENV: &[&str] = &[
    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOSTNAME=sandbox",
    "HOME=/",
];

/// The caller's may be higher. On Docker a container has those of the daemon, which are 0.
const NO_PRIORITY: [Ulimit; 2] = [Ulimit::new("nice", 0), Ulimit::new("rtprio", 0)];

/// Whether the kernel accounts swap, so that it can be limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Swap {
    Counted,
    NotCounted,
}

/// The launch of a container. `files` are those to be created in its root, and `max_descriptors` is the
/// engine's own limit, which a process without `CAP_SYS_RESOURCE` cannot raise.
pub(super) fn launch(
    spec: &ContainerSpec,
    files: Vec<(String, String)>,
    swap: Swap,
    max_descriptors: u64,
) -> Launch {
    let text = |text: &&str| (*text).to_owned();
    let rlimits = spec.ulimits.iter().chain(&NO_PRIORITY).map(|&Ulimit { name, soft, hard }| {
        let most = if name == "nofile" { max_descriptors } else { u64::MAX };
        let [soft, hard] =
            [soft, hard].map(|value| u64::try_from(value).unwrap_or_default().min(most));
        Rlimit { name: name.to_owned(), soft, hard }
    });
    let mut env = vec!["HOME=/".to_owned()];
    if let Some(programs) = &spec.programs {
        env.extend(variables_of_image(&with_defaults(&programs.env)));
    }
    Launch {
        name: spec.name.clone(),
        hostname: HOSTNAME.to_owned(),
        programs: spec.programs.as_ref().map(|programs| Programs {
            files,
            tmp_bytes: programs.tmpfs_bytes,
            tmp_inodes: programs.tmpfs_inodes,
            shm_bytes: programs.shm_bytes,
            sysctls: SYSCTLS.map(|(name, value)| (name.replace('.', "/"), value.to_owned())).into(),
        }),
        mounts: spec
            .mounts
            .iter()
            .map(|bind| Mount { target: bind.target.clone(), read_only: bind.read_only })
            .collect(),
        hidden: spec.hidden.clone(),
        // No `/sys` is mounted: such a path belongs to the image, and may be a link.
        masked: MASKED_PATHS.iter().filter(|path| path.starts_with("/proc/")).map(text).collect(),
        read_only: READONLY_PATHS.iter().map(text).collect(),
        limits: Limits {
            memory: spec.memory,
            counts_swap: swap == Swap::Counted,
            cpu_quota: quota(spec.nano_cpus),
            cpu_period: CPU_PERIOD,
            pids: spec.pids,
        },
        has_groups: true,
        process: Process {
            args: [AGENT_NAME.to_owned()].into_iter().chain(spec.agent_args()).collect(),
            env,
            uid: spec.user.uid(),
            gid: spec.user.gid(),
            rlimits: rlimits.collect(),
            filters: match spec.programs {
                None => seccomp::of_scripts(),
                Some(_) => seccomp::of_programs(),
            },
        },
    }
}

/// What differs without root: a user namespace has one group, and where no control groups are delegated,
/// processes and processors are limited by other means.
pub(super) fn without_root(launch: &mut Launch, has_no_groups: bool) {
    let gid = launch.process.gid;
    let sysctls = launch.programs.iter_mut().flat_map(|programs| &mut programs.sysctls);
    for (_, value) in sysctls.filter(|(name, _)| name.ends_with("/ping_group_range")) {
        *value = format!("{gid} {gid}");
    }
    launch.has_groups = !has_no_groups;
    if has_no_groups {
        // The helper is in the same user namespace.
        let processes = u64::from(launch.limits.pids) + 1;
        let rlimits = &mut launch.process.rlimits;
        rlimits.push(Rlimit { name: "nproc".to_owned(), soft: processes, hard: processes });
        // Nothing counts the kernel's memory for open files.
        rlimits.iter_mut().for_each(|limit| limit.hard = limit.soft);
        launch.process.filters.push(seccomp::of_bound_processors());
    }
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
    use crate::{ProgramRoot, Programs as ProgramsSpec};

    fn rlimit(name: &str, soft: u64, hard: u64) -> Rlimit {
        Rlimit { name: name.to_owned(), soft, hard }
    }

    fn of(spec: &ContainerSpec) -> Launch {
        launch(spec, Vec::new(), Swap::Counted, u64::MAX)
    }

    #[test]
    fn every_setting_of_the_hardening_table_is_in_it() {
        let Launch {
            name,
            hostname,
            programs,
            mounts,
            hidden,
            masked,
            read_only,
            limits,
            has_groups,
            process,
        } = of(&spec());
        assert!(has_groups);
        assert_eq!(
            (&*name, &*hostname, programs, hidden),
            ("sandboxctl-1", "sandbox", None, vec![])
        );
        let mount = |target: &str, read_only| Mount { target: target.to_owned(), read_only };
        assert_eq!(mounts, [mount("/io", false), mount("/in/a", true)]);
        assert!(masked.contains(&"/proc/kcore".to_owned()));
        assert!(masked.iter().all(|path| path.starts_with("/proc/")), "{masked:?}");
        assert_eq!(read_only, READONLY_PATHS);
        let expected = Limits {
            memory: 256 << 20,
            counts_swap: true,
            cpu_quota: 150_000,
            cpu_period: 100_000,
            pids: 64,
        };
        assert_eq!(limits, expected);
        let Process { args, env, uid, gid, rlimits, filters } = process;
        assert_eq!(args, ["sandbox-agent", "script", "--user", "1000:100", "--write", "/io"]);
        assert_eq!(env, ["HOME=/"]);
        assert_eq!((uid, gid), (1000, 100));
        let expected = [("core", 0, 0), ("nofile", 128, 1024), ("nice", 0, 0), ("rtprio", 0, 0)];
        assert_eq!(rlimits, expected.map(|(name, soft, hard)| rlimit(name, soft, hard)));
        assert_eq!(filters, seccomp::of_scripts());
    }

    #[test]
    fn descriptors_are_within_the_limit_of_the_engine() {
        for (most, soft) in [(100, 100), (200, 128)] {
            let launch = launch(&spec(), Vec::new(), Swap::Counted, most);
            assert_eq!(launch.process.rlimits[1], rlimit("nofile", soft, most));
        }
    }

    #[test]
    fn swap_is_limited_where_it_is_counted() {
        let launch = launch(&spec(), Vec::new(), Swap::NotCounted, u64::MAX);
        assert!(!launch.limits.counts_swap);
    }

    #[test]
    fn a_little_processor_time_is_what_the_kernel_takes_at_least() {
        assert_eq!(quota(1_000_000_000), 100_000);
        assert_eq!(quota(1), 1_000);
    }

    fn with_programs(env: &[&str]) -> Launch {
        let programs = ProgramsSpec {
            root: ProgramRoot::Directory("/rootfs".into()),
            env: env.iter().map(|&variable| variable.to_owned()).collect(),
            tmpfs_bytes: 1,
            tmpfs_inodes: 3,
            shm_bytes: 2,
        };
        of(&ContainerSpec { programs: Some(programs), ..spec() })
    }

    #[test]
    fn programs_have_the_images_environment_and_what_every_program_expects() {
        let env = |env: &[&str]| with_programs(env).process.env;
        assert_eq!(
            env(&["PATH=/opt/bin", "HOME=/root", "A=1=2"]),
            [
                "HOME=/", "image:PATH=/opt/bin", "image:HOME=/root", "image:A=1=2",
                "image:HOSTNAME=sandbox"
            ]
        );
        let path = "image:PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
        assert_eq!(env(&[]), ["HOME=/", path, "image:HOSTNAME=sandbox", "image:HOME=/"]);
    }

    #[test]
    fn programs_have_memory_of_their_own_and_a_filter_and_the_rest_is_as_for_scripts() {
        let mut of_programs = with_programs(&[]);
        let programs = of_programs.programs.take().unwrap();
        assert_eq!((programs.tmp_bytes, programs.tmp_inodes, programs.shm_bytes), (1, 3, 2));
        let sysctl = |(path, value): (&str, &str)| (path.to_owned(), value.to_owned());
        let expected = [
            ("net/ipv4/ip_unprivileged_port_start", "0"),
            ("net/ipv4/ping_group_range", "0 2147483647"),
        ];
        assert_eq!(programs.sysctls, expected.map(sysctl));
        let mut of_scripts = of(&spec());
        assert_eq!(of_programs.process.filters, seccomp::of_programs());
        of_programs.process.filters = std::mem::take(&mut of_scripts.process.filters);
        of_programs.process.env = of_scripts.process.env.clone();
        of_scripts.process.filters = of_programs.process.filters.clone();
        assert_eq!(of_programs, of_scripts);
    }

    #[test]
    fn without_root_there_is_one_group_and_where_no_groups_limit_it_other_means_do() {
        let programs = ProgramsSpec {
            root: ProgramRoot::Directory("/rootfs".into()),
            env: Vec::new(),
            tmpfs_bytes: 1,
            tmpfs_inodes: 1,
            shm_bytes: 2,
        };
        let as_root = of(&ContainerSpec { programs: Some(programs), ..spec() });
        for has_no_groups in [false, true] {
            let mut launch = as_root.clone();
            without_root(&mut launch, has_no_groups);
            let sysctls = &launch.programs.as_ref().unwrap().sysctls;
            let range = ("net/ipv4/ping_group_range".to_owned(), "100 100".to_owned());
            assert!(sysctls.contains(&range), "{sysctls:?}");
            assert_eq!(sysctls.len(), SYSCTLS.len());
            let (process, before) = (&launch.process, &as_root.process);
            // One more: the helper.
            let processes = rlimit("nproc", 65, 65);
            assert_eq!(process.rlimits.contains(&processes), has_no_groups);
            let hard = if has_no_groups { 128 } else { 1024 };
            assert!(process.rlimits.contains(&rlimit("nofile", 128, hard)));
            assert_eq!(launch.has_groups, !has_no_groups);
            assert_eq!(process.filters.len(), before.filters.len() + usize::from(has_no_groups));
        }
    }
}
