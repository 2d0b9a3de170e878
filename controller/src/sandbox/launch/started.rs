//! From a running container to a sandbox: verifies the agent and its mounts, and sends it its
//! limits and policy.

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use sandbox_api::{SandboxSpec, StartKind};
use sandbox_dirfd::Identity;
use sandbox_engine::{EngineError, ExitEvidence};
use sandbox_protocol::argv::EXIT_UNCONFINED;
use sandbox_protocol::message::{Call, Confinement, Hello, HelloReply, MountIdentity};
use sandbox_protocol::{ErrorKind, PROTOCOL_VERSION};
use tokio::sync::Semaphore;

use super::{Created, disk_reserve};
use crate::Sandbox;
use crate::clock::Clock;
use crate::engine_call::step;
use crate::error::Error;
use crate::io_dir::IoDir;
use crate::process::ProcessTable;
use crate::sandbox::confinement;
use crate::sandbox::idle::Activity;
use crate::sandbox::inner::{Inner, LaunchInfo, exited, how_it_ended};
use crate::sandbox::plan::Plan;
use crate::sandbox::stats::CpuSample;
use crate::step::Step;
use sandbox_session::{CallError, ConnectHandler, Session, SessionEnd};

/// A running container, and the session with its agent.
pub(super) struct Started {
    session: Session,
    created: Created,
}

/// A sandbox that is not configured yet: its agent is confined, and its mounts are verified.
pub(super) struct Ready {
    started: Started,
    confinement: Confinement,
    is_our_kernel: bool,
}

impl Created {
    pub(super) async fn start(self) -> Result<Started, Error> {
        let attached = step(Step::Attach, self.container.attach()).await?;
        step(Step::Start, self.container.start()).await?;
        let gate = self.egress.clone().map(|egress| egress as Arc<dyn ConnectHandler>);
        let session = Session::start(attached, gate).map_err(|error| Error::StartFailed {
            detail: format!("cannot start the thread of its heartbeats: {error}"),
        })?;
        Ok(Started { session, created: self })
    }
}

impl Started {
    pub(super) async fn greet(self) -> Result<Ready, Error> {
        let reply = self.hello(None).await?;
        let shared = &self.created.shared;
        let is_our_kernel = reply.boot_id.trim() == shared.boot_id;
        let kernel = is_our_kernel.then(confinement::kernel_landlock).flatten();
        confinement::check(shared.confinement, &reply.confinement, kernel)?;
        self.prove_mounts(&reply, is_our_kernel).await?;
        if let Some(io_dir) = &self.created.io_dir {
            io_dir.keep_image()?;
        }
        Ok(Ready { started: self, confinement: reply.confinement, is_our_kernel })
    }

    async fn hello(&self, nonce: Option<String>) -> Result<HelloReply, Error> {
        let hello = Hello { protocol: PROTOCOL_VERSION, nonce };
        let reply = self.call(Step::Hello, hello).await?;
        if reply.protocol != PROTOCOL_VERSION {
            let reason = format!(
                "it speaks version {} of the protocol, not {PROTOCOL_VERSION}",
                reply.protocol
            );
            return Err(Error::AgentMismatch { reason });
        }
        Ok(reply)
    }

    /// Sends one request of the launch, within the time limit of its step.
    async fn call<C: Call>(&self, step: Step, request: C) -> Result<C::Reply, Error> {
        let after = step.time_limit();
        let since = tokio::time::Instant::now();
        let reply = tokio::time::timeout(after, self.session.call(request)).await;
        tracing::debug!(took = ?since.elapsed(), "{step}");
        match reply {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(CallError::Refused(error))) if error.kind() == ErrorKind::Image => {
                Err(Error::AgentMismatch { reason: error.message })
            }
            Ok(Err(CallError::Over)) => Err(self.start_failed().await),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(Error::Engine { step, source: EngineError::TimedOut { after } }),
        }
    }

    /// Why the agent ended before it replied.
    async fn start_failed(&self) -> Error {
        if let Some(SessionEnd::Breach(detail)) = self.session.end() {
            return Error::StartFailed {
                detail: format!("the agent broke the protocol: {detail}"),
            };
        }
        let exit = match exited(&*self.created.container).await {
            Ok(exit) => exit,
            Err(error) => return error,
        };
        let how = match exit {
            Some(ExitEvidence { code: Some(code), oom_killed, .. })
                if code == i64::from(EXIT_UNCONFINED) && oom_killed != Some(true) =>
            {
                return Error::Unconfined { detail: self.session.stderr() };
            }
            Some(exit) => how_it_ended(&exit),
            None => "the agent ended".to_owned(),
        };
        let detail = match self.session.stderr() {
            stderr if stderr.is_empty() => how,
            stderr => format!("{how}: {stderr}"),
        };
        Error::StartFailed { detail }
    }

    /// Verifies, before any guest code runs, that the agent sees what was opened.
    async fn prove_mounts(&self, reply: &HelloReply, is_our_kernel: bool) -> Result<(), Error> {
        let Created { plan, io_dir, identities, .. } = &self.created;
        let reported: Vec<&str> = reply.mounts.iter().map(|mount| mount.path.as_str()).collect();
        let asked: Vec<String> =
            plan.args.mounts.iter().map(|mount| mount.path.to_string()).collect();
        if reported != asked {
            return Err(Error::StartFailed { detail: "the agent names other mounts".to_owned() });
        }
        let is_io = |mount: &MountIdentity| {
            plan.io.as_ref().is_some_and(|path| path.to_string() == mount.path)
        };
        let identity = |seen: &MountIdentity| Identity { dev: seen.dev, ino: seen.ino };
        let overlay = io_dir.as_ref().filter(|io_dir| io_dir.lower().is_some());
        if is_our_kernel {
            // Every mount must be the file that was opened: a path may lead elsewhere by now. The
            // identity of an overlay is unknown if the engine mounts it.
            let other = reply.mounts.iter().zip(identities).find(|(seen, opened)| {
                identity(seen) != **opened && !(overlay.is_some() && is_io(seen))
            });
            let shown = overlay.zip(reply.mounts.iter().find(|seen| is_io(seen)));
            let is_ours = || shown.is_some_and(|(io_dir, seen)| io_dir.has_mounted(identity(seen)));
            match (other, io_dir) {
                (None, _) if overlay.is_some() && !is_ours() => {}
                (None, _) => return Ok(()),
                (Some((seen, _)), Some(io_dir)) if is_io(seen) => {
                    return Err(Error::IoDirElsewhere { path: io_dir.path().to_owned() });
                }
                (Some((seen, _)), _) => {
                    let detail = format!("the engine sees something else at {}", seen.path);
                    return Err(Error::StartFailed { detail });
                }
            }
        }
        // On another kernel the device and inode numbers prove nothing. The inputs' paths exist
        // there, or the container could not have been created; the io dir can be verified.
        let Some(io_dir) = io_dir else { return Ok(()) };
        let reply = self.prove_by_nonce(io_dir).await?;
        let seen = reply.mounts.iter().find(|seen| is_io(seen));
        if let (Some(overlay), Some(seen)) = (overlay, seen) {
            let elsewhere = || Error::IoDirElsewhere { path: io_dir.path().to_owned() };
            let init = self.created.container.init_pid().await.ok_or_else(elsewhere)?;
            let opened = overlay.open_view(init, &seen.path, identity(seen));
            opened.map_err(|_| elsewhere())?;
        }
        Ok(())
    }

    /// Verifies that the agent can read what is written into the io dir.
    async fn prove_by_nonce(&self, io_dir: &IoDir) -> Result<HelloReply, Error> {
        let nonce = io_dir.write_nonce().map_err(|error| Error::IoDir {
            path: io_dir.path().to_owned(),
            reason: format!("cannot prove that the engine sees it: {error}"),
        })?;
        match self.hello(Some(nonce.name.clone())).await {
            Ok(reply) if reply.nonce.as_ref() == Some(&nonce.content) => Ok(reply),
            Ok(_) | Err(Error::Refused { .. }) => {
                Err(Error::IoDirElsewhere { path: io_dir.path().to_owned() })
            }
            Err(error) => Err(error),
        }
    }
}

impl Ready {
    /// Completes when its agent is gone.
    pub(super) fn ended(&self) -> impl Future<Output = SessionEnd> + Send + use<> {
        self.started.session.subscribe_end()
    }

    /// Turns it into the sandbox of another spec, whose container and agent are the same. `plan` is
    /// that spec's.
    pub(super) fn assign(&mut self, spec: SandboxSpec, mut plan: Plan) {
        let created = &mut self.started.created;
        let (shared, io_dir) = (&created.shared, &created.io_dir);
        if let Some(io_dir) = io_dir {
            plan.configure.limits.disk_reserve_bytes = disk_reserve(shared, io_dir);
        }
        if spec.io_dir.is_some() {
            shared.instance.state.stages.recover();
        }
        (created.spec, created.plan) = (spec, plan);
    }

    /// Checks that nothing was mounted meanwhile below its mounts.
    pub(super) fn check_mounts(&self) -> Result<(), Error> {
        self.started.created.mounts.check_again()
    }

    /// Pings the agent.
    pub(super) async fn ping(&self) -> Result<(), Error> {
        self.started.hello(None).await.map(|_| ())
    }

    pub(super) fn id(&self) -> &str {
        &self.started.created.id
    }

    /// Sends the agent its limits and policy, and starts the sandbox's lifetime.
    pub(super) async fn configure(
        self,
        start: StartKind,
        began: Instant,
    ) -> Result<Sandbox, Error> {
        let Self { mut started, confinement, is_our_kernel } = self;
        let Created { spec, egress, plan, shared, .. } = &mut started.created;
        if let Some(egress) = egress {
            let (hosts, inject) = (spec.hosts(), std::mem::take(&mut spec.inject));
            let ca = egress.intercept(&hosts, &inject, shared.ca_file.as_deref())?;
            plan.configure.ca = ca.map(Box::new);
            egress.set_rules(hosts, (&spec.limits).into());
        }
        let configure = started.created.plan.configure.clone();
        started.call(Step::Configure, configure).await?;
        let Started { session, created } = started;
        let Created { container, spec, plan, mounts, egress, removal, .. } = created;
        let inner = Inner {
            id: created.id,
            launch: LaunchInfo { start, took: began.elapsed() },
            container,
            limits: spec.limits,
            lifespan: spec.lifespan,
            confinement,
            is_our_kernel,
            session,
            run_lock: Arc::new(Semaphore::new(1)),
            end_cause: Arc::default(),
            activity: Activity::new(),
            clock: Clock::default(),
            paused: tokio::sync::Mutex::default(),
            keeps: spec.processes,
            processes: ProcessTable::default(),
            ports: spec.ports,
            has_timer: Arc::default(),
            is_killed: AtomicBool::new(false),
            is_closing: AtomicBool::new(false),
            is_stopped: AtomicBool::new(false),
            runs: AtomicU64::new(0),
            cpu_reported: AtomicU64::new(0),
            cpu_counted: AtomicU64::new(0),
            cpu_sample: CpuSample::new(),
            io_dir: created.io_dir,
            supports_exec: spec.root.supports_exec(),
            write_baseline: OnceLock::new(),
            image_workdir: created.image_workdir,
            image_id: created.image_id,
            named: created.named,
            home: plan.args.home.clone(),
            workdir: plan.args.base(),
            io_mount: plan.io,
            path_map: created.path_map,
            default_encoding: spec.default_encoding,
            user_mapping: created.user_mapping,
            files: spec.files,
            policy: egress.as_ref().map(|egress| egress.policy.clone()).unwrap_or_default(),
            redactions: egress.map(|egress| egress.redactions.clone()).unwrap_or_default(),
            mount_looks: mounts.looks(),
            removal,
            shared: created.shared,
        };
        inner.guard(spec.lifetime, spec.idle_limit, mounts);
        Ok(Sandbox { inner: Arc::new(inner) })
    }
}
