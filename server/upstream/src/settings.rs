//! Upstreams as they are configured.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::PathBuf;

use hyper::Uri;
use hyper::header::{HeaderName, HeaderValue};
use sandbox_api::RESERVED_NAMES;
use serde::{Deserialize, Serialize};

/// Headers that belong to the protocol or to the connection.
const RESERVED_HEADERS: [&str; 8] = [
    "accept", "connection", "content-length", "content-type", "host", "last-event-id",
    "mcp-protocol-version", "mcp-session-id",
];

/// A server whose tools scripts may call, as a configuration file has it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Upstream {
    /// A program and its arguments: it runs on the host, as the user.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Where it is reached over streamable HTTP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The working directory of the program; the user's home directory if not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<PathBuf>,
    /// Variables of the program. A value may end with `env:NAME` or `file:PATH`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Headers of requests to the URL. A value may end with `env:NAME` or `file:PATH`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// What it is shown for each subject of a service. If there are any, other subjects have none of it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub subjects: BTreeMap<String, Credentials>,
}

/// What an upstream is shown for one subject, in addition to what it is shown for all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Credentials {
    /// Variables of the program.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Headers of requests to the URL.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
}

/// Why an upstream cannot be one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UpstreamError(&'static str);

impl Upstream {
    /// An upstream from a command line or a URL, as a flag has it.
    ///
    /// # Errors
    ///
    /// [`UpstreamError`].
    pub fn from_text(name: &str, text: &str) -> Result<Self, UpstreamError> {
        let is_url = ["http://", "https://"].iter().any(|scheme| text.starts_with(scheme));
        let is_scheme = |it: &str| {
            it.starts_with(|it: char| it.is_ascii_alphabetic())
                && it.chars().all(|it| it.is_ascii_alphanumeric() || "+-.".contains(it))
        };
        if !is_url && text.split_once("://").is_some_and(|(scheme, _)| is_scheme(scheme)) {
            return Err(UpstreamError(
                "its url begins with neither http:// nor https://, which servers are reached over: \
                 NAME=https://HOST/PATH",
            ));
        }
        let (url, command) = match is_url {
            true => (Some(text.to_owned()), Some(Vec::new())),
            false => (None, shlex::split(text)),
        };
        let command = command.ok_or(UpstreamError("its command has a quote that is not closed"))?;
        let upstream = Self { command, url, ..Self::default() };
        upstream.check(name).map(|()| upstream)
    }

    /// Whether it can be one.
    ///
    /// # Errors
    ///
    /// [`UpstreamError`].
    pub fn check(&self, name: &str) -> Result<(), UpstreamError> {
        let is_identifier = name.starts_with(|it: char| it.is_ascii_alphabetic() || it == '_')
            && name.chars().all(|it| it.is_ascii_alphanumeric() || it == '_');
        let refused = |why| Err(UpstreamError(why));
        if !is_identifier || name.len() > 32 || RESERVED_NAMES.contains(&name) {
            return refused(
                "its name is not an identifier of at most 32 bytes, or is `search` or `describe`",
            );
        }
        let shown = self.subjects.values().map(|it| (&it.env, &it.headers));
        let shown = shown.chain([(&self.env, &self.headers)]);
        match (&self.url, self.command.first()) {
            (Some(url), None) if !url.parse().is_ok_and(|uri| is_server(&uri)) => {
                refused("its url is not http://HOST/… or https://HOST/… without a user")
            }
            (Some(_), None) if self.cwd.is_some() || shown.clone().any(|it| !it.0.is_empty()) => {
                refused("a url has headers, and neither env nor cwd")
            }
            (None, Some(_)) if shown.clone().any(|it| !it.1.is_empty()) => {
                refused("a command has env, and no headers")
            }
            (None, Some(_)) if self.cwd.as_ref().is_some_and(|cwd| !cwd.is_absolute()) => {
                refused("its cwd is not an absolute path")
            }
            (Some(_), None) | (None, Some(_)) if !shown.clone().all(|it| are_names(it.0, it.1)) => {
                refused("a variable or a header has an invalid name")
            }
            (Some(_), None) => Ok(()),
            (None, Some(program)) if !program.is_empty() => Ok(()),
            _ => refused("it has either a command or a url"),
        }
    }
}

fn is_server(uri: &Uri) -> bool {
    matches!(uri.scheme_str(), Some("http" | "https"))
        && uri.authority().is_some_and(|it| !it.host().is_empty() && !it.as_str().contains('@'))
}

fn are_names(env: &BTreeMap<String, String>, headers: &BTreeMap<String, String>) -> bool {
    let is_header = |name: &String| {
        let name = name.parse::<HeaderName>();
        name.is_ok_and(|name| !RESERVED_HEADERS.contains(&name.as_str()))
    };
    env.keys().all(|name| !name.is_empty() && !name.contains(['=', '\0']))
        && headers.keys().all(is_header)
}

/// An upstream with all that it is shown: values are read.
#[derive(Clone)]
pub enum Target {
    /// A program of the host.
    Command {
        /// The program and its arguments.
        command: Vec<String>,
        /// All of its environment.
        env: BTreeMap<String, String>,
        /// Its working directory.
        cwd: PathBuf,
    },
    /// A URL.
    Url {
        /// The URL.
        url: String,
        /// The headers of each request.
        headers: HashMap<HeaderName, HeaderValue>,
    },
}

/// Without what may be secret.
impl fmt::Debug for Target {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Target").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upstream_is_a_command_or_a_url() {
        let upstream = Upstream::from_text("git_hub", "npx -y 'a b' \"$HOME\"").unwrap();
        assert_eq!(upstream.command, ["npx", "-y", "a b", "$HOME"]);
        let upstream = Upstream::from_text("web", "https://example.org/mcp?x=1").unwrap();
        assert_eq!(upstream.url.as_deref(), Some("https://example.org/mcp?x=1"));
        let upstream = Upstream::from_text("a", "proxy ftp://example.org").unwrap();
        assert_eq!(upstream.command, ["proxy", "ftp://example.org"]);
        for (name, text, error) in [
            ("search", "a", "name"),
            ("describe", "a", "name"),
            ("a-b", "a", "name"),
            ("1a", "a", "name"),
            ("käse", "a", "name"),
            ("", "a", "name"),
            ("a", "", "either"),
            ("a", "b 'c", "quote"),
            ("a", "'' c", "either"),
            ("a", "http://", "url"),
            ("a", "ftp://example.org", "neither http:// nor https://"),
            ("a", "HTTP://example.org", "neither http:// nor https://"),
            ("a", "https://me:x@example.org", "url"),
        ] {
            let refused = Upstream::from_text(name, text).unwrap_err().to_string();
            assert!(
                refused.contains(error) && !refused.contains("me:x"),
                "{name}={text}: {refused}"
            );
        }
    }

    #[test]
    fn upstream_has_what_belongs_to_its_kind() {
        let pair = |name: &str| BTreeMap::from([(name.to_owned(), "x".to_owned())]);
        let command = Upstream { command: vec!["a".to_owned()], ..Upstream::default() };
        let url = Upstream { url: Some("http://a".to_owned()), ..Upstream::default() };
        let subjects = |headers| {
            BTreeMap::from([("b".to_owned(), Credentials { headers, ..Credentials::default() })])
        };
        for (upstream, expected) in [
            (Upstream { env: pair("A"), cwd: Some("/".into()), ..command.clone() }, None),
            (Upstream { headers: pair("Authorization"), ..url.clone() }, None),
            (Upstream { subjects: subjects(pair("X-A")), ..url.clone() }, None),
            (Upstream::default(), Some("either")),
            (Upstream { url: url.url.clone(), ..command.clone() }, Some("either")),
            (Upstream { headers: pair("A"), ..command.clone() }, Some("no headers")),
            (Upstream { subjects: subjects(pair("A")), ..command.clone() }, Some("no headers")),
            (Upstream { env: pair("A"), ..url.clone() }, Some("neither env")),
            (Upstream { cwd: Some("/".into()), ..url.clone() }, Some("neither env")),
            (Upstream { cwd: Some("a".into()), ..command.clone() }, Some("absolute")),
            (Upstream { env: pair("A=B"), ..command }, Some("invalid name")),
            (Upstream { headers: pair("Host"), ..url.clone() }, Some("header")),
            (Upstream { headers: pair("a b"), ..url }, Some("header")),
        ] {
            let refused = upstream.check("a").err().map(|error| error.to_string());
            let expected = expected.unwrap_or_default();
            assert!(refused.unwrap_or_default().contains(expected), "{upstream:?}");
            assert_eq!(upstream.check("a").is_ok(), expected.is_empty(), "{upstream:?}");
        }
    }
}
