//! What nodes tell each other so that none has to look: that something waits, and that an execution ended. They say it
//! in transactions of their own, several at a time, because the commit of a notification takes a lock that all
//! notifying transactions share. One that is lost costs a moment: everybody looks regularly too.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::{Receiver, channel};
use tokio_postgres::{AsyncMessage, Client};

use super::Cluster;
use super::connect::{Connector, Messages, Purpose};
use super::parameters::bind;
use crate::cluster::Wake;
use crate::error::StoreError;

/// How long what is to be said next is collected, at first, and at most while there is always something. What comes
/// after a silence is said at once.
const COLLECT: Duration = Duration::from_millis(5);
const LONGEST_COLLECT: Duration = Duration::from_millis(20);
/// The most that is said at one time; PostgreSQL allows less than 8,000 bytes.
const MAX_PAYLOAD: usize = 7900;
/// What waits to be said; more is lost.
const BACKLOG: usize = 1024;
/// The pause before a connection that was lost is made again.
const RECONNECT: Duration = Duration::from_millis(500);

impl Cluster {
    /// Whether wake-ups come; if not, what waits has to be looked for.
    #[must_use]
    pub fn listens(&self) -> bool {
        self.database.listens
    }

    /// Calls back with what nodes announce, as long as that returns `true`, on a thread of the database, which must
    /// not be blocked.
    pub fn listen(&self, wake: impl Fn(Wake) -> bool + Send + Sync + 'static) {
        if !self.listens() {
            return;
        }
        let (sender, receiver) = channel(BACKLOG);
        if self.announcements.set(sender).is_ok() {
            let connector = self.database.connector.clone();
            self.database.runtime.handle().spawn(keep_listening(connector, receiver, wake));
        }
    }

    /// Tells all nodes that listen.
    pub fn announce(&self, wake: Wake) {
        if let Some(announcements) = self.announcements.get() {
            _ = announcements.try_send(wake);
        }
    }
}

async fn keep_listening(
    connector: Arc<Connector>,
    mut announced: Receiver<Wake>,
    wake: impl Fn(Wake) -> bool,
) {
    loop {
        if let Ok((client, messages)) = connector.connect_raw(Purpose::Read).await {
            tokio::select! {
                goes_on = hear(messages, &wake) => if !goes_on { return },
                said = say(&client, &mut announced, &wake) => match said {
                    Ok(()) => return,
                    Err(error) => tracing::debug!(%error, "the nodes do not hear each other"),
                },
            }
        }
        tokio::time::sleep(RECONNECT).await;
    }
}

/// Passes on what comes, until the connection is lost. Whether it still has a listener.
async fn hear(mut messages: Messages, wake: &impl Fn(Wake) -> bool) -> bool {
    loop {
        match poll_fn(|context| messages.poll_message(context)).await {
            Some(Ok(AsyncMessage::Notification(said))) => {
                let mut all = said.payload().lines().map(|line| match line.strip_prefix('e') {
                    Some(id) => Wake::Changed(id.to_owned()),
                    None => Wake::Queued,
                });
                if !all.all(wake) {
                    return false;
                }
            }
            Some(Ok(_)) => {}
            Some(Err(_)) | None => return true,
        }
    }
}

/// Listens, and says what is to be said, until the connection or the store is gone.
async fn say(
    client: &Client,
    announced: &mut Receiver<Wake>,
    wake: &impl Fn(Wake) -> bool,
) -> Result<(), StoreError> {
    client.batch_execute("LISTEN sandboxctl").await?;
    if !wake(Wake::Missed) {
        return Ok(());
    }
    let mut collect = COLLECT;
    loop {
        let collected = announced.try_recv().ok();
        collect = next_collect(collect, collected.is_some());
        let mut next = match collected {
            Some(first) => Some(first),
            None => announced.recv().await,
        };
        if next.is_none() {
            return Ok(());
        }
        let (mut payload, mut is_queued) = (String::new(), false);
        while let Some(wake) = next {
            match wake {
                Wake::Changed(id) => {
                    payload.push('e');
                    payload.push_str(&id);
                    payload.push('\n');
                }
                Wake::Queued | Wake::Missed => is_queued = true,
            }
            // An id has 24 characters.
            next = (payload.len() < MAX_PAYLOAD - 64).then(|| announced.try_recv().ok()).flatten();
        }
        if is_queued {
            payload.push('q');
        }
        let statement = "SELECT pg_notify('sandboxctl', $1)";
        client.query_typed(statement, &[bind(&payload)]).await?;
        tokio::time::sleep(collect).await;
    }
}

/// Everything that is said wakes each node, and a process of the database for it. Where much is said, all are busy, and
/// look for themselves when they have a slot.
fn next_collect(last: Duration, goes_on: bool) -> Duration {
    match goes_on {
        true => (last * 2).min(LONGEST_COLLECT),
        false => COLLECT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_all_the_time_is_collected_longer() {
        let mut collect = COLLECT;
        let said = [true, true, true, false, true].map(|goes_on| {
            collect = next_collect(collect, goes_on);
            collect.as_millis()
        });
        assert_eq!(said, [10, 20, 20, 5, 10]);
    }
}
