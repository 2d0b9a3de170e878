//! For tests: a thread that has no free descriptor, while all others do.

use std::fs::File;

/// `CLOSE_RANGE_UNSHARE`: in a table of the thread's own.
const UNSHARE: u32 = 2;

/// Runs `work` in a thread that has as many descriptors as it may, and gives it those.
pub fn without_descriptors<T: Send>(work: impl FnOnce(Vec<File>) -> T + Send) -> T {
    std::thread::scope(|scope| {
        let working = scope.spawn(|| {
            // SAFETY: what others have opened stays open in their table, and is not used here.
            #[expect(unsafe_code, reason = "nothing safe gives a thread a table of its own")]
            let unshared = unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, UNSHARE) };
            assert_eq!(unshared, 0);
            let mut held = vec![File::open("/").unwrap()];
            while let Ok(another) = held[0].try_clone() {
                held.push(another);
            }
            work(held)
        });
        working.join().unwrap()
    })
}
