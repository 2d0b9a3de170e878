//! The tools that client libraries are made of: the API's own operations and executions in a sandbox,
//! and files in chunks. Calls of them have no order among each other: who needs one waits for answers.

mod download;
mod execute;
mod operation;
mod upload;

pub(super) use self::download::Download;
pub(super) use self::execute::Execute;
pub(super) use self::operation::Operate;
pub(super) use self::upload::Upload;
