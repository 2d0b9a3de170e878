//! Root file systems from image archives: what `docker save` writes, or a tar of an OCI layout, is
//! unpacked into a cache, once for each set of layers.
//!
//! An archive is untrusted: nothing but the file itself is read and nothing outside one new
//! directory is written, in bounded time, memory and disk space. Every digest that it names is
//! verified. Owners, permissions and times are the image's; set-id bits, extended attributes,
//! devices and FIFOs are left out: a sandbox has no use for them.
//!
//! From the file to the tree: `archive` finds the members, `image` reads which layers there
//! are, `stream` decompresses and verifies them, `tar` and `layer` say what is in them,
//! `tree` writes it, and `cache` keeps it.

#![forbid(unsafe_code)]

mod archive;
mod budget;
mod cache;
mod digest;
mod error;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod image;
mod layer;
mod section;
mod stream;
mod tar;
#[cfg(test)]
mod tests;
mod tree;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sandbox_api::DiskReserve;

use self::archive::{Archive, shown};
use self::budget::{Bounds, Budget, Stop};
use self::cache::{Claimed, PartialTree};
use self::image::{Image, Platform};
use self::stream::LayerStream;
use self::tree::Tree;

pub use self::cache::{CachedTree, RootCache};
pub use self::digest::Digest;
pub use self::error::{EntryProblem, RootfsError, TarProblem};

/// Receives progress lines for people.
pub type Progress<'a> = &'a mut (dyn FnMut(&str) + Send);

/// An image that has been unpacked.
#[derive(Debug, Clone)]
pub struct Unpacked {
    /// The path of its tree. It must never be written to.
    pub root: PathBuf,
    /// The tree itself. It stays in the cache for as long as this, or a copy of it, is open.
    pub tree: Arc<OwnedFd>,
    /// The environment of its programs, `NAME=VALUE` each.
    pub env: Vec<String>,
    /// Their working directory, as the image has it.
    pub workdir: Option<String>,
    /// The image's id: its configuration's digest.
    pub digest: Digest,
    /// The archive that was read.
    pub archive: Arc<OwnedFd>,
}

/// Unpacks the image of an archive, or finds it unpacked. `reserve` stays free on the disk of the
/// cache. `progress` gets lines for people.
///
/// Dropping the future stops unpacking and removes the partial tree.
///
/// # Errors
///
/// [`RootfsError`], which says what is wrong with the archive, or with the cache.
pub async fn prepare_archive(
    file: &Path,
    cache: &RootCache,
    reserve: DiskReserve,
    progress: Progress<'_>,
) -> Result<Unpacked, RootfsError> {
    /// The caller has stopped waiting.
    struct Dropped(Stop);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.stop();
        }
    }
    let stop = Stop::default();
    let _dropped = Dropped(stop.clone());
    // Unbounded: there are a few lines per layer.
    let (notices, mut received) = tokio::sync::mpsc::unbounded_channel();
    let (file, cache) = (file.to_owned(), cache.clone());
    let work = tokio::task::spawn_blocking(move || {
        let budget =
            Budget::new(Bounds { reserve, ..Bounds::DEFAULT }, stop.clone()).on(cache.handle()?);
        unpack(&file, &cache, &budget, &stop, &mut |line| _ = notices.send(line))
    });
    while let Some(line) = received.recv().await {
        progress(&line);
    }
    // It is never aborted: it panics or returns.
    work.await.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}

fn unpack(
    file: &Path,
    cache: &RootCache,
    budget: &Budget,
    stop: &Stop,
    say: &mut dyn FnMut(String),
) -> Result<Unpacked, RootfsError> {
    let archive = Archive::open(file, budget, || cache.spool())?;
    let image = image::read(&archive, &Platform::here(), budget)?;
    let place = cache.paths(image.chain());
    let waiting = || say("another process is unpacking the image".to_owned());
    let tree = match place.claim(stop, waiting)? {
        Claimed::Ready(tree) => tree,
        Claimed::Missing(partial) => {
            let tree = fill(&image, partial, budget, say)?;
            cache.tidy();
            tree
        }
    };
    let Image { digest, env, workdir, .. } = image;
    let root = place.root.clone();
    Ok(Unpacked { root, tree, env, workdir, digest, archive: archive.file })
}

/// Unpacks all layers, the lowest first.
fn fill(
    image: &Image,
    partial: PartialTree,
    budget: &Budget,
    say: &mut dyn FnMut(String),
) -> Result<Arc<OwnedFd>, RootfsError> {
    let mut tree = Tree::new(partial.directory()?);
    let layers = image.layers.len();
    for (index, layer) in image.layers.iter().enumerate() {
        let number = index + 1;
        let length = layer.content.length();
        say(format!("unpacking layer {number} of {layers} ({length} bytes)"));
        let mut unpacked = || {
            let stream = LayerStream::new(layer.content.clone(), budget)?;
            let digests = layer::unpack(stream, &mut tree, budget)?.finish()?;
            if let Some(blob) = layer.blob {
                image::verify(&layer.member, blob, digests.blob)?;
            }
            let member = format!("the content of {}", layer.member);
            image::verify(&member, layer.diff, digests.diff)
        };
        unpacked().map_err(|error| match error {
            RootfsError::Cancelled => error,
            error => RootfsError::Layer { layer: number, layers, source: Box::new(error) },
        })?;
    }
    tree.finish()?;
    partial.finish()
}

impl RootfsError {
    fn entry(path: &[u8], problem: EntryProblem) -> Self {
        Self::Entry { path: shown(path), problem }
    }
}
