//! Which paths the sandbox's owner allows, in addition to the mounts' own access.

use std::borrow::Cow;

use sandbox_protocol::message::{Access, FileScope, Policy};
use sandbox_protocol::path::{GuestPath, PathError};
use sandbox_protocol::protected::{ProtectedNames, fold};

/// `allowed_paths` and `protected`, parsed.
#[derive(Debug)]
pub struct PathPolicy {
    allowed: Vec<(GuestPath, Access)>,
    protected: ProtectedNames,
}

impl PathPolicy {
    /// Parses the policy of `hello`.
    ///
    /// # Errors
    ///
    /// [`PathError`] for an invalid allowed path.
    pub fn new(policy: &Policy) -> Result<Self, PathError> {
        let allowed = policy.allowed_paths.iter();
        let allowed =
            allowed.map(|rule| GuestPath::new(&rule.path).map(|path| (path, rule.access)));
        // The mounts' own access decides.
        let anywhere =
            (policy.files == FileScope::All).then(|| Ok((GuestPath::root(), Access::Write)));
        let allowed = allowed.chain(anywhere);
        let protected = ProtectedNames::new(policy.protected.iter().map(String::as_str));
        Ok(Self { allowed: allowed.collect::<Result<_, _>>()?, protected })
    }

    /// The access of the most specific rule above `path`; if two rules have the same path, the
    /// narrower one.
    pub fn access(&self, path: &GuestPath) -> Option<Access> {
        let rules = self.allowed.iter().filter_map(|(prefix, access)| {
            let depth = path.strip_prefix(prefix).map(|_| prefix.components().count())?;
            Some((depth, *access == Access::Read, *access))
        });
        rules.max_by_key(|&(depth, read_only, _)| (depth, read_only)).map(|(_, _, access)| access)
    }

    /// Whether there are protected names.
    pub const fn has_protected(&self) -> bool {
        !self.protected.is_empty()
    }

    /// Whether `path` is, or lies below, a protected name.
    pub fn is_protected(&self, path: &GuestPath) -> bool {
        self.has_protected() && self.protected.cover(&folded(path), 0)
    }

    /// Whether a path that ends in these components, given from its end, is a protected name. For
    /// walks, which have checked every directory above.
    pub fn is_protected_end<'a>(&self, from_end: impl Iterator<Item = &'a [u8]>) -> bool {
        if !self.has_protected() {
            return false;
        }
        let mut end: Vec<_> = from_end.take(self.protected.longest()).map(fold).collect();
        end.reverse();
        self.protected.cover(&end, end.len().saturating_sub(1))
    }

    /// Whether `path` must not be moved, nor anything onto it: it is a protected name itself, or a
    /// directory that a protected name starts with. Otherwise `.git` could be moved away, changed
    /// and moved back.
    pub fn is_pinned(&self, path: &GuestPath) -> bool {
        if !self.has_protected() {
            return false;
        }
        let components = folded(path);
        self.protected.cover(&components, 0) || self.protected.begin_in(&components)
    }

    /// Whether a rule strictly below `path` is read-only, so that moving `path` would move what
    /// must not be changed.
    pub fn is_narrower_below(&self, path: &GuestPath) -> bool {
        self.allowed.iter().any(|(prefix, access)| {
            *access == Access::Read && prefix != path && prefix.is_under(path)
        })
    }
}

fn folded(path: &GuestPath) -> Vec<Cow<'_, [u8]>> {
    path.components().map(fold).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandbox_protocol::message::{AllowedPath, FileScope, IoErrors};

    fn path(text: &str) -> GuestPath {
        GuestPath::new(text).unwrap()
    }

    fn policy(allowed: &[(&str, Access)], protected: &[&str]) -> PathPolicy {
        let allowed = allowed.iter();
        PathPolicy::new(&Policy {
            io: true,
            io_errors: IoErrors::Raise,
            allowed_paths: allowed
                .map(|&(path, access)| AllowedPath { path: path.to_owned(), access })
                .collect(),
            protected: protected.iter().map(|&name| name.to_owned()).collect(),
            files: FileScope::Io,
        })
        .unwrap()
    }

    #[test]
    fn the_most_specific_rule_decides_by_component() {
        let policy = policy(
            &[
                ("/io", Access::Write),
                ("/io/keep", Access::Read),
                ("/io/keep/out", Access::Write),
                ("/x", Access::Write),
                ("/x", Access::Read),
            ],
            &[],
        );
        for (written, access) in [
            ("/io", Some(Access::Write)),
            ("/io/keep", Some(Access::Read)),
            ("/io/keep/a/b", Some(Access::Read)),
            ("/io/keep/out/a", Some(Access::Write)),
            ("/io/keeper", Some(Access::Write)),
            ("/iox", None),
            ("/", None),
            ("/x/y", Some(Access::Read)),
        ] {
            assert_eq!(policy.access(&path(written)), access, "{written}");
        }
    }

    #[test]
    fn a_protected_name_is_protected_wherever_it_stands() {
        let policy = policy(&[], &[".bashrc", ".git/hooks"]);
        for (written, protected, pinned) in [
            ("/io/.bashrc", true, true),
            ("/io/a/.BashRC", true, true),
            ("/io/.bashrc/x", true, true),
            ("/io/.bashrc2", false, false),
            ("/io/.git/hooks/pre-commit", true, true),
            ("/io/.git/config", false, false),
            ("/io/.ba\u{17f}hrc", true, true),
            ("/io/.b\u{200d}ashrc\u{feff}", true, true),
            ("/io/.gi\u{200c}t/HOO\u{212a}S/x", true, true),
            ("/io/.gi\u{200c}t", false, true),
            ("/io/.b\u{e0}shrc", false, false),
            ("/io/.git", false, true),
            ("/io/.git.", false, true),
            ("/io/git~1", false, true),
            ("/io/git~1/hooks /x", true, true),
            ("/io/BASHRC~1", true, true),
            ("/io/a/.git", false, true),
            ("/io/hooks", false, false),
            ("/io/x", false, false),
        ] {
            assert_eq!(policy.is_protected(&path(written)), protected, "{written}");
            assert_eq!(policy.is_pinned(&path(written)), pinned, "{written}");
        }
    }

    #[test]
    fn a_walk_asks_only_for_the_end_of_a_path() {
        let policy = policy(&[], &[".bashrc", ".git/hooks"]);
        for (written, protected) in [
            ("/io/.bashrc", true),
            ("/io/.bashrc/x", false),
            ("/io/a/.git/Hooks", true),
            ("/io/a/.git", false),
            ("/hooks", false),
        ] {
            let path = path(written);
            let found = policy.is_protected_end(path.components().rev());
            assert_eq!(found, protected, "{written}");
        }
    }
}
