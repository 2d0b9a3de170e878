//! Rules for requests: `GET,POST https://HOST[:PORT]/path/*`.
//!
//! Paths are compared as they are sent: nothing is decoded. A path that some server reads as another
//! one matches no rule but those for all paths.

use std::fmt;

use crate::encoding::decode_percent;
use crate::wildcard;

/// The path of a rule for all paths.
const ANY: &str = "/*";
/// Methods that no rule can allow: a tunnel, and what sends a request's own secrets back.
const NEVER: [&str; 3] = ["CONNECT", "TRACE", "TRACK"];
/// Escapes in which a server may find another path: NUL and control characters, `%`, `.`, `/` and `\`.
const ESCAPES: [&str; 6] = ["%0", "%1", "%25", "%2e", "%2f", "%5c"];

/// Neither a method that a rule can allow nor a path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is neither a method that a rule can allow nor a path: 'GET,POST https://HOST/PATH/*', without \
     '..', '//', a query, or escapes of them"
)]
pub struct RequestRuleError(String);

/// What a rule allows of a host's requests.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RequestRule {
    /// In capitals; all if empty. `WEBSOCKET` is a `GET` that asks for one.
    methods: Vec<String>,
    /// `*` is any text.
    path: String,
}

impl RequestRule {
    pub(super) fn new(methods: &str, path: &str) -> Result<Self, RequestRuleError> {
        let refuse = |text: &str| RequestRuleError(text.escape_debug().to_string());
        let is_method = |method: &&str| {
            let is_letter = |byte: u8| byte.is_ascii_uppercase() || byte == b'-';
            !method.is_empty() && method.bytes().all(is_letter) && !NEVER.contains(method)
        };
        let methods: Vec<&str> = match methods {
            "*" => Vec::new(),
            methods => methods.split(',').collect(),
        };
        if let Some(method) = methods.iter().find(|method| !is_method(method)) {
            return Err(refuse(method));
        }
        let path = if path.is_empty() { ANY } else { path };
        if !is_plain(path) {
            return Err(refuse(path));
        }
        let methods = methods.into_iter().map(str::to_owned).collect();
        Ok(Self { methods, path: path.to_owned() })
    }

    /// The narrowest rule for a request; `None` if there is none that means it alone.
    pub(super) fn of(method: &str, path: &str) -> Option<Self> {
        // A shell would read a quote; a star is any text.
        let is_one = !path.contains(['*', '\'']) && method != "*" && !method.contains(',');
        Self::new(method, path).ok().filter(|_| is_one && !path.is_empty())
    }

    pub(super) fn allows(&self, method: &str, path: &str) -> bool {
        self.has_method(method) && (self.path == ANY || (is_plain(path) && self.matches(path)))
    }

    /// Whether it allows everything that `other` allows.
    pub(super) fn covers(&self, other: &Self) -> bool {
        let methods = match other.methods.is_empty() {
            true => self.methods.is_empty(),
            false => other.methods.iter().all(|method| self.has_method(method)),
        };
        // Its own stars match those of the other.
        methods && self.matches(&other.path)
    }

    fn has_method(&self, method: &str) -> bool {
        self.methods.is_empty() || self.methods.iter().any(|known| known == method)
    }

    fn matches(&self, path: &str) -> bool {
        wildcard::matches(&self.path, path, |_| true)
    }

    pub(super) fn methods(&self) -> String {
        if self.methods.is_empty() { "*".to_owned() } else { self.methods.join(",") }
    }
}

impl fmt::Display for RequestRule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.path)
    }
}

/// Whether every server reads the path in the same way.
pub(super) fn is_plain(path: &str) -> bool {
    let is_allowed =
        |byte: u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@/%".contains(&byte);
    // Also `..;x`, which some servers read as `..`.
    let is_dots = |part: &str| {
        part.starts_with("..")
            || part.strip_prefix('.').is_some_and(|it| it.is_empty() || it.starts_with(';'))
    };
    let lower = path.to_ascii_lowercase();
    path.starts_with('/')
        && path.bytes().all(is_allowed)
        && !path.contains("//")
        && !path.split('/').any(is_dots)
        && !ESCAPES.iter().any(|escape| lower.contains(escape))
        // What is overlong, and would be another path for some, is no UTF-8.
        && decode_percent(path).is_some_and(|bytes| str::from_utf8(&bytes).is_ok())
}

#[cfg(test)]
mod tests {
    use crate::hosts::{AllowRule, Allowlist, Target};

    fn list(rules: &[&str]) -> Allowlist {
        rules.iter().map(|rule| rule.parse().unwrap()).collect()
    }

    fn target(host: &str, port: u16) -> Target {
        Target { host: host.parse().unwrap(), port }
    }

    #[test]
    fn a_rule_for_requests_is_methods_and_a_url() {
        for (text, shown) in [
            ("GET https://Api.Example/repos/*", "GET https://api.example/repos/*"),
            ("GET,POST https://api.example:443/a", "GET,POST https://api.example/a"),
            ("* https://api.example", "* https://api.example/*"),
            ("PUT https://*.example:8443/", "PUT https://*.example:8443/"),
            ("WEBSOCKET https://api.example/live", "WEBSOCKET https://api.example/live"),
        ] {
            let rule: AllowRule = text.parse().unwrap();
            assert_eq!(rule.to_string(), shown);
            assert_eq!(shown.parse(), Ok(rule));
        }
        for (text, words) in [
            ("get https://api.example/", "'get'"),
            ("TRACE https://api.example/", "'TRACE'"),
            ("CONNECT https://api.example/", "'CONNECT'"),
            ("GET, https://api.example/", "''"),
            (" https://api.example/", "''"),
            ("GET https://api.example/a/../b", "'/a/../b'"),
            ("GET https://api.example/a?b", "'/a?b'"),
            ("GET https://api.example/a b", "'/a b'"),
            ("GET https://192.0.2.7/", "the name of a host"),
            ("GET https://localhost/", "loopback"),
            ("GET https://user@api.example/", "a URL"),
            ("GET https:///a", "neither"),
            ("GET http://api.example/", "a URL"),
        ] {
            let error = text.parse::<AllowRule>().unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn a_request_is_allowed_by_method_and_path_as_it_is_sent() {
        let rules = list(&[
            "GET https://api.example/repos/*",
            "POST https://api.example/repos/*/issues",
            "DELETE https://api.example/exactly",
            "* https://all.example",
            "plain.example",
            "PUT https://plain.example/x",
        ]);
        for (host, method, path, expected) in [
            ("api.example", "GET", "/repos/a/b", true),
            ("api.example", "GET", "/repos/", true),
            ("api.example", "GET", "/repos", false),
            ("api.example", "GET", "/Repos/a", false),
            ("api.example", "get", "/repos/a", false),
            ("api.example", "HEAD", "/repos/a", false),
            ("api.example", "POST", "/repos/a/b/issues", true),
            ("api.example", "POST", "/repos/a/issues/1", false),
            ("api.example", "DELETE", "/exactly", true),
            ("api.example", "DELETE", "/exactly/", false),
            ("api.example", "GET", "/repos/../admin", false),
            ("api.example", "GET", "/repos/..", false),
            ("api.example", "GET", "/repos/..;/admin", false),
            ("api.example", "GET", "/repos/.;/admin", false),
            ("api.example", "GET", "/repos/./admin", false),
            ("api.example", "GET", "/repos//admin", false),
            ("api.example", "GET", "//repos/a", false),
            ("api.example", "GET", "/repos/%2e%2e/admin", false),
            ("api.example", "GET", "/repos/%2E%2E/admin", false),
            ("api.example", "GET", "/repos/..%2fadmin", false),
            ("api.example", "GET", "/repos/a%2Fb", false),
            ("api.example", "GET", "/repos/%5c..", false),
            ("api.example", "GET", "/repos\\..\\admin", false),
            ("api.example", "GET", "/repos/%252e", false),
            ("api.example", "GET", "/repos/%0d%0aX:", false),
            ("api.example", "GET", "/repos/%c0%ae", false),
            ("api.example", "GET", "/repos/%%32%65", false),
            ("api.example", "GET", "/repos/%u002e", false),
            ("api.example", "GET", "/repos/a%", false),
            ("api.example", "GET", "/repos/%2", false),
            ("api.example", "GET", "/repos/%+2", false),
            ("api.example", "GET", "/repos/%e0%80%ae", false),
            ("api.example", "GET", "/repos/%f0%80%80%ae", false),
            ("api.example", "GET", "/repos/%E4", false),
            ("api.example", "GET", "/repos/%C3%A4", true),
            ("api.example", "GET", "/repos/\u{e4}", false),
            ("api.example", "GET", "/repos/%20a.b", true),
            // Where all paths are allowed, it does not matter which one it is.
            ("all.example", "PATCH", "/a/../%2f", true),
            ("plain.example", "DELETE", "/a//b", true),
        ] {
            let found = rules.allows_request(&target(host, 443), method, path);
            assert_eq!(found, expected, "{method} {host} {path}");
        }
        assert!(rules.allows(&target("api.example", 443)));
        assert!(!rules.allows(&target("api.example", 80)));
        assert!(rules.has_request_rules(&target("plain.example", 443)));
        assert!(!rules.has_request_rules(&target("plain.example", 80)));
    }

    #[test]
    fn a_rule_for_requests_covers_no_more_than_it_allows() {
        let rules = list(&["GET,HEAD https://a.example/x/*", "b.example"]);
        for (rule, expected) in [
            ("GET https://a.example/x/*", true),
            ("HEAD,GET https://a.example/x/y*z", true),
            ("GET https://a.example/x*", false),
            ("POST https://a.example/x/y", false),
            ("* https://a.example/x/y", false),
            ("a.example:443", false),
            ("* https://b.example", true),
            ("* https://b.example:8443", false),
        ] {
            assert_eq!(rules.covers(&rule.parse().unwrap()), expected, "{rule}");
        }
    }

    #[test]
    fn the_rule_for_a_refused_request_means_that_request_alone() {
        let rule = |method, path| {
            target("api.example", 443).request_rule(method, path).map(|it| it.to_string())
        };
        assert_eq!(rule("GET", "/a/b").as_deref(), Some("GET https://api.example/a/b"));
        for (method, path) in [
            ("*", "/a"),
            ("GET,POST", "/a"),
            ("GET", "/*"),
            ("GET", "/';x;'"),
            ("GET", "/a/../b"),
            ("TRACE", "/"),
        ] {
            assert_eq!(rule(method, path), None, "{method} {path}");
        }
    }
}
