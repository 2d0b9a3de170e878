//! A trailing slash: the same rule for every operation.

use sandbox_protocol::message::{EntryKind, Mkdir, Remove, Touch};

use super::operations::{
    APPEND, CREATE_NEW, IN_PLACE, OVERWRITE, edit, get, list, put, remove, tree, view, watch,
};
use super::search::glob;
use super::*;

const TARGETS: [&str; 5] = ["dir/", "file/", "link/", "fifo/", "none/"];
const IS_DIRECTORY: Option<ErrorKind> = Some(ErrorKind::IsDirectory);
const NOT_A_DIRECTORY: Option<ErrorKind> = Some(ErrorKind::NotADirectory);
const NOT_FOUND: Option<ErrorKind> = Some(ErrorKind::NotFound);
const SYMLINK: Option<ErrorKind> = Some(ErrorKind::Symlink);

type Operation = fn(&Files, &str) -> Result<(), FileError>;

fn forced(files: &Files, path: &str) -> Result<(), FileError> {
    files.remove_entry(&Remove { force: true, ..tree(path) }, &watch()).map(drop)
}

fn rename(files: &Files, from: &str, to: &str) -> Result<(), FileError> {
    files.rename(from.as_bytes(), to.as_bytes(), &watch())
}

fn open(files: &Files, path: &str, mode: OpenMode) -> Result<(), FileError> {
    files.open(path.as_bytes(), mode).map(drop)
}

#[test]
fn a_slash_at_the_end_means_a_directory_to_every_operation() {
    // The results of each operation for `dir/` and `none/`; all of them fail for the others.
    let table: [(&str, Operation, Option<ErrorKind>, Option<ErrorKind>); 22] = [
        ("read", |files, path| get(files, path, 0, None).map(drop), IS_DIRECTORY, NOT_FOUND),
        ("view", |files, path| view(files, path).map(drop), IS_DIRECTORY, NOT_FOUND),
        ("edit", |files, path| edit(files, path, "x", "y", 1), IS_DIRECTORY, NOT_FOUND),
        (
            "write",
            |files, path| put(files, path, OVERWRITE, b"").map(drop),
            IS_DIRECTORY,
            IS_DIRECTORY,
        ),
        (
            "in place",
            |files, path| put(files, path, IN_PLACE, b"").map(drop),
            IS_DIRECTORY,
            IS_DIRECTORY,
        ),
        (
            "append",
            |files, path| put(files, path, APPEND, b"").map(drop),
            IS_DIRECTORY,
            IS_DIRECTORY,
        ),
        (
            "create",
            |files, path| put(files, path, CREATE_NEW, b"").map(drop),
            IS_DIRECTORY,
            IS_DIRECTORY,
        ),
        ("io r", |files, path| open(files, path, OpenMode::Read), IS_DIRECTORY, NOT_FOUND),
        ("io r+", |files, path| open(files, path, OpenMode::ReadUpdate), IS_DIRECTORY, NOT_FOUND),
        ("io w", |files, path| open(files, path, OpenMode::Write), IS_DIRECTORY, IS_DIRECTORY),
        (
            "io a+",
            |files, path| open(files, path, OpenMode::AppendUpdate),
            IS_DIRECTORY,
            IS_DIRECTORY,
        ),
        ("list", |files, path| list(files, path, None, None).map(drop), None, NOT_FOUND),
        ("io.list", |files, path| files.list(path.as_bytes()).map(drop), None, NOT_FOUND),
        ("glob", |files, path| glob(files, path, "*").map(drop), None, None),
        ("exists", |files, path| files.exists(path.as_bytes()).map(drop), None, None),
        ("stat", |files, path| files.stat(path.as_bytes()).map(drop), None, NOT_FOUND),
        ("mkdir", |files, path| files.mkdir(&Mkdir::new(path)).map(drop), None, None),
        ("touch", |files, path| files.touch(&Touch::new(path)).map(drop), None, IS_DIRECTORY),
        ("remove", |files, path| remove(files, path, false).map(drop), None, NOT_FOUND),
        ("force", forced, None, None),
        ("os.remove", |files, path| files.remove(path.as_bytes()), IS_DIRECTORY, NOT_FOUND),
        ("rename", |files, path| rename(files, path, "moved/"), None, NOT_FOUND),
    ];
    for (name, operation, of_directory, of_nothing) in table {
        on_both(|io, setup| {
            for path in TARGETS {
                fs::create_dir_all(io.join("dir")).unwrap();
                fs::write(io.join("file"), b"x").unwrap();
                _ = symlink("dir", io.join("link"));
                _ = mknodat(CWD, io.join("fifo"), FileType::Fifo, Mode::from_raw_mode(0o666), 0);
                let (files, _) = setup().open();
                let expected = match path {
                    "dir/" => of_directory,
                    "link/" => SYMLINK,
                    "none/" => of_nothing,
                    _ => NOT_A_DIRECTORY,
                };
                let found = operation(&files, path).err();
                assert_eq!(found.as_ref().map(|error| error.kind), expected, "{name} {path}");
                let shown = found.map_or(String::new(), |error| error.to_string());
                assert!(shown.is_empty() || shown.contains(path), "{name} {path}: {shown}");
                // The same with a dot after the slash.
                if expected.is_some() {
                    let found = operation(&files, &format!("{path}.")).unwrap_err();
                    assert_eq!(Some(found.kind), expected, "{name} {path}.");
                }
                assert_eq!(fs::read(io.join("file")).unwrap(), b"x", "{name} {path}");
                assert!(io.join("link").is_symlink() && io.join("fifo").exists());
            }
        });
    }
}

#[test]
fn a_rename_onto_a_path_with_a_slash_takes_directories_only() {
    for (from, to, expected) in [
        ("dir", "none/", Ok(())),
        ("dir/", "none", Ok(())),
        ("dir", "empty/", Ok(())),
        ("file", "none/", Err("file: Not a directory")),
        ("file", "empty/", Err("empty/: Is a directory: name empty/file")),
        ("file", "empty/.", Err("empty/.: Is a directory: name empty/./file")),
        ("file", "other/", Err("other/: Not a directory")),
        ("dir", "other/", Err("other/: Not a directory")),
        ("dir", "link/", Err("link/: a symbolic link")),
        ("file", "link/", Err("link/: a symbolic link")),
        ("link/", "none", Err("link/: a symbolic link")),
    ] {
        on_both(|io, setup| {
            fs::create_dir(io.join("dir")).unwrap();
            fs::create_dir(io.join("empty")).unwrap();
            fs::write(io.join("file"), b"x").unwrap();
            fs::write(io.join("other"), b"y").unwrap();
            symlink("dir", io.join("link")).unwrap();
            let (files, _) = setup().open();
            let renamed = rename(&files, from, to).map_err(|error| error.to_string());
            assert_eq!(renamed, expected.map_err(str::to_owned), "{from} {to}");
            assert_eq!(fs::read(io.join("other")).unwrap(), b"y");
        });
    }
}

#[test]
fn path_below_a_file_does_not_exist() {
    on_both(|io, setup| {
        fs::write(io.join("file"), b"x").unwrap();
        let (files, _) = setup().open();
        for (path, there) in [("file/x", None), ("file/x/", None), ("none/x/", None)] {
            assert_eq!(files.exists(path.as_bytes()).unwrap().1, there, "{path}");
            forced(&files, path).unwrap();
            assert_eq!(glob(&files, path, "*").unwrap(), [""; 0], "{path}");
        }
        assert_eq!(files.exists(b"file").unwrap().1, Some(EntryKind::File));
        let (path, there) = files.exists(b"none/").unwrap();
        assert_eq!((path.to_string().as_str(), there), ("/io/none", None));
    });
}
