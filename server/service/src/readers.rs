//! Who reads the files of executions, each on a thread of its own.

use std::thread;
use std::time::Duration;

use sandbox_api::service::Subject;

use crate::error::ServiceError;
use crate::turns::Turns;

/// How many executions' files are read at one time, in all and for one subject. Each reader has a
/// thread of its own: how long it takes is up to the subject, and nothing else waits for it.
const READERS: usize = 16;
const OF_A_SUBJECT: usize = 4;
/// When to try again if there are too many.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Those that are reading.
#[derive(Debug)]
pub(crate) struct Readers(Turns);

impl Default for Readers {
    fn default() -> Self {
        Self(Turns::new(READERS, OF_A_SUBJECT, RETRY_AFTER))
    }
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
        let turn = self.0.try_take(subject)?;
        let work = move || {
            work();
            drop(turn);
        };
        let started = thread::Builder::new().name("read files".to_owned()).spawn(work);
        started.map(drop).map_err(|_| ServiceError::too_fast(RETRY_AFTER))
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
