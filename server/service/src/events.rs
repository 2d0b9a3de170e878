//! The events of an execution as a stream: from the store, then as they come.

use std::collections::VecDeque;
use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::stream::{self, BoxStream};
use sandbox_api::EventRecord;
use sandbox_api::service::Subject;

use crate::core::Core;
use crate::error::ServiceError;
use crate::feed::FeedRead;
use crate::live::Live;
use crate::service::Service;

/// How many events are read at one time: a reader that takes none has them in memory.
const PIECE: usize = 16;

/// Events, in order. It ends after the end of the execution, or with an error.
pub type Events = BoxStream<'static, Result<Arc<EventRecord>, ServiceError>>;

impl Service {
    /// The events of an execution after this number, 0 for all: those that were before, and then
    /// those that come, up to its end. A reader takes them when it wants to: a slow one slows nothing.
    ///
    /// # Errors
    ///
    /// [`ServiceError::not_found`] if this subject has none of this id.
    pub async fn events(
        &self,
        subject: &Subject,
        id: &str,
        after: u64,
    ) -> Result<Events, ServiceError> {
        let core = self.core.clone();
        let live = core.find_live(subject, id);
        if live.is_none() {
            core.records.stored(subject, id).await?;
        }
        let (ready, has_ended) = (VecDeque::new(), false);
        let (subject, id) = (subject.clone(), id.to_owned());
        let reader = Reader { core, live, subject, id, after, ready, has_ended };
        let events = stream::try_unfold(reader, |mut reader| async {
            reader.next().await.map(|next| next.map(|event| (event, reader)))
        });
        Ok(events.boxed())
    }
}

struct Reader {
    core: Arc<Core>,
    live: Option<Arc<Live>>,
    subject: Subject,
    id: String,
    /// The number of the last event that was read.
    after: u64,
    ready: VecDeque<Arc<EventRecord>>,
    has_ended: bool,
}

impl Reader {
    /// The next event. Nothing comes after an error, or after none.
    async fn next(&mut self) -> Result<Option<Arc<EventRecord>>, ServiceError> {
        if self.ready.is_empty() && !self.has_ended {
            self.fill().await?;
        }
        let next = self.ready.pop_front();
        if let Some(event) = &next {
            self.after = event.seq;
            self.has_ended = event.event.is_end();
        }
        Ok(next)
    }

    /// Reads the next events, or none at the end.
    async fn fill(&mut self) -> Result<(), ServiceError> {
        loop {
            if self.fill_live().await? {
                return Ok(());
            }
            let mut progress = self.core.followed(&self.id);
            while self.live.is_none() {
                // Before it looks: what comes after is noticed.
                let has_ended =
                    progress.as_mut().is_none_or(|progress| progress.borrow_and_update().has_ended);
                if self.fill_stored().await? || has_ended {
                    return Ok(());
                }
                if let Some(progress) = &mut progress {
                    _ = progress.changed().await;
                }
                // It may have come to this node.
                self.live = self.core.find_live(&self.subject, &self.id);
            }
        }
    }

    /// Reads the next events that are stored; whether there are any.
    async fn fill_stored(&mut self) -> Result<bool, ServiceError> {
        let Self { core, subject, id, after, .. } = self;
        let events = core.records.events(subject, id, *after, PIECE).await?;
        self.ready = events.into_iter().map(Arc::new).collect();
        Ok(!self.ready.is_empty())
    }

    /// Reads the next events of one that is here; whether it did, or it has ended.
    async fn fill_live(&mut self) -> Result<bool, ServiceError> {
        while let Some(live) = &self.live {
            let mut last = live.feed.subscribe();
            // Before it looks: what comes after is noticed.
            last.borrow_and_update();
            match live.feed.after(self.after, PIECE) {
                FeedRead::Events(events) => {
                    self.ready = events.into();
                    return Ok(true);
                }
                FeedRead::Ended => return Ok(true),
                FeedRead::InStore => {
                    if self.fill_stored().await? {
                        return Ok(true);
                    }
                    self.live = None;
                }
                // The feed lives as long as this reader.
                FeedRead::NotYet => _ = last.changed().await,
            }
        }
        Ok(false)
    }
}
