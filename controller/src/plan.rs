//! From what a caller asks for to what the engine and the agent are told. Pure.

use sandbox_protocol::argv::{AgentArgs, ConfinementPolicy, Mode, Mount, PROXY_PORT, Proxy};
use sandbox_protocol::message::{Access, AllowedPath, Hello, Policy};
use sandbox_protocol::path::{GuestPath, INPUTS, PathError};
use sandbox_protocol::{PROTOCOL_VERSION, User};

use crate::egress::Allowlist;
use crate::engine::{Bind, ContainerSpec, Prepared, Programs, Source};
use crate::error::Error;
use crate::spec::{Lifespan, SandboxSpec};

/// What the container has already.
const RESERVED: &[&str] =
    &["/proc", "/sys", "/dev", "/etc", sandbox_protocol::argv::INJECTED_AGENT];
/// In memory, where programs run.
const TMP: &str = "/tmp";
/// Descriptors of the agent that are neither an open handle of a script nor of a mount.
const SPARE_DESCRIPTORS: i64 = 62;
/// Descriptors of a mount: that of a file has one of its directory besides.
const MOUNT_DESCRIPTORS: usize = 2;
/// Of a program, as many as most systems give it.
const PROGRAM_DESCRIPTORS: i64 = 1024;
/// Files and directories of `/tmp`. The memory of each counts against the container's.
const TMPFS_INODES: u64 = 65_536;
/// No file of a sandbox grows beyond it. The agent's own count is far lower; this is behind it.
const MAX_FILE_BYTES: i64 = 64 << 30;

/// Where everything is in the sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Where the io dir is; `None` without one.
    pub io: Option<GuestPath>,
    /// Where the inputs are, in order.
    pub inputs: Vec<GuestPath>,
    pub args: AgentArgs,
    pub hello: Hello,
}

impl Plan {
    pub fn new(spec: &SandboxSpec, confinement: ConfinementPolicy) -> Result<Self, Error> {
        let guest = |what: &'static str, path: &str| {
            GuestPath::new(path).map_err(|source| Error::GuestPath {
                what,
                path: path.to_owned(),
                source,
            })
        };
        let has_io = spec.io_dir.is_some() || spec.io_is_private;
        let io = has_io.then(|| guest("the mount path", &spec.mount_path)).transpose()?;
        if let (true, Some(input)) = (spec.io_is_off, spec.inputs.first()) {
            let reason = "the sandbox is to have no files".to_owned();
            return Err(Error::Input { name: input.name.clone(), reason });
        }
        let inputs_root = guest("the inputs' path", INPUTS)?;
        let inputs = spec
            .inputs
            .iter()
            .map(|input| {
                inputs_root.join(input.name.as_bytes()).map_err(|source| Error::Input {
                    name: input.name.clone(),
                    reason: source.to_string(),
                })
            })
            .collect::<Result<Vec<_>, _>>()?;
        if let Some(io) = &io {
            let reserved = RESERVED.iter().map(|path| guest("a reserved path", path));
            let others = reserved.chain([Ok(inputs_root)]);
            // Beneath it there is room; what covers it takes it from the programs.
            let tmp =
                spec.root.has_programs().then(|| guest("a reserved path", TMP)).transpose()?;
            for other in others.chain(tmp.map(Ok)) {
                let other = other?;
                let is_tmp = other.as_bytes() == TMP.as_bytes();
                if other.is_under(io) || (io.is_under(&other) && !is_tmp) {
                    return Err(Error::MountTaken {
                        path: io.to_string(),
                        taken: other.to_string(),
                    });
                }
            }
        }

        let workdir = match (&spec.workdir, &io) {
            (None, io) => io.clone(),
            (Some(workdir), Some(io)) => {
                let resolved = GuestPath::resolve(workdir.as_bytes(), io, Some(io));
                Some(resolved.map_err(|source| bad_workdir(workdir, source))?.path)
            }
            (Some(workdir), None) => {
                Some(GuestPath::new(workdir).map_err(|source| bad_workdir(workdir, source))?)
            }
        };
        let mounts: Vec<Mount> = io
            .iter()
            .map(|path| Mount { path: path.clone(), access: Access::Write })
            .chain(inputs.iter().map(|path| Mount { path: path.clone(), access: Access::Read }))
            .collect();
        if let Some(workdir) = &workdir
            && !mounts.iter().any(|mount| workdir.is_under(&mount.path))
        {
            return Err(Error::WorkdirOutside { workdir: workdir.to_string() });
        }

        for AllowedPath { path, access: _ } in spec.allowed_paths.iter().flatten() {
            guest("an allowed path", path)?;
        }
        for name in &spec.protected {
            SandboxSpec::check_protected_name(name)?;
        }
        if spec.root.has_programs() {
            check_rules_for_programs(spec, &mounts)?;
        }
        let allowed_paths = spec.allowed_paths.clone().unwrap_or_else(|| {
            mounts
                .iter()
                .map(|mount| AllowedPath { path: mount.path.to_string(), access: mount.access })
                .collect()
        });
        let hello = Hello {
            protocol: PROTOCOL_VERSION,
            nonce: None,
            limits: spec.limits.for_agent(),
            policy: Policy {
                io: !mounts.is_empty(),
                io_errors: spec.io_errors,
                allowed_paths,
                protected: spec.protected.clone(),
            },
        };
        let mode = if spec.root.has_programs() { Mode::Exec } else { Mode::Script };
        let home = io.clone();
        let proxy = proxy(mode, &spec.allow)?;
        let args = AgentArgs {
            mode,
            user: None,
            mounts,
            hidden: Vec::new(),
            home,
            workdir,
            confinement,
            proxy,
        };
        Ok(Self { io, inputs, args, hello })
    }

    /// The container, for the same `spec`. `sources` are what is mounted, in order.
    pub fn container(
        &self,
        spec: &SandboxSpec,
        name: String,
        labels: Vec<(String, String)>,
        user: User,
        sources: &[Source],
        prepared: Option<Prepared>,
    ) -> ContainerSpec {
        let limits = &spec.limits;
        let mounts = self.args.mounts.iter().zip(sources).map(|(mount, source)| Bind {
            source: source.clone(),
            target: mount.path.to_string(),
            read_only: mount.access == Access::Read,
        });
        let mounts_need = MOUNT_DESCRIPTORS * self.args.mounts.len();
        let scripts_need = i64::from(limits.open_handles.get())
            .saturating_add(i64::try_from(mounts_need).unwrap_or(i64::MAX))
            .saturating_add(SPARE_DESCRIPTORS);
        let (descriptors, file_bytes) = match self.args.mode {
            Mode::Exec => {
                // One byte beyond what may be written: it is by that byte that a look at the io dir
                // knows that a file has met this bound.
                let beyond = limits.max_write.as_u64().saturating_add(1);
                let most = beyond.max(limits.max_file_size.as_u64());
                let most = i64::try_from(most).unwrap_or(i64::MAX);
                (scripts_need.max(PROGRAM_DESCRIPTORS), most)
            }
            Mode::Script | Mode::Check => (scripts_need, MAX_FILE_BYTES),
        };
        let mut ulimits = vec![
            // One byte, not none: of 0 a kernel takes no notice that hands dumps to a program.
            ("core", 1),
            ("nofile", descriptors),
            ("fsize", file_bytes),
            ("memlock", 0),
            ("msgqueue", 0),
        ];
        if spec.lifespan == Lifespan::OneRun {
            // It counts over the whole life of the agent, so only where that is one run.
            let seconds = limits.most_cpu().as_secs();
            ulimits.push(("cpu", i64::try_from(seconds).unwrap_or(i64::MAX)));
        }
        ContainerSpec {
            name,
            labels,
            args: self.args.clone(),
            user,
            mounts: mounts.collect(),
            hidden: Vec::new(),
            memory: limits.memory.as_u64(),
            nano_cpus: limits.cpus.nano_cpus(),
            pids: limits.pids.get(),
            ulimits,
            programs: prepared.map(|Prepared { root, env, .. }| Programs {
                root,
                env,
                tmpfs_bytes: limits.tmpfs.as_u64(),
                tmpfs_inodes: TMPFS_INODES,
            }),
        }
    }
}

/// Rules about paths are held by the agent's own operations. Programs make their own calls, and the
/// kernel's rules for them know mounts alone: what cannot be held is not promised.
fn check_rules_for_programs(spec: &SandboxSpec, mounts: &[Mount]) -> Result<(), Error> {
    let refuse = |rule| Err(Error::RuleForPrograms { rule });
    let can_write = mounts.iter().any(|mount| mount.access == Access::Write);
    if can_write && !spec.protected.is_empty() {
        return refuse("filesystem.protected");
    }
    if !mounts.is_empty() && spec.allowed_paths.is_some() {
        return refuse("filesystem.allowed_paths");
    }
    Ok(())
}

/// The proxy, where the list has anybody on it.
fn proxy(mode: Mode, list: &Allowlist) -> Result<Option<Proxy>, Error> {
    match mode {
        _ if list.rules().is_empty() => Ok(None),
        Mode::Exec => Ok(Some(Proxy { port: PROXY_PORT, without: list.no_proxy() })),
        Mode::Script | Mode::Check => Err(Error::NoPrograms),
    }
}

fn bad_workdir(path: &str, source: PathError) -> Error {
    Error::GuestPath { what: "the working directory", path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{LimitKey, Limits};
    use crate::spec::{Input, Root};

    fn user() -> User {
        User::new(1000, 100).unwrap()
    }

    fn plan(spec: SandboxSpec) -> Result<Plan, String> {
        Plan::new(&spec, ConfinementPolicy::Required).map_err(|error| error.full_message())
    }

    #[test]
    fn the_agent_is_told_every_mount_and_may_use_them_all() {
        let spec = SandboxSpec::new().io_dir("out").input(Input::path("/x/a.csv", "a.csv"));
        let plan = plan(spec).unwrap();
        assert_eq!(
            plan.args.to_args(),
            [
                "script",
                "--write",
                "/io",
                "--read",
                "/in/a.csv",
                "--home",
                "/io",
                "--workdir",
                "/io"
            ]
        );
        let allowed: Vec<_> = plan
            .hello
            .policy
            .allowed_paths
            .iter()
            .map(|allowed| (allowed.path.as_str(), allowed.access))
            .collect();
        assert_eq!(allowed, [("/io", Access::Write), ("/in/a.csv", Access::Read)]);
        assert!(plan.hello.policy.io);
    }

    #[test]
    fn without_mounts_there_is_no_io() {
        let plan = plan(SandboxSpec::new()).unwrap();
        assert_eq!(plan.args.to_args(), ["script"]);
        assert!(!plan.hello.policy.io);
    }

    #[test]
    fn a_rule_that_would_not_hold_programs_is_refused() {
        let programs = || SandboxSpec::new().root(Root::Directory("/x".into()));
        let protects = |spec: SandboxSpec| spec.protected(vec![".git".into()]);
        let allowed = AllowedPath { path: "/io".into(), access: Access::Read };
        let allows = |spec: SandboxSpec| spec.allowed_paths(vec![allowed.clone()]);
        let with_input = |spec: SandboxSpec| spec.input(Input::path("/y", "y"));
        for (spec, rule) in [
            (protects(programs().io_dir("out")), "filesystem.protected"),
            (allows(programs().io_dir("out")), "filesystem.allowed_paths"),
            (allows(with_input(programs())), "filesystem.allowed_paths"),
        ] {
            let error = Plan::new(&spec, ConfinementPolicy::Required).unwrap_err();
            assert!(error.to_string().starts_with(rule), "{error}");
            assert_eq!(error.exit_code(), 121);
        }
        // Nothing can be written to there, or read.
        for spec in [protects(with_input(programs())), allows(programs())] {
            plan(spec).unwrap();
        }
        plan(allows(protects(SandboxSpec::new().io_dir("out")))).unwrap();
    }

    #[test]
    fn a_list_of_hosts_is_for_programs() {
        let list: Allowlist =
            ["example.org", "127.0.0.1:80"].map(|rule| rule.parse().unwrap()).into_iter().collect();
        let spec = SandboxSpec::new().root(Root::Directory("/x".into())).allow(list.clone());
        let told = plan(spec).unwrap().args.proxy.unwrap();
        assert_eq!((told.port, &*told.without), (3128, "localhost,::1"));
        assert_eq!(proxy(Mode::Exec, &Allowlist::default()).unwrap(), None);
        assert_eq!(proxy(Mode::Script, &Allowlist::default()).unwrap(), None);
        let error =
            Plan::new(&SandboxSpec::new().allow(list), ConfinementPolicy::Required).unwrap_err();
        assert!(matches!(error, Error::NoPrograms));
        assert_eq!(error.exit_code(), 2);
        assert!(error.hint().unwrap().contains("--image"));
    }

    #[test]
    fn inputs_give_io_without_an_io_dir_and_are_refused_where_io_is_off() {
        let spec = SandboxSpec::new().input(Input::path("/x", "x"));
        assert!(plan(spec.clone()).unwrap().hello.policy.io);
        let error = plan(spec.no_io()).unwrap_err();
        assert!(error.contains("the input 'x'") && error.contains("no files"), "{error}");
    }

    #[test]
    fn the_working_directory_is_inside_a_mount() {
        let with = |workdir: &str| plan(SandboxSpec::new().io_dir("out").workdir(workdir));
        let workdir = |plan: Plan| plan.args.workdir.unwrap().to_string();
        assert_eq!(with("a/b").map(workdir), Ok("/io/a/b".into()));
        assert_eq!(with("/io/a").map(workdir), Ok("/io/a".into()));
        assert_eq!(with("~/a").map(workdir), Ok("/io/a".into()));
        assert!(with("/tmp").unwrap_err().contains("outside the mounts"));
        assert!(with("..").unwrap_err().contains("'..' is not allowed"));
        assert!(plan(SandboxSpec::new().workdir("a")).unwrap_err().contains("not absolute"));
    }

    #[test]
    fn a_mount_path_leaves_the_others_and_the_system_alone() {
        let at = |path: &str| plan(SandboxSpec::new().io_dir("out").mount_path(path));
        assert_eq!(
            at("/workspace").map(|plan| plan.io.unwrap().to_string()),
            Ok("/workspace".into())
        );
        for path in ["/", "/in", "/in/x", "/proc", "/proc/x", "/dev", "/.sandbox", "/etc/x"] {
            assert!(at(path).unwrap_err().contains("the sandbox's own"), "{path}");
        }
        // Programs have something of their own there.
        let spec = SandboxSpec::new().io_dir("out").root(Root::Directory("/x".into()));
        let with_programs = |path: &str| plan(spec.clone().mount_path(path)).map(|_| ());
        assert!(with_programs("/tmp").unwrap_err().contains("/tmp is the sandbox's own"));
        assert_eq!((at("/tmp").map(|_| ()), with_programs("/tmp/x")), (Ok(()), Ok(())));
        for path in ["io", "", "/a/../b"] {
            assert!(at(path).unwrap_err().contains("the mount path"), "{path}");
        }
    }

    #[test]
    fn rules_that_no_path_could_meet_are_refused_before_anything_is_launched() {
        let allowed = |path: &str| AllowedPath { path: path.into(), access: Access::Read };
        let error = plan(SandboxSpec::new().allowed_paths(vec![allowed("io")])).unwrap_err();
        assert_eq!(error, "an allowed path 'io' is not usable: the path is not absolute");
        let error = plan(SandboxSpec::new().protected(vec!["a/../b".into()])).unwrap_err();
        assert!(error.starts_with("cannot protect 'a/../b'"), "{error}");
    }

    #[test]
    fn policy_and_limits_reach_the_agent_as_they_are() {
        let allowed = vec![AllowedPath { path: "/io/a".into(), access: Access::Write }];
        let names: Vec<String> = crate::DEFAULT_PROTECTED.iter().map(ToString::to_string).collect();
        let mut limits = Limits::default();
        for (key, text) in [
            (LimitKey::ListDepth, "3"),
            (LimitKey::MaxFileSize, "5B"),
            (LimitKey::OperationTimeout, "70ms"),
        ] {
            limits.set(key, key.parse(text).unwrap()).unwrap();
        }
        let spec = SandboxSpec::new().io_dir("out").limits(limits);
        let spec = spec.allowed_paths(allowed.clone()).protected(names.clone());
        let Hello { limits, policy, .. } = plan(spec).unwrap().hello;
        assert_eq!((policy.allowed_paths, policy.protected), (allowed, names));
        assert_eq!(limits.list_depth, 3);
        assert_eq!(limits.file_bytes, 5);
        assert_eq!(limits.operation_timeout_ms, 70);
    }

    #[test]
    fn every_input_has_descriptors_besides_those_of_open_handles() {
        let nofile = |inputs: usize| {
            let spec = (0..inputs).fold(SandboxSpec::new().io_dir("out"), |spec, number| {
                spec.input(Input::path("/x", format!("input-{number}")))
            });
            let plan = plan(spec.clone()).unwrap();
            let sources = vec![Source::from("/x"); inputs + 1];
            let name = "sandboxctl-1".into();
            let made = plan.container(&spec, name, Vec::new(), user(), &sources, None);
            made.ulimits[1]
        };
        assert_eq!(nofile(0), ("nofile", 128));
        assert_eq!(nofile(200), ("nofile", 528));
    }

    #[test]
    fn the_container_has_every_limit() {
        let spec = SandboxSpec::new().io_dir("out").input(Input::path("/x", "x"));
        let container = |lifespan| {
            let spec = spec.clone().lifespan(lifespan);
            plan(spec.clone()).unwrap().container(
                &spec,
                "sandboxctl-1".into(),
                vec![("a".into(), "b".into())],
                user(),
                &["/home/me/out", "/x"].map(Source::from),
                None,
            )
        };
        let many = container(Lifespan::ManyRuns);
        assert_eq!(many.memory, 256 << 20);
        assert_eq!(many.nano_cpus, spec.limits.cpus.nano_cpus());
        assert_eq!(many.pids, 64);
        assert_eq!(many.user, user());
        assert_eq!(many.agent_args()[..3], ["script", "--user", "1000:100"]);
        let ulimits =
            [("core", 1), ("nofile", 130), ("fsize", 64 << 30), ("memlock", 0), ("msgqueue", 0)];
        assert_eq!(many.ulimits, ulimits);
        assert_eq!(container(Lifespan::OneRun).ulimits[5], ("cpu", 35));
        assert_eq!(
            many.mounts,
            [
                Bind { source: "/home/me/out".into(), target: "/io".into(), read_only: false },
                Bind { source: "/x".into(), target: "/in/x".into(), read_only: true },
            ]
        );
    }

    #[test]
    fn programs_have_descriptors_of_their_own_and_files_as_large_as_they_may_write() {
        let ulimits = |max_write: u64, max_file_size: u64| {
            let mut spec = SandboxSpec::new().io_dir("out").root(Root::Directory("/x".into()));
            spec.limits.max_write = crate::ByteSize::b(max_write);
            spec.limits.max_file_size = crate::ByteSize::b(max_file_size);
            let spec = spec.lifespan(Lifespan::ManyRuns);
            let made = plan(spec.clone()).unwrap().container(
                &spec,
                "sandboxctl-1".into(),
                Vec::new(),
                user(),
                &["/home/me/out".into()],
                None,
            );
            made.ulimits
        };
        let all = |fsize| {
            [("core", 1), ("nofile", 1024), ("fsize", fsize), ("memlock", 0), ("msgqueue", 0)]
        };
        assert_eq!(ulimits(1000, 10), all(1001));
        assert_eq!(ulimits(10, 1000), all(1000));
        assert_eq!(ulimits(u64::MAX, 1), all(i64::MAX));
    }
}
