//! Which files of an io dir are artifacts: globs that select, and globs that exclude.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use sandbox_api::ErrorKind;

use crate::Error;

/// The characters that make a path a glob.
const SPECIAL: &[char] = &['*', '?', '[', ']', '{', '}', '\\'];

/// Globs, relative to the io dir.
///
/// `*` and `?` match no slash, `**` matches any number of directories, and names that begin with a
/// dot are names like any other. A path without such characters selects a file, or everything in a
/// directory. What a glob after `!` matches is excluded, wherever it stands.
#[derive(Debug, Clone)]
pub struct Selection {
    /// All globs, as given.
    globs: Vec<String>,
    /// The globs that select, as given.
    patterns: Vec<String>,
    select: GlobSet,
    /// For each glob in `select`, its index in `patterns`.
    origins: Vec<usize>,
    exclude: GlobSet,
    /// Directories of which everything is excluded.
    prune: GlobSet,
}

impl Selection {
    /// The globs as given, those that exclude too.
    pub fn globs(&self) -> &[String] {
        &self.globs
    }

    /// Compiles globs; `!GLOB` excludes. A path that begins with `mount`, the io dir's path in the
    /// sandbox, is as good as one that is relative to it.
    ///
    /// # Errors
    ///
    /// If one is not a glob or not in the io dir, or if none selects anything.
    pub fn new<S: AsRef<str>>(globs: &[S], mount: &str) -> Result<Self, Error> {
        let mut patterns = Vec::new();
        let [mut select, mut exclude, mut prune] = [(); 3].map(|()| GlobSetBuilder::new());
        let mut origins = Vec::new();
        for given in globs.iter().map(AsRef::as_ref) {
            let refuse = |reason: String| unusable(given, &reason);
            let (is_exclude, written) = match given.strip_prefix('!') {
                Some(rest) => (true, rest),
                None => (false, given),
            };
            for glob in spellings(written, mount).map_err(|why| refuse(why.to_owned()))? {
                let compile = |glob: &str| {
                    let mut builder = GlobBuilder::new(glob);
                    let built = builder.literal_separator(true).backslash_escape(true).build();
                    built.map_err(|error| refuse(error.kind().to_string()))
                };
                if is_exclude {
                    if let Some(folder) = glob.strip_suffix("/**") {
                        prune.add(compile(folder)?);
                    }
                    exclude.add(compile(&glob)?);
                } else {
                    select.add(compile(&glob)?);
                    origins.push(patterns.len());
                }
            }
            if !is_exclude {
                patterns.push(given.to_owned());
            }
        }
        if patterns.is_empty() {
            let why = "every glob excludes: at least one must select files";
            let hint = "--artifact '**' selects everything else";
            return Err(Error::refused(ErrorKind::Usage, why, Some(hint)));
        }
        let build = |set: GlobSetBuilder| {
            set.build().map_err(|error| {
                let all = globs.iter().map(AsRef::as_ref).collect::<Vec<_>>().join(" ");
                unusable(&all, &error.kind().to_string())
            })
        };
        let (select, exclude, prune) = (build(select)?, build(exclude)?, build(prune)?);
        let globs = globs.iter().map(|glob| glob.as_ref().to_owned()).collect();
        Ok(Self { globs, patterns, select, origins, exclude, prune })
    }

    /// The globs that select, as given.
    pub(crate) fn patterns(&self) -> &[String] {
        &self.patterns
    }

    /// The indices of the globs that select this path; none if it is excluded.
    pub(crate) fn matches(&self, path: &[u8]) -> Vec<usize> {
        let path = Path::new(OsStr::from_bytes(path));
        let globs = self.select.matches(path);
        match globs.is_empty() || self.exclude.is_match(path) {
            true => Vec::new(),
            false => globs.into_iter().map(|glob| self.origins[glob]).collect(),
        }
    }

    /// Whether everything in a directory is excluded.
    pub(crate) fn prunes(&self, folder: &[u8]) -> bool {
        self.prune.is_match(Path::new(OsStr::from_bytes(folder)))
    }
}

/// The globs relative to the io dir that a written one stands for.
fn spellings(written: &str, mount: &str) -> Result<Vec<String>, &'static str> {
    let below_mount = |path: &str| {
        let rest = path.strip_prefix(mount.trim_end_matches('/'))?;
        (rest.is_empty() || rest.starts_with('/')).then(|| rest.to_owned())
    };
    let relative = match written {
        "" => return Err("it is empty"),
        path if path.starts_with('/') => {
            below_mount(path).ok_or("it is not in the io dir, which globs are relative to")?
        }
        path => path.to_owned(),
    };
    let is_folder = relative.ends_with('/');
    let names: Vec<_> = relative.split('/').filter(|name| !matches!(*name, "" | ".")).collect();
    if names.contains(&"..") {
        return Err("it contains '..'");
    }
    let path = names.join("/");
    Ok(match &*path {
        "" => vec!["**".to_owned()],
        _ if is_folder => vec![format!("{path}/**")],
        _ if path.contains(SPECIAL) => vec![path],
        _ => vec![format!("{path}/**"), path],
    })
}

fn unusable(pattern: &str, reason: &str) -> Error {
    Error::refused(ErrorKind::Usage, format!("'{pattern}' is not usable: {reason}"), None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selected(globs: &[&str], paths: &[&str]) -> Vec<String> {
        let selection = Selection::new(globs, "/io").unwrap();
        let is_selected = |path: &&&str| !selection.matches(path.as_bytes()).is_empty();
        paths.iter().filter(is_selected).map(|path| (*path).to_owned()).collect()
    }

    const TREE: &[&str] =
        &["a.txt", ".env", "dist/a.txt", "dist/sub/b.bin", "distinct", "x/dist/c", "a{b}", "!odd"];

    #[test]
    fn globs_match_paths_relative_to_the_io_dir() {
        assert_eq!(selected(&["*.txt"], TREE), ["a.txt"]);
        assert_eq!(selected(&["**/*.txt"], TREE), ["a.txt", "dist/a.txt"]);
        assert_eq!(selected(&["dist/*"], TREE), ["dist/a.txt"]);
        assert_eq!(selected(&["?istinct", ".*"], TREE), [".env", "distinct"]);
        assert_eq!(selected(&["dist/**/b.*"], TREE), ["dist/sub/b.bin"]);
        assert_eq!(selected(&["*.{txt,bin}"], TREE), ["a.txt"]);
        assert_eq!(selected(&["a\\{b\\}", "\\!odd"], TREE), ["a{b}", "!odd"]);
        assert_eq!(selected(&["**"], TREE), TREE);
    }

    #[test]
    fn a_path_selects_a_file_or_all_of_a_directory() {
        let dist = ["dist/a.txt", "dist/sub/b.bin"];
        for spelling in ["dist", "dist/", "./dist", "/io/dist", "/io//dist/.", "dist/**"] {
            assert_eq!(selected(&[spelling], TREE), dist, "{spelling}");
        }
        assert_eq!(selected(&["a.txt"], TREE), ["a.txt"]);
        for all in [".", "/io", "/io/", "./"] {
            assert_eq!(selected(&[all], TREE), TREE, "{all}");
        }
    }

    #[test]
    fn excludes_win_wherever_they_stand() {
        let globs = ["!dist/sub", "**", "!**/*.txt"];
        assert_eq!(selected(&globs, TREE), [".env", "distinct", "x/dist/c", "a{b}", "!odd"]);
        let selection = Selection::new(&["**", "!**/dist/**", "!x"], "/io").unwrap();
        assert!(["dist", "a/dist", "x"].iter().all(|folder| selection.prunes(folder.as_bytes())));
        assert!(!selection.prunes(b"distinct"));
    }

    #[test]
    fn names_of_any_bytes_match() {
        let selection = Selection::new(&["*.bin", "d?"], "/io").unwrap();
        assert_eq!(selection.matches(b"\xff\n\\.bin"), [0]);
        assert_eq!(selection.matches(b"d\xfe"), [1]);
    }

    #[test]
    fn wrong_globs_are_refused_with_their_reason() {
        for (glob, reason) in [
            ("", "it is empty"),
            ("!", "it is empty"),
            ("/etc/passwd", "not in the io dir"),
            ("/iox", "not in the io dir"),
            ("../x", "it contains '..'"),
            ("a/../../x", "it contains '..'"),
            ("a[", "unclosed character class"),
            ("{a", "unclosed alternate group"),
        ] {
            let error = Selection::new(&[glob], "/io").unwrap_err().to_string();
            assert!(error.contains(reason) && error.contains(glob), "{glob}: {error}");
        }
        let error = Selection::new(&["!x"], "/io").unwrap_err();
        assert!(error.to_string().starts_with("every glob excludes"));
    }
}
