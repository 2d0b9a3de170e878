//! What a request is for, by its path and headers. It is decided once, where a request is let in; another node of
//! a cluster gets the decision with it.

use axum::http::{HeaderMap, HeaderName, HeaderValue, Uri};

/// Where it is mounted.
pub(crate) const PATH: &str = "/e2b";
/// Where files are too: in signed URLs SDKs leave out the path of the URL that they were given.
pub(crate) const FILES: &str = "/files";
/// The port of envd, which no sandbox has: this server answers in its place.
pub(crate) const ENVD_PORT: u16 = 49983;

/// As what is decided is written.
const CONTROL: &str = "control";

pub(crate) const SANDBOX_ID: HeaderName = HeaderName::from_static("e2b-sandbox-id");
pub(crate) const SANDBOX_PORT: HeaderName = HeaderName::from_static("e2b-sandbox-port");
pub(crate) const TRAFFIC_TOKEN: HeaderName = HeaderName::from_static("e2b-traffic-access-token");
/// What was decided of a request that was let in; what clients send is overwritten.
const DECIDED: HeaderName = HeaderName::from_static("sandboxctl-e2b-decided");

/// What is asked, and of whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Plane {
    /// The control API.
    Control,
    /// A port of a sandbox; of none that is named, if there is no id.
    Sandbox { id: Option<String>, port: u16 },
}

impl Plane {
    /// Of a request with this path below the mount.
    pub fn of(path: &str, headers: &HeaderMap) -> Self {
        let text = |name: &HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
        // What cannot be the number of a port is one that nothing listens on.
        let port = text(&SANDBOX_PORT).map_or(ENVD_PORT, |port| port.parse().unwrap_or(0));
        match text(&SANDBOX_ID) {
            Some(id) => Self::Sandbox { id: Some(id.to_owned()), port },
            None if is_envd(path) => Self::Sandbox { id: None, port: ENVD_PORT },
            None => Self::Control,
        }
    }
}

/// What was decided of a request that was let in. A request that says none of these goes nowhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decided {
    Control,
    Sandbox {
        id: String,
        port: u16,
        /// Whether it came to the host of this port, which is the origin of what runs there.
        is_own: bool,
    },
}

impl Decided {
    /// Writes it for the handler or the other node, in place of all headers that it was decided by.
    pub fn put(&self, headers: &mut HeaderMap) {
        let text = match self {
            Self::Control => CONTROL.to_owned(),
            Self::Sandbox { id, port, is_own: false } => format!("{port} {id}"),
            Self::Sandbox { id, port, is_own: true } => format!("{port} {id} own"),
        };
        for name in [SANDBOX_ID, SANDBOX_PORT, DECIDED] {
            headers.remove(name);
        }
        if let Ok(text) = HeaderValue::try_from(text) {
            headers.insert(DECIDED, text);
        }
    }

    /// What was said.
    pub fn take(headers: &mut HeaderMap) -> Option<Self> {
        let text = headers.remove(DECIDED)?;
        let text = text.to_str().ok()?;
        if text == CONTROL {
            return Some(Self::Control);
        }
        let mut words = text.split(' ');
        let (port, id) = (words.next()?.parse().ok()?, words.next()?.to_owned());
        Some(Self::Sandbox { id, port, is_own: words.next().is_some() })
    }
}

/// Whether only envd has this path.
fn is_envd(path: &str) -> bool {
    let packages = ["/process.Process/", "/filesystem.Filesystem/"];
    matches!(path, "/health" | "/files" | "/metrics" | "/envs")
        || packages.iter().any(|package| path.starts_with(package))
}

/// The sandbox in a path of the control API.
pub(crate) fn sandbox_in(path: &str) -> Option<String> {
    let rest = path.strip_prefix("/v2").unwrap_or(path).strip_prefix("/sandboxes/")?;
    let id = rest.split('/').next().unwrap_or_default();
    // `metrics` is of several.
    (!matches!(id, "" | "metrics")).then(|| id.to_owned())
}

/// The path below [`PATH`].
pub(crate) fn path_below(uri: &Uri) -> &str {
    let path = uri.path();
    path.strip_prefix(PATH).unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plane(path: &str, headers: &[(HeaderName, &str)]) -> Plane {
        let headers = headers
            .iter()
            .map(|(name, value)| (name.clone(), HeaderValue::from_str(value).unwrap()));
        Plane::of(path_below(&path.parse().unwrap()), &headers.collect())
    }

    #[test]
    fn sandbox_is_named_by_headers_and_envd_is_known_by_its_paths() {
        let sandbox = |id: Option<&str>, port| Plane::Sandbox { id: id.map(str::to_owned), port };
        let id = (SANDBOX_ID, "abc");
        assert_eq!(plane("/e2b/v2/sandboxes", &[]), Plane::Control);
        assert_eq!(plane("/e2b/sandboxes/x/metrics", &[]), Plane::Control);
        let named = std::slice::from_ref(&id);
        assert_eq!(plane("/e2b/v2/sandboxes", named), sandbox(Some("abc"), ENVD_PORT));
        let port = |port| [id.clone(), (SANDBOX_PORT, port)];
        assert_eq!(plane("/e2b/execute", &port("49999")), sandbox(Some("abc"), 49999));
        assert_eq!(plane("/e2b/", &port("x")), sandbox(Some("abc"), 0));
        for path in
            ["/e2b/files?path=a", "/files?path=a", "/e2b/process.Process/Start", "/e2b/health"]
        {
            assert_eq!(plane(path, &[]), sandbox(None, ENVD_PORT), "{path}");
        }
    }

    #[test]
    fn what_was_decided_is_said_once_and_in_place_of_all_else() {
        let sandbox = |is_own| Decided::Sandbox { id: "abc".to_owned(), port: 8080, is_own };
        for decided in [Decided::Control, sandbox(false), sandbox(true)] {
            let mut headers = HeaderMap::new();
            for name in [SANDBOX_ID, SANDBOX_PORT, DECIDED] {
                headers.append(name.clone(), HeaderValue::from_static("1"));
                headers.append(name, HeaderValue::from_static("control"));
            }
            decided.put(&mut headers);
            assert_eq!(headers.len(), 1);
            assert_eq!(Decided::take(&mut headers), Some(decided));
            assert_eq!((headers.len(), Decided::take(&mut headers)), (0, None));
        }
    }

    #[test]
    fn sandbox_of_a_control_request_is_in_both_generations_of_paths() {
        for path in ["/sandboxes/abc", "/v2/sandboxes/abc/connect", "/sandboxes/abc/pause"] {
            assert_eq!(sandbox_in(path).as_deref(), Some("abc"), "{path}");
        }
        for path in
            ["/sandboxes", "/v2/sandboxes", "/sandboxes/", "/sandboxes/metrics", "/templates/abc"]
        {
            assert_eq!(sandbox_in(path), None, "{path}");
        }
    }
}
