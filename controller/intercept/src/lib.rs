//! TLS connections of programs that the controller terminates: those to hosts for which there are secrets to
//! add, or rules about single requests. It holds both ends: that of the program, with a certificate of the
//! [sandbox's own authority](Interceptor::certificate), and that of the host, whose certificate is verified.
//!
//! Each request is checked, changed (`request`) and sent; secrets are found
//! (`forms`) and replaced (`redact`) in each answer. The caller connects, and counts bytes.

#![forbid(unsafe_code)]

mod authority;
mod forms;
mod redact;
mod request;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::path::Path;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};

use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self as client, SendRequest};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1 as server;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use sandbox_api::Injection;
use sandbox_api::hosts::{Allowlist, Target};
use sandbox_api::injection::CA_FILES;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::rustls::crypto::{CryptoProvider, aws_lc_rs};
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::server::Acceptor;
use tokio_rustls::rustls::{self, ClientConfig, InvalidMessage, RootCertStore};
use tokio_rustls::{LazyConfigAcceptor, TlsConnector};

use self::authority::Authority;
use self::forms::Forms;
use self::redact::Body;
use self::request::{MAX_HEAD, Refusal, Upgrade};

const ALPN: &[u8] = b"http/1.1";
/// The most header lines of a head.
const MAX_HEADERS: usize = 128;

/// Connections cannot be terminated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// There is nothing to verify hosts with.
    #[error("no certificate of an authority is found{0}")]
    Roots(String),
    /// A certificate cannot be made.
    #[error("cannot make a certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    /// TLS does not accept it.
    #[error("cannot set up TLS: {0}")]
    Tls(#[from] rustls::Error),
}

/// A connection ended before its first request.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The program asks for the certificate of another host, or for none.
    #[error("the TLS server name is not the host's")]
    Name,
    /// The program's first byte begins no handshake.
    #[error("the program spoke no TLS: use https://")]
    NoTls,
    /// The handshake with the program failed.
    #[error(
        "the TLS handshake of the program failed, which may not trust the sandbox's certificates: {0}"
    )]
    Client(io::Error),
    /// There is no certificate for it.
    #[error(transparent)]
    Setup(#[from] SetupError),
}

/// What became of a request, without secrets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exchange {
    /// The method, or `WEBSOCKET`.
    pub method: String,
    /// The path without the query.
    pub path: String,
    /// The status of the answer.
    pub status: u16,
    /// Why it was refused here, if it was.
    pub refused: Option<String>,
    /// The rule that would allow it, if it was refused for lack of one.
    pub rule: Option<String>,
    /// Whether it was refused because the host cannot be spoken with.
    pub is_unreached: bool,
}

/// The connections of one sandbox that are terminated.
pub struct Interceptor {
    authority: Authority,
    client: Arc<ClientConfig>,
    list: Allowlist,
    injections: Vec<Injection>,
    forms: Arc<Forms>,
}

/// What the requests of a connection share.
struct Link<'a> {
    target: &'a Target,
    /// The way to the host, or why there is none.
    sender: Result<tokio::sync::Mutex<SendRequest<Incoming>>, String>,
    /// Both sides of a connection that becomes a WebSocket.
    upgraded: Mutex<Option<[OnUpgrade; 2]>>,
    record: &'a (dyn Fn(&Exchange) + Send + Sync),
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

/// The certificates by which hosts are verified: those of the file, or of this machine.
fn roots(file: Option<&Path>) -> Result<RootCertStore, SetupError> {
    let known = || CA_FILES.iter().map(Path::new).find(|path| path.exists());
    let Some(file) = file.or_else(known) else { return Err(SetupError::Roots(String::new())) };
    let found = rustls_native_certs::load_certs_from_paths(Some(file), None);
    let mut roots = RootCertStore::empty();
    if roots.add_parsable_certificates(found.certs).0 > 0 {
        return Ok(roots);
    }
    let why = found.errors.first().map(|error| format!(": {error}")).unwrap_or_default();
    Err(SetupError::Roots(format!(" in {}{why}", file.display())))
}

impl Interceptor {
    /// One for these rules and secrets, which verifies hosts by the certificates in `ca_file`, or by those of
    /// this machine; `None` if nothing is to be terminated. It reads the file.
    ///
    /// # Errors
    ///
    /// [`SetupError`].
    pub fn new(
        list: &Allowlist,
        injections: &[Injection],
        ca_file: Option<&Path>,
    ) -> Result<Option<Self>, SetupError> {
        match injections.is_empty() && list.request_hosts().next().is_none() {
            true => Ok(None),
            false => Self::with_roots(list, injections, roots(ca_file)?).map(Some),
        }
    }

    fn with_roots(
        list: &Allowlist,
        injections: &[Injection],
        roots: RootCertStore,
    ) -> Result<Self, SetupError> {
        let injected = injections.iter().map(|it| it.rule.target.host.to_string());
        let mut client = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        client.alpn_protocols = vec![ALPN.to_vec()];
        Ok(Self {
            authority: Authority::new(injected.chain(list.request_hosts()))?,
            client: Arc::new(client),
            list: Injection::add_hosts(injections, list),
            injections: injections.to_vec(),
            forms: Arc::new(Forms::new(injections)),
        })
    }

    /// The certificate of the authority, as PEM.
    pub fn certificate(&self) -> String {
        self.authority.pem()
    }

    /// Whether connections to this target are terminated.
    pub fn terminates(&self, target: &Target) -> bool {
        self.list.has_request_rules(target)
            || self.injections.iter().any(|it| it.rule.target == *target)
    }

    /// Serves a connection of a program, over one to the host of `target`, until one of both ends. `record`
    /// gets each request when its answer begins.
    ///
    /// # Errors
    ///
    /// [`Failure`]; what fails later ends the connection.
    pub async fn serve<C, U>(
        &self,
        client: C,
        upstream: U,
        target: &Target,
        record: &(dyn Fn(&Exchange) + Send + Sync),
    ) -> Result<(), Failure>
    where
        C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        U: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let host = target.host.to_string();
        let hello = match LazyConfigAcceptor::new(Acceptor::default(), client).await {
            Ok(hello) => hello,
            // It has tried another address first, or only asks whether something listens.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) if is_no_tls(&error) => return Err(Failure::NoTls),
            Err(error) => return Err(Failure::Client(error)),
        };
        let named = hello.client_hello().server_name().map(str::to_owned);
        if !named.is_some_and(|name| name.eq_ignore_ascii_case(&host)) {
            return Err(Failure::Name);
        }
        let program = hello.into_stream(self.authority.server(&host)?);
        let program = program.await.map_err(Failure::Client)?;
        let name = ServerName::try_from(host.clone());
        let name = name.map_err(|_| Failure::Name)?;
        let mut builder = client::Builder::new();
        builder.max_headers(MAX_HEADERS).max_buf_size(MAX_HEAD);
        let connected = async {
            let stream = TlsConnector::from(self.client.clone()).connect(name, upstream).await?;
            builder.handshake(TokioIo::new(stream)).await.map_err(io::Error::other)
        };
        let (sender, connection) = match connected.await {
            Ok((sender, connection)) => (Ok(tokio::sync::Mutex::new(sender)), Some(connection)),
            Err(error) => {
                (Err(format!("cannot speak TLS with {target}: {}", in_words(&error))), None)
            }
        };
        let link = Link { target, sender, upgraded: Mutex::default(), record };
        let service = service_fn(|request| self.exchange(request, &link));
        let mut builder = server::Builder::new();
        builder.max_headers(MAX_HEADERS).max_buf_size(MAX_HEAD).auto_date_header(false);
        builder.header_read_timeout(None);
        let mut served =
            pin!(builder.serve_connection(TokioIo::new(program), service).with_upgrades());
        let mut is_connected = connection.is_some();
        let mut connection = pin!(async {
            match connection {
                Some(connection) => _ = connection.with_upgrades().await,
                None => std::future::pending().await,
            }
        });
        loop {
            tokio::select! {
                // What is wrong with a request was answered.
                _ended = &mut served => break,
                () = &mut connection, if is_connected => {
                    is_connected = false;
                    served.as_mut().graceful_shutdown();
                }
            }
        }
        let upgraded = link.upgraded.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some([program, host]) = upgraded {
            if is_connected {
                connection.await;
            }
            if let (Ok(program), Ok(host)) = (program.await, host.await) {
                let (mut program, mut host) = (TokioIo::new(program), TokioIo::new(host));
                match self.injections.is_empty() {
                    true => {
                        _ = tokio::io::copy_bidirectional(&mut program, &mut host).await;
                    }
                    false => redact::messages(program, host, &self.forms).await,
                }
            }
        }
        Ok(())
    }

    async fn exchange(
        &self,
        request: Request<Incoming>,
        link: &Link<'_>,
    ) -> Result<Response<Body>, Infallible> {
        let (parts, body) = request.into_parts();
        let (method, path) = (request::method(&parts).to_owned(), parts.uri.path().to_owned());
        let result = self.forward(Request::from_parts(parts, body), link).await;
        let refused = result.as_ref().err().map(|refusal| refusal.words.clone());
        let rule = result.as_ref().err().and_then(|refusal| refusal.rule.clone());
        let is_unreached = result.as_ref().is_err_and(|refusal| refusal.is_unreached);
        let response = result.unwrap_or_else(refusal);
        let status = response.status().as_u16();
        let mut exchange = Exchange { method, path, status, refused, rule, is_unreached };
        let Exchange { path, refused, .. } = &mut exchange;
        std::iter::once(path).chain(refused).for_each(|text| self.forms.text(text));
        (link.record)(&exchange);
        Ok(response)
    }

    async fn forward(
        &self,
        mut request: Request<Incoming>,
        link: &Link<'_>,
    ) -> Result<Response<Body>, Refusal> {
        let program = hyper::upgrade::on(&mut request);
        let (mut parts, body) = request.into_parts();
        let upgrade = request::check(&parts, link.target, &self.list)?;
        request::prepare(&mut parts, link.target, upgrade, &self.injections)?;
        let failed = |words: String| {
            let refusal = Refusal::new(StatusCode::BAD_GATEWAY, words);
            Refusal { is_unreached: true, ..refusal }
        };
        let sender = link.sender.as_ref().map_err(|words| failed(words.clone()))?;
        let sent = {
            let mut sender = sender.lock().await;
            match poll_fn(|context| sender.poll_ready(context)).await {
                Ok(()) => sender.send_request(Request::from_parts(parts, body)).await,
                Err(error) => Err(error),
            }
        };
        // Never the source of an error, which may have a part of an answer.
        let mut response =
            sent.map_err(|error| failed(format!("{} gave no answer: {error}", link.target)))?;
        let host = hyper::upgrade::on(&mut response);
        let (mut parts, body) = response.into_parts();
        request::answer(&mut parts, upgrade, &self.injections)?;
        redact::headers(&mut parts.headers, &self.forms);
        if parts.status == StatusCode::SWITCHING_PROTOCOLS && upgrade == Upgrade::WebSocket {
            let mut upgraded = link.upgraded.lock().unwrap_or_else(PoisonError::into_inner);
            *upgraded = Some([program, host]);
        }
        Ok(Response::from_parts(parts, redact::body(body, self.forms.clone())))
    }
}

/// Whether a handshake failed at its first byte.
fn is_no_tls(error: &io::Error) -> bool {
    let rustls = error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
    let no_tls = rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType);
    rustls.is_some_and(|error| *error == no_tls)
}

/// The error of a connection to a host, with what to do where its own text has none of it.
fn in_words(error: &io::Error) -> String {
    let text = error.to_string();
    if text.contains("CaUsedAsEndEntity") {
        "the certificate is an authority's own (CA:TRUE): a server needs one of its own".to_owned()
    } else if text.contains("UnknownIssuer") {
        "no known authority signed its certificate (network.ca_file names yours)".to_owned()
    } else {
        text
    }
}

/// The answer to a request that is refused.
fn refusal(refusal: Refusal) -> Response<Body> {
    let text = format!("sandboxctl: {}\n", refusal.words);
    let body = Full::from(text).map_err(|never: Infallible| match never {}).boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = refusal.status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}
