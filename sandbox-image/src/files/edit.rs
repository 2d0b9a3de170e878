//! Replacing text in a file. The file is read twice, in bounded memory: the first pass counts the
//! matches, so that nothing is written if the count is wrong; the second writes a new file. In a file whose
//! lines all end with CRLF, a line end of the texts is one of the file.

use std::borrow::Cow;

use memchr::memchr_iter;
use memchr::memmem::Finder;
use sandbox_protocol::message::{Edit, EditReply, Write};

use super::access::Files;
use super::error::FileError;
use super::open::Absent;
use super::read::Reading;
use super::text::Utf8Check;
use super::watch::Watch;

/// How much of the edited text is written at once: matches may be close together.
const WRITTEN_BYTES: usize = 128 << 10;

impl Files {
    /// Replaces `old`, which must occur in the file exactly `count` times, by `new`.
    ///
    /// # Errors
    ///
    /// [`FileError`], and the file is unchanged: `invalid_request` if `old` is empty or occurs
    /// another number of times, `encoding` if the file is not UTF-8.
    pub fn edit(&self, request: &Edit, watch: &Watch) -> Result<EditReply, FileError> {
        let Edit { path, old, new, count } = request;
        let (written, count) = (path.as_bytes(), count.get());
        let refuse = |reason: &str| FileError::invalid(reason, written);
        if old.is_empty() {
            return Err(refuse("the text to replace is empty"));
        }
        // An error that forbids the write is reported first.
        let write = Write { parents: false, ..Write::new(written) };
        let mut writing = self.write(write, Absent::Refuse)?;
        let lock = writing.lock(watch)?;
        let mut reading = self.read(written, 0, None)?;
        let version = reading.version()?;
        let finder = Finder::new(old);
        let mut text = Text::default();
        let mut found = scan(&mut reading, &finder, watch, Some(&mut text), |_| Ok(()))?;
        if !text.utf8.is_whole() {
            return Err(super::text::not_utf8(written));
        }
        let [its_old, new] = [old, new].map(|it| text.with_its_line_ends(it));
        let finder = match *its_old == *old {
            true => finder,
            false => Finder::new(&*its_old),
        };
        if *its_old != *old {
            reading.rewind();
            found = scan(&mut reading, &finder, watch, None, |_| Ok(()))?;
        }
        if found != count {
            let difference = if found == 0 { text.difference(old) } else { "" };
            return Err(refuse(&(wrong_count(found, count) + difference)));
        }
        reading.rewind();
        let put = |bytes: &[u8]| writing.put(bytes);
        let again = replace(&mut reading, &finder, new.as_bytes(), watch, put)?;
        // Changed by a command, or from outside the sandbox.
        if again != found || reading.version()? != version {
            return Err(FileError::changing(written));
        }
        let edited = writing.commit_locked(Some(version), None, lock, watch)?;
        Ok(EditReply { path: (&edited.path).into(), replacements: count })
    }
}

/// What the first pass finds out about a file.
#[derive(Debug, Default)]
struct Text {
    utf8: Utf8Check,
    lines: u64,
    /// Lines that end with CRLF.
    crlf: u64,
    /// The last byte so far.
    last: u8,
}

impl Text {
    fn feed(&mut self, piece: &[u8]) {
        self.utf8.feed(piece);
        for at in memchr_iter(b'\n', piece) {
            let before = if at == 0 { self.last } else { piece[at - 1] };
            self.lines += 1;
            self.crlf += u64::from(before == b'\r');
        }
        self.last = piece.last().copied().unwrap_or(self.last);
    }

    fn with_its_line_ends<'a>(&self, text: &'a str) -> Cow<'a, str> {
        match self.crlf > 0 && self.crlf == self.lines && has_lf(text) {
            true => text.replace("\r\n", "\n").replace('\n', "\r\n").into(),
            false => text.into(),
        }
    }

    /// Why a text may not be in it.
    fn difference(&self, text: &str) -> &'static str {
        match self.crlf {
            0 if self.lines > 0 && text.contains("\r\n") => {
                " (its lines end with LF, those of the text with CRLF)"
            }
            1.. if self.crlf < self.lines && has_lf(text) => " (some of its lines end with CRLF)",
            _ => "",
        }
    }
}

/// Whether a line of a text ends with LF alone.
fn has_lf(text: &str) -> bool {
    text.split('\n').rev().skip(1).any(|line| !line.ends_with('\r'))
}

fn wrong_count(found: u64, count: u64) -> String {
    match (found, count) {
        (0, _) => "the text to replace is not in the file".to_owned(),
        (_, 1) => format!("the text to replace is in the file {found} times, not once"),
        (1, _) => format!("the text to replace is in the file once, not {count} times"),
        _ => format!("the text to replace is in the file {found} times, not {count}"),
    }
}

/// Puts the file with all matches replaced, in large pieces, and counts them.
fn replace(
    reading: &mut Reading,
    finder: &Finder<'_>,
    new: &[u8],
    watch: &Watch,
    mut put: impl FnMut(&[u8]) -> Result<(), FileError>,
) -> Result<u64, FileError> {
    let mut edited = Vec::with_capacity(WRITTEN_BYTES);
    let found = scan(reading, finder, watch, None, |piece| {
        edited.extend_from_slice(piece.unwrap_or(new));
        if edited.len() >= WRITTEN_BYTES {
            watch.check()?;
            put(&edited)?;
            edited.clear();
        }
        Ok(())
    })?;
    put(&edited)?;
    Ok(found)
}

/// Splits a file into matches, for which `each` gets nothing, and the text between them, and counts the
/// matches. Holds one piece and the length of the search text.
fn scan(
    reading: &mut Reading,
    finder: &Finder<'_>,
    watch: &Watch,
    mut text: Option<&mut Text>,
    mut each: impl FnMut(Option<&[u8]>) -> Result<(), FileError>,
) -> Result<u64, FileError> {
    let needle = finder.needle().len();
    let mut held = Vec::new();
    let mut found = 0;
    loop {
        let piece = reading.next(watch)?;
        let is_last = reading.left() == 0;
        if let Some(text) = &mut text {
            text.feed(&piece);
        }
        held.extend_from_slice(&piece);
        let mut done = 0;
        while let Some(at) = finder.find(&held[done..]) {
            each(Some(&held[done..done + at]))?;
            each(None)?;
            found += 1;
            done += at + needle;
        }
        // The piece may end with the beginning of another match.
        let keep = if is_last { 0 } else { (needle - 1).min(held.len() - done) };
        each(Some(&held[done..held.len() - keep]))?;
        held.drain(..held.len() - keep);
        if is_last {
            return Ok(found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::tests::setup::Setup;

    #[test]
    fn close_matches_are_written_together() {
        let directory = tempfile::tempdir().unwrap();
        let (count, new) = (300_000, "xyz");
        std::fs::write(directory.path().join("f"), "a-".repeat(count)).unwrap();
        let (files, _) = Setup::io(directory.path()).open();
        let mut reading = files.read(b"f", 0, None).unwrap();
        let watch = Watch::new(std::sync::Arc::default(), std::time::Duration::from_secs(60));
        let (mut edited, mut puts) = (Vec::new(), 0);
        let put = |bytes: &[u8]| {
            edited.extend_from_slice(bytes);
            puts += 1;
            Ok(())
        };
        let found = replace(&mut reading, &Finder::new("a"), new.as_bytes(), &watch, put).unwrap();
        assert_eq!(found, count as u64);
        assert_eq!(edited, "xyz-".repeat(count).into_bytes());
        assert!(puts <= edited.len() / WRITTEN_BYTES + 1, "{puts}");
    }
}
