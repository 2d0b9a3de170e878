//! Manifests of random changes of random trees, compared with walks before and after. A failure prints
//! the number of its case, which is its seed.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs::{self, File, FileTimes, Permissions};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{PermissionsExt as _, lchown, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

use sandbox_api::changes::{Change, ChangeManifest};
use serde_json::Value;

use super::super::exec_cli::Commands;
use super::{Dice, Seen, Tree, assert_no_stage_is_left, assert_same, tree};
use crate::engine::{Engine, engine};
use crate::fixture::finish;
use crate::shared;

/// How many changes a run makes.
const CHANGES: u64 = 60;
/// Names of files and directories.
const NAMES: &[&[u8]] = &[
    b"a", b"b", b"c", b"new\nline", b"back\\slash", b"not \xff utf-8", b"-dash", b"it's $x",
    b".dot",
];
const MODES: &[u32] = &[0o600, 0o644, 0o755, 0o700, 0o555, 0o400];
/// Only root can enter all of them.
const DIRECTORY_MODES: &[u32] = &[0o755, 0o700, 0o555, 0o1777];
/// A user who is not root.
const USER: (u32, u32) = (4321, 4322);

/// A path of one name to four.
fn path(dice: &mut Dice) -> Vec<u8> {
    let depth = 1 + dice.below(4);
    let names: Vec<&[u8]> = (0..depth).map(|_| *dice.pick(NAMES)).collect();
    names.join(&b'/')
}

/// Makes a random tree. What does not fit what is there is left out.
fn plant(io: &Path, dice: &mut Dice) {
    fs::create_dir_all(io).unwrap();
    fs::create_dir_all(io.join(["deep"; 60].join("/"))).unwrap();
    fs::write(io.join(["deep"; 60].join("/")).join("file"), "deep").unwrap();
    for number in 0..60 {
        let path = io.join(OsStr::from_bytes(&path(dice)));
        _ = fs::create_dir_all(path.parent().unwrap());
        _ = match dice.below(6) {
            0 => fs::create_dir_all(&path),
            1 => symlink(OsStr::from_bytes(dice.pick::<&[u8]>(NAMES)), &path),
            _ => fs::write(&path, format!("content {number}").repeat(number % 9)),
        };
    }
    for path in tree(io).keys().rev().filter(|path| !path.is_empty()) {
        let path = io.join(OsStr::from_bytes(path));
        let metadata = path.symlink_metadata().unwrap();
        if metadata.is_symlink() {
            continue;
        }
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000 + dice.below(1000));
        File::open(&path).unwrap().set_times(FileTimes::new().set_modified(time)).unwrap();
        if metadata.is_file() {
            fs::set_permissions(&path, Permissions::from_mode(*dice.pick(MODES))).unwrap();
        }
    }
}

/// A path that is there, or a random one.
fn some_path(dice: &mut Dice, known: &[Vec<u8>]) -> Vec<u8> {
    if dice.below(4) == 0 { path(dice) } else { dice.pick(known).clone() }
}

/// A program that changes a tree at random, and goes on where something cannot be done.
fn program(dice: &mut Dice, known: &[Vec<u8>]) -> OsString {
    let quote = |path: &[u8]| {
        let inner: Vec<u8> = path
            .iter()
            .flat_map(|&byte| match byte {
                b'\'' => b"'\\''".to_vec(),
                byte => vec![byte],
            })
            .collect();
        [&b"'./"[..], &inner, b"'"].concat()
    };
    let mut script = b"exec 2>/dev/null\n".to_vec();
    let mut line = |parts: &[&[u8]]| {
        script.extend(parts.concat());
        script.push(b'\n');
    };
    for number in 0..CHANGES {
        let one = quote(&some_path(dice, known));
        let other = quote(&some_path(dice, known));
        let mode = format!("{:o}", dice.pick(MODES));
        let directory_mode = format!("{:o}", dice.pick(DIRECTORY_MODES));
        let number = number.to_string();
        let seconds = (1_200_000_000 + dice.below(1000)).to_string();
        match dice.below(14) {
            0 | 1 => line(&[b"echo new ", number.as_bytes(), b" > ", &one]),
            2 => line(&[b"echo more >> ", &one]),
            3 => line(&[b"true > ", &one]),
            4 => line(&[b"truncate -s 3 ", &one]),
            5 => line(&[b"mkdir -p ", &one]),
            6 => line(&[b"rm -rf ", &one]),
            7 | 8 => line(&[b"mv -f ", &one, b" ", &other]),
            9 => {
                let (mode, directory_mode) = (mode.as_bytes(), directory_mode.as_bytes());
                line(&[b"if [ -d ", &one, b" ]; then chmod ", directory_mode, b" ", &one]);
                line(&[b"else chmod ", mode, b" ", &one, b"; fi"]);
            }
            10 => line(&[b"rm -f ", &one, b" && ln -s ", &other, b" ", &one]),
            11 => {
                line(&[b"rm -rf ", &one, b"; mkdir ", &one, b" && echo in > ", &one, b"/in"]);
            }
            // The same content at the same time: no change.
            12 => {
                line(&[b"cp -p ", &one, b" ./same && cat ./same > ", &one]);
                line(&[b"touch -r ./same ", &one, b"; rm -rf ./same"]);
            }
            _ => line(&[b"touch -d @", seconds.as_bytes(), b" ", &one]),
        }
    }
    script.extend_from_slice(b"exit ${1:-0}\n");
    OsString::from_vec(script)
}

/// As [`program`], by a script.
fn script(dice: &mut Dice, known: &[Vec<u8>]) -> String {
    let quote = |path: &[u8]| {
        let bytes = path.iter().map(|byte| format!("\\x{byte:02x}"));
        format!("\"{}\"", bytes.collect::<String>())
    };
    let mut code = String::new();
    for number in 0..CHANGES {
        let one = quote(&some_path(dice, known));
        let other = quote(&some_path(dice, known));
        let call = match dice.below(9) {
            0..=2 => format!("fs.write, {one}, 'new {number}'"),
            3 => format!("fs.write, {one}, 'more', {{append = true}}"),
            4 => format!("fs.mkdir, {one}"),
            5 => format!("fs.remove, {one}, {{recursive = true}}"),
            6 => format!("fs.rename, {one}, {other}, {{overwrite = true}}"),
            7 => format!("fs.copy, {one}, {other}, {{recursive = true, overwrite = true}}"),
            _ => format!("function() io.open({one}, 'r+'):write('xyz'):close() end"),
        };
        writeln!(code, "pcall({call})").unwrap();
    }
    code
}

/// What the walks say of a changed path, in the members of the manifest.
fn expected(path: &[u8], before: Option<&Seen>, after: Option<&Seen>) -> Option<String> {
    let op = match (before, after) {
        (None, Some(_)) => "created",
        (Some(_), None) => "removed",
        (Some(one), Some(other)) if (one.kind, &one.sha256) != (other.kind, &other.sha256) => {
            "modified"
        }
        (Some(one), Some(other)) if one.mode != other.mode => "mode",
        (Some(one), Some(other)) if one.kind != "directory" && one.modified != other.modified => {
            "times"
        }
        _ => return None,
    };
    let mode = |seen: &Seen| (seen.kind != "symlink").then(|| format!("{:04o}", seen.mode));
    let state = |seen: &Seen| (seen.bytes, seen.sha256.clone(), mode(seen));
    let kind = after.or(before).unwrap().kind;
    let target = after.and_then(|it| it.target.as_deref()).map(String::from_utf8_lossy);
    let path = OsStr::from_bytes(path);
    let (after, before) = (after.map(state).unwrap_or_default(), before.map(state));
    Some(format!("{path:?} {op} {kind} {after:?} {target:?} before {before:?}"))
}

fn listed(change: &Change) -> String {
    let word = |value: Value| value.as_str().unwrap().to_owned();
    let kind = word(serde_json::to_value(change.kind).unwrap());
    let op = word(serde_json::to_value(change.op).unwrap());
    let path = OsStr::from_bytes(change.path.as_bytes());
    let after = (change.bytes, change.sha256.clone(), change.mode.clone());
    let before = change.before.clone().map(|it| (it.bytes, it.sha256, it.mode));
    format!("{path:?} {op} {kind} {after:?} {:?} before {before:?}", change.target)
}

/// Who is who in a case.
#[derive(Debug, Clone, Copy)]
struct Who {
    /// The owner of the io dir.
    owner: (u32, u32),
    /// Who calls sandboxctl.
    caller: (u32, u32),
}

fn own(path: &Path, owner: (u32, u32)) {
    for name in tree(path).keys() {
        let path = path.join(OsStr::from_bytes(name));
        lchown(path, Some(owner.0), Some(owner.1)).unwrap();
    }
}

/// Runs random changes as a trial and then in earnest, and compares the manifests with the walks.
fn check(who: Who) {
    let commands = Commands::new();
    let place = &commands.place;
    if who.caller.0 != 0 {
        place.give_to(who.caller);
    }
    for case in 0..shared::cases(4, 24) {
        let what = format!("case {case}, {who:?}");
        let mut dice = Dice::new(shared::seed() + case);
        let io = place.path(&format!("{case}/io"));
        plant(&io, &mut dice);
        let known: Vec<_> = tree(&io).into_keys().filter(|path| !path.is_empty()).collect();
        own(&io, who.owner);
        lchown(io.parent().unwrap(), Some(who.caller.0), Some(who.caller.1)).unwrap();
        let before = tree(&io);
        let program = program(&mut dice, &known);
        place.write(&format!("{case}/script.luau"), script(&mut dice, &known));
        // Committed by `always` although it fails, by `on-success` because it does not.
        let fails = case % 2 == 0;
        let run = |commit: &str| -> (ChangeManifest, Tree) {
            let manifest = place.path(&format!("{case}/{commit}.json"));
            let flags = [
                "--io-dir",
                io.to_str().unwrap(),
                "--commit",
                commit,
                "--changes",
                manifest.to_str().unwrap(),
            ];
            let command = if case % 3 == 2 {
                place.command(["run", &format!("{case}/script.luau")].iter().chain(&flags))
            } else {
                let args: [&OsStr; 5] = [
                    "sh".as_ref(),
                    "-c".as_ref(),
                    &program,
                    "sh".as_ref(),
                    if fails { "3" } else { "0" }.as_ref(),
                ];
                commands.exec(&flags, &args)
            };
            let command = match who.caller {
                (0, _) => command,
                caller => place.command_of(caller, &command),
            };
            let ended = finish(command);
            let code = if fails && case % 3 != 2 { 3 } else { 0 };
            assert_eq!(ended.code, code, "{what}, {commit}: {ended:#?}");
            let manifest = fs::read(manifest).unwrap();
            (serde_json::from_slice(&manifest).unwrap(), tree(&io))
        };
        let (trial, after) = run("never");
        assert_same(&after, &before, &format!("{what}, never"));
        let commit = if fails { "always" } else { "on-success" };
        let (manifest, after) = run(commit);
        assert_no_stage_is_left(place, &io, &what);
        let paths: BTreeSet<_> = before.keys().chain(after.keys()).collect();
        let walked: Vec<_> = paths
            .into_iter()
            .filter_map(|path| expected(path, before.get(path), after.get(path)))
            .collect();
        let found: Vec<_> = manifest.changes.iter().map(listed).collect();
        assert_eq!(found, walked, "{what}, {commit}");
        assert!(found.len() > 10, "{what}: {found:#?}");
        let tried: Vec<_> = trial.changes.iter().map(listed).collect();
        assert_eq!(tried, walked, "{what}, never");
    }
}

#[test]
fn manifests_of_random_changes_of_root_equal_a_walk() {
    check(Who { owner: (0, 0), caller: (0, 0) });
}

#[test]
fn manifests_of_random_changes_of_another_users_io_dir_equal_a_walk() {
    check(Who { owner: USER, caller: (0, 0) });
}

#[test]
fn manifests_of_random_changes_equal_a_walk_if_the_caller_is_not_root() {
    // The embedded engine is root's.
    if engine() == Engine::Docker {
        check(Who { owner: USER, caller: USER });
    }
}
