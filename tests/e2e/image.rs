//! The sandbox image: built once, found by its label, saved and loaded.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::engine::{docker, docker_lines};
use crate::engines::{Feature, has};
use crate::fixture::{Fixture, eventually, finish};
use crate::rootfs::Rootfs;

/// An agent that works like the built one and is another file: its image is this test's alone.
fn agent_of_this_test(place: &Fixture, mark: &str) -> PathBuf {
    // Bytes after the last section of a program mean nothing to the kernel.
    let mark = format!("{mark} {}", place.work().display());
    place.write("agent", [&*sandbox_controller::AGENT.to_vec(), mark.as_bytes()].concat())
}

struct Images<'a> {
    place: &'a Fixture,
    agent: PathBuf,
}

impl Images<'_> {
    fn sandboxctl(&self, args: &[&str]) -> crate::fixture::Ended {
        let mut command = self.place.command(args);
        command.env("SANDBOX_AGENT", &self.agent);
        finish(command)
    }

    fn remove(&self, image: &Value) {
        // Containers of earlier runs, whose removal was not waited for, may still use it.
        eventually("the containers of runs are gone", || {
            self.place.containers().is_empty().then_some(())
        });
        self.sandboxctl(&["image", "rm", image["id"].as_str().unwrap()]).assert_code(0);
    }

    fn current(&self) -> Option<Value> {
        let ended = self.sandboxctl(&["image", "ls", "--json"]);
        let images: Value = serde_json::from_str(&ended.assert_code(0).stdout).unwrap();
        images.as_array().unwrap().iter().find(|image| image["current"] == true).cloned()
    }
}

#[test]
fn an_image_is_built_once_removed_saved_and_loaded() {
    let place = Fixture::new();
    let images = Images { place: &place, agent: agent_of_this_test(&place, "cycle") };
    place.write("one.luau", "return 1");
    assert_eq!(images.current(), None);

    images.sandboxctl(&["run", "one.luau", "--no-io"]).assert_code(0);
    let built = images.current().expect("the first run builds it");
    images.sandboxctl(&["image", "build"]).assert_code(0);
    assert_eq!(images.current().unwrap()["id"], built["id"], "a second build changes nothing");

    let id = built["id"].as_str().unwrap();
    images.sandboxctl(&["image", "save", "image.tar"]).assert_code(0);
    images.remove(&built);
    assert_eq!(images.current(), None);
    images.sandboxctl(&["image", "load", "image.tar"]).assert_code(0);
    assert_eq!(images.current().expect("loaded")["id"], built["id"]);
    images.sandboxctl(&["run", "one.luau", "--no-io"]).assert_code(0);

    // An image that was removed from outside is built again. The container of the run before it may
    // still be being removed.
    eventually("the engine removes the image", || {
        let removed = Command::new("docker").args(["image", "rm", "--force", id]).output().unwrap();
        removed.status.success().then_some(())
    });
    images.sandboxctl(&["run", "one.luau", "--no-io"]).assert_code(0);
    let rebuilt = images.current().expect("built again");
    images.remove(&rebuilt);
}

#[test]
fn two_first_runs_at_once_both_succeed() {
    let place = Fixture::new();
    let images = Images { place: &place, agent: agent_of_this_test(&place, "race") };
    place.write("one.luau", "return 1");
    std::thread::scope(|scope| {
        let runs: Vec<_> = (0..3)
            .map(|_| scope.spawn(|| images.sandboxctl(&["run", "one.luau", "--no-io"])))
            .collect();
        for run in runs {
            run.join().unwrap().assert_code(0);
        }
    });
    // Each of the three may have made one.
    while let Some(image) = images.current() {
        images.remove(&image);
    }
}

#[test]
fn only_what_was_loaded_counts_as_loaded() {
    let place = Fixture::new();
    let images = Images { place: &place, agent: agent_of_this_test(&place, "load") };
    images.sandboxctl(&["image", "build"]).assert_code(0);
    images.sandboxctl(&["image", "save", "ours.tar"]).assert_code(0);

    // The image exists throughout, and cannot identify these.
    let whole = std::fs::read(place.path("ours.tar")).unwrap();
    place.write("half.tar", &whole[..whole.len() / 2]);
    place.write("text", "hello");
    place.write("nothing", "");
    for (file, code) in [("half.tar", 125), ("text", 2), ("nothing", 2), (".", 2)] {
        let ended = images.sandboxctl(&["image", "load", file]);
        ended.assert_code(code);
        assert_eq!(ended.stdout, "", "{file}");
    }
    let other = Images { place: &place, agent: agent_of_this_test(&place, "another version") };
    other.sandboxctl(&["image", "build"]).assert_code(0);
    other.sandboxctl(&["image", "save", "other.tar"]).assert_code(0);
    let images = Images { place: &place, agent: agent_of_this_test(&place, "load") };
    let ended = images.sandboxctl(&["image", "load", "other.tar"]);
    ended.assert_code(125).assert_stderr_has("not the sandbox image of this version");

    images.sandboxctl(&["image", "load", "ours.tar"]).assert_code(0);
    let ours = images.current().unwrap();
    images.remove(&ours);
    let other = Images { place: &place, agent: agent_of_this_test(&place, "another version") };
    other.remove(&other.current().unwrap());
}

#[test]
fn a_rebuild_gives_another_image_which_is_in_use_from_then_on() {
    let place = Fixture::new();
    let images = Images { place: &place, agent: agent_of_this_test(&place, "rebuild") };
    let built = |args: &[&str]| -> String {
        let ended = images.sandboxctl(args);
        let image: Value = serde_json::from_str(&ended.assert_code(0).stdout).unwrap();
        image["id"].as_str().unwrap().to_owned()
    };
    let mut ids = vec![built(&["image", "build", "--json"])];
    // Several within a second: their times, in seconds, are equal.
    for _ in 0..3 {
        let id = built(&["image", "build", "--rebuild", "--json"]);
        assert!(!ids.contains(&id), "{id} {ids:?}");
        assert_eq!(images.current().unwrap()["id"], *id);
        ids.push(id);
    }
    for id in &ids {
        images.sandboxctl(&["image", "rm", id]).assert_code(0);
    }
}

#[test]
fn a_false_sandbox_image_is_not_used() {
    let place = Fixture::new();
    let images = Images { place: &place, agent: agent_of_this_test(&place, "claim") };
    place.write("one.luau", "return 1");
    images.sandboxctl(&["image", "build"]).assert_code(0);
    let ours = images.current().unwrap();
    let id = ours["id"].as_str().unwrap();
    let label = "{{index .Config.Labels \"sandboxctl.image\"}}";
    let label = docker_lines(&["image", "inspect", "--format", label, id]).remove(0);
    images.remove(&ours);

    place.write("root/.sandbox/agent", "#!/bin/sh");
    let tar = place.path("claim.tar");
    let root = place.path("root");
    let status = Command::new("tar").arg("-cf").arg(&tar).arg("-C").arg(root).arg(".").status();
    assert!(status.unwrap().success());
    let label = format!("LABEL sandboxctl.image={label}");
    let entrypoint = "ENTRYPOINT [\"/.sandbox/agent\"]";
    let tar = tar.to_str().unwrap();
    let claim = docker_lines(&["import", "--change", &label, "--change", entrypoint, tar]);
    // Podman says it twice.
    let claim = claim[0].split(": ").next().unwrap();
    assert_eq!(images.current(), None, "it is newer than any, and none");
    images.sandboxctl(&["run", "one.luau", "--no-io"]).assert_code(0);
    let used = images.current().expect("the run built its own");
    assert_ne!(used["id"], *claim);
    images.remove(&used);
    docker(&["image", "rm", "--force", claim]);
}

#[test]
fn ids_that_name_no_image_are_refused_before_anything_is_removed() {
    let place = Fixture::new();
    let images = Images { place: &place, agent: agent_of_this_test(&place, "ids") };
    images.sandboxctl(&["image", "build"]).assert_code(0);
    let built = images.current().unwrap();
    let id = built["id"].as_str().unwrap();
    for (wrong, words) in [("sha256:", "too short"), ("fffffffffffffff", "no image has it")] {
        let ended = images.sandboxctl(&["image", "rm", id, wrong]);
        ended.assert_code(2).assert_stderr_has(words);
        assert_eq!(images.current().as_ref(), Some(&built));
    }
    images.sandboxctl(&["image", "rm", &id[..20]]).assert_code(0);
    assert_eq!(images.current(), None);
}

#[test]
fn an_engine_image_without_an_agent_is_named_with_its_key() {
    let place = Fixture::new();
    let images = Images { place: &place, agent: agent_of_this_test(&place, "key") };
    images.sandboxctl(&["image", "build"]).assert_code(0);
    let built = images.current().unwrap();
    place.write("one.luau", "return 1");
    let id = built["id"].as_str().unwrap();
    place.write("mine.toml", format!("[engine]\nimage = '{id}'\n"));
    place.write("none.toml", "[engine]\nimage = 'no-such-image'\n");
    let run = |file| ["run", "--no-io", "--config", file, "one.luau"];
    images.sandboxctl(&run("mine.toml")).assert_code(0);
    let ended = images.sandboxctl(&run("none.toml"));
    ended.assert_code(125).assert_stderr_has("engine.image 'no-such-image' names no image");
    // To another version it is not the right one.
    let ended = place.sandboxctl(run("mine.toml"));
    ended.assert_code(125).assert_stderr_has("is not the sandbox image of this version");
    images.remove(&built);
}

#[test]
fn completion_offers_the_images_of_the_engine() {
    let place = Fixture::new();
    // One that stops waiting for a slow engine leaves its lock to the next command.
    place.expect_a_dead_instance();
    let image = Rootfs::busybox().provide();
    let [_, name] = &image.args()[..] else { panic!("{:?}", image.args()) };
    let start = &name[..name.len() - 2];
    for (words, index) in [(vec!["exec", start], "2"), (vec!["run", "--image", start], "3")] {
        // It offers nothing where the engine is slow.
        eventually("the image is offered", || {
            let mut asked = place.command(["--", "sandboxctl"]);
            asked
                .args(&words)
                .env("SANDBOXCTL_COMPLETE", "bash")
                .env("_CLAP_COMPLETE_INDEX", index);
            let ended = finish(asked);
            ended.assert_code(0).stdout.contains(name.as_str()).then_some(())
        });
    }
}

#[test]
fn program_that_is_not_an_agent_is_an_internal_error() {
    let place = Fixture::new();
    let agent = place.write("agent", "not a program");
    let images = Images { place: &place, agent };
    place.write("one.luau", "return 1");
    let ended = images.sandboxctl(&["run", "one.luau", "--no-io"]);
    ended.assert_code(125).assert_stderr_has("SANDBOX_AGENT");
}

/// An engine that is misled in spite of the look at the image's links: what that found is made out to
/// have been nothing.
#[test]
fn leftovers_of_an_engine_in_the_io_dir_are_reported() {
    if !has(Feature::LinksFound) {
        return;
    }
    let provided = Rootfs::busybox().link("in/given", "/io/made").provide();
    let place = Fixture::new();
    place.write("sandbox-files/x", "");
    place.write("given", "given");
    let launch = || {
        let mut command = place.command(["exec"]);
        command.args(provided.args());
        command.args(["--io-dir", "sandbox-files", "--in", "given", "--", "true"]);
        finish(command)
    };
    launch().assert_stderr_has("has a symbolic link at /in/given, where");
    assert!(!place.path("sandbox-files/made").exists());
    let mut forgotten = 0;
    for entry in std::fs::read_dir(place.state().join("sandboxctl")).unwrap() {
        let path = entry.unwrap().path();
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        if text.contains("\"/in/given\":\"link\"") {
            std::fs::write(path, text.replace(":\"link\"", ":\"missing\"")).unwrap();
            forgotten += 1;
        }
    }
    assert_eq!(forgotten, 1);
    let ended = launch();
    assert_eq!(ended.code, 125, "{ended:#?}");
    ended.assert_stderr_has("the engine has mounted something at /io/made, inside /io");
    ended.assert_stderr_has("what it created as a mount point is left behind");
    assert!(place.path("sandbox-files/made").exists());
}
