//! Which host directories sandboxes may use: those below directories that the configuration allows.
//!
//! The resolved path is checked. Links are resolved before paths are compared, by component; the
//! directory that was finally opened is checked again, because links can be planted in between. A
//! sandbox's protected names also apply to the path of its host directory: in a sandbox over
//! `.git`, `hooks` would otherwise not be protected.

use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use sandbox_api::ErrorKind;
use sandbox_dirfd::real_path;
use sandbox_protocol::protected::{ProtectedNames, fold};

use crate::error::ToolError;

/// The directories below which sandboxes may have their host directories.
#[derive(Debug, Clone)]
pub(super) struct MountPolicy {
    /// The base of relative paths.
    working_directory: PathBuf,
    /// With links resolved when the server started.
    allowed: Vec<PathBuf>,
    protected: ProtectedNames,
}

impl MountPolicy {
    /// Resolves the directories once, so that they cannot be replaced by links later.
    pub fn new(
        working_directory: &Path,
        allowed: &[PathBuf],
        protected: &[String],
    ) -> io::Result<Self> {
        let allowed = allowed.iter().map(|path| {
            real_path(&working_directory.join(path)).map_err(|error| {
                io::Error::new(error.kind(), format!("{}: {error}", path.display()))
            })
        });
        Ok(Self {
            working_directory: working_directory.to_owned(),
            allowed: allowed.collect::<io::Result<_>>()?,
            protected: ProtectedNames::new(protected.iter().map(String::as_str)),
        })
    }

    /// The resolved path of a host directory, if it is allowed.
    pub fn check(&self, given: &str) -> Result<PathBuf, ToolError> {
        let refuse = |problem: String| {
            ToolError::of_value(ErrorKind::InvalidRequest, "projectOutPath", given, problem)
        };
        if given.is_empty() {
            return Err(refuse("it is empty".to_owned()));
        }
        if given.contains('\0') {
            return Err(refuse("it has a NUL byte".to_owned()));
        }
        let joined = self.working_directory.join(given);
        let path = real_path(&joined).map_err(|error| {
            // The errors of other directories would reveal what exists there.
            let existing = joined.ancestors().find_map(|above| above.canonicalize().ok());
            match existing.is_some_and(|above| self.is_below_allowed(&above)) {
                true => refuse(error.to_string()),
                false => self.not_allowed(given),
            }
        })?;
        if self.allows(&path) {
            return Ok(path);
        }
        if self.is_below_allowed(&path) {
            let (kind, problem) = (ErrorKind::Protected, "a protected name");
            return Err(ToolError::of_value(kind, "projectOutPath", given, problem)
                .with_hint("filesystem.protected names what no operation may change"));
        }
        Err(self.not_allowed(given))
    }

    /// The first of the allowed directories.
    pub fn first_allowed(&self) -> Option<&Path> {
        self.allowed.first().map(PathBuf::as_path)
    }

    fn is_below_allowed(&self, path: &Path) -> bool {
        self.allowed.iter().any(|allowed| path.starts_with(allowed))
    }

    /// Whether a resolved path may be used by a sandbox.
    pub fn allows(&self, path: &Path) -> bool {
        self.allowed
            .iter()
            .any(|allowed| path.starts_with(allowed) && !self.is_protected(allowed, path))
    }

    /// Whether the part of `path` below `allowed` is a protected name, is inside one, or could
    /// contain the rest of one. Names in the configured path itself are allowed.
    fn is_protected(&self, allowed: &Path, path: &Path) -> bool {
        let depth = allowed.components().count();
        let components: Vec<_> =
            path.components().map(|part| fold(part.as_os_str().as_bytes())).collect();
        components.len() > depth
            && (self.protected.cover(&components, depth) || self.protected.begin_in(&components))
    }

    /// The error of a host directory that is not allowed.
    pub fn not_allowed(&self, given: &str) -> ToolError {
        let allowed: Vec<_> = self.allowed.iter().map(|path| path.display().to_string()).collect();
        let hint = match allowed.is_empty() {
            true => "the configuration allows none".to_owned(),
            false => format!("allowed: {}", allowed.join(", ")),
        };
        let path = given.escape_debug();
        let message = format!("projectOutPath '{path}' is under none of tools.allowed_out_paths");
        ToolError::new(ErrorKind::Policy, message).with_hint(hint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    struct Here {
        folder: tempfile::TempDir,
        work: PathBuf,
    }

    impl Here {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let root = folder.path().canonicalize().unwrap();
            fs::create_dir_all(root.join("work/sub")).unwrap();
            fs::create_dir_all(root.join("work2")).unwrap();
            Self { work: root.join("work"), folder }
        }

        fn with(&self, allowed: &[&str]) -> MountPolicy {
            let allowed: Vec<PathBuf> = allowed.iter().map(PathBuf::from).collect();
            MountPolicy::new(&self.work, &allowed, &[]).unwrap()
        }

        fn check(&self, allowed: &[&str], given: &str) -> Result<PathBuf, ErrorKind> {
            self.with(allowed).check(given).map_err(|error| error.kind)
        }
    }

    #[test]
    fn allowed_directory_covers_paths_by_component() {
        let here = Here::new();
        let out = Ok(here.work.join("out"));
        for given in
            ["out", "./out", "out/", "sub/../out", &here.work.join("out").to_string_lossy()]
        {
            assert_eq!(here.check(&["."], given), out, "{given}");
        }
        assert_eq!(here.check(&["."], "."), Ok(here.work.clone()));
        assert_eq!(here.check(&["sub", "out"], "out/a/b"), Ok(here.work.join("out/a/b")));
        let outside = here.folder.path().join("work2");
        for given in ["..", "../work2", "../workx", "sub/../../work2", "/", "/etc"] {
            assert_eq!(here.check(&["."], given), Err(ErrorKind::Policy), "{given}");
        }
        assert_eq!(here.check(&["sub"], "subx"), Err(ErrorKind::Policy));
        assert_eq!(here.check(&[], "out"), Err(ErrorKind::Policy));
        let allowed = outside.to_string_lossy().into_owned();
        assert_eq!(
            here.check(&[&allowed], "../work2/a"),
            Ok(outside.canonicalize().unwrap().join("a"))
        );
    }

    #[test]
    fn links_count_for_what_they_lead_to() {
        let here = Here::new();
        symlink(here.folder.path().join("work2"), here.work.join("away")).unwrap();
        symlink("sub", here.work.join("within")).unwrap();
        symlink("nowhere/x", here.work.join("dangling")).unwrap();
        fs::write(here.folder.path().join("work2/file"), "").unwrap();
        // The error does not reveal whether it exists, or its type.
        for given in ["away", "away/x", "away/../work2", "away/file/x", "/etc/passwd/x"] {
            assert_eq!(here.check(&["."], given), Err(ErrorKind::Policy), "{given}");
        }
        assert_eq!(here.check(&["."], "within/x"), Ok(here.work.join("sub/x")));
        assert_eq!(here.check(&["."], "away/../work/out"), Ok(here.work.join("out")));
        for given in ["dangling", "dangling/x", "none/../out", "", "a\0b"] {
            assert_eq!(here.check(&["."], given), Err(ErrorKind::InvalidRequest), "{given:?}");
        }
    }

    #[test]
    fn a_protected_name_is_no_place_for_files() {
        let here = Here::new();
        let protected = [".git/hooks/", ".config/fish", ".ssh"].map(str::to_owned);
        let check = |allowed: &str, given: &str| {
            let allowed = MountPolicy::new(&here.work, &[allowed.into()], &protected).unwrap();
            allowed.check(given).map(drop).map_err(|error| error.kind)
        };
        for given in [
            ".git", ".git/hooks", ".git/hooks/x", "sub/.GIT", ".gi\u{200c}t", ".\u{17f}sh",
            "sub/.git.", "GIT~1/hooks", "a/.ssh/b", ".config", "x/.config/fish",
        ] {
            assert_eq!(check(".", given), Err(ErrorKind::Protected), "{given}");
        }
        for given in [".", ".git/objects", ".gitx", "hooks", ".config/x", "ssh"] {
            assert_eq!(check(".", given), Ok(()), "{given}");
        }
        // Also through a link; names in the configured path itself are allowed.
        fs::create_dir_all(here.work.join(".config/x")).unwrap();
        symlink(".config", here.work.join("harmless")).unwrap();
        assert_eq!(check(".", "harmless"), Err(ErrorKind::Protected));
        assert_eq!(check(".config", ".config"), Ok(()));
        assert_eq!(check(".config", ".config/x"), Ok(()));
        assert_eq!(check(".config", ".config/fish"), Err(ErrorKind::Protected));
    }

    #[test]
    fn an_allowed_directory_stays_what_it_was_at_the_start() {
        let here = Here::new();
        let allowed = here.with(&["out"]);
        symlink(here.folder.path().join("work2"), here.work.join("out")).unwrap();
        assert_eq!(allowed.check("out").unwrap_err().kind, ErrorKind::Policy);
    }
}
