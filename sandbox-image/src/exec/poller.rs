//! Waits for the descriptors of many commands at once, with one thread.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

/// How many events are fetched at one time.
const EVENTS: usize = 64;
/// Old kernels know no longer time. Who waits longer is woken in between, for nothing.
const LONGEST_WAIT: Duration = Duration::from_secs(60 * 60);

/// A descriptor of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// What its console, its exit and its stop flag wake.
    Wake,
    /// Its stdout; or its terminal, which is its stdin too.
    Stdout,
    /// Its stderr.
    Stderr,
    /// Its stdin.
    Stdin,
    /// What becomes ready when it has executed its program.
    Launch,
    /// What the kernel reports of watched directories.
    Changes,
}

impl Source {
    const ALL: [Self; 6] =
        [Self::Wake, Self::Stdout, Self::Stderr, Self::Stdin, Self::Launch, Self::Changes];
}

/// Descriptors, each with the number of its command. An event is a change: what is ready stays so, without
/// another event, until a call on it would block. Of a [`Wake`](crate::wake::Wake) each wake-up is one,
/// whether or not it is [seen](crate::wake::Wake::see).
#[derive(Debug)]
pub struct Poller(OwnedFd);

impl Poller {
    /// Starts without any.
    ///
    /// # Errors
    ///
    /// If no descriptor is available.
    pub fn new() -> rustix::io::Result<Self> {
        epoll::create(CreateFlags::CLOEXEC).map(Self)
    }

    /// Adds a descriptor, which leaves when it is closed.
    ///
    /// # Errors
    ///
    /// If the kernel watches no more for this user.
    pub fn add(&self, number: u64, source: Source, what: impl AsFd) -> rustix::io::Result<()> {
        let data = EventData::new_u64(number * Source::ALL.len() as u64 + source as u64);
        let mut flags = EventFlags::IN | EventFlags::ET;
        match source {
            Source::Stdin => flags = EventFlags::OUT | EventFlags::ET,
            // It may be a terminal.
            Source::Stdout => flags |= EventFlags::OUT,
            Source::Wake | Source::Stderr | Source::Launch | Source::Changes => {}
        }
        epoll::add(&self.0, what, data, flags)
    }

    /// Waits for events, and returns them with the numbers; returns none at the latest at that time. An
    /// event may be of a descriptor that was closed.
    pub fn wait(&self, until: Option<Instant>) -> impl Iterator<Item = (u64, Source)> + use<> {
        let left = until.map_or(LONGEST_WAIT, |at| at.saturating_duration_since(Instant::now()));
        let left = Timespec::try_from(left.min(LONGEST_WAIT)).expect("it is short");
        let mut events: Vec<Event> = Vec::with_capacity(EVENTS);
        // A signal is not awaited; nothing else fails.
        _ = epoll::wait(&self.0, spare_capacity(&mut events), Some(&left));
        events.into_iter().map(|event| {
            let (data, kinds) = (event.data.u64(), Source::ALL.len() as u64);
            // The remainder is the place of one of them.
            let source = Source::ALL[usize::try_from(data % kinds).unwrap_or(0)];
            (data / kinds, source)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wake::Wake;

    #[test]
    fn an_event_names_its_command_and_comes_once() {
        let poller = Poller::new().unwrap();
        let (first, second) = (Wake::new().unwrap(), Wake::new().unwrap());
        poller.add(1, Source::Wake, &first).unwrap();
        poller.add(u64::from(u32::MAX), Source::Launch, &second).unwrap();
        let now = || Some(Instant::now());
        assert_eq!(poller.wait(now()).count(), 0);
        second.wake();
        assert_eq!(poller.wait(None).collect::<Vec<_>>(), [(u32::MAX.into(), Source::Launch)]);
        assert_eq!(poller.wait(now()).count(), 0);
        second.wake();
        first.wake();
        assert_eq!(poller.wait(now()).count(), 2);
        drop(first);
        assert_eq!(poller.wait(now()).count(), 0);
    }
}
