//! Files that one command line names twice. What is written to one of them would overwrite the other: a
//! report the receipt, or a receipt the script that it is of.

use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::target::{is_in, is_own_stream, parent_of};

/// What a command line names.
#[derive(Debug, Default)]
pub struct NamedFiles {
    written: Vec<(String, PathBuf)>,
    directories: Vec<(String, PathBuf)>,
    read: Vec<(String, PathBuf)>,
}

/// The target of a path, under any name: a file or directory by device and inode, or a name in one that is
/// missing. `None` for what nothing is lost in: pipes, devices, our own stdout; and for what cannot be made.
fn identity(path: &Path) -> Option<(u64, u64, Option<&OsStr>)> {
    match path.metadata() {
        Ok(_) if is_own_stream(path) => None,
        Ok(found) if found.is_file() || found.is_dir() => Some((found.dev(), found.ino(), None)),
        Ok(_) => None,
        Err(_) => {
            let parent = parent_of(path).metadata().ok()?;
            Some((parent.dev(), parent.ino(), Some(path.file_name()?)))
        }
    }
}

impl NamedFiles {
    /// A file that is written. `flag` names it.
    pub fn writes<'a>(&mut self, flag: &str, files: impl IntoIterator<Item = &'a Path>) {
        self.written.extend(files.into_iter().map(|file| (flag.to_owned(), file.to_owned())));
    }

    /// A directory that is made, and has nothing else in it.
    pub fn makes<'a>(&mut self, flag: &str, directories: impl IntoIterator<Item = &'a Path>) {
        let directories = directories.into_iter().map(|it| (flag.to_owned(), it.to_owned()));
        self.directories.extend(directories);
    }

    /// A file that is read.
    pub fn reads<'a>(&mut self, flag: &str, files: impl IntoIterator<Item = &'a Path>) {
        self.read.extend(files.into_iter().map(|file| (flag.to_owned(), file.to_owned())));
    }

    /// Refuses to write where something else is written or read.
    ///
    /// # Errors
    ///
    /// If two are the same.
    pub fn check(&self) -> Result<(), Error> {
        let others = self.directories.iter().chain(&self.read);
        let mut others: Vec<_> = others.map(|(flag, file)| (flag, identity(file))).collect();
        for (flag, file) in &self.written {
            let shown = file.display();
            if let Some((other, _)) =
                self.directories.iter().find(|(_, it)| is_in(parent_of(file), it))
            {
                return Err(Error::usage(flag, format!("{shown} is in the directory of {other}"))
                    .with_hint("name a file elsewhere"));
            }
            let Some(identity) = identity(file) else { continue };
            let other = others.iter().find(|(_, it)| it.as_ref() == Some(&identity));
            if let Some((other, _)) = other {
                return Err(Error::usage(flag, format!("{shown} is also the file of {other}"))
                    .with_hint("one would overwrite the other: name another file"));
            }
            others.push((flag, Some(identity)));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn check(written: &[&Path], directories: &[&Path], read: &[&Path]) -> Result<(), String> {
        let mut files = NamedFiles::default();
        for (index, file) in written.iter().enumerate() {
            files.writes(&format!("--out{index}"), [*file]);
        }
        files.makes("--artifacts-dir", directories.iter().copied());
        files.reads("--sign", read.iter().copied());
        files.check().map_err(|error| error.to_text())
    }

    #[test]
    fn output_files_differ_from_each_other_under_any_name() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("sub")).unwrap();
        fs::write(at("key"), "").unwrap();
        symlink("key", at("link")).unwrap();
        symlink("sub", at("other")).unwrap();
        fs::hard_link(at("key"), at("hard")).unwrap();
        let refused = check(&[&at("a"), &at("sub/../a")], &[], &[]).unwrap_err();
        assert!(
            refused.contains("--out1: ") && refused.contains("the file of --out0"),
            "{refused}"
        );
        check(&[&at("sub/a"), &at("other/a")], &[], &[]).unwrap_err();
        for name in ["key", "link", "hard", "sub/../key"] {
            let refused = check(&[&at(name)], &[], &[&at("key")]).unwrap_err();
            assert!(refused.contains("also the file of --sign"), "{refused}");
        }
        check(&[&at("out")], &[&at("out")], &[]).unwrap_err();
        let refused = check(&[&at("other/a")], &[&at("sub")], &[]).unwrap_err();
        assert!(refused.contains("in the directory of --artifacts-dir"), "{refused}");
        check(&[&at("a"), &at("sub/a")], &[&at("out")], &[&at("key")]).unwrap();
    }

    #[test]
    fn device_may_be_named_twice_and_what_is_only_read_too() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("f");
        fs::write(&file, "").unwrap();
        let null = Path::new("/dev/null");
        check(&[null, null], &[], &[null]).unwrap();
        check(&[], &[], &[&file, &file]).unwrap();
    }
}
