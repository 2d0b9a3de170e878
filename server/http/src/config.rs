//! Configuration of a server.

use std::time::Duration;

use sandbox_api::ByteSize;

use crate::access::Audit;
use crate::forward::peers::Peers;
use crate::serve::ConnectionLimits;

/// The configuration of a server.
#[derive(Clone)]
pub struct HttpConfig {
    /// How many connections there may be.
    pub connections: ConnectionLimits,
    /// The names that it serves, in addition to `localhost` and addresses.
    pub hosts: Vec<String>,
    /// The origins whose pages may call it, in addition to its own: `https://console.example.org`.
    /// Without any there is no CORS.
    pub origins: Vec<String>,
    /// The most bytes of a request with its inputs.
    pub max_request: ByteSize,
    /// The most bytes of a file that is written to a sandbox.
    pub max_upload: ByteSize,
    /// The bytes that bodies of requests may take in memory, all together, and as many those of
    /// answers; half of them for one subject.
    pub body_memory: ByteSize,
    /// Authenticated requests at one time.
    pub max_requests: usize,
    /// Those of one subject.
    pub max_requests_of_a_subject: usize,
    /// The interval of comments in an idle stream of events, which keep the connection alive.
    pub keep_alive: Duration,
    /// Where clients of the protected resource get their tokens (RFC 9728), if configured.
    pub resource: Option<ResourceMetadata>,
    /// The receiver of each decision about a request.
    pub audit: Option<Audit>,
    /// The other nodes, in a cluster.
    pub peers: Option<Peers>,
    /// Whether callers are authenticated. Without that there is no path of a port: any page could use it.
    pub has_auth: bool,
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            connections: ConnectionLimits::default(),
            hosts: Vec::new(),
            origins: Vec::new(),
            // 32 MiB of inputs in base64, and the rest.
            max_request: ByteSize::b(48 << 20),
            max_upload: ByteSize::b(1 << 30),
            body_memory: ByteSize::b(256 << 20),
            max_requests: 4096,
            max_requests_of_a_subject: 512,
            keep_alive: Duration::from_secs(15),
            resource: None,
            audit: None,
            peers: None,
            has_auth: true,
        }
    }
}

/// What protects the server as a resource of OAuth: RFC 9728.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceMetadata {
    /// The URL of the server as its clients see it, without a path: `https://sandbox.example.org`.
    pub url: String,
    /// The issuers of tokens.
    pub authorization_servers: Vec<String>,
}

impl ResourceMetadata {
    /// Where the metadata are.
    #[must_use]
    pub fn metadata_url(&self) -> String {
        self.metadata_url_of("")
    }

    /// Where those of what is mounted at this path are.
    pub(crate) fn metadata_url_of(&self, path: &str) -> String {
        format!("{}/.well-known/oauth-protected-resource{path}", self.url.trim_end_matches('/'))
    }
}
