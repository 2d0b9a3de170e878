//! Which paths the sandbox's owner allows, beyond what the mounts allow.

use std::borrow::Cow;

use sandbox_protocol::message::{Access, Policy};
use sandbox_protocol::path::{GuestPath, PathError};

/// `allowed_paths` and `protected`, ready to be asked.
#[derive(Debug)]
pub struct PathPolicy {
    allowed: Vec<(GuestPath, Access)>,
    /// Each a sequence of components, folded.
    protected: Vec<Vec<Vec<u8>>>,
}

impl PathPolicy {
    /// Reads what `hello` brings.
    ///
    /// # Errors
    ///
    /// [`PathError`] for an allowed path that is none.
    pub fn new(policy: &Policy) -> Result<Self, PathError> {
        let allowed = policy.allowed_paths.iter();
        let allowed =
            allowed.map(|rule| GuestPath::new(&rule.path).map(|path| (path, rule.access)));
        let protected = policy.protected.iter();
        let protected = protected.map(|name| {
            let components = name.split('/').filter(|name| !name.is_empty());
            components.map(|name| fold(name.as_bytes()).into_owned()).collect::<Vec<_>>()
        });
        Ok(Self {
            allowed: allowed.collect::<Result<_, _>>()?,
            protected: protected.filter(|name| !name.is_empty()).collect(),
        })
    }

    /// What the most specific rule above `path` allows; where two rules have one path, the
    /// narrower.
    pub fn access(&self, path: &GuestPath) -> Option<Access> {
        let rules = self.allowed.iter().filter_map(|(prefix, access)| {
            let depth = path.strip_prefix(prefix).map(|_| prefix.components().count())?;
            Some((depth, *access == Access::Read, *access))
        });
        rules.max_by_key(|&(depth, read_only, _)| (depth, read_only)).map(|(_, _, access)| access)
    }

    /// Whether `path` is, or lies below, a protected name.
    pub fn is_protected(&self, path: &GuestPath) -> bool {
        if self.protected.is_empty() {
            return false;
        }
        let components: Vec<_> = path.components().map(fold).collect();
        self.protected
            .iter()
            .any(|name| components.windows(name.len()).any(|window| window == name.as_slice()))
    }

    /// Whether `path` may not be moved, nor anything onto it: a protected name itself, or a
    /// directory that one begins with. Else `.git` could be moved away, changed and moved back.
    pub fn is_pinned(&self, path: &GuestPath) -> bool {
        let components: Vec<_> = path.components().map(fold).collect();
        self.is_protected(path)
            || self.protected.iter().any(|name| {
                (1..name.len().min(components.len() + 1))
                    .any(|length| components[components.len() - length..] == name[..length])
            })
    }

    /// Whether a rule strictly below `path` allows reading only, so that moving `path` would move
    /// what may not be changed.
    pub fn is_narrower_below(&self, path: &GuestPath) -> bool {
        self.allowed.iter().any(|(prefix, access)| {
            *access == Access::Read && prefix != path && prefix.is_under(path)
        })
    }
}

/// A name without what the host's file system may ignore: case, and characters that are not seen.
fn fold(name: &[u8]) -> Cow<'_, [u8]> {
    if !name.iter().any(|byte| byte.is_ascii_uppercase() || !byte.is_ascii()) {
        return Cow::Borrowed(name);
    }
    match std::str::from_utf8(name) {
        Ok(text) => {
            let seen = text.chars().filter(|&character| !is_ignorable(character));
            // Through upper case: a long s is an s then, and a ligature its letters.
            let folded = seen.flat_map(char::to_uppercase).flat_map(char::to_lowercase);
            Cow::Owned(folded.collect::<String>().into_bytes())
        }
        Err(_) => Cow::Owned(name.to_ascii_lowercase()),
    }
}

/// Unicode's `Default_Ignorable_Code_Point`, which ext4, F2FS and HFS+ leave out where they fold.
const fn is_ignorable(character: char) -> bool {
    matches!(
        character,
        '\u{ad}'
            | '\u{34f}'
            | '\u{61c}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{202a}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff0}'..='\u{fff8}'
            | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandbox_protocol::message::{AllowedPath, IoErrors};

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
    fn a_protected_name_of_any_letters_is_one() {
        let policy = policy(&[], &["\u{c4}rger", "\u{fb01}le"]);
        for (written, protected) in [
            ("/io/\u{e4}RGER", true),
            ("/io/\u{c4}rger", true),
            ("/io/FILE", true),
            ("/io/arger", false),
        ] {
            assert_eq!(policy.is_protected(&path(written)), protected, "{written}");
        }
        let bytes = GuestPath::new(b"/io/\xe4rger").unwrap();
        assert!(!policy.is_protected(&bytes));
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
            ("/io/a/.git", false, true),
            ("/io/hooks", false, false),
            ("/io/x", false, false),
        ] {
            assert_eq!(policy.is_protected(&path(written)), protected, "{written}");
            assert_eq!(policy.is_pinned(&path(written)), pinned, "{written}");
        }
    }
}
