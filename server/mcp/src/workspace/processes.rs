//! The processes of a workspace. They live in one sandbox, beside that of the file tools, with the same files.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt as _;
use sandbox_api::service::{SandboxRef, Subject};
use sandbox_api::{
    ErrorKind, Failure, GuestPath, Ports, Preview, PreviewRequest, ProblemKind, ProcessRequest,
    ProcessState, ProcessView, ReadFrom, ReadMode, WatchRecord, WatchRequest,
};
use sandbox_service::{Events, ProcessFilter, Service, ServiceError};

use super::Workspace;
use crate::{lock, uris};

/// The title of the sandbox of processes.
const PROCESSES: &str = "mcp processes";
/// The most that run at one time, what they leave behind included.
pub(crate) const MAX_PROCESSES: usize = 16;
/// How often the ports are looked at while one is awaited.
const LOOK_AT_PORT: Duration = Duration::from_millis(100);

impl Workspace {
    /// Starts a process.
    pub(crate) async fn start_process(
        &self,
        request: ProcessRequest,
    ) -> Result<ProcessView, Failure> {
        let _starting = self.processes.starting.lock().await;
        let listed = self.list_processes().await?;
        let living = listed.iter().filter(|view| view.state != ProcessState::Ended).count();
        if living >= MAX_PROCESSES {
            let message = format!("{living} processes run, the most that there may be");
            let hint = "list_processes shows them, and stop_process stops one";
            return Err(Failure::new(ErrorKind::Busy, message, Some(hint.to_owned())));
        }
        let (service, subject) = (self.service()?, &self.subject);
        // Previews are signed: a port is open only to clients that were given its preview.
        let ports = if service.previews().is_some() { Ports::Any } else { Ports::default() };
        let spec = || self.spec().processes(sandbox_api::Processes::Kept).ports(ports.clone());
        let sandbox = service.attached_sandbox(subject, PROCESSES, spec).await;
        let sandbox = sandbox.map_err(|error| self.failure(&error))?;
        let started = service.start_process(subject, &sandbox, request, None).await;
        let started = started.map_err(|error| self.failure(&error))?;
        let sandbox = SandboxRef { generation: Some(started.generation), ..sandbox };
        *lock(&self.processes.sandbox) = Some(sandbox);
        self.watch_files_of_processes();
        Ok(started.value)
    }

    /// Notifies clients of what processes change in files to which they have subscribed, while there are both.
    pub(super) fn watch_files_of_processes(&self) {
        let Ok((service, subject, sandbox)) = self.process_sandbox() else { return };
        if !lock(&self.subscribers).has_any() {
            return;
        }
        let watched = self.processes.watched.clone();
        if lock(&watched).replace(sandbox.clone()).is_some_and(|it| it == sandbox) {
            return;
        }
        let (subject, subscribers) = (subject.clone(), Arc::clone(&self.subscribers));
        let (mount, closing) = (self.settings.sandbox.mount_path.clone(), self.closing.clone());
        self.runs.spawn(async move {
            loop {
                let followed = async {
                    let request = WatchRequest { path: mount.clone().into(), recursive: true };
                    let mut watch =
                        service.watch_attached_files(&subject, &sandbox, request).await?;
                    // Any of them may have changed before the watch was on.
                    let mut path = None;
                    while lock(&subscribers).has_any() {
                        lock(&subscribers).touch(path.as_ref().map(std::slice::from_ref));
                        path = match watch.next().await.transpose()? {
                            Some(WatchRecord::Event(event)) => {
                                GuestPath::new(uris::path_below(&mount, event.name.as_bytes())).ok()
                            }
                            Some(WatchRecord::Omitted { .. }) => None,
                            None => break,
                        };
                    }
                    Ok::<_, ServiceError>(())
                };
                let followed = tokio::select! {
                    () = closing.cancelled() => return,
                    followed = followed => followed,
                };
                if let Err(error) = &followed {
                    tracing::debug!(%error, "files are not watched any more");
                }
                let is_wanted = || followed.is_ok() && lock(&subscribers).has_any();
                if !goes_on(&watched, &sandbox, is_wanted) {
                    return;
                }
            }
        });
    }

    /// Waits until something in their sandbox listens on this port.
    pub(crate) async fn listens(&self, port: u16) -> Result<(), Failure> {
        let (service, subject, sandbox) = self.process_sandbox()?;
        loop {
            let listed = service.listening_ports(subject, &sandbox).await;
            let listed = listed.map_err(|error| self.failure(&error))?;
            if listed.value.ports.iter().any(|it| it.port == port) {
                return Ok(());
            }
            tokio::time::sleep(LOOK_AT_PORT).await;
        }
    }

    /// Opens a preview of a port in their sandbox.
    pub(crate) fn open_port(&self, port: u16, request: PreviewRequest) -> Result<Preview, Failure> {
        let (service, subject, sandbox) = self.process_sandbox()?;
        let opened = service.open_attached_preview(subject, &sandbox, port, request);
        opened.map_err(|error| self.failure(&error))
    }

    /// Those that run and those that ended lately, the latest first.
    pub(crate) async fn list_processes(&self) -> Result<Vec<ProcessView>, Failure> {
        let Ok((service, subject, sandbox)) = self.process_sandbox() else {
            return Ok(Vec::new());
        };
        match service.processes(subject, &sandbox, ProcessFilter::default()).await {
            Ok(listed) => Ok(listed.value.processes),
            Err(error) if is_gone(&error) => Ok(Vec::new()),
            Err(error) => Err(self.failure(&error)),
        }
    }

    /// A process, once it has exited or after this time.
    pub(crate) async fn process(&self, id: u32, wait: Duration) -> Result<ProcessView, Failure> {
        let (service, subject, sandbox) = self.process_sandbox()?;
        let found = service.process(subject, &sandbox, id, wait).await;
        Ok(found.map_err(|error| self.failure(&error))?.value)
    }

    /// Its events after this number. A slow reader does not hold it up.
    pub(crate) async fn process_events(&self, id: u32, after: u64) -> Result<Events, Failure> {
        let (service, subject, sandbox) = self.process_sandbox()?;
        let from = ReadFrom::After(after);
        let events = service.process_events(subject, &sandbox, id, from, ReadMode::Lossy).await;
        events.map_err(|error| self.failure(&error))
    }

    /// Sends it input.
    pub(crate) async fn write_process(&self, id: u32, text: String) -> Result<(), Failure> {
        let (service, subject, sandbox) = self.process_sandbox()?;
        let bytes = text.into_bytes().into();
        let written = service.write_process_stdin(subject, &sandbox, id, bytes).await;
        written.map_err(|error| self.failure(&error))
    }

    /// Closes its stdin.
    pub(crate) async fn close_process_stdin(&self, id: u32) -> Result<(), Failure> {
        let (service, subject, sandbox) = self.process_sandbox()?;
        let closed = service.close_process_stdin(subject, &sandbox, id).await;
        closed.map_err(|error| self.failure(&error))
    }

    /// Stops it and all that it has started, and waits for this up to so long.
    pub(crate) async fn stop_process(
        &self,
        id: u32,
        wait: Duration,
    ) -> Result<ProcessView, Failure> {
        let (service, subject, sandbox) = self.process_sandbox()?;
        let stopped = service.stop_process(subject, &sandbox, id, wait).await;
        Ok(stopped.map_err(|error| self.failure(&error))?.value)
    }

    /// Where the processes are, if any was started.
    fn process_sandbox(&self) -> Result<(Service, &Subject, SandboxRef), Failure> {
        let (service, subject) = (self.service()?, &self.subject);
        let sandbox = lock(&self.processes.sandbox);
        let hint = Some("start_process starts one".to_owned());
        let none = || Failure::new(ErrorKind::NotFound, "no process was started", hint);
        Ok((service, subject, sandbox.clone().ok_or_else(none)?))
    }
}

/// Whether the files of a sandbox, whose watch is over, are to be watched again; if not, they are not `watched`
/// from here on. A client that subscribes at the same time is seen here, or starts the next watch.
fn goes_on(
    watched: &Mutex<Option<SandboxRef>>,
    sandbox: &SandboxRef,
    is_wanted: impl FnOnce() -> bool,
) -> bool {
    let mut watched = lock(watched);
    if watched.as_ref() != Some(sandbox) {
        return false;
    }
    let is_wanted = is_wanted();
    if !is_wanted {
        *watched = None;
    }
    is_wanted
}

fn is_gone(error: &ServiceError) -> bool {
    matches!(error.problem().kind, ProblemKind::Gone | ProblemKind::NotFound)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_that_subscribes_while_a_watch_ends_is_seen_or_starts_the_next() {
        let sandbox = SandboxRef { id: "a".to_owned(), generation: Some(1) };
        let watched = Mutex::new(Some(sandbox.clone()));
        // No subscriber finds the files watched between the question and the end.
        let is_wanted = |answer| {
            let watched = &watched;
            move || watched.try_lock().is_err() && answer
        };
        assert!(goes_on(&watched, &sandbox, is_wanted(true)));
        assert_eq!(*lock(&watched), Some(sandbox.clone()));
        assert!(!goes_on(&watched, &sandbox, is_wanted(false)));
        assert_eq!(*lock(&watched), None);
        // Those of the next sandbox have a watch of their own.
        let next = SandboxRef { generation: Some(2), ..sandbox.clone() };
        *lock(&watched) = Some(next.clone());
        assert!(!goes_on(&watched, &sandbox, is_wanted(true)));
        assert_eq!(*lock(&watched), Some(next));
    }
}
