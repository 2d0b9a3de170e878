use super::*;

fn facts() -> EngineFacts {
    EngineFacts {
        version: "Docker Engine 20.10.24".into(),
        api_version: "1.41".into(),
        security: vec!["seccomp".into()],
        ..EngineFacts::default()
    }
}

#[test]
fn an_engine_that_lacks_something_is_distinguished_from_one_that_does_not() {
    use CheckStatus::{Fail, Ok, Warn};
    for (facts, expected) in [
        (facts(), [Ok, Ok, Ok, Ok]),
        (EngineFacts { api_version: "1.40".into(), ..facts() }, [Fail, Ok, Ok, Ok]),
        (EngineFacts { api_version: "1.5".into(), ..facts() }, [Fail, Ok, Ok, Ok]),
        (EngineFacts { api_version: "2.0".into(), ..facts() }, [Ok, Ok, Ok, Ok]),
        (EngineFacts { api_version: String::new(), ..facts() }, [Warn, Ok, Ok, Ok]),
        (EngineFacts { missing_limits: vec!["pids".into()], ..facts() }, [Ok, Warn, Ok, Ok]),
        (EngineFacts { security: vec![], ..facts() }, [Ok, Ok, Fail, Ok]),
    ] {
        let checks = judge_engine(EngineKind::Docker, &facts);
        assert_eq!(checks.clone().map(|check| check.status), expected, "{facts:?}");
        for check in checks {
            assert_eq!(check.fix.is_none(), check.status == Ok, "{check:?}");
        }
    }
}

#[test]
fn a_sandbox_without_unix_sockets_of_its_own_works_with_less() {
    for (unix_sockets, status) in [
        (UnixSockets::Landlock, CheckStatus::Ok),
        (UnixSockets::Supervised, CheckStatus::Ok),
        (UnixSockets::Pairs, CheckStatus::Warn),
        (UnixSockets::Unrestricted, CheckStatus::Warn),
    ] {
        assert_eq!(judge_unix_sockets(unix_sockets).status, status, "{unix_sockets:?}");
    }
}

#[test]
fn the_embedded_engine_has_no_api_to_be_old() {
    let facts = EngineFacts { api_version: String::new(), ..facts() };
    let checks = judge_engine(EngineKind::Embedded, &facts);
    assert!(checks.iter().all(|check| check.status == CheckStatus::Ok), "{checks:?}");
    assert!(!checks[0].detail.contains("API"), "{checks:?}");
}

#[test]
fn the_kernel_and_the_disk_are_looked_at_without_an_engine() {
    assert!(kernel().detail.contains("Landlock"));
    let missing = Path::new("/tmp/there/is/no/such/folder");
    let check = free_space("disk", missing, DiskReserve::Auto);
    assert_ne!(check.status, CheckStatus::Fail);
    assert!(check.detail.contains("limits.disk_reserve"), "{check:?}");
    let more = DiskReserve::Bytes(ByteSize::b(1 << 60));
    assert_eq!(free_space("disk", missing, more).status, CheckStatus::Warn);
}

#[test]
fn private_io_dirs_that_are_watched_are_a_warning_that_says_why() {
    let bounded = Disk {
        bound: DiskBound::Kernel,
        backend: DiskBackend::Ext4,
        bytes: 1,
        entries: 1,
        reason: None,
    };
    assert_eq!(judge_disk_bound(&bounded).status, CheckStatus::Ok);
    let reason = "mke2fs (of e2fsprogs) is not installed";
    let watched = Disk {
        bound: DiskBound::Watched,
        backend: DiskBackend::Directory,
        reason: Some(reason.to_owned()),
        ..bounded
    };
    let check = judge_disk_bound(&watched);
    assert_eq!(check.status, CheckStatus::Warn);
    assert!(check.detail.contains(reason), "{check:?}");
}
