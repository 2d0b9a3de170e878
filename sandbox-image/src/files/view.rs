//! A window of a file for people and models.

use sandbox_protocol::media::image_type;
use sandbox_protocol::message::{TextWindow, View, ViewLines};
use sandbox_protocol::path::GuestPath;

use super::access::Files;
use super::error::FileError;
use super::read::Reading;
use super::text::LineWindow;
use super::watch::Watch;

/// The content of a view.
pub enum Viewed {
    /// Lines of the text at this path.
    Text(GuestPath, TextWindow),
    /// An image of this MIME type: its first bytes, by which it was recognised, and the rest. They are
    /// not read again, because by then the file could have another type or size.
    Image(&'static str, Vec<u8>, Reading),
}

impl Files {
    /// Returns lines of a text, or a whole image.
    ///
    /// # Errors
    ///
    /// [`FileError`]; `too_large` for a file over `filesystem.max_file_size`, `encoding` if the lines are
    /// not UTF-8, `invalid_request` if there are none.
    pub fn view(&self, request: &View, watch: &Watch) -> Result<Viewed, FileError> {
        let written = request.path.as_bytes();
        let ViewLines { offset: first, limit } = request.lines;
        let refuse = |reason: &str| FileError::invalid(reason, written);
        if first == 0 {
            return Err(refuse("lines are counted from 1"));
        }
        if limit == Some(0) {
            return Err(refuse("`limit` must be at least 1"));
        }
        let mut reading = self.read(written, 0, None)?;
        let mut piece = reading.next(watch)?;
        if let Some(mime_type) = image_type(&piece) {
            return Ok(Viewed::Image(mime_type, piece, reading));
        }
        let mut window = LineWindow::new(first, limit);
        while !piece.is_empty() {
            window.feed(&piece);
            piece = reading.next(watch)?;
        }
        Ok(Viewed::Text(reading.path, window.finish(written)?))
    }
}
