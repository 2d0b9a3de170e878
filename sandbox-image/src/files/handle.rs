//! An open file with a buffer: the implementation of a script's file handle. Independent of Lua.
//!
//! One position for reading and writing, like a C stream. The buffer holds either bytes that were
//! read ahead, or bytes that are still to be written. Every system call passes its offset, so the
//! descriptor's own offset is never used (except in append mode, where the kernel chooses it).

mod numeral;

use std::mem::MaybeUninit;
use std::sync::Arc;

use rustix::io::{Errno, retry_on_intr};
use rustix::{fs, io};

use super::access::{Files, Flush};
use super::error::FileError;
use super::open::OpenFile;
use super::open_mode::OpenMode;
use super::touched::TouchedEntry;

/// Bytes per system call.
pub const BUFFER_BYTES: usize = 64 << 10;

/// Size of the first read after a seek: random access reads little. Every further read doubles it.
const FIRST_AHEAD_BYTES: usize = 4 << 10;

/// The base of a `seek`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whence {
    /// The file's beginning.
    Set,
    /// The current position.
    Current,
    /// The file's end.
    End,
}

/// The content of the buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BufferMode {
    /// Bytes read ahead: those before `cursor` have been consumed.
    Read,
    /// Bytes to write: `cursor` is always `end`.
    Write,
}

/// An open file with a buffer. Dropped, it is flushed and closed.
pub struct Handle {
    files: Arc<Files>,
    /// `None` once closed.
    file: Option<OpenFile>,
    /// The path as the script wrote it, for messages.
    name: Box<[u8]>,
    /// Empty until first used, then [`BUFFER_BYTES`] long.
    buffer: Vec<u8>,
    holds: BufferMode,
    /// The file offset of the buffer's first byte.
    base: u64,
    cursor: usize,
    end: usize,
    /// The size of the next read.
    ahead: usize,
    /// The first write was announced.
    touch: Option<TouchedEntry>,
    /// A byte has reached the file.
    changed: bool,
    /// The last attempt to write failed. Its caller has the error.
    failed: bool,
}

impl Handle {
    /// A handle for `file`, which the script called `name`: at its beginning, in mode `a` at its
    /// end.
    pub fn new(files: Arc<Files>, file: OpenFile, name: &[u8]) -> Self {
        // As with C streams, only the append mode that cannot read starts at the end.
        let base = if file.mode == OpenMode::Append { file.size } else { 0 };
        Self {
            files,
            file: Some(file),
            name: name.into(),
            buffer: Vec::new(),
            holds: BufferMode::Read,
            base,
            cursor: 0,
            end: 0,
            ahead: BUFFER_BYTES,
            touch: None,
            changed: false,
            failed: false,
        }
    }

    /// Whether it is open.
    pub const fn is_open(&self) -> bool {
        self.file.is_some()
    }

    /// Whether the last attempt to write failed.
    pub const fn has_failed(&self) -> bool {
        self.failed
    }

    /// The path as the script wrote it.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    fn error(&self, errno: Errno) -> FileError {
        FileError::system(errno, &self.name)
    }

    fn file(&self) -> Result<&OpenFile, FileError> {
        self.file.as_ref().ok_or_else(|| self.error(Errno::BADF))
    }

    fn size(&self) -> Result<u64, FileError> {
        let stat = fs::fstat(&self.file()?.fd).map_err(|errno| self.error(errno))?;
        Ok(u64::try_from(stat.st_size).unwrap_or(0))
    }

    /// The current position.
    const fn position(&self) -> u64 {
        self.base + self.cursor as u64
    }

    fn allocate(&mut self) {
        if self.buffer.is_empty() {
            self.buffer = vec![0; BUFFER_BYTES];
        }
    }

    // --- reading -----------------------------------------------------------------------------

    /// Prepares for reading: flushes buffered writes.
    ///
    /// # Errors
    ///
    /// If it was opened write-only, or the flush fails.
    pub fn start_reading(&mut self) -> Result<(), FileError> {
        if self.holds == BufferMode::Write {
            self.flush()?;
            self.base = self.position();
            (self.cursor, self.end) = (0, 0);
            self.holds = BufferMode::Read;
        }
        match self.file()?.mode {
            OpenMode::Write | OpenMode::Append => Err(self.error(Errno::BADF)),
            _ => Ok(()),
        }
    }

    /// The bytes that have been read ahead.
    pub fn buffered(&self) -> &[u8] {
        match self.holds {
            BufferMode::Read => &self.buffer[self.cursor..self.end],
            BufferMode::Write => &[],
        }
    }

    /// Removes bytes from the front of [`buffered`](Self::buffered).
    pub fn consume(&mut self, count: usize) {
        debug_assert!(count <= self.end - self.cursor);
        self.cursor += count;
    }

    /// Reads ahead, after what is buffered, unless the buffer is full. Returns the number of bytes
    /// read: 0 at the end of the file.
    ///
    /// # Errors
    ///
    /// OS errors.
    pub fn fill(&mut self) -> Result<usize, FileError> {
        self.allocate();
        if self.cursor > 0 {
            self.buffer.copy_within(self.cursor..self.end, 0);
            self.base = self.position();
            (self.cursor, self.end) = (0, self.end - self.cursor);
        }
        let Some(file) = &self.file else { return Err(self.error(Errno::BADF)) };
        let offset = self.base + self.end as u64;
        let space_end = BUFFER_BYTES.min(self.end + self.ahead);
        self.ahead = BUFFER_BYTES.min(self.ahead * 2);
        let space = &mut self.buffer[self.end..space_end];
        let read = retry_on_intr(|| io::pread(&file.fd, &mut *space, offset));
        let count = read.map_err(|errno| self.error(errno))?;
        self.end += count;
        Ok(count)
    }

    /// Reads from the file directly into `space`; the buffer must be empty. Returns the bytes that
    /// were read: none at the end of the file.
    ///
    /// # Errors
    ///
    /// OS errors.
    ///
    /// # Panics
    ///
    /// If anything is buffered.
    pub fn read_directly<'b>(
        &mut self,
        space: &'b mut [MaybeUninit<u8>],
    ) -> Result<&'b [u8], FileError> {
        assert!(self.buffered().is_empty(), "what was read ahead comes first");
        self.base = self.position();
        (self.cursor, self.end) = (0, 0);
        let Some(file) = &self.file else { return Err(self.error(Errno::BADF)) };
        // Not retried on EINTR: the agent handles no signals, so none can interrupt it.
        let (read, _) = io::pread(&file.fd, space, self.base).map_err(|errno| self.error(errno))?;
        self.base += read.len() as u64;
        Ok(read)
    }

    /// The number of bytes from the position to the current end of the file.
    ///
    /// # Errors
    ///
    /// OS errors.
    pub fn remaining(&self) -> Result<u64, FileError> {
        Ok(self.size()?.saturating_sub(self.position()))
    }

    /// Consumes the buffered spaces, and reads ahead if nothing else is buffered. Returns whether there may
    /// be more, for which it is to be called again.
    ///
    /// # Errors
    ///
    /// OS errors.
    pub fn skip_spaces(&mut self) -> Result<bool, FileError> {
        let buffered = self.buffered();
        let spaces = buffered.iter().take_while(|&&byte| numeral::is_space(byte)).count();
        let all = spaces == buffered.len();
        self.consume(spaces);
        Ok(all && self.fill()? > 0)
    }

    /// Reads a number if there is one, and otherwise what looked like the beginning of one, as Lua
    /// does.
    ///
    /// # Errors
    ///
    /// OS errors.
    pub fn read_number(&mut self) -> Result<Option<f64>, FileError> {
        while self.buffered().len() < numeral::LOOK_AHEAD && self.fill()? > 0 {}
        let (length, number) = numeral::scan(self.buffered());
        self.consume(length);
        Ok(number)
    }

    // --- writing -----------------------------------------------------------------------------

    /// Prepares for `count` bytes that follow by [`put`](Self::put): counts them, and the hole
    /// before them, towards the limit, and announces the change.
    ///
    /// # Errors
    ///
    /// If it was opened read-only, or the limit is reached; then nothing is written.
    pub fn start_writing(&mut self, count: usize) -> Result<(), FileError> {
        if count == 0 {
            return Ok(());
        }
        let append = match self.file()?.mode {
            OpenMode::Read => return Err(self.error(Errno::BADF)),
            OpenMode::Append | OpenMode::AppendUpdate => true,
            OpenMode::Write | OpenMode::ReadUpdate | OpenMode::WriteUpdate => false,
        };
        let mut charge = count as u64;
        if self.holds == BufferMode::Read || self.end == 0 {
            // The position of the write, and whether it leaves a hole, is known only now: another
            // handle may have extended or truncated the file.
            let at = self.position();
            let size = if append || at > 0 { self.size()? } else { 0 };
            self.base = if append { size } else { at };
            (self.cursor, self.end) = (0, 0);
            self.holds = BufferMode::Write;
            charge = charge.saturating_add(self.base.saturating_sub(size));
        }
        if self.base.checked_add(self.end as u64 + count as u64).is_none_or(|end| end > OFFSET_MAX)
        {
            return Err(self.error(Errno::FBIG));
        }
        self.files.quota.charge(&self.file()?.fd, charge)?;
        self.announce();
        Ok(())
    }

    /// Announces the change, unless that is done.
    fn announce(&mut self) {
        if let (None, Some(file)) = (&self.touch, &self.file) {
            let change = file.mode.change();
            self.touch = Some(self.files.announced.announce(&file.path, true, change).into_entry());
        }
    }

    /// Writes, or buffers for later.
    ///
    /// # Errors
    ///
    /// OS errors.
    pub fn put(&mut self, mut bytes: &[u8]) -> Result<(), FileError> {
        self.allocate();
        while !bytes.is_empty() {
            if self.end == 0 && bytes.len() >= BUFFER_BYTES {
                let (written, failure) = self.write_through(bytes);
                self.base += written as u64;
                return failure.map_or(Ok(()), Err);
            }
            let part = bytes.len().min(BUFFER_BYTES - self.end);
            self.buffer[self.end..self.end + part].copy_from_slice(&bytes[..part]);
            self.end += part;
            self.cursor = self.end;
            bytes = &bytes[part..];
            if self.end == BUFFER_BYTES {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Writes what is buffered.
    ///
    /// # Errors
    ///
    /// OS errors; what could not be written stays buffered for the next attempt.
    pub fn flush(&mut self) -> Result<(), FileError> {
        if self.holds == BufferMode::Read || self.end == 0 {
            return Ok(());
        }
        let buffer = std::mem::take(&mut self.buffer);
        let (written, failure) = self.write_through(&buffer[..self.end]);
        self.buffer = buffer;
        self.buffer.copy_within(written..self.end, 0);
        self.end -= written;
        self.cursor = self.end;
        self.base += written as u64;
        failure.map_or(Ok(()), Err)
    }

    /// Writes at the buffer's offset. Returns how much was written.
    fn write_through(&mut self, bytes: &[u8]) -> (usize, Option<FileError>) {
        let mut done = 0;
        let mut failure = None;
        // Again where an attempt has failed and its announcement was withdrawn.
        self.announce();
        if let Some(file) = &self.file {
            let append = matches!(file.mode, OpenMode::Append | OpenMode::AppendUpdate);
            while done < bytes.len() && failure.is_none() {
                let rest = &bytes[done..];
                let offset = self.base + done as u64;
                let written = retry_on_intr(|| {
                    if append {
                        io::write(&file.fd, rest)
                    } else {
                        io::pwrite(&file.fd, rest, offset)
                    }
                });
                match written {
                    Ok(0) => failure = Some(self.error(Errno::IO)),
                    Ok(count) => done += count,
                    Err(errno) => failure = Some(self.error(errno)),
                }
            }
            self.changed |= done > 0;
            self.failed = failure.is_some();
            if failure.is_some()
                && !self.changed
                && let Some(touch) = self.touch.take()
            {
                self.files.announced.take_back(&file.path, true, touch);
            }
        }
        (done, failure)
    }

    // --- both --------------------------------------------------------------------------------

    /// Moves the position and returns it. Later reads see the file's content at that time.
    ///
    /// # Errors
    ///
    /// If the position would be before the beginning of the file; errors of the flush.
    pub fn seek(&mut self, whence: Whence, offset: i64) -> Result<u64, FileError> {
        self.flush()?;
        let from = match whence {
            Whence::Set => 0,
            Whence::Current => self.position(),
            Whence::End => self.size()?,
        };
        let to = from.checked_add_signed(offset).filter(|&to| to <= OFFSET_MAX);
        let to = to.ok_or_else(|| self.error(Errno::INVAL))?;
        // Every seek discards the bytes that were read ahead: the file may have been changed or
        // truncated since, and nothing would show it (timestamps have a granularity of
        // milliseconds, and writes through a mapping do not update them).
        self.holds = BufferMode::Read;
        self.base = to;
        (self.cursor, self.end) = (0, 0);
        self.ahead = FIRST_AHEAD_BYTES;
        Ok(to)
    }

    /// Flushes and closes. The handle is closed even on an error.
    ///
    /// # Errors
    ///
    /// If buffered bytes could not be written.
    pub fn close(&mut self) -> Result<(), FileError> {
        let flushed = self.flush();
        self.file = None;
        self.buffer = Vec::new();
        (self.cursor, self.end) = (0, 0);
        flushed
    }
}

impl Flush for Handle {
    fn flush_best_effort(&mut self) -> Result<(), FileError> {
        let is_known = self.failed;
        self.flush().or_else(|error| if is_known { Ok(()) } else { Err(error) })
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        _ = self.close();
    }
}

/// The kernel's offsets are signed.
const OFFSET_MAX: u64 = i64::MAX.cast_unsigned();

#[cfg(test)]
mod tests {
    use super::super::tests::setup::{Recorded, Setup};
    use super::*;
    use sandbox_protocol::ErrorKind;
    use sandbox_protocol::message::Change;

    struct Fixture {
        directory: tempfile::TempDir,
        files: Arc<Files>,
        announced: Arc<Recorded>,
    }

    impl Fixture {
        fn new(content: &[u8]) -> Self {
            let directory = tempfile::tempdir().unwrap();
            std::fs::write(directory.path().join("f"), content).unwrap();
            let (files, announced) = Setup::io(directory.path()).open();
            Self { directory, files, announced }
        }

        fn open(&self, mode: OpenMode) -> Handle {
            Handle::new(Arc::clone(&self.files), self.files.open(b"f", mode).unwrap(), b"f")
        }

        /// A handle whose writes the OS refuses.
        fn unwritable(&self, mode: OpenMode) -> Handle {
            let file = OpenFile { mode, ..self.files.open(b"f", OpenMode::Read).unwrap() };
            Handle::new(Arc::clone(&self.files), file, b"f")
        }

        fn content(&self) -> Vec<u8> {
            std::fs::read(self.directory.path().join("f")).unwrap()
        }
    }

    fn write(handle: &mut Handle, bytes: &[u8]) -> Result<(), FileError> {
        handle.start_writing(bytes.len())?;
        handle.put(bytes)
    }

    #[test]
    fn a_write_reaches_the_file_when_the_buffer_is_full_or_flushed() {
        let fixture = Fixture::new(b"");
        let mut handle = fixture.open(OpenMode::Write);
        write(&mut handle, &[b'a'; BUFFER_BYTES - 1]).unwrap();
        assert_eq!(fixture.content().len(), 0);
        write(&mut handle, b"bc").unwrap();
        assert_eq!(fixture.content().len(), BUFFER_BYTES);
        handle.flush().unwrap();
        assert_eq!(fixture.content().len(), BUFFER_BYTES + 1);
        write(&mut handle, &[b'd'; 3 * BUFFER_BYTES + 5]).unwrap();
        assert_eq!(fixture.content().len(), 4 * BUFFER_BYTES + 6);
        drop(handle);
        assert_eq!(fixture.files.written(), 4 * BUFFER_BYTES as u64 + 6);
    }

    #[test]
    fn a_change_is_announced_before_the_first_write_and_taken_back_where_that_fails() {
        let fixture = Fixture::new(b"old");
        let mut handle = fixture.open(OpenMode::Append);
        assert_eq!(fixture.announced.take(), []);
        write(&mut handle, b"").unwrap();
        assert_eq!(fixture.announced.take(), []);
        write(&mut handle, b"new").unwrap();
        write(&mut handle, b"er").unwrap();
        assert_eq!(fixture.announced.take(), [("/io/f".to_owned(), true, Change::Append)]);
        drop(handle);
        assert_eq!(fixture.content(), b"oldnewer");

        let fixture = Fixture::new(b"old");
        let mut handle = fixture.unwritable(OpenMode::ReadUpdate);
        write(&mut handle, b"new").unwrap();
        assert_eq!(handle.flush().unwrap_err().kind, ErrorKind::ReadOnly);
        assert_eq!(
            fixture.announced.take(),
            [("/io/f".to_owned(), true, Change::Write), ("/io/f".to_owned(), true, Change::Failed)]
        );
    }

    #[test]
    fn bytes_that_are_written_after_a_failed_flush_are_announced_again() {
        let fixture = Fixture::new(b"old");
        let mut handle = fixture.unwritable(OpenMode::ReadUpdate);
        write(&mut handle, b"new").unwrap();
        for _ in 0..2 {
            handle.flush().unwrap_err();
        }
        // The disk has space again, say.
        handle.file = Some(fixture.files.open(b"f", OpenMode::ReadUpdate).unwrap());
        handle.close().unwrap();
        assert_eq!(fixture.content(), b"new");
        let changes: Vec<_> = fixture.announced.take().into_iter().map(|(.., it)| it).collect();
        let (write, failed) = (Change::Write, Change::Failed);
        assert_eq!(changes, [write, failed, write, failed, write]);
    }

    #[test]
    fn write_error_is_repeated_until_the_handle_is_closed() {
        let fixture = Fixture::new(b"");
        let mut handle = fixture.unwritable(OpenMode::Write);
        write(&mut handle, b"lost").unwrap();
        assert!(handle.flush().is_err());
        assert!(handle.seek(Whence::Set, 0).is_err());
        assert!(write(&mut handle, &[0; BUFFER_BYTES]).is_err());
        assert!(handle.close().is_err());
        assert!(!handle.is_open() && handle.close().is_ok());
    }

    #[test]
    fn best_effort_flush_reports_only_an_error_that_the_writer_has_not_seen() {
        let fixture = Fixture::new(b"");
        let mut handle = fixture.unwritable(OpenMode::Write);
        assert_eq!(handle.flush_best_effort(), Ok(()));
        write(&mut handle, b"lost").unwrap();
        assert_eq!(handle.flush_best_effort().unwrap_err().kind, ErrorKind::ReadOnly);
        assert_eq!(handle.flush_best_effort(), Ok(()));
        assert!(handle.has_failed());
        let mut handle = fixture.unwritable(OpenMode::Write);
        write(&mut handle, b"lost").unwrap();
        handle.flush().unwrap_err();
        assert_eq!(handle.flush_best_effort(), Ok(()));
    }

    fn rest(handle: &mut Handle) -> Vec<u8> {
        handle.start_reading().unwrap();
        while handle.fill().unwrap() > 0 {}
        let rest = handle.buffered().to_vec();
        handle.consume(rest.len());
        rest
    }

    /// A handle that has read this much of `0123456789`, and has read all of it ahead.
    fn begun(count: usize) -> (Fixture, Handle) {
        let fixture = Fixture::new(b"0123456789");
        let mut handle = fixture.open(OpenMode::ReadUpdate);
        handle.start_reading().unwrap();
        assert_eq!(handle.fill().unwrap(), 10);
        handle.consume(count);
        (fixture, handle)
    }

    #[test]
    fn after_a_seek_the_file_is_read_as_it_is_then() {
        let seeks: [(Whence, i64, &[u8]); 5] = [
            (Whence::Set, 4, b"4ABC89"),
            (Whence::Current, 1, b"4ABC89"),
            (Whence::Current, 0, b"34ABC89"),
            (Whence::End, -3, b"C89"),
            (Whence::Set, 0, b"01234ABC89"),
        ];
        for (whence, offset, expected) in seeks {
            let (fixture, mut handle) = begun(3);
            let mut other = fixture.open(OpenMode::ReadUpdate);
            other.seek(Whence::Set, 5).unwrap();
            write(&mut other, b"ABC").unwrap();
            other.close().unwrap();
            handle.seek(whence, offset).unwrap();
            assert_eq!(rest(&mut handle), expected, "{whence:?} {offset}");
        }
    }

    #[test]
    fn after_a_seek_nothing_is_read_that_a_program_has_cut_off_or_replaced() {
        let (fixture, mut handle) = begun(3);
        let file = std::fs::File::options().write(true).open(fixture.directory.path().join("f"));
        let file = file.unwrap();
        // With the old timestamps: they prove nothing.
        let modified = file.metadata().unwrap().modified().unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, b"abcdefghij", 0).unwrap();
        file.set_modified(modified).unwrap();
        assert_eq!(handle.seek(Whence::Current, 0).unwrap(), 3);
        assert_eq!(rest(&mut handle), b"defghij");
        file.set_len(5).unwrap();
        handle.seek(Whence::Set, 4).unwrap();
        assert_eq!(rest(&mut handle), b"e");
        handle.seek(Whence::Set, 7).unwrap();
        assert_eq!((rest(&mut handle), handle.remaining().unwrap()), (Vec::new(), 0));
        // At the old end, a file that has grown continues.
        handle.seek(Whence::End, 0).unwrap();
        assert_eq!(rest(&mut handle), b"");
        std::os::unix::fs::FileExt::write_all_at(&file, b"more", 5).unwrap();
        assert_eq!(rest(&mut handle), b"more");
    }

    #[test]
    fn reads_and_writes_through_one_handle_see_each_other() {
        let (fixture, mut handle) = begun(3);
        write(&mut handle, b"AB").unwrap();
        assert_eq!(rest(&mut handle), b"56789");
        handle.seek(Whence::Set, 2).unwrap();
        assert_eq!(rest(&mut handle), b"2AB56789");
        write(&mut handle, b"end").unwrap();
        assert_eq!(handle.seek(Whence::Set, 9).unwrap(), 9);
        assert_eq!(rest(&mut handle), b"9end");
        assert_eq!(fixture.content(), b"012AB56789end");
    }

    #[test]
    fn appending_goes_to_the_end_wherever_the_handle_stands() {
        let fixture = Fixture::new(b"one");
        let (mut first, mut second) =
            (fixture.open(OpenMode::AppendUpdate), fixture.open(OpenMode::Append));
        write(&mut second, b"two").unwrap();
        second.flush().unwrap();
        assert_eq!(first.seek(Whence::Set, 0).unwrap(), 0);
        write(&mut first, b"three").unwrap();
        assert_eq!(first.seek(Whence::Current, 0).unwrap(), 11);
        assert_eq!(fixture.content(), b"onetwothree");
    }
}
