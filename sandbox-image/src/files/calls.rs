//! Counts the calls that name entries of directories, for tests.

/// Counts a call that names an entry at this depth below the top, for the tests.
#[cfg(not(test))]
pub(super) const fn count_call(_depth: usize) {}
#[cfg(test)]
pub(super) fn count_call(depth: usize) {
    counted::CALLS.set(counted::CALLS.get() + 1);
    counted::STEPS.set(counted::STEPS.get() + depth as u64);
}

/// The cost of an operation, in this thread.
#[cfg(test)]
pub(super) mod counted {
    use std::cell::Cell;

    thread_local! {
        /// Calls that name a directory or one of its entries.
        pub static CALLS: Cell<u64> = const { Cell::new(0) };
        /// Directories below the top that Landlock checks for them.
        pub static STEPS: Cell<u64> = const { Cell::new(0) };
    }
}
