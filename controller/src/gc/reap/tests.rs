use sandbox_engine::container_name;

use super::*;

#[test]
fn only_what_is_surely_dead_is_left_over() {
    use SandboxState::{Leftover, Running, Unknown};
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(10_000);
    for (host, lock, expires, expected) in [
        ("me", Lock::Held, 10_001, Running),
        ("me", Lock::Free, 10_001, Leftover),
        ("me", Lock::Missing, 10_001, Unknown),
        ("other", Lock::Held, 10_001, Unknown),
        ("other", Lock::Free, 10_001, Unknown),
        ("other", Lock::Missing, 10_001, Unknown),
        // Past its expiry, but not for long.
        ("me", Lock::Held, 9_400, Running),
        ("other", Lock::Missing, 9_400, Unknown),
        // Long past its expiry, under any creator.
        ("me", Lock::Held, 9_399, Leftover),
        ("other", Lock::Missing, 9_399, Leftover),
    ] {
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(expires);
        let state = decide(at, host, "me", lock, now);
        assert_eq!(state, expected, "{host} {lock:?} {expires}");
    }
}

#[test]
fn labels_that_no_controller_wrote_are_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDir::open(&dir.path().join("state"), dir.path(), "boot").unwrap();
    let me = Instance::register(state, "").unwrap();
    let expires = SystemTime::UNIX_EPOCH + Duration::from_secs(5);
    const ID: &str = "0123456789abcdef";
    let summary = |sandbox: &str| ContainerSummary {
        id: "c".into(),
        name: container_name(sandbox),
        labels: labels(&me, sandbox, expires, &SandboxSpec::new(), None),
        running: true,
        created: SystemTime::UNIX_EPOCH,
    };
    let good = summary(ID);
    let read = |listed| read(listed, EngineKind::Embedded);
    let (sandbox, host) = read(good.clone()).unwrap();
    assert_eq!(
        (sandbox.id.as_str(), sandbox.instance, host),
        (ID, me.id.clone(), me.state.host.clone())
    );
    assert_eq!(sandbox.expires, expires);
    for (index, value) in [(3, "soon"), (3, "-1"), (3, "99999999999999999999")] {
        let mut bad = good.clone();
        bad.labels[index].1 = value.into();
        assert!(read(bad).is_none(), "{value}");
    }
    // Every container of an image has the image's labels.
    assert!(read(ContainerSummary { name: "database".into(), ..good.clone() }).is_none());
    // One that its user has named.
    for name in ["web-1", "", "0123456789ABCDEF", "0123456789abcde/"] {
        assert!(read(summary(name)).is_none(), "{name}");
    }
    for index in 0..4 {
        let mut bad = good.clone();
        bad.labels.remove(index);
        assert!(read(bad).is_none());
    }
}
