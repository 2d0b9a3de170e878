//! Limits and their ceilings: one table of keys, flags, defaults and ceilings, used by the
//! configuration, the documentation and the error messages.

use std::borrow::Cow;
use std::fmt;
use std::num::{IntErrorKind, NonZeroU32};
use std::str::FromStr;
use std::sync::LazyLock;
use std::time::Duration;

use sandbox_protocol::limits::MAX_RESULT_BYTES;
use sandbox_protocol::message;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::json::{Form, Millis};
use crate::time::millis;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// The maximum number of entries of one list.
const LIST_ENTRIES: u64 = 10_000;
/// The maximum number of bytes that are kept of each output stream of a command.
const COLLECTED_BYTES: u64 = 1_000_000;
/// Processor time allowed beyond the deadline, in seconds.
const SPARE_CPU_SECONDS: u64 = 5;

/// A number of bytes, written with a unit: `10B`, `64KiB`, `10MB`, `1GiB`. In JSON it is the number.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(transparent)]
#[schemars(inline)]
pub struct ByteSize(u64);

impl ByteSize {
    /// A size of this many bytes.
    pub const fn b(bytes: u64) -> Self {
        Self(bytes)
    }

    /// The number of bytes.
    pub const fn as_u64(self) -> u64 {
        self.0
    }
}

/// Exact: uses the largest binary unit that divides the number.
impl fmt::Display for ByteSize {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.0 {
            0 => "0B".to_owned(),
            bytes if bytes % GIB == 0 => format!("{}GiB", bytes / GIB),
            bytes if bytes % MIB == 0 => format!("{}MiB", bytes / MIB),
            bytes if bytes % KIB == 0 => format!("{}KiB", bytes / KIB),
            bytes => format!("{bytes}B"),
        };
        formatter.pad(&text)
    }
}

impl FromStr for ByteSize {
    type Err = LimitParseError;

    fn from_str(text: &str) -> Result<Self, LimitParseError> {
        let bad = || LimitParseError::Size { text: text.to_owned() };
        let text = text.trim();
        let units = ['k', 'm', 'g', 't', 'K', 'M', 'G', 'T'];
        let text = match text.ends_with(units) {
            // One letter is a power of 1024, as Docker and systemd read it.
            true => Cow::Owned(format!("{text}iB")),
            false => Cow::Borrowed(text),
        };
        // The unit is required: this type exists to reject bare numbers.
        if !text.ends_with(['b', 'B']) {
            return Err(bad());
        }
        text.parse::<bytesize::ByteSize>().map(|size| Self(size.as_u64())).map_err(|_| bad())
    }
}

/// A number of processors, in thousandths: `1.5` is one and a half.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(into = "f64", try_from = "f64")]
#[schemars(inline, extend("exclusiveMinimum" = 0))]
pub struct Cpus(NonZeroU32);

impl Cpus {
    /// The number in thousandths of a processor.
    pub const fn thousandths(self) -> u32 {
        self.0.get()
    }

    /// The number in billionths of a processor, as container engines count.
    pub const fn nano_cpus(self) -> i64 {
        self.0.get() as i64 * 1_000_000
    }

    fn from_number(cpus: f64, text: impl FnOnce() -> String) -> Result<Self, LimitParseError> {
        if !(cpus > 0.0 && cpus.is_finite()) {
            return Err(LimitParseError::Cpus { text: text() });
        }
        let thousandths = (cpus * 1000.0).round().max(1.0);
        if thousandths > f64::from(u32::MAX) {
            return Err(LimitParseError::TooLarge { text: text() });
        }
        Ok(Self(nonzero(thousandths as u32)))
    }

    /// The number of processors of this machine.
    pub fn of_this_machine() -> Self {
        Self(NonZeroU32::new(processors().saturating_mul(1000)).unwrap_or(NonZeroU32::MIN))
    }
}

/// The number of processors of this machine that this process may use.
pub fn processors() -> u32 {
    // The standard library reads a dozen files for this on each call.
    static COUNT: LazyLock<u32> = LazyLock::new(|| {
        std::thread::available_parallelism().map_or(1, |count| count.get() as u32)
    });
    *COUNT
}

impl fmt::Display for Cpus {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(&f64::from(*self).to_string())
    }
}

impl From<Cpus> for f64 {
    fn from(cpus: Cpus) -> Self {
        Self::from(cpus.0.get()) / 1000.0
    }
}

impl TryFrom<f64> for Cpus {
    type Error = LimitParseError;

    fn try_from(cpus: f64) -> Result<Self, LimitParseError> {
        Self::from_number(cpus, || cpus.to_string())
    }
}

impl FromStr for Cpus {
    type Err = LimitParseError;

    fn from_str(text: &str) -> Result<Self, LimitParseError> {
        // NaN is not above 0.
        let cpus = text.trim().parse().unwrap_or(f64::NAN);
        Self::from_number(cpus, || text.to_owned())
    }
}

/// A text is not a valid value of its limit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LimitParseError {
    /// Not a size.
    #[error("'{text}' is not a size with a unit, such as 10B, 64KiB, 10MB or 1GiB")]
    Size {
        /// The text as given.
        text: String,
    },
    /// Not a duration.
    #[error("'{text}' is not a duration such as 300ms, 30s or 10m")]
    Time {
        /// The text as given.
        text: String,
    },
    /// Not a number of processors.
    #[error("'{text}' is not a number of processors above 0, such as 0.5 or 2")]
    Cpus {
        /// The text as given.
        text: String,
    },
    /// Not a count.
    #[error("'{text}' is not a whole number above 0")]
    Count {
        /// The text as given.
        text: String,
    },
    /// Too large to be represented.
    #[error("'{text}' is too large")]
    TooLarge {
        /// The text as given.
        text: String,
    },
    /// Meant as no limit.
    #[error(
        "'{text}' is not a limit, and there always is one: a script's is at most {most}, unless limits.ceiling \
         in the configuration says otherwise; exec.ceiling is for programs"
    )]
    NoLimit {
        /// The text as given.
        text: String,
        /// The default ceiling.
        most: String,
    },
    /// Too small: nothing could run under this limit.
    #[error("'{value}' is less than the smallest that works, {smallest}")]
    TooSmall {
        /// The value as given.
        value: String,
        /// The smallest valid value.
        smallest: String,
    },
}

/// What is meant as no limit elsewhere.
const NO_LIMIT: &str = "0 -1 none no off never unlimited infinite infinity inf max false";

/// The value of a limit, of any type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
pub enum LimitValue {
    /// A duration.
    Time(Duration),
    /// A number of bytes.
    Size(ByteSize),
    /// A number of processors.
    Cpus(Cpus),
    /// A count, never 0.
    Count(u64),
}

impl LimitValue {
    /// Whether it is above `bound`. Values of different types never are.
    pub fn is_over(self, bound: Self) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&bound) && self > bound
    }
}

/// Prints the format that [`LimitKey::parse`] reads.
impl fmt::Display for LimitValue {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Time(time) => formatter.pad(&humantime::format_duration(*time).to_string()),
            Self::Size(size) => size.fmt(formatter),
            Self::Cpus(cpus) => cpus.fmt(formatter),
            Self::Count(count) => formatter.pad(&count.to_string()),
        }
    }
}

/// A field of [`Limits`]: parsed from text, compared, and read from and written to JSON.
trait Field: Copy {
    /// Its form in JSON, with the unit in the member's name.
    type Json: Form<Self> + fmt::Debug + Copy + PartialEq + JsonSchema;
    fn value(self) -> LimitValue;
    fn from_value(value: LimitValue) -> Option<Self>;
    fn parse(text: &str) -> Result<Self, LimitParseError>;
}

macro_rules! fields {
    ($($kind:ty as $variant:ident in $json:ty, by $parse:expr;)+) => {
        $(impl Field for $kind {
            type Json = $json;

            fn value(self) -> LimitValue {
                LimitValue::$variant(self)
            }
            fn from_value(value: LimitValue) -> Option<Self> {
                if let LimitValue::$variant(value) = value { Some(value) } else { None }
            }
            fn parse(text: &str) -> Result<Self, LimitParseError> {
                $parse(text)
            }
        })+
    };
}
fields! {
    Duration as Time in Millis, by parse_time;
    ByteSize as Size in Self, by str::parse;
    Cpus as Cpus in Self, by str::parse;
}

fn parse_time(text: &str) -> Result<Duration, LimitParseError> {
    let text = text.trim();
    humantime::parse_duration(text).map_err(|error| match error {
        humantime::DurationError::NumberOverflow => {
            LimitParseError::TooLarge { text: text.to_owned() }
        }
        _ => LimitParseError::Time { text: text.to_owned() },
    })
}

impl Field for NonZeroU32 {
    type Json = Self;

    fn value(self) -> LimitValue {
        LimitValue::Count(self.get().into())
    }
    fn from_value(value: LimitValue) -> Option<Self> {
        match value {
            LimitValue::Count(count) => u32::try_from(count).ok().and_then(Self::new),
            LimitValue::Time(_) | LimitValue::Size(_) | LimitValue::Cpus(_) => None,
        }
    }
    fn parse(text: &str) -> Result<Self, LimitParseError> {
        let text = text.trim();
        text.parse().map_err(|error: std::num::ParseIntError| match error.kind() {
            IntErrorKind::PosOverflow => LimitParseError::TooLarge { text: text.to_owned() },
            _ => LimitParseError::Count { text: text.to_owned() },
        })
    }
}

/// These are the same in JSON.
macro_rules! plain {
    ($($kind:ty),+) => {
        $(impl Form<Self> for $kind {
            fn of(value: &Self) -> Self {
                *value
            }

            fn into_value(self) -> Self {
                self
            }
        })+
    };
}
plain!(ByteSize, Cpus, NonZeroU32);

const fn nonzero(count: u32) -> NonZeroU32 {
    match NonZeroU32::new(count) {
        Some(count) => count,
        None => NonZeroU32::MIN,
    }
}

/// A limit a row: its variant; its field and type; its configuration key, its flag, and its name in JSON; its
/// default, its ceiling, and the smallest value that works.
macro_rules! limits {
    ($($(#[$doc:meta])* $variant:ident, $field:ident: $kind:ty, $key:literal, $flag:expr, $json:literal,
        $default:expr, [$ceiling:expr], $smallest:expr;)+) => {
        /// The limits of a sandbox. Every limit is always set, to the documented default if nothing
        /// else. In JSON every value is a plain number, with its unit in the member's name.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[serde(into = "LimitsDocument", try_from = "LimitsDocument")]
        pub struct Limits {
            $($(#[$doc])* pub $field: $kind,)+
        }

        /// [`Limits`] in JSON. A member that is missing has its default.
        #[derive(Serialize, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields, default)]
        #[schemars(rename = "Limits")]
        struct LimitsDocument {
            $(
                $(#[$doc])*
                #[serde(rename = $json)]
                #[schemars(extend("minimum" = <$kind as Field>::Json::of(&$smallest)))]
                $field: <$kind as Field>::Json,
            )+
        }

        impl Default for LimitsDocument {
            fn default() -> Self {
                Limits::default().into()
            }
        }

        impl From<Limits> for LimitsDocument {
            fn from(limits: Limits) -> Self {
                Self { $($field: Form::of(&limits.$field),)+ }
            }
        }

        /// The limits that a request sets, by their names in `Limits`; the others have a
        /// server's defaults.
        #[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields, default)]
        pub struct LimitsRequest {
            $(
                $(#[$doc])*
                #[serde(rename = $json, skip_serializing_if = "Option::is_none")]
                #[schemars(extend("minimum" = <$kind as Field>::Json::of(&$smallest)))]
                $field: Option<<$kind as Field>::Json>,
            )+
        }

        impl LimitsRequest {
            /// Sets these limits, and leaves the others.
            ///
            /// # Errors
            ///
            /// The first that is too small, with its name in JSON.
            pub fn apply(self, limits: &mut Limits) -> Result<(), (&'static str, LimitParseError)> {
                $(
                    if let Some(value) = self.$field {
                        let value: $kind = value.into_value();
                        limits
                            .set(LimitKey::$variant, value.value())
                            .map_err(|error| ($json, error))?;
                    }
                )+
                Ok(())
            }

            /// The limits in which `limits` differ from `defaults`.
            pub fn difference(limits: &Limits, defaults: &Limits) -> Self {
                Self {
                    $($field: (limits.$field != defaults.$field)
                        .then(|| Form::of(&limits.$field)),)+
                }
            }

            /// These limits, as `limits` has them.
            pub fn of(keys: &[LimitKey], limits: &Limits) -> Self {
                Self {
                    $($field: keys.contains(&LimitKey::$variant)
                        .then(|| Form::of(&limits.$field)),)+
                }
            }
        }

        impl TryFrom<LimitsDocument> for Limits {
            type Error = String;

            fn try_from(document: LimitsDocument) -> Result<Self, String> {
                let request = LimitsRequest { $($field: Some(document.$field),)+ };
                let mut limits = Self::default();
                let applied = request.apply(&mut limits);
                applied.map_err(|(name, error)| format!("{name}: {error}"))?;
                Ok(limits)
            }
        }

        /// One limit.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
        #[non_exhaustive]
        pub enum LimitKey {
            $($(#[$doc])* #[serde(rename = $key)] $variant,)+
        }

        impl Default for Limits {
            fn default() -> Self {
                Self { $($field: $default,)+ }
            }
        }

        impl Default for Ceiling {
            fn default() -> Self {
                Self(Limits { $($field: $ceiling,)+ })
            }
        }

        impl LimitKey {
            /// Every limit, in the order of the documentation.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// Its name in JSON, with its unit.
            pub const fn json_name(self) -> &'static str {
                match self { $(Self::$variant => $json,)+ }
            }

            /// The configuration key.
            pub const fn key(self) -> &'static str {
                match self { $(Self::$variant => $key,)+ }
            }

            /// The command-line flag, if there is one.
            pub const fn flag(self) -> Option<&'static str> {
                match self { $(Self::$variant => $flag,)+ }
            }

            /// Parses a value of this limit.
            ///
            /// # Errors
            ///
            /// [`LimitParseError`], which describes a valid value.
            pub fn parse(self, text: &str) -> Result<LimitValue, LimitParseError> {
                let is_meant = |word: &str| text.trim().eq_ignore_ascii_case(word);
                // Where nothing may be written, 0 lacks its unit.
                let may_be_0 = self.smallest() == LimitValue::Size(ByteSize(0));
                if NO_LIMIT.split(' ').any(|word| is_meant(word) && !(may_be_0 && word == "0")) {
                    return Err(self.no_limit(text));
                }
                let value = match self {
                    $(Self::$variant => <$kind as Field>::parse(text)?.value(),)+
                };
                self.at_least_smallest(value, || text.trim().to_owned())
            }

            fn smallest(self) -> LimitValue {
                match self { $(Self::$variant => Field::value($smallest),)+ }
            }
        }

        impl Limits {
            /// Returns the value of a limit.
            pub fn get(&self, key: LimitKey) -> LimitValue {
                match key { $(LimitKey::$variant => self.$field.value(),)+ }
            }

            /// Sets the value of a limit.
            ///
            /// # Errors
            ///
            /// [`LimitParseError`] if the value has the type of another limit or is too small.
            pub fn set(&mut self, key: LimitKey, value: LimitValue) -> Result<(), LimitParseError> {
                let value = key.at_least_smallest(value, || value.to_string())?;
                match key {
                    $(LimitKey::$variant => self.$field = <$kind as Field>::from_value(value)
                        .ok_or_else(|| key.wrong_type(value))?,)+
                }
                Ok(())
            }
        }
    };
}

limits! {
    /// The run's deadline.
    Timeout, timeout: Duration, "limits.timeout", Some("--timeout"), "timeout_ms",
        Duration::from_secs(30), [Duration::from_secs(600)], Duration::from_millis(1);
    /// The deadline of a file operation.
    OperationTimeout, operation_timeout: Duration, "filesystem.timeout", None, "operation_timeout_ms",
        Duration::from_secs(5), [Duration::from_secs(300)], Duration::from_millis(1);
    /// Memory of the container. Docker requires at least 6 MiB; the agent needs some in addition.
    Memory, memory: ByteSize, "limits.memory", Some("--memory"), "memory_bytes",
        ByteSize(256 * MIB), [ByteSize(4 * GIB)], ByteSize(16 * MIB);
    /// Memory of the Luau VM.
    VmMemory, vm_memory: ByteSize, "limits.vm_memory", Some("--vm-memory"), "vm_memory_bytes",
        ByteSize(64 * MIB), [ByteSize(GIB)], ByteSize(MIB);
    /// Processors.
    Cpus, cpus: Cpus, "limits.cpus", Some("--cpus"), "cpus",
        Cpus(nonzero(1000)).min(Cpus::of_this_machine()), [Cpus::of_this_machine()],
        Cpus(nonzero(10));
    /// Processes and threads. The agent itself uses a few threads.
    Pids, pids: NonZeroU32, "limits.pids", Some("--pids"), "pids",
        nonzero(64), [nonzero(4096)], nonzero(16);
    /// Bytes written to files, including overwritten bytes.
    MaxWrite, max_write: ByteSize, "io.max_bytes", Some("--max-write"), "write_bytes",
        ByteSize(52_428_800), [ByteSize(GIB)], ByteSize(0);
    /// Created files and directories.
    Entries, entries: NonZeroU32, "limits.entries", Some("--entries"), "entries",
        nonzero(10_000), [nonzero(1_000_000)], nonzero(1);
    /// Size of a file that an operation reads or writes whole.
    MaxFileSize, max_file_size: ByteSize, "filesystem.max_file_size", Some("--max-file-size"), "file_bytes",
        ByteSize(10 * MIB), [ByteSize(GIB)], ByteSize(0);
    /// Depth of a recursive list, where 1 is the directory alone.
    ListDepth, list_depth: NonZeroU32, "filesystem.max_depth", None, "list_depth",
        nonzero(10), [nonzero(100)], nonzero(1);
    /// Simultaneously open file handles.
    OpenHandles, open_handles: NonZeroU32, "io.max_open_handles", None, "open_handles",
        nonzero(64), [nonzero(1024)], nonzero(1);
    /// Encoded size of all log entries of a run, in bytes.
    LogBytes, log_bytes: ByteSize, "limits.log_bytes", None, "log_bytes",
        ByteSize(MIB), [ByteSize(4 * MIB)], ByteSize(0);
    /// Log entries of a run.
    LogLines, log_lines: NonZeroU32, "limits.log_lines", None, "log_lines",
        nonzero(10_000), [nonzero(1_000_000)], nonzero(1);
    /// Size in bytes of the commands' `/tmp`, which is in memory: at most this, and seven eighths of the
    /// sandbox's memory. A tmpfs of size 0 would have no limit.
    Tmpfs, tmpfs: ByteSize, "limits.tmpfs", Some("--tmpfs-size"), "tmpfs_bytes",
        ByteSize(16 * GIB), [ByteSize(16 * GIB)], ByteSize(MIB);
    /// Size in bytes of the commands' `/dev/shm`, their shared memory.
    Shm, shm: ByteSize, "limits.shm", Some("--shm-size"), "shm_bytes",
        ByteSize(64 * MIB), [ByteSize(16 * GIB)], ByteSize(64 * KIB);
    /// How long the processes of a command that is to end may go on after SIGTERM, until they are
    /// killed; 0 if they are killed at once.
    StopTimeout, stop_timeout: Duration, "limits.stop_timeout", Some("--stop-timeout"), "stop_timeout_ms",
        Duration::from_secs(2), [Duration::from_secs(60)], Duration::ZERO;
    /// Bytes of a command's streamed output.
    OutputBytes, output_bytes: ByteSize, "limits.output_bytes", None, "output_bytes",
        ByteSize(GIB), [ByteSize(64 * GIB)], ByteSize(0);
    /// Connections of commands to allowed hosts; refused ones count too.
    Connections, connections: NonZeroU32, "network.connections", None, "connections",
        nonzero(10_000), [nonzero(1_000_000)], nonzero(1);
    /// Bytes over all these connections, both directions together.
    NetworkBytes, network_bytes: ByteSize, "network.max_bytes", None, "network_bytes",
        ByteSize(4 * GIB), [ByteSize(1024 * GIB)], ByteSize(0);
    /// DNS and connect timeout.
    ConnectTimeout, connect_timeout: Duration, "network.connect_timeout", None, "connect_timeout_ms",
        Duration::from_secs(10), [Duration::from_secs(300)], Duration::from_millis(1);
    /// Idle timeout of a connection.
    ConnectionIdle, connection_idle: Duration, "network.idle_timeout", None, "connection_idle_ms",
        Duration::from_secs(300), [Duration::from_secs(3600)], Duration::from_millis(1);
}

impl LimitKey {
    /// The environment variable that sets it.
    pub fn variable(self) -> String {
        format!("SANDBOXCTL_{}", self.key().replace('.', "_").to_uppercase())
    }

    /// How to raise it: by its flag; without one, by its variable or in a file.
    pub fn hint(self) -> String {
        match self.flag() {
            Some(flag) => format!("{flag} raises the limit"),
            None => format!(
                "{}, or {} in ~/.config/sandboxctl/config.toml, raises the limit",
                self.variable(),
                self.key()
            ),
        }
    }

    /// Its documented default.
    pub fn default_value(self) -> LimitValue {
        Limits::default().get(self)
    }

    /// Its documented default ceiling.
    pub fn default_ceiling(self) -> LimitValue {
        Ceiling::default().0.get(self)
    }

    fn at_least_smallest(
        self,
        value: LimitValue,
        given: impl FnOnce() -> String,
    ) -> Result<LimitValue, LimitParseError> {
        let smallest = self.smallest();
        if smallest.is_over(value) {
            if matches!(value, LimitValue::Time(Duration::ZERO) | LimitValue::Size(ByteSize(0))) {
                return Err(self.no_limit(&given()));
            }
            return Err(LimitParseError::TooSmall {
                value: given(),
                smallest: smallest.to_string(),
            });
        }
        Ok(value)
    }

    fn no_limit(self, text: &str) -> LimitParseError {
        let most = self.default_ceiling().to_string();
        LimitParseError::NoLimit { text: text.to_owned(), most }
    }

    fn wrong_type(self, value: LimitValue) -> LimitParseError {
        let text = value.to_string();
        match self.smallest() {
            LimitValue::Time(_) => LimitParseError::Time { text },
            LimitValue::Size(_) => LimitParseError::Size { text },
            LimitValue::Cpus(_) => LimitParseError::Cpus { text },
            LimitValue::Count(_) => LimitParseError::Count { text },
        }
    }
}

/// What a sandbox may use: by default, and at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// What one may use whose request says nothing else.
    pub limits: Limits,
    /// What it may be raised to.
    pub ceiling: Ceiling,
}

impl Bounds {
    /// Those of sandboxes with programs, for their commands and their scripts.
    pub fn for_programs() -> Self {
        let hour = Duration::from_secs(3600);
        let ceiling = Limits {
            timeout: hour,
            memory: ByteSize(16 * GIB),
            max_write: ByteSize(16 * GIB),
            ..Ceiling::default().0
        };
        Self { limits: Limits::for_programs(), ceiling: Ceiling(ceiling) }
    }

    /// The same, with each limit lowered to its ceiling if above it.
    #[must_use]
    pub fn lowered(self) -> Self {
        Self { limits: self.limits.lowered(&self.ceiling), ..self }
    }
}

/// The maximum values that a caller may set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Ceiling(pub Limits);

/// A limit is above its ceiling.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} is {asked}, above its ceiling of {ceiling}", .key.flag().unwrap_or(.key.key()))]
pub struct OverCeiling {
    /// The limit.
    pub key: LimitKey,
    /// The requested value.
    pub asked: String,
    /// The maximum.
    pub ceiling: String,
}

impl Limits {
    /// The defaults of sandboxes with programs, which are for builds and tests: those need more than a
    /// script.
    pub fn for_programs() -> Self {
        Self {
            timeout: Duration::from_secs(600),
            memory: ByteSize(GIB),
            max_write: ByteSize(GIB),
            entries: nonzero(100_000),
            pids: nonzero(256),
            ..Self::default()
        }
    }

    /// The size of `/tmp`, which leaves some memory to programs: a full `/tmp` is an error that they
    /// get, and not the end of the sandbox.
    pub const fn tmpfs_bytes(&self) -> ByteSize {
        let most = self.memory.0 / 8 * 7;
        ByteSize(if self.tmpfs.0 < most { self.tmpfs.0 } else { most })
    }

    /// Checks that every limit is within its ceiling.
    ///
    /// # Errors
    ///
    /// [`OverCeiling`] for the first that is not.
    pub fn check(&self, ceiling: &Ceiling) -> Result<(), OverCeiling> {
        match LimitKey::ALL.iter().find(|&&key| self.get(key).is_over(ceiling.0.get(key))) {
            None => Ok(()),
            Some(&key) => Err(OverCeiling {
                key,
                asked: self.get(key).to_string(),
                ceiling: ceiling.0.get(key).to_string(),
            }),
        }
    }

    /// The maximum processor time of a run: its time limit and its grace on each of its processors,
    /// plus some time to start and end.
    pub fn most_cpu(&self) -> Duration {
        let processors = u64::from(self.cpus.thousandths()).div_ceil(1000);
        let most = self.timeout.saturating_add(self.stop_timeout).as_secs();
        let seconds = most.saturating_add(SPARE_CPU_SECONDS);
        Duration::from_secs(seconds.saturating_mul(processors))
    }

    /// The same limits, each lowered to its ceiling if above it.
    #[must_use]
    pub fn lowered(mut self, ceiling: &Ceiling) -> Self {
        for &key in LimitKey::ALL {
            let highest = ceiling.0.get(key);
            if self.get(key).is_over(highest) {
                // The ceiling's value has the right type and is large enough.
                _ = self.set(key, highest);
            }
        }
        self
    }

    /// The limits that the agent enforces. The disk reserve is set at launch, when the filesystem
    /// is known.
    pub fn for_agent(&self) -> message::Limits {
        message::Limits {
            vm_memory_bytes: self.vm_memory.0,
            write_bytes: self.max_write.0,
            entries: self.entries.get().into(),
            file_bytes: self.max_file_size.0,
            open_handles: self.open_handles.get().into(),
            log_bytes: self.log_bytes.0,
            log_lines: self.log_lines.get().into(),
            result_bytes: MAX_RESULT_BYTES as u64,
            list_entries: LIST_ENTRIES,
            list_depth: self.list_depth.get().into(),
            operation_timeout_ms: millis(self.operation_timeout),
            output_bytes: self.output_bytes.0,
            collected_bytes: COLLECTED_BYTES,
            disk_reserve_bytes: 0,
            cpu_seconds: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_within_its_ceiling() {
        assert_eq!(Limits::default().check(&Ceiling::default()), Ok(()));
        let Bounds { limits, ceiling } = Bounds::for_programs();
        assert_eq!(limits.check(&ceiling), Ok(()));
        // Also of who has one ceiling for all.
        assert_eq!(limits.check(&Ceiling::default()), Ok(()));
    }

    #[test]
    fn tmp_is_bounded_by_memory_and_by_its_own_limit() {
        let size = |memory, tmpfs| {
            let (memory, tmpfs) = (ByteSize(memory), ByteSize(tmpfs));
            Limits { memory, tmpfs, ..Limits::default() }.tmpfs_bytes()
        };
        assert_eq!(Limits::for_programs().tmpfs_bytes(), ByteSize(896 * MIB));
        assert_eq!(size(GIB, MIB), ByteSize(MIB));
        assert_eq!(size(16 * MIB, GIB), ByteSize(14 * MIB));
    }

    #[test]
    fn limit_round_trips() {
        for &key in LimitKey::ALL {
            for value in [key.default_value(), key.default_ceiling(), key.smallest()] {
                assert_eq!(key.parse(&value.to_string()), Ok(value), "{}", key.key());
                let mut limits = Limits::default();
                limits.set(key, value).unwrap();
                assert_eq!(limits.get(key), value);
            }
            let named = LimitKey::ALL.iter().find(|it| it.key() == key.key());
            assert_eq!(named, Some(&key));
        }
    }

    #[test]
    fn units_are_as_documented() {
        for (text, bytes) in
            [("10B", 10), ("64KiB", 65_536), ("10MB", 10_000_000), ("1GiB", GIB), ("1.5KiB", 1536)]
        {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
        for text in ["", "10", "10X", "-1B", "MiB", "64Ki"] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
        assert_eq!("1.5".parse(), Ok(Cpus(nonzero(1500))));
        for text in ["0", "-1", "NaN", "inf", "x", ""] {
            assert!(text.parse::<Cpus>().is_err(), "{text}");
        }
        assert_eq!(
            LimitKey::Timeout.parse("300ms"),
            Ok(LimitValue::Time(Duration::from_millis(300)))
        );
        for text in ["30", "0s", "1 fortnight", ""] {
            assert!(LimitKey::Timeout.parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_value_is_refused_for_what_is_wrong_with_it() {
        let refused = |key: LimitKey, text| key.parse(text).unwrap_err().to_string();
        for (key, text, why) in [
            (LimitKey::Cpus, "0.0001", "'0.0001' is less than the smallest that works, 0.01"),
            (LimitKey::Cpus, "1e9", "'1e9' is too large"),
            (LimitKey::Pids, "1", "'1' is less than the smallest that works, 16"),
            (LimitKey::Pids, "99999999999", "'99999999999' is too large"),
            (LimitKey::Pids, "-2", "'-2' is not a whole number above 0"),
            (LimitKey::Timeout, "99999999999999999999s", "'99999999999999999999s' is too large"),
            (LimitKey::Timeout, "9999999999999y", "'9999999999999y' is too large"),
        ] {
            assert_eq!(refused(key, text), why);
        }
        for (key, text, most) in [
            (LimitKey::Timeout, "0s", "10m"),
            (LimitKey::Timeout, "none", "10m"),
            (LimitKey::Memory, "Unlimited", "4GiB"),
            (LimitKey::Memory, "0B", "4GiB"),
            (LimitKey::Memory, "0", "4GiB"),
            (LimitKey::Pids, "-1", "4096"),
            (LimitKey::Cpus, "0", &LimitKey::Cpus.default_ceiling().to_string()),
        ] {
            let expected = format!(
                "'{text}' is not a limit, and there always is one: a script's is at most {most}, "
            );
            assert!(refused(key, text).starts_with(&expected), "{}", refused(key, text));
        }
        assert!(refused(LimitKey::MaxWrite, "0").contains("with a unit"));
        assert_eq!(LimitKey::MaxWrite.parse("0B"), Ok(LimitValue::Size(ByteSize(0))));
    }

    #[test]
    fn limits_that_were_lowered_are_within_their_ceiling_and_no_lower() {
        let ceiling = Ceiling(Limits { memory: ByteSize(128 * MIB), ..Ceiling::default().0 });
        let lowered = Limits::default().lowered(&ceiling);
        assert_eq!(lowered, Limits { memory: ByteSize(128 * MIB), ..Limits::default() });
        assert_eq!(lowered.check(&ceiling), Ok(()));
    }

    #[test]
    fn a_limit_over_its_ceiling_names_its_flag() {
        let limits = Limits { timeout: Duration::from_secs(601), ..Limits::default() };
        let over = limits.check(&Ceiling::default()).unwrap_err();
        assert_eq!(over.key, LimitKey::Timeout);
        assert_eq!(over.to_string(), "--timeout is 10m 1s, above its ceiling of 10m");
    }

    #[test]
    fn a_value_of_another_type_is_refused() {
        let size = LimitValue::Size(ByteSize(GIB));
        assert!(Limits::default().set(LimitKey::Timeout, size).is_err());
    }

    #[test]
    fn limits_in_json_are_checked_and_come_back() {
        let json = serde_json::to_string(&Ceiling::default()).unwrap();
        assert_eq!(serde_json::from_str::<Ceiling>(&json).unwrap(), Ceiling::default());
        let some: Limits = serde_json::from_str(r#"{"timeout_ms":5,"cpus":0.5}"#).unwrap();
        let expected = Limits {
            timeout: Duration::from_millis(5),
            cpus: Cpus(nonzero(500)),
            ..Limits::default()
        };
        assert_eq!(some, expected);
        for (json, part) in [
            (r#"{"timeout":5}"#, "unknown field `timeout`"),
            (r#"{"timeout_ms":"5s"}"#, "invalid type"),
            (r#"{"timeout_ms":0}"#, "timeout_ms: '0s' is not a limit, and there always is one"),
            (r#"{"cpus":-1}"#, "'-1' is not a number of processors"),
            (r#"{"pids":0}"#, "nonzero"),
        ] {
            let error = serde_json::from_str::<Limits>(json).unwrap_err().to_string();
            assert!(error.contains(part), "{json}: {error}");
        }
    }
}
