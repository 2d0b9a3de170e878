//! Content between a file of the sandbox and one of the host.

use std::io;

use sandbox_api::ErrorKind;
use sandbox_controller::Error as ControllerError;
use sandbox_controller::files::{FileReader, FileWriter};
use sandbox_protocol::WireError;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::super::progress::Progress;
use super::super::transfer::{Sink, Source};
use super::report::Report;
use crate::error::{Error, UNREAD};
use crate::render::StyledText;

/// The longest piece that is read at once.
const PIECE_BYTES: usize = 64 << 10;

pub(super) fn stdout() -> Result<Sink, Error> {
    Sink::styled(io::stdout(), StyledText::plain()).map_err(Error::stdout)
}

/// The next piece of a file; `None` at its end.
pub(super) async fn piece(reader: &mut FileReader) -> Result<Option<Vec<u8>>, Error> {
    let mut piece = Vec::with_capacity(PIECE_BYTES);
    match reader.read_buf(&mut piece).await {
        Ok(0) => Ok(None),
        Ok(_) => Ok(Some(piece)),
        Err(error) => Err(match error.downcast::<ControllerError>() {
            Ok(error) => error.into(),
            Err(source) => Error::System { what: "the file's content".to_owned(), source },
        }),
    }
}

/// Copies a file to `sink`, until its end or until the sink is closed. Returns whether all was
/// copied.
pub(super) async fn pour(
    reader: &mut FileReader,
    mut sink: Sink,
    progress: &mut Progress,
    what: &str,
) -> Result<bool, Error> {
    while let Some(piece) = piece(reader).await? {
        progress.add(piece.len());
        if !still_read(sink.put(piece).await, what)? {
            return Ok(false);
        }
    }
    still_read(sink.finish().await, what)
}

/// The report of a copy to stdout, of which a part is missing if the reader is gone.
pub(super) fn poured(is_whole: bool) -> Report {
    Report { code: if is_whole { 0 } else { UNREAD }, ..Report::default() }
}

/// Copies all of `source` into a file that is being written, without finishing it.
pub(super) async fn fill(
    writer: &mut FileWriter,
    source: &mut Source,
    progress: &mut Progress,
    what: &str,
) -> Result<(), Error> {
    while let Some(piece) = source.next().await.map_err(|source| failed(what, source))? {
        progress.add(piece.len());
        if writer.write_all(&piece).await.is_err() {
            // It accepts no more; its end returns the reason.
            return Ok(());
        }
    }
    Ok(())
}

/// Whether there is still a reader. A missing reader is not an error: the rest is not written.
pub(super) fn still_read(put: io::Result<()>, what: &str) -> Result<bool, Error> {
    match put {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(source) => Err(failed(what, source)),
    }
}

/// Content on the host side cannot be read or written any further.
pub(super) fn failed(what: &str, source: io::Error) -> Error {
    Error::Content { what: what.to_owned(), source }
}

/// An error that the sandbox would return as well.
pub(super) fn refused(kind: ErrorKind, message: impl AsRef<str>) -> Error {
    ControllerError::Operation { source: WireError::new(kind, message) }.into()
}
