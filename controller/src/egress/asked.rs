//! Hosts that are not on the list, about which a [`Permission`] decides: each host and port once in a
//! sandbox's life, however many connections wait for the answer. An answer is for that host and port
//! of that sandbox; which addresses may be dialled for it is decided by the list alone.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, WeakShared};
use sandbox_api::hosts::Target;

use super::gate::Egress;
use crate::permission::{self, Answer, Ask, Permission};

/// How many questions a sandbox may ask. Each one costs a person's time: the other hosts are refused
/// without one.
const MAX_QUESTIONS: usize = 100;

/// The answers of a sandbox, and who gives them.
#[derive(Default)]
pub(super) struct Asked {
    permission: Option<Arc<dyn Permission>>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    questions: usize,
    hosts: HashMap<Target, State>,
}

enum State {
    /// The question is withdrawn when no connection waits for its answer any more.
    Asking(WeakShared<BoxFuture<'static, Answer>>),
    Answered(Answer),
}

impl Asked {
    pub fn of(permission: Arc<dyn Permission>) -> Self {
        Self { permission: Some(permission), known: Mutex::default() }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer, or the question that it is waited for with.
    fn question(&self, target: &Target) -> Result<Shared<BoxFuture<'static, Answer>>, Answer> {
        let Some(permission) = self.permission.clone() else { return Err(Answer::Refused) };
        let mut known = self.known();
        let asking = match known.hosts.get(target) {
            Some(State::Answered(answer)) => return Err(*answer),
            Some(State::Asking(asking)) => asking.upgrade(),
            None => None,
        };
        if let Some(asking) = asking {
            return Ok(asking);
        }
        if known.questions == MAX_QUESTIONS {
            return Err(Answer::Refused);
        }
        known.questions += 1;
        let asked = target.clone();
        let ask = async move {
            let ask = Ask::Host { target: &asked, reason: "not on the list" };
            permission::ask(Some(&permission), &ask).await
        };
        let asking = ask.boxed().shared();
        let weak = asking.downgrade().expect("it was not polled");
        known.hosts.insert(target.clone(), State::Asking(weak));
        Ok(asking)
    }
}

impl Egress {
    /// Whether a host may be reached that is not on the list. It waits for the answer.
    pub(super) async fn is_permitted(&self, target: &Target) -> bool {
        let mut shown = target.to_string();
        self.redactions.text(&mut shown);
        // A name that has a secret in it is neither shown nor recorded.
        if !target.may_be_asked_for() || shown != target.to_string() {
            return false;
        }
        let answer = match self.asked.question(target) {
            Ok(asking) => {
                let answer = asking.await;
                let new = State::Answered(answer);
                let old = self.asked.known().hosts.insert(target.clone(), new);
                if answer == Answer::Allowed && matches!(old, Some(State::Asking(_))) {
                    self.policy.add_host(shown);
                }
                answer
            }
            Err(known) => known,
        };
        answer == Answer::Allowed
    }
}
