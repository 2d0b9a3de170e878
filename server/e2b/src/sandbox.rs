//! One of E2B's sandboxes: found, paused, resumed, and given another end.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;
use sandbox_api::service::{SandboxPatch, SandboxRef, SandboxStatus, SandboxView, Subject, Time};
use sandbox_api::{ErrorKind, ProblemKind, millis};
use sandbox_service::ServiceError;
use serde_json::{Map, Value};
use tokio::time::{Instant, MissedTickBehavior};

use crate::app::App;
use crate::error::Error;
use crate::marker::{MARKER, Marker, OnTimeout};

/// For how long a pause waits for requests that are just being answered, and how often it looks.
const PAUSE_PATIENCE: Duration = Duration::from_secs(2);
const PAUSE_LOOK: Duration = Duration::from_millis(20);
/// How often sandboxes are looked for whose time is over.
const TICK: Duration = Duration::from_millis(500);

/// A sandbox of E2B's API, as it is now.
#[derive(Debug, Clone)]
pub(crate) struct Sandbox {
    pub subject: Subject,
    pub view: SandboxView,
    pub marker: Marker,
}

/// What a new time is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NewEnd {
    /// With nothing: the end may be earlier than before.
    Exactly,
    /// With the old one: the later of the two is the end.
    NotEarlier,
}

impl Sandbox {
    /// The sandbox, if it is one of E2B's whose time is not over.
    pub fn of(subject: Subject, view: SandboxView) -> Option<Self> {
        let marker = Marker::of(&view.metadata).filter(|_| view.expires_at > Time::now())?;
        Some(Self { subject, view, marker })
    }

    pub fn id(&self) -> &str {
        &self.view.id
    }

    pub fn reference(&self) -> SandboxRef {
        SandboxRef { id: self.view.id.clone(), generation: None }
    }
}

impl App {
    /// The sandbox of a subject.
    pub(crate) async fn find(&self, subject: &Subject, id: &str) -> Result<Sandbox, Error> {
        match self.service().sandbox(subject, id).await {
            Ok(view) => Sandbox::of(subject.clone(), view).ok_or_else(|| Error::no_sandbox(id)),
            Err(error) if is_missing(&error) => Err(Error::no_sandbox(id)),
            Err(error) => Err(error.into()),
        }
    }

    /// Stores what changed of a sandbox, and for how long it is kept from now on.
    async fn change(
        &self,
        sandbox: &Sandbox,
        change: impl FnOnce(&mut Marker),
        ttl: Option<Duration>,
    ) -> Result<Sandbox, Error> {
        // One at a time: each reads what the one before has written.
        let _changing = self.changing().lock().await;
        let Sandbox { subject, view, mut marker } =
            self.find(&sandbox.subject, sandbox.id()).await?;
        let mut metadata = view.metadata;
        change(&mut marker);
        marker.put(&mut metadata);
        let ttl_ms = ttl.map(|ttl| millis(ttl).max(1));
        let patch = SandboxPatch { ttl_ms, metadata: Some(metadata) };
        let view = self.service().patch_sandbox(&subject, sandbox.id(), patch).await?;
        Ok(Sandbox { subject, view, marker })
    }

    /// Gives a sandbox so much time from now on.
    pub(crate) async fn set_end(
        &self,
        sandbox: &Sandbox,
        time: Duration,
        new: NewEnd,
    ) -> Result<(), Error> {
        let (subject, id, service) = (&sandbox.subject, sandbox.id(), self.service());
        match (sandbox.marker.on_timeout, new) {
            (OnTimeout::Kill, NewEnd::Exactly) if time.is_zero() => {
                service.delete_sandbox(subject, id).await?;
            }
            (OnTimeout::Kill, NewEnd::Exactly) => {
                let most = sandbox.view.max_expires_at.since(Time::now());
                if time > most {
                    let message = format!(
                        "this sandbox lives for at most {} s more, and not for {} s",
                        most.as_secs(),
                        time.as_secs()
                    );
                    return Err(Error::invalid(message));
                }
                let patch = SandboxPatch { ttl_ms: Some(millis(time)), metadata: None };
                service.patch_sandbox(subject, id, patch).await?;
            }
            (OnTimeout::Kill, NewEnd::NotEarlier) => {
                service.extend_sandbox(subject, id, time).await?;
            }
            (OnTimeout::Pause, _) => {
                let asked = Time::now().after(time);
                let set = |marker: &mut Marker| {
                    let earliest = marker.ends_at.filter(|_| new == NewEnd::NotEarlier);
                    marker.ends_at = Some(earliest.map_or(asked, |old| old.max(asked)));
                };
                self.change(sandbox, set, None).await?;
            }
        }
        Ok(())
    }

    /// Freezes a sandbox until it is resumed. It is kept for as long as the service keeps any.
    pub(crate) async fn pause(&self, sandbox: &Sandbox) -> Result<(), Error> {
        if sandbox.marker.is_paused {
            let message = format!("sandbox {} is paused already", sandbox.id());
            return Err(Error::new(StatusCode::CONFLICT, message));
        }
        // First, so that no request thaws it; one that was let in before may, and then it is frozen again.
        let longest = Some(self.service().kept_bounds().max_ttl);
        let before = sandbox.view.expires_at.since(Time::now());
        self.change(sandbox, |marker| marker.is_paused = true, longest).await?;
        let paused = self.freeze(sandbox).await;
        if paused.is_err() {
            self.change(sandbox, |marker| marker.is_paused = false, Some(before)).await?;
            // It may have been frozen since, for the mark.
            _ = self.service().resume_sandbox(&sandbox.subject, &sandbox.reference()).await;
        }
        paused
    }

    /// Freezes a paused sandbox again, unless it is in use: then it is tried again.
    async fn freeze_again(&self, sandbox: &Sandbox) {
        if !self.is_paused(sandbox).await {
            return;
        }
        _ = self.service().pause_sandbox(&sandbox.subject, &sandbox.reference()).await;
        // One that was resumed meanwhile goes on.
        if !self.is_paused(sandbox).await {
            _ = self.service().resume_sandbox(&sandbox.subject, &sandbox.reference()).await;
        }
    }

    async fn is_paused(&self, sandbox: &Sandbox) -> bool {
        let now = self.find(&sandbox.subject, sandbox.id()).await;
        now.is_ok_and(|now| now.marker.is_paused)
    }

    async fn freeze(&self, sandbox: &Sandbox) -> Result<(), Error> {
        let since = Instant::now();
        loop {
            let paused = self.service().pause_sandbox(&sandbox.subject, &sandbox.reference()).await;
            match paused {
                Ok(_) => return Ok(()),
                // Without a container nothing of it runs.
                Err(_) if self.is_stopped(sandbox).await => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Usage => {
                    let why = format!("pauses here: {}", error.problem().detail);
                    return Err(Error::not_offered(&why));
                }
                Err(_) if since.elapsed() < PAUSE_PATIENCE => tokio::time::sleep(PAUSE_LOOK).await,
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn is_stopped(&self, sandbox: &Sandbox) -> bool {
        let now = self.service().sandbox(&sandbox.subject, sandbox.id()).await;
        now.is_ok_and(|view| view.status == SandboxStatus::Stopped)
    }

    /// Lets a paused sandbox go on for this time.
    pub(crate) async fn resume(&self, sandbox: &Sandbox, time: Duration) -> Result<Sandbox, Error> {
        let (ends_at, seconds) = (Some(Time::now().after(time)), time.as_secs());
        let ttl = (sandbox.marker.on_timeout == OnTimeout::Kill).then_some(time);
        let set = |marker: &mut Marker| {
            (marker.is_paused, marker.ends_at, marker.timeout) = (false, ends_at, seconds);
        };
        // First: what goes on has an end, whatever fails after it.
        let resumed = self.change(sandbox, set, ttl).await?;
        if let Err(error) =
            self.service().resume_sandbox(&sandbox.subject, &sandbox.reference()).await
        {
            let before = sandbox.view.expires_at.since(Time::now());
            let undo = |marker: &mut Marker| *marker = sandbox.marker.clone();
            self.change(sandbox, undo, Some(before)).await?;
            return Err(error.into());
        }
        Ok(resumed)
    }

    /// Pauses or removes sandboxes whose time is over, and freezes those again that are paused and run, until the
    /// server ends. The service itself waits for what uses one: here its streams end with it.
    pub(crate) async fn end_in_time(self) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // One that does not end holds up no other.
        let ending = Arc::<Mutex<HashSet<String>>>::default();
        while self.stop().run_until_cancelled(ticks.tick()).await.is_some() {
            let of_e2b = |metadata: &Map<String, Value>| metadata.contains_key(MARKER);
            let now = Time::now();
            for (subject, view) in self.service().sandboxes_here(of_e2b) {
                let marker = Marker::of(&view.metadata);
                let marker = marker.filter(|marker| marker.is_to_be_frozen(&view, now));
                let is_due = view.expires_at <= now || marker.is_some();
                let id = view.id.clone();
                if !is_due || !lock(&ending).insert(id.clone()) {
                    continue;
                }
                let (app, ending) = (self.clone(), ending.clone());
                tokio::spawn(async move {
                    app.end(subject, view, marker).await;
                    lock(&ending).remove(&id);
                });
            }
        }
    }

    async fn end(&self, subject: Subject, view: SandboxView, marker: Option<Marker>) {
        let id = view.id.clone();
        let ended = match marker {
            Some(marker) if view.expires_at > Time::now() => {
                let sandbox = Sandbox { subject, view, marker };
                if sandbox.marker.is_paused {
                    return self.freeze_again(&sandbox).await;
                }
                let reference = sandbox.reference();
                let frozen = self.service().pause_sandbox(&sandbox.subject, &reference).await;
                if frozen.is_err() && !self.is_stopped(&sandbox).await {
                    // It is in use, and its users find it running until then.
                    return;
                }
                self.pause(&sandbox).await
            }
            _ => self.service().delete_sandbox(&subject, &id).await.map_err(Error::from),
        };
        if let Err(error) = ended {
            // It is tried again.
            tracing::warn!(id, %error, "a sandbox whose time is over goes on");
        }
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a sandbox is not there, or not any more.
pub(crate) fn is_missing(error: &ServiceError) -> bool {
    matches!(error.problem().kind, ProblemKind::NotFound | ProblemKind::Gone)
}
