//! Secrets that a controller adds to requests, so that no sandbox has them.

use std::str::FromStr;

use sandbox_protocol::limits::MIN_SECRET_BYTES;
pub use sandbox_protocol::message::CA_FILES;

use crate::hosts::{AllowRule, Allowlist, Host, Target};
use crate::secrets::SecretValue;

/// The longest value: a server takes no longer header.
const MAX_VALUE_BYTES: usize = 8 << 10;
/// Headers that frame a message or name its host.
const FRAMING: [&str; 7] = [
    "accept-encoding", "connection", "content-length", "expect", "host", "transfer-encoding",
    "upgrade",
];

/// What is added to requests: a rule, and the value that it names.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Injection {
    /// Where it is added.
    pub rule: InjectRule,
    /// The secret: one line of ASCII.
    pub value: SecretValue,
}

/// Where a secret is added: `HOST[:PORT]: HEADER: TEXT env:NAME`, `HOST: ?QUERY=env:NAME`, or `HOST: basic
/// USER:env:NAME`; `file:PATH` in place of `env:NAME`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct InjectRule {
    /// The host and port that the secret is sent to.
    pub target: Target,
    /// The part of a request.
    pub place: Place,
    /// Where the secret comes from: `env:NAME` or `file:PATH`.
    pub source: String,
}

/// The part of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A header.
    Header {
        /// Its name.
        name: String,
        /// What stands before the secret.
        before: String,
    },
    /// A parameter of the query.
    Query {
        /// Its name.
        name: String,
    },
    /// `Authorization: Basic`.
    Basic {
        /// The user.
        user: String,
    },
}

/// Why a secret is not added. No message has what was written: it may be the secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InjectError {
    /// It is no rule.
    #[error(
        "expected HOST[:PORT]: HEADER: TEXT env:NAME, HOST: ?QUERY=env:NAME or HOST: basic USER:env:NAME"
    )]
    Form,
    /// What follows the host's colon.
    #[error("what follows the colon of the host is neither a space nor a port")]
    Port,
    /// A URL in place of a host.
    #[error("its host is a URL: write the name alone, without https:// and without a path")]
    Url,
    /// A value in place of a source.
    #[error("it names no source of the value: write env:NAME or file:PATH, never the value itself")]
    Literal,
    /// The sandbox's own loopback.
    #[error(
        "its host is the sandbox's own loopback: this machine's is host.sandbox.internal, with its port"
    )]
    Loopback,
    /// An address, for which there is no certificate.
    #[error("its host is an address: servers are verified by their names")]
    Address,
    /// A header that is no header, or that frames a message.
    #[error("its header has no valid name, or is one that sandboxctl sets itself")]
    Header,
    /// The value is not one that a header can have.
    #[error(
        "its value has fewer than {MIN_SECRET_BYTES} bytes, more than {MAX_VALUE_BYTES}, or characters that no header has"
    )]
    Value,
}

impl InjectError {
    /// What to do about it.
    pub const fn hint(self) -> &'static str {
        match self {
            Self::Value => "a value is one line of printable ASCII characters",
            _ => {
                "an example is 'api.example.org: Authorization: Bearer env:TOKEN'; file:PATH is a source \
                 too, the value does not stand in a rule, and a host has a name, such as host.sandbox.internal:PORT"
            }
        }
    }
}

impl FromStr for InjectRule {
    type Err = InjectError;

    fn from_str(text: &str) -> Result<Self, InjectError> {
        let no_space = || {
            if text.contains("://") {
                InjectError::Url
            } else if text.contains(':') {
                InjectError::Port
            } else {
                InjectError::Form
            }
        };
        let (host, rest) = text.split_once(": ").ok_or_else(no_space)?;
        if host.contains('/') {
            return Err(InjectError::Url);
        }
        let (host, port) = match host.rsplit_once(':') {
            Some((host, port)) => (host, port.parse().map_err(|_| InjectError::Port)?),
            None => (host, 443),
        };
        let host = host.parse().map_err(|_| InjectError::Form)?;
        let target = Target { host, port };
        if port == 0 {
            return Err(InjectError::Port);
        }
        if target.is_own_loopback() {
            return Err(InjectError::Loopback);
        }
        if matches!(target.host, Host::Address(_)) {
            return Err(InjectError::Address);
        }
        let rest = rest.trim();
        let begins = |at: &usize| *at == 0 || b" =:".contains(&rest.as_bytes()[at - 1]);
        let kinds = ["env:", "file:"].iter().flat_map(|kind| rest.match_indices(kind));
        let at = kinds.map(|(at, _)| at).filter(begins).min().ok_or(InjectError::Literal)?;
        let (before, source) = rest.split_at(at);
        let within = |first: &str, last: &str| before.strip_prefix(first)?.strip_suffix(last);
        let place = if let Some(name) = within("?", "=") {
            Place::Query { name: name.to_owned() }
        } else if let Some(user) = within("basic ", ":") {
            Place::Basic { user: user.trim_start().to_owned() }
        } else {
            let (name, before) = before.split_once(':').ok_or(InjectError::Form)?;
            let (name, before) = (name.to_ascii_lowercase(), before.trim_start().to_owned());
            let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
            if !name.bytes().all(is_token) || FRAMING.contains(&&*name) {
                return Err(InjectError::Header);
            }
            Place::Header { name, before }
        };
        // An empty path, or what is no name of a variable: a word may follow it.
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        let is_unnamed = match source.strip_prefix("env:") {
            Some(name) => name.is_empty() || !name.bytes().all(is_name),
            None => source.ends_with(':'),
        };
        let is_empty = is_unnamed || before.starts_with([':', '=']) || before == "?=";
        match !is_empty && is_line(before.as_bytes()) {
            true => Ok(Self { target, place, source: source.to_owned() }),
            false => Err(InjectError::Form),
        }
    }
}

impl InjectRule {
    /// With the value that it names.
    ///
    /// # Errors
    ///
    /// [`InjectError::Value`].
    pub fn with(self, value: SecretValue) -> Result<Injection, InjectError> {
        let bytes = value.as_bytes();
        let is_long = (MIN_SECRET_BYTES..=MAX_VALUE_BYTES).contains(&bytes.len());
        match is_long && is_line(bytes) {
            true => Ok(Injection { rule: self, value }),
            false => Err(InjectError::Value),
        }
    }
}

fn is_line(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| (b' '..=b'~').contains(byte))
}

impl Injection {
    /// The variable that programs have in its place, and what it is.
    pub fn placeholder(&self) -> Option<(&str, String)> {
        let name = self.rule.source.strip_prefix("env:")?;
        Some((name, format!("sandboxctl-injected-{name}")))
    }

    /// Adds what these need to a list: their hosts, unless rules for requests say what is allowed there.
    pub fn add_hosts(injections: &[Self], list: &Allowlist) -> Allowlist {
        let mut rules = list.rules().to_vec();
        for injection in injections {
            let target = &injection.rule.target;
            if !list.allows(target) {
                rules.push(AllowRule::exactly(target));
            }
        }
        rules.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_says_where_a_secret_is_added_and_where_it_comes_from() {
        let header =
            |name: &str, before: &str| Place::Header { name: name.into(), before: before.into() };
        let basic = |user: &str| Place::Basic { user: user.into() };
        let query = |name: &str| Place::Query { name: name.into() };
        let expected =
            |target: &str, place, source: &str| (target.to_owned(), place, source.to_owned());
        for (text, expected) in [
            (
                "api.example.org: Authorization: Bearer env:TOKEN",
                expected("api.example.org:443", header("authorization", "Bearer "), "env:TOKEN"),
            ),
            (
                "API.example.org.:443: A:env:T",
                expected("api.example.org:443", header("a", ""), "env:T"),
            ),
            (
                "a.example:8443: A: token=file:/run/a b",
                expected("a.example:8443", header("a", "token="), "file:/run/a b"),
            ),
            (
                "host.sandbox.internal:8443: ?key=env:KEY",
                expected("host.sandbox.internal:8443", query("key"), "env:KEY"),
            ),
            ("a.example: basic me:env:T", expected("a.example:443", basic("me"), "env:T")),
            ("a.example: basic :file:t", expected("a.example:443", basic(""), "file:t")),
        ] {
            let rule: InjectRule = text.parse().unwrap();
            assert_eq!((rule.target.to_string(), rule.place, rule.source), expected, "{text}");
        }
    }

    #[test]
    fn an_invalid_rule_is_refused_without_what_was_written() {
        for (text, error) in [
            ("hunter2", InjectError::Form),
            ("api.example.org", InjectError::Form),
            ("api.example.org:Authorization: Bearer env:A", InjectError::Port),
            ("api.example.org:Authorization:env:A", InjectError::Port),
            ("https://api.example.org: A: env:A", InjectError::Url),
            ("https://api.example.org/", InjectError::Url),
            ("api.example.org/v1: A: env:A", InjectError::Url),
            ("127.0.0.1: A: env:A", InjectError::Loopback),
            ("api.example.org: hunter2", InjectError::Literal),
            ("api.example.org: Authorization: Bearer hunter2", InjectError::Literal),
            ("api.example.org: Authorization: Bearer env:", InjectError::Form),
            ("api.example.org: Authorization: Bearer env:TOKEN tail", InjectError::Form),
            ("api.example.org: Authorization: Bearer env:A=B", InjectError::Form),
            ("api.example.org: Authorization: Bearerenv:A", InjectError::Literal),
            ("api.example.org: Authorization: B\u{e4} env:A", InjectError::Form),
            ("api.example.org: A: x\r\ny env:A", InjectError::Form),
            ("api.example.org: ?=env:A", InjectError::Form),
            ("api.example.org: ?key=hunter2", InjectError::Literal),
            ("api.example.org: basic user", InjectError::Literal),
            ("api.example.org:x: A: env:A", InjectError::Port),
            ("api.example.org: Host: env:A", InjectError::Header),
            ("api.example.org: Transfer-Encoding: env:A", InjectError::Header),
            ("api.example.org: A b: env:A", InjectError::Header),
            ("192.0.2.7: A: env:A", InjectError::Address),
            ("localhost: A: env:A", InjectError::Loopback),
            ("*.example.org: A: env:A", InjectError::Form),
            ("api.example.org:0: A: env:A", InjectError::Port),
        ] {
            assert_eq!(text.parse::<InjectRule>(), Err(error), "{text}");
            assert!(!error.to_string().contains("hunter2") && !error.hint().is_empty());
        }
        let rule: InjectRule = "api.example.org: A: env:A".parse().unwrap();
        for value in ["abc", "a\nbcd", "\u{e4}bcd", &"x".repeat(MAX_VALUE_BYTES + 1)] {
            assert_eq!(rule.clone().with(SecretValue::new(value)), Err(InjectError::Value));
        }
        let injection = rule.with(SecretValue::new("hunter2!")).unwrap();
        assert!(!format!("{injection:?}").contains("hunter2"));
        assert_eq!(injection.placeholder(), Some(("A", "sandboxctl-injected-A".to_owned())));
    }

    #[test]
    fn an_injection_allows_its_host_unless_a_rule_says_what_of_it() {
        let injection = |text: &str| {
            text.parse::<InjectRule>().unwrap().with(SecretValue::new("hunter2!")).unwrap()
        };
        let hosts = |text: &str, rules: &[&str]| {
            let list = rules.iter().map(|rule| rule.parse().unwrap()).collect();
            let list = Injection::add_hosts(&[injection(text)], &list);
            list.rules().iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(hosts("a.example: A: env:A", &[]), ["a.example:443"]);
        assert_eq!(
            hosts("a.example:8443: A: env:A", &["b.example"]),
            ["b.example", "a.example:8443"]
        );
        let rule = "GET https://a.example/x";
        assert_eq!(hosts("a.example: A: env:A", &[rule]), [rule]);
    }
}
