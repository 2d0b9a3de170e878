//! What makes two sandboxes equal until they are claimed.

use std::path::PathBuf;
use std::time::Duration;

use sandbox_api::{FileScope, PrivateIo, Processes, RootFs, SandboxSpec};
use sandbox_dirfd::Identity;
use sandbox_engine::{ContainerSpec, Prepared, ProgramRoot};
use sandbox_protocol::User;

use crate::error::Error;
use crate::io_dir::{IoDir, links_of};
use crate::sandbox::plan::Plan;
use crate::sandbox::prepared::RootOwner;

/// The longest lifetime of a sandbox from a pool. Its expiry label is written before the claim.
pub(super) const MAX_LIFETIME: Duration = Duration::from_secs(7 * 24 * 3600);

/// Everything that shapes a container and its agent's confinement before the claim. Equal keys get
/// equal sandboxes; the rest of a spec is sent to the agent with the claim. The engine and the
/// agent's program are not in it: they belong to the controller, and so does the pool.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SlotKey {
    root: RootFs,
    root_owner: RootOwner,
    prepared: Option<Prepared>,
    /// The identity of the root, if it is a directory: its path may lead to another one later.
    root_identity: Option<Identity>,
    io: IoKey,
    /// The user that the caller named; otherwise the owner of the io dir decides.
    user: Option<User>,
    processes: Processes,
    files: FileScope,
    /// What the engine is asked for, without a name, labels and mounts: the targets and modes of these
    /// are in its arguments, their sources in `io`.
    container: ContainerSpec,
}

/// The io dir of a slot.
#[derive(Debug, Clone, PartialEq)]
enum IoKey {
    Off,
    /// A private one for each slot, of this size (bytes and entries) if the kernel bounds it: what a
    /// script writes to the disk is counted by the agent.
    Private {
        place: PrivateIo,
        size: Option<(u64, u32)>,
    },
    /// One that is kept at this path. Its size does not change, and it is the same one for each
    /// sandbox as long as a slot has it.
    Kept(PathBuf),
    Named(NamedIoDir),
}

/// An io dir that a caller named.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct NamedIoDir {
    path: PathBuf,
    identity: Identity,
    owner: (u32, u32),
    private: Option<PrivateIo>,
}

impl NamedIoDir {
    /// The io dir that a spec names, as it is now; `None` if it names none.
    pub fn of(spec: &SandboxSpec) -> Result<Option<Self>, Error> {
        let Some(path) = &spec.io_dir else { return Ok(None) };
        let io_dir = IoDir::open(path, links_of(spec))?;
        Ok(Some(Self {
            path: io_dir.path().to_owned(),
            identity: io_dir.identity,
            owner: io_dir.owner,
            private: spec.private_io,
        }))
    }
}

impl SlotKey {
    /// The key of a spec; an error says why a sandbox of it cannot be started ahead. `plan` is the
    /// spec's, `prepared` its root and `named` its io dir as they are now.
    pub fn new(
        spec: &SandboxSpec,
        plan: &Plan,
        prepared: Option<&Prepared>,
        root_owner: RootOwner,
        named: Option<NamedIoDir>,
    ) -> Result<Self, &'static str> {
        // Without `..`: each new field must be classified here.
        let SandboxSpec {
            root,
            // As `named`.
            io_dir: _,
            // The same container as one without an io dir.
            io_is_off: _,
            // It only affects how `named` was opened.
            no_symlinks: _,
            private_io,
            kept_at,
            staged,
            // In the agent's arguments.
            mount_path: _,
            workdir: _,
            inputs,
            // Limits that shape the container are in `container`, and the size of a bounded io dir in
            // `io`.
            limits,
            // Sent to the agent with the claim.
            io_errors: _,
            allowed_paths: _,
            protected: _,
            user,
            // A pool has slots for short lives, and checks this itself.
            lifetime,
            // The controller's own.
            idle_limit: _,
            default_encoding: _,
            lifespan: _,
            id,
            container_name,
            // Listings show the pool's title.
            title: _,
            // Whether there are hosts is in the agent's arguments; which hosts, the controller
            // decides.
            allow: _,
            // The authority is made with the claim.
            inject: _,
            processes,
            // The controller's own: any may be connected to.
            ports: _,
            files,
        } = spec;
        if !inputs.is_empty() {
            // A slot would have the files as of its start.
            return Err("it has inputs");
        }
        if *staged {
            // Changes would be compared with the io dir as of the slot's start.
            return Err("its io dir is staged");
        }
        if id.is_some() || container_name.is_some() {
            return Err("its container has a name");
        }
        if *lifetime > MAX_LIFETIME {
            return Err("its lifetime is longer than a week");
        }
        let io = match (named, private_io) {
            (Some(named), _) => IoKey::Named(named),
            (None, Some(place)) => match kept_at {
                Some(path) => IoKey::Kept(path.clone()),
                None => {
                    let size = (limits.max_write.as_u64(), limits.entries.get());
                    let is_bounded = *place == PrivateIo::Memory || root.supports_exec();
                    IoKey::Private { place: *place, size: is_bounded.then_some(size) }
                }
            },
            (None, None) => IoKey::Off,
        };
        let root_identity = match prepared.map(|prepared| &prepared.root) {
            Some(ProgramRoot::Directory(source)) => {
                let stat = rustix::fs::fstat(&*source.file);
                Some(Identity::of(&stat.map_err(|_| "its root is gone")?))
            }
            Some(ProgramRoot::Image { .. }) | None => None,
        };
        // Any user: the engine requires one here.
        let any = user.unwrap_or(ROOT);
        let container =
            plan.container(spec, String::new(), Vec::new(), any, &[], prepared.cloned());
        Ok(Self {
            root: match root {
                // The pull policy does not matter once the image is prepared.
                RootFs::Image { reference, pull: _ } => {
                    RootFs::Image { reference: reference.clone(), pull: Default::default() }
                }
                root => root.clone(),
            },
            root_owner,
            prepared: prepared.cloned(),
            root_identity,
            io,
            user: *user,
            processes: *processes,
            files: *files,
            container,
        })
    }
}

const ROOT: User = match User::new(0, 0) {
    Ok(user) => user,
    Err(_) => panic!("it is not -1"),
};

#[cfg(test)]
mod tests;
