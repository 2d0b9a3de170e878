//! A server for the official conformance suite: sandboxctl's over HTTP, with the tools, resources
//! and prompts that the suite also calls. It prints its URL, and serves until its stdin ends.

// Sampling, roots and logging are deprecated in the protocol; the suite of 2025-11-25 uses them.
#![expect(deprecated, reason = "the suite asks for them")]

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse as _, Response};
use rmcp::model::*;
use rmcp::service::{RequestContext, RoleServer, SubscriptionContext, SubscriptionSink};
use rmcp::{ErrorData, ServerHandler};
use sandbox_api::SandboxSpec;
use sandbox_api::service::{BySubject, Subject};
use sandbox_controller::Controller;
use sandbox_http::{Peer, Sites};
use sandbox_mcp::{
    Access, Audience, DEFAULT_OUTPUT_BYTES, HttpOptions, HttpServer, McpServer, Settings,
};
use sandbox_service::{Service, ServiceConfig};
use sandbox_store::{Durability, Store};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::io::AsyncReadExt as _;

/// A PNG of one pixel.
const IMAGE: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8/5+hHgAHggJ/PchI7wAAAABJRU5ErkJggg==";
/// A WAV without samples.
const AUDIO: &str = "UklGRiQAAABXQVZFZm10IBAAAAABAAEARKwAAIhYAQACABAAZGF0YQAAAAA=";
/// What seals the states that clients carry. It is no secret here.
const KEY: &[u8] = b"conformance";

/// The tools of the suite, which take no arguments but these.
const TOOLS: &[(&str, &[&str])] = &[
    ("test_simple_text", &[]),
    ("test_image_content", &[]),
    ("test_audio_content", &[]),
    ("test_embedded_resource", &[]),
    ("test_multiple_content_types", &[]),
    ("test_tool_with_logging", &[]),
    ("test_error_handling", &[]),
    ("test_tool_with_progress", &[]),
    ("test_sampling", &["prompt"]),
    ("test_elicitation", &["message"]),
    ("test_elicitation_sep1034_defaults", &[]),
    ("test_elicitation_sep1330_enums", &[]),
    ("test_reconnection", &[]),
    ("test_trigger_tool_change", &[]),
    ("test_trigger_prompt_change", &[]),
    ("test_missing_capability", &[]),
    ("test_streaming_elicitation", &[]),
    ("test_logging_tool", &[]),
    ("test_input_required_result_elicitation", &[]),
    ("test_input_required_result_sampling", &[]),
    ("test_input_required_result_list_roots", &[]),
    ("test_input_required_result_request_state", &[]),
    ("test_input_required_result_tampered_state", &[]),
    ("test_input_required_result_multiple_inputs", &[]),
    ("test_input_required_result_multi_round", &[]),
    ("test_input_required_result_capabilities", &[]),
];

/// The subscriptions, by the ids of their requests.
type Sinks = Arc<Mutex<BTreeMap<String, SubscriptionSink>>>;

/// Our server, with what the suite calls.
struct Fixtures {
    ours: McpServer,
    sinks: Sinks,
}

fn object(value: Value) -> JsonObject {
    match value {
        Value::Object(object) => object,
        _ => JsonObject::new(),
    }
}

fn seal(state: &Value) -> String {
    let text = state.to_string();
    let mut digest = Sha256::new();
    digest.update(KEY);
    digest.update(&text);
    let seal: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{seal}{text}")
}

fn open(sealed: &str) -> Result<Value, ErrorData> {
    let state = sealed.get(64..).and_then(|text| serde_json::from_str::<Value>(text).ok());
    match state {
        Some(state) if seal(&state) == sealed => Ok(state),
        _ => Err(ErrorData::invalid_params("the state was changed", None)),
    }
}

fn text(text: impl Into<String>) -> CallToolResponse {
    CallToolResult::success(vec![ContentBlock::text(text)]).into()
}

fn form(message: &str, properties: Value, required: Value) -> ElicitRequestParams {
    let schema = json!({ "type": "object", "properties": properties, "required": required });
    ElicitRequestParams::FormElicitationParams {
        meta: None,
        message: message.into(),
        requested_schema: serde_json::from_value(schema).expect("a schema"),
    }
}

/// Asks for one string.
fn asks(message: &str, name: &str) -> InputRequest {
    let properties = json!({ name: { "type": "string" } });
    InputRequest::Elicitation(ElicitRequest::new(form(message, properties, json!([name]))))
}

fn samples(prompt: &str) -> InputRequest {
    let message = vec![SamplingMessage::user_text(prompt)];
    InputRequest::CreateMessage(CreateMessageRequest::new(CreateMessageRequestParams::new(
        message, 100,
    )))
}

fn roots() -> InputRequest {
    InputRequest::ListRoots(ListRootsRequest::default())
}

fn needs<const N: usize>(
    requests: [(&str, InputRequest); N],
    state: Option<Value>,
) -> InputRequiredResult {
    let requests = requests.into_iter().map(|(name, request)| (name.to_owned(), request)).collect();
    InputRequiredResult::new(Some(requests), state.map(|state| seal(&state)))
}

impl Fixtures {
    /// A call that needs the client's input.
    fn input(
        request: &CallToolRequestParams,
        meta: &RequestMetaObject,
    ) -> Result<CallToolResponse, ErrorData> {
        let responses = request.input_responses.as_ref();
        let has = |name| responses.and_then(|it| it.get(name)).is_some_and(Value::is_object);
        let state = request.request_state.as_deref().map(open).transpose()?;
        let name = request.name.strip_prefix("test_input_required_result_").unwrap_or_default();
        Ok(match name {
            "elicitation" if has("user_name") => {
                let response = responses.and_then(|it| it.get("user_name"));
                let name = response.and_then(|it| it["content"]["name"].as_str());
                text(format!("Hello, {}!", name.unwrap_or("friend")))
            }
            "elicitation" => {
                needs([("user_name", asks("What is your name?", "name"))], None).into()
            }
            "sampling" if has("capital_question") => text("Sampled"),
            "sampling" => {
                needs([("capital_question", samples("What is the capital of France?"))], None)
                    .into()
            }
            "list_roots" if has("client_roots") => text("Roots"),
            "list_roots" => needs([("client_roots", roots())], None).into(),
            "request_state" | "tampered_state" if state.is_some() => text("state-ok"),
            "request_state" | "tampered_state" => {
                let state = json!({ "stage": "confirm" });
                let properties = json!({ "ok": { "type": "boolean" } });
                let confirm = form("Please confirm", properties, json!(["ok"]));
                let confirm = InputRequest::Elicitation(ElicitRequest::new(confirm));
                needs([("confirm", confirm)], Some(state)).into()
            }
            "multiple_inputs"
                if state.is_some()
                    && ["user_name", "greeting", "client_roots"].iter().all(|it| has(it)) =>
            {
                text("All inputs received")
            }
            "multiple_inputs" => {
                let requests = [
                    ("user_name", asks("What is your name?", "name")),
                    ("greeting", samples("Generate a greeting")),
                    ("client_roots", roots()),
                ];
                needs(requests, Some(json!({ "stage": "gather" }))).into()
            }
            "multi_round" => match state.as_ref().and_then(|state| state["round"].as_i64()) {
                None => {
                    let step = ("step1", asks("Step 1: What is your name?", "name"));
                    needs([step], Some(json!({ "round": 1 }))).into()
                }
                Some(1) => {
                    let step = ("step2", asks("Step 2: What is your favorite color?", "color"));
                    needs([step], Some(json!({ "round": 2 }))).into()
                }
                Some(_) => text("Multi-round flow complete"),
            },
            "capabilities" if responses.is_some() => text("Complete"),
            "capabilities" => {
                let client = meta.client_capabilities().unwrap_or_default();
                let mut requests = InputRequests::new();
                if client.elicitation.is_some() {
                    requests.insert("user_name".into(), asks("What is your name?", "name"));
                }
                if client.sampling.is_some() {
                    requests.insert("greeting".into(), samples("Generate a greeting"));
                }
                if client.roots.is_some() {
                    requests.insert("client_roots".into(), roots());
                }
                match requests.is_empty() {
                    true => text("The client can give no input"),
                    false => InputRequiredResult::new(Some(requests), None).into(),
                }
            }
            _ => return Err(ErrorData::invalid_params("unknown tool", None)),
        })
    }

    /// Asks the client, as the revisions with a session do.
    async fn elicit(
        context: &RequestContext<RoleServer>,
        params: ElicitRequestParams,
    ) -> CallToolResponse {
        let request = ServerRequest::ElicitRequest(ElicitRequest::new(params));
        match context.peer.send_request(request).await {
            Ok(answer) => text(format!("User response: {}", json!(answer))),
            Err(error) => CallToolResult::error(vec![ContentBlock::text(error.to_string())]).into(),
        }
    }

    fn sinks(&self) -> Vec<SubscriptionSink> {
        let sinks = self.sinks.lock().unwrap_or_else(PoisonError::into_inner);
        sinks.values().cloned().collect()
    }
}

/// The suite's tools.
fn tools() -> impl Iterator<Item = Tool> {
    let described = |name, schema| Tool::new(name, "A tool of the suite", Arc::new(object(schema)));
    let plain = TOOLS.iter().map(move |(name, arguments)| {
        let string = |name: &&str| ((*name).to_owned(), json!({ "type": "string" }));
        let properties: JsonObject = arguments.iter().map(string).collect();
        let schema = json!({ "type": "object", "properties": properties, "required": arguments });
        described(*name, schema)
    });
    let region = json!({ "type": "string", "x-mcp-header": "Region" });
    let in_header = json!({
        "type": "object",
        "properties": { "region": region },
        "required": ["region"],
    });
    let of_2020_12 = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {
            "address": {
                "$anchor": "addressDef",
                "type": "object",
                "properties": { "street": { "type": "string" }, "city": { "type": "string" } },
            },
        },
        "properties": {
            "name": { "type": "string" },
            "address": { "$ref": "#/$defs/address" },
            "contactMethod": { "type": "string", "enum": ["phone", "email"] },
            "phone": { "type": "string" },
            "email": { "type": "string" },
        },
        "allOf": [{ "anyOf": [{ "required": ["phone"] }, { "required": ["email"] }] }],
        "if": {
            "properties": { "contactMethod": { "const": "phone" } },
            "required": ["contactMethod"],
        },
        "then": { "required": ["phone"] },
        "else": { "required": ["email"] },
        "additionalProperties": false,
    });
    plain.chain([
        described("test_parameter_in_header", in_header),
        described("json_schema_2020_12_tool", of_2020_12),
    ])
}

fn resource(uri: &str, mime_type: &str, content: &str) -> ResourceContents {
    ResourceContents::TextResourceContents {
        uri: uri.into(),
        mime_type: Some(mime_type.into()),
        text: content.into(),
        meta: None,
    }
}

impl ServerHandler for Fixtures {
    fn get_info(&self) -> ServerConfig {
        let mut info = self.ours.get_info();
        info.capabilities = ServerCapabilities::builder()
            .enable_tools()
            .enable_tool_list_changed()
            .enable_prompts()
            .enable_prompts_list_changed()
            .enable_resources()
            .enable_resources_subscribe()
            .enable_resources_list_changed()
            .enable_completions()
            .enable_logging()
            .enable_skills()
            .build();
        info
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        tools().find(|tool| tool.name == name).or_else(|| self.ours.get_tool(name))
    }

    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let mut listed = self.ours.list_tools(request, context).await?;
        listed.tools.extend(tools());
        Ok(listed)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let argument = |name: &str| {
            let value = request.arguments.as_ref().and_then(|it| it.get(name));
            value.and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        let log = |level, message: &str| {
            let param = LoggingMessageNotificationParam::new(level, json!(message));
            context.peer.notify_logging_message(param)
        };
        Ok(match &*request.name {
            name if name.starts_with("test_input_required_result_") => {
                Self::input(&request, &context.meta)?
            }
            "test_simple_text" => text("This is a simple text response for testing."),
            "test_image_content" => {
                CallToolResult::success(vec![ContentBlock::image(IMAGE, "image/png")]).into()
            }
            "test_audio_content" => {
                CallToolResult::success(vec![ContentBlock::audio(AUDIO, "audio/wav")]).into()
            }
            "test_embedded_resource" => {
                let embedded = resource("test://embedded-resource", "text/plain", "Embedded.");
                CallToolResult::success(vec![ContentBlock::resource(embedded)]).into()
            }
            "test_multiple_content_types" => CallToolResult::success(vec![
                ContentBlock::text("Multiple content types test:"),
                ContentBlock::image(IMAGE, "image/png"),
                ContentBlock::resource(resource(
                    "test://mixed-content-resource",
                    "application/json",
                    r#"{"test":"data","value":123}"#,
                )),
            ])
            .into(),
            "test_tool_with_logging" => {
                for message in
                    ["Tool execution started", "Tool processing data", "Tool execution completed"]
                {
                    _ = log(LoggingLevel::Info, message).await;
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                text("Logged")
            }
            "test_error_handling" => CallToolResult::error(vec![ContentBlock::text(
                "This tool intentionally returns an error for testing",
            )])
            .into(),
            "test_tool_with_progress" => {
                for progress in [0.0, 50.0, 100.0] {
                    if let Some(token) = context.meta.get_progress_token() {
                        let param = ProgressNotificationParam::new(token, progress);
                        _ = context.peer.notify_progress(param.with_total(100.0)).await;
                    }
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                text("Done")
            }
            "test_sampling" => {
                let message = vec![SamplingMessage::user_text(argument("prompt"))];
                let params = CreateMessageRequestParams::new(message, 100);
                match context.peer.create_message(params).await {
                    Ok(answer) => text(format!("LLM response: {}", json!(answer))),
                    Err(error) => {
                        CallToolResult::error(vec![ContentBlock::text(error.to_string())]).into()
                    }
                }
            }
            "test_elicitation" => {
                let properties = json!({
                    "username": { "type": "string", "description": "User's response" },
                    "email": { "type": "string", "description": "User's email address" },
                });
                let required = json!(["username", "email"]);
                Self::elicit(&context, form(&argument("message"), properties, required)).await
            }
            "test_elicitation_sep1034_defaults" => {
                let properties = json!({
                    "name": { "type": "string", "default": "John Doe" },
                    "age": { "type": "integer", "default": 30 },
                    "score": { "type": "number", "default": 95.5 },
                    "status": {
                        "type": "string",
                        "enum": ["active", "inactive", "pending"],
                        "default": "active",
                    },
                    "verified": { "type": "boolean", "default": true },
                });
                Self::elicit(&context, form("Please provide values", properties, json!([]))).await
            }
            "test_elicitation_sep1330_enums" => {
                let titled = json!([
                    { "const": "value1", "title": "First" },
                    { "const": "value2", "title": "Second" },
                    { "const": "value3", "title": "Third" },
                ]);
                let words = json!(["option1", "option2", "option3"]);
                let properties = json!({
                    "untitledSingle": { "type": "string", "enum": words },
                    "titledSingle": { "type": "string", "oneOf": titled },
                    "legacyEnum": {
                        "type": "string",
                        "enum": ["opt1", "opt2", "opt3"],
                        "enumNames": ["Option One", "Option Two", "Option Three"],
                    },
                    "untitledMulti": { "type": "array", "items": { "type": "string", "enum": words } },
                    "titledMulti": { "type": "array", "items": { "anyOf": titled } },
                });
                Self::elicit(&context, form("Choose", properties, json!([]))).await
            }
            "test_reconnection" | "test_parameter_in_header" | "json_schema_2020_12_tool" => {
                text("Done")
            }
            "test_trigger_tool_change" => {
                for sink in self.sinks() {
                    _ = sink.notify_tool_list_changed().await;
                }
                text("Done")
            }
            "test_trigger_prompt_change" => {
                for sink in self.sinks() {
                    _ = sink.notify_prompt_list_changed().await;
                }
                text("Done")
            }
            "test_missing_capability" => {
                let client = context.meta.client_capabilities().unwrap_or_default();
                if client.sampling.is_none() {
                    let needed = ClientCapabilities::builder().enable_sampling().build();
                    return Err(ErrorData::missing_required_client_capability(needed));
                }
                text("Done")
            }
            "test_streaming_elicitation" => {
                needs([("streaming_elicitation", asks("Provide a value", "value"))], None).into()
            }
            "test_logging_tool" => {
                if let Some(level) = context.meta.log_level() {
                    _ = log(level, "logged").await;
                }
                text("Done")
            }
            _ => self.ours.call_tool(request, context).await?,
        })
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let mut listed = self.ours.list_resources(request, context).await?;
        let text = Resource::new("test://static-text", "Text").with_mime_type("text/plain");
        let binary = Resource::new("test://static-binary", "Binary").with_mime_type("image/png");
        listed.resources.extend([text, binary]);
        Ok(listed)
    }

    async fn list_resource_templates(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let mut listed = self.ours.list_resource_templates(request, context).await?;
        let template = ResourceTemplate::new("test://template/{id}/data", "Template");
        listed.resource_templates.push(template.with_mime_type("application/json"));
        Ok(listed)
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let uri = request.uri.clone();
        let contents = match &*uri {
            "test://static-text" => resource(&uri, "text/plain", "A static text resource."),
            "test://static-binary" => ResourceContents::BlobResourceContents {
                uri,
                mime_type: Some("image/png".into()),
                blob: IMAGE.into(),
                meta: None,
            },
            _ if uri.starts_with("test://template/") => {
                let id = uri.split('/').nth(3).unwrap_or_default();
                let data = json!({ "id": id, "data": format!("Data for ID: {id}") });
                resource(&uri, "application/json", &data.to_string())
            }
            _ => return self.ours.read_resource(request, context).await,
        };
        let result = ReadResourceResult::new(vec![contents]);
        Ok(result.with_ttl_ms(0).with_cache_scope(CacheScope::Private).into())
    }

    async fn list_skills(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListSkillsResult, ErrorData> {
        self.ours.list_skills(request, context).await
    }

    async fn get_skill(
        &self,
        request: GetSkillRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetSkillResult, ErrorData> {
        self.ours.get_skill(request, context).await
    }

    async fn list_prompts(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        let mut listed = self.ours.list_prompts(request, context).await?;
        let prompt =
            |name: &str, arguments| Prompt::new(name, Some("A prompt of the suite"), arguments);
        let argument = |name| PromptArgument::new(name).with_required(true);
        listed.prompts.extend([
            prompt("test_simple_prompt", None),
            prompt("test_prompt_with_arguments", Some(vec![argument("arg1"), argument("arg2")])),
            prompt("test_prompt_with_embedded_resource", Some(vec![argument("resourceUri")])),
            prompt("test_prompt_with_image", None),
            prompt("test_input_required_result_prompt", None),
        ]);
        Ok(listed)
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        let argument = |name: &str| {
            let value = request.arguments.as_ref().and_then(|it| it.get(name));
            value.and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        let says = |text: &str| PromptMessage::new_text(Role::User, text);
        let messages = match &*request.name {
            "test_simple_prompt" => vec![says("This is a simple prompt for testing.")],
            "test_prompt_with_arguments" => {
                let (one, two) = (argument("arg1"), argument("arg2"));
                vec![says(&format!("Prompt with arguments: arg1='{one}', arg2='{two}'"))]
            }
            "test_prompt_with_embedded_resource" => {
                let uri = argument("resourceUri");
                let uri = if uri.is_empty() { "test://static-text".to_owned() } else { uri };
                let block = ContentBlock::resource(resource(&uri, "text/plain", "Embedded."));
                vec![PromptMessage::new(Role::User, block), says("Process the resource above.")]
            }
            "test_prompt_with_image" => {
                let block = ContentBlock::image(IMAGE, "image/png");
                vec![PromptMessage::new(Role::User, block), says("Analyze the image above.")]
            }
            "test_input_required_result_prompt" => {
                let responses = request.input_responses.as_ref();
                let answered = responses.and_then(|it| it.get("user_context"));
                match answered {
                    Some(answer) => vec![says(&format!("Context: {answer}"))],
                    None => {
                        let asks = asks("What context should the prompt use?", "context");
                        return Ok(needs([("user_context", asks)], None).into());
                    }
                }
            }
            _ => return self.ours.get_prompt(request, context).await,
        };
        Ok(GetPromptResult::new(messages).into())
    }

    async fn complete(
        &self,
        request: CompleteRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        self.ours.complete(request, context).await
    }

    async fn set_level(
        &self,
        _request: SetLevelRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        Ok(())
    }

    async fn subscribe(
        &self,
        _request: SubscribeRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        Ok(())
    }

    async fn unsubscribe(
        &self,
        _request: UnsubscribeRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        Ok(())
    }

    fn accepted_subscription_filter(
        &self,
        requested: &SubscriptionFilter,
    ) -> Option<SubscriptionFilter> {
        Some(requested.supported_by(&self.get_info().capabilities))
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        let sink = context.sink().clone();
        let id = sink.id().to_string();
        self.sinks.lock().unwrap_or_else(PoisonError::into_inner).insert(id.clone(), sink);
        context.cancelled().await;
        self.sinks.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
        Ok(())
    }
}

/// `Host` and `Origin`, as the API that the server is mounted on checks them.
async fn own_sites(request: Request, next: Next) -> Response {
    let peer = Peer::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    match Sites::default().check(peer, request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let controller = Arc::new(Controller::connect(sandbox_env::config()?).await?);
    let io_dirs = tempfile::tempdir()?;
    let settings = Settings {
        sandbox: SandboxSpec::new(),
        timeout_ceiling: Duration::from_secs(600),
        access: Access::ReadWrite,
        audience: Audience::Remote,
        has_previews: false,
        tools: None,
        output_bytes: DEFAULT_OUTPUT_BYTES,
        upstreams: BySubject::default(),
        expose: Vec::new(),
        elicitation: None,
    };
    let service = ServiceConfig::new(io_dirs.path().join("service"));
    let store = Store::open(&service.data_dir, Durability::Process)?;
    let service = Service::start(service, controller, store).await?;
    let io_dirs_path = Some(io_dirs.path().join("files"));
    let options = HttpOptions { settings, io_dirs: io_dirs_path };
    let server = HttpServer::new(service.clone(), options);
    let (ours, sinks) = (server.clone(), Sinks::default());
    let router = server
        .router_of(move || Fixtures { ours: ours.connection(), sinks: sinks.clone() })
        .layer(axum::Extension(Subject::new("suite")?))
        .layer(from_fn(own_sites));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("http://{}/mcp", listener.local_addr()?);
    let end = async { _ = tokio::io::stdin().read_u8().await };
    tokio::select! {
        served = async { axum::serve(listener, router).await } => served?,
        () = end => {}
    }
    server.close().await;
    service.shutdown(Duration::ZERO).await;
    Ok(())
}
