//! A sandbox's files over a temporary directory, for the tests of this crate.

use std::path::Path;
use std::sync::Arc;

use sandbox_dirfd::Resolver;
use sandbox_protocol::message::{Access, AllowedPath, Change, FileScope, IoErrors, Limits, Policy};
use sandbox_protocol::path::GuestPath;
use sandbox_protocol::{FromAgent, argv};

use super::super::mounts::Mount;
use super::super::{Files, Lifetime, Mounts, OpenMode, PathPolicy};
use crate::outbox::{Outbox, Recorder};

/// Limits that a test does not reach by accident.
pub(crate) const LIMITS: Limits = Limits {
    vm_memory_bytes: 64 << 20,
    write_bytes: 50 << 20,
    entries: 10_000,
    file_bytes: 10 << 20,
    open_handles: 64,
    log_bytes: 1 << 20,
    log_lines: 10_000,
    result_bytes: 1 << 20,
    list_entries: 10_000,
    list_depth: 10,
    operation_timeout_ms: 60_000,
    output_bytes: 1 << 30,
    collected_bytes: 1_000_000,
    disk_reserve_bytes: 0,
    cpu_seconds: None,
};

/// Both ways to resolve a path.
pub(crate) const RESOLVERS: [Resolver; 2] = [Resolver::Openat2, Resolver::Walk];

/// Every open mode.
pub(crate) const EVERY_MODE: [OpenMode; 6] = [
    OpenMode::Read,
    OpenMode::Write,
    OpenMode::Append,
    OpenMode::ReadUpdate,
    OpenMode::WriteUpdate,
    OpenMode::AppendUpdate,
];

/// What was announced, in order.
pub(crate) struct Recorded(Recorder);

impl Recorded {
    /// The announcements since the last call: path, whether it existed, kind of change.
    pub(crate) fn take(&self) -> Vec<(String, bool, Change)> {
        let taken = self.0.take();
        let touched = taken.iter().filter_map(|line| match FromAgent::decode(line).unwrap() {
            FromAgent::Touched(touched) => Some(touched),
            // The tests of the session use these.
            FromAgent::Refused(_) => None,
            other => panic!("{other:?}"),
        });
        touched
            .map(|touched| {
                (touched.path.to_string_lossy().into_owned(), touched.existed, touched.change)
            })
            .collect()
    }
}

/// Options of a test's files.
pub(crate) struct Setup<'a> {
    pub(crate) mounts: Vec<(&'a str, Access, &'a Path)>,
    pub(crate) resolver: Resolver,
    pub(crate) limits: Limits,
    pub(crate) allowed: Vec<(&'a str, Access)>,
    pub(crate) protected: Vec<&'a str>,
    /// The root of the container, if links are followed there.
    pub(crate) container: Option<&'a Path>,
}

impl<'a> Setup<'a> {
    /// `directory` as `/io`, which is home and working directory, with write access everywhere.
    pub(crate) fn io(directory: &'a Path) -> Self {
        Self {
            mounts: vec![("/io", Access::Write, directory)],
            resolver: Resolver::Openat2,
            limits: LIMITS,
            allowed: vec![("/", Access::Write)],
            protected: Vec::new(),
            container: None,
        }
    }

    /// The files, and their announcements.
    pub(crate) fn open(self) -> (Arc<Files>, Arc<Recorded>) {
        let path = |text: &str| GuestPath::new(text).unwrap();
        let mounts = self.mounts.iter().map(|&(guest, access, host)| {
            Mount::open(&argv::Mount { path: path(guest), access }, host).unwrap()
        });
        let mounts = Mounts::new(mounts.collect(), Some(path("/io")), path("/io"))
            .with_resolver(self.resolver);
        let allowed = self.allowed.iter();
        let policy = Policy {
            io: true,
            io_errors: IoErrors::Raise,
            allowed_paths: allowed
                .map(|&(path, access)| AllowedPath { path: path.to_owned(), access })
                .collect(),
            protected: self.protected.iter().map(|&name| name.to_owned()).collect(),
            files: FileScope::Io,
        };
        if let Some(root) = self.container {
            mounts.open_container(root).unwrap();
        }
        let recorder = Recorder::default();
        let files = Files::new(
            Arc::new(mounts),
            Arc::new(PathPolicy::new(&policy).unwrap()),
            &self.limits,
            Arc::new(Lifetime::new(&self.limits)),
            Some(Arc::new(Outbox::new(recorder.clone()))),
            1,
        );
        let files = if self.container.is_some() { files.anywhere() } else { files };
        (Arc::new(files), Arc::new(Recorded(recorder)))
    }
}
