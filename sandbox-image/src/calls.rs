//! Calls of a script to the host: one at a time, each until its result or the end of the run.

use std::sync::{Arc, Mutex};
use std::thread::{self, Thread};

use sandbox_protocol::FromAgent;
use sandbox_protocol::message::{CallResult, CallTarget, HostCall};
use serde_json::value::RawValue;

use crate::outbox::Outbox;
use crate::stop::{StopFlag, StopReason};

/// The calls of a run.
pub struct HostCalls {
    outbox: Arc<Outbox>,
    /// The id of the run's request.
    request: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The number of the last call.
    last: u32,
    /// The thread that waits for its result.
    waiting: Option<Thread>,
    result: Option<CallResult>,
}

impl HostCalls {
    /// Those of the run with this id.
    pub fn new(outbox: Arc<Outbox>, request: u64) -> Self {
        Self { outbox, request, state: Mutex::default() }
    }

    /// Makes a call and waits for its result; `None` if the run must end first.
    pub fn call(
        &self,
        stop: &StopFlag,
        target: CallTarget,
        name: String,
        arguments: Box<RawValue>,
    ) -> Option<CallResult> {
        let call = {
            let mut state = self.state.lock().unwrap();
            let call = state.last.wrapping_add(1);
            *state = State { last: call, waiting: Some(thread::current()), result: None };
            call
        };
        let request = self.request;
        self.outbox.notify(&FromAgent::Call(HostCall { request, call, target, name, arguments }));
        let result = stop.while_parked(|| {
            loop {
                if let Some(result) = self.state.lock().unwrap().result.take() {
                    break Some(result);
                }
                if stop.reason() != StopReason::None {
                    break None;
                }
                // The thread that delivers the result, or stops the run, unparks.
                thread::park();
            }
        });
        self.state.lock().unwrap().waiting = None;
        result
    }

    /// Delivers a result; returns whether a call waits for it.
    pub fn take(&self, result: CallResult) -> bool {
        let mut state = self.state.lock().unwrap();
        let is_expected = result.request == self.request && result.call == state.last;
        let Some(waiting) = state.waiting.take_if(|_| is_expected) else { return false };
        state.result = Some(result);
        waiting.unpark();
        true
    }
}
