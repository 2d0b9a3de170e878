//! The clients of the Model Context Protocol whose configuration we know, and how an entry is added
//! to it: the rest of the file stays as it is, byte for byte where it is JSON.

use std::ffi::OsString;
use std::fmt::{self, Write as _};
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, de};
use serde_json::json;
use serde_json::value::RawValue;

use crate::whole_file::NewFile;

/// The largest configuration that is read.
const MAX_FILE_BYTES: u64 = 16 << 20;
/// The most backups of one file.
const MAX_BACKUPS: usize = 100;

sandbox_protocol::words! {
    /// A client, in the order of the documentation.
    pub enum Client {
        /// Claude Desktop.
        ClaudeDesktop = "claude-desktop",
        /// Claude Code, for all projects of the user.
        ClaudeCode = "claude-code",
        /// Cursor.
        Cursor = "cursor",
        /// Visual Studio Code.
        VsCode = "vscode",
        /// Zed.
        Zed = "zed",
        /// Codex.
        Codex = "codex",
        /// Windsurf.
        Windsurf = "windsurf",
        /// Gemini CLI.
        Gemini = "gemini",
    }
}

/// What the path of a configuration begins with.
enum Base {
    /// The home directory.
    Home,
    /// The directory of configurations.
    Config,
    /// The same, and `.config` on a Mac too.
    DotConfig,
}

/// Reads the name of an entry: letters, digits, `-` and `_`.
pub fn entry_name(name: &str) -> Result<String, &'static str> {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    match (1..=64).contains(&name.len()) && name.bytes().all(is_word) {
        true => Ok(name.to_owned()),
        false => Err("a name has 1 to 64 letters, digits, '-' and '_'"),
    }
}

/// What starts the server.
#[derive(Debug)]
pub struct Entry<'a> {
    /// Its name.
    pub name: &'a str,
    /// The program.
    pub program: &'a str,
    /// Its arguments.
    pub arguments: &'a [String],
}

/// Why an entry could not be added.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// The file cannot be read or written.
    #[error("it cannot be {what}: {source}")]
    File {
        /// `read`, `written`.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
    /// It is not a regular file.
    #[error("it is {0}")]
    Odd(&'static str),
    /// Its content cannot be changed without loss.
    #[error("{0}")]
    Content(String),
    /// It has such an entry.
    #[error("it already has a different entry of this name")]
    Taken,
}

impl InstallError {
    /// The next step.
    pub const fn hint(&self) -> &'static str {
        match self {
            Self::Taken => "remove that entry, or choose another name with --name",
            _ => "--print prints what would be written, to add by hand",
        }
    }
}

impl Client {
    /// The member of its configuration that has the servers, and where that configuration is.
    const fn place(self) -> (&'static str, Base, &'static str) {
        match self {
            Self::ClaudeDesktop => {
                ("mcpServers", Base::Config, "Claude/claude_desktop_config.json")
            }
            Self::ClaudeCode => ("mcpServers", Base::Home, ".claude.json"),
            Self::Cursor => ("mcpServers", Base::Home, ".cursor/mcp.json"),
            Self::VsCode => ("servers", Base::Config, "Code/User/mcp.json"),
            Self::Zed => ("context_servers", Base::DotConfig, "zed/settings.json"),
            Self::Codex => ("mcp_servers", Base::Home, ".codex/config.toml"),
            Self::Windsurf => ("mcpServers", Base::Home, ".codeium/windsurf/mcp_config.json"),
            Self::Gemini => ("mcpServers", Base::Home, ".gemini/settings.json"),
        }
    }

    const fn member(self) -> &'static str {
        self.place().0
    }

    /// Its configuration, in a home directory; `config` is `XDG_CONFIG_HOME`.
    pub fn file(self, home: &Path, config: Option<&Path>) -> PathBuf {
        let is_mac = cfg!(target_os = "macos");
        let (_, base, file) = self.place();
        let folder = match (base, config) {
            (Base::Home, _) => home.to_owned(),
            (Base::Config, _) if is_mac => home.join("Library/Application Support"),
            (Base::Config | Base::DotConfig, Some(config)) if config.is_absolute() && !is_mac => {
                config.to_owned()
            }
            _ => home.join(".config"),
        };
        folder.join(file)
    }

    /// The entry as its value, in JSON.
    fn value(self, entry: &Entry<'_>) -> String {
        let Entry { program, arguments, .. } = entry;
        let value = match self {
            Self::VsCode | Self::ClaudeCode => {
                json!({ "type": "stdio", "command": program, "args": arguments })
            }
            Self::Zed => {
                json!({ "source": "custom", "command": program, "args": arguments, "env": {} })
            }
            _ => json!({ "command": program, "args": arguments }),
        };
        value.to_string()
    }

    /// The entry as a file that has nothing else.
    pub fn text(self, entry: &Entry<'_>) -> String {
        match self {
            Self::Codex => toml_entry(entry),
            _ => {
                let value = self.value(entry);
                format!(
                    "{{\n  \"{}\": {{\n    \"{}\": {value}\n  }}\n}}\n",
                    self.member(),
                    entry.name
                )
            }
        }
    }

    /// Adds the entry to the configuration in `file`, which is created if it is missing.
    ///
    /// # Errors
    ///
    /// [`InstallError`]; then nothing was changed.
    pub fn install(self, file: &Path, entry: &Entry<'_>) -> Result<Option<PathBuf>, InstallError> {
        let found = read(file)?;
        let old = found.as_ref().map_or("", |(text, _)| text);
        let new = match self {
            Self::Codex => with_toml_entry(old, entry)?,
            _ if old.trim().is_empty() => self.text(entry),
            _ => self.with_json_entry(old, entry)?,
        };
        put(file, &new, 0o600)
    }

    /// The file with the entry; its other members are as they were.
    fn with_json_entry(self, old: &str, entry: &Entry<'_>) -> Result<String, InstallError> {
        let not_json = |error: serde_json::Error| {
            InstallError::Content(format!("it is not a JSON object that can be changed: {error}"))
        };
        let text = old.strip_prefix('\u{feff}').unwrap_or(old);
        let mut file: Members = serde_json::from_str(text).map_err(not_json)?;
        let mut servers = match file.0.iter().find(|(name, _)| name == self.member()) {
            Some((_, servers)) => serde_json::from_str(servers.get()).map_err(not_json)?,
            None => Members(Vec::new()),
        };
        let raw = |text: String| RawValue::from_string(text).map_err(not_json);
        let value = raw(self.value(entry))?;
        match servers.0.iter().find(|(name, _)| *name == entry.name) {
            Some((_, there)) if is_same(there, &value) => return Ok(old.to_owned()),
            Some(_) => return Err(InstallError::Taken),
            None => servers.0.push((entry.name.to_owned(), value)),
        }
        let servers = raw(servers.to_text("    ", "  ").map_err(not_json)?)?;
        match file.0.iter_mut().find(|(name, _)| name == self.member()) {
            Some((_, there)) => *there = servers,
            None => file.0.push((self.member().to_owned(), servers)),
        }
        Ok(file.to_text("  ", "").map_err(not_json)? + "\n")
    }
}

fn is_same(one: &RawValue, other: &RawValue) -> bool {
    let value = |raw: &RawValue| serde_json::from_str::<serde_json::Value>(raw.get()).ok();
    value(one) == value(other)
}

/// The members of an object in their order, each value as it is written.
struct Members(Vec<(String, Box<RawValue>)>);

impl Members {
    /// The object, with an indent of its members and of its end.
    fn to_text(&self, indent: &str, end: &str) -> serde_json::Result<String> {
        let mut text = String::from("{");
        for (at, (name, value)) in self.0.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            let name = serde_json::to_string(name)?;
            _ = write!(text, "{comma}\n{indent}{name}: {}", value.get());
        }
        _ = write!(text, "\n{end}}}");
        Ok(text)
    }
}

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Members;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut members: Vec<(String, Box<RawValue>)> = Vec::new();
                while let Some((name, value)) = map.next_entry::<String, _>()? {
                    if members.iter().any(|(there, _)| *there == name) {
                        return Err(de::Error::custom(format!("duplicate member `{name}`")));
                    }
                    members.push((name, value));
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

fn toml_entry(entry: &Entry<'_>) -> String {
    let Entry { name, program, arguments } = entry;
    let quoted = |text: &str| toml::Value::from(text).to_string();
    let arguments: Vec<String> = arguments.iter().map(|argument| quoted(argument)).collect();
    format!(
        "[mcp_servers.{name}]\ncommand = {}\nargs = [{}]\n",
        quoted(program),
        arguments.join(", ")
    )
}

/// The file with the entry at its end.
fn with_toml_entry(old: &str, entry: &Entry<'_>) -> Result<String, InstallError> {
    let parse = |text: &str| text.parse::<toml::Table>();
    let wrong = |error: toml::de::Error| {
        InstallError::Content(format!("it is not TOML: {}", error.message()))
    };
    let there = parse(old).map_err(wrong)?;
    let own = toml_entry(entry);
    let of = |table: &toml::Table| table.get("mcp_servers")?.get(entry.name).cloned();
    if let Some(found) = of(&there) {
        return match of(&parse(&own).map_err(wrong)?) == Some(found) {
            true => Ok(old.to_owned()),
            false => Err(InstallError::Taken),
        };
    }
    let mut new = old.to_owned();
    if !new.is_empty() {
        new.push_str(if new.ends_with('\n') { "\n" } else { "\n\n" });
    }
    new.push_str(&own);
    // Where the servers are an inline table, nothing can be added to it so.
    match parse(&new) {
        Ok(_) => Ok(new),
        Err(error) => {
            let message = format!("an entry cannot be added at its end: {}", error.message());
            Err(InstallError::Content(message))
        }
    }
}

/// Puts a file whole where it is missing, or where there is another one, of which a backup is kept. `mode`
/// is that of a new file.
///
/// # Errors
///
/// [`InstallError`]; then nothing was changed.
pub fn put(file: &Path, content: &str, mode: u32) -> Result<Option<PathBuf>, InstallError> {
    let found = read(file)?;
    if found.as_ref().is_some_and(|(old, _)| old == content) {
        return Ok(None);
    }
    let failed = |source| InstallError::File { what: "written", source };
    if let Some(parent) = file.parent() {
        fs::create_dir_all(parent).map_err(failed)?;
    }
    let backup = found.as_ref().map(|_| back_up(file)).transpose().map_err(failed)?;
    let (folder, mode) = (file.parent().unwrap_or(Path::new(".")), found.map_or(mode, |it| it.1));
    let new = NewFile::write(folder, content.as_bytes(), mode);
    new.and_then(|new| new.put(file)).map_err(failed)?;
    Ok(backup)
}

/// The content of a regular file, and its mode; `None` if it is missing.
fn read(file: &Path) -> Result<Option<(String, u32)>, InstallError> {
    let failed = |source| InstallError::File { what: "read", source };
    let found = match file.symlink_metadata() {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    if found.is_symlink() {
        return Err(InstallError::Odd("a symbolic link, which is not followed"));
    }
    if !found.is_file() {
        return Err(InstallError::Odd("not a regular file"));
    }
    if found.len() > MAX_FILE_BYTES {
        return Err(InstallError::Odd("larger than 16 MiB"));
    }
    let text = fs::read_to_string(file).map_err(failed)?;
    Ok(Some((text, found.mode() & 0o7777)))
}

/// Copies a file under a new name in the same directory.
fn back_up(file: &Path) -> io::Result<PathBuf> {
    let content = fs::read(file)?;
    let mode = file.metadata()?.mode() & 0o7777;
    for number in 1..=MAX_BACKUPS {
        let suffix = if number == 1 { ".bak".to_owned() } else { format!(".bak.{number}") };
        let backup = sibling(file, &suffix);
        let created = fs::OpenOptions::new().write(true).create_new(true).open(&backup);
        let mut created = match created {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            created => created?,
        };
        created.set_permissions(fs::Permissions::from_mode(mode))?;
        created.write_all(&content)?;
        created.sync_all()?;
        return Ok(backup);
    }
    Err(io::Error::other(format!("there are {MAX_BACKUPS} backups of it already")))
}

fn sibling(file: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(file.file_name().unwrap_or_default());
    name.push(suffix);
    file.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn install(client: Client, file: &Path, arguments: &[&str]) -> Result<Option<PathBuf>, String> {
        let arguments: Vec<_> = arguments.iter().map(ToString::to_string).collect();
        let entry = Entry { name: "sandboxctl", program: "/bin/sandboxctl", arguments: &arguments };
        client.install(file, &entry).map_err(|error| error.to_string())
    }

    #[test]
    fn entry_is_added_and_all_else_stays_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("settings.json");
        let old = "{\n  \"z\": [1,  2],\n  \"mcpServers\": {\n    \"other\": { \"command\" : \"x\" }\n  },\n  \"a\": 1e5\n}\n";
        fs::write(&file, old).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        let written = install(Client::Gemini, &file, &["mcp"]).unwrap();
        let new = fs::read_to_string(&file).unwrap();
        assert_eq!(
            new,
            "{\n  \"z\": [1,  2],\n  \"mcpServers\": {\n    \"other\": { \"command\" : \"x\" },\n    \
             \"sandboxctl\": {\"args\":[\"mcp\"],\"command\":\"/bin/sandboxctl\"}\n  },\n  \"a\": 1e5\n}\n"
        );
        assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o640);
        assert_eq!(fs::read_to_string(written.unwrap()).unwrap(), old);
        // Again: nothing is to be done.
        assert!(install(Client::Gemini, &file, &["mcp"]).unwrap().is_none());
        let error = install(Client::Gemini, &file, &["mcp", "--read-only"]).unwrap_err();
        assert!(error.contains("entry of this name"), "{error}");
        assert_eq!(fs::read_to_string(&file).unwrap(), new);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn every_client_gets_a_file_that_it_reads() {
        let home = tempfile::tempdir().unwrap();
        for client in Client::ALL {
            let file = client.file(home.path(), None);
            install(client, &file, &["mcp", "--io-dir", "/a \"b\""]).unwrap();
            let text = fs::read_to_string(&file).unwrap();
            let entry = match client {
                Client::Codex => {
                    let table: toml::Table = text.parse().unwrap();
                    serde_json::to_value(&table["mcp_servers"]["sandboxctl"]).unwrap()
                }
                _ => {
                    let file: serde_json::Value = serde_json::from_str(&text).unwrap();
                    file[client.member()]["sandboxctl"].clone()
                }
            };
            assert_eq!(entry["command"], "/bin/sandboxctl", "{text}");
            assert_eq!(entry["args"][2], "/a \"b\"", "{text}");
            assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o600);
        }
    }

    #[test]
    fn file_that_was_changed_is_kept_beside_the_one_that_replaces_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a/b/SKILL.md");
        assert!(put(&file, "one", 0o644).unwrap().is_none());
        assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o644);
        // Again: nothing is to be done.
        assert!(put(&file, "one", 0o644).unwrap().is_none());
        fs::write(&file, "mine").unwrap();
        let backup = put(&file, "two", 0o644).unwrap().unwrap();
        let read = |path: &Path| fs::read_to_string(path).unwrap();
        assert_eq!((&*read(&file), &*read(&backup)), ("two", "mine"));
        fs::remove_file(&file).unwrap();
        symlink(&backup, &file).unwrap();
        put(&file, "three", 0o644).unwrap_err();
        assert_eq!(read(&backup), "mine");
    }

    #[test]
    fn toml_keeps_its_comments() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.toml");
        fs::write(&file, "# mine\nmodel = \"x\"").unwrap();
        install(Client::Codex, &file, &["mcp"]).unwrap();
        assert_eq!(
            fs::read_to_string(&file).unwrap(),
            "# mine\nmodel = \"x\"\n\n[mcp_servers.sandboxctl]\ncommand = \"/bin/sandboxctl\"\nargs = [\"mcp\"]\n"
        );
        fs::write(&file, "mcp_servers = { a = { command = \"x\" } }\n").unwrap();
        let error = install(Client::Codex, &file, &["mcp"]).unwrap_err();
        assert!(error.starts_with("an entry cannot be added"), "{error}");
    }

    #[test]
    fn file_that_cannot_be_changed_without_loss_is_refused_and_stays() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("settings.json");
        for content in
            ["{ \"a\": 1, // mine\n}", "[1]", "{\"a\":1,\"a\":2}", "{\"mcpServers\": []}", "{"]
        {
            fs::write(&file, content).unwrap();
            install(Client::Cursor, &file, &["mcp"]).unwrap_err();
            assert_eq!(fs::read_to_string(&file).unwrap(), content);
        }
        let link = folder.path().join("link.json");
        symlink(&file, &link).unwrap();
        let error = install(Client::Cursor, &link, &["mcp"]).unwrap_err();
        assert!(error.contains("symbolic link"), "{error}");
        assert!(link.is_symlink());
        install(Client::Cursor, folder.path(), &["mcp"]).unwrap_err();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }
}
