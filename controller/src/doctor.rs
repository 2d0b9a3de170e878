//! `doctor`: diagnoses the environment and suggests fixes.

use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use sandbox_api::{
    ByteSize, CommitConflicts, Disk, DiskBackend, DiskBound, DiskReserve, EngineKind, LeftStage,
    Lifespan, Limits, Pull, RootFs, SandboxSpec, Script,
};
use sandbox_engine::{
    ConnectError, EmbeddedConfig, EmbeddedProblem, EngineFacts, RootlessLimits, UserMapping,
};
use sandbox_protocol::message::UnixSockets;
use serde::Serialize;

use crate::PreparedSandbox;
use crate::config::Config;
use crate::controller::Controller;
use crate::error::Error;
use crate::gc::state_dir::{self, StateDir};
use crate::io_dir::IoDir;
use crate::sandbox::confinement;
use crate::sandbox::confinement::{LEAST_LANDLOCK, kernel_landlock};
use crate::sandbox::user::container_user;
use sandbox_dirfd::{FreeSpace, Links};

/// The oldest API version that has everything a sandbox needs.
const OLDEST_API: (u32, u32) = (1, 41);
/// Free space below which a run with the default limits may fill the disk.
const LITTLE_SPACE: u64 = 256 << 20;

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckStatus {
    /// Everything is fine.
    Ok,
    /// Sandboxes work, with restrictions.
    Warn,
    /// Sandboxes do not work.
    Fail,
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Its name, which is stable.
    pub id: &'static str,
    /// Its result.
    pub status: CheckStatus,
    /// What was found.
    pub detail: String,
    /// How to fix it.
    pub fix: Option<String>,
}

impl Check {
    /// One that found nothing wrong.
    pub fn ok(id: &'static str, detail: impl Into<String>) -> Self {
        Self { id, status: CheckStatus::Ok, detail: detail.into(), fix: None }
    }

    /// One that found something that works less well.
    pub fn warn(id: &'static str, detail: impl Into<String>, fix: &str) -> Self {
        Self { id, status: CheckStatus::Warn, detail: detail.into(), fix: Some(fix.to_owned()) }
    }

    /// One that found something that does not work.
    pub fn fail(id: &'static str, detail: impl Into<String>, fix: &str) -> Self {
        Self { id, status: CheckStatus::Fail, detail: detail.into(), fix: Some(fix.to_owned()) }
    }

    fn error(id: &'static str, error: &Error) -> Self {
        Self { id, status: CheckStatus::Fail, detail: error.full_message(), fix: error.hint() }
    }

    fn of(id: &'static str, examined: Result<Self, Error>) -> Self {
        examined.unwrap_or_else(|error| Self::error(id, &error))
    }
}

/// Diagnoses everything that a sandbox needs, including the engine and an io dir; without an
/// engine, the rest. It builds the sandbox image if it is missing, and runs a script in a sandbox.
/// `io_is_private`: sandboxes with commands are to have a private io dir in memory.
pub async fn examine(config: Config, io_dir: Option<&Path>, io_is_private: bool) -> Vec<Check> {
    let mut checks = Vec::new();
    let state_dir = config.state_dir.clone();
    let reserve = config.disk_reserve;
    let limits = Limits::default().lowered(&config.ceiling);
    let data_dir = config.engine.embedded.data_dir.clone();
    let scratch_dir = config.scratch_dir.clone();
    let boot_id = state_dir::boot_id();
    let state = boot_id.and_then(|boot_id| StateDir::open(&state_dir, &scratch_dir, &boot_id)).ok();
    let left = || state.as_ref().map(|state| state.stages.leftovers()).unwrap_or_default();
    let stages = left();
    let mut conflicts = Vec::new();
    // The diagnosis is not to be audited.
    let config = Config { audit: None, ..config };
    let mut with_weaker_limits = config.clone();
    with_weaker_limits.engine.embedded.rootless_limits = RootlessLimits::BestEffort;
    match Controller::connect(config).await {
        Ok(controller) => {
            let info = controller.engine();
            checks.push(Check::ok("endpoint", format!("{} ({})", info.endpoint, info.why)));
            match controller.engine_facts().await {
                Ok(facts) => checks.extend(judge_engine(info.kind, &facts)),
                Err(error) => checks.push(Check::error("engine", &error)),
            }
            match controller.examine_programs().await {
                Ok(found) => checks.extend(found.map(|place| Check::ok("executables", place))),
                Err(error) => checks.push(Check::error("executables", &error)),
            }
            checks.push(Check::of("image", image(&controller).await));
            checks.push(Check::of("programs", programs(&controller).await));
            checks.push(Check::of("identity", identity(&controller, io_dir).await));
            checks.extend(io_is_private.then(|| private_io(info.kind, &limits)));
            checks.extend(probe(&controller, io_dir, limits).await);
            checks.extend(with_programs(&controller, limits, &data_dir).await);
            let found = controller.commit_conflicts();
            controller.close().await;
            conflicts = found.take();
        }
        Err(error @ Error::State { .. }) => checks.push(Check::error("state", &error)),
        Err(error) => {
            let lacks_limits = matches!(
                &error,
                Error::Connect(ConnectError::Embedded(EmbeddedProblem::NotDelegated { .. }))
            );
            checks.push(Check::error("endpoint", &error));
            if lacks_limits {
                let made = namespaces(with_weaker_limits, limits, &data_dir).await;
                checks.push(Check::of("namespaces", made));
            }
        }
    }
    checks.push(judge_stages(&stages, &left(), &conflicts));
    checks.push(kernel());
    checks.push(free_space("disk", io_dir.unwrap_or(Path::new(".")), reserve));
    checks.push(free_space("state", &state_dir, DiskReserve::Bytes(ByteSize::b(0))));
    checks
}

/// Judges what the engine reports about itself. Pure.
fn judge_engine(kind: EngineKind, facts: &EngineFacts) -> [Check; 4] {
    let EngineFacts { version, api_version, kernel, .. } = facts;
    let detail = match kind {
        EngineKind::Docker => format!("{version}, API {api_version}, kernel {kernel}"),
        EngineKind::Embedded => format!("{version}, kernel {kernel}"),
    };
    let api = api_version
        .split_once('.')
        .and_then(|(major, minor)| Some((major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?)));
    let engine = match api {
        _ if kind == EngineKind::Embedded => Check::ok("engine", detail),
        Some(api) if api >= OLDEST_API => Check::ok("engine", detail),
        Some(_) => Check::fail("engine", detail, "upgrade the engine to Docker 20.10 or newer"),
        None => Check::warn("engine", detail, "the API's version cannot be read"),
    };
    let missing = &facts.missing_limits;
    let cgroups = if missing.is_empty() {
        Check::ok("cgroups", format!("version {}", facts.cgroups))
    } else {
        Check::warn(
            "cgroups",
            format!("version {}; not enforced: {}", facts.cgroups, missing.join(", ")),
            match (kind, facts.cgroups.as_str()) {
                (EngineKind::Embedded, "none") => {
                    "on control groups version 2 `systemd-run --user --scope -p Delegate=yes -- \
                     sandboxctl run FILE` delegates them; root needs no delegation"
                }
                _ => "enable these cgroup controllers, or delegate them to the engine's user",
            },
        )
    };
    let seccomp = if facts.security.iter().any(|name| name == "seccomp") {
        Check::ok("seccomp", facts.security.join(", "))
    } else {
        Check::fail(
            "seccomp",
            format!("the engine has no seccomp ({})", facts.security.join(", ")),
            "use a kernel and an engine that are built with seccomp",
        )
    };
    let cpus =
        Check::ok("runtimes", format!("{}; {} processors", facts.runtimes.join(", "), facts.cpus));
    [engine, cgroups, seccomp, cpus]
}

async fn image(controller: &Controller) -> Result<Check, Error> {
    if controller.engine().kind == EngineKind::Embedded {
        return Ok(Check::ok("image", "none is needed: the agent is run itself"));
    }
    let images = controller.image_list().await?;
    let stale = images.iter().filter(|image| !image.current).count();
    Ok(match images.iter().find(|image| image.current) {
        Some(image) if stale == 0 => Check::ok("image", short(&image.id)),
        Some(image) => Check::warn(
            "image",
            format!("{}; {stale} of other versions", short(&image.id)),
            "`sandboxctl image rm --stale` removes those of other versions",
        ),
        None => Check::ok("image", "not built yet: the first sandbox builds it"),
    })
}

/// What programs can run in.
async fn programs(controller: &Controller) -> Result<Check, Error> {
    let images = controller.program_images().await?;
    let size: u64 = images.iter().map(|image| image.size).sum();
    let what = match controller.engine().kind {
        EngineKind::Docker => "images that programs can run in",
        EngineKind::Embedded => "unpacked archives that programs can run in",
    };
    Ok(Check::ok("programs", format!("{} {what}, {} MiB", images.len(), size >> 20)))
}

/// The abbreviated id of an image.
fn short(id: &str) -> String {
    id.trim_start_matches("sha256:").chars().take(12).collect()
}

async fn identity(controller: &Controller, io_dir: Option<&Path>) -> Result<Check, Error> {
    let mapping = controller.user_mapping().await?;
    // A missing one is created by its first run, and then belongs to this user.
    let me = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let owner = match io_dir.filter(|dir| dir.exists()).map(|dir| IoDir::open(dir, Links::Follow)) {
        Some(io_dir) => io_dir?.owner,
        None => me,
    };
    let how = match mapping {
        UserMapping::Identity => String::new(),
        UserMapping::Rootless { owner } => format!(", by a rootless engine of user {owner}"),
        UserMapping::Single { uid, .. } => format!(", as the host's user {uid}"),
        UserMapping::Remapped { uid, gid } => format!(", by an engine that maps from {uid}:{gid}"),
    };
    let user = container_user(mapping, Some(owner), None, controller.highest_id())?;
    let (uid, gid) = owner;
    let detail = format!("the io dir belongs to {uid}:{gid}, sandboxes run as {user}{how}");
    Ok(Check::ok("identity", detail))
}

/// Whether this user can make containers at all, where only limits are missing: it makes one, with
/// everything that programs have.
async fn namespaces(config: Config, limits: Limits, data_dir: &Path) -> Result<Check, Error> {
    let controller = Controller::connect(config).await?;
    let spec = SandboxSpec::new().lifespan(Lifespan::OneRun).limits(limits).fresh_io_dir();
    let empty = EmbeddedConfig::empty_root(data_dir);
    let made = match controller.launch(PreparedSandbox::on_engine_directory(spec, empty)).await {
        Ok(sandbox) => sandbox.close().await,
        Err(error) => Err(error),
    };
    controller.close().await;
    let detail = "user namespaces with overlay, proc, devices and loopback can be made";
    made.map(|()| Check::ok("namespaces", detail))
}

/// What enforces the size of a private io dir.
fn private_io(kind: EngineKind, limits: &Limits) -> Check {
    let id = "private_io";
    let size = limits.max_write;
    match kind {
        EngineKind::Embedded if !rustix::process::geteuid().is_root() => Check::fail(
            id,
            "io.private = \"tmpfs\" needs root",
            "run it as root, or leave io.private out",
        ),
        EngineKind::Embedded => {
            Check::ok(id, format!("in memory, {size} (io.max_bytes): the kernel enforces the size"))
        }
        EngineKind::Docker => Check::fail(
            id,
            "io.private = \"tmpfs\" needs the embedded engine",
            "use --engine embedded, or leave io.private out",
        ),
    }
}

/// Judges the stages of dead controllers, before the diagnosis and after it: its own sandboxes complete
/// and remove them too.
fn judge_stages(before: &[LeftStage], after: &[LeftStage], conflicts: &[CommitConflicts]) -> Check {
    let id = "stages";
    let describe = |stages: &[LeftStage]| {
        let interrupted = stages.iter().filter(|stage| stage.is_interrupted).count();
        let mut io_dirs: Vec<_> = stages.iter().map(|stage| &*stage.io_dir).collect();
        io_dirs.sort_unstable();
        io_dirs.dedup();
        let others = stages.len() - interrupted;
        format!(
            "{interrupted} interrupted commits, {others} stages to discard: {}",
            io_dirs.join(", ")
        )
    };
    if !conflicts.is_empty() {
        let left = after.iter().filter_map(LeftStage::advice);
        let messages: Vec<_> = conflicts.iter().map(ToString::to_string).chain(left).collect();
        return Check::warn(
            id,
            messages.join("; "),
            "run the script or command again that is to change these paths",
        );
    }
    match (before, after) {
        ([], []) => Check::ok(id, "dead controllers left none"),
        (before, []) => Check::ok(id, format!("completed and removed now: {}", describe(before))),
        (_, after) => {
            let detail = format!("left by dead controllers: {}", describe(after));
            let gc = "`sandboxctl gc` completes interrupted commits and removes what else is left";
            let advice: Vec<_> = after.iter().filter_map(LeftStage::advice).collect();
            let advice = advice.join("; ");
            Check::warn(id, detail, if advice.is_empty() { gc } else { &advice })
        }
    }
}

/// Runs a sandbox from start to end.
async fn probe(controller: &Controller, io_dir: Option<&Path>, limits: Limits) -> Vec<Check> {
    let mut spec = SandboxSpec::new().lifespan(Lifespan::OneRun).limits(limits);
    if let Some(io_dir) = io_dir {
        spec = spec.io_dir(io_dir);
    }
    let sandbox = match controller.launch(spec).await {
        Ok(sandbox) => sandbox,
        Err(error) => return vec![Check::error("sandbox", &error)],
    };
    let mut checks = Vec::new();
    if let Some(io_dir) = sandbox.io_dir() {
        let detail = format!("{} is what the sandbox sees", io_dir.display());
        checks.push(Check::ok("io_dir", detail));
    }
    let confinement = sandbox.confinement();
    let detail = confinement::describe(confinement);
    checks.push(if confinement.missing.is_empty() {
        Check::ok("confinement", detail)
    } else {
        Check::warn(
            "confinement",
            detail,
            "Linux 5.19 or newer, booted with Landlock, and an engine whose own filter lets the \
             agent confine itself have all of it",
        )
    });
    match sandbox.run(Script::new("return 1")).await {
        Ok(run) if run.exit_code() == 0 => {
            checks.push(Check::ok("sandbox", format!("a script ran in {} ms", run.usage.wall_ms)));
        }
        Ok(run) => {
            let why = run.outcome.failure().map_or_else(String::new, |failure| failure.message);
            checks.push(Check::fail(
                "sandbox",
                format!("a script ended as {}: {why}", run.outcome.status()),
                "this is a fault of sandboxctl or of the engine: please report it",
            ));
        }
        Err(error) => checks.push(Check::error("sandbox", &error)),
    }
    if let Err(error) = sandbox.close().await {
        checks.push(Check::error("removal", &error));
    }
    checks
}

/// What programs have: which UNIX sockets they can reach, as reported by the agent, and what bounds their
/// private io dir. In a sandbox made from the sandbox image, or from an empty directory if the engine
/// has no images.
async fn with_programs(controller: &Controller, limits: Limits, data_dir: &Path) -> Vec<Check> {
    const ID: &str = "unix_sockets";
    let spec = SandboxSpec::new().lifespan(Lifespan::OneRun).limits(limits).fresh_io_dir();
    let spec = match controller.engine().kind {
        EngineKind::Docker => match controller.image_list().await {
            Ok(images) => images.into_iter().find(|image| image.current).map(|image| {
                spec.root(RootFs::Image { reference: image.id, pull: Pull::Never }).into()
            }),
            Err(error) => return vec![Check::error(ID, &error)],
        },
        EngineKind::Embedded => {
            let empty = EmbeddedConfig::empty_root(data_dir);
            Some(PreparedSandbox::on_engine_directory(spec, empty))
        }
    };
    let Some(spec) = spec else {
        return vec![Check::warn(ID, "not known: no sandbox was made", "see the other checks")];
    };
    let sandbox = match controller.launch(spec).await {
        Ok(sandbox) => sandbox,
        Err(error) => return vec![Check::error(ID, &error)],
    };
    let unix_sockets = judge_unix_sockets(sandbox.confinement().unix_sockets);
    let disk = sandbox.inner().describe_disk(&limits);
    let checks = [unix_sockets].into_iter().chain(disk.map(|disk| judge_disk_bound(&disk)));
    let closed = sandbox.close().await.err().map(|error| Check::error("removal", &error));
    checks.chain(closed).collect()
}

/// Judges what bounds the private io dirs of programs. Pure.
fn judge_disk_bound(disk: &Disk) -> Check {
    let id = "disk_bound";
    let what = match disk.backend {
        DiskBackend::Tmpfs => "a file system in memory",
        DiskBackend::Ext4 => "an ext4 image on a loop device",
        _ => "a directory",
    };
    if disk.bound == DiskBound::Kernel {
        let detail = format!("the kernel bounds private io dirs of programs: {what}");
        return Check::ok(id, detail);
    }
    let why = disk.reason.as_deref().unwrap_or("unknown");
    Check::warn(
        id,
        format!("private io dirs of programs are watched, not bounded: {why}"),
        "root, an engine on this machine, /dev/loop-control, Linux 5.8 and mke2fs (e2fsprogs) let \
         the kernel bound them",
    )
}

fn judge_unix_sockets(unix_sockets: UnixSockets) -> Check {
    let detail = format!("programs have {}", confinement::describe_unix_sockets(unix_sockets));
    match unix_sockets {
        UnixSockets::Landlock | UnixSockets::Supervised => Check::ok("unix_sockets", detail),
        UnixSockets::None | UnixSockets::Pairs | UnixSockets::Unrestricted => Check::warn(
            "unix_sockets",
            detail,
            "Linux 5.9 or newer, without a rule against looking into other processes (Yama 2 or 3), and \
             an engine that takes our filter let the sandbox have sockets of its own",
        ),
    }
}

/// The features of this kernel. The engine's kernel is another one if the engine runs in a virtual
/// machine.
fn kernel() -> Check {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy();
    let openat2 = match rustix::fs::openat2(
        rustix::fs::CWD,
        ".",
        OFlags::PATH | OFlags::CLOEXEC,
        Mode::empty(),
        rustix::fs::ResolveFlags::BENEATH,
    ) {
        Err(rustix::io::Errno::NOSYS) => "no openat2",
        _ => "openat2",
    };
    let lsm = std::fs::read_to_string("/sys/kernel/security/lsm").unwrap_or_default();
    let landlock = match kernel_landlock() {
        Some(abi) => format!("Landlock ABI {abi}"),
        None if lsm.is_empty() => "no Landlock".to_owned(),
        None => format!("no Landlock (active: {})", lsm.trim()),
    };
    let detail = format!("{release}: {openat2}, {landlock}");
    if openat2 == "openat2" && kernel_landlock().is_some_and(|abi| abi >= LEAST_LANDLOCK) {
        Check::ok("kernel", detail)
    } else {
        Check::warn("kernel", detail, "Linux 5.19 or newer with Landlock has all that is used")
    }
}

fn free_space(id: &'static str, path: &Path, reserve: DiskReserve) -> Check {
    // The nearest existing ancestor: the rest is created on the same filesystem.
    let there: PathBuf = std::path::absolute(path)
        .unwrap_or_else(|_| path.to_owned())
        .ancestors()
        .find(|ancestor| ancestor.exists())
        .unwrap_or(Path::new("/"))
        .to_owned();
    let opened = rustix::fs::open(&there, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    match opened.and_then(FreeSpace::of) {
        Ok(FreeSpace { available, size, .. }) => {
            let text = |bytes| bytesize::ByteSize::b(bytes).display().iec();
            let kept = reserve.of(size);
            let mut detail = format!("{:.1} free at {}", text(available), there.display());
            if kept > 0 {
                detail += &format!("; sandboxes leave {:.1} (limits.disk_reserve)", text(kept));
            }
            if available < kept {
                let fix = "free some space, use another directory, or lower limits.disk_reserve: \
                           nothing is written below it";
                Check::warn(id, detail, fix)
            } else if available < LITTLE_SPACE {
                Check::warn(id, detail, "free some space, or use another directory")
            } else {
                Check::ok(id, detail)
            }
        }
        Err(error) => {
            let error = std::io::Error::from(error);
            let detail = format!("{}: {error}", there.display());
            Check::fail(id, detail, "use another directory")
        }
    }
}

#[cfg(test)]
mod tests;
