//! The list of hosts that commands may reach, and the normalisation of hosts.
//!
//! Names are compared after IDNA mapping to lower-case ASCII, without the trailing dot. A host
//! whose last label is a number is an address, in any notation that C libraries accept (`0x7f.1`,
//! `2130706433`), or it is invalid. The normalised form that was compared is the one that is
//! resolved and dialled: no text is parsed twice.

mod address;
pub mod first_bytes;
mod requests;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use self::address::special;
pub use self::address::{Special, embedded};
use self::requests::RequestRule;
pub use self::requests::RequestRuleError;

/// The loopback of the machine that runs the controller, in rules and for programs. Addresses of the
/// loopback and `localhost` are the sandbox's own.
pub const HOST_LOOPBACK: &str = "host.sandbox.internal";
/// The host whose port 80 the controller answers itself: what the sandbox may reach.
pub const POLICY_HOST: &str = "policy.sandbox.internal";
/// Names in it are ours: no rule is for another one than [`HOST_LOOPBACK`].
const OWN_DOMAIN: &str = "sandbox.internal";
/// Words that are meant as a rule for all hosts, or for none. A host of such a name has a port in its
/// rule.
const ALL_WORDS: [&str; 7] = ["all", "any", "everything", "internet", "true", "on", "yes"];
const NO_WORDS: [&str; 5] = ["none", "no", "false", "off", "deny"];
/// Names of the metadata services of clouds, which hand out credentials.
const METADATA_NAMES: [&str; 6] = [
    "instance-data", "instance-data.ec2.internal", "metadata", "metadata.goog",
    "metadata.google.internal", "metadata.tencentyun.com",
];
/// The ports of a rule without a port: HTTP and HTTPS.
const USUAL_PORTS: [u16; 2] = [80, 443];
/// The maximum length of a DNS name, and of a label.
const MAX_NAME: usize = 253;
const MAX_LABEL: usize = 63;

/// A host: a name or an address.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Host {
    /// ASCII, lower case, without a trailing dot.
    Name(String),
    /// Never an IPv4-mapped IPv6 address.
    Address(IpAddr),
}

/// A text is not a host.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{}' is neither a host name nor an address", .0.escape_debug())]
pub struct NoHost(String);

impl FromStr for Host {
    type Err = NoHost;

    fn from_str(text: &str) -> Result<Self, NoHost> {
        let refuse = || NoHost(text.chars().take(MAX_NAME + 2).collect());
        let inner = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
        if let Some(inner) = inner.or_else(|| text.contains(':').then_some(text)) {
            // Zones are not accepted: a guest may not choose a link.
            let address: Ipv6Addr = inner.parse().map_err(|_| refuse())?;
            return Ok(Self::Address(IpAddr::V6(address).to_canonical()));
        }
        // `url` would decode it, because it parses hosts of URLs; this text is not one.
        if text.contains('%') {
            return Err(refuse());
        }
        let text = text.strip_suffix('.').unwrap_or(text);
        match url::Host::parse(text).map_err(|_| refuse())? {
            url::Host::Domain(name) if is_name(&name) => Ok(Self::Name(name)),
            url::Host::Domain(_) => Err(refuse()),
            url::Host::Ipv4(address) => Ok(Self::Address(address.into())),
            url::Host::Ipv6(address) => Ok(Self::Address(IpAddr::V6(address).to_canonical())),
        }
    }
}

/// Whether DNS allows the name and a host can have it: no label begins or ends with a hyphen (RFC
/// 1123). Underscores are not allowed in host names by the standards, but are common.
fn is_name(name: &str) -> bool {
    name.len() <= MAX_NAME
        && name.split('.').all(|label| {
            (1..=MAX_LABEL).contains(&label.len())
                && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
                && !label.starts_with('-')
                && !label.ends_with('-')
        })
}

impl fmt::Display for Host {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => formatter.write_str(name),
            Self::Address(IpAddr::V4(address)) => write!(formatter, "{address}"),
            Self::Address(IpAddr::V6(address)) => write!(formatter, "[{address}]"),
        }
    }
}

impl Host {
    /// The addresses that are known without a lookup: those of an address, and of
    /// [`HOST_LOOPBACK`].
    pub fn known_addresses(&self) -> Option<Vec<IpAddr>> {
        match self {
            Self::Address(address) => Some(vec![*address]),
            Self::Name(name) if name == HOST_LOOPBACK => {
                Some(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()])
            }
            Self::Name(_) => None,
        }
    }

    /// Whether it means the caller's own loopback.
    fn is_own_loopback(&self) -> bool {
        match self {
            Self::Address(address) => special(*address) == Some(Special::Loopback),
            Self::Name(name) => name == "localhost" || is_below(name, "localhost"),
        }
    }

    /// Whether it is a reserved name that stands for no host.
    fn is_reserved(&self) -> bool {
        let Self::Name(name) = self else { return false };
        name != HOST_LOOPBACK && (name == OWN_DOMAIN || is_below(name, OWN_DOMAIN))
    }
}

/// The target of a connection.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Target {
    /// The host.
    pub host: Host,
    /// Its port.
    pub port: u16,
}

impl Target {
    /// A rule that allows it: its host on this port, or on both 80 and 443 if the port is one of
    /// them.
    pub fn rule(&self) -> AllowRule {
        let host = Pattern::Exactly(self.host.clone());
        let ports =
            if USUAL_PORTS.contains(&self.port) { Ports::Usual } else { Ports::One(self.port) };
        AllowRule { host, ports, requests: None }
    }

    /// The rule that allows this request alone, to suggest to a person: none if a server could read its
    /// path as another one.
    pub fn request_rule(&self, method: &str, path: &str) -> Option<AllowRule> {
        let requests = Some(RequestRule::of(method, path)?);
        let host = Pattern::Exactly(self.host.clone());
        Some(AllowRule { host, ports: Ports::One(self.port), requests })
    }

    /// The rule to suggest to a person: none for an address that no rule may contain, nor for one
    /// that hands out credentials.
    pub fn suggested_rule(&self) -> Option<AllowRule> {
        match self.special() {
            _ if self.is_own_loopback() || self.host.is_reserved() => None,
            Some(special) if special.is_never_a_host() || special == Special::Metadata => None,
            _ => Some(self.rule()),
        }
    }

    /// The same as a rule names it: an address of this machine's loopback is [`HOST_LOOPBACK`].
    #[must_use]
    pub fn listed(self) -> Self {
        match self.host {
            Host::Address(address) if address.is_loopback() => {
                Self { host: Host::Name(HOST_LOOPBACK.to_owned()), port: self.port }
            }
            _ => self,
        }
    }

    /// Whether it is the sandbox's own loopback, which programs reach without the proxy.
    pub fn is_own_loopback(&self) -> bool {
        self.host.is_own_loopback()
    }

    /// Whether the controller answers it itself.
    pub fn is_policy(&self) -> bool {
        self.port == 80 && matches!(&self.host, Host::Name(name) if name == POLICY_HOST)
    }

    /// Whether a person may be asked about it. Not about what has a special address, or is one of the
    /// sandbox's or of this machine: those are listed by a person who knows them, or stay refused.
    pub fn may_be_asked_for(&self) -> bool {
        let Host::Name(name) = &self.host else { return self.special().is_none() };
        let is_ours = name == HOST_LOOPBACK || self.host.is_reserved() || self.is_own_loopback();
        !is_ours && !METADATA_NAMES.contains(&&**name)
    }

    /// What is special about the address; `None` for others, and for names.
    pub fn special(&self) -> Option<Special> {
        match &self.host {
            Host::Name(_) => None,
            Host::Address(address) => special(*address),
        }
    }
}

impl From<(IpAddr, u16)> for Target {
    fn from((address, port): (IpAddr, u16)) -> Self {
        Self { host: Host::Address(address.to_canonical()), port }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.host, self.port)
    }
}

/// A rule of the allow list: `HOST` or `HOST:PORT`. `HOST` is a name, `*.` and a name (its
/// subdomains at any depth, but not the name itself), or an address (IPv6 with a port in brackets).
/// Without a port it allows 80 and 443. The loopback of this machine is [`HOST_LOOPBACK`].
///
/// Or `METHODS https://HOST[:PORT]/PATH`: requests with one of these methods (`GET,POST`, or `*` for all) and
/// a path in which `*` is any text, over TLS that the controller terminates.
#[derive(Debug, Clone, PartialEq, Eq, Hash, JsonSchema)]
#[schemars(with = "String")]
pub struct AllowRule {
    host: Pattern,
    ports: Ports,
    /// The requests, if not all that the host is sent.
    requests: Option<RequestRule>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Pattern {
    Exactly(Host),
    /// The subdomains of this name.
    Below(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Ports {
    Usual,
    One(u16),
}

/// Why a text is not an [`AllowRule`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AllowRuleError {
    /// It is a URL, or part of one.
    #[error(
        "'{0}' is a URL: a rule is HOST or HOST:PORT, and allows all of the host; less is 'GET \
         https://HOST/PATH/*'"
    )]
    Url(String),
    /// The methods or the path of a rule for requests.
    #[error(transparent)]
    Request(#[from] RequestRuleError),
    /// The host of a rule for requests has no certificate.
    #[error("'{0}': a rule for requests needs the name of a host")]
    RequestHost(String),
    /// The port is invalid.
    #[error("'{0}' is not a port: 1 to 65535")]
    Port(String),
    /// A misplaced star.
    #[error("'{0}': a wildcard is only allowed at the beginning: *.example.org")]
    Star(String),
    /// The host is invalid.
    #[error("'{0}' is neither a host name nor an address")]
    Host(String),
    /// An address that no host can have.
    #[error("{0} is {1}, to which no connection can be made")]
    Unreachable(IpAddr, &'static str),
    /// The sandbox's own loopback.
    #[error(
        "'{0}' is the sandbox's own loopback, which needs no rule; for a port of this machine's: \
         --allow {HOST_LOOPBACK}:PORT"
    )]
    Loopback(String),
    /// Several rules in one.
    #[error(
        "'{0}' is more than one rule: each has a flag of its own, or is an entry of the list: {1}"
    )]
    Several(String, String),
    /// A name that the sandbox uses itself.
    #[error(
        "'{0}' is a name of the sandbox's own; the only one that a rule can have is {HOST_LOOPBACK}"
    )]
    Reserved(String),
    /// Meant for all hosts.
    #[error(
        "'{0}' is not a rule: none allows all hosts; name each, --allow HOST[:PORT], or all below a \
         domain, --allow '*.example.org'"
    )]
    All(String),
    /// Meant for no host.
    #[error("'{0}' is not a rule: without --allow there is no network")]
    NoHost(String),
}

impl FromStr for AllowRule {
    type Err = AllowRuleError;

    fn from_str(text: &str) -> Result<Self, AllowRuleError> {
        let shown = || text.escape_debug().to_string();
        if let Some((methods, url)) = text.split_once(" https://") {
            let (host, path) = url.split_at(url.find('/').unwrap_or(url.len()));
            let Self { host, ports, .. } = host.parse()?;
            let requests = Some(RequestRule::new(methods, path)?);
            return match (host, ports) {
                (Pattern::Exactly(Host::Address(_)), _) => {
                    Err(AllowRuleError::RequestHost(shown()))
                }
                (host, Ports::Usual) => Ok(Self { host, ports: Ports::One(443), requests }),
                (host, ports) => Ok(Self { host, ports, requests }),
            };
        }
        if ["*", "0.0.0.0/0", "::/0"].contains(&text) {
            return Err(AllowRuleError::All(shown()));
        }
        let parts: Vec<_> = text.split(',').map(str::trim).filter(|it| !it.is_empty()).collect();
        if parts.len() > 1 {
            let flags: Vec<_> =
                parts.iter().map(|part| format!("--allow {}", part.escape_debug())).collect();
            return Err(AllowRuleError::Several(shown(), flags.join(" ")));
        }
        if text.contains('/') || text.contains('@') {
            return Err(AllowRuleError::Url(shown()));
        }
        let (host, port) = match text.rfind(']') {
            Some(end) => {
                let (host, rest) = text.split_at(end + 1);
                match rest.strip_prefix(':') {
                    Some(port) => (host, Some(port)),
                    None if rest.is_empty() => (host, None),
                    None => return Err(AllowRuleError::Host(shown())),
                }
            }
            None => match text.split_once(':') {
                // An IPv6 address without brackets has no port.
                Some((_, rest)) if rest.contains(':') => (text, None),
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            },
        };
        let ports = match port {
            None => Ports::Usual,
            Some(port) => Ports::One(
                parse_port(port)
                    .ok_or_else(|| AllowRuleError::Port(port.escape_debug().to_string()))?,
            ),
        };
        let (star, host) = match host.strip_prefix("*.") {
            Some(host) => (true, host),
            None => (false, host),
        };
        if host.contains('*') {
            return Err(AllowRuleError::Star(shown()));
        }
        let host = match host.parse().map_err(|_| AllowRuleError::Host(shown()))? {
            Host::Name(name) if star => Pattern::Below(name),
            Host::Address(_) if star => return Err(AllowRuleError::Star(shown())),
            Host::Address(address) => match special(address) {
                Some(special) if special.is_never_a_host() => {
                    return Err(AllowRuleError::Unreachable(address, special.as_str()));
                }
                _ => Pattern::Exactly(Host::Address(address)),
            },
            name @ Host::Name(_) => Pattern::Exactly(name),
        };
        match (&host, ports) {
            (host, _) if host.host().is_own_loopback() => Err(AllowRuleError::Loopback(shown())),
            (host, _) if host.host().is_reserved() => Err(AllowRuleError::Reserved(shown())),
            (Pattern::Exactly(Host::Name(name)), Ports::Usual) if ALL_WORDS.contains(&&**name) => {
                Err(AllowRuleError::All(shown()))
            }
            (Pattern::Exactly(Host::Name(name)), Ports::Usual) if NO_WORDS.contains(&&**name) => {
                Err(AllowRuleError::NoHost(shown()))
            }
            _ => Ok(Self { host, ports, requests: None }),
        }
    }
}

/// Digits only: `u16` would accept a plus sign.
fn parse_port(text: &str) -> Option<u16> {
    let is_digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|&port| is_digits && port != 0)
}

impl fmt::Display for AllowRule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(requests) = &self.requests {
            write!(formatter, "{} https://", requests.methods())?;
        }
        match (&self.host, self.ports) {
            (Pattern::Below(name), _) => write!(formatter, "*.{name}")?,
            (Pattern::Exactly(Host::Address(address)), Ports::Usual) => {
                write!(formatter, "{address}")?
            }
            (Pattern::Exactly(host), _) => write!(formatter, "{host}")?,
        }
        match (self.ports, &self.requests) {
            (Ports::Usual, _) => Ok(()),
            (Ports::One(443), Some(path)) => write!(formatter, "{path}"),
            (Ports::One(port), Some(path)) => write!(formatter, ":{port}{path}"),
            (Ports::One(port), None) => write!(formatter, ":{port}"),
        }
    }
}

sandbox_protocol::as_text!(AllowRule);

impl Ports {
    const fn as_slice(&self) -> &[u16] {
        match self {
            Self::Usual => &USUAL_PORTS,
            Self::One(port) => std::slice::from_ref(port),
        }
    }
}

impl AllowRule {
    /// The rule for one host and port.
    pub fn exactly(target: &Target) -> Self {
        let host = Pattern::Exactly(target.host.clone());
        Self { host, ports: Ports::One(target.port), requests: None }
    }

    /// Whether this rule allows everything that `other` allows at this port.
    fn covers(&self, other: &Self, port: u16) -> bool {
        let host = match (&self.host, &other.host) {
            (known, Pattern::Exactly(host)) => known.matches(host),
            (Pattern::Below(parent), Pattern::Below(name)) => {
                name == parent || is_below(name, parent)
            }
            (Pattern::Exactly(_), Pattern::Below(_)) => false,
        };
        let requests = match (&self.requests, &other.requests) {
            (None, _) => true,
            (Some(known), Some(other)) => known.covers(other),
            (Some(_), None) => false,
        };
        host && requests && self.ports.as_slice().contains(&port)
    }

    fn allows(&self, target: &Target) -> bool {
        self.host.matches(&target.host) && self.ports.as_slice().contains(&target.port)
    }
}

impl Pattern {
    fn matches(&self, host: &Host) -> bool {
        match (self, host) {
            (Self::Exactly(allowed), host) => allowed == host,
            // Allowing a domain includes neither this machine nor reserved names.
            (Self::Below(parent), host @ Host::Name(name)) => {
                is_below(name, parent) && name != HOST_LOOPBACK && !host.is_reserved()
            }
            (Self::Below(_), Host::Address(_)) => false,
        }
    }

    /// Its host, or the domain that its hosts are below.
    fn host(&self) -> Host {
        match self {
            Self::Exactly(host) => host.clone(),
            Self::Below(name) => Host::Name(name.clone()),
        }
    }
}

/// Whether a name is a subdomain of another.
fn is_below(name: &str, parent: &str) -> bool {
    name.strip_suffix(parent).is_some_and(|rest| rest.ends_with('.'))
}

/// The hosts that commands may reach; none if empty.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Allowlist(Vec<AllowRule>);

impl FromIterator<AllowRule> for Allowlist {
    fn from_iter<I: IntoIterator<Item = AllowRule>>(rules: I) -> Self {
        Self(rules.into_iter().collect())
    }
}

impl Allowlist {
    /// The rules.
    pub fn rules(&self) -> &[AllowRule] {
        &self.0
    }

    /// Whether the list already allows everything that the rule allows.
    pub fn covers(&self, rule: &AllowRule) -> bool {
        let covers = |port| self.0.iter().any(|known| known.covers(rule, port));
        rule.ports.as_slice().iter().all(|&port| covers(port))
    }

    /// Whether a rule allows the target, or some requests to it.
    pub fn allows(&self, target: &Target) -> bool {
        self.of(target).next().is_some()
    }

    /// Whether rules decide about single requests to the target.
    pub fn has_request_rules(&self, target: &Target) -> bool {
        self.of(target).any(|rule| rule.requests.is_some())
    }

    /// Whether a rule allows the request: its path without the query, as it is sent.
    pub fn allows_request(&self, target: &Target, method: &str, path: &str) -> bool {
        let allows =
            |rule: &AllowRule| rule.requests.as_ref().is_none_or(|it| it.allows(method, path));
        self.of(target).any(allows)
    }

    /// The hosts of rules for requests, as certificates name them: those below a domain with a dot before it.
    pub fn request_hosts(&self) -> impl Iterator<Item = String> {
        let rules = self.0.iter().filter(|rule| rule.requests.is_some());
        rules.map(|rule| match &rule.host {
            Pattern::Exactly(host) => host.to_string(),
            Pattern::Below(name) => format!(".{name}"),
        })
    }

    fn of(&self, target: &Target) -> impl Iterator<Item = &AllowRule> {
        self.0.iter().filter(move |rule| rule.allows(target))
    }

    /// Whether this address may be dialled for an allowed target; if not, why.
    pub fn check(&self, address: IpAddr, port: u16) -> Result<(), Special> {
        let target = Target::from((address, port));
        match target.special() {
            Some(special) if special.is_never_a_host() || !self.allows(&target.listed()) => {
                Err(special)
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn list(rules: &[&str]) -> Allowlist {
        rules.iter().map(|rule| rule.parse().unwrap()).collect()
    }

    fn allowed(list: &Allowlist, host: &str, port: u16) -> Result<bool, NoHost> {
        host.parse().map(|host| list.allows(&Target { host, port }))
    }

    #[test]
    fn a_host_is_allowed_or_refused_however_it_is_written() {
        let list = list(&[
            "ok.example", "*.sub.example", "port.example:8443", "bücher.example",
            "under_score.example", "host.sandbox.internal:8080", "*.internal", "10.0.0.5",
            "172.16.0.1:9000", "[fd00::1]:9000", "2001:db8::5", "192.0.2.7:22",
        ]);
        let yes = Ok(true);
        let no = Ok(false);
        let none = Err(());
        for (host, port, expected) in [
            // Names.
            ("ok.example", 443, yes),
            ("ok.example", 80, yes),
            ("ok.example", 8080, no),
            ("ok.example", 0, no),
            ("ok.example", 22, no),
            ("OK.Example", 443, yes),
            ("ok.example.", 443, yes),
            ("OK.EXAMPLE.", 443, yes),
            ("ok.example..", 443, none),
            (".ok.example", 443, none),
            ("ok..example", 443, none),
            ("ok.example.evil", 443, no),
            ("evil-ok.example", 443, no),
            ("evilok.example", 443, no),
            ("evil.ok.example", 443, no),
            ("ok.exampl", 443, no),
            ("k.example", 443, no),
            ("example", 443, no),
            ("", 443, none),
            (".", 443, none),
            ("*", 443, none),
            ("*.ok.example", 443, none),
            ("*.sub.example", 443, none),
            ("ok.example\0", 443, none),
            ("ok.example\0.evil", 443, none),
            ("evil\0.ok.example", 443, none),
            ("ok.example\n", 443, none),
            ("ok.example\r\nHost: evil", 443, none),
            (" ok.example", 443, none),
            ("ok.example ", 443, none),
            ("ok.example\t", 443, none),
            ("ok.example/", 443, none),
            ("ok.example/evil", 443, none),
            ("ok.example:443", 443, none),
            ("ok.example#evil", 443, none),
            ("ok.example?evil", 443, none),
            ("evil@ok.example", 443, none),
            ("ok.example@evil", 443, none),
            ("ok.example\\evil", 443, none),
            ("ok%2eexample", 443, none),
            ("%6fk.example", 443, none),
            ("ok.example%00", 443, none),
            ("ok,example", 443, none),
            ("[ok.example]", 443, none),
            ("-", 443, none),
            ("-.ok.example", 443, none),
            ("-ok.example", 443, none),
            ("ok-.example", 443, none),
            ("a-b.sub.example", 443, yes),
            ("ok.example]", 443, none),
            ("http://ok.example", 443, none),
            // Other dots and letters that IDNA maps to the same name, and letters that only look
            // alike.
            ("ok。example", 443, yes),
            ("ｏｋ.example", 443, yes),
            ("ok\u{ad}.example", 443, yes),
            ("оk.example", 443, no),
            ("ok\u{200b}.example", 443, yes),
            ("bücher.example", 443, yes),
            ("BÜCHER.example", 443, yes),
            ("bu\u{308}cher.example", 443, yes),
            ("xn--bcher-kva.example", 443, yes),
            ("XN--BCHER-KVA.example", 443, yes),
            ("xn--bcher-kva.example.", 443, yes),
            ("bucher.example", 443, no),
            ("xn--\u{fc}.example", 443, none),
            ("xn--zzzzzzzzzz.example", 443, no),
            ("xn--.example", 443, none),
            ("under_score.example", 443, yes),
            // Subdomains.
            ("a.sub.example", 443, yes),
            ("a.b.sub.example", 443, yes),
            ("A.SUB.example.", 443, yes),
            ("sub.example", 443, no),
            (".sub.example", 443, none),
            ("xsub.example", 443, no),
            ("a.xsub.example", 443, no),
            ("sub.example.evil", 443, no),
            ("a.sub.example.evil", 443, no),
            ("a.sub.example", 8443, no),
            // Ports.
            ("port.example", 8443, yes),
            ("port.example", 443, no),
            // This machine's loopback has one name, which no wildcard means.
            ("host.sandbox.internal", 8080, yes),
            ("HOST.sandbox.internal.", 8080, yes),
            ("host.sandbox.internal", 80, no),
            ("host.sandbox.internal.evil.internal", 80, yes),
            // Nor does it include other reserved names.
            ("a.sandbox.internal", 80, no),
            ("policy.sandbox.internal", 80, no),
            ("sandbox.internal", 80, no),
            ("localhost", 8080, no),
            ("127.0.0.1", 8080, no),
            ("::1", 8080, no),
            // Addresses, in all notations.
            ("10.0.0.5", 80, yes),
            ("10.0.0.5.", 80, yes),
            ("10.0.0.6", 80, no),
            ("10.5", 80, yes),
            ("10.0.5", 80, yes),
            ("0xa.0.0.5", 80, yes),
            ("0xA000005", 80, yes),
            ("167772165", 80, yes),
            ("012.0.0.5", 80, yes),
            ("010.0.0.5", 80, no),
            ("10.0.0.05", 80, yes),
            ("10.0.0.5.6", 80, none),
            ("10.0.0.256", 80, none),
            ("10.0.0.-5", 80, none),
            ("10.0.0.+5", 80, none),
            ("１０.0.0.5", 80, yes),
            ("::ffff:10.0.0.5", 80, yes),
            ("[::ffff:10.0.0.5]", 80, yes),
            ("::ffff:a00:5", 80, yes),
            ("::10.0.0.5", 80, no),
            ("64:ff9b::10.0.0.5", 80, no),
            ("172.16.0.1", 9000, yes),
            ("172.16.0.1", 80, no),
            ("172.1048577", 9000, yes),
            ("0xac.0x100001", 9000, yes),
            ("0254.16.0.1", 9000, yes),
            ("2886729729", 9000, yes),
            ("0xac100001", 9000, yes),
            ("025404000001", 9000, yes),
            ("0xac.0x100001", 80, no),
            ("2886729729", 80, no),
            ("4294967296", 9000, none),
            ("0x100000000", 9000, none),
            ("08.0.0.1", 9000, none),
            ("172.16.0.0x", 9000, no),
            ("fd00::1", 9000, yes),
            ("[fd00::1]", 9000, yes),
            ("fd00:0:0:0:0:0:0:1", 9000, yes),
            ("fd00:0000::0001", 9000, yes),
            ("::1%lo", 9000, none),
            ("::1%25lo", 9000, none),
            ("[::1%lo]", 9000, none),
            ("fe80::1%eth0", 9000, none),
            ("[::1", 9000, none),
            ("::1]", 9000, none),
            ("[[::1]]", 9000, none),
            (":::1", 9000, none),
            ("::ffff:172.16.0.1", 9000, yes),
            ("::FFFF:AC10:1", 9000, yes),
            ("2001:DB8::5", 443, yes),
            ("2001:db8:0:0::5", 443, yes),
            ("2001:db8::6", 443, no),
            ("192.0.2.7", 22, yes),
            ("192.0.2.7", 443, no),
        ] {
            let found = allowed(&list, host, port).map_err(|_| ());
            assert_eq!(found, expected, "{host:?} {port}");
        }
        let long = |label: usize, rest: &str| format!("{}{rest}", "a".repeat(label));
        assert_eq!(allowed(&list, &long(63, ".sub.example"), 443), Ok(true));
        assert!(allowed(&list, &long(64, ".sub.example"), 443).is_err());
        assert!(allowed(&list, &long(1, &".a".repeat(127)), 443).is_err());
        assert_eq!(allowed(&list, &long(1, &".a".repeat(126)), 443), Ok(false));
        assert!(allowed(&list, &"a".repeat(1 << 20), 443).is_err());
        assert_eq!(allowed(&Allowlist::default(), "ok.example", 443), Ok(false));
    }

    #[test]
    fn a_rule_is_a_host_and_nothing_else() {
        for (text, shown) in [
            ("example.org", "example.org"),
            ("Example.ORG.", "example.org"),
            ("example.org:443", "example.org:443"),
            ("example.org:8443", "example.org:8443"),
            ("*.example.org", "*.example.org"),
            ("*.Example.org.:22", "*.example.org:22"),
            ("bücher.example", "xn--bcher-kva.example"),
            ("host.sandbox.internal:80", "host.sandbox.internal:80"),
            ("10.1", "10.0.0.1"),
            ("169.254.169.254", "169.254.169.254"),
            ("fd00::1", "fd00::1"),
            ("[fd00::1]", "fd00::1"),
            ("[fd00::1]:80", "[fd00::1]:80"),
            // A host of this name, where one exists.
            ("none:443", "none:443"),
            ("[::ffff:10.0.0.1]:80", "10.0.0.1:80"),
        ] {
            let rule: AllowRule = text.parse().unwrap();
            assert_eq!(rule.to_string(), shown, "{text}");
            assert_eq!(shown.parse(), Ok(rule), "{text}");
        }
        for (text, words) in [
            ("", "neither"),
            ("-", "neither"),
            ("-:443", "neither"),
            ("*.-", "neither"),
            ("--json", "neither"),
            ("*", "none allows all hosts"),
            ("all", "--allow HOST[:PORT]"),
            ("Any", "--allow '*.example.org'"),
            ("0.0.0.0/0", "none allows all hosts"),
            ("none", "without --allow there is no network"),
            ("a.example,b.example:22", "--allow a.example --allow b.example:22"),
            ("a.example, b.example", "--allow a.example --allow b.example"),
            ("127.0.0.1:8080", "--allow host.sandbox.internal:PORT"),
            ("127.9.8.7", "host.sandbox.internal"),
            ("0x7f.1:80", "host.sandbox.internal"),
            ("::1", "host.sandbox.internal"),
            ("[::1]:8080", "host.sandbox.internal"),
            ("[::ffff:127.0.0.1]:80", "host.sandbox.internal"),
            ("[64:ff9b::7f00:1]:80", "host.sandbox.internal"),
            ("localhost:8080", "host.sandbox.internal"),
            ("LocalHost.", "host.sandbox.internal"),
            ("a.localhost", "host.sandbox.internal"),
            ("*.localhost:1", "host.sandbox.internal"),
            ("policy.sandbox.internal", "the sandbox's own; the only one"),
            ("Policy.Sandbox.Internal.:8080", "the sandbox's own; the only one"),
            ("sandbox.internal", "the sandbox's own; the only one"),
            ("*.sandbox.internal", "the sandbox's own; the only one"),
            ("*.", "neither"),
            ("**.example.org", "a wildcard"),
            ("*.*.example.org", "a wildcard"),
            ("a.*.example.org", "a wildcard"),
            ("*example.org", "a wildcard"),
            ("*.10.0.0.1", "a wildcard"),
            ("*.[fd00::1]", "a wildcard"),
            ("https://example.org", "a URL"),
            ("example.org/path", "a URL"),
            ("user@example.org", "a URL"),
            ("10.0.0.0/8", "a URL"),
            ("example.org:", "not a port"),
            ("example.org:0", "not a port"),
            ("example.org:65536", "not a port"),
            ("example.org:+80", "not a port"),
            ("example.org:https", "not a port"),
            ("example.org:80 ", "not a port"),
            (":80", "neither"),
            ("[fd00::1]80", "neither"),
            ("[fd00::1]:", "not a port"),
            ("exa mple.org", "neither"),
            ("example.org\n", "neither"),
            ("example.org\0", "neither"),
            ("0.0.0.0", "no connection"),
            ("0", "no connection"),
            ("[::]:80", "no connection"),
            ("224.0.0.1", "no connection"),
            ("255.255.255.255", "no connection"),
            ("ff02::1", "no connection"),
        ] {
            let error = text.parse::<AllowRule>().unwrap_err().to_string();
            assert!(error.contains(words), "{text:?}: {error}");
            assert!(!error.contains('\n') && !error.contains('\0'));
        }
    }

    #[test]
    fn the_rule_that_a_refusal_names_allows_what_was_refused() {
        for (host, port, rule) in [
            ("Example.org", 443, "example.org"),
            ("example.org", 8443, "example.org:8443"),
            ("10.1", 80, "10.0.0.1"),
            ("fd00::1", 80, "fd00::1"),
            ("fd00::1", 8080, "[fd00::1]:8080"),
        ] {
            let target = Target { host: host.parse().unwrap(), port };
            assert_eq!(target.rule().to_string(), rule);
            assert!(!Allowlist::default().allows(&target));
            assert!(list(&[rule]).allows(&target));
        }
    }

    #[test]
    fn a_special_address_is_dialled_only_where_it_is_listed_itself() {
        let list = list(&["internal.example", "10.0.0.5", "host.sandbox.internal:9000"]);
        let check = |address: &str, port| list.check(address.parse().unwrap(), port);
        assert_eq!(check("93.184.215.14", 443), Ok(()));
        assert_eq!(check("10.0.0.5", 443), Ok(()));
        assert_eq!(check("::ffff:10.0.0.5", 443), Ok(()));
        assert_eq!(check("10.0.0.5", 22), Err(Special::Private));
        assert_eq!(check("10.0.0.6", 443), Err(Special::Private));
        assert_eq!(check("127.0.0.1", 9000), Ok(()));
        assert_eq!(check("::1", 9000), Ok(()));
        assert_eq!(check("127.0.0.1", 443), Err(Special::Loopback));
        // A gateway's loopback is not this machine's.
        assert_eq!(check("64:ff9b::7f00:1", 9000), Err(Special::Loopback));
        assert_eq!(check("64:ff9b::10.0.0.5", 443), Err(Special::Private));
        assert_eq!(check("169.254.169.254", 80), Err(Special::Metadata));
        assert_eq!(check("0.0.0.0", 9000), Err(Special::Unspecified));
    }

    #[test]
    fn loopback_of_the_sandbox_is_never_the_hosts() {
        let target = |host: &str| Target { host: host.parse().unwrap(), port: 8080 };
        for own in ["localhost", "a.localhost", "127.0.0.1", "127.9.8.7", "::1", "64:ff9b::7f00:1"]
        {
            assert!(target(own).is_own_loopback(), "{own}");
            assert_eq!(target(own).suggested_rule(), None, "{own}");
        }
        let host = target(HOST_LOOPBACK);
        assert!(!host.is_own_loopback());
        assert_eq!(target("127.0.0.1").listed(), host);
        assert_eq!(target("::1").listed(), host);
        assert_eq!(target("10.0.0.1").listed(), target("10.0.0.1"));
        assert_eq!(host.host.known_addresses().unwrap().len(), 2);
        assert_eq!(host.suggested_rule().unwrap().to_string(), "host.sandbox.internal:8080");
        let below = list(&["*.internal:8080"]);
        assert!(!below.allows(&host) && !below.covers(&host.rule()));
    }

    #[test]
    fn no_question_is_about_special_addresses_places_of_credentials_or_own_names() {
        let target = |host: &str, port| Target { host: host.parse().unwrap(), port };
        for asked in ["example.org", "8.8.8.8", "2606:4700:4700::1111", "metadata.example.org"] {
            assert!(target(asked, 443).may_be_asked_for(), "{asked}");
        }
        for never in [
            "10.0.0.1", "0xa.1", "fd00::1", "127.0.0.1", "::1", "169.254.169.254", "fd00:ec2::254",
            "64:ff9b::169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1", "192.0.2.1",
            "localhost", "a.localhost", "host.sandbox.internal", "sandbox.internal",
            "policy.sandbox.internal", "a.sandbox.internal", "Metadata.google.internal.",
            "metadata", "instance-data",
        ] {
            assert!(!target(never, 80).may_be_asked_for(), "{never}");
        }
        let policy = target("Policy.sandbox.internal.", 80);
        assert!(policy.is_policy() && policy.suggested_rule().is_none());
        assert!(!target(POLICY_HOST, 443).is_policy() && !target(HOST_LOOPBACK, 80).is_policy());
    }

    #[test]
    fn a_rule_is_covered_by_a_list_that_allows_all_of_it() {
        let list = list(&[
            "a.example", "*.sub.example", "p.example:80", "p.example:443", "q.example:443",
            "10.0.0.5:22",
        ]);
        for (rule, expected) in [
            ("a.example", true),
            ("A.example.:443", true),
            ("a.example:8080", false),
            ("*.a.example", false),
            ("b.a.example", false),
            ("sub.example", false),
            ("x.sub.example:80", true),
            ("*.sub.example", true),
            ("*.x.sub.example", true),
            ("*.xsub.example", false),
            ("*.example", false),
            ("p.example", true),
            ("q.example", false),
            ("q.example:443", true),
            ("10.0.0.5:22", true),
            ("0xa.5:22", true),
            ("10.0.0.5", false),
        ] {
            assert_eq!(list.covers(&rule.parse().unwrap()), expected, "{rule}");
        }
    }

    /// Rules and hosts that often overlap.
    fn some_host() -> impl Strategy<Value = String> {
        proptest::sample::select(vec!["a", "b.a", "c.b.a", "b", "x-a", "192.168.0.1", "10.0.0.1"])
            .prop_map(str::to_owned)
    }

    fn some_rule() -> impl Strategy<Value = AllowRule> {
        let port = proptest::sample::select(vec!["", ":80", ":443", ":22"]);
        (any::<bool>(), some_host(), port).prop_filter_map("no rule", |(star, host, port)| {
            format!("{}{host}{port}", if star { "*." } else { "" }).parse().ok()
        })
    }

    proptest! {
        #[test]
        fn covered_rule_allows_nothing_more(
            rules in proptest::collection::vec(some_rule(), 0..4),
            rule in some_rule(),
            host in some_host(),
            port in proptest::sample::select(vec![22_u16, 80, 443, 8080]),
        ) {
            let list: Allowlist = rules.into_iter().collect();
            let target = Target { host: host.parse().unwrap(), port };
            if list.covers(&rule) && rule.allows(&target) {
                prop_assert!(list.allows(&target));
            }
            // The list covers each of its own rules.
            prop_assert!(list.rules().iter().all(|rule| list.covers(rule)));
        }

        #[test]
        fn only_a_name_itself_matches_its_rule(
            name in "[a-z]{1,8}(\\.[a-z]{1,8}){0,3}",
            other in "\\PC{0,20}",
        ) {
            prop_assume!(!ALL_WORDS.iter().chain(&NO_WORDS).any(|word| *word == name));
            let list = list(&[&name]);
            let found = allowed(&list, &other, 443);
            if found == Ok(true) {
                prop_assert_eq!(other.parse::<Host>().unwrap(), Host::Name(name.clone()));
            }
            prop_assert_eq!(allowed(&list, &format!("{name}{other}."), 443) == Ok(true),
                format!("{name}{other}.").parse::<Host>() == Ok(Host::Name(name)));
        }

        #[test]
        fn every_number_is_its_address_and_only_that(bits in any::<u32>(), other in any::<u32>()) {
            let address = Ipv4Addr::from_bits(bits);
            let special = special(address.into());
            prop_assume!(!special.is_some_and(|it| it.is_never_a_host() || it == Special::Loopback));
            let list = list(&[&address.to_string()]);
            let [a, b, c, d] = address.octets();
            for text in [
                format!("{bits}"),
                format!("0x{bits:x}"),
                format!("0{bits:o}"),
                format!("{a}.{}", bits & 0xff_ffff),
                format!("0x{a:x}.0{b:o}.{}", bits & 0xffff),
                format!("{a}.{b}.{c}.{d}."),
                format!("[::ffff:{address}]"),
            ] {
                prop_assert_eq!(allowed(&list, &text, 80), Ok(true), "{}", text);
            }
            prop_assert_eq!(allowed(&list, &other.to_string(), 80), Ok(other == bits));
        }

        #[test]
        fn host_round_trips(text in "\\PC{0,30}") {
            if let Ok(host) = text.parse::<Host>() {
                prop_assert_eq!(host.to_string().parse::<Host>(), Ok(host));
            }
        }
    }
}
