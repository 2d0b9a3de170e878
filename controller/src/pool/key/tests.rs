use std::num::NonZeroU32;
use std::path::Path;

use sandbox_api::hosts::Allowlist;
use sandbox_api::{
    Access, AllowedPath, ByteSize, Encoding, Input, IoErrors, Lifespan, LimitKey, Limits, Pull,
};
use sandbox_protocol::argv::ConfinementPolicy;

use super::*;

fn prepared(id: &str) -> Prepared {
    let reference = "debian".to_owned();
    let root = ProgramRoot::Image { id: id.to_owned(), reference, volumes: Vec::new() };
    Prepared { root, env: Vec::new(), workdir: String::new(), named: None }
}

fn programs() -> SandboxSpec {
    let reference = "debian".to_owned();
    SandboxSpec::new().root(RootFs::Image { reference, pull: Pull::Missing })
}

fn key_on(spec: &SandboxSpec, image: &str) -> Result<SlotKey, &'static str> {
    let plan = Plan::new(spec, ConfinementPolicy::Required).unwrap();
    let prepared = spec.root.supports_exec().then(|| prepared(image));
    let named = NamedIoDir::of(spec).unwrap();
    SlotKey::new(spec, &plan, prepared.as_ref(), RootOwner::Caller, named)
}

fn key(spec: &SandboxSpec) -> SlotKey {
    key_on(spec, "sha256:1").unwrap()
}

fn rules(texts: &[&str]) -> Allowlist {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

#[test]
fn settings_of_the_claim_are_not_part_of_the_key() {
    let base = key(&programs());
    for same in [
        programs().io_errors(IoErrors::Return),
        programs().lifetime(Duration::from_secs(1)),
        programs().idle_limit(Some(Duration::from_secs(1))),
        programs().default_encoding(Encoding::Base64),
        programs().lifespan(Lifespan::OneRun),
        programs().title("build"),
        programs().no_io(),
        SandboxSpec {
            root: RootFs::Image { reference: "debian".into(), pull: Pull::Always },
            ..programs()
        },
    ] {
        assert_eq!(key(&same), base, "{same:?}");
    }
    // A secret needs a host, and no more before the claim.
    let rule: sandbox_api::InjectRule = "a.example: Authorization: env:TOKEN".parse().unwrap();
    let secret = rule.with(sandbox_api::SecretValue::new("hunter2!")).unwrap();
    let host = programs().allow(rules(&["a.example:443"]));
    assert_eq!(key(&programs().inject(vec![secret])), key(&host));
    let scripts = SandboxSpec::new().fresh_io_dir();
    let path = AllowedPath { path: "/io/a".into(), access: Access::Read };
    for same in
        [scripts.clone().protected(vec![".git".into()]), scripts.clone().allowed_paths(vec![path])]
    {
        assert_eq!(key(&same), key(&scripts), "{same:?}");
    }
}

#[test]
fn settings_of_the_container_are_part_of_the_key() {
    let base = key(&programs());
    for other in [
        SandboxSpec::new(),
        programs().root(RootFs::Image { reference: "alpine".into(), pull: Pull::Missing }),
        programs().fresh_io_dir(),
        programs().private_io_dir(),
        programs().fresh_io_dir().mount_path("/workspace"),
        programs().fresh_io_dir().workdir("sub"),
        programs().user(Some(User::new(7, 8).unwrap())),
        programs().allow(rules(&["example.org"])),
        programs().processes(Processes::Kept),
    ] {
        assert_ne!(key(&other), base, "{other:?}");
    }
    assert_ne!(
        key(&programs().fresh_io_dir().mount_path("/workspace")),
        key(&programs().fresh_io_dir())
    );
    assert_ne!(key_on(&programs(), "sha256:2"), Ok(base));
    let confined = programs();
    let loose = Plan::new(&confined, ConfinementPolicy::BestEffort).unwrap();
    let image = prepared("sha256:1");
    let loose = SlotKey::new(&confined, &loose, Some(&image), RootOwner::Caller, None).unwrap();
    assert_ne!(loose, key(&confined));
}

#[test]
fn limits_are_part_of_the_key_where_the_container_has_them() {
    let base = key(&programs());
    let nonzero = |number| NonZeroU32::new(number).unwrap();
    for &limit in LimitKey::ALL {
        let mut limits = Limits::for_programs();
        let shapes = match limit {
            LimitKey::Memory => {
                limits.memory = ByteSize::b(32 << 20);
                true
            }
            LimitKey::Cpus => {
                limits.cpus = "0.5".parse().unwrap();
                true
            }
            LimitKey::Pids => {
                limits.pids = nonzero(32);
                true
            }
            // A resource limit of programs, so that the scan sees a file that reaches it.
            LimitKey::MaxWrite => {
                limits.max_write = ByteSize::b(1 << 20);
                limits.max_file_size = ByteSize::b(1 << 19);
                true
            }
            LimitKey::OpenHandles => {
                limits.open_handles = nonzero(1024);
                true
            }
            LimitKey::Tmpfs => {
                limits.tmpfs = ByteSize::b(1 << 20);
                true
            }
            LimitKey::Shm => {
                limits.shm = ByteSize::b(1 << 20);
                true
            }
            // Smaller than what may be written, which is the resource limit.
            LimitKey::MaxFileSize => {
                limits.max_file_size = ByteSize::b(1);
                false
            }
            LimitKey::Timeout => {
                limits.timeout = Duration::from_secs(1);
                false
            }
            LimitKey::VmMemory => {
                limits.vm_memory = ByteSize::b(2 << 20);
                false
            }
            other => {
                let smallest = other.parse(match other.default_value() {
                    sandbox_api::LimitValue::Time(_) => "1ms",
                    sandbox_api::LimitValue::Size(_) => "5B",
                    _ => "5",
                });
                limits.set(other, smallest.unwrap()).unwrap();
                false
            }
        };
        let other = key(&programs().limits(limits));
        assert_eq!(other != base, shapes, "{}", limit.key());
    }
    // Without programs, what may be written is counted by the agent alone; except in memory.
    let less = |spec: SandboxSpec| {
        let limits = Limits { max_write: ByteSize::b(1 << 20), ..Limits::default() };
        spec.limits(limits)
    };
    let scripts = SandboxSpec::new().fresh_io_dir();
    assert_eq!(key(&less(scripts.clone())), key(&scripts));
    let memory = SandboxSpec::new().private_io_dir();
    assert_ne!(key(&less(memory.clone())), key(&memory));
}

#[test]
fn the_key_has_whether_there_are_hosts_and_not_which() {
    let one = key(&programs().allow(rules(&["example.org"])));
    assert_eq!(one, key(&programs().allow(rules(&["*.example.org:8080", "192.0.2.1:1"]))));
    assert_eq!(one, key(&programs().allow(rules(&["host.sandbox.internal:80"]))));
    assert_ne!(one, key(&programs()));
}

#[test]
fn named_io_dir_is_known_by_its_identity() {
    let dir = tempfile::tempdir().unwrap();
    let (one, other) = (dir.path().join("one"), dir.path().join("other"));
    let make = |path: &Path| std::fs::create_dir(path).unwrap();
    make(&one);
    make(&other);
    let spec = |path: &Path| SandboxSpec::new().io_dir(path);
    let before = key(&spec(&one));
    assert_eq!(key(&spec(&dir.path().join("./one/"))), before);
    assert_ne!(key(&spec(&other)), before);
    std::fs::rename(&one, dir.path().join("away")).unwrap();
    make(&one);
    assert_ne!(key(&spec(&one)), before);
    NamedIoDir::of(&spec(&dir.path().join("missing"))).unwrap_err();
}

#[test]
fn sandbox_that_is_not_known_ahead_has_no_key() {
    for (spec, why) in [
        (programs().input(Input::bytes("a", Vec::new())), "it has inputs"),
        (programs().fresh_io_dir().staged(), "its io dir is staged"),
        (programs().container_name("a"), "its container has a name"),
        (programs().id("a"), "its container has a name"),
        (programs().lifetime(Duration::MAX), "its lifetime is longer than a week"),
    ] {
        assert_eq!(key_on(&spec, "sha256:1"), Err(why));
    }
}
