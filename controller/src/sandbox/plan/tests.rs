use std::sync::Arc;

use sandbox_api::{Input, LimitKey, Limits, RootFs};

use super::*;

fn user() -> User {
    User::new(1000, 100).unwrap()
}

fn plan(spec: SandboxSpec) -> Result<Plan, String> {
    Plan::new(&spec, ConfinementPolicy::Required).map_err(|error| error.full_message())
}

/// A path that need not exist: nothing is mounted in these tests.
fn source(path: &str) -> Source {
    let file = std::fs::File::open("/").expect("it is there");
    Source::new(path.to_owned(), Arc::new(file.into()))
}

#[test]
fn the_agent_gets_every_mount_and_may_use_them_all() {
    let spec = SandboxSpec::new().io_dir("out").input(Input::path("/x/a.csv", "a.csv"));
    let plan = plan(spec).unwrap();
    assert_eq!(
        plan.args.to_args(),
        ["script", "--write", "/io", "--read", "/in/a.csv", "--home", "/io", "--workdir", "/io"]
    );
    let allowed: Vec<_> = plan
        .configure
        .policy
        .allowed_paths
        .iter()
        .map(|allowed| (allowed.path.as_str(), allowed.access))
        .collect();
    // The directory above the inputs, which is no mount, is listed and searched.
    let expected = [("/io", Access::Write), ("/in/a.csv", Access::Read), ("/in", Access::Read)];
    assert_eq!(allowed, expected);
    assert!(plan.configure.policy.io);
}

#[test]
fn without_mounts_there_is_no_io() {
    let plan = plan(SandboxSpec::new()).unwrap();
    assert_eq!(plan.args.to_args(), ["script"]);
    assert!(!plan.configure.policy.io);
}

#[test]
fn a_rule_that_would_not_hold_programs_is_refused() {
    let programs = || SandboxSpec::new().root(RootFs::Directory("/x".into()));
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
    // No path can be written to there, or read.
    for spec in [protects(with_input(programs())), allows(programs())] {
        plan(spec).unwrap();
    }
    plan(allows(protects(SandboxSpec::new().io_dir("out")))).unwrap();
}

#[test]
fn a_list_of_hosts_is_for_programs() {
    let list: Allowlist =
        ["example.org", "10.0.0.1:80"].map(|rule| rule.parse().unwrap()).into_iter().collect();
    let spec = SandboxSpec::new().root(RootFs::Directory("/x".into())).allow(list.clone());
    assert_eq!(plan(spec).unwrap().args.proxy, Some(3128));
    assert_eq!(proxy(Mode::Exec, &Allowlist::default()).unwrap(), None);
    assert_eq!(proxy(Mode::Script, &Allowlist::default()).unwrap(), None);
    let error =
        Plan::new(&SandboxSpec::new().allow(list), ConfinementPolicy::Required).unwrap_err();
    assert!(matches!(error, Error::EgressUnsupported));
    assert_eq!(error.exit_code(), 2);
    assert!(error.hint().unwrap().contains("--image"));
}

#[test]
fn inputs_give_io_without_an_io_dir_and_are_refused_where_io_is_off() {
    let spec = SandboxSpec::new().input(Input::path("/x", "x"));
    assert!(plan(spec.clone()).unwrap().configure.policy.io);
    let error = plan(spec.no_io()).unwrap_err();
    assert!(error.contains("the input 'x'") && error.contains("files are disabled"), "{error}");
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
    assert_eq!(at("/workspace").map(|plan| plan.io.unwrap().to_string()), Ok("/workspace".into()));
    for path in ["/", "/in", "/in/x", "/proc", "/proc/x", "/dev", "/.sandbox", "/etc/x"] {
        assert!(at(path).unwrap_err().contains("the sandbox's own"), "{path}");
    }
    // Commands have their own `/tmp`.
    let spec = SandboxSpec::new().io_dir("out").root(RootFs::Directory("/x".into()));
    let with_programs = |path: &str| plan(spec.clone().mount_path(path)).map(|_| ());
    assert!(with_programs("/tmp").unwrap_err().contains("/tmp is the sandbox's own"));
    assert_eq!((at("/tmp").map(|_| ()), with_programs("/tmp/x")), (Ok(()), Ok(())));
    // What is written there by the kernel's rules is written in an input too, if it is a FIFO.
    let spec =
        SandboxSpec::new().root(RootFs::Directory("/x".into())).input(Input::path("x", "/tmp/in"));
    assert!(plan(spec).unwrap_err().contains("the sandbox has its own /tmp"));
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
    let names: Vec<String> =
        sandbox_api::DEFAULT_PROTECTED.iter().map(ToString::to_string).collect();
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
    let Configure { limits, policy, ca: _ } = plan(spec).unwrap().configure;
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
        let sources = vec![source("/x"); inputs + 1];
        let name = "sandboxctl-1".into();
        let made = plan.container(&spec, name, Vec::new(), user(), &sources, None);
        made.ulimits[1]
    };
    assert_eq!(nofile(0), Ulimit::new("nofile", 128));
    assert_eq!(nofile(200), Ulimit::new("nofile", 528));
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
            &["/home/me/out", "/x"].map(source),
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
    let ulimits = ulimits.map(|(name, value)| Ulimit::new(name, value));
    assert_eq!(many.ulimits, ulimits);
    assert_eq!(container(Lifespan::OneRun).ulimits, ulimits);
    let cpu =
        |lifespan| plan(spec.clone().lifespan(lifespan)).unwrap().configure.limits.cpu_seconds;
    assert_eq!((cpu(Lifespan::OneRun), cpu(Lifespan::ManyRuns)), (Some(37), None));
    assert_eq!(
        many.mounts,
        [
            Bind { source: source("/home/me/out"), target: "/io".into(), read_only: false },
            Bind { source: source("/x"), target: "/in/x".into(), read_only: true },
        ]
    );
}

#[test]
fn programs_have_descriptors_of_their_own_and_files_as_large_as_they_may_write() {
    let ulimits_on = |disk, max_write: u64, max_file_size: u64| {
        let mut spec = SandboxSpec::new().io_dir("out").root(RootFs::Directory("/x".into()));
        spec.limits.max_write = sandbox_api::ByteSize::b(max_write);
        spec.limits.max_file_size = sandbox_api::ByteSize::b(max_file_size);
        let spec = spec.lifespan(Lifespan::ManyRuns);
        let mut plan = plan(spec.clone()).unwrap();
        plan.args.disk = disk;
        let sources = [source("/home/me/out")];
        let name = "sandboxctl-1".into();
        plan.container(&spec, name, Vec::new(), user(), &sources, None).ulimits
    };
    let ulimits = |max_write, most| ulimits_on(DiskSpace::Watched, max_write, most);
    let all = |fsize| {
        [
            Ulimit::new("core", 1),
            Ulimit::descriptors(1024),
            Ulimit::new("fsize", fsize),
            Ulimit::new("memlock", 0),
            Ulimit::new("msgqueue", 0),
        ]
    };
    assert_eq!(ulimits(1000, 10), all(1001));
    assert_eq!(ulimits(10, 1000), all(1000));
    assert_eq!(ulimits(u64::MAX, 1), all(i64::MAX));
    // It is full before that, and says so without a signal; holes take no space.
    assert_eq!(ulimits_on(DiskSpace::Bounded, 1000, 10), all(8 << 40));
    assert_eq!(ulimits_on(DiskSpace::Bounded, 9 << 40, 10), all((9 << 40) + 1));
}
