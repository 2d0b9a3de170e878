//! Transfers content between the host and a sandbox, in bounded memory.
//!
//! Files, stdin and stdout of the host are read and written by separate threads: a blocked pipe
//! delays neither the session nor a signal.

use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::path::Path;

use sandbox_api::{MessageLine, MessageLines};
use tokio::sync::{mpsc, oneshot};

use crate::input::open_file;
use crate::render::StyledText;
use crate::terminal::Screen;

/// The longest piece.
const PIECE_BYTES: usize = 64 << 10;
/// How many pieces may be queued.
const PIECES: usize = 8;

/// Content of the host, which is read ahead.
#[derive(Debug)]
pub struct Source {
    /// The last piece is empty.
    pieces: mpsc::Receiver<io::Result<Vec<u8>>>,
    /// The number of bytes, if known.
    pub size: Option<u64>,
    ended: bool,
}

impl Source {
    /// stdin.
    ///
    /// # Errors
    ///
    /// If no thread can be started.
    pub fn stdin() -> io::Result<Self> {
        // Known if it is a file; part of it may have been read.
        let size = rustix::fs::fstat(rustix::stdio::stdin())
            .ok()
            .filter(|found| rustix::fs::FileType::from_raw_mode(found.st_mode).is_file())
            .and_then(|found| u64::try_from(found.st_size).ok());
        Self::start(|| Ok(io::stdin().lock()), size)
    }

    /// A file, a pipe, a device.
    ///
    /// # Errors
    ///
    /// If it does not exist, cannot be read, or is a directory.
    pub fn file(path: &Path) -> io::Result<Self> {
        let found = path.metadata()?;
        if found.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        if found.is_file() {
            let file = open_file(path)?;
            return Self::start(move || Ok(file), Some(found.len()));
        }
        // Opening a pipe waits for its writer.
        let path = path.to_owned();
        Self::start(move || File::open(path), None)
    }

    fn start<R: Read>(
        open: impl FnOnce() -> io::Result<R> + Send + 'static,
        size: Option<u64>,
    ) -> io::Result<Self> {
        let (sender, pieces) = mpsc::channel(PIECES);
        let read = move || {
            let mut from = match open() {
                Ok(from) => from,
                Err(error) => {
                    _ = sender.blocking_send(Err(error));
                    return;
                }
            };
            loop {
                let mut piece = vec![0; PIECE_BYTES];
                let read = match from.read(&mut piece) {
                    Ok(length) => {
                        piece.truncate(length);
                        Ok(piece)
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(error) => Err(error),
                };
                let is_last = read.as_ref().map_or(true, Vec::is_empty);
                if sender.blocking_send(read).is_err() || is_last {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("source".to_owned()).spawn(read)?;
        Ok(Self { pieces, size, ended: false })
    }

    /// The next piece; `None` at the end.
    ///
    /// # Errors
    ///
    /// If it cannot be read any further.
    pub async fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        if self.ended {
            return Ok(None);
        }
        // The channel closed without an end: a part must not look like the whole.
        let gone = || Err(io::Error::other("the thread that reads it is gone"));
        let piece = self.pieces.recv().await.unwrap_or_else(gone);
        self.ended = piece.as_ref().map_or(true, Vec::is_empty);
        piece.map(|piece| Some(piece).filter(|piece| !piece.is_empty()))
    }

    /// All of it, if that is at most `most` bytes; otherwise one more byte.
    ///
    /// # Errors
    ///
    /// As of [`next`](Self::next).
    pub async fn all(mut self, most: u64) -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        while all.len() as u64 <= most
            && let Some(piece) = self.next().await?
        {
            all.extend_from_slice(&piece);
        }
        all.truncate(usize::try_from(most).unwrap_or(usize::MAX).saturating_add(1));
        Ok(all)
    }
}

/// A destination on the host.
#[derive(Debug)]
pub struct Sink {
    /// `None` once it accepts no more.
    pieces: Option<mpsc::Sender<Vec<u8>>>,
    done: oneshot::Receiver<io::Result<()>>,
}

impl Sink {
    /// Writes to `to`.
    ///
    /// # Errors
    ///
    /// If no thread can be started.
    pub fn new(to: impl Write + Send + 'static) -> io::Result<Self> {
        Self::start(to, None)
    }

    /// Writes what a program with a terminal of its own shows: a terminal gets all but what writes to the
    /// clipboard.
    ///
    /// # Errors
    ///
    /// If no thread can be started.
    pub fn screen(to: impl Write + IsTerminal + Send + 'static) -> io::Result<Self> {
        match to.is_terminal() {
            true => Self::new(Screen::new(to)),
            false => Self::new(to),
        }
    }

    /// Writes to stdout or stderr: pieces as they are, but to a terminal as this text, which has an end too.
    ///
    /// # Errors
    ///
    /// If no thread can be started.
    pub fn styled(
        to: impl Write + IsTerminal + Send + 'static,
        text: StyledText,
    ) -> io::Result<Self> {
        let text = to.is_terminal().then_some(text);
        Self::start(to, text)
    }

    fn start(
        mut to: impl Write + Send + 'static,
        mut text: Option<StyledText>,
    ) -> io::Result<Self> {
        let (pieces, mut receiver) = mpsc::channel::<Vec<u8>>(PIECES);
        let (sender, done) = oneshot::channel();
        let mut write = move || {
            while let Some(piece) = receiver.blocking_recv() {
                match &mut text {
                    Some(text) => to.write_all(text.take(&piece).as_bytes())?,
                    None => to.write_all(&piece)?,
                }
                // Flush, so that incomplete lines are visible too.
                to.flush()?;
            }
            if let Some(text) = &mut text {
                to.write_all(text.end().as_bytes())?;
            }
            to.flush()
        };
        let write = move || _ = sender.send(write());
        std::thread::Builder::new().name("sink".to_owned()).spawn(write)?;
        Ok(Self { pieces: Some(pieces), done })
    }

    /// Writes a piece.
    ///
    /// # Errors
    ///
    /// Why it accepts no more.
    pub async fn put(&mut self, piece: Vec<u8>) -> io::Result<()> {
        let Some(pieces) = &self.pieces else { return Err(io::ErrorKind::BrokenPipe.into()) };
        if pieces.send(piece).await.is_ok() {
            return Ok(());
        }
        self.pieces = None;
        self.ended().await?;
        Err(io::ErrorKind::BrokenPipe.into())
    }

    /// Waits until everything is written.
    ///
    /// # Errors
    ///
    /// If not everything was written.
    pub async fn finish(mut self) -> io::Result<()> {
        self.pieces = None;
        self.ended().await
    }

    async fn ended(&mut self) -> io::Result<()> {
        let gone = || Err(io::Error::other("the thread that writes it is gone"));
        (&mut self.done).await.unwrap_or_else(|_| gone())
    }
}

/// The lines of a source, with a maximum length.
#[derive(Debug)]
pub struct LineSource {
    source: Source,
    lines: MessageLines,
    /// What was read, and how much of it was taken.
    piece: Vec<u8>,
    taken: usize,
}

impl LineSource {
    /// Lines of at most `most` bytes.
    pub const fn new(source: Source, most: usize) -> Self {
        Self { source, lines: MessageLines::new(most), piece: Vec::new(), taken: 0 }
    }

    /// The next line; `None` at the end. The last one needs no newline.
    ///
    /// # Errors
    ///
    /// As of [`Source::next`].
    pub async fn next(&mut self) -> io::Result<Option<MessageLine>> {
        loop {
            while self.taken < self.piece.len() {
                let (taken, line) = self.lines.take(&self.piece[self.taken..]);
                self.taken += taken;
                if line.is_some() {
                    return Ok(line);
                }
            }
            let Some(piece) = self.source.next().await? else { return Ok(self.lines.end()) };
            (self.piece, self.taken) = (piece, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn block_on<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(work)
    }

    fn lines(text: &[u8], most: usize) -> Vec<MessageLine> {
        let text = text.to_vec();
        let source = Source::start(move || Ok(io::Cursor::new(text)), None).unwrap();
        let mut source = LineSource::new(source, most);
        block_on(async {
            let mut lines = Vec::new();
            while let Some(line) = source.next().await.unwrap() {
                lines.push(line);
            }
            lines
        })
    }

    #[test]
    fn lines_are_bounded_and_one_that_is_too_long_is_passed_over() {
        let whole = |text: &str| MessageLine::Whole(text.as_bytes().to_vec());
        assert_eq!(lines(b"", 4), []);
        assert_eq!(lines(b"a\n\nb", 4), [whole("a"), whole(""), whole("b")]);
        assert_eq!(
            lines(b"1234\n12345\n6\n", 4),
            [whole("1234"), MessageLine::TooLong(None), whole("6")]
        );
        let long = vec![b'x'; 3 * PIECE_BYTES];
        assert_eq!(lines(&long, 4), [MessageLine::TooLong(None)]);
        let text = [&long[..], b"\nnext\n", &long, b"\n", &long].concat();
        let expected = [
            MessageLine::TooLong(None),
            whole("next"),
            MessageLine::TooLong(None),
            MessageLine::TooLong(None),
        ];
        assert_eq!(lines(&text, PIECE_BYTES), expected);
        assert_eq!(lines(&text, 3 * PIECE_BYTES).len(), 4);
        assert!(!lines(&text, 3 * PIECE_BYTES).contains(&MessageLine::TooLong(None)));
    }

    #[test]
    fn a_source_that_fails_says_so_once_and_a_sink_keeps_its_error() {
        let failed = |error: io::Result<Option<Vec<u8>>>| error.unwrap_err().kind();
        block_on(async {
            let open = || Err::<File, _>(io::ErrorKind::NotFound.into());
            let mut source = Source::start(open, None).unwrap();
            assert_eq!(failed(source.next().await), io::ErrorKind::NotFound);
            assert_eq!(source.next().await.unwrap(), None);

            let full = File::options().write(true).open("/dev/full").unwrap();
            let mut sink = Sink::new(full).unwrap();
            let error = loop {
                if let Err(error) = sink.put(vec![0; 10]).await {
                    break error;
                }
            };
            assert_eq!(error.kind(), io::ErrorKind::StorageFull);
            assert!(sink.put(vec![0]).await.is_err());
        });
    }

    #[test]
    fn all_of_a_source_is_bounded() {
        let source = || Source::start(|| Ok(io::repeat(7).take(300_000)), None).unwrap();
        block_on(async {
            assert_eq!(source().all(300_000).await.unwrap().len(), 300_000);
            assert_eq!(source().all(299_999).await.unwrap().len(), 300_000);
            assert_eq!(source().all(5).await.unwrap().len(), 6);
            assert_eq!(source().all(u64::MAX).await.unwrap().len(), 300_000);
        });
    }

    proptest! {
        #[test]
        fn lines_are_those_of_the_text(text in "[ab\n]{0,60}", most in 0usize..6) {
            let expected: Vec<MessageLine> = text
                .lines()
                .map(|line| match line.len() > most {
                    true => MessageLine::TooLong(None),
                    false => MessageLine::Whole(line.as_bytes().to_vec()),
                })
                .collect();
            prop_assert_eq!(lines(text.as_bytes(), most), expected);
        }
    }
}
