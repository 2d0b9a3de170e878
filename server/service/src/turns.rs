//! Turns of subjects: so many of one subject and of all at a time, so that no subject waits for what another asks for.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::Duration;

use sandbox_api::service::Subject;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::error::ServiceError;
use crate::lock;

/// The turns of one kind of work. Clones are the same ones.
#[derive(Debug, Clone)]
pub(crate) struct Turns(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    all: Arc<Semaphore>,
    of_a_subject: usize,
    of_subjects: Mutex<HashMap<Subject, Weak<Semaphore>>>,
    max_wait: Duration,
}

/// A turn, until it is dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    _own: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
}

impl Turns {
    /// So many of all and of one subject at a time. Who gets none in this time may try again after it.
    pub fn new(all: usize, of_a_subject: usize, max_wait: Duration) -> Self {
        let (all, of_subjects) = (Arc::new(Semaphore::new(all)), Mutex::default());
        Self(Arc::new(Inner { all, of_a_subject, of_subjects, max_wait }))
    }

    /// Waits for a turn.
    ///
    /// # Errors
    ///
    /// [`ServiceError::too_fast`] if there is none in time.
    pub async fn take(&self, subject: &Subject) -> Result<Turn, ServiceError> {
        let (own, all) = (self.of(subject), self.0.all.clone());
        let turn = async {
            let _own = own.acquire_owned().await.ok()?;
            Some(Turn { _own, _all: all.acquire_owned().await.ok()? })
        };
        let turn = timeout(self.0.max_wait, turn).await.ok().flatten();
        turn.ok_or_else(|| ServiceError::too_fast(self.0.max_wait))
    }

    /// Takes a turn that is free.
    ///
    /// # Errors
    ///
    /// [`ServiceError::too_fast`] if there is none now.
    pub fn try_take(&self, subject: &Subject) -> Result<Turn, ServiceError> {
        let own = self.of(subject).try_acquire_owned();
        match (own, self.0.all.clone().try_acquire_owned()) {
            (Ok(_own), Ok(_all)) => Ok(Turn { _own, _all }),
            _ => Err(ServiceError::too_fast(self.0.max_wait)),
        }
    }

    /// Reads files on a thread of its own, in a turn that is free: how long it takes is up to the subject, and
    /// nothing else waits for it. Dropped work was not started, for want of a thread.
    ///
    /// # Errors
    ///
    /// [`ServiceError::too_fast`] if there is none now.
    pub fn read_files(
        &self,
        subject: &Subject,
        work: impl FnOnce() + Send + 'static,
    ) -> Result<(), ServiceError> {
        let turn = self.try_take(subject)?;
        let work = move || {
            work();
            drop(turn);
        };
        let started = thread::Builder::new().name("read files".to_owned()).spawn(work);
        started.map(drop).map_err(|_| ServiceError::too_fast(self.0.max_wait))
    }

    /// Those of a subject. Subjects that neither have one nor wait for one are forgotten.
    fn of(&self, subject: &Subject) -> Arc<Semaphore> {
        let mut all = lock(&self.0.of_subjects);
        all.retain(|_, own| own.strong_count() > 0);
        if let Some(own) = all.get(subject).and_then(Weak::upgrade) {
            return own;
        }
        let own = Arc::new(Semaphore::new(self.0.of_a_subject));
        all.insert(subject.clone(), Arc::downgrade(&own));
        own
    }
}

#[cfg(test)]
mod tests {
    use sandbox_api::ProblemKind;
    use tokio::time::Instant;

    use super::*;

    const MAX_WAIT: Duration = Duration::from_secs(5);

    #[tokio::test(start_paused = true)]
    async fn subject_has_few_turns_and_others_do_not_wait_for_it() {
        let (turns, since) = (Turns::new(4, 2, MAX_WAIT), Instant::now());
        let [alice, bob] = ["alice", "bob"].map(|name| Subject::new(name).unwrap());
        let held = [turns.take(&alice).await.unwrap(), turns.take(&alice).await.unwrap()];
        drop(turns.take(&bob).await.unwrap());
        assert_eq!(since.elapsed(), Duration::ZERO);
        let refused = turns.take(&alice).await.unwrap_err();
        assert_eq!(refused.problem().kind, ProblemKind::RateLimited);
        assert_eq!(refused.retry_after(), Some(MAX_WAIT));
        assert!(since.elapsed() >= MAX_WAIT);
        let since = Instant::now();
        assert!(turns.try_take(&alice).is_err() && turns.try_take(&bob).is_ok());
        drop(held);
        drop(turns.take(&alice).await.unwrap());
        assert_eq!(since.elapsed(), Duration::ZERO);
        // Those who ask for nothing any more are forgotten.
        drop(turns.of(&bob));
        assert_eq!(turns.0.of_subjects.lock().unwrap().len(), 1);
    }

    #[tokio::test]
    async fn turns_of_all_are_bounded_too() {
        let turns = Turns::new(3, 2, MAX_WAIT);
        let subject = |number: usize| Subject::new(format!("s{number}")).unwrap();
        let held: Vec<_> = (0..3).map(|it| turns.try_take(&subject(it)).unwrap()).collect();
        assert!(turns.try_take(&subject(3)).is_err());
        drop(held);
        assert!(turns.try_take(&subject(3)).is_ok());
    }

    #[test]
    fn slow_readers_of_a_subject_leave_room_for_others() {
        let (all, of_one) = (16, 4);
        let turns = Turns::new(all, of_one, MAX_WAIT);
        let start = |subject: &str| {
            let (sender, end) = std::sync::mpsc::channel::<()>();
            let subject = Subject::new(subject).unwrap();
            turns.read_files(&subject, move || _ = end.recv()).map(|()| sender)
        };
        let is_refused = |subject: &str| {
            start(subject).is_err_and(|it| it.problem().kind == ProblemKind::RateLimited)
        };
        let mut held = Vec::new();
        for number in 0..all / of_one {
            let subject = format!("subject-{number}");
            held.extend((0..of_one).map(|_| start(&subject).unwrap()));
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
