//! What sandboxes are made from: images and directories that are not ours, in which programs run.

use serde_json::{Value, json};

use sandbox_controller::{Outcome, Script};

use crate::library::Guest;
use crate::rootfs::{Provided, Rootfs};

/// A sandbox made from something, with the io dir of a place of its own.
struct Programs {
    guest: Guest,
    _provided: Provided,
}

impl Programs {
    fn of(rootfs: &Rootfs) -> Self {
        let provided = rootfs.provide();
        let guest = Guest::with(|spec| spec.root(provided.root()));
        Self { guest, _provided: provided }
    }

    /// What a script returns.
    #[track_caller]
    fn script(&self, source: &str) -> Value {
        let result = self.guest.wait(self.guest.sandbox.run(Script::new(source))).unwrap();
        let Outcome::Ok { result } = result.outcome else { panic!("{result:#?}") };
        serde_json::from_str(result.get()).unwrap()
    }

    /// What a program prints, run by a script.
    #[track_caller]
    fn output(&self, command: &[&str]) -> String {
        let [program, args @ ..] = command else { panic!("no program") };
        let (program, args) = (json!(program), json!(args).to_string());
        let args = args.replace('[', "{").replace(']', "}");
        let reply = self.script(&format!("return process.exec({program}, {args})"));
        assert_eq!(reply["code"], 0, "{reply:#}");
        reply["stdout"].as_str().unwrap().to_owned()
    }

    #[track_caller]
    fn shell(&self, script: &str) -> String {
        self.output(&["/bin/sh", "-c", script])
    }
}

#[test]
fn programs_of_an_image_of_static_ones_alone_run_in_it() {
    let programs = Programs::of(&Rootfs::busybox());
    assert_eq!(programs.output(&["echo", "hello"]), "hello\n");
    assert_eq!(programs.shell("cd /tmp && echo x > a && cat a && id -u"), "x\n0\n");
}
