//! File operations given as data.

use sandbox_api::Failure;
use sandbox_api::files::{
    CopyOptions, GlobOptions, GrepOptions, ListOptions, MkdirOptions, OperationStats, ReadOptions,
    RemoveOptions, RenameOptions, WriteOptions,
};
use sandbox_api::operation::{
    Copy, Edit, Envelope, Exists, Glob, Grep, List, Mkdir, Operation, OperationOutput, Read,
    Remove, Rename, Stat, View, Write,
};
use sandbox_protocol::WireString;
use sandbox_protocol::message::globs;
use serde::Serialize;
use tokio::time::Instant;

use crate::error::Error;
use crate::sandbox::Sandbox;

impl Sandbox {
    /// Performs an operation given as data. The envelope has the result or the error.
    pub async fn perform(&self, operation: Operation) -> Envelope {
        let started = Instant::now();
        let (part, bytes) = (operation.part_hint(), operation.bytes_hint());
        let result = self.output_of(operation).await;
        let took = started.elapsed();
        match result {
            Ok(output) => output.envelope(took),
            Err(error) => Envelope::failed(took, Failure::from(&error).with_hints(part, bytes)),
        }
    }

    async fn output_of(&self, operation: Operation) -> Result<OperationOutput, Error> {
        match operation {
            Operation::Read(Read { path, path_b64, encoding, offset, limit }) => {
                let options = ReadOptions { encoding, offset, limit };
                output(&self.read(WireString::from_parts(path, path_b64), options).await?)
            }
            Operation::View(View { path, path_b64, lines }) => {
                output(&self.view(WireString::from_parts(path, path_b64), lines).await?)
            }
            Operation::Write(write) => {
                let Write { path, path_b64, content, encoding, mode, parents, atomic } = write;
                let path = WireString::from_parts(path, path_b64);
                let options = WriteOptions { mode, parents, atomic };
                output(&self.write_text(path, &content, encoding, options).await?)
            }
            Operation::Edit(Edit { path, path_b64, old, new, count }) => {
                let path = WireString::from_parts(path, path_b64);
                output(&self.edit(path, &old, &new, count).await?)
            }
            Operation::List(List { path, path_b64, recursive, max_depth, limit }) => {
                let options = ListOptions { recursive, max_depth, limit };
                output(&self.list(WireString::from_parts(path, path_b64), options).await?)
            }
            Operation::Glob(Glob { pattern, path, path_b64, exclude, hidden, limit }) => {
                let path = WireString::from_parts(path, path_b64);
                let options = GlobOptions { globs: globs(None, exclude), hidden, limit };
                output(&self.glob(path, &pattern, options).await?)
            }
            Operation::Grep(grep) => {
                let Grep { pattern, path, path_b64, glob, exclude, .. } = grep;
                let Grep { context, ignore_case, hidden, limit, .. } = grep;
                let path = WireString::from_parts(path, path_b64);
                let globs = globs(glob, exclude);
                let options = GrepOptions { globs, context, ignore_case, hidden, limit };
                output(&self.grep(path, &pattern, options).await?)
            }
            Operation::Mkdir(Mkdir { path, path_b64, parents }) => {
                let options = MkdirOptions { parents };
                output(&self.mkdir(WireString::from_parts(path, path_b64), options).await?)
            }
            Operation::Remove(Remove { path, path_b64, recursive, force }) => {
                let options = RemoveOptions { recursive, force };
                output(&self.remove(WireString::from_parts(path, path_b64), options).await?)
            }
            Operation::Exists(Exists { path, path_b64 }) => {
                output(&self.exists(WireString::from_parts(path, path_b64)).await?)
            }
            Operation::Stat(Stat { path, path_b64 }) => {
                output(&self.stat(WireString::from_parts(path, path_b64)).await?)
            }
            Operation::Rename(Rename { from, from_b64, to, to_b64, overwrite }) => {
                let (from, to) =
                    (WireString::from_parts(from, from_b64), WireString::from_parts(to, to_b64));
                output(&self.rename(from, to, RenameOptions { overwrite }).await?)
            }
            Operation::Copy(Copy { from, from_b64, to, to_b64, recursive, overwrite }) => {
                let (from, to) =
                    (WireString::from_parts(from, from_b64), WireString::from_parts(to, to_b64));
                let options = CopyOptions { recursive, overwrite };
                output(&self.copy(from, to, options).await?)
            }
        }
    }
}

fn output(data: &(impl OperationStats + Serialize)) -> Result<OperationOutput, Error> {
    OperationOutput::new(data).map_err(|source| Error::Operation { source })
}
