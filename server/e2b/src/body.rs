//! Bodies that are read whole, within a bound, in time, and in the memory of their caller.

use std::time::Duration;

use axum::body::HttpBody as _;
use axum::extract::Request;
use axum::http::StatusCode;
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use sandbox_api::ProblemKind;
use sandbox_http::{HeldMemory, Refusal};
use tokio::time::timeout;

use crate::error::Error;

/// How long a request may take to be there, or an upload send nothing.
pub(crate) const IDLE: Duration = Duration::from_secs(300);

/// A body, with its memory.
pub(crate) struct Whole {
    pub bytes: Bytes,
    _held: Option<HeldMemory>,
}

/// Why a body was not read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unread {
    #[error("the request is longer than {0} bytes, or broke off")]
    TooLarge(usize),
    #[error("the request has stopped")]
    Stopped,
    #[error("{}", .0.problem().detail)]
    NoMemory(Refusal),
}

/// The body of a request.
pub(crate) async fn whole(request: Request, most: usize) -> Result<Whole, Unread> {
    let held = request.extensions().get::<HeldMemory>().cloned();
    let body = request.into_body();
    if body.size_hint().lower() > most as u64 {
        return Err(Unread::TooLarge(most));
    }
    let reading = async {
        let (mut pieces, mut bytes) = (body.into_data_stream(), BytesMut::new());
        while let Some(piece) = pieces.next().await {
            let piece = piece.map_err(|_| Unread::TooLarge(most))?;
            if bytes.len() + piece.len() > most {
                return Err(Unread::TooLarge(most));
            }
            hold(held.as_ref(), piece.len()).await?;
            bytes.extend_from_slice(&piece);
        }
        Ok(bytes.freeze())
    };
    let bytes = timeout(IDLE, reading).await.map_err(|_| Unread::Stopped)??;
    Ok(Whole { bytes, _held: held })
}

/// Takes memory for what has arrived.
pub(crate) async fn hold(held: Option<&HeldMemory>, bytes: usize) -> Result<(), Unread> {
    match held {
        Some(held) => held.add(bytes as u64).await.map_err(Unread::NoMemory),
        None => Ok(()),
    }
}

impl From<Unread> for Error {
    fn from(error: Unread) -> Self {
        let status = match &error {
            Unread::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Unread::Stopped => StatusCode::REQUEST_TIMEOUT,
            Unread::NoMemory(refusal) => StatusCode::from_u16(refusal.problem().status)
                .unwrap_or(StatusCode::SERVICE_UNAVAILABLE),
        };
        let is_for_now = matches!(&error, Unread::NoMemory(refusal)
            if refusal.problem().kind != ProblemKind::TooLarge);
        let after = is_for_now.then_some(Duration::from_secs(1));
        Self::new(status, error.to_string()).retry_after(after)
    }
}
