//! Translates a spec into the configurations of the container and the agent. Pure.

use sandbox_api::hosts::Allowlist;
use sandbox_api::{Lifespan, Ports, SandboxSpec};
use sandbox_engine::{Bind, ContainerSpec, Prepared, Programs, Source, Ulimit};
use sandbox_protocol::User;
use sandbox_protocol::argv::{AgentArgs, ConfinementPolicy, DiskSpace, Mode, Mount, PROXY_PORT};
use sandbox_protocol::message::{self, Access, AllowedPath, Configure, FileScope, Policy};
use sandbox_protocol::path::{GuestPath, INPUTS, PathError};

use crate::error::Error;

/// Paths that the container already has.
const RESERVED: &[&str] = &["/proc", "/sys", "/dev", "/etc", sandbox_protocol::argv::MOUNTED_AGENT];
const WORKDIR: &str = "the working directory";
/// In memory, if the sandbox supports commands.
const TMP: &str = "/tmp";
/// Descriptors of the agent that are neither a script's open handles nor mounts.
const SPARE_DESCRIPTORS: i64 = 62;
/// Descriptors per mount: the mount of a file also has one for its directory.
const MOUNT_DESCRIPTORS: usize = 2;
/// Descriptors of a command: the default of most systems, which programs that call `select` need.
const PROGRAM_DESCRIPTORS: i64 = 1024;
/// The maximum number of files and directories in `/tmp`. The memory of each counts against the
/// container's.
const TMPFS_INODES: u64 = 65_536;
/// The maximum size of a file of a command where the kernel bounds the space that files take: only one
/// with holes is so large. .NET reserves 2 TiB by one in memory, and ext4 can hold a copy of 8 TiB.
const MAX_SPARSE_BYTES: u64 = 8 << 40;
/// The maximum size of a script's file, as a backstop. The agent's own limit is far lower.
const MAX_FILE_BYTES: i64 = 64 << 30;

/// The guest paths of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The guest path of the io dir; `None` without one.
    pub io: Option<GuestPath>,
    /// The guest paths of the inputs, in order.
    pub inputs: Vec<GuestPath>,
    pub args: AgentArgs,
    pub configure: Configure,
}

impl Plan {
    pub fn new(spec: &SandboxSpec, confinement: ConfinementPolicy) -> Result<Self, Error> {
        let has_io = spec.io_dir.is_some() || spec.private_io.is_some();
        let io = has_io.then(|| guest("the mount path", &spec.mount_path)).transpose()?;
        if let (true, Some(input)) = (spec.io_is_off, spec.inputs.first()) {
            let reason = "files are disabled for the sandbox".to_owned();
            return Err(Error::Input { name: input.name.clone(), reason });
        }
        let inputs_root = guest("the inputs' path", INPUTS)?;
        let inputs = spec
            .inputs
            .iter()
            .map(|input| {
                let path = match input.is_at_a_path() {
                    true => GuestPath::new(&input.name),
                    false => inputs_root.join(input.name.as_bytes()),
                };
                let refuse = |reason: String| Error::Input { name: input.name.clone(), reason };
                let path = path.map_err(|source| refuse(source.to_string()))?;
                let taken = match input.is_at_a_path() {
                    true => taken(&path, Access::Read, spec, &inputs_root)?,
                    false => None,
                };
                match taken {
                    Some(taken) => Err(refuse(format!("the sandbox has its own {taken}"))),
                    None => Ok(path),
                }
            })
            .collect::<Result<Vec<_>, _>>()?;
        if let Some(io) = &io
            && let Some(taken) = taken(io, Access::Write, spec, &inputs_root)?
        {
            return Err(Error::MountTaken { path: io.to_string(), taken: taken.to_string() });
        }
        let paths: Vec<&GuestPath> = io.iter().chain(&inputs).collect();
        for (at, input) in spec.inputs.iter().enumerate() {
            let path = &inputs[at];
            let others = paths.iter().filter(|other| !std::ptr::eq(**other, path));
            if let Some(other) =
                others.into_iter().find(|it| it.is_under(path) || path.is_under(it))
            {
                let reason = format!("{path} and {other} overlap");
                return Err(Error::Input { name: input.name.clone(), reason });
            }
        }

        let workdir = match (&spec.workdir, &io) {
            (None, io) => io.clone(),
            (Some(workdir), Some(io)) => {
                let resolved = GuestPath::resolve(workdir.as_bytes(), io, Some(io));
                Some(named(WORKDIR, workdir, resolved)?.path)
            }
            (Some(workdir), None) => Some(guest(WORKDIR, workdir)?),
        };
        let mounts: Vec<Mount> = io
            .iter()
            .map(|path| Mount { path: path.clone(), access: Access::Write })
            .chain(inputs.iter().map(|path| Mount { path: path.clone(), access: Access::Read }))
            .collect();
        if let Some(workdir) = &workdir
            && !mounts.iter().any(|mount| workdir.is_under(&mount.path))
        {
            return Err(Error::WorkdirOutside { workdir: workdir.to_string() });
        }

        for AllowedPath { path, access: _ } in spec.allowed_paths.iter().flatten() {
            guest("an allowed path", path)?;
        }
        for name in &spec.protected {
            SandboxSpec::check_protected_name(name)?;
        }
        if spec.root.supports_exec() {
            check_rules_for_programs(spec, &mounts)?;
        }
        let opens_more = spec.files == FileScope::All || spec.ports != Ports::default();
        if opens_more && !spec.root.supports_exec() {
            return Err(Error::ExecUnsupported);
        }
        if spec.files == FileScope::All && spec.allowed_paths.is_some() {
            // A rule about paths does not know links.
            return Err(Error::RuleForPrograms { rule: "filesystem.allowed_paths" });
        }
        let allowed_paths = spec.allowed_paths.clone().unwrap_or_else(|| {
            let above = GuestPath::new(INPUTS).expect("a constant path");
            let has_inputs = inputs.iter().any(|path| path.is_under(&above));
            // The inputs are listed and searched in the directory above them, which is no mount.
            let above = has_inputs.then_some((INPUTS.to_owned(), Access::Read));
            let mounts = mounts.iter().map(|mount| (mount.path.to_string(), mount.access));
            mounts.chain(above).map(|(path, access)| AllowedPath { path, access }).collect()
        });
        let configure = Configure {
            limits: message::Limits {
                // It counts over the whole life of the agent, so it applies only if that is one
                // run.
                cpu_seconds: (spec.lifespan == Lifespan::OneRun)
                    .then(|| spec.limits.most_cpu().as_secs()),
                ..spec.limits.for_agent()
            },
            policy: Policy {
                io: !mounts.is_empty(),
                io_errors: spec.io_errors,
                allowed_paths,
                protected: spec.protected.clone(),
                files: spec.files,
            },
            // Made with the claim.
            ca: None,
        };
        let mode = if spec.root.supports_exec() { Mode::Exec } else { Mode::Script };
        let home = io.clone();
        let proxy = proxy(mode, &spec.hosts())?;
        // What bounds the disk space is known when the io dir is there.
        let args = AgentArgs { mounts, home, workdir, confinement, proxy, ..AgentArgs::new(mode) };
        Ok(Self { io, inputs, args, configure })
    }

    /// The container for the same `spec`. `sources` are the sources of its mounts, in order.
    pub fn container(
        &self,
        spec: &SandboxSpec,
        name: String,
        labels: Vec<(String, String)>,
        user: User,
        sources: &[Source],
        prepared: Option<Prepared>,
    ) -> ContainerSpec {
        let limits = &spec.limits;
        let mounts = self.args.mounts.iter().zip(sources).map(|(mount, source)| Bind {
            source: source.clone(),
            target: mount.path.to_string(),
            read_only: mount.access == Access::Read,
        });
        let mounts_need = MOUNT_DESCRIPTORS * self.args.mounts.len();
        let scripts_need = i64::from(limits.open_handles.get())
            .saturating_add(i64::try_from(mounts_need).unwrap_or(i64::MAX))
            .saturating_add(SPARE_DESCRIPTORS);
        let (descriptors, file_bytes) = match self.args.mode {
            Mode::Exec => {
                // One byte more than the write limit: that byte shows the io dir scan that a file
                // has reached this bound.
                let beyond = limits.max_write.as_u64().saturating_add(1);
                let most = beyond.max(limits.max_file_size.as_u64());
                let most = match self.args.disk {
                    DiskSpace::Watched => most,
                    DiskSpace::Bounded => most.max(MAX_SPARSE_BYTES),
                };
                let most = i64::try_from(most).unwrap_or(i64::MAX);
                (Ulimit::descriptors(scripts_need.max(PROGRAM_DESCRIPTORS)), most)
            }
            Mode::Script | Mode::Check => (Ulimit::new("nofile", scripts_need), MAX_FILE_BYTES),
        };
        let ulimits = vec![
            // One byte, not zero: the kernel ignores a limit of 0 when it pipes core dumps to a
            // program.
            Ulimit::new("core", 1),
            descriptors,
            Ulimit::new("fsize", file_bytes),
            Ulimit::new("memlock", 0),
            Ulimit::new("msgqueue", 0),
        ];
        ContainerSpec {
            name,
            labels,
            args: self.args.clone(),
            user,
            mounts: mounts.collect(),
            hidden: Vec::new(),
            memory: limits.memory.as_u64(),
            nano_cpus: limits.cpus.nano_cpus(),
            pids: limits.pids.get(),
            ulimits,
            programs: prepared.map(|Prepared { root, env, .. }| Programs {
                root,
                env,
                tmpfs_bytes: limits.tmpfs_bytes().as_u64(),
                tmpfs_inodes: TMPFS_INODES,
                shm_bytes: limits.shm.as_u64(),
            }),
        }
    }
}

/// The path of the sandbox that a mount at `path` would cover, or that covers it. An io dir below
/// `/tmp` is fine; one that covers it would hide it from commands. An input below `/tmp` is not:
/// commands may write there by the kernel's rules, which do not know mounts, and a read-only mount
/// does not stop a write to a FIFO.
fn taken(
    path: &GuestPath,
    access: Access,
    spec: &SandboxSpec,
    inputs: &GuestPath,
) -> Result<Option<GuestPath>, Error> {
    let tmp = spec.root.supports_exec().then_some(TMP);
    let fixed = RESERVED.iter().copied().chain(tmp).map(|path| guest("a reserved path", path));
    for other in fixed.chain([Ok(inputs.clone())]) {
        let other = other?;
        let may_be_below = access == Access::Write && other.as_bytes() == TMP.as_bytes();
        if other.is_under(path) || (path.is_under(&other) && !may_be_below) {
            return Ok(Some(other));
        }
    }
    Ok(None)
}

/// The agent's own operations enforce path rules. Commands make their own system calls, for which
/// the kernel's rules only know mounts: a rule that cannot be enforced is refused.
fn check_rules_for_programs(spec: &SandboxSpec, mounts: &[Mount]) -> Result<(), Error> {
    let refuse = |rule| Err(Error::RuleForPrograms { rule });
    let can_write = mounts.iter().any(|mount| mount.access == Access::Write);
    if can_write && !spec.protected.is_empty() {
        return refuse("filesystem.protected");
    }
    if !mounts.is_empty() && spec.allowed_paths.is_some() {
        return refuse("filesystem.allowed_paths");
    }
    Ok(())
}

/// The port of the proxy, if there are allow rules.
fn proxy(mode: Mode, list: &Allowlist) -> Result<Option<u16>, Error> {
    match mode {
        _ if list.rules().is_empty() => Ok(None),
        Mode::Exec => Ok(Some(PROXY_PORT)),
        Mode::Script | Mode::Check => Err(Error::EgressUnsupported),
    }
}

/// The path that a setting has.
fn guest(what: &'static str, path: &str) -> Result<GuestPath, Error> {
    named(what, path, GuestPath::new(path))
}

fn named<T>(what: &'static str, path: &str, parsed: Result<T, PathError>) -> Result<T, Error> {
    parsed.map_err(|source| Error::GuestPath { what, path: path.to_owned(), source })
}

#[cfg(test)]
mod tests;
