//! All upstreams of a run, as the controller calls them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use sandbox_api::{HostTool, ToolEffect};
use sandbox_controller::host_tools::{HostAnswer, HostToolError, HostTools, Listed};
use serde_json::{Map, Value};
use tokio::time::timeout;

use crate::answer::{answer, whole};
use crate::connection::{Connection, START_TIMEOUT};
use crate::settings::Target;

/// How long a list that has tools waits for an upstream that is being started.
const LIST_TIMEOUT: Duration = Duration::from_secs(10);

/// Upstreams by their names. Clones share the connections.
#[derive(Debug, Clone, Default)]
pub struct Upstreams(BTreeMap<String, Arc<Connection>>, Results);

/// What a call gives.
#[derive(Debug, Clone, Copy, Default)]
enum Results {
    /// A value and files, as for scripts.
    #[default]
    Values,
    /// The whole result, in the form of the protocol.
    Whole,
}

impl Upstreams {
    /// These upstreams, whose names were checked. None is started.
    pub fn new(targets: impl IntoIterator<Item = (String, Target)>) -> Self {
        let connection = |(name, target): (String, Target)| {
            (name.clone(), Arc::new(Connection::new(name, target)))
        };
        Self(targets.into_iter().map(connection).collect(), Results::Values)
    }

    /// The same with others, which count where both have a name.
    #[must_use]
    pub fn with(&self, others: Self) -> Self {
        Self(self.0.clone().into_iter().chain(others.0).collect(), self.1)
    }

    /// The same, whose calls give the result of a tool as its server does (`CallToolResult`), but for its metadata.
    #[must_use]
    pub fn whole(&self) -> Self {
        Self(self.0.clone(), Results::Whole)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Starts all of them, and waits for none.
    pub fn start(&self) {
        for connection in self.0.values() {
            connection.listing();
        }
    }

    /// The name of each.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Tries each of them: its name, and its tools or why there are none.
    pub async fn check(&self) -> Vec<(String, Result<Arc<[HostTool]>, String>)> {
        let tools = join_all(self.0.values().map(|connection| connection.tools())).await;
        let tools = tools.into_iter().map(|tools| {
            tools.map_err(|error| match (&*error.path, &*error.stderr) {
                ("", "") => error.text,
                ("", stderr) => format!("{}; its stderr ends with: {stderr}", error.text),
                (path, _) => format!("{}: {path}", error.text),
            })
        });
        self.0.keys().cloned().zip(tools).collect()
    }

    /// Ends all of them: each is asked first, and then killed.
    pub async fn close(&self) {
        join_all(self.0.values().map(|connection| connection.close())).await;
    }
}

impl Upstreams {
    /// The tools of those that answer within this time, and the others with why they have none.
    async fn listed(&self, time: Duration) -> (Vec<HostTool>, Vec<(String, String)>) {
        let listed = join_all(self.0.values().map(|it| timeout(time, it.listing()))).await;
        let (mut tools, mut failed) = (Vec::new(), Vec::new());
        for ((name, connection), listed) in self.0.iter().zip(listed) {
            let why = match (listed, connection.known()) {
                (Ok(Ok(Ok(listed))), _) | (_, Some(listed)) => {
                    tools.extend(listed.iter().cloned());
                    continue;
                }
                (Ok(Ok(Err(error))), None) => error.text,
                (Ok(Err(_)) | Err(_), None) => "it is still being started".to_owned(),
            };
            failed.push((name.clone(), why));
        }
        (tools, failed)
    }

    /// The upstream of a tool, whose start is waited for, and the tool as it is now.
    async fn lookup(&self, tool: &str) -> Result<(&Arc<Connection>, HostTool), HostToolError> {
        let (upstream, _) = tool.split_once('.').ok_or(HostToolError::Unknown)?;
        let connection = self.0.get(upstream).ok_or(HostToolError::Unknown)?;
        let known = connection.tools().await?;
        let known = known.iter().find(|it| it.name == tool).ok_or(HostToolError::Unknown)?;
        Ok((connection, known.clone()))
    }
}

#[async_trait]
impl HostTools for Upstreams {
    /// The tools of the upstreams that can be reached; an error if one failed and none has listed a tool.
    async fn list(&self) -> Result<Arc<[HostTool]>, HostToolError> {
        Ok(self.list_some().await?.0)
    }

    async fn list_some(&self) -> Result<Listed, HostToolError> {
        let (mut tools, mut failed) = self.listed(LIST_TIMEOUT).await;
        if tools.is_empty() && !failed.is_empty() {
            (tools, failed) = self.listed(START_TIMEOUT).await;
        }
        match failed.first() {
            Some((name, why)) if tools.is_empty() => {
                Err(HostToolError::Unavailable(format!("{name}: {why}")))
            }
            _ => Ok((tools.into(), failed.into_iter().map(|(name, _)| name).collect())),
        }
    }

    /// Tries those that have failed again, too.
    fn known(&self) -> Option<Listed> {
        let (mut tools, mut missing) = (Vec::new(), Vec::new());
        for (name, connection) in &self.0 {
            match connection.known() {
                Some(known) => tools.extend(known.iter().cloned()),
                None => {
                    connection.wake();
                    missing.push(name.clone());
                }
            }
        }
        Some((tools.into(), missing))
    }

    async fn find(&self, tool: &str) -> Result<HostTool, HostToolError> {
        Ok(self.lookup(tool).await?.1)
    }

    async fn call(
        &self,
        tool: &str,
        arguments: Map<String, Value>,
        permitted: ToolEffect,
    ) -> Result<HostAnswer, HostToolError> {
        let (connection, known) = self.lookup(tool).await?;
        if known.effect > permitted {
            return Err(HostToolError::NotPermitted);
        }
        let (_, name) = tool.split_once('.').ok_or(HostToolError::Unknown)?;
        let result = connection.connected().await?.call(name, arguments).await?;
        match self.1 {
            Results::Values => answer(result),
            Results::Whole => whole(result),
        }
    }
}
