//! Questions to the user of a client, while a script waits for the answer.

use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use rmcp::model::{
    CallToolResult, CancelledNotificationParam, ClientCapabilities, ClientResult, ElicitRequest,
    ElicitRequestParams, ElicitResult, ElicitationAction, ElicitationSchema, ErrorData,
    InputRequest, InputRequests, InputRequiredResult, InputResponses, ProgressToken, RequestId,
    ServerRequest,
};
use rmcp::service::{OriginatingRequestId, Peer, PeerRequestOptions, RequestContext, RoleServer};
use sandbox_api::ToolEffect;
use sandbox_api::service::Subject;
use sandbox_dirfd::random_hex;
use sandbox_service::permission::{Answer, Ask, PERMISSION_TIMEOUT, Permission};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::lock;
use crate::transport::progress::ProgressTarget;

/// The most arguments that a person is asked about, and the most characters of a name or a value.
const MAX_ARGUMENTS: usize = 20;
const MAX_VALUE: usize = 120;
/// The most calls of a subject that ended before their answers came, and whose results are kept until then.
const MAX_ENDED: usize = 16;
/// The name of a question in the result of a call.
const QUESTION: &str = "permission";

/// Asks the user of a client about the calls of tools by its scripts, if the client can do so: each script by the
/// call that runs it.
///
/// Before the revision 2026-07-28 the server sends the client a request. Since then it answers a call with the
/// question: the script waits, and the client calls again with the answer and the state that it was given.
#[derive(Default)]
pub struct Elicitation {
    /// The calls that were answered with a question, by their states.
    waiting: Mutex<HashMap<String, WaitingCall>>,
}

/// Without the calls.
impl fmt::Debug for Elicitation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Elicitation").finish_non_exhaustive()
    }
}

/// How the script of a call asks the client that made it.
#[derive(Debug)]
pub(crate) enum Asker {
    /// By a request, which belongs to the call.
    ByRequest(Peer<RoleServer>, RequestId),
    /// By the answer to its request.
    ByResult(mpsc::Sender<Question>),
}

/// What a script waits for.
#[derive(Debug)]
pub(crate) struct Question {
    request: ElicitRequest,
    answer: oneshot::Sender<Answer>,
}

/// A call of a tool, which several requests may follow to its end.
pub(crate) struct CallInProgress {
    pub called: BoxFuture<'static, Result<CallToolResult, ErrorData>>,
    pub cancelled: CancellationToken,
    pub progress: Option<ProgressTarget>,
    /// What its script asks, which is to be the answer to a request.
    pub questions: Option<mpsc::Receiver<Question>>,
}

/// A call that goes on without a request.
struct WaitingCall {
    /// Whose it is: the answer of another is not for it.
    subject: Subject,
    call: CallInProgress,
    answer: oneshot::Sender<Answer>,
}

impl Asker {
    /// That of a call, and the questions that are to be answers to its requests. `None` if its client cannot
    /// ask.
    pub fn of_call(
        context: &RequestContext<RoleServer>,
    ) -> Option<(Self, mpsc::Receiver<Question>)> {
        let (sender, questions) = mpsc::channel(1);
        let has_requests = context.protocol_version().is_none_or(|it| it.has_initialize());
        context.client_capabilities().filter(has_forms)?;
        let asker = match has_requests {
            true => Self::ByRequest(context.peer.clone(), context.id.clone()),
            false => Self::ByResult(sender),
        };
        Some((asker, questions))
    }
}

/// The next question that waits for an answer. Cancel-safe.
pub(crate) async fn next_question(questions: &mut mpsc::Receiver<Question>) -> Question {
    while let Some(question) = questions.recv().await {
        if !question.answer.is_closed() {
            return question;
        }
    }
    // The script has ended: no question will come.
    std::future::pending().await
}

impl Elicitation {
    /// Has a call go on without a request until its client comes back with the answer, and gives what says so.
    pub(crate) fn suspend(
        self: &Arc<Self>,
        subject: Subject,
        question: Question,
        mut call: CallInProgress,
    ) -> InputRequiredResult {
        if let Some(target) = &call.progress {
            *lock(target) = None;
        }
        let Question { request, answer } = question;
        let (called, ends) = (tokio::spawn(call.called), call.cancelled.clone().drop_guard());
        call.called = async move {
            // Without a client that comes back, and stays then, it is cancelled.
            let _ends = ends;
            let broken = |_| Err(ErrorData::internal_error("the call broke off", None));
            called.await.unwrap_or_else(broken)
        }
        .boxed();
        let state = random_hex::<16>();
        self.keep(state.clone(), WaitingCall { subject, call, answer });
        let (elicitation, forgotten) = (Arc::downgrade(self), state.clone());
        tokio::spawn(async move {
            tokio::time::sleep(PERMISSION_TIMEOUT).await;
            if let Some(elicitation) = elicitation.upgrade() {
                lock(&elicitation.waiting).remove(&forgotten);
            }
        });
        let request = InputRequest::Elicitation(request);
        let requests = InputRequests::from([(QUESTION.to_owned(), request)]);
        InputRequiredResult::new(Some(requests), Some(state))
    }

    /// Keeps a call. Those that run are as many as their subject may run; of those that have ended, few are kept.
    fn keep(&self, state: String, call: WaitingCall) {
        let (mut waiting, mut ended) = (lock(&self.waiting), 0);
        waiting.retain(|_, it| {
            let has_ended = it.subject == call.subject && it.answer.is_closed();
            ended += usize::from(has_ended);
            !has_ended || ended <= MAX_ENDED
        });
        waiting.insert(state, call);
    }

    /// The call that a client comes back to, with what it was asked for.
    ///
    /// # Errors
    ///
    /// Invalid params, if no call of the subject waits with this state.
    pub(crate) fn resume(
        &self,
        (subject, state): (&Subject, &str),
        responses: Option<&InputResponses>,
        to: Option<(Peer<RoleServer>, ProgressToken)>,
    ) -> Result<CallInProgress, ErrorData> {
        let call = {
            let mut waiting = lock(&self.waiting);
            let is_its = waiting.get(state).is_some_and(|it| it.subject == *subject);
            if is_its { waiting.remove(state) } else { None }
        };
        let over = || ErrorData::invalid_params("no call waits with this requestState", None);
        let WaitingCall { call, answer, .. } = call.ok_or_else(over)?;
        if let Some(target) = &call.progress {
            *lock(target) = to;
        }
        let response = responses.and_then(|it| it.get(QUESTION)).cloned();
        let response = response.and_then(|it| serde_json::from_value::<ElicitResult>(it).ok());
        // Its script may have ended meanwhile.
        _ = answer.send(response.map_or(Answer::Refused, |it| answer_of(&it)));
        Ok(call)
    }
}

fn answer_of(result: &ElicitResult) -> Answer {
    match result.action {
        ElicitationAction::Accept => Answer::Allowed,
        _ => Answer::Refused,
    }
}

/// Whether a client shows forms. Without a mode it is of the revision that had no other.
fn has_forms(capabilities: &ClientCapabilities) -> bool {
    capabilities.elicitation.as_ref().is_some_and(|it| it.form.is_some() || it.url.is_none())
}

/// A wait for a client's answer to a request. If it ends first, the request is cancelled.
#[derive(Debug)]
struct Waiting {
    peer: Peer<RoleServer>,
    /// The request; `None` once it is answered.
    id: Option<RequestId>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let Some((id, runtime)) = self.id.take().zip(Handle::try_current().ok()) else { return };
        let reason = "the call has ended".to_owned();
        let (peer, what) =
            (self.peer.clone(), CancelledNotificationParam::new(Some(id), Some(reason)));
        // The client may be gone.
        runtime.spawn(async move { _ = peer.notify_cancelled(what).await });
    }
}

#[async_trait]
impl Permission for Asker {
    async fn ask(&self, ask: &Ask<'_>) -> Answer {
        let Some(message) = question(ask) else { return Answer::Refused };
        // The answer is yes or no: a form without fields.
        let requested_schema = ElicitationSchema::new(BTreeMap::new());
        let params =
            ElicitRequestParams::FormElicitationParams { meta: None, message, requested_schema };
        let mut request = ElicitRequest::new(params);
        match self {
            Self::ByRequest(peer, call) => {
                // Over HTTP it goes where the answer to the call goes: a client may listen nowhere else.
                request.extensions.insert(OriginatingRequestId(call.clone()));
                let request = ServerRequest::ElicitRequest(request);
                let options = PeerRequestOptions::no_options();
                let Ok(asked) = peer.send_request_with_option(request, options).await else {
                    return Answer::Refused;
                };
                let mut waiting = Waiting { peer: peer.clone(), id: Some(asked.id.clone()) };
                let answer = asked.await_response().await;
                waiting.id = None;
                match answer {
                    Ok(ClientResult::ElicitResult(result)) => answer_of(&result),
                    _ => Answer::Refused,
                }
            }
            Self::ByResult(questions) => {
                let (answer, answered) = oneshot::channel();
                // Without a receiver the call has ended.
                _ = questions.send(Question { request, answer }).await;
                answered.await.unwrap_or(Answer::Refused)
            }
        }
    }
}

/// What is asked; nothing about hosts and other tools, which only rules allow, and nothing that a person would
/// not read to its end. Names and arguments come from elsewhere: they are quoted, and each is cut alone.
fn question(ask: &Ask<'_>) -> Option<String> {
    let Ask::Tool { tool, arguments, effect: ToolEffect::Destructive } = ask else { return None };
    let short = |text: String| match text.char_indices().nth(MAX_VALUE) {
        Some((end, _)) => format!("{}… ({} bytes)", &text[..end], text.len()),
        None => text,
    };
    let mut question = format!(
        "May the tool {} be called, which says that it removes or overwrites something? Its \
         arguments:\n",
        short(format!("{tool:?}"))
    );
    // JSON has its quotes escaped, and no others.
    let escape = |it: char| {
        if "\"'\\".contains(it) { it.to_string() } else { it.escape_debug().to_string() }
    };
    for (name, value) in *arguments {
        let value = value.to_string().chars().map(escape).collect();
        _ = writeln!(question, "{}: {}", short(format!("{name:?}")), short(value));
    }
    (arguments.len() <= MAX_ARGUMENTS).then_some(question)
}

#[cfg(test)]
mod tests {
    use rmcp::model::ContentBlock;
    use serde_json::json;

    use super::*;

    fn subject(name: &str) -> Subject {
        Subject::new(name).unwrap()
    }

    /// A call of `a` whose client is asked by its results, and which asks once: its result is the answer. It is
    /// answered with the question, and has this state.
    async fn asking() -> (Arc<Elicitation>, CancellationToken, String) {
        let elicitation = Arc::new(Elicitation::default());
        let (ends, state) = ask_by(&elicitation).await;
        (elicitation, ends, state)
    }

    async fn ask_by(elicitation: &Arc<Elicitation>) -> (CancellationToken, String) {
        let (sender, questions) = mpsc::channel(1);
        let (asker, cancelled) = (Asker::ByResult(sender), CancellationToken::new());
        let ended = cancelled.clone();
        let called = async move {
            let (tool, arguments) = ("a.b", serde_json::Map::new());
            let effect = ToolEffect::Destructive;
            let ask = Ask::Tool { tool, arguments: &arguments, effect };
            let answer = tokio::select! {
                answer = asker.ask(&ask) => answer,
                () = ended.cancelled() => Answer::Refused,
            };
            Ok(CallToolResult::success(vec![ContentBlock::text(format!("{answer:?}"))]))
        };
        let (ends, progress, questions) = (cancelled.clone(), None, Some(questions));
        let mut call = CallInProgress { called: called.boxed(), cancelled, progress, questions };
        let question = tokio::select! {
            question = next_question(call.questions.as_mut().unwrap()) => question,
            _ = &mut call.called => panic!("it waits for the answer"),
        };
        let asked = elicitation.suspend(subject("a"), question, call);
        assert!(asked.input_requests.unwrap().contains_key("permission"));
        (ends, asked.request_state.unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn call_that_was_answered_with_a_question_goes_on_with_the_answer_once() {
        for (responses, expected) in [
            (json!({ "permission": { "action": "accept", "content": {} } }), "Allowed"),
            (json!({ "permission": { "action": "decline" } }), "Refused"),
            (json!({ "permission": 5 }), "Refused"),
            (json!({}), "Refused"),
        ] {
            let (elicitation, _ends, state) = asking().await;
            let responses: InputResponses = serde_json::from_value(responses).unwrap();
            let resume = |name: &str, state: &str| {
                elicitation.resume((&subject(name), state), Some(&responses), None)
            };
            assert!(resume("a", "0").is_err());
            assert!(resume("b", &state).is_err(), "it is the call of another subject");
            let call = resume("a", &state).unwrap();
            let result = call.called.await.unwrap();
            assert_eq!(result.content[0].as_text().unwrap().text, expected);
            assert!(resume("a", &state).is_err(), "it is over");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn call_ends_when_its_client_does_not_come_back_with_the_answer() {
        let (elicitation, ends, state) = asking().await;
        tokio::time::sleep(PERMISSION_TIMEOUT / 2).await;
        assert!(!ends.is_cancelled());
        tokio::time::sleep(PERMISSION_TIMEOUT).await;
        assert!(ends.is_cancelled());
        assert!(elicitation.resume((&subject("a"), &state), None, None).is_err());
        // Nor when it comes back and goes away again.
        let (elicitation, ends, state) = asking().await;
        drop(elicitation.resume((&subject("a"), &state), None, None).unwrap());
        assert!(ends.is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn results_that_are_kept_for_an_answer_are_bounded() {
        let elicitation = Arc::new(Elicitation::default());
        let (_ends, first) = ask_by(&elicitation).await;
        for _ in 0..3 * MAX_ENDED {
            let (ends, state) = ask_by(&elicitation).await;
            ends.cancel();
            while !lock(&elicitation.waiting)[&state].answer.is_closed() {
                tokio::task::yield_now().await;
            }
        }
        // The last one, and that which waits still.
        assert_eq!(lock(&elicitation.waiting).len(), MAX_ENDED + 2);
        let call = elicitation.resume((&subject("a"), &first), None, None).unwrap();
        assert!(call.called.await.is_ok());
    }

    #[test]
    fn question_quotes_what_comes_from_elsewhere_and_is_bounded() {
        let about = |arguments: serde_json::Value, effect| {
            let arguments = arguments.as_object().unwrap().clone();
            question(&Ask::Tool { tool: "a.\nb", arguments: &arguments, effect })
        };
        let asked = |arguments| about(arguments, ToolEffect::Destructive);
        // It says that something is removed or overwritten.
        assert_eq!(about(json!({}), ToolEffect::Changes), None);
        let text = asked(json!({ "path": "/x\ny" })).unwrap();
        assert!(text.contains(r#""a.\nb""#) && text.ends_with("\"path\": \"/x\\ny\"\n"), "{text}");
        let text = asked(json!({ "to": "a\u{202e}b\u{2028}c\u{200b}\"'" })).unwrap();
        assert!(text.ends_with("\"a\\u{202e}b\\u{2028}c\\u{200b}\\\"'\"\n"), "{text}");
        // No argument hides another.
        let long = asked(json!({ "a": "é".repeat(4000), "path": "/home" })).unwrap();
        assert!(
            long.len() < 700 && long.contains("/home") && long.contains("(8002 bytes)"),
            "{long}"
        );
        let many = (0..21).map(|it| (it.to_string(), json!(it))).collect::<serde_json::Map<_, _>>();
        assert_eq!(asked(many.into()), None);
    }

    #[test]
    fn client_shows_forms_unless_it_has_only_others() {
        let has = |text: &str| has_forms(&serde_json::from_str(text).unwrap());
        assert!(has(r#"{"elicitation":{}}"#) && has(r#"{"elicitation":{"form":{},"url":{}}}"#));
        assert!(!has("{}") && !has(r#"{"elicitation":{"url":{}}}"#));
    }
}
