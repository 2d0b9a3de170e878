//! Operations on files: from a call to the library's, and from its data to the tool's.

use std::sync::Arc;

use sandbox_controller::files::{
    Encoding, EntryKind, ListOptions, MkdirOptions, ReadOptions, RemoveOptions, WriteOptions,
    time_text,
};
use sandbox_controller::{Error, Sandbox};
use sandbox_protocol::Base64;
use sandbox_protocol::path::{to_wire, written};

use super::Done;
use super::answer::Remarks;
use super::args::ContentEncoding;
use super::call::FileCall;
use super::data::{
    CreateDirectoryData, Data, DeleteData, EntryData, EntryType, ExistsData, FileInfoData,
    FilesystemData, FilesystemMetadata, ListDirectoryData, ReadFileData, WriteFileData,
};
use super::error::ToolError;
use crate::registry::{RegisteredSandbox, Registry};

/// What an operation gives.
pub(super) struct Performed {
    data: Data,
    /// Of a list: there is more.
    truncated: Option<bool>,
    bytes_written: Option<u64>,
    items: Option<u64>,
}

impl From<Data> for Performed {
    fn from(data: Data) -> Self {
        Self { data, truncated: None, bytes_written: None, items: None }
    }
}

/// Why there is nothing to give.
pub(super) enum Failed {
    /// The sandbox is not there, or is there no more.
    Call(ToolError),
    /// The operation was refused, or failed.
    Operation(ToolError),
}

impl Failed {
    pub fn of(error: Error, registry: &Arc<Registry>, sandbox: &Arc<RegisteredSandbox>) -> Self {
        match error {
            Error::Operation { .. } => Self::Operation(error.into()),
            error => Self::Call(registry.failure(sandbox, error).into()),
        }
    }
}

/// What a tool of one operation answers.
pub(super) fn alone(performed: Result<Performed, Failed>) -> Done {
    match performed {
        Ok(Performed { data, truncated, .. }) => {
            Done { remarks: Remarks { truncated, ..Remarks::default() }, ..Ok(data).into() }
        }
        Err(Failed::Call(error) | Failed::Operation(error)) => Err(error).into(),
    }
}

/// What `sandbox_filesystem` answers: that an operation failed is data there.
pub(super) fn enveloped(performed: Result<Performed, Failed>) -> Done {
    let data = match performed {
        Ok(Performed { data, truncated, bytes_written, items: items_count }) => {
            let metadata = FilesystemMetadata {
                bytes_written,
                items_count,
                truncated,
                ..FilesystemMetadata::default()
            };
            FilesystemData { success: true, data: Some(Box::new(data)), error: None, metadata }
        }
        Err(Failed::Call(error)) => return Err(error).into(),
        Err(Failed::Operation(error)) => {
            let metadata = FilesystemMetadata {
                kind: Some(error.kind),
                retryable: Some(error.retryable),
                hint: error.hint,
                ..FilesystemMetadata::default()
            };
            FilesystemData { success: false, data: None, error: Some(error.message), metadata }
        }
    };
    Ok(Data::Filesystem(data)).into()
}

/// Does an operation. Where Loopstack's tools say less than the library knows, so does the data.
pub(super) async fn perform(sandbox: &Sandbox, call: FileCall) -> Result<Performed, Error> {
    let path = call.path();
    Ok(match &call {
        FileCall::Read(args) => {
            let encoding = args.encoding;
            let (offset, limit) = (args.offset, args.limit);
            let options = ReadOptions { encoding: Some(encoding.into()), offset, limit };
            let read = sandbox.read(path, options).await?;
            Data::ReadFile(ReadFileData { content: read.content, encoding }).into()
        }
        FileCall::Write(args) => {
            let options =
                WriteOptions { parents: args.create_parent_dirs, ..WriteOptions::default() };
            let encoding = Some(args.encoding.into());
            let written = sandbox.write_text(path, &args.content, encoding, options).await?;
            let (path, path_b64) = (written.path, written.path_b64);
            let bytes_written = written.bytes_written;
            let data = Data::WriteFile(WriteFileData { path, path_b64, bytes_written });
            Performed { bytes_written: Some(bytes_written), ..data.into() }
        }
        FileCall::List(args) => {
            let (limit, max_depth) = (args.limit, args.max_depth);
            let options = ListOptions { recursive: args.recursive, max_depth, limit };
            let list = sandbox.list(path, options).await?;
            let items = list.entries.len() as u64;
            let entries = list.entries.into_iter().map(|entry| EntryData {
                name: entry.name,
                name_b64: entry.name_b64,
                r#type: entry.kind.into(),
                size: entry.size,
                path: entry.path,
                path_b64: entry.path_b64,
            });
            let data = ListDirectoryData {
                path: list.path,
                path_b64: list.path_b64,
                entries: entries.collect(),
            };
            Performed {
                truncated: Some(list.truncated),
                items: Some(items),
                ..Data::ListDirectory(data).into()
            }
        }
        FileCall::CreateDirectory(args) => {
            let options = MkdirOptions { parents: args.recursive };
            let made = sandbox.mkdir(path, options).await?;
            Data::CreateDirectory(CreateDirectoryData {
                path: made.path,
                path_b64: made.path_b64,
                // As `mkdir -p` does.
                created: made.created || args.recursive,
            })
            .into()
        }
        FileCall::Delete(args) => {
            let options = RemoveOptions { recursive: args.recursive, force: args.force };
            let removed = sandbox.remove(path, options).await?;
            let data = Data::Delete(DeleteData {
                path: removed.path,
                path_b64: removed.path_b64,
                // As `rm -f` does; what was not there is an error without force.
                deleted: true,
            });
            Performed { items: Some(removed.entries), ..data.into() }
        }
        FileCall::Exists(_) => {
            let found = sandbox.exists(path).await?;
            Data::Exists(ExistsData {
                path: found.path,
                path_b64: found.path_b64,
                exists: found.exists,
                r#type: found.kind.map(EntryType::from),
            })
            .into()
        }
        FileCall::Info(_) => {
            let stat = sandbox.stat(path).await?;
            let (name, name_b64) = name(written(&stat.path, stat.path_b64.as_ref()));
            Data::FileInfo(FileInfoData {
                name,
                name_b64,
                path: stat.path,
                path_b64: stat.path_b64,
                r#type: stat.kind.into(),
                size: stat.size,
                permissions: format!("{}{}", type_letter(stat.kind), stat.permissions),
                owner: stat.owner,
                group: stat.group,
                modified_at: stat.modified.and_then(time_text),
                accessed_at: stat.accessed.and_then(time_text),
                created_at: stat.created.and_then(time_text),
            })
            .into()
        }
    })
}

/// The last component of a normalised path.
fn name(path: &[u8]) -> (String, Option<Base64>) {
    to_wire(path.rsplit(|&byte| byte == b'/').next().unwrap_or_default())
}

/// The type as `stat` writes it before the permissions. Nobody has said what a FIFO, a socket or a
/// device is exactly.
const fn type_letter(kind: EntryKind) -> char {
    match kind {
        EntryKind::File => '-',
        EntryKind::Directory => 'd',
        EntryKind::Symlink => 'l',
        EntryKind::Other => '?',
    }
}

impl From<ContentEncoding> for Encoding {
    fn from(encoding: ContentEncoding) -> Self {
        match encoding {
            ContentEncoding::Utf8 => Self::Utf8,
            ContentEncoding::Base64 => Self::Base64,
        }
    }
}

impl From<EntryKind> for EntryType {
    fn from(kind: EntryKind) -> Self {
        match kind {
            EntryKind::File => Self::File,
            EntryKind::Directory => Self::Directory,
            EntryKind::Symlink => Self::Symlink,
            EntryKind::Other => Self::Other,
        }
    }
}
