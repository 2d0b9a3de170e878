//! A container, as the engine requests it: plain data, complete, and free of decisions. The helper
//! does what it says.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use serde::{Deserialize, Serialize};

/// A container to launch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Launch {
    /// Its name, which is its record's and its control groups' too.
    pub name: String,
    /// Its host name.
    pub hostname: String,
    /// What it has besides its mounts to run commands; `None` if it runs scripts alone.
    pub programs: Option<Programs>,
    /// What is mounted in it, in this order.
    pub mounts: Vec<Mount>,
    /// Directories in the mounts to be covered by an empty one, by their paths in the container.
    pub hidden: Vec<String>,
    /// Paths of its `/proc` to hide, whether they exist or not.
    pub masked: Vec<String>,
    /// Paths of its `/proc` that cannot be written to, whether they exist or not.
    pub read_only: Vec<String>,
    /// What it may use.
    pub limits: Limits,
    /// Whether control groups limit it. If not, it is limited by other means.
    pub has_groups: bool,
    /// Its first process.
    pub process: Process,
}

/// What a container in which commands run has besides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Programs {
    /// Files to create in the root, replacing what is at their paths.
    pub files: Vec<(String, String)>,
    /// Bytes of `/tmp`.
    pub tmp_bytes: u64,
    /// Files and directories of `/tmp`, and of `/dev/shm`.
    pub tmp_inodes: u64,
    /// Bytes of `/dev/shm`.
    pub shm_bytes: u64,
    /// Settings of its network namespace: a path below `/proc/sys`, and a value.
    pub sysctls: Vec<(String, String)>,
}

/// Something mounted in a container. Restrictions of the attached mount are kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mount {
    /// Where, absolute.
    pub target: String,
    /// Whether it can be written to.
    pub read_only: bool,
}

/// What a container may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Bytes of memory.
    pub memory: u64,
    /// Whether the kernel counts swap, of which the container gets none.
    pub counts_swap: bool,
    /// Processor time in a period, in microseconds.
    pub cpu_quota: i64,
    /// The period, in microseconds.
    pub cpu_period: u64,
    /// Processes and threads.
    pub pids: u32,
}

/// The first process of a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Process {
    /// Its arguments, the name first.
    pub args: Vec<String>,
    /// Its environment, each `NAME=VALUE`.
    pub env: Vec<String>,
    /// Its user.
    pub uid: u32,
    /// Its group, and its only supplementary one.
    pub gid: u32,
    /// Its resource limits.
    pub rlimits: Vec<Rlimit>,
    /// Its system call filters.
    pub filters: Vec<Filter>,
}

/// A resource limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rlimit {
    /// A name as in `RLIMIT_…`, in small letters.
    pub name: String,
    /// The soft limit.
    pub soft: u64,
    /// The hard limit.
    pub hard: u64,
}

/// A system call filter: instructions of classic BPF, each as its eight bytes in one number.
pub type Filter = Vec<u64>;

/// The descriptors of a [`Launch`], in the order in which they are attached to it.
#[derive(Debug)]
pub struct Descriptors<T> {
    /// The container's record, which is locked while anything of it may still be created.
    pub record: T,
    /// Stdin, stdout and stderr of its first process.
    pub stdio: [T; 3],
    /// The program that its first process executes.
    pub program: T,
    /// For [`Programs`]: a detached mount of the directory that its root shows, which is never
    /// written to. Without root an engine can mount nothing: then it is the opened directory.
    pub root: Option<T>,
    /// A detached mount for each of [`Launch::mounts`]; without root the opened file or directory.
    pub mounts: Vec<T>,
}

impl<T: AsFd> Descriptors<T> {
    /// All of them, to be attached.
    pub fn attached(&self) -> Vec<BorrowedFd<'_>> {
        let Self { record, stdio, program, root, mounts } = self;
        let all = [record].into_iter().chain(stdio).chain([program]).chain(root).chain(mounts);
        all.map(AsFd::as_fd).collect()
    }
}

impl Descriptors<OwnedFd> {
    /// Those that were attached to a launch.
    ///
    /// # Errors
    ///
    /// [`io::Error`] where their number is not that of the launch.
    pub fn of(launch: &Launch, attached: Vec<OwnedFd>) -> io::Result<Self> {
        let mut attached = attached.into_iter();
        let mut next = || attached.next().ok_or(io::ErrorKind::UnexpectedEof);
        let (record, stdio, program) = (next()?, [next()?, next()?, next()?], next()?);
        let root = launch.programs.is_some().then(&mut next).transpose()?;
        let mounts = launch.mounts.iter().map(|_| next()).collect::<Result<_, _>>()?;
        match attached.next() {
            None => Ok(Self { record, stdio, program, root, mounts }),
            Some(_) => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}
