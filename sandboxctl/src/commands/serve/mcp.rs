//! The MCP tools at `/mcp`, with the same checks and quotas as the API.

use std::any::Any;
use std::fs::DirBuilder;
use std::num::NonZeroU32;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use axum::extract::Request;
use axum::middleware::map_request;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use sandbox_api::service::Subject;
use sandbox_api::{ByteSize, Failure, Status, Usage};
use sandbox_controller::Controller;
use sandbox_http::{Caller, Mount, Scope};
use sandbox_mcp::{Access, Audience, HttpOptions, HttpServer, Quotas, Settings, Turn};
use sandbox_service::{HostPolicy, IoPosture, Service, ServiceConfig, ServiceError};

use crate::commands::mcp::with_default_protection;
use crate::error::Error;

/// What its sandboxes are, in the posture of the service, and how much output a call gives.
///
/// # Errors
///
/// If there is no directory for its files.
pub fn options(service: &ServiceConfig, output_bytes: usize) -> Result<HttpOptions, Error> {
    let mut sandbox = service.sandbox.clone().root(service.default_root.clone());
    if let (true, HostPolicy::Listed(hosts)) = (sandbox.supports_exec(), &service.hosts) {
        sandbox = sandbox.allow(hosts.clone());
    }
    let io_dirs = match service.io {
        IoPosture::Off => None,
        // Each subject has files of its own: it would read those of others otherwise.
        IoPosture::PrivatePerExecution | IoPosture::Shared(_) => {
            Some(private_dir(service.subject_dirs())?)
        }
    };
    let bounds = service.bounds(&sandbox.root);
    let settings = Settings {
        sandbox: with_default_protection(sandbox).limits(bounds.limits),
        timeout_ceiling: bounds.ceiling.0.timeout,
        access: Access::ReadWrite,
        audience: Audience::Remote,
        tools: None,
        // The service decides how many of them run at a time.
        concurrency: u32::try_from(service.concurrency)
            .ok()
            .and_then(NonZeroU32::new)
            .unwrap_or(NonZeroU32::MIN),
        output_bytes,
    };
    Ok(HttpOptions { settings, io_dirs, quotas: None })
}

fn private_dir(dir: PathBuf) -> Result<PathBuf, Error> {
    match DirBuilder::new().recursive(true).mode(0o700).create(&dir) {
        Ok(()) => Ok(dir),
        Err(source) => Err(Error::System { what: dir.display().to_string(), source }),
    }
}

/// The quotas of the service, for agents.
#[derive(Debug)]
struct ServiceQuotas(Service);

/// A turn of the service.
struct ServiceTurn(sandbox_service::RunPermit);

impl Quotas for ServiceQuotas {
    fn turn<'a>(&'a self, subject: &'a Subject) -> BoxFuture<'a, Result<Box<dyn Turn>, Failure>> {
        async move {
            let turn = self.0.run_permit(subject).await.map_err(|error| refused(&error))?;
            Ok(Box::new(ServiceTurn(turn)) as Box<dyn Turn>)
        }
        .boxed()
    }

    fn check_stored<'a>(&'a self, subject: &'a Subject) -> BoxFuture<'a, Result<(), Failure>> {
        async move { self.0.check_stored(subject).await.map_err(|error| refused(&error)) }.boxed()
    }

    fn sandbox_place(&self, subject: &Subject) -> Result<Box<dyn Any + Send>, Failure> {
        let place = self.0.sandbox_permit(subject).map_err(|error| refused(&error))?;
        Ok(Box::new(place))
    }
}

impl Turn for ServiceTurn {
    fn end(self: Box<Self>, status: Status, used: Usage) -> BoxFuture<'static, ()> {
        async move {
            if let Err(error) = self.0.end(status, used).await {
                tracing::error!(%error, "cannot record usage");
            }
        }
        .boxed()
    }
}

/// Why a subject's call does not run, and when to try again: a tool has no header for that.
fn refused(error: &ServiceError) -> Failure {
    let failure = error.failure();
    let Some(after) = error.retry_after() else { return failure };
    let seconds = after.as_millis().div_ceil(1000).max(1);
    Failure { hint: Some(format!("try again in {seconds} s")), ..failure }
}

/// The server, and where it is mounted. The subject of a caller is that of its workspace.
pub fn mount(
    service: &Service,
    controller: Arc<Controller>,
    options: HttpOptions,
) -> (HttpServer, Mount) {
    let quotas: Arc<dyn Quotas> = Arc::new(ServiceQuotas(service.clone()));
    let options = HttpOptions { quotas: Some(quotas), ..options };
    let server = HttpServer::new(controller, options);
    let of_subject = map_request(|mut request: Request| async move {
        let subject = request.extensions().get::<Caller>().map(|caller| caller.subject.clone());
        if let Some(subject) = subject {
            request.extensions_mut().insert(subject);
        }
        request
    });
    let service = server.router().route_layer(of_subject);
    // It bounds them by itself, and answers what is too long with the id of the request.
    let max_request = ByteSize::b(u64::MAX);
    let mount = Mount { path: "/mcp", service, scope: Scope::Sandboxes, max_request };
    (server, mount)
}
