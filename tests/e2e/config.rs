//! `sandboxctl.toml`: precedence, refusals, origins.

use serde_json::Value;

use crate::fixture::{Fixture, finish};

#[test]
fn unknown_keys_are_refused_with_the_nearest_known_one() {
    let place = Fixture::new();
    place.write("ok.luau", "return 1");
    place.write("sandboxctl.toml", "[limits]\ntimeuot = \"3s\"\n");
    place
        .sandboxctl(["run", "ok.luau"])
        .assert_code(2)
        .assert_stderr_has("sandboxctl.toml")
        .assert_stderr_has("timeuot")
        .assert_stderr_has("timeout");
    place.write("sandboxctl.toml", "[output]\ndir = \"x\"\n");
    place.sandboxctl(["run", "ok.luau"]).assert_code(2).assert_stderr_has("[io]");
}

#[test]
fn a_project_file_narrows_and_never_widens() {
    let place = Fixture::new();
    place.write("ok.luau", "return 1");
    for (text, names) in [
        ("[limits]\ntimeout = \"5m\"\n", "limits.timeout"),
        ("[limits.ceiling]\ntimeout = \"5m\"\n", "ceiling"),
        ("[engine]\nhost = \"unix:///tmp/evil.sock\"\n", "engine"),
        ("[io]\ndir = \"../out\"\n", "io.dir"),
        ("[io]\ndir = \"/etc\"\n", "io.dir"),
        ("[io]\nmax_bytes = 104857600\n", "io.max_bytes"),
        ("[limits]\nmemory = \"plenty\"\n", "limits.memory"),
    ] {
        place.write("sandboxctl.toml", text);
        let ended = place.sandboxctl(["run", "ok.luau"]);
        ended.assert_stderr_has(names);
        assert!([2, 121].contains(&ended.code), "{text}: {ended:#?}");
    }
    std::os::unix::fs::symlink(place.home(), place.path("linked")).unwrap();
    place.write("sandboxctl.toml", "[io]\ndir = \"./linked/x\"\n");
    place.write("w.luau", "io.open('f', 'w')");
    let ended = place.sandboxctl(["run", "w.luau"]);
    assert_ne!(ended.code, 0, "{ended:#?}");
    assert_eq!(std::fs::read_dir(place.home()).unwrap().count(), 0);

    // Long enough for the script to have made its file, on a busy machine too.
    place.write("sandboxctl.toml", "[limits]\ntimeout = \"5s\"\n[io]\ndir = \"out\"\n");
    let document = place.run_json("io.open('f', 'w') while true do end", &[]);
    assert_eq!(document["status"], "timeout");
    assert!(place.path("out/f").exists());
}

#[test]
fn origins_name_file_environment_and_flag() {
    let place = Fixture::new();
    place.write("sandboxctl.toml", "[limits]\ntimeout = \"9s\"\npids = 30\n");
    let user = place.home().join(".config/sandboxctl");
    std::fs::create_dir_all(&user).unwrap();
    std::fs::write(user.join("config.toml"), "[limits]\nmemory = \"128MiB\"\ntimeout = \"20s\"\n")
        .unwrap();
    let mut command = place.command(["config", "show", "--origin", "--json"]);
    command.env("SANDBOXCTL_LIMITS_PIDS", "20");
    let ended = finish(command);
    let text = &ended.assert_code(0).stdout;
    let shown: Value = serde_json::from_str(text).unwrap();
    let shown = shown.to_string();
    for part in ["sandboxctl.toml", "config.toml", "SANDBOXCTL_LIMITS_PIDS", "default"] {
        assert!(shown.contains(part), "no {part} in {text}");
    }
}

#[test]
fn variables_set_no_ceiling_and_are_named_by_what_they_break() {
    let place = Fixture::new();
    place.write("ok.luau", "return 1");
    for (name, value, code, names) in [
        ("SANDBOXCTL_LIMITS_CEILING_TIMEOUT", "30m", 2, "SANDBOXCTL_LIMITS_CEILING_TIMEOUT"),
        ("SANDBOXCTL_LIMITS_TIMEOUT", "20m", 121, "SANDBOXCTL_LIMITS_TIMEOUT"),
        ("SANDBOXCTL_ENGINE_HOST", "ssh://x", 2, "SANDBOXCTL_ENGINE_HOST"),
    ] {
        let mut command = place.command(["run", "ok.luau"]);
        command.env(name, value);
        let ended = finish(command);
        ended.assert_code(code).assert_stderr_has(names).assert_stderr_has("hint:");
    }
}
