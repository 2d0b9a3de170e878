//! Guest paths: the part of the path rules that needs no file system.
//!
//! A [`GuestPath`] is absolute, normalised, and free of everything that the rules refuse before the
//! kernel sees a path: NUL, `..`, over-long components. Only the kernel can check links and mounts.

use std::borrow::Cow;
use std::fmt;

use crate::{ErrorKind, WireString};

/// Longest component, in bytes (Linux `NAME_MAX`).
pub const MAX_COMPONENT_BYTES: usize = 255;
/// Longest path, in bytes (Linux `PATH_MAX` without its NUL).
pub const MAX_PATH_BYTES: usize = 4095;
/// Where inputs are mounted: `/in/NAME`.
pub const INPUTS: &str = "/in";

/// A normalised absolute path in the sandbox: `/io/out/a.csv`. It is bytes, like file names.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GuestPath(Vec<u8>);

/// A path as a caller wrote it, resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedPath {
    /// The normalised path.
    pub path: GuestPath,
    /// It was written with a trailing `/` or `/.`, so it must be a directory.
    pub wants_directory: bool,
}

/// Why a path is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PathError {
    /// The path is empty.
    #[error("the path is empty")]
    Empty,
    /// A NUL byte.
    #[error("the path has a NUL byte")]
    Nul,
    /// A component over [`MAX_COMPONENT_BYTES`].
    #[error("a name in the path is longer than {MAX_COMPONENT_BYTES} bytes")]
    ComponentTooLong,
    /// A path over [`MAX_PATH_BYTES`].
    #[error("the path is longer than {MAX_PATH_BYTES} bytes")]
    TooLong,
    /// A `..` component.
    #[error("'..' is not allowed in a path")]
    Parent,
    /// `~/…` in a sandbox without a home.
    #[error("this sandbox has no home directory")]
    NoHome,
    /// A relative path where an absolute one is required.
    #[error("the path is not absolute")]
    NotAbsolute,
}

impl PathError {
    /// The kind of the error.
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::Parent | Self::NoHome => ErrorKind::PathEscape,
            Self::Empty
            | Self::Nul
            | Self::ComponentTooLong
            | Self::TooLong
            | Self::NotAbsolute => ErrorKind::InvalidPath,
        }
    }
}

impl GuestPath {
    /// `/`, which is in no mount.
    pub fn root() -> Self {
        Self(b"/".to_vec())
    }

    /// Parses an absolute path as a caller wrote it.
    ///
    /// # Errors
    ///
    /// [`PathError`] if the rules refuse the path.
    pub fn new(path: impl AsRef<[u8]>) -> Result<Self, PathError> {
        let path = path.as_ref();
        if !path.is_empty() && path[0] != b'/' {
            return Err(PathError::NotAbsolute);
        }
        normalise(b"", path).map(|resolved| resolved.path)
    }

    /// Resolves a path as a caller wrote it: relative to `workdir`, `~/…` under `home`, or
    /// absolute.
    ///
    /// # Errors
    ///
    /// [`PathError`] if the rules refuse the path.
    pub fn resolve(
        written: &[u8],
        workdir: &Self,
        home: Option<&Self>,
    ) -> Result<ResolvedPath, PathError> {
        match written {
            [] => Err(PathError::Empty),
            [b'/', ..] => normalise(b"", written),
            [b'~'] | [b'~', b'/', ..] => {
                normalise(&home.ok_or(PathError::NoHome)?.0, &written[1..])
            }
            _ => normalise(&workdir.0, written),
        }
    }

    /// The bytes, starting with `/`.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The path relative to `prefix`, by component, without a leading `/`: empty for `prefix`
    /// itself.
    pub fn strip_prefix(&self, prefix: &Self) -> Option<&[u8]> {
        if prefix.0 == b"/" {
            return Some(&self.0[1..]);
        }
        match self.0.strip_prefix(prefix.0.as_slice())? {
            [] => Some(&[]),
            [b'/', rest @ ..] => Some(rest),
            _ => None,
        }
    }

    /// Whether this path is `prefix` or below it, by component.
    pub fn is_under(&self, prefix: &Self) -> bool {
        self.strip_prefix(prefix).is_some()
    }

    /// The components, in order.
    pub fn components(&self) -> impl DoubleEndedIterator<Item = &[u8]> {
        self.0.split(|&byte| byte == b'/').filter(|name| !name.is_empty())
    }

    /// The last component; empty for `/`.
    pub fn name(&self) -> &[u8] {
        self.components().next_back().unwrap_or_default()
    }

    /// Appends a component.
    ///
    /// # Errors
    ///
    /// [`PathError`] if `name` is not a single valid component.
    pub fn join(&self, name: &[u8]) -> Result<Self, PathError> {
        if name.contains(&b'/') || name == b"." || name.is_empty() {
            return Err(PathError::Empty);
        }
        normalise(&self.0, name).map(|resolved| resolved.path)
    }

    /// The text for people, with U+FFFD if the bytes are not UTF-8.
    pub fn to_string_lossy(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.0)
    }
}

impl From<&GuestPath> for WireString {
    fn from(path: &GuestPath) -> Self {
        Self::new(&path.0)
    }
}

/// What makes more of a glob than a path.
pub const GLOB_SPECIAL: [char; 5] = ['*', '?', '[', '{', '\\'];

/// The directory of a glob as it is written, with its final slash, and the pattern below it: all
/// names before the first one with a special character. The directory is empty where the pattern is
/// relative to the working directory. Nothing is below `~`, which is a path and no name.
pub fn split_glob(pattern: &str) -> (&str, &str) {
    if pattern.trim_end_matches('/') == "~" {
        return (pattern, "");
    }
    let literal = pattern.find(GLOB_SPECIAL).unwrap_or(pattern.len());
    let literal = pattern[..literal].len().min(pattern.trim_end_matches('/').len());
    pattern.split_at(pattern[..literal].rfind('/').map_or(0, |slash| slash + 1))
}

/// Joins a path below a directory to the directory as it is written; either may be empty.
pub fn join_written(directory: &[u8], below: &[u8]) -> Vec<u8> {
    let slash = !directory.is_empty() && !below.is_empty() && !directory.ends_with(b"/");
    [directory, if slash { b"/" } else { b"" }, below].concat()
}

/// `written` below `base`, which is normalised, or empty for the root.
fn normalise(base: &[u8], written: &[u8]) -> Result<ResolvedPath, PathError> {
    if written.is_empty() && base.is_empty() {
        return Err(PathError::Empty);
    }
    if written.contains(&0) {
        return Err(PathError::Nul);
    }
    if written.len() > MAX_PATH_BYTES {
        return Err(PathError::TooLong);
    }
    let mut path = if base == b"/" { Vec::new() } else { base.to_vec() };
    for component in written.split(|&byte| byte == b'/') {
        match component {
            b"" | b"." => {}
            b".." => return Err(PathError::Parent),
            name if name.len() > MAX_COMPONENT_BYTES => return Err(PathError::ComponentTooLong),
            name => {
                path.push(b'/');
                path.extend_from_slice(name);
            }
        }
    }
    if path.is_empty() {
        path.push(b'/');
    }
    if path.len() > MAX_PATH_BYTES {
        return Err(PathError::TooLong);
    }
    let wants_directory = written.ends_with(b"/") || written.ends_with(b"/.") || written == b".";
    Ok(ResolvedPath { path: GuestPath(path), wants_directory })
}

impl fmt::Display for GuestPath {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.to_string_lossy())
    }
}

impl fmt::Debug for GuestPath {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}", self.to_string_lossy())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn resolve(written: &str) -> Result<String, PathError> {
        let io = GuestPath::new("/io").unwrap();
        let workdir = GuestPath::new("/io/work").unwrap();
        GuestPath::resolve(written.as_bytes(), &workdir, Some(&io))
            .map(|resolved| resolved.path.to_string())
    }

    #[test]
    fn paths_resolve_as_documented() {
        for (written, path) in [
            ("a.csv", "/io/work/a.csv"),
            ("./a//b/./c", "/io/work/a/b/c"),
            ("~/a", "/io/a"),
            ("~", "/io"),
            ("~a", "/io/work/~a"),
            ("a/~/b", "/io/work/a/~/b"),
            ("/in/x", "/in/x"),
            ("//in///x/", "/in/x"),
            (".", "/io/work"),
            ("...", "/io/work/..."),
        ] {
            assert_eq!(resolve(written).as_deref(), Ok(path), "{written}");
        }
    }

    #[test]
    fn refused_paths_name_the_rule() {
        for (written, error) in [
            ("", PathError::Empty),
            ("..", PathError::Parent),
            ("a/../b", PathError::Parent),
            ("/io/..", PathError::Parent),
            ("~/..", PathError::Parent),
            ("a\0b", PathError::Nul),
            (&"x".repeat(256), PathError::ComponentTooLong),
            (&"x/".repeat(2048), PathError::TooLong),
        ] {
            assert_eq!(resolve(written), Err(error), "{written}");
        }
        assert_eq!(resolve(&"x".repeat(255)).map(|path| path.len()), Ok(264));
    }

    #[test]
    fn a_prefix_ends_at_a_component() {
        let path = |text: &str| GuestPath::new(text).unwrap();
        assert_eq!(path("/io/a/b").strip_prefix(&path("/io")), Some(&b"a/b"[..]));
        assert_eq!(path("/io").strip_prefix(&path("/io")), Some(&b""[..]));
        assert_eq!(path("/iox/a").strip_prefix(&path("/io")), None);
        assert_eq!(path("/a").strip_prefix(&path("/")), Some(&b"a"[..]));
    }

    #[test]
    fn a_glob_is_split_before_its_first_name_with_a_special_character() {
        for (pattern, split) in [
            ("a*", ("", "a*")),
            ("a/b/*.c", ("a/b/", "*.c")),
            ("/in/*/x", ("/in/", "*/x")),
            ("/io", ("/", "io")),
            ("a/b/", ("a/", "b/")),
            ("~/*", ("~/", "*")),
            ("~", ("~", "")),
            ("~/", ("~/", "")),
            ("~a", ("", "~a")),
            ("", ("", "")),
            ("/", ("", "/")),
        ] {
            assert_eq!(split_glob(pattern), split, "{pattern}");
        }
    }

    #[test]
    fn a_slash_at_the_end_asks_for_a_directory() {
        let io = GuestPath::new("/io").unwrap();
        for (written, wants) in
            [("a/", true), ("a/.", true), (".", true), ("a", false), ("a.", false)]
        {
            let resolved = GuestPath::resolve(written.as_bytes(), &io, None).unwrap();
            assert_eq!(resolved.wants_directory, wants, "{written}");
        }
    }

    proptest! {
        #[test]
        fn a_resolved_path_stays_under_its_base_and_is_stable(written in "[a-c./~]{1,40}") {
            let io = GuestPath::new("/io").unwrap();
            if let Ok(resolved) = GuestPath::resolve(written.as_bytes(), &io, Some(&io)) {
                let path = resolved.path;
                prop_assert!(written.starts_with('/') || path.is_under(&io));
                prop_assert!(path.components().all(|name| name != b".." && name != b"."));
                prop_assert_eq!(GuestPath::new(path.as_bytes()), Ok(path));
            }
        }

        #[test]
        fn bytes_survive_the_wire(name in proptest::collection::vec(any::<u8>(), 1..40)) {
            if let Ok(path) = GuestPath::new("/io").unwrap().join(&name) {
                let wire = serde_json::to_string(&WireString::from(&path)).unwrap();
                let wire: WireString = serde_json::from_str(&wire).unwrap();
                prop_assert_eq!(GuestPath::new(wire), Ok(path));
            }
        }
    }
}
