//! Which entries of a tree a search takes, by globs: those that match one of them, and none that
//! matches one which begins with `!`.

use std::borrow::Cow;

use sandbox_protocol::path::join_written;

use super::pattern::Pattern;

/// Directories of version control: their content is of no use to a search in files.
const REPOSITORIES: [&[u8]; 7] = [b".git", b".hg", b".svn", b".jj", b".bzr", b"CVS", b"_darcs"];

/// Whether a directory of this name is a program's for version control.
pub(super) fn is_repository(name: &[u8]) -> bool {
    REPOSITORIES.contains(&name)
}

/// Compiled globs. Without a slash, one is matched with a name; otherwise with the path. What is
/// hidden is left out by its name, and not by them.
pub(super) struct Selection {
    included: Vec<Rule>,
    excluded: Vec<Rule>,
}

struct Rule {
    pattern: Pattern,
    by_path: bool,
    /// It is for directories alone: it has a slash at its end.
    of_directories: bool,
    /// Of a glob of everything in a directory, that directory.
    above: Option<Pattern>,
}

impl Selection {
    /// Compiles globs.
    ///
    /// # Errors
    ///
    /// The invalid glob, and what is wrong with it.
    pub fn new(globs: &[String]) -> Result<Self, (&str, String)> {
        let mut selection = Self { included: Vec::new(), excluded: Vec::new() };
        for glob in globs {
            let (rules, rule) = match glob.strip_prefix('!') {
                Some(glob) => (&mut selection.excluded, Rule::new(glob)),
                None => (&mut selection.included, Rule::new(&content_of(glob))),
            };
            rules.push(rule.map_err(|reason| (glob.as_str(), reason))?);
        }
        Ok(selection)
    }

    /// Whether an entry is taken. Its directory and its name make up its path.
    pub fn takes(&self, directory: &[u8], name: &[u8], is_directory: bool) -> bool {
        let matches = |rule: &Rule| rule.matches(directory, name, is_directory);
        (self.included.is_empty() || self.included.iter().any(matches))
            && !self.excluded.iter().any(matches)
    }

    /// Whether what is in a directory may be taken.
    pub fn enters(&self, directory: &[u8], name: &[u8]) -> bool {
        let is_excluded = |rule: &Rule| {
            rule.matches(directory, name, true)
                || rule.above.as_ref().is_some_and(|it| it.matches(&join_written(directory, name)))
        };
        !self.excluded.iter().any(is_excluded)
    }
}

/// A directory that is included is everything in it.
fn content_of(glob: &str) -> Cow<'_, str> {
    match glob.trim_end_matches('/') {
        directory if directory.is_empty() || directory.len() == glob.len() => glob.into(),
        directory if directory.contains('/') => format!("{directory}/**").into(),
        directory => format!("**/{directory}/**").into(),
    }
}

impl Rule {
    fn new(glob: &str) -> Result<Self, String> {
        let pattern = glob.trim_end_matches('/');
        if pattern.is_empty() {
            return Err("it matches nothing".to_owned());
        }
        let of_directories = pattern.len() < glob.len();
        let by_path = pattern.contains('/');
        let pattern = pattern.trim_start_matches('/');
        let above =
            pattern.strip_suffix("/**").map(|above| Pattern::new(above, true)).transpose()?;
        Ok(Self { pattern: Pattern::new(pattern, true)?, by_path, of_directories, above })
    }

    fn matches(&self, directory: &[u8], name: &[u8], is_directory: bool) -> bool {
        if self.of_directories && !is_directory {
            return false;
        }
        if !self.by_path {
            return self.pattern.matches(name);
        }
        let path = join_written(directory, name);
        self.pattern.matches(path.strip_prefix(b"/").unwrap_or(&path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken<'a>(globs: &[&str], paths: &[&'a str]) -> Vec<&'a str> {
        let globs: Vec<_> = globs.iter().map(|&glob| glob.to_owned()).collect();
        let selection = Selection::new(&globs).unwrap();
        let is_taken = |path: &&&str| {
            let mut directory = String::new();
            let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
            let enters = above.split('/').filter(|name| !name.is_empty()).all(|name| {
                let enters = selection.enters(directory.as_bytes(), name.as_bytes());
                directory =
                    format!("{directory}{}{name}", if directory.is_empty() { "" } else { "/" });
                enters
            });
            enters && selection.takes(above.as_bytes(), name.as_bytes(), false)
        };
        paths.iter().filter(is_taken).copied().collect()
    }

    #[test]
    fn globs_include_and_exclude_by_name_or_path() {
        let paths = ["a.rs", "b.md", "m/x.rs", "p/m/y.rs", "p/z.rs"];
        assert_eq!(taken(&[], &paths), paths);
        assert_eq!(taken(&["*.md", "p/*.rs"], &paths), ["b.md", "p/z.rs"]);
        for all in ["!m/**", "!m/*", "!/m", "!/m/"] {
            assert_eq!(taken(&[all], &paths), ["a.rs", "b.md", "p/m/y.rs", "p/z.rs"], "{all}");
        }
        for any in ["!m", "!m/", "!**/m/**", "!**/m"] {
            assert_eq!(taken(&[any], &paths), ["a.rs", "b.md", "p/z.rs"], "{any}");
        }
        assert_eq!(taken(&["*.rs", "!p/**", "!a*"], &paths), ["m/x.rs"]);
        assert_eq!(taken(&["!a.rs/"], &paths), paths);
        assert_eq!(taken(&["m/"], &paths), ["m/x.rs", "p/m/y.rs"]);
        assert_eq!(taken(&["/m/"], &paths), ["m/x.rs"]);
        assert_eq!(taken(&[r"\!a"], &["!a", "a"]), ["!a"]);
        for none in ["", "!", "/", "!/", "!["] {
            assert!(Selection::new(&[none.to_owned()]).is_err(), "{none}");
        }
    }
}
