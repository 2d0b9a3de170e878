//! `exec --server` and `exec` print the same; `service` compares `run`.

use std::time::Duration;

use super::service::{Service, lasting};
use crate::fixture::{Ended, Fixture, in_its_time, spawn, wait};
use crate::rootfs::{Provided, Rootfs};

#[test]
fn command_prints_on_a_service_what_it_prints_here() {
    let place = Fixture::new();
    let provided = Rootfs::busybox().provide();
    let root = provided.args();
    let root = [&*root[0], &*root[1]];
    // The embedded engine has no images to name: the service has one for all.
    let (service, image) = match &provided {
        Provided::Image(name) => (["--allowed-image", name], vec!["--image", name]),
        _ => (root, Vec::new()),
    };
    let service = Service::with(&place, &service, &[]);
    for (command, flags) in [
        (&["echo", "out"][..], &[][..]),
        (&["sh", "-c", "echo out; echo err >&2"], &[]),
        (&["sh", "-c", "exit 7"], &[]),
        (&["sh", "-c", "kill -9 $$"], &[]),
        (&["sh", "-c", "printf 'a\\377\\0b\\342\\202'"], &[]),
        (&["sh", "-c", "printf '\\033[31mred'"], &["--raw"]),
        (&["sh", "-c", "yes | head -c 200000"], &[]),
        (&["sh", "-c", "echo begun; sleep 100"], &["--timeout"]),
        (&["nothing-of-this-name"], &[]),
        (&["sh", "-c", "echo quiet; exit 3"], &["-q"]),
    ] {
        for is_json in [false, true] {
            let mut flags = flags.to_vec();
            if is_json {
                flags.retain(|flag| *flag != "--raw");
                flags.push("--json");
            }
            let exec = |time: &str, root: &[&str]| {
                let its = flags.iter().flat_map(|&flag| match flag {
                    "--timeout" => vec![flag, time],
                    _ => vec![flag],
                });
                let own = ["exec", "--no-io"].into_iter().chain(its).chain(root.iter().copied());
                place.command(own.chain(["--"]).chain(command.iter().copied()))
            };
            let both = |time: Duration| {
                let time = format!("{}s", time.as_secs());
                let mut there = exec(&time, &image);
                there.env("SANDBOXCTL_SERVER", &service.url);
                [exec(&time, &root), there].map(|command| wait(spawn(command)))
            };
            let has_limit = flags.contains(&"--timeout");
            let is_whole = |it: &[Ended; 2]| {
                !has_limit || it.iter().all(|ended| ended.stdout.contains("begun"))
            };
            let [here, there] = in_its_time(both, is_whole);
            assert_eq!((there.code, &there.stderr), (here.code, &here.stderr), "{command:?}");
            match is_json {
                true => assert_eq!(lasting(&there), lasting(&here), "{command:?}"),
                false => assert_eq!(there.stdout, here.stdout, "{command:?}"),
            }
        }
    }
    service.stop();
}

#[test]
fn command_for_a_service_that_has_no_image_is_refused_with_the_line_that_runs_it() {
    let place = Fixture::new();
    let service = Service::with(&place, &[], &[]);
    for (words, hint) in [
        (&["--", "uname", "-a"][..], "hint: sandboxctl exec IMAGE -- COMMAND… names one; "),
        (&["echo", "hi"], "hint: 'echo' is read as the image: sandboxctl exec -- echo … "),
        (&["uname", "-a"], "or exec -- uname -a … in the image that the service has for all"),
        (&["uname"], "or sandboxctl exec -- COMMAND… in the image that the service has for all"),
    ] {
        let refused = place.sandboxctl([&["exec", "--server", &service.url][..], words].concat());
        assert!(refused.stderr.contains(hint), "{refused:#?}");
        assert!([2, 121].contains(&refused.code), "{refused:#?}");
    }
    service.stop();
}
