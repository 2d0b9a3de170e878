//! Executions as `multipart/form-data`: the request, and its inputs as files.

use std::borrow::Cow;

use axum::extract::multipart::{Field, MultipartError};
use axum::extract::{FromRequest, Multipart, Request};
use sandbox_api::ProblemKind;
use sandbox_api::service::{Content, ExecutionRequest};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use crate::app::App;
use crate::refusal::{Refusal, Result};
use crate::request::{Json, JsonSize, MeteredBody, unreadable};

/// The part with the request.
const REQUEST: &str = "request";
/// The parts with inputs.
const INPUT: &str = "input";
/// The most parts: a service bounds inputs by itself, and says so better.
const MAX_PARTS: usize = 1000;

/// The form, for its schema.
pub(crate) struct ExecutionForm;

impl JsonSchema for ExecutionForm {
    fn schema_name() -> Cow<'static, str> {
        "ExecutionForm".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let request = generator.subschema_for::<ExecutionRequest>();
        json_schema!({
            "description": "An execution whose inputs are files.",
            "type": "object",
            "properties": {
                REQUEST: request,
                INPUT: {
                    "description": "Files that appear at `/in/NAME`, by their file names.",
                    "type": "array",
                    "items": { "type": "string", "contentMediaType": "application/octet-stream" },
                },
            },
            "required": [REQUEST],
            "additionalProperties": false,
        })
    }
}

/// Reads the form.
pub(super) async fn read(request: Request, app: &App) -> Result<Json<ExecutionRequest>> {
    let held = request.extensions().get::<MeteredBody>().cloned();
    let mut form = Multipart::from_request(request, app)
        .await
        .map_err(|_| Refusal::new(ProblemKind::Malformed, "the multipart body has no boundary"))?;
    let mut value: Option<ExecutionRequest> = None;
    let mut parts = 0;
    while let Some(part) = form.next_field().await.map_err(|error| broken(&error))? {
        parts += 1;
        if parts > MAX_PARTS {
            return Err(Refusal::new(ProblemKind::TooLarge, "the form has too many parts"));
        }
        match (part.name(), &mut value) {
            (Some(REQUEST), None) => {
                let json = bytes(part).await?;
                let in_memory = JsonSize::default().add(&json)?;
                if let Some(metered) = &held {
                    metered.held.add(in_memory).await?;
                }
                value = Some(app.parsers.parse(json.into()).await?);
            }
            (Some(INPUT), Some(request)) => {
                let name = part.file_name().map(str::to_owned);
                let name = name.ok_or_else(|| invalid(INPUT, "an input needs a file name"))?;
                let content = Content(bytes(part).await?);
                if request.inputs.contains_key(&name) {
                    return Err(invalid(INPUT, "two inputs have one name"));
                }
                request.inputs.insert(name, content);
            }
            (Some(INPUT), None) => return Err(invalid(INPUT, "the request comes first")),
            (Some(REQUEST), Some(_)) => return Err(invalid(REQUEST, "there are two requests")),
            _ => return Err(invalid("?", "the parts of the form are `request` and `input`")),
        }
    }
    let value = value.ok_or_else(|| invalid(REQUEST, "the form has no request"))?;
    Ok(Json { value, _held: held })
}

async fn bytes(part: Field<'_>) -> Result<Vec<u8>> {
    Ok(part.bytes().await.map_err(|error| broken(&error))?.into())
}

fn broken(error: &MultipartError) -> Refusal {
    let refusal = unreadable(error);
    match refusal.problem().kind {
        ProblemKind::Malformed => Refusal::new(ProblemKind::Malformed, "the form cannot be read"),
        _ => refusal,
    }
}

fn invalid(part: &str, what: &str) -> Refusal {
    Refusal::new(ProblemKind::Invalid, format!("{part}: {what}")).at(part, what)
}
