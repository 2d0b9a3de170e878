//! Processes of a sandbox without a container: the first word of the line says what each does.
//!
//! `echo WORD...` prints each word and ends, `cat` prints its words and what it is given until its stdin is closed,
//! `sleep` runs until a signal ends it, `leave` exits and leaves something behind that prints nothing and lives as long
//! as the sandbox, `exit CODE` and anything else end at once.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream;
use futures_util::{FutureExt as _, StreamExt as _};
use sandbox_api::service::Time;
use sandbox_api::{
    CommandLine, EventRecord, ExecutionEvent, Exit, OutputStream, ProcessCommand, ProcessState,
    ProcessStop, ProcessView, ReadFrom, ReadMode, Recorded, SignalName, SignalRequest, Stdin,
    TerminalSize,
};
use sandbox_controller::{KeptOutput, Until};
use serde_json::value::to_raw_value;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::error::ServiceError;
use crate::launcher::{Called, GuestProcess, ProcessEvents};

/// Handles of one are the same process.
#[derive(Clone)]
pub(super) struct FakeProcess {
    state: Arc<Mutex<State>>,
    /// It has one more event.
    changed: watch::Sender<()>,
}

struct State {
    view: ProcessView,
    events: Vec<Arc<EventRecord>>,
    scrollback: u64,
    ended: Option<Instant>,
    /// What it is given is printed.
    is_echo: bool,
    /// None if it never had one.
    stdin_is_open: Option<bool>,
    size: Option<TerminalSize>,
}

impl State {
    fn add(&mut self, event: impl Into<Recorded>) {
        let seq = self.view.last_event + 1;
        (self.view.first_event, self.view.last_event) = (self.view.first_event.max(1), seq);
        let (time, event) = (Time::now(), event.into());
        self.events.push(Arc::new(EventRecord { seq, time, name: None, event }));
    }

    fn print(&mut self, data: Bytes) {
        self.add(ExecutionEvent::Output { stream: OutputStream::Stdout, data });
    }

    /// The bytes that are kept of its output.
    fn bytes(&self) -> u64 {
        let printed = |event: &Arc<EventRecord>| match &event.event {
            Recorded::Event(ExecutionEvent::Output { data, .. }) => data.len() as u64,
            _ => 0,
        };
        self.events.iter().map(printed).sum()
    }

    const fn has_ended(&self) -> bool {
        matches!(self.view.state, ProcessState::Ended)
    }

    fn takes_input(&self) -> Result<(), ServiceError> {
        match self.stdin_is_open {
            None => Err(ServiceError::no_stdin()),
            Some(_) if self.has_ended() => Err(ServiceError::process_ended()),
            Some(false) => Err(ServiceError::no_stdin()),
            Some(true) => Ok(()),
        }
    }

    /// Its program ends.
    fn exit(&mut self, exit: Exit) {
        self.add(ExecutionEvent::Exited(exit));
        let (exit_code, signal) = match exit {
            Exit::Code(code) => (Some(code), None),
            Exit::Signal(signal) => (None, Some(signal)),
        };
        let (state, exited_at) = (ProcessState::Left, Some(Time::now()));
        self.view = ProcessView { state, exited_at, exit_code, signal, ..self.view.clone() };
    }

    fn end(&mut self, exit: Exit, stopped: Option<ProcessStop>) {
        if self.has_ended() {
            return;
        }
        if self.view.state == ProcessState::Running {
            self.exit(exit);
        }
        let (exit_code, signal) = (self.view.exit_code, self.view.signal);
        let last_event = self.view.last_event + 1;
        self.view = ProcessView {
            state: ProcessState::Ended,
            stopped,
            cpu_ms: Some(7),
            peak_memory_bytes: Some(1 << 20),
            ..self.view.clone()
        };
        let document = to_raw_value(&ProcessView { last_event, ..self.view.clone() }).unwrap();
        let exit_code = exit_code.unwrap_or_else(|| 128 + signal.unwrap_or_default());
        self.ended = Some(Instant::now());
        self.add(Recorded::End { exit_code, document });
    }
}

impl FakeProcess {
    /// The process of this id.
    pub fn start(id: u32, generation: u64, command: ProcessCommand) -> Self {
        let ProcessCommand { command, open_stdin, tag, scrollback } = command;
        let words = match command.what {
            CommandLine::Shell(line) => vec![line],
            CommandLine::Program { program, args } => {
                std::iter::once(program).chain(args).collect()
            }
        };
        let line = String::from_utf8(words.join(&b' ')).unwrap();
        let view = ProcessView {
            id,
            pid: 100 + id,
            generation,
            command: line.clone(),
            tag,
            state: ProcessState::Running,
            pty: command.pty.is_some(),
            started_at: Time::now(),
            exited_at: None,
            exit_code: None,
            signal: None,
            stopped: None,
            out_of_memory: None,
            cpu_ms: None,
            peak_memory_bytes: None,
            first_event: 0,
            last_event: 0,
        };
        let size = command.pty.map(|pty| TerminalSize { cols: pty.cols, rows: pty.rows });
        let mut words = line.split(' ');
        let verb = words.next().unwrap_or_default();
        let is_echo = verb == "cat";
        let mut state = State {
            view,
            events: Vec::new(),
            scrollback: scrollback.as_u64(),
            ended: None,
            is_echo,
            stdin_is_open: open_stdin.then_some(true),
            size,
        };
        state.add(ExecutionEvent::Started);
        match (verb, command.stdin) {
            ("cat", Stdin::Bytes(bytes)) => state.print(bytes.into()),
            ("echo" | "cat", _) => words.for_each(|word| state.print(word.to_owned().into())),
            _ => {}
        }
        let code = match verb {
            "exit" => line.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0),
            _ => 0,
        };
        match verb {
            "leave" => state.exit(Exit::Code(0)),
            "sleep" => {}
            "cat" if open_stdin => {}
            _ => state.end(Exit::Code(code), None),
        }
        Self { state: Arc::new(Mutex::new(state)), changed: watch::Sender::new(()) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something to it, which its readers see.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let changed = change(&mut self.state());
        self.changed.send_replace(());
        changed
    }

    /// Ends it with its sandbox.
    pub fn kill(&self) {
        self.change(|state| state.end(Exit::Signal(9), None));
    }

    /// The event after this one, when there is one; `None` after the end.
    async fn next(&self, after: u64) -> Option<Arc<EventRecord>> {
        let mut changed = self.changed.subscribe();
        loop {
            {
                let state = self.state();
                if let Some(event) = state.events.iter().find(|event| event.seq > after) {
                    return Some(event.clone());
                }
                if state.has_ended() {
                    return None;
                }
            }
            _ = changed.changed().await;
        }
    }
}

impl GuestProcess for FakeProcess {
    fn id(&self) -> u32 {
        self.state().view.id
    }

    fn view(&self) -> ProcessView {
        self.state().view.clone()
    }

    fn scrollback(&self) -> u64 {
        self.state().scrollback
    }

    fn kept_output(&self) -> Option<KeptOutput> {
        let state = self.state();
        let bytes = state.bytes();
        state.ended.map(|since| KeptOutput { bytes, since, is_read: false })
    }

    fn drop_output(&self) -> u64 {
        self.change(|state| {
            let bytes = state.bytes();
            state.events.drain(..state.events.len() - 1);
            state.view.first_event = state.view.last_event;
            bytes
        })
    }

    fn attach(&self, from: ReadFrom, _: ReadMode) -> Result<ProcessEvents, ServiceError> {
        let after = match from {
            ReadFrom::After(seq) => seq,
            ReadFrom::Now => self.state().view.last_event,
        };
        let next = |(process, after): (Self, u64)| async move {
            let event = process.next(after).await?;
            let seq = event.seq;
            Some((event, (process, seq)))
        };
        Ok(stream::unfold((self.clone(), after), next).boxed())
    }

    fn write_stdin(&self, bytes: Bytes) -> Called<'_, ()> {
        let written = self.change(|state| -> Result<(), ServiceError> {
            state.takes_input()?;
            if state.is_echo {
                state.print(bytes);
            }
            Ok(())
        });
        async { written }.boxed()
    }

    fn close_stdin(&self) -> Called<'_, ()> {
        let closed = self.change(|state| -> Result<(), ServiceError> {
            state.takes_input()?;
            state.stdin_is_open = Some(false);
            if state.is_echo {
                state.end(Exit::Code(0), None);
            }
            Ok(())
        });
        async { closed }.boxed()
    }

    fn resize(&self, size: TerminalSize) -> Called<'_, bool> {
        let found = self.change(|state| {
            let found = state.size.is_some() && !state.has_ended();
            if found {
                state.size = Some(size);
            }
            found
        });
        async move { Ok(found) }.boxed()
    }

    fn signal(&self, request: SignalRequest) -> Called<'_, bool> {
        let ends_by = match request.signal {
            SignalName::Hup => Some(1),
            SignalName::Int => Some(2),
            SignalName::Quit => Some(3),
            SignalName::Kill => Some(9),
            SignalName::Usr1 => Some(10),
            SignalName::Usr2 => Some(12),
            SignalName::Term => Some(15),
            SignalName::Cont | SignalName::Stop | SignalName::Tstp | SignalName::Winch => None,
        };
        let found = self.change(|state| {
            let found = !state.has_ended();
            if let Some(signal) = ends_by {
                state.end(Exit::Signal(signal), None);
            }
            found
        });
        async move { Ok(found) }.boxed()
    }

    fn stop(&self) -> BoxFuture<'_, ()> {
        self.change(|state| state.end(Exit::Signal(15), Some(ProcessStop::Cancelled)));
        async {}.boxed()
    }

    fn until(&self, what: Until) -> BoxFuture<'static, ()> {
        let process = self.clone();
        async move {
            let mut changed = process.changed.subscribe();
            let is_there = |state: ProcessState| match what {
                Until::Exited | Until::Silent => state != ProcessState::Running,
                Until::Ended => state == ProcessState::Ended,
            };
            while !is_there(process.view().state) {
                _ = changed.changed().await;
            }
        }
        .boxed()
    }
}
