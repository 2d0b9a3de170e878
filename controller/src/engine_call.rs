//! Calls to the engine, each with its time limit.

use sandbox_engine::EngineError;

use crate::error::Error;
use crate::failpoint::{Point, failpoint};
use crate::step::Step;

/// Makes a call to the engine within the step's time limit.
pub(crate) async fn step<T>(
    step: Step,
    call: impl Future<Output = Result<T, EngineError>>,
) -> Result<T, Error> {
    failpoint(Point::Before(step)).await;
    let after = step.time_limit();
    let since = tokio::time::Instant::now();
    let result = tokio::time::timeout(after, call).await;
    tracing::debug!(took = ?since.elapsed(), "{step}");
    let result = result.unwrap_or(Err(EngineError::TimedOut { after }));
    let result = result.map_err(|source| Error::Engine { step, source })?;
    failpoint(Point::After(step)).await;
    Ok(result)
}
