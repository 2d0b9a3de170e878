//! The table of settings: name, variable, flag, default, description. Parsing, `config show`, the
//! flags' help and the documentation's table are all derived from it.

use std::collections::BTreeMap;
use std::time::Duration;

use sandbox_api::process::DEFAULT_SCROLLBACK;
use sandbox_api::{Bounds, ByteSize, LimitKey, LimitValue};
use sandbox_controller::{ConfinementPolicy, DiskReserve, RootlessLimits};
use sandbox_mcp::DEFAULT_OUTPUT_BYTES;
use sandbox_protocol::message::{Access, AllowedPath};

use super::network::Presets;
use super::value::Value;

/// A row of the table.
struct Row {
    name: &'static str,
    description: &'static str,
    flag: Option<&'static str>,
    default: DefaultValue,
    /// How its value is written.
    kind: Kind,
    /// The allowed values, if there are only a few.
    words: &'static [&'static str],
    /// The type that is required in a configuration file, where the kind does not say.
    expects: &'static str,
}

/// The value of a setting that nothing sets.
enum DefaultValue {
    None,
    Switch(bool),
    Text(&'static str),
    Limit(LimitValue),
    Other(fn() -> Value),
}

/// How the value of a setting is written, and what is checked of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// As the value of this limit, with its unit and smallest value.
    Limit(LimitKey),
    /// True or false.
    Switch,
    /// One of the row's words.
    Word,
    /// A text that is not empty.
    Text,
    /// A host path that does not depend on the working directory.
    AbsolutePath,
    /// The io dir: a host path without `..`.
    IoDir,
    /// Host directories.
    Dirs,
    /// Guest paths with the access to them.
    GuestPaths,
    /// Processes that are started ahead.
    Preparations,
    /// Templates of E2B's sandboxes, by name.
    Templates,
    /// Other MCP servers, by name.
    Upstreams,
    /// Rules for their tools.
    ToolRules,
    /// Names of files that are write-protected.
    ProtectedNames,
    /// Names, or patterns of names.
    Names,
    /// Rules for hosts that commands may reach.
    Hosts,
    /// Named lists of such rules.
    Presets,
    /// Named lists of texts.
    Lists,
    /// The space that is left free.
    DiskReserve,
}

/// Values that are written as those of limits are.
const TIME: Kind = Kind::Limit(LimitKey::Timeout);
const SIZE: Kind = Kind::Limit(LimitKey::MaxFileSize);
const COUNT: Kind = Kind::Limit(LimitKey::Entries);

/// How many sandboxes of a kind are started ahead at most. Each is a container; the page on the warm pool
/// says how the figure came about.
pub const MOST_PREWARMED: u16 = 64;

/// Settings of a kind, without name and description.
const TEXT: Row = Row {
    name: "",
    description: "",
    flag: None,
    default: DefaultValue::None,
    kind: Kind::Text,
    words: &[],
    expects: "a string",
};
const PATH: Row = Row { kind: Kind::AbsolutePath, ..TEXT };
const NAMES: Row = other(Kind::Names, || Value::Names(Vec::new()));

/// What tables of servers and lists of rules look like.
const SERVERS: &str = "a table of servers: name = { command = [\"…\"] } or { url = \"…\" }";
const TOOL_RULES: &str = "an array of rules such as \"github.list_*\"";

const fn text_of(default: &'static str) -> Row {
    Row { default: DefaultValue::Text(default), ..TEXT }
}

const fn word(default: &'static str, words: &'static [&'static str]) -> Row {
    Row { kind: Kind::Word, words, ..text_of(default) }
}

const fn switch(default: bool) -> Row {
    Row { kind: Kind::Switch, default: DefaultValue::Switch(default), ..TEXT }
}

const fn limit(kind: Kind, default: DefaultValue) -> Row {
    Row { kind, default, ..TEXT }
}

const fn count(default: u64) -> Row {
    limit(COUNT, DefaultValue::Limit(LimitValue::Count(default)))
}

const fn size(default: ByteSize) -> Row {
    limit(SIZE, DefaultValue::Limit(LimitValue::Size(default)))
}

/// A time, whose default is in minutes.
const fn time(minutes: u64) -> Row {
    limit(TIME, DefaultValue::Limit(LimitValue::Time(Duration::from_secs(60 * minutes))))
}

const fn other(kind: Kind, default: fn() -> Value) -> Row {
    Row { kind, default: DefaultValue::Other(default), ..TEXT }
}

impl Row {
    const fn flag(self, flag: &'static str) -> Self {
        Self { flag: Some(flag), ..self }
    }

    const fn expects(self, expects: &'static str) -> Self {
        Self { expects, ..self }
    }
}

fn io_and_inputs() -> Value {
    Value::Paths(vec![
        AllowedPath { path: "/io".into(), access: Access::Write },
        AllowedPath { path: "/in".into(), access: Access::Read },
    ])
}

/// One row per setting: its key, its name, what it is, and how its value is written.
macro_rules! settings {
    ($($key:ident $name:literal $description:literal: $row:expr;)*) => {
        /// A setting.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Key {
            $(#[doc = concat!("`", $name, "`: `", $description, "`")] $key,)*
            /// A limit.
            Limit(LimitKey),
            /// The ceiling of a limit.
            Ceiling(LimitKey),
            /// The limit of sandboxes with programs, for those of `exec`.
            Exec(LimitKey),
            /// The ceiling of such a limit.
            ExecCeiling(LimitKey),
        }

        /// Every key except limits and ceilings.
        const SETTINGS: &[Key] = &[$(Key::$key),*];

        const fn row(key: Key) -> Row {
            match key {
                $(Key::$key => Row { name: $name, description: $description, ..$row },)*
                Key::Limit(_) | Key::Ceiling(_) | Key::Exec(_) | Key::ExecCeiling(_) => TEXT,
            }
        }
    };
}

settings! {
    IoDir "io.dir" "Directory whose files the sandbox sees at /io":
        other(Kind::IoDir, || Value::Path("./sandbox-files".into())).flag("--io-dir");
    IoPrivate "io.private" "Where a fresh io dir is: on disk, or in memory (embedded engine only)":
        word("disk", &["disk", "tmpfs"]);
    IoScratchDir "io.scratch_dir" "Directory for fresh io dirs; /var/tmp/sandboxctl-UID if not set":
        PATH;
    IoEnabled "io.enabled" "Whether scripts have files": switch(true).flag("--no-io");
    IoErrors "io.errors" "How io reports OS errors: an error, or nil and a message":
        word("raise", &["raise", "return"]).flag("--io-errors");
    DefaultEncoding "filesystem.default_encoding" "Encoding of file operations; scripts always see bytes":
        word("utf-8", &["utf-8", "utf8", "base64", "hex", "latin1", "utf-16le", "utf-16be", "ascii"]);
    AllowedPaths "filesystem.allowed_paths" "Guest paths that may be used, by component":
        other(Kind::GuestPaths, io_and_inputs)
            .expects("an array of { path = \"…\", access = \"read\" or \"write\" }");
    Protected "filesystem.protected" "Names that are write-protected at any depth; layers add up":
        other(Kind::ProtectedNames, || Value::Names(Vec::new())).flag("--protect")
            .expects("an array of names such as \".bashrc\" or \".git/hooks\"");
    DiskReserve "limits.disk_reserve" "Space that stays free on disks of io dirs and images; auto: 1 GiB or 5 %, the smaller":
        Row { kind: Kind::DiskReserve, ..text_of(DiskReserve::AUTO) }
            .expects("a size such as \"1GiB\", or \"auto\"");
    Allow "network.allow" "Hosts that programs may reach: HOST[:PORT], *.DOMAIN or @PRESET":
        other(Kind::Hosts, || Value::Hosts(Vec::new())).flag("--allow")
            .expects("an array of hosts such as \"example.org\", or of presets such as \"@name\"");
    Presets "network.presets" "Lists of hosts, by name":
        other(Kind::Presets, || Value::Presets(Presets::new()))
            .expects("a table of arrays of hosts: name = [\"example.org\"]");
    Inject "network.inject" "Secrets that are added to requests: HOST[:PORT]: HEADER: TEXT env:NAME, ?QUERY=env:NAME or basic USER:env:NAME":
        NAMES.flag("--inject")
            .expects("an array of rules such as \"api.example.org: Authorization: Bearer env:TOKEN\"");
    CaFile "network.ca_file" "Authorities, as PEM, by which hosts with secrets or rules for requests are verified; $SSL_CERT_FILE or the machine's if not set":
        PATH;
    Confinement "policy.confinement" "Require full confinement of the agent, or accept what the kernel supports":
        word(ConfinementPolicy::Required.as_str(), &["required", "best-effort"]).flag("--confinement");
    AuditFile "audit.file" "File that a JSON line is appended to for each operation and refusal":
        PATH.flag("--audit");
    EngineKind "engine.kind" "Container engine":
        word("auto", &["auto", "docker", "embedded"]).flag("--engine");
    EngineHost "engine.host" "Address of the Docker engine: unix:///run/docker.sock, tcp://…":
        TEXT.flag("--host");
    EngineRuntime "engine.runtime" "OCI runtime of the engine, such as runsc":
        TEXT.flag("--runtime");
    EngineImage "engine.image" "Image to run the agent in, instead of the built-in one": TEXT;
    EngineDataDir "engine.data_dir" "Data directory of the embedded engine (its user's alone, not noexec); /var/lib/sandboxctl of root, else sandboxctl in $XDG_DATA_HOME":
        PATH;
    RootlessLimits "engine.rootless_limits" "Without root, require limits by control groups, or accept weaker ones":
        word(RootlessLimits::Required.as_str(), &["required", "best-effort"]).flag("--limits");
    Pull "programs.pull" "When to pull an image; never for the tools, unless set":
        word("missing", &["missing", "never", "always"]).flag("--pull");
    AllowedOutPaths "tools.allowed_out_paths" "Directories below which sandbox_init may mount":
        other(Kind::Dirs, || Value::Dirs(vec![".".into()])).expects("an array of paths such as [\".\"]");
    AllowedImages "tools.allowed_images" "Images that sandbox_init may name; * is any text without a /":
        other(Kind::Names, || Value::Names(vec!["*".into()]))
            .expects("an array of images' names such as \"python:*\"");
    McpOutput "mcp.output_bytes" "Bytes of output that one call of an AI agent's tool gives; at most 128 KiB":
        size(ByteSize::b(DEFAULT_OUTPUT_BYTES as u64)).flag("--max-output");
    McpUpstream "mcp.upstream" "Other MCP servers whose tools scripts may call, by name; a command runs on the host, as the user":
        other(Kind::Upstreams, || Value::Upstreams(BTreeMap::new())).flag("--upstream").expects(SERVERS);
    McpToolRules "mcp.tool_rules" "Calls of their tools that scripts are given: TOOL[ /POINTER=VALUE]…; without a rule, tools that only read":
        other(Kind::ToolRules, || Value::Names(Vec::new())).flag("--tool").expects(TOOL_RULES);
    McpExpose "mcp.expose" "Their tools that agents have as tools of their own too, by patterns, as far as scripts are given them":
        other(Kind::ToolRules, || Value::Names(Vec::new())).flag("--expose").expects(TOOL_RULES);
    PoolSize "pool.size" "Sandboxes that are started ahead, of each kind that is often asked for; at most 64":
        count(0).flag("--pool");
    PoolMaxAge "pool.max_age" "Age at which a sandbox that is started ahead is replaced": time(30);
    PoolMaxKeys "pool.max_keys" "Kinds of sandboxes that are started ahead": count(4);
    PoolAdaptive "pool.adaptive" "Whether kinds are learnt from use; `tools` always learns them, `serve` starts with scripts":
        switch(false);
    PoolPrepared "pool.prepared" "Processes that sandboxes of `serve` have before they are asked for":
        other(Kind::Preparations, || Value::Preparations(Vec::new()))
            .expects("tables with name, command, ready and count");
    ServerListen "server.listen" "Where `serve` listens: ADDRESS:PORT, or unix:PATH":
        text_of("127.0.0.1:8470").flag("--listen");
    ServerDataDir "server.data_dir" "Database of the service, and files of executions":
        PATH.flag("--data-dir");
    ServerAllowedImages "server.allowed_images" "Images that callers may name; * is any text without a /":
        NAMES.flag("--allowed-image").expects("an array of images' names such as \"python:*\"");
    ServerAllowedHosts "server.allowed_hosts" "Further host names of the service":
        NAMES.expects("an array of names such as \"sandbox.example.org\"");
    ServerAllowedOrigins "server.allowed_origins" "Web origins whose pages may call the service":
        NAMES.expects("an array of origins such as \"https://console.example.org\"");
    ServerUrl "server.url" "Where clients reach the service: shows OAuth clients where to get tokens":
        TEXT.expects("a URL such as \"https://sandbox.example.org\"");
    ServerPreviewDomain "server.preview_domain" "Domain below which ports of sandboxes have hosts, for browsers":
        TEXT.expects("a domain such as \"preview.example.org\"");
    ServerPublicPorts "server.public_ports" "Whether ports may be public: a preview by its URL, one of E2B's sandboxes by its name":
        switch(false);
    ServerTlsCert "server.tls_cert" "Certificate chain of the service, as PEM":
        PATH.flag("--tls-cert");
    ServerTlsPrivate "server.tls_key" "Private key of the certificate, as PEM":
        PATH.flag("--tls-key");
    ServerConcurrency "server.concurrency" "Concurrent executions": count(16);
    ServerSubjectConcurrency "server.subject_concurrency" "Concurrent executions of one caller":
        count(4);
    ServerMaxQueued "server.max_queued" "Queued executions": count(1000);
    ServerSandboxes "server.sandboxes" "Kept sandboxes": count(64);
    ServerMaxTtl "server.max_ttl" "Longest life of a kept sandbox": time(24 * 60);
    ServerMaxPaused "server.max_paused" "Paused sandboxes, whose memory stays in use": count(8);
    ServerMaxPausedTime "server.max_paused_time" "How long a sandbox is paused until it is stopped, and its files are kept; with `idle: freeze` until it expires":
        time(60);
    ServerScrollback "server.scrollback" "Output that is kept of a process, 64KiB to 16MiB":
        size(DEFAULT_SCROLLBACK);
    ServerMaxConnections "server.max_connections" "Open connections": count(1000);
    ServerMaxConnectionsOfAnAddress "server.max_connections_of_an_address" "Open connections from one address; a reverse proxy is one":
        count(256);
    ServerRetention "server.retention" "How long results and files are kept": time(7 * 24 * 60);
    ServerMaxStored "server.max_stored_bytes" "Bytes of kept results and files":
        size(ByteSize::b(10 << 30));
    ServerShutdownTimeout "server.shutdown_timeout" "How long running executions may go on after SIGTERM":
        limit(TIME, DefaultValue::Limit(LimitValue::Time(Duration::from_secs(30)))).flag("--shutdown-timeout");
    ServerMetricsBySubject "server.metrics_by_subject" "Whether /metrics has times by caller, of the first thousand":
        switch(false);
    ServerOtlpEndpoint "server.otlp_endpoint" "OpenTelemetry collector that traces and metrics are sent to, by OTLP over HTTP":
        TEXT.expects("a URL such as \"http://127.0.0.1:4318\"");
    QuotaStored "server.quota.stored_bytes" "Bytes of kept results and files of one caller":
        limit(SIZE, DefaultValue::None);
    QuotaCpu "server.quota.cpu_time" "Processor time of one caller a day":
        limit(TIME, DefaultValue::None);
    QuotaRate "server.quota.rate" "Submissions of one caller a minute": limit(COUNT, DefaultValue::None);
    QuotaSandboxes "server.quota.sandboxes" "Kept sandboxes of one caller": count(16);
    JwtIssuer "server.jwt.issuer" "`iss` of accepted tokens": TEXT;
    JwtAudience "server.jwt.audience" "`aud` of accepted tokens": TEXT;
    JwtJwksFile "server.jwt.jwks_file" "Public keys of the issuer, as a JWK set": PATH;
    JwtSecretFile "server.jwt.secret_file" "Secret shared with the issuer, for HS256": PATH;
    ServerInject "server.inject" "Secrets that are added to requests of a caller's sandboxes, by caller":
        other(Kind::Lists, || Value::Lists(BTreeMap::new()))
            .expects("a table of arrays of rules: subject = [\"api.example.org: Authorization: Bearer env:TOKEN\"]");
    ServerUpstream "server.upstream" "Other MCP servers whose tools scripts of callers may call, by name; a command runs on the host":
        other(Kind::Upstreams, || Value::Upstreams(BTreeMap::new())).expects(SERVERS);
    ServerToolRules "server.tool_rules" "Calls of their tools that scripts are given, as mcp.tool_rules":
        other(Kind::ToolRules, || Value::Names(Vec::new())).expects(TOOL_RULES);
    ServerAllowDestructive "server.allow_destructive" "Whether rules may give tools marked destructive, which remove or overwrite something":
        switch(false);
    ServerAskDestructive "server.ask_destructive" "Whether the user of a caller of the MCP tools is asked about a call of such a tool that was not allowed, if its client can ask":
        switch(false);
    ServerDatabase "server.database" "PostgreSQL database that the nodes of a cluster share":
        TEXT.flag("--database").expects("a URL such as \"postgres://sandboxctl@db.example.org/sandboxctl\"");
    ServerDatabasePasswordFile "server.database_password_file" "Password of the database": PATH;
    ServerDatabaseCa "server.database_ca" "Authority that signed the database's certificate, as PEM; the machine's if not set":
        PATH;
    ServerDatabaseConnections "server.database_connections" "Connections of a node that read; four more write, claim and listen":
        count(8);
    ServerDatabaseListen "server.database_listen" "Whether a node is notified by the database; false behind a pooler of transactions":
        switch(true);
    ServerPeerListen "server.peer_listen" "Where a node listens for the other nodes: ADDRESS:PORT":
        text_of("0.0.0.0:8471").flag("--peer-listen");
    ServerAdvertise "server.advertise" "Where the other nodes reach a node: HOST:PORT; by peer_listen, or the host name, if not set":
        TEXT.flag("--advertise");
    E2bEnabled "server.e2b.enabled" "Whether E2B's SDKs can use the service, at /e2b":
        switch(false).flag("--e2b");
    E2bTemplates "server.e2b.templates" "What E2B's sandboxes are made of, by name: `base`, `code-interpreter-v1`":
        other(Kind::Templates, || Value::Templates(BTreeMap::new()))
            .expects("a table of templates: name = { image = \"…\" } or { archive = \"…\" }, with start, ready and prepared");
}

/// A limit for which sandboxes with programs have settings of their own: builds and tests need more
/// than a script. Its name and its description.
struct ExecRow(LimitKey, &'static str, &'static str);

/// One row per limit of sandboxes with programs; the others are those of `[limits]`.
const EXEC: &[ExecRow] = &[
    ExecRow(LimitKey::Timeout, "timeout", "Time of a script or command, with programs"),
    ExecRow(LimitKey::Memory, "memory", "Memory, with programs"),
    ExecRow(
        LimitKey::MaxWrite,
        "max_bytes",
        "Bytes that a script or command may write, with programs",
    ),
    ExecRow(LimitKey::Entries, "entries", "Files and directories made, with programs"),
    ExecRow(LimitKey::Pids, "pids", "Processes and threads, with programs"),
];

fn exec_row(limit: LimitKey) -> &'static ExecRow {
    let row = EXEC.iter().find(|row| row.0 == limit);
    row.expect("a key of exec is made from a row of its table")
}

/// Which settings limit a command line: those of sandboxes without programs, or with them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scope {
    /// `[limits]`.
    #[default]
    Limits,
    /// `[exec]`, and `[limits]` for what it does not contain.
    Exec,
}

impl Scope {
    /// The key of a limit, and the key of its ceiling.
    pub fn keys(self, limit: LimitKey) -> (Key, Key) {
        match self == Self::Exec && EXEC.iter().any(|row| row.0 == limit) {
            true => (Key::Exec(limit), Key::ExecCeiling(limit)),
            false => (Key::Limit(limit), Key::Ceiling(limit)),
        }
    }

    /// The scope of sandboxes with programs, or without.
    pub const fn of_programs(has_programs: bool) -> Self {
        if has_programs { Self::Exec } else { Self::Limits }
    }

    /// The keys that a flag sets: a limit of a command line is that of all its sandboxes.
    pub fn of_flag(key: Key) -> impl Iterator<Item = Key> {
        let of_programs = match key {
            Key::Limit(limit) => Some(Self::Exec.keys(limit).0).filter(|other| *other != key),
            _ => None,
        };
        [key].into_iter().chain(of_programs)
    }
}

impl Key {
    /// Every key, in the order of the documentation: by section, limits in the order of their
    /// table.
    pub fn all() -> impl Iterator<Item = Self> {
        let settings = |sections: &'static [&str]| {
            let is_in_them = |key: &Self| sections.iter().any(|it| row(*key).name.starts_with(it));
            SETTINGS.iter().copied().filter(is_in_them)
        };
        let limits = |section: &'static str| {
            let is_in_it = move |limit: &LimitKey| limit.key().starts_with(section);
            LimitKey::ALL.iter().copied().filter(is_in_it).map(Self::Limit)
        };
        settings(&["io."])
            .chain(limits("io."))
            .chain(settings(&["filesystem."]))
            .chain(limits("filesystem."))
            .chain(limits("limits."))
            .chain(settings(&["limits.", "network."]))
            .chain(limits("network."))
            .chain(LimitKey::ALL.iter().copied().map(Self::Ceiling))
            .chain(Self::exec())
            .chain(EXEC.iter().map(|row| Self::ExecCeiling(row.0)))
            .chain(settings(&[
                "policy.", "audit.", "engine.", "programs.", "tools.", "mcp.", "pool.", "server.",
            ]))
    }

    /// The limits of sandboxes with programs.
    pub fn exec() -> impl Iterator<Item = Self> {
        EXEC.iter().map(|row| Self::Exec(row.0))
    }

    /// The key's name in a configuration file, with dots.
    pub fn name(self) -> String {
        match self {
            Self::Limit(limit) => limit.key().into(),
            Self::Ceiling(limit) => {
                let name = limit.key();
                format!("limits.ceiling.{}", name.strip_prefix("limits.").unwrap_or(name))
            }
            Self::Exec(limit) => format!("exec.{}", exec_row(limit).1),
            Self::ExecCeiling(limit) => format!("exec.ceiling.{}", exec_row(limit).1),
            _ => row(self).name.into(),
        }
    }

    /// The key with that name.
    pub fn from_name(name: &str) -> Option<Self> {
        let setting = SETTINGS.iter().copied().find(|key| row(*key).name == name);
        // Names of limits are put together first.
        setting.or_else(|| Self::all().find(|key| key.name() == name))
    }

    /// The key's environment variable: `limits.timeout` is `SANDBOXCTL_LIMITS_TIMEOUT`.
    pub fn variable(self) -> String {
        sandbox_env::variable_of(&self.name())
    }

    /// The flag, if there is one.
    pub fn flag(self) -> Option<&'static str> {
        match self {
            Self::Limit(limit) | Self::Exec(limit) => limit.flag(),
            _ => row(self).flag,
        }
    }

    /// The documented default; none if the key has no default.
    pub fn default(self) -> Option<Value> {
        match self {
            Self::Limit(limit) => Some(Value::Limit(limit.default_value())),
            Self::Ceiling(limit) => Some(Value::Limit(limit.default_ceiling())),
            Self::Exec(limit) => Some(Value::Limit(Bounds::for_programs().limits.get(limit))),
            Self::ExecCeiling(limit) => {
                Some(Value::Limit(Bounds::for_programs().ceiling.0.get(limit)))
            }
            _ => match row(self).default {
                DefaultValue::None => None,
                DefaultValue::Switch(on) => Some(Value::Switch(on)),
                DefaultValue::Text(text) => Some(Value::Text(text.to_owned())),
                DefaultValue::Limit(value) => Some(Value::Limit(value)),
                DefaultValue::Other(value) => Some(value()),
            },
        }
    }

    /// How its value is written.
    pub const fn kind(self) -> Kind {
        match self {
            Self::Limit(limit)
            | Self::Ceiling(limit)
            | Self::Exec(limit)
            | Self::ExecCeiling(limit) => Kind::Limit(limit),
            _ => row(self).kind,
        }
    }

    /// The allowed values, if there are only a few.
    pub const fn words(self) -> &'static [&'static str] {
        row(self).words
    }

    /// The type that is required in a configuration file, for error messages.
    pub fn expects(self) -> &'static str {
        match self.kind() {
            Kind::Limit(limit) => match limit.default_value() {
                LimitValue::Time(_) => "a duration such as \"30s\"",
                LimitValue::Size(_) => "a size such as \"64MiB\"",
                LimitValue::Cpus(_) => "a number of processors such as 0.5",
                LimitValue::Count(_) => "a whole number",
            },
            Kind::Switch => "true or false",
            _ => row(self).expects,
        }
    }

    /// What the key means, in one line.
    pub fn description(self) -> &'static str {
        match self {
            Self::Limit(limit) => limit_description(limit),
            Self::Exec(limit) => exec_row(limit).2,
            Self::Ceiling(_) | Self::ExecCeiling(_) => "What that limit may be raised to",
            _ => row(self).description,
        }
    }

    /// [`description`](Self::description) with the default, for `--help`.
    pub fn help(self) -> String {
        let description = self.description();
        match (self, self.default()) {
            (Self::IoEnabled, _) | (_, None) => description.to_owned(),
            // clap lists an enumerated value itself; a path is printed as it is typed.
            (_, Some(Value::Text(text))) => format!("{description} [default: {text}]"),
            (_, Some(Value::Path(path))) => format!("{description} [default: {}]", path.display()),
            (Self::Limit(limit), Some(Value::Limit(value))) => {
                match Bounds::for_programs().limits.get(limit) {
                    same if same == value => format!("{description} [default: {value}]"),
                    with => format!("{description} [default: {value}, with programs {with}]"),
                }
            }
            (_, Some(Value::Limit(value))) => format!("{description} [default: {value}]"),
            (_, Some(value)) => format!("{description} [default: {value}]"),
        }
    }
}

fn limit_description(limit: LimitKey) -> &'static str {
    match limit {
        LimitKey::Timeout => "Time that a script or command may take",
        LimitKey::OperationTimeout => "Time that one file operation may take",
        LimitKey::Memory => "Memory of the container",
        LimitKey::VmMemory => "Memory of the script's virtual machine",
        LimitKey::Cpus => "Processors",
        LimitKey::Pids => "Processes and threads in the container",
        LimitKey::MaxWrite => {
            "Bytes that a script writes, overwritten or not; for commands, bytes by which the io dir may grow"
        }
        LimitKey::Entries => "Files and directories made",
        LimitKey::MaxFileSize => "Size of a file that one operation reads or writes whole",
        LimitKey::ListDepth => "Depth of a recursive list, from 1 for the directory alone",
        LimitKey::OpenHandles => "File handles open at one time",
        LimitKey::LogBytes => "Bytes of all that a run prints, as JSON",
        LimitKey::LogLines => "Entries that a run prints",
        LimitKey::Tmpfs => "Size of /tmp, where programs run; at most seven eighths of the memory",
        LimitKey::Shm => "Size of /dev/shm, where programs run",
        LimitKey::StopTimeout => {
            "Time after SIGTERM until a command that is to end is killed; 0 kills at once"
        }
        LimitKey::OutputBytes => "Bytes of a command's output",
        LimitKey::Connections => "Connections to hosts, in a sandbox's life",
        LimitKey::NetworkBytes => "Bytes to and from hosts, in a sandbox's life",
        LimitKey::ConnectTimeout => "DNS and connect timeout",
        LimitKey::ConnectionIdle => "Idle timeout of a connection",
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
        assert_eq!(
            count,
            80 + 2 * LimitKey::ALL.len() + 2 * EXEC.len(),
            "a section of limits is missing"
        );
        assert_eq!(Key::all().map(Key::name).collect::<HashSet<_>>().len(), count);
        assert_eq!(Key::all().map(Key::variable).collect::<HashSet<_>>().len(), count);
        for limit in LimitKey::ALL {
            assert_eq!(limit.variable(), Key::Limit(*limit).variable());
        }
        for key in Key::all() {
            assert_eq!(Key::from_name(&key.name()), Some(key));
        }
    }

    #[test]
    fn every_limit_has_its_own_description() {
        let descriptions: HashSet<_> =
            LimitKey::ALL.iter().map(|&key| limit_description(key)).collect();
        assert_eq!(descriptions.len(), LimitKey::ALL.len());
        assert!(!descriptions.contains("A limit"));
    }

    #[test]
    fn ceilings_have_a_section_of_their_own() {
        let name = |limit| Key::Ceiling(limit).name();
        assert_eq!(name(LimitKey::Timeout), "limits.ceiling.timeout");
        assert_eq!(name(LimitKey::OperationTimeout), "limits.ceiling.filesystem.timeout");
        assert_eq!(name(LimitKey::MaxWrite), "limits.ceiling.io.max_bytes");
    }
}
