//! The one table of settings: name, variable, flag, default, meaning. Parsing, `config show`,
//! the flags' help and the documentation's table all read it.

use sandbox_api::LimitKey;
use sandbox_controller::{ConfinementPolicy, DiskReserve, EmbeddedConfig};
use sandbox_protocol::message::{Access, AllowedPath};

use super::network::Presets;
use super::value::Value;

/// What the names of our environment variables begin with.
pub const VARIABLE_PREFIX: &str = "SANDBOXCTL_";

/// A setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Key {
    /// The io dir.
    IoDir,
    /// Whether scripts have files.
    IoEnabled,
    /// How `io` tells failures of the system.
    IoErrors,
    /// What programs have where no io dir is named.
    IoPrivate,
    /// The encoding of file operations.
    DefaultEncoding,
    /// Which guest paths may be used.
    AllowedPaths,
    /// Which names refuse writes.
    Protected,
    /// A limit.
    Limit(LimitKey),
    /// How much space sandboxes leave free.
    DiskReserve,
    /// What a limit may be raised to.
    Ceiling(LimitKey),
    /// Which hosts programs may reach.
    Allow,
    /// Named lists of hosts.
    Presets,
    /// What happens where the agent cannot confine itself.
    Confinement,
    /// Where operations are written down.
    AuditFile,
    /// Which engine.
    EngineKind,
    /// The engine's address.
    EngineHost,
    /// The engine's runtime.
    EngineRuntime,
    /// The image to use in place of our own.
    EngineImage,
    /// The embedded engine's folder.
    EngineDataDir,
    /// When images for programs are fetched.
    Pull,
    /// Where `sandbox_init` may mount.
    AllowedOutPaths,
    /// Which images `sandbox_init` may name.
    AllowedImages,
}

const ENCODINGS: &[&str] =
    &["utf-8", "utf8", "base64", "hex", "latin1", "utf-16le", "utf-16be", "ascii"];

impl Key {
    /// Every key, in the order of the documentation: by section, limits as the table has them.
    pub fn all() -> impl Iterator<Item = Self> {
        let limits = |section: &'static str| {
            let is_in_it = move |limit: &LimitKey| limit.key().starts_with(section);
            LimitKey::ALL.iter().copied().filter(is_in_it)
        };
        [Self::IoDir, Self::IoPrivate, Self::IoEnabled, Self::IoErrors]
            .into_iter()
            .chain(limits("io.").map(Self::Limit))
            .chain([Self::DefaultEncoding, Self::AllowedPaths, Self::Protected])
            .chain(limits("filesystem.").map(Self::Limit))
            .chain(limits("limits.").map(Self::Limit))
            .chain([Self::DiskReserve])
            .chain([Self::Allow, Self::Presets])
            .chain(limits("network.").map(Self::Limit))
            .chain(LimitKey::ALL.iter().copied().map(Self::Ceiling))
            .chain([Self::Confinement, Self::AuditFile])
            .chain([Self::EngineKind, Self::EngineHost, Self::EngineRuntime, Self::EngineImage])
            .chain([Self::EngineDataDir, Self::Pull, Self::AllowedOutPaths, Self::AllowedImages])
    }

    /// The key's name in a configuration file, with dots.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::IoDir => "io.dir".into(),
            Self::IoEnabled => "io.enabled".into(),
            Self::IoErrors => "io.errors".into(),
            Self::IoPrivate => "io.private".into(),
            Self::DiskReserve => "limits.disk_reserve".into(),
            Self::DefaultEncoding => "filesystem.default_encoding".into(),
            Self::AllowedPaths => "filesystem.allowed_paths".into(),
            Self::Protected => "filesystem.protected".into(),
            Self::Limit(limit) => limit.key().into(),
            Self::Ceiling(limit) => {
                let name = limit.key();
                format!("limits.ceiling.{}", name.strip_prefix("limits.").unwrap_or(name))
            }
            Self::Allow => "network.allow".into(),
            Self::Presets => "network.presets".into(),
            Self::Confinement => "policy.confinement".into(),
            Self::AuditFile => "audit.file".into(),
            Self::EngineKind => "engine.kind".into(),
            Self::EngineHost => "engine.host".into(),
            Self::EngineRuntime => "engine.runtime".into(),
            Self::EngineImage => "engine.image".into(),
            Self::EngineDataDir => "engine.data_dir".into(),
            Self::Pull => "programs.pull".into(),
            Self::AllowedOutPaths => "tools.allowed_out_paths".into(),
            Self::AllowedImages => "tools.allowed_images".into(),
        }
    }

    /// The key of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::all().find(|key| key.name() == name)
    }

    /// The key's environment variable: `limits.timeout` is `SANDBOXCTL_LIMITS_TIMEOUT`.
    #[must_use]
    pub fn variable(self) -> String {
        format!("{VARIABLE_PREFIX}{}", self.name().replace('.', "_").to_ascii_uppercase())
    }

    /// The flag, where there is one.
    #[must_use]
    pub fn flag(self) -> Option<&'static str> {
        match self {
            Self::IoDir => Some("--io-dir"),
            Self::IoEnabled => Some("--no-io"),
            Self::IoErrors => Some("--io-errors"),
            Self::Limit(limit) => limit.flag(),
            Self::Allow => Some("--allow"),
            Self::Confinement => Some("--confinement"),
            Self::Protected => Some("--protect"),
            Self::AuditFile => Some("--audit"),
            Self::Pull => Some("--pull"),
            Self::EngineKind => Some("--engine"),
            Self::EngineHost => Some("--host"),
            Self::EngineRuntime => Some("--runtime"),
            Self::DefaultEncoding
            | Self::AllowedPaths
            | Self::Ceiling(_)
            | Self::IoPrivate
            | Self::DiskReserve
            | Self::Presets
            | Self::EngineImage
            | Self::EngineDataDir
            | Self::AllowedOutPaths
            | Self::AllowedImages => None,
        }
    }

    /// The documented default; none where the key is not set unless someone sets it.
    #[must_use]
    pub fn default(self) -> Option<Value> {
        let text = |text: &str| Some(Value::Text(text.to_owned()));
        match self {
            Self::IoDir => Some(Value::Path("./sandbox-files".into())),
            Self::IoEnabled => Some(Value::Switch(true)),
            Self::IoErrors => text("raise"),
            Self::IoPrivate => text("off"),
            Self::DiskReserve => text(DiskReserve::AUTO),
            Self::DefaultEncoding => text("utf-8"),
            Self::AllowedPaths => Some(Value::Paths(vec![
                AllowedPath { path: "/io".into(), access: Access::Write },
                AllowedPath { path: "/in".into(), access: Access::Read },
            ])),
            Self::Protected => Some(Value::Names(Vec::new())),
            Self::Limit(limit) => Some(Value::Limit(limit.default_value())),
            Self::Ceiling(limit) => Some(Value::Limit(limit.default_ceiling())),
            Self::Allow => Some(Value::Hosts(Vec::new())),
            Self::Presets => Some(Value::Presets(Presets::new())),
            Self::Confinement => text(ConfinementPolicy::Required.as_str()),
            Self::EngineKind => text("auto"),
            Self::AuditFile | Self::EngineHost | Self::EngineRuntime | Self::EngineImage => None,
            Self::EngineDataDir => Some(Value::Path(EmbeddedConfig::DATA_DIR.into())),
            Self::Pull => text("missing"),
            Self::AllowedOutPaths => Some(Value::Dirs(vec![".".into()])),
            Self::AllowedImages => Some(Value::Names(vec!["*".into()])),
        }
    }

    /// The words that the key takes, where they are few.
    #[must_use]
    pub const fn words(self) -> &'static [&'static str] {
        match self {
            Self::IoErrors => &["raise", "return"],
            Self::IoPrivate => &["off", "tmpfs"],
            Self::DefaultEncoding => ENCODINGS,
            Self::Confinement => &["required", "best-effort"],
            Self::EngineKind => &["auto", "docker", "embedded"],
            Self::Pull => &["missing", "never", "always"],
            _ => &[],
        }
    }

    /// What a configuration file is to have there, for error messages.
    #[must_use]
    pub fn expects(self) -> &'static str {
        use sandbox_api::LimitValue;
        match self {
            Self::IoEnabled => "true or false",
            Self::AllowedOutPaths => "an array of paths such as [\".\"]",
            Self::AllowedImages => "an array of images' names such as \"python:*\"",
            Self::AllowedPaths => "an array of { path = \"…\", access = \"read\" or \"write\" }",
            Self::Protected => "an array of names such as \".bashrc\" or \".git/hooks\"",
            Self::Allow => {
                "an array of hosts such as \"example.org\", or of presets such as \"@name\""
            }
            Self::Presets => "a table of arrays of hosts: name = [\"example.org\"]",
            Self::Limit(limit) | Self::Ceiling(limit) => match limit.default_value() {
                LimitValue::Time(_) => "a duration such as \"30s\"",
                LimitValue::Size(_) => "a size such as \"64MiB\"",
                LimitValue::Cpus(_) => "a number of processors such as 0.5",
                LimitValue::Count(_) => "a whole number",
            },
            Self::DiskReserve => "a size such as \"1GiB\", or \"auto\"",
            _ => "a string",
        }
    }

    /// What the key means, in one line.
    #[must_use]
    pub fn meaning(self) -> &'static str {
        match self {
            Self::IoDir => "Directory whose files the sandbox sees at /io",
            Self::IoEnabled => "Whether scripts have files at all",
            Self::IoPrivate => {
                "Whether programs have an io dir in memory where none is named; embedded engine only"
            }
            Self::IoErrors => "How io tells failures of the system: an error, or nil and a message",
            Self::DefaultEncoding => "Encoding of file operations; scripts always see bytes",
            Self::AllowedPaths => "Guest paths that may be used, by component",
            Self::Protected => "Names that refuse writes wherever they stand; layers add up",
            Self::Limit(limit) => limit_meaning(limit),
            Self::DiskReserve => {
                "Space that sandboxes leave free on the io dir's disk; auto: 1 GiB or 5 %, the smaller"
            }
            Self::Ceiling(_) => "What that limit may be raised to",
            Self::Allow => "Hosts that programs may reach: HOST[:PORT], *.DOMAIN or @PRESET",
            Self::Presets => "Lists of hosts, by name",
            Self::Confinement => {
                "Whether the agent must confine itself, or runs with what it can have"
            }
            Self::AuditFile => {
                "File that a JSON line is appended to for each operation and refusal"
            }
            Self::EngineKind => "Container engine",
            Self::EngineHost => "Address of the Docker engine: unix:///run/docker.sock, tcp://…",
            Self::EngineRuntime => "OCI runtime of the engine, such as runsc",
            Self::EngineImage => "Image to run the agent in, in place of our own",
            Self::EngineDataDir => {
                "Folder of the embedded engine: root's, where programs may start"
            }
            Self::Pull => {
                "When an image is fetched from its registry; for the tools never, unless set"
            }
            Self::AllowedOutPaths => "Directories below which sandbox_init may mount",
            Self::AllowedImages => "Images that sandbox_init may name; * is any text without a /",
        }
    }

    /// [`meaning`](Self::meaning) with the default, for `--help`.
    #[must_use]
    pub fn help(self) -> String {
        let meaning = self.meaning();
        match (self, self.default()) {
            (Self::IoEnabled, _) | (_, None) => meaning.to_owned(),
            // A word is listed by its own possible values; a path is printed as it is typed.
            (_, Some(Value::Text(text))) => format!("{meaning} [default: {text}]"),
            (_, Some(Value::Path(path))) => format!("{meaning} [default: {}]", path.display()),
            (_, Some(Value::Limit(value))) => format!("{meaning} [default: {value}]"),
            (_, Some(value)) => format!("{meaning} [default: {value}]"),
        }
    }
}

fn limit_meaning(limit: LimitKey) -> &'static str {
    match limit {
        LimitKey::Timeout => "Time that a script or command may take",
        LimitKey::OperationTimeout => "Time that one file operation may take",
        LimitKey::Memory => "Memory of the container",
        LimitKey::VmMemory => "Memory of the script's virtual machine",
        LimitKey::Cpus => "Processors",
        LimitKey::Pids => "Processes and threads in the container",
        LimitKey::MaxWrite => "Bytes written to files, overwritten or not",
        LimitKey::Entries => "Files and directories made",
        LimitKey::MaxFileSize => "Size of a file that one operation reads or writes whole",
        LimitKey::ListDepth => "Depth of a recursive list, from 1 for the directory alone",
        LimitKey::OpenHandles => "File handles open at one time",
        LimitKey::LogBytes => "Bytes of all that a run prints, as JSON",
        LimitKey::LogLines => "Entries that a run prints",
        LimitKey::Tmpfs => "Size of /tmp, where programs run",
        LimitKey::OutputBytes => "Bytes of a command's output",
        LimitKey::Connections => "Connections to hosts, in a sandbox's life",
        LimitKey::NetworkBytes => "Bytes to and from hosts, in a sandbox's life",
        LimitKey::ConnectTimeout => "Time to find a host and be answered there",
        LimitKey::ConnectionIdle => "Time in which nothing comes or goes, until a connection ends",
        _ => "A limit",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_and_variables_are_unique() {
        let count = Key::all().count();
        assert_eq!(count, 20 + 2 * LimitKey::ALL.len(), "a section of limits is missing");
        assert_eq!(Key::all().map(Key::name).collect::<HashSet<_>>().len(), count);
        assert_eq!(Key::all().map(Key::variable).collect::<HashSet<_>>().len(), count);
        for key in Key::all() {
            assert_eq!(Key::from_name(&key.name()), Some(key));
        }
    }

    #[test]
    fn every_limit_has_a_meaning_of_its_own() {
        let meanings: HashSet<_> = LimitKey::ALL.iter().map(|&key| limit_meaning(key)).collect();
        assert_eq!(meanings.len(), LimitKey::ALL.len());
        assert!(!meanings.contains("A limit"));
    }

    #[test]
    fn ceilings_have_a_section_of_their_own() {
        let name = |limit| Key::Ceiling(limit).name();
        assert_eq!(name(LimitKey::Timeout), "limits.ceiling.timeout");
        assert_eq!(name(LimitKey::OperationTimeout), "limits.ceiling.filesystem.timeout");
        assert_eq!(name(LimitKey::MaxWrite), "limits.ceiling.io.max_bytes");
    }
}
