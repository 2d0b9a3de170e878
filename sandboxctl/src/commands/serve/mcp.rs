//! The MCP tools at `/mcp`, with the same checks and quotas as the API.

use std::sync::Arc;

use axum::extract::Request;
use axum::middleware::map_request;
use sandbox_api::ByteSize;
use sandbox_api::service::BySubject;
use sandbox_dirfd::create_private_dir;
use sandbox_http::{Caller, Mount, MountAccess, Scope, instance};
use sandbox_mcp::{Access, Audience, HttpOptions, HttpServer, Instance, Settings};
use sandbox_service::{HostPolicy, IoPosture, Service, ServiceConfig};
use sandbox_upstream::Upstreams;

use crate::commands::mcp::{output_bytes, with_default_protection};
use crate::config::{Key, Settings as Configured};
use crate::error::Error;

/// What its sandboxes are, in the posture of the service, what they may call, and how much output a call
/// gives.
///
/// # Errors
///
/// If there is no directory for its files, or that is too much output.
pub fn options(
    service: &ServiceConfig,
    configured: &Configured,
    upstreams: BySubject<Upstreams>,
) -> Result<HttpOptions, Error> {
    let mut sandbox = service.sandbox.clone().root(service.default_root.clone());
    if let (true, HostPolicy::Listed(hosts)) = (sandbox.supports_exec(), &service.hosts) {
        sandbox = sandbox.allow(hosts.clone());
    }
    let io_dirs = match service.io {
        IoPosture::Off => None,
        // Each subject has files of its own: it would read those of others otherwise.
        IoPosture::PrivatePerExecution | IoPosture::Shared(_) => {
            let dir = service.subject_dirs();
            create_private_dir(&dir)
                .map_err(|source| Error::System { what: dir.display().to_string(), source })?;
            Some(dir)
        }
    };
    let bounds = service.bounds(&sandbox.root);
    let settings = Settings {
        sandbox: with_default_protection(sandbox).limits(bounds.limits),
        timeout_ceiling: bounds.ceiling.0.timeout,
        access: Access::ReadWrite,
        audience: Audience::Remote,
        has_previews: service.previews.is_some(),
        tools: None,
        output_bytes: output_bytes(configured)?,
        upstreams,
        expose: Vec::new(),
        elicitation: configured.is_on(Key::ServerAskDestructive).then(Arc::default),
    };
    Ok(HttpOptions { settings, io_dirs })
}

/// The server, and where it is mounted. The subject of a caller is that of its workspace.
pub fn mount(service: &Service, options: HttpOptions) -> (HttpServer, Mount) {
    let server = HttpServer::new(service.clone(), options);
    let of_subject = map_request(|mut request: Request| async move {
        let subject = request.extensions().get::<Caller>().map(|caller| caller.subject.clone());
        if let Some(subject) = subject {
            request.extensions_mut().insert(subject);
        }
        if let Some(instance) = instance() {
            request.extensions_mut().insert(Instance(instance));
        }
        request
    });
    let service = server.router().route_layer(of_subject);
    // It bounds them by itself, and answers what is too long with the id of the request.
    let max_request = ByteSize::b(u64::MAX);
    let mount =
        Mount { path: "/mcp", service, access: MountAccess::Scope(Scope::Sandboxes), max_request };
    (server, mount)
}
