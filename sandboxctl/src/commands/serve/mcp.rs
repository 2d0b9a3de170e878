//! The tools of agents at `/mcp`, behind the same checks as the API.

use std::fs::DirBuilder;
use std::num::NonZeroU32;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use axum::extract::Request;
use axum::middleware::map_request;
use sandbox_api::DEFAULT_PROTECTED;
use sandbox_controller::Controller;
use sandbox_http::{Caller, Mount, Scope};
use sandbox_mcp::{Access, Audience, DEFAULT_CONCURRENCY, HttpOptions, HttpServer, Settings};
use sandbox_service::{HostPolicy, IoPosture, ServiceConfig};

use crate::error::Error;

/// What its sandboxes are, in the posture of the service.
///
/// # Errors
///
/// If there is no directory for its files.
pub fn options(service: &ServiceConfig) -> Result<HttpOptions, Error> {
    let mut sandbox = service.sandbox.clone().root(service.default_root.clone());
    if let (true, HostPolicy::Listed(hosts)) = (sandbox.supports_exec(), &service.hosts) {
        sandbox = sandbox.allow(hosts.clone());
    }
    let mut protected = sandbox.protected.clone();
    protected.extend(DEFAULT_PROTECTED.iter().map(ToString::to_string));
    protected.sort();
    protected.dedup();
    let io_dirs = match service.io {
        IoPosture::Off => None,
        // Each subject has files of its own: it would read those of others otherwise.
        IoPosture::PrivatePerExecution | IoPosture::Shared(_) => {
            Some(private_dir(service.data_dir.join("mcp"))?)
        }
    };
    let settings = Settings {
        sandbox: sandbox.protected(protected).limits(service.limits),
        timeout_ceiling: service.ceiling.0.timeout,
        access: Access::ReadWrite,
        audience: Audience::Remote,
        tools: None,
        concurrency: NonZeroU32::new(DEFAULT_CONCURRENCY).unwrap_or(NonZeroU32::MIN),
    };
    Ok(HttpOptions { settings, io_dirs })
}

fn private_dir(dir: PathBuf) -> Result<PathBuf, Error> {
    match DirBuilder::new().recursive(true).mode(0o700).create(&dir) {
        Ok(()) => Ok(dir),
        Err(source) => Err(Error::System { what: dir.display().to_string(), source }),
    }
}

/// The server, and where it is mounted. The subject of a caller is that of its workspace.
pub fn mount(controller: Arc<Controller>, options: HttpOptions) -> (HttpServer, Mount) {
    let server = HttpServer::new(controller, options);
    let of_subject = map_request(|mut request: Request| async move {
        let subject = request.extensions().get::<Caller>().map(|caller| caller.subject.clone());
        if let Some(subject) = subject {
            request.extensions_mut().insert(subject);
        }
        request
    });
    let service = server.router().route_layer(of_subject);
    let mount = Mount { path: "/mcp", service, scope: Scope::Sandboxes };
    (server, mount)
}
