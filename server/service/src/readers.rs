//! Who reads the files of executions, each on a thread of its own.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use sandbox_api::service::Subject;

use crate::error::ServiceError;

/// How many executions' files are read at one time, in all and for one subject. Each reader has a
/// thread of its own: how long it takes is up to the subject, and nothing else waits for it.
const READERS: usize = 16;
const OF_A_SUBJECT: usize = 4;
/// When to try again if there are too many.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The subjects of those that are reading.
#[derive(Debug, Default)]
pub(crate) struct Readers(Arc<Mutex<Vec<Subject>>>);

/// The place of one of them.
struct ReaderSlot {
    readers: Arc<Mutex<Vec<Subject>>>,
    subject: Subject,
}

impl Readers {
    /// Starts a thread for a subject. Dropped work was not started, for want of a thread.
    ///
    /// # Errors
    ///
    /// [`ServiceError::too_fast`] if there are as many as there may be.
    pub fn start(
        &self,
        subject: &Subject,
        work: impl FnOnce() + Send + 'static,
    ) -> Result<(), ServiceError> {
        let too_many = || ServiceError::too_fast(RETRY_AFTER);
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let own = all.iter().filter(|reading| *reading == subject).count();
        if all.len() >= READERS || own >= OF_A_SUBJECT {
            return Err(too_many());
        }
        all.push(subject.clone());
        drop(all);
        let slot = ReaderSlot { readers: Arc::clone(&self.0), subject: subject.clone() };
        let work = move || {
            work();
            drop(slot);
        };
        let started = thread::Builder::new().name("read files".to_owned()).spawn(work);
        started.map(drop).map_err(|_| too_many())
    }
}

impl Drop for ReaderSlot {
    fn drop(&mut self) {
        let mut all = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = all.iter().position(|reading| *reading == self.subject) {
            all.swap_remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use sandbox_api::ProblemKind;

    use super::*;

    #[test]
    fn slow_readers_of_a_subject_leave_room_for_others() {
        let readers = Readers::default();
        let start = |subject: &str| {
            let (sender, end) = mpsc::channel::<()>();
            let subject = Subject::new(subject).unwrap();
            readers.start(&subject, move || _ = end.recv()).map(|()| sender)
        };
        let is_refused = |subject: &str| {
            start(subject).is_err_and(|it| it.problem().kind == ProblemKind::RateLimited)
        };
        let mut held = Vec::new();
        for number in 0..READERS / OF_A_SUBJECT {
            let subject = format!("subject-{number}");
            held.extend((0..OF_A_SUBJECT).map(|_| start(&subject).unwrap()));
            assert!(is_refused(&subject));
        }
        assert!(is_refused("last"));
        held.pop();
        // It is noticed soon.
        while is_refused("last") {
            thread::yield_now();
        }
    }
}
