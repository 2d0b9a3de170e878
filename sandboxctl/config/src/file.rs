//! Configuration files: finding and reading them.

use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;
use sandbox_dirfd::Links;
use sandbox_env::Environment;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::Error;
use super::key::Key;
use super::origin::Origin;
use super::value::Value;

/// The project's file.
pub const PROJECT_FILE: &str = "sandboxctl.toml";
/// The administrator's file.
pub const SYSTEM_FILE: &str = "/etc/sandboxctl/config.toml";

/// Longest file that is read: real configurations are much smaller.
const MAX_BYTES: u64 = 1 << 20;

/// A key as a file sets it.
#[derive(Debug)]
pub struct Entry {
    /// The key.
    pub key: Key,
    /// Its value.
    pub value: Value,
    /// Its position.
    pub origin: Origin,
}

/// The path of the user's file, whether or not it exists.
pub fn user(environment: &Environment) -> Option<PathBuf> {
    // The XDG specification: a relative path in the variable counts as not set.
    let folder = environment
        .path("XDG_CONFIG_HOME")
        .filter(|path| path.is_absolute())
        .or_else(|| environment.path("HOME").map(|home| home.join(".config")))?;
    Some(folder.join("sandboxctl/config.toml"))
}

/// The project's file: searched from `directory` upward to the root of its repository. Outside a
/// repository only `directory` itself counts, so that no one can plant a file above it.
pub fn find_project(directory: &Path) -> Option<PathBuf> {
    let root = directory.ancestors().find(|folder| folder.join(".git").exists());
    let last = root.unwrap_or(directory);
    directory
        .ancestors()
        .take_while(|folder| folder.starts_with(last))
        .map(|folder| folder.join(PROJECT_FILE))
        .find(|file| file.symlink_metadata().is_ok())
}

/// Reads a file; none if it does not exist. A link that came with a project is to be refused: messages
/// would quote its target.
///
/// # Errors
///
/// [`Error`] if it cannot be read, is not TOML, or has an invalid key or value.
pub fn read(file: &Path, links: Links) -> Result<Option<Vec<Entry>>, Error> {
    let unreadable = |source| Error::Unreadable { file: file.to_owned(), source };
    let text = match read_text(file, links) {
        Ok(text) => text,
        // Nor is there one below what is no directory: a service account's HOME may be /dev/null.
        Err(error)
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(unreadable(error)),
    };
    parse(file, &text).map(Some)
}

pub(super) fn read_text(file: &Path, links: Links) -> io::Result<String> {
    // Checked once it is open, since the file may be swapped before that; so opening it must not
    // block, as for a FIFO, nor acquire a controlling terminal.
    let mut flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    if links == Links::Refuse {
        flags |= OFlags::NOFOLLOW;
    }
    let opened = fs::File::options().read(true).custom_flags(flags.bits().cast_signed()).open(file);
    let opened = opened.map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::LOOP) if links == Links::Refuse => io::Error::other(
            "it is a symbolic link, which is not followed in a project; give what it leads to \
             with --config if you trust it",
        ),
        _ => error,
    })?;
    if !opened.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut text = String::new();
    opened.take(MAX_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_BYTES {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "longer than 1 MiB"));
    }
    Ok(text)
}

/// Parses the text of a file.
///
/// # Errors
///
/// [`Error`], naming the line.
pub fn parse(file: &Path, text: &str) -> Result<Vec<Entry>, Error> {
    let origin =
        |offset: usize| Origin::File { file: file.to_owned(), line: line_of(text, offset) };
    let table = DeTable::parse(text).map_err(|error| {
        Error::at(origin(error.span().map_or(0, |span| span.start)), error.message())
    })?;
    let mut entries = Vec::new();
    walk("", table.get_ref(), &origin, &mut entries)?;
    Ok(entries)
}

fn walk(
    section: &str,
    table: &DeTable<'_>,
    origin: &impl Fn(usize) -> Origin,
    entries: &mut Vec<Entry>,
) -> Result<(), Error> {
    // By position: the table is sorted by name, and the first error in the file is reported first.
    let mut items: Vec<(&Spanned<_>, &Spanned<DeValue<'_>>)> = table.iter().collect();
    items.sort_by_key(|(name, _)| name.span().start);
    for (name, value) in items {
        let full = if section.is_empty() {
            name.to_string()
        } else {
            format!("{section}.{}", name.get_ref())
        };
        let here = origin(name.span().start);
        if let Some(key) = Key::from_name(&full) {
            let value = Value::from_toml(key, value)
                .map_err(|why| Error::of_value(here.clone(), key, &why))?;
            entries.push(Entry { key, value, origin: here });
        } else if let (true, DeValue::Table(table)) = (is_section(&full), value.get_ref()) {
            walk(&full, table, origin, entries)?;
        } else {
            return Err(Error::unknown_key(
                here,
                full,
                matches!(value.get_ref(), DeValue::Table(_)),
            ));
        }
    }
    Ok(())
}

fn is_section(name: &str) -> bool {
    Key::all().any(|key| key.name().strip_prefix(name).is_some_and(|rest| rest.starts_with('.')))
}

pub(super) fn line_of(text: &str, offset: usize) -> usize {
    text.as_bytes()[..offset.min(text.len())].iter().filter(|&&byte| byte == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        let entries = parse(Path::new("f.toml"), text).unwrap();
        entries
            .iter()
            .map(|entry| format!("{} = {} at {}", entry.key.name(), entry.value, entry.origin))
            .collect()
    }

    fn refused(text: &str) -> String {
        let error = parse(Path::new("f.toml"), text).unwrap_err();
        let hint = error.hint().map(|hint| format!(" | {hint}")).unwrap_or_default();
        let source =
            std::error::Error::source(&error).map(|s| format!(": {s}")).unwrap_or_default();
        format!("{error}{source}{hint}")
    }

    #[test]
    fn every_entry_knows_its_line() {
        assert_eq!(
            names(
                "[io]\ndir = \"x\"\n\n[limits]\nceiling.io.max_bytes = \"1B\"\ntimeout = \"2s\"\n"
            ),
            [
                "io.dir = \"x\" at f.toml:2",
                "limits.ceiling.io.max_bytes = \"1B\" at f.toml:5",
                "limits.timeout = \"2s\" at f.toml:6",
            ]
        );
        assert_eq!(names(""), [""; 0]);
    }

    #[test]
    fn config_file_errors_name_the_line() {
        let refusals = [
            "[io]\nmax_byte = 1",
            "[limit]\ntimeout = \"1s\"",
            "[limits]\nmemroy = \"1MiB\"",
            "[output]\ndir = \"x\"",
            "[network]\nallows = []",
            "[network]\nallow = ['example.org', 'example.org:x']",
            "[network.presets]\na = ['example.org']\nb = 'example.org'",
            "zzzzzzzzzzzzzzzzzzzzz = 1",
            "limits = 3",
            "[limits]\ntimeout = 30",
            "[limits]\n\ntimeout = \"30 parsecs\"",
            "[io]\ndir = \"../x\"",
            "[io]\ndir = \"a\"\ndir = \"b\"",
            "[io\n",
            "a = ",
        ]
        .map(refused)
        .join("\n");
        insta::assert_snapshot!(refusals);
    }

    #[test]
    fn a_project_ends_at_its_repository() {
        let folder = tempfile::tempdir().unwrap();
        let at = |path: &str| folder.path().join(path);
        fs::create_dir_all(at("repository/inner/deep")).unwrap();
        fs::write(at(PROJECT_FILE), "").unwrap();
        assert_eq!(find_project(&at("repository/inner")), None, "outside a repository");
        assert_eq!(find_project(folder.path()), Some(at(PROJECT_FILE)));

        fs::create_dir(at("repository/.git")).unwrap();
        assert_eq!(find_project(&at("repository/inner/deep")), None, "above the repository");
        fs::write(at("repository/sandboxctl.toml"), "").unwrap();
        assert_eq!(
            find_project(&at("repository/inner/deep")),
            Some(at("repository/sandboxctl.toml"))
        );
        fs::write(at("repository/inner/sandboxctl.toml"), "").unwrap();
        assert_eq!(
            find_project(&at("repository/inner/deep")),
            Some(at("repository/inner/sandboxctl.toml"))
        );
    }

    #[test]
    fn a_special_file_is_refused_and_does_not_block() {
        let folder = tempfile::tempdir().unwrap();
        let refused = |file: &Path| match read(file, Links::Refuse) {
            Err(Error::Unreadable { source, .. }) => source.to_string(),
            other => panic!("{other:?}"),
        };
        assert!(read(&folder.path().join("missing"), Links::Refuse).unwrap().is_none());
        assert!(read(Path::new("/dev/null/.config/x"), Links::Follow).unwrap().is_none());
        assert_eq!(refused(folder.path()), "not a regular file");
        let fifo = folder.path().join("fifo");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &fifo,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR,
            0,
        )
        .unwrap();
        assert_eq!(refused(&fifo), "not a regular file");
        assert!(matches!(read(&fifo, Links::Follow), Err(Error::Unreadable { .. })));
    }
}
