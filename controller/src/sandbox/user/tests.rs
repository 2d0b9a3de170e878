use super::*;

#[test]
fn the_container_runs_as_the_user_who_maps_to_the_io_dirs_owner() {
    let me = Some((1000, 100));
    let rootless = UserMapping::Rootless { owner: 1000 };
    let single = UserMapping::Single { uid: 1000, gid: 50 };
    let remapped = UserMapping::Remapped { uid: 100_000, gid: 200_000 };
    for (mapping, owner, asked, expected) in [
        (UserMapping::Identity, me, None, Some((1000, 100))),
        (UserMapping::Identity, Some((0, 0)), None, Some((0, 0))),
        (UserMapping::Identity, None, None, Some((60_700, 60_700))),
        (UserMapping::Identity, me, Some((7, 8)), Some((7, 8))),
        (UserMapping::Identity, Some((NOBODY, 0)), None, None),
        (UserMapping::Identity, Some((0, NOBODY)), None, None),
        (UserMapping::Identity, me, Some((NOBODY, NOBODY)), None),
        (rootless, me, None, Some((0, 0))),
        (rootless, Some((1001, 100)), None, None),
        (single, me, None, Some((1000, 50))),
        (single, Some((1001, 50)), None, None),
        (single, me, Some((7, 8)), Some((7, 8))),
        (single, None, None, Some((60_700, 60_700))),
        (rootless, None, None, Some((60_700, 60_700))),
        // Values that the kernel reads as "unchanged", however they arrive.
        (UserMapping::Identity, Some((u32::MAX, 0)), None, None),
        (UserMapping::Identity, Some((0, u32::MAX)), None, None),
        (UserMapping::Identity, Some((65_535, 65_535)), None, None),
        (remapped, Some((165_535, 200_000)), None, None),
        (remapped, Some((100_000, 200_000)), None, Some((0, 0))),
        (remapped, Some((101_000, 200_100)), None, Some((1000, 100))),
        (remapped, Some((165_534, 200_000)), None, None),
        (remapped, Some((165_536, 200_000)), None, None),
        (remapped, me, None, None),
        // Above the engine's highest one.
        (UserMapping::Identity, None, Some((1 << 31, 0)), Some((1 << 31, 0))),
        (UserMapping::Identity, None, Some(((1 << 31) + 1, 0)), None),
        (UserMapping::Identity, Some((0, u32::MAX - 1)), None, None),
    ] {
        let asked = asked.map(|(uid, gid)| User::new(uid, gid).unwrap());
        let user = container_user(mapping, owner, asked, 1 << 31).ok();
        let user = user.map(|user| (user.uid(), user.gid()));
        assert_eq!(user, expected, "{mapping:?} {owner:?} {asked:?}");
    }
}

#[test]
fn directories_are_made_for_the_user_of_the_host_who_is_the_containers() {
    let user = User::new(7, 8).unwrap();
    for (mapping, expected) in [
        (UserMapping::Identity, Some((7, 8))),
        (UserMapping::Remapped { uid: 100_000, gid: 200_000 }, Some((100_007, 200_008))),
        (UserMapping::Remapped { uid: u32::MAX, gid: 0 }, None),
        (UserMapping::Rootless { owner: 1000 }, None),
        (UserMapping::Single { uid: 1000, gid: 50 }, Some((1000, 50))),
    ] {
        assert_eq!(host_user(mapping, user), expected, "{mapping:?}");
    }
}
