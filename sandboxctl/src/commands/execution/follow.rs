//! Follows executions to their ends.

use std::cell::Cell;
use std::pin::pin;

use futures_util::StreamExt as _;
use sandbox_api::{ExecutionEvent, Status};

use super::render::{Ended, Renderer, StdoutState};
use crate::error::Error;

/// Renders all events as they come. If stdout is closed, the execution is cancelled.
pub async fn follow(
    mut next: impl AsyncFnMut() -> Result<Option<ExecutionEvent>, Error>,
    cancel: impl AsyncFnOnce() -> Result<(), Error>,
    renderer: &mut Renderer<'_>,
) -> Result<(), Error> {
    let mut cancel = Some(cancel);
    while let Some(event) = next().await? {
        if renderer.event(event).await? == StdoutState::Closed
            && let Some(cancel) = cancel.take()
        {
            cancel().await?;
        }
    }
    renderer.finish().await
}

/// Runs jobs, as many at once as was asked for, and shows them in order. A signal is for all of them:
/// none begins after one, and those that ran are shown. The exit code is the first that is not 0.
pub async fn in_order<'a, J>(
    jobs: Vec<J>,
    at_once: usize,
    run: impl AsyncFn(J) -> Result<(Renderer<'a>, Ended), Error>,
) -> Result<u8, Error> {
    let is_over = Cell::new(false);
    let runs = futures_util::stream::iter(jobs)
        .map(async |job| {
            if is_over.get() {
                return None;
            }
            let ran = run(job).await;
            let is_last = match &ran {
                Ok((_, ended)) => ended.document.status == Status::Cancelled,
                Err(error) => matches!(error, Error::Signalled(_)),
            };
            is_over.set(is_over.get() || is_last);
            Some(ran)
        })
        .buffered(at_once);
    let mut runs = pin!(runs);
    let (mut code, mut signalled) = (0, None);
    while let Some(ran) = runs.next().await {
        match ran {
            None => {}
            Some(Err(error @ Error::Signalled(_))) => _ = signalled.get_or_insert(error),
            Some(ran) => {
                let (mut renderer, ended) = ran?;
                renderer.end_later(&ended)?;
                if code == 0 {
                    code = ended.exit_code;
                }
            }
        }
    }
    signalled.map_or(Ok(code), Err)
}
