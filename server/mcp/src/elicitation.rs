//! Questions to the user of a client, while a script waits for the answer.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Mutex;

use async_trait::async_trait;
use rmcp::model::{
    ClientCapabilities, ClientResult, ElicitRequest, ElicitRequestParams, ElicitationAction,
    ElicitationSchema, ServerRequest,
};
use rmcp::service::{Peer, PeerRequestOptions, RequestContext, RoleServer};
use sandbox_service::permission::{Answer, Ask, PERMISSION_TIMEOUT, Permission};

use crate::lock;

/// The most arguments that a person is asked about, and the most characters of a name or a value.
const MAX_ARGUMENTS: usize = 20;
const MAX_VALUE: usize = 120;

/// Asks the user of the one client of a server about calls of tools, if the client can do so: in the
/// revisions before 2026-07-28, by a request of ours. In that revision a server asks by ending the call,
/// which a script in progress cannot.
#[derive(Debug, Default)]
pub struct Elicitation(Mutex<Option<Peer<RoleServer>>>);

impl Elicitation {
    /// The client, as its calls show it.
    pub(crate) fn is_called_by(&self, context: &RequestContext<RoleServer>) {
        let has_requests = context.protocol_version().is_none_or(|it| it.has_initialize());
        let can_ask =
            has_requests && context.client_capabilities().is_some_and(|it| has_forms(&it));
        *lock(&self.0) = can_ask.then(|| context.peer.clone());
    }
}

/// Whether a client shows forms. Without a mode it is of the revision that had no other.
fn has_forms(capabilities: &ClientCapabilities) -> bool {
    capabilities.elicitation.as_ref().is_some_and(|it| it.form.is_some() || it.url.is_none())
}

#[async_trait]
impl Permission for Elicitation {
    async fn ask(&self, ask: &Ask<'_>) -> Answer {
        let peer = lock(&self.0).clone();
        let (Some(peer), Some(message)) = (peer, question(ask)) else { return Answer::Refused };
        // The answer is yes or no: a form without fields.
        let requested_schema = ElicitationSchema::new(BTreeMap::new());
        let params =
            ElicitRequestParams::FormElicitationParams { meta: None, message, requested_schema };
        let request = ServerRequest::ElicitRequest(ElicitRequest::new(params));
        let options = PeerRequestOptions::with_timeout(PERMISSION_TIMEOUT);
        let Ok(asked) = peer.send_request_with_option(request, options).await else {
            return Answer::Refused;
        };
        match asked.await_response().await {
            Ok(ClientResult::ElicitResult(it)) if it.action == ElicitationAction::Accept => {
                Answer::Allowed
            }
            _ => Answer::Refused,
        }
    }
}

/// What is asked; nothing about hosts, which only rules allow, and nothing that a person would not read to
/// its end. Names and arguments come from elsewhere: they are quoted, and each is cut alone.
fn question(ask: &Ask<'_>) -> Option<String> {
    let Ask::Tool { tool, arguments, .. } = ask else { return None };
    let short = |text: String| match text.char_indices().nth(MAX_VALUE) {
        Some((end, _)) => format!("{}… ({} bytes)", &text[..end], text.len()),
        None => text,
    };
    let mut question = format!(
        "May a script in the sandbox call the tool {}, which says that it removes or overwrites \
         something? Its arguments:\n",
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
    use sandbox_api::ToolEffect;
    use serde_json::json;

    use super::*;

    #[test]
    fn question_quotes_what_comes_from_elsewhere_and_is_bounded() {
        let asked = |arguments: serde_json::Value| {
            let arguments = arguments.as_object().unwrap().clone();
            let (tool, effect) = ("a.\nb", ToolEffect::Destructive);
            question(&Ask::Tool { tool, arguments: &arguments, effect })
        };
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
