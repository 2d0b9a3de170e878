use sandbox_engine::container_name;

use super::*;

fn labels(host: &str, expires: u64) -> Labels {
    Labels {
        sandbox: "s".into(),
        container: "c".into(),
        instance: "i".into(),
        host: host.into(),
        created: SystemTime::UNIX_EPOCH,
        expires: SystemTime::UNIX_EPOCH + Duration::from_secs(expires),
        rest: HashMap::new(),
    }
}

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
        let state = decide(&labels(host, expires), "me", lock, now);
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
        labels: super::labels(&me, sandbox, expires),
        running: true,
        created: SystemTime::UNIX_EPOCH,
    };
    let good = summary(ID);
    let read = Labels::read(good.clone()).unwrap();
    assert_eq!((read.sandbox.as_str(), read.instance, read.expires), (ID, me.id.clone(), expires));
    for (index, value) in [(3, "soon"), (3, "-1"), (3, "99999999999999999999")] {
        let mut bad = good.clone();
        bad.labels[index].1 = value.into();
        assert!(Labels::read(bad).is_none(), "{value}");
    }
    // Every container of an image has the image's labels.
    assert!(Labels::read(ContainerSummary { name: "database".into(), ..good.clone() }).is_none());
    // One that its user has named.
    for name in ["web-1", "", "0123456789ABCDEF", "0123456789abcde/"] {
        assert!(Labels::read(summary(name)).is_none(), "{name}");
    }
    for index in 0..4 {
        let mut bad = good.clone();
        bad.labels.remove(index);
        assert!(Labels::read(bad).is_none());
    }
}
