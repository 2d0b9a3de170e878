//! The parameters of routes.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use sandbox_api::service::{
    ExecutionKind, ExecutionState, SandboxRef, SandboxStatus, Subject, Time,
};
use sandbox_api::{ProcessState, ReadFrom, ReadMode};
use schemars::JsonSchema;
use serde::de::{DeserializeOwned, Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::access::Caller;
use crate::app::App;
use crate::refusal::{Refusal, Result};
use crate::request::{Id, Params};

/// The longest wait, in seconds.
const MAX_WAIT: u16 = 300;
/// Executions of one page.
const MAX_PAGE: u32 = 200;
const DEFAULT_PAGE: u32 = 50;

/// How many seconds an answer may wait.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(try_from = "u16")]
#[schemars(inline, extend("maximum" = MAX_WAIT))]
pub(super) struct Wait(u16);

impl TryFrom<u16> for Wait {
    type Error = String;

    fn try_from(seconds: u16) -> Result<Self, String> {
        match seconds {
            0..=MAX_WAIT => Ok(Self(seconds)),
            _ => Err(format!("at most {MAX_WAIT} seconds")),
        }
    }
}

impl From<Wait> for Duration {
    fn from(wait: Wait) -> Self {
        Self::from_secs(wait.0.into())
    }
}

/// How many items a page has.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(try_from = "u32")]
#[schemars(inline, extend("minimum" = 1, "maximum" = MAX_PAGE, "default" = DEFAULT_PAGE))]
pub(super) struct PageSize(u32);

impl TryFrom<u32> for PageSize {
    type Error = String;

    fn try_from(items: u32) -> Result<Self, String> {
        match items {
            1..=MAX_PAGE => Ok(Self(items)),
            _ => Err(format!("from 1 to {MAX_PAGE}")),
        }
    }
}

impl PageSize {
    pub fn of(size: Option<Self>) -> usize {
        size.map_or(DEFAULT_PAGE, |size| size.0) as usize
    }

    pub const fn items(self) -> usize {
        self.0 as usize
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WaitParams {
    /// For how many seconds the answer may wait for the end.
    #[serde(default)]
    pub wait: Wait,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SubmitInParams {
    /// For how many seconds the answer may wait for the end.
    #[serde(default)]
    pub wait: Wait,
    /// The generation of the sandbox that is meant: another one is refused (410).
    pub generation: Option<u64>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct GenerationParams {
    /// The generation of the sandbox that is meant: another one is refused (410).
    pub generation: Option<u64>,
}

/// A request about a kept sandbox: who asks, which of its generations is meant, and the other parameters.
pub(super) struct At<P = GenerationParams> {
    pub app: App,
    pub subject: Subject,
    pub sandbox: SandboxRef,
    pub params: P,
}

/// Parameters, one of which is the generation of a sandbox.
pub(super) trait OfGeneration: DeserializeOwned + Send {
    fn generation(&self) -> Option<u64>;
}

macro_rules! of_generation {
    ($($params:ident),+) => {
        $(impl OfGeneration for $params {
            fn generation(&self) -> Option<u64> {
                self.generation
            }
        })+
    };
}

of_generation!(
    GenerationParams, SubmitInParams, ProcessListParams, ProcessEventParams, WatchParams
);

impl<P: OfGeneration> FromRequestParts<App> for At<P> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self> {
        let Caller { subject, .. } = Caller::from_request_parts(parts, app).await?;
        let Id(id) = Id::from_request_parts(parts, app).await?;
        let Params(params) = Params::<P>::from_request_parts(parts, app).await?;
        let sandbox = SandboxRef { id, generation: params.generation() };
        Ok(Self { app: app.clone(), subject, sandbox, params })
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WatchParams {
    /// The directory, as in a file operation; by default the working directory.
    pub path: Option<String>,
    /// Also watch the directories below it, and those that are created there.
    #[serde(default)]
    pub recursive: bool,
    /// The generation of the sandbox that is meant: another one is refused (410).
    pub generation: Option<u64>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ListParams {
    /// Only those in this state.
    pub status: Option<ExecutionState>,
    /// Only scripts, or only commands.
    pub kind: Option<ExecutionKind>,
    /// Only those that ran in this kept sandbox.
    pub sandbox: Option<String>,
    /// Only those that ran in this image.
    pub image: Option<String>,
    /// Only those that were accepted at this time or later.
    pub since: Option<Time>,
    /// Only those that were accepted before this time.
    pub until: Option<Time>,
    /// Those of this subject, or `*` for all, in place of the caller's own. It needs the scope `admin`.
    pub subject: Option<String>,
    /// The `next_cursor` of the page before.
    pub cursor: Option<String>,
    /// How many there may be in a page.
    pub limit: Option<PageSize>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct EventParams {
    /// Only events after this number. `Last-Event-ID` counts more.
    #[serde(default)]
    pub after: u64,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ProcessListParams {
    /// The generation of the sandbox that is meant: another one is refused (410).
    pub generation: Option<u64>,
    /// Only those in this state.
    pub state: Option<ProcessState>,
    /// Only those with this tag.
    pub tag: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ProcessEventParams {
    /// The generation of the sandbox that is meant: another one is refused (410).
    pub generation: Option<u64>,
    /// Only events after this number; `now`: only those that are still to come.
    #[serde(default = "beginning", deserialize_with = "read_from")]
    #[schemars(with = "Option<String>", extend("pattern" = "^(now|[0-9]+)$"))]
    pub after: ReadFrom,
    /// What happens to a reader that is too slow.
    pub mode: Option<ReadMode>,
}

const fn beginning() -> ReadFrom {
    ReadFrom::After(0)
}

/// The event after which a stream begins.
fn read_from<'de, D: Deserializer<'de>>(text: D) -> Result<ReadFrom, D::Error> {
    let invalid = |_| D::Error::custom("it is the number of an event, or `now`");
    String::deserialize(text)?.parse().map_err(invalid)
}

#[derive(Debug, Default, JsonSchema)]
pub(super) struct SandboxListParams {
    /// Only those whose metadata has this text as its member KEY. There may be several.
    #[schemars(rename = "metadata.KEY", with = "Option<String>")]
    pub metadata: BTreeMap<String, String>,
    /// Only the one of this name.
    pub name: Option<String>,
    /// Only those in this state.
    pub status: Option<SandboxStatus>,
    /// The `next_cursor` of the page before.
    pub cursor: Option<String>,
    /// How many there may be in a page; without it up to 500.
    pub limit: Option<PageSize>,
}

/// By hand: its names are not all known.
impl<'de> Deserialize<'de> for SandboxListParams {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(SandboxListVisitor)
    }
}

struct SandboxListVisitor;

impl<'de> Visitor<'de> for SandboxListVisitor {
    type Value = SandboxListParams;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("parameters")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut params = SandboxListParams::default();
        while let Some(name) = map.next_key::<String>()? {
            let is_second = match (&*name, name.strip_prefix("metadata.")) {
                ("name", _) => params.name.replace(map.next_value()?).is_some(),
                ("status", _) => params.status.replace(map.next_value()?).is_some(),
                ("cursor", _) => params.cursor.replace(map.next_value()?).is_some(),
                ("limit", _) => params.limit.replace(map.next_value()?).is_some(),
                (_, Some(key)) => {
                    params.metadata.insert(key.to_owned(), map.next_value()?).is_some()
                }
                (unknown, None) => {
                    let known = &["metadata.KEY", "name", "status", "cursor", "limit"];
                    return Err(A::Error::unknown_field(unknown, known));
                }
            };
            if is_second {
                return Err(A::Error::custom(format!("duplicate field `{name}`")));
            }
        }
        Ok(params)
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ArchiveParams {
    /// The format of the archive.
    #[serde(default)]
    pub format: Format,
}

/// The format of an archive.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[schemars(inline)]
pub(super) enum Format {
    /// gzip.
    #[default]
    #[serde(rename = "tar.gz")]
    TarGz,
    /// Zstandard.
    #[serde(rename = "tar.zst")]
    TarZst,
}
