//! Sealed executables in memory: they exist in no directory, and no process can modify them, not
//! even their creator.

use std::ffi::CStr;
use std::fs::{File, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;

use crate::agent::Content;

/// Prevents all changes of the content and of these seals.
const SEALS: SealFlags =
    SealFlags::SEAL.union(SealFlags::SHRINK).union(SealFlags::GROW).union(SealFlags::WRITE);

/// The number of attempts to seal while pages are in use: five seconds, because the kernel waits
/// for each.
const SEAL_ATTEMPTS: u32 = 30;

/// Seals an executable with this content. `name` is what the kernel shows instead of its path.
pub fn seal(name: &CStr, content: Content<'_>) -> io::Result<OwnedFd> {
    let mut file = File::from(memory(name)?);
    content.write_to(&mut file)?;
    // It is executed by users of any container, and none needs to write to it.
    file.set_permissions(Permissions::from_mode(0o555))?;
    // The seal of the mode exists only in newer kernels. It is not what protects the content.
    match add_seals(&file, SEALS | SealFlags::EXEC) {
        Err(Errno::INVAL) => add_seals(&file, SEALS)?,
        sealed => sealed?,
    }
    Ok(file.into())
}

/// Adds seals. The kernel refuses them while it holds pages of the file for itself, as when it moves
/// memory. It waits a sixth of a second for these pages each time.
fn add_seals(file: &File, seals: SealFlags) -> Result<(), Errno> {
    let mut attempts = (0..SEAL_ATTEMPTS).map(|_| rustix::fs::fcntl_add_seals(file, seals));
    attempts.find(|sealed| *sealed != Err(Errno::BUSY)).unwrap_or(Err(Errno::BUSY))
}

/// Creates a memfd that may be executed.
fn memory(name: &CStr) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let made = match rustix::fs::memfd_create(name, flags | MemfdFlags::EXEC) {
        // Before Linux 6.3 every memfd may be executed.
        Err(Errno::INVAL) => rustix::fs::memfd_create(name, flags),
        made => made,
    };
    made.map_err(|errno| match errno {
        Errno::ACCESS => io::Error::other(
            "this machine executes no program from memory: the sysctl vm.memfd_noexec must be 0 or 1",
        ),
        errno => errno.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::{Read as _, Write as _};
    use std::process::Command;

    use rustix::pipe::SpliceFlags;

    use crate::program::Program;

    #[test]
    fn seals_wait_for_pages_that_are_in_use() {
        let mut file = File::from(memory(c"program").unwrap());
        file.write_all(&[0; 4096]).unwrap();
        // The pipe holds the page itself, not a copy.
        let (mut reader, writer) = io::pipe().unwrap();
        let moved =
            rustix::pipe::splice(&file, Some(&mut 0), &writer, None, 4096, SpliceFlags::empty());
        assert_eq!(moved, Ok(4096));
        drop(writer);
        assert_eq!(rustix::fs::fcntl_add_seals(&file, SEALS), Err(Errno::BUSY));
        let other = std::thread::spawn(move || reader.read_to_end(&mut Vec::new()));
        assert_eq!(add_seals(&file, SEALS), Ok(()));
        assert_eq!(other.join().unwrap().unwrap(), 4096);
    }

    #[test]
    fn a_sealed_program_runs_and_cannot_be_changed() {
        let bytes = fs::read("/bin/true").unwrap();
        let program = Program::in_memory(c"program", Content::Plain(&bytes)).unwrap();
        assert!(Command::new(program.path()).status().unwrap().success());
        let open = |options: &mut fs::OpenOptions| options.open(program.path());
        let refused = |result: io::Result<()>| {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
        };
        // Not even by root with a descriptor that its creator still has.
        refused(rustix::io::pwrite(&program, b"#!/bin/sh", 0).map(|_| ()).map_err(io::Error::from));
        refused(rustix::fs::ftruncate(&program, 0).map_err(io::Error::from));
        if let Ok(mut file) = open(File::options().write(true)) {
            refused(file.write_all(b"#!/bin/sh"));
            refused(file.set_len(0));
            refused(file.set_len(1 << 30));
        }
        refused(rustix::fs::fcntl_add_seals(&program, SealFlags::empty()).map_err(io::Error::from));
        assert_eq!(fs::read(program.path()).unwrap(), bytes);
    }
}
