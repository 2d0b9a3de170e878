//! File access by directory descriptors, for the agent and for the host: opening paths beneath a
//! directory, bounded walks, the identity of files, files with holes or several names, private and locked
//! directories, free space, random names.

#![forbid(unsafe_code)]

mod access;
mod disk_usage;
mod free_space;
mod identity;
mod lock;
mod names;
mod private_dir;
mod random;
mod real_path;
mod remove_tree;
mod resolve;
mod sparse;
mod stamp;
mod walk;

pub use access::{Access, check_access};
pub use disk_usage::{DiskMeter, DiskUsage};
pub use free_space::{FreeSpace, is_local};
pub use identity::Identity;
pub use lock::{create_locked_dir, is_locked_file, lock_directory};
pub use names::{CopyAllowance, KnownFiles, link_below};
pub use private_dir::{check_private_dir, create_private_dir, open_private_child};
pub use random::{from_hex, hex, is_random_hex, random_hex};
pub use real_path::real_path;
pub use remove_tree::{remove_opened_tree, remove_tree};
pub use resolve::{
    Directory, Links, Resolver, Root, Within, again, clean, open_path, path_of, probe, retry,
    split, unescape,
};
pub use sparse::{HoleAllowance, SparseReader, next_data};
pub use stamp::FileStamp;
pub use walk::{ScanCoverage, Visit, WalkBounds, join, open_child, open_directory, walk};
