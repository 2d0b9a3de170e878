//! Bounds on how much of an untrusted archive is read and unpacked.

use std::cell::Cell;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sandbox_api::DiskReserve;
use sandbox_dirfd::FreeSpace;

use crate::error::RootfsError;

/// The bounds for one archive.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// Bytes of all unpacked layers, including holes of files.
    pub bytes: u64,
    /// Entries of all layers and of the archive itself.
    pub entries: u64,
    /// Bytes of their paths.
    pub paths: u64,
    /// Layers. Docker builds at most 127.
    pub layers: usize,
    /// Bytes of a manifest, an index or a configuration.
    pub document: u64,
    /// What stays free on the disk of the cache.
    pub reserve: DiskReserve,
}

impl Bounds {
    /// Images of machine learning come near to the bytes; nothing comes near to the rest. Paths
    /// are remembered while a layer is unpacked, so that theirs are memory.
    pub const DEFAULT: Self = Self {
        bytes: 32 << 30,
        entries: 1_000_000,
        paths: 128 << 20,
        layers: 128,
        document: 4 << 20,
        reserve: DiskReserve::Auto,
    };
}

/// Free space is looked at after this many bytes.
const LOOK_EVERY: u64 = 16 << 20;
/// The bytes that an entry counts as, independent of its content.
const OF_AN_ENTRY: u64 = 16 << 10;
/// Cancels unpacking.
#[derive(Debug, Clone, Default)]
pub(super) struct Stop(Arc<AtomicBool>);

impl Stop {
    pub fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub fn check(&self) -> Result<(), RootfsError> {
        if self.0.load(Ordering::Relaxed) { Err(RootfsError::Cancelled) } else { Ok(()) }
    }
}

/// Counts what has been read and unpacked.
#[derive(Debug)]
pub(super) struct Budget {
    pub bounds: Bounds,
    stop: Stop,
    /// A directory of the file system that is written to.
    place: Option<Arc<OwnedFd>>,
    bytes: Cell<u64>,
    entries: Cell<u64>,
    paths: Cell<u64>,
    /// Bytes since free space was last looked at.
    unseen: Cell<u64>,
}

impl Budget {
    pub fn new(bounds: Bounds, stop: Stop) -> Self {
        let (bytes, entries, paths) = Default::default();
        // The first use looks.
        let unseen = Cell::new(LOOK_EVERY);
        Self { bounds, stop, place: None, bytes, entries, paths, unseen }
    }

    /// Leaves space free on the file system of this directory, which is written to.
    pub fn on(self, place: OwnedFd) -> Self {
        Self { place: Some(Arc::new(place)), ..self }
    }

    /// The same for something else of the same archive.
    pub fn anew(&self) -> Self {
        Self { place: self.place.clone(), ..Self::new(self.bounds, self.stop.clone()) }
    }

    /// Of a layer's tar, or of a hole in a file.
    pub fn bytes(&self, count: u64) -> Result<(), RootfsError> {
        self.stop.check()?;
        spend(&self.bytes, count, self.bounds.bytes, "bytes, unpacked")?;
        self.look(count)
    }

    /// Something with a path: read, or made on the way to something else.
    pub fn entry(&self, path: &[u8]) -> Result<(), RootfsError> {
        self.stop.check()?;
        spend(&self.entries, 1, self.bounds.entries, "files and directories")?;
        spend(&self.paths, path.len() as u64, self.bounds.paths, "bytes of paths")?;
        self.look(OF_AN_ENTRY)
    }

    /// Refuses to go on where the file system has little left.
    fn look(&self, count: u64) -> Result<(), RootfsError> {
        let unseen = self.unseen.get().saturating_add(count);
        self.unseen.set(unseen);
        let Some(place) = self.place.as_ref().filter(|_| unseen >= LOOK_EVERY) else {
            return Ok(());
        };
        self.unseen.set(0);
        // Where no size is reported there is nothing to compare.
        let space = FreeSpace::of(place).ok().filter(|space| space.size > 0);
        match space.and_then(|space| self.bounds.reserve.shortage(&space)) {
            Some(shortage) => Err(RootfsError::DiskFull { shortage }),
            None => Ok(()),
        }
    }
}

fn spend(spent: &Cell<u64>, count: u64, limit: u64, what: &'static str) -> Result<(), RootfsError> {
    let sum = spent.get().saturating_add(count);
    spent.set(sum);
    if sum > limit { Err(RootfsError::Limit { what, limit }) } else { Ok(()) }
}

impl From<RootfsError> for io::Error {
    /// The check as an `io::Error`, for readers; converted back to the original error by the
    /// caller.
    fn from(error: RootfsError) -> Self {
        Self::other(error)
    }
}
