//! Hosts that are not on the list, about which a [`Permission`] decides: each host and port once in a
//! sandbox's life, however many connections wait for the answer. An answer is for that host and port
//! of that sandbox; which addresses may be dialled for it is decided by the list alone.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use sandbox_api::hosts::Target;
use sandbox_grants::policy::Policy;
use sandbox_redact::Redactions;
use tokio::sync::OnceCell;

use crate::permission::{self, Answer, Ask, Permission};

/// How many questions a sandbox may ask. Each one costs a person's time: the other hosts are refused
/// without one.
const MAX_QUESTIONS: usize = 100;

/// The answers of a sandbox, and who gives them.
#[derive(Default)]
pub(super) struct Asked {
    pub permission: Option<Arc<dyn Permission>>,
    pub questions: AtomicUsize,
    pub answers: Mutex<HashMap<Target, Arc<OnceCell<Answer>>>>,
}

impl Asked {
    /// Whether a host may be reached that is not on the list. It waits for the answer; a question that no
    /// connection waits for any more is withdrawn.
    pub async fn is_permitted(
        &self,
        target: &Target,
        redactions: &Redactions,
        policy: &Policy,
    ) -> bool {
        let Self { permission, questions, answers } = self;
        let mut shown = target.to_string();
        redactions.text(&mut shown);
        // A name that has a secret in it is neither shown nor recorded.
        let is_secret = shown != target.to_string();
        if permission.is_none() || is_secret || !target.may_be_asked_for() {
            return false;
        }
        let answer = {
            let mut answers = crate::lock(answers);
            let is_full = questions.load(Ordering::Relaxed) >= MAX_QUESTIONS;
            if is_full && !answers.contains_key(target) {
                return false;
            }
            answers.entry(target.clone()).or_default().clone()
        };
        let ask = async {
            if questions.fetch_add(1, Ordering::Relaxed) >= MAX_QUESTIONS {
                return Answer::Refused;
            }
            let ask = Ask::Host { target, reason: "not on the list" };
            let answer = permission::ask(permission.as_ref(), &ask).await;
            if answer == Answer::Allowed {
                policy.add_host(shown);
            }
            answer
        };
        *answer.get_or_init(|| ask).await == Answer::Allowed
    }
}
