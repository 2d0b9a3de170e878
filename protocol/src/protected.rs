//! Protected names: whether a path contains one, in any spelling that a file system treats as the
//! name.
//!
//! The io dir is on a file system of the host, which may fold case, or may later be mounted
//! elsewhere, such as with Windows' rules over SMB. Folding can differ between directories and
//! change later, so the same spellings are refused on every file system. These count as the name
//! itself:
//!
//! - other letter case, invisible characters (`.gi\u{200c}t`), and Unicode's canonically equivalent
//!   forms (`é` as one character or two): ext4, F2FS, HFS+, APFS;
//! - trailing dots and spaces (`.git.`, `.git `), and an alternate data stream (`.git::$DATA`):
//!   NTFS, FAT, SMB;
//! - the short names that NTFS and FAT generate (`GIT~1`, `SANDBO~1.TOM`).

use std::borrow::Cow;

use unicode_normalization::UnicodeNormalization as _;

/// Characters of a short name before its `~`, and of its extension.
const SHORT_BASE: usize = 6;
const SHORT_EXTENSION: usize = 3;
/// Characters of the name that remain in a short name with a four-digit hash.
const HASHED_BASE: usize = 2;
const HASH_DIGITS: usize = 4;

/// Names that must not be changed, each a sequence of path components.
#[derive(Debug, Clone, Default)]
pub struct ProtectedNames(Vec<Vec<Component>>);

#[derive(Debug, Clone)]
struct Component {
    folded: Vec<u8>,
    /// The names from which short names are generated.
    base: Vec<u8>,
    extension: Vec<u8>,
}

impl ProtectedNames {
    /// Parses names as they are configured: `.bashrc`, `.git/hooks`.
    pub fn new<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        let components = |name: &'a str| {
            let components = name.split('/').filter(|component| !component.is_empty());
            components.map(|component| Component::new(component.as_bytes())).collect::<Vec<_>>()
        };
        Self(names.into_iter().map(components).filter(|name| !name.is_empty()).collect())
    }

    /// Whether there are no names.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of components of the longest name.
    pub fn longest(&self) -> usize {
        self.0.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// Whether the path of these [folded](fold) components is, or lies below, a protected name whose
    /// last component is at `from` or after it.
    pub fn cover(&self, path: &[Cow<'_, [u8]>], from: usize) -> bool {
        self.0.iter().any(|name| {
            let first = (from + 1).saturating_sub(name.len());
            path.get(first..)
                .is_some_and(|path| path.windows(name.len()).any(|part| are(name, part)))
        })
    }

    /// Whether the path of these components ends with the first components of a longer protected
    /// name, as `a/.git` does for `.git/hooks`.
    pub fn begin_in(&self, path: &[Cow<'_, [u8]>]) -> bool {
        self.0.iter().any(|name| {
            (1..name.len().min(path.len() + 1))
                .any(|length| are(&name[..length], &path[path.len() - length..]))
        })
    }
}

fn are(name: &[Component], path: &[Cow<'_, [u8]>]) -> bool {
    name.iter().zip(path).all(|(component, folded)| component.is(folded))
}

impl Component {
    fn new(name: &[u8]) -> Self {
        let folded = fold(name).into_owned();
        let start = folded.iter().position(|byte| !matches!(byte, b'.' | b' ')).unwrap_or(0);
        let long = &folded[start..];
        let dot = long.iter().rposition(|&byte| byte == b'.').unwrap_or(long.len());
        let short = |part: &[u8]| -> Vec<u8> {
            let kept = part.iter().filter(|byte| !matches!(byte, b'.' | b' '));
            kept.map(|byte| if b"+,;=[]".contains(byte) { b'_' } else { *byte }).collect()
        };
        let (base, mut extension) = (short(&long[..dot]), short(&long[dot..]));
        extension.truncate(SHORT_EXTENSION);
        Self { folded, base, extension }
    }

    fn is(&self, folded: &[u8]) -> bool {
        self.folded == folded || (folded.contains(&b'~') && self.is_shortened_to(folded))
    }

    /// Whether `folded` is a short name of this one: `gitcon~1`, or with a hash `gi7eba~1`.
    fn is_shortened_to(&self, folded: &[u8]) -> bool {
        let Some(tilde) = folded.iter().rposition(|&byte| byte == b'~') else { return false };
        let (base, rest) = (&folded[..tilde], &folded[tilde + 1..]);
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let extension = match &rest[digits..] {
            [] => &[][..],
            [b'.', extension @ ..] => extension,
            _ => return false,
        };
        if digits == 0 || extension != self.extension {
            return false;
        }
        let head = |length: usize| &self.base[..length.min(self.base.len())];
        let hashed = head(HASHED_BASE);
        base == head((SHORT_BASE + 1).saturating_sub(digits).max(1))
            || base.strip_prefix(hashed).is_some_and(|hash| {
                hash.len() == HASH_DIGITS && hash.iter().all(u8::is_ascii_hexdigit)
            })
    }
}

/// A component as case-folding file systems see it.
pub fn fold(name: &[u8]) -> Cow<'_, [u8]> {
    let is_plain =
        |&byte: &u8| byte.is_ascii() && !byte.is_ascii_uppercase() && !matches!(byte, b':');
    if name.iter().all(is_plain) {
        return Cow::Borrowed(without_end(name));
    }
    let stream = name.iter().position(|&byte| byte == b':').filter(|&colon| colon > 0);
    let name = &name[..stream.unwrap_or(name.len())];
    let folded = match std::str::from_utf8(name) {
        Ok(text) => {
            let shown = text.nfd().filter(|&character| !is_ignorable(character));
            // By way of upper case: a long s becomes an s, and a ligature its letters.
            let upper = shown.flat_map(char::to_lowercase).flat_map(char::to_uppercase);
            upper.flat_map(char::to_lowercase).nfd().collect::<String>().into_bytes()
        }
        Err(_) => name.to_ascii_lowercase(),
    };
    Cow::Owned(without_end(&folded).to_vec())
}

/// Removes trailing dots and spaces; a name that consists of them stays as it is.
fn without_end(name: &[u8]) -> &[u8] {
    match name.iter().rposition(|byte| !matches!(byte, b'.' | b' ')) {
        Some(last) => &name[..=last],
        None => name,
    }
}

/// Unicode's `Default_Ignorable_Code_Point`, which is not seen, and which ext4, F2FS and HFS+ ignore when they fold.
pub const fn is_ignorable(character: char) -> bool {
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
    use proptest::prelude::*;

    fn has(names: &[&str], path: &str) -> (bool, bool) {
        let names = ProtectedNames::new(names.iter().copied());
        let path: Vec<_> = path.split('/').map(|name| fold(name.as_bytes())).collect();
        (names.cover(&path, 0), names.begin_in(&path))
    }

    #[test]
    fn every_spelling_of_a_protected_name_is_one() {
        for (name, spellings) in [
            (".git", &[".git", ".GIT", ".git.", ".git ", ".Git. .", ".git::$INDEX_ALLOCATION"][..]),
            (".git", &["git~1", "GIT~4", "git~12", ".gi\u{200c}t", ".git\u{feff}. "]),
            (".gitmodules", &["gitmod~1", "GITMOD~4", "gitmo~10", "gi7eba~1", "GI7EBA~9"]),
            (".bashrc", &[".ba\u{17f}hrc", "bashrc~1", ".bashrc:old"]),
            (".claude.json", &["claude~1.jso", ".CLAUDE.json."]),
            ("sandboxctl.toml", &["SANDBO~1.TOM"]),
            (".pre-commit-config.yaml", &["pre-co~1.yam"]),
            (".aider.conf.yml", &["aiderc~2.yml"]),
            ("\u{c4}rger", &["\u{e4}RGER"]),
            ("\u{fb01}le", &["FILE"]),
            ("caf\u{e9}", &["cafe\u{301}", "CAF\u{c9}", "CAFE\u{200b}\u{301}"]),
            ("cafe\u{301}", &["caf\u{e9}"]),
            // Marks in another order, and a precomposed letter.
            ("a\u{323}\u{302}", &["\u{1ead}", "a\u{302}\u{323}"]),
            ("\u{212b}", &["\u{e5}", "A\u{30a}"]),
            // A name may be configured in any spelling.
            (".GIT.", &[".git", "git~1"]),
        ] {
            for spelling in spellings {
                assert!(has(&[name], spelling).0, "{name} as {spelling}");
            }
        }
    }

    #[test]
    fn similar_names_are_not_protected() {
        for (name, others) in [
            (".git", &["git", ".gi", ".gitx", "..git", ". git", "git~", "git~x", "gi~1", "~1"][..]),
            (".git", &["git~1x", "git~1.txt", "gitgit~1", ":.git", ".git~1", "..."]),
            (".gitmodules", &["gitmo~1", "gi7xba~1", "gi7eba~1.t"]),
            (".bashrc", &[".bashrc2", "bashr~1", ".b\u{e0}shrc"]),
            ("sandboxctl.toml", &["sandbo~1", "sandbo~1.txt"]),
        ] {
            for other in others {
                assert!(!has(&[name], other).0, "{name} and {other}");
            }
        }
    }

    #[test]
    fn names_of_several_components_hold_by_component() {
        let names = [".git/hooks", ".bashrc"];
        for (path, expected) in [
            ("a/.git/hooks/x", (true, false)),
            ("git~1/HOOKS", (true, false)),
            (".git./config", (false, false)),
            ("a/.GIT", (false, true)),
            ("git~1", (false, true)),
            ("hooks", (false, false)),
            ("a/.bashrc/x", (true, false)),
        ] {
            assert_eq!(has(&names, path), expected, "{path}");
        }
        let names = ProtectedNames::new(names);
        let path: Vec<_> = [".bashrc", "a", "b"].map(|name| fold(name.as_bytes())).into();
        assert!(names.cover(&path, 0) && !names.cover(&path, 1) && !names.cover(&path, 9));
        let path: Vec<_> = [".git", "hooks"].map(|name| fold(name.as_bytes())).into();
        assert!(names.cover(&path, 1), "what counts is where it ends");
    }

    proptest! {
        #[test]
        fn folding_is_stable_and_leaves_a_name(name in proptest::collection::vec(any::<u8>(), 1..40)) {
            let folded = fold(&name).into_owned();
            prop_assert_eq!(fold(&folded).into_owned(), folded);
        }

        #[test]
        fn decorations_of_a_name_change_nothing(
            name in r"\.?[a-z]{1,12}(\.[a-z]{1,4})?", end in "[. ]{0,4}", stream in "(:[a-z$:]{0,8})?",
            upper in any::<bool>()
        ) {
            let spelt = if upper { name.to_uppercase() } else { name.clone() };
            let (covered, _) = has(&[&name], &format!("{spelt}{end}{stream}"));
            prop_assert!(covered);
        }
    }
}
