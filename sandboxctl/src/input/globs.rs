//! `--in GLOB[:NAME]`: an input for each file and directory that the pattern matches.

use std::io;
use std::path::{Component, Path, PathBuf};

use glob::{MatchOptions, glob_with};

use super::{InputArgument, reason};
use crate::error::Error;

/// Most matches of one pattern: each is a mount of the sandbox.
const MAX_MATCHES: usize = 256;

/// As a shell matches: no `*` matches a `/`, or a name that begins with a dot.
const OPTIONS: MatchOptions = MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: true,
};

/// The inputs, with patterns replaced by what they match, sorted by path.
///
/// # Errors
///
/// If a pattern is invalid, matches nothing, too much, or a symbolic link.
pub(super) fn expand(inputs: &[InputArgument]) -> Result<Vec<InputArgument>, Error> {
    let mut expanded = Vec::new();
    for input in inputs {
        match pattern(input) {
            Some(pattern) => expanded.extend(matches(input, pattern)?),
            None => expanded.push(input.clone()),
        }
    }
    Ok(expanded)
}

/// A file whose name only looks like a pattern is itself, and a `--volume` is never one.
fn pattern(input: &InputArgument) -> Option<&str> {
    let source = input.source.to_str()?;
    let is_one = source.contains(['*', '?', '[']) && !input.name.starts_with('/');
    (is_one && input.source.symlink_metadata().is_err()).then_some(source)
}

fn matches(input: &InputArgument, pattern: &str) -> Result<Vec<InputArgument>, Error> {
    let refuse = |why: String| Error::usage(&*input.written, why);
    let found = glob_with(pattern, OPTIONS)
        .map_err(|error| refuse(format!("it is not a pattern: {}", error.msg)))?;
    let mut paths: Vec<PathBuf> = Vec::new();
    for path in found {
        let path = path.map_err(|error| {
            refuse(format!("{}: {}", error.path().display(), reason(error.error())))
        })?;
        if paths.len() == MAX_MATCHES {
            return Err(refuse(format!("it matches more than {MAX_MATCHES} files"))
                .with_hint("give the directory that they are in"));
        }
        paths.push(path);
    }
    if paths.is_empty() {
        return Err(refuse("nothing matches it".to_owned())
            .with_hint("quote the pattern; a * matches no / and no leading dot, ** does"));
    }
    // The matches of a pattern depend on who filled the directory: a link among them would choose
    // what else of the host a sandbox sees. One that is made later is refused when it is opened.
    let chosen = chosen_from(pattern);
    if let Some(link) = paths.iter().find_map(|path| link_in(path, chosen)) {
        return Err(refuse(format!("{} is a symbolic link", link.display()))
            .with_hint("name the link itself, without a pattern, to follow it"));
    }
    if input.is_named && paths.len() > 1 {
        return Err(refuse(format!("it matches {} files, and names one", paths.len()))
            .with_hint("without :NAME each has its own name"));
    }
    let made = |path: PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.ok_or_else(|| refuse(format!("{} has no UTF-8 name", path.display())))?;
        let name = if input.is_named { input.name.clone() } else { name.to_owned() };
        let written = format!("{} ({})", input.written, path.display());
        let source = resolve_first(&path, chosen)
            .map_err(|error| refuse(format!("{}: {}", path.display(), reason(&error))))?;
        Ok(InputArgument { source, is_resolved: true, name, is_named: input.is_named, written })
    };
    paths.into_iter().map(made).collect()
}

/// The number of components before the first one that has a wildcard: its author chose these.
fn chosen_from(pattern: &str) -> usize {
    let is_fixed = |component: &Component<'_>| {
        !component.as_os_str().as_encoded_bytes().iter().any(|byte| b"*?[".contains(byte))
    };
    Path::new(pattern).components().take_while(is_fixed).count()
}

/// The path with the links of its first components resolved.
fn resolve_first(path: &Path, fixed: usize) -> io::Result<PathBuf> {
    let first: PathBuf = Path::new(".").components().chain(path.components().take(fixed)).collect();
    let rest: PathBuf = path.components().skip(fixed).collect();
    Ok(first.canonicalize()?.join(rest))
}

/// The first symbolic link of a path beyond its first components.
fn link_in(path: &Path, fixed: usize) -> Option<PathBuf> {
    let mut prefix: PathBuf = path.components().take(fixed).collect();
    path.components().skip(fixed).find_map(|component| {
        prefix.push(component);
        prefix.is_symlink().then(|| prefix.clone())
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn of(folder: &Path, written: &str) -> Result<Vec<(String, String)>, String> {
        let written = folder.join(written);
        let input = InputArgument::parse(written.as_ref()).unwrap();
        let here = folder.to_str().unwrap();
        let expanded = super::super::inputs(&[input], None);
        let inputs = expanded.map_err(|error| error.to_text().replace(here, "."))?;
        let source = |source| match source {
            sandbox_api::InputSource::Path(path) => {
                path.strip_prefix(folder).unwrap().display().to_string()
            }
            sandbox_api::InputSource::Bytes(_) => panic!("it is no path"),
        };
        Ok(inputs.into_iter().map(|input| (input.name, source(input.source))).collect())
    }

    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for directory in ["a", "a/deep", "b"] {
            fs::create_dir(at(directory)).unwrap();
        }
        for file in [
            "a/2.csv", "a/1.csv", "a/.hidden.csv", "a/x.txt", "a/deep/3.csv", "b/1.csv",
            "b/[x].csv",
        ] {
            fs::write(at(file), "").unwrap();
        }
        folder
    }

    #[test]
    fn pattern_is_an_input_for_each_match_in_order() {
        let folder = folder();
        let of = |written: &str| of(folder.path(), written).unwrap();
        let pairs = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            pairs.iter().map(|(name, source)| ((*name).into(), (*source).into())).collect()
        };
        assert_eq!(of("a/*.csv"), pairs(&[("1.csv", "a/1.csv"), ("2.csv", "a/2.csv")]));
        assert_eq!(of("a/1*.csv:one"), pairs(&[("one", "a/1.csv")]));
        assert_eq!(of("a/**/3.csv"), pairs(&[("3.csv", "a/deep/3.csv")]));
        assert_eq!(of("a/d*"), pairs(&[("deep", "a/deep")]));
        // The name of a file that exists is no pattern.
        assert_eq!(of("b/[x].csv"), pairs(&[("[x].csv", "b/[x].csv")]));
    }

    #[test]
    fn pattern_that_cannot_be_used_is_refused() {
        let folder = folder();
        let refused = |written: &str| of(folder.path(), written).unwrap_err();
        assert!(refused("a/*.none").contains("nothing matches it\nhint: quote"));
        assert!(refused("a/[.csv").contains("it is not a pattern"));
        assert!(refused("a/*.csv:t").contains("it matches 2 files, and names one\nhint: without"));
        // Two of one name.
        let text = refused("[ab]/1.csv");
        assert!(text.contains("/in/1.csv is taken by --in ./[ab]/1.csv (./a/1.csv)"), "{text}");
        std::os::unix::fs::symlink("/etc/hostname", folder.path().join("a/link.csv")).unwrap();
        assert!(
            refused("a/*.csv").contains("./a/link.csv is a symbolic link\nhint: name the link")
        );
        // Nor is a link followed on the way to a match.
        std::os::unix::fs::symlink("b", folder.path().join("linked")).unwrap();
        for pattern in ["l*/1.csv", "*/[1].csv", "**/[1].csv"] {
            let text = refused(pattern);
            assert!(text.contains("./linked is a symbolic link"), "{pattern}: {text}");
        }
        // What stands before the pattern was chosen by its author.
        assert_eq!(of(folder.path(), "linked/[1]*.csv").unwrap().len(), 1);
        for number in 0..=MAX_MATCHES {
            fs::write(folder.path().join(format!("b/n{number}")), "").unwrap();
        }
        assert!(refused("b/n*").contains("it matches more than 256 files"));
    }
}
