//! What tests share: each is a process of its own, and a program or an image is made once for all.
//!
//! `scripts/test` makes a directory for a run of the tests, names it in `SANDBOX_TEST_RUN`, and
//! removes it at the end, with the images that [`remove_image_at_end`] notes in it.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// The directory of this run of the tests.
fn run_dir() -> PathBuf {
    std::env::var_os("SANDBOX_TEST_RUN")
        .expect("SANDBOX_TEST_RUN is not set: ./scripts/test MODULE runs some of the tests")
        .into()
}

/// A word that no other run of the tests has: for names on an engine.
pub fn run_id() -> String {
    let dir = run_dir();
    dir.file_name().and_then(|name| name.to_str()).expect("a name of UTF-8").to_owned()
}

/// How many cases a test of random ones tries: the first number for each commit, the second one in
/// `./scripts/test full`.
pub fn cases<T>(commit: T, full: T) -> T {
    if std::env::var_os("SANDBOX_TEST_SEED").is_some() { full } else { commit }
}

/// What random cases begin with: the same for each commit, so that a failure comes again.
/// `./scripts/test full` prints the one that it takes, and `SANDBOX_TEST_SEED` repeats it.
pub fn seed() -> u64 {
    std::env::var("SANDBOX_TEST_SEED").map_or(1, |seed| seed.parse().unwrap())
}

/// The text that `make` gives, which is called once in a run of the tests: the first process that
/// asks makes it, others wait. After a failure the next one tries again.
pub fn once(name: &str, make: impl FnOnce() -> String) -> String {
    let made = run_dir().join(name);
    let lock = File::create(made.with_extension("lock")).unwrap();
    // Released when the file is closed, and with the process.
    lock.lock().unwrap();
    fs::read_to_string(&made).unwrap_or_else(|_| {
        let text = make();
        fs::write(&made, &text).unwrap();
        text
    })
}

/// A program that is built once: `build` makes a file at the path it is given. It is kept below
/// `target` for later runs, as long as `source` does not change.
pub fn program(name: &str, source: &[u8], build: impl FnOnce(&Path)) -> PathBuf {
    let digest = crate::rootfs::digest(source);
    let digest = &digest["sha256:".len()..][..16];
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{digest}"));
    once(&format!("{name}.program"), || {
        if !program.exists() {
            // Not as an extension: the compiler's temporary files are named after what comes before it.
            let part = program.with_file_name(format!("{name}-{}", std::process::id()));
            build(&part);
            fs::rename(part, &program).unwrap();
        }
        String::new()
    });
    program
}

/// Has `scripts/test` remove an image of Docker's at the end of the run: a name, or `label=NAME=VALUE`
/// for all that have the label.
pub fn remove_image_at_end(image: &str) {
    let list = OpenOptions::new().append(true).create(true).open(run_dir().join("images"));
    // One call: lines of other processes do not mix with it.
    list.unwrap().write_all(format!("{image}\n").as_bytes()).unwrap();
}
