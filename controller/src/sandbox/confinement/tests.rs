use super::*;

fn full() -> Confinement {
    Confinement {
        no_new_privileges: true,
        undumpable: true,
        landlock_abi: Some(7),
        seccomp: true,
        unix_sockets: UnixSockets::None,
        missing: Vec::new(),
    }
}

fn programs(unix_sockets: UnixSockets) -> Confinement {
    Confinement { unix_sockets, ..full() }
}

#[test]
fn required_confinement_is_seccomp_and_the_kernels_landlock() {
    use ConfinementPolicy::{BestEffort, Required};
    let without = || Confinement { landlock_abi: None, ..full() };
    let old = || Confinement { landlock_abi: Some(1), ..full() };
    for (confinement, kernel, why) in [
        (full(), Some(7), None),
        (full(), None, None),
        (without(), None, None),
        (without(), Some(1), None),
        (without(), Some(2), Some("no Landlock")),
        (old(), Some(2), Some("no Landlock")),
        (old(), Some(1), None),
        (Confinement { seccomp: false, ..full() }, Some(7), Some("system call filter")),
        (Confinement { undumpable: false, ..full() }, Some(7), Some("other processes")),
        (Confinement { no_new_privileges: false, ..full() }, Some(7), Some("privileges")),
        (programs(UnixSockets::Landlock), Some(7), None),
        (programs(UnixSockets::Supervised), Some(7), None),
        (programs(UnixSockets::Pairs), Some(7), None),
        (programs(UnixSockets::Unrestricted), Some(7), Some("UNIX sockets")),
    ] {
        let refused = check(Required, &confinement, kernel).err();
        match (&refused, why) {
            (None, None) => {}
            (Some(error), Some(why)) => {
                assert!(error.to_string().contains(why), "{error}");
                assert_eq!(error.exit_code(), 125);
                assert!(error.hint().unwrap().contains("--confinement best-effort"));
            }
            _ => panic!("{confinement:?} {kernel:?}: {refused:?}"),
        }
        assert!(check(BestEffort, &confinement, kernel).is_ok());
    }
}

#[test]
fn the_reason_for_a_missing_layer_is_reported() {
    let lacking = Confinement { seccomp: false, missing: vec!["it is refused".into()], ..full() };
    let error = check(ConfinementPolicy::Required, &lacking, None).unwrap_err();
    assert!(error.to_string().ends_with("(it is refused)"), "{error}");
    assert!(describe(&lacking).ends_with("no system call filter, it is refused"));
    assert_eq!(describe(&full()), "Landlock ABI 7, system call filter");
    assert!(describe(&programs(UnixSockets::Supervised)).ends_with("(supervised connects)"));
}
