//! Searching a tree: `glob` by path, `grep` by content. Both follow no link, use bounded memory, and
//! return what they found in order, whatever the order of the walk.

use std::cmp::Ordering;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;

use sandbox_protocol::limits::{
    MAX_GLOB_BYTES, MAX_GREP_BYTES, MAX_GREP_CONTEXT, MAX_GREP_LINE_BYTES, MAX_PATTERN_BYTES,
    encoded_len,
};
use sandbox_protocol::message::{
    Cut, CutBy, EntryKind, Glob, GlobReply, Grep, GrepLine, GrepReply,
};
use sandbox_protocol::path::{GLOB_SPECIAL, GuestPath, join_written};
use sandbox_protocol::{ErrorKind, WireString};

use super::access::Files;
use super::breadth::{Visit, WalkEnd};
use super::error::FileError;
use super::expression::Expression;
use super::open_mode::OpenMode;
use super::pattern::Pattern;
use super::selection::{Selection, is_repository};
use super::text::beginning;
use super::watch::Watch;
use sandbox_dirfd::retry;

/// How much of a file is read at once, and the longest line that is searched.
const READ_BYTES: usize = 256 << 10;
/// What a line of a result costs beside its texts.
const LINE_BYTES: usize = 64;

impl Files {
    /// The paths of the entries below a directory that match, relative to it. A directory that does
    /// not exist has none.
    ///
    /// # Errors
    ///
    /// [`FileError`]; `invalid_request` for a pattern that is not a glob, `timeout` if the time is over
    /// and nothing was found.
    pub fn glob(&self, request: &Glob, watch: &Watch) -> Result<GlobReply, FileError> {
        let (top, prefix, below) = request.split();
        let (written, prefix) = (&*top, prefix.as_bytes());
        let (pattern, only_directories) = match below.trim_end_matches('/') {
            // The home, as it is written.
            "" if written.starts_with(b"~") => ("", true),
            "" => return Err(FileError::invalid("the pattern names nothing", written)),
            pattern => (pattern, pattern.len() < below.len()),
        };
        expect_short(pattern.len(), written)?;
        let glob = Pattern::new(pattern, request.hidden);
        let glob = glob.map_err(|reason| no_glob(pattern, &reason))?;
        let selection = selection(&request.selection(), written)?;
        let reach = Reach::of(pattern, request.hidden);
        let hidden = request.hidden || glob.names_hidden;
        let limit = self.search_limit(request.limit, written)?;
        let reply = |path: &GuestPath, names, cut| GlobReply { path: path.into(), names, cut };
        // A path is looked for itself: a mount may be in a directory that does not exist.
        if !pattern.contains(GLOB_SPECIAL)
            && pattern != "."
            && let Some(path) = self.mounts.meant(written)
        {
            let (_, kind) = self.exists(&join_written(written, pattern.as_bytes()))?;
            let name = join_written(prefix, pattern.as_bytes());
            let (above, name) = sandbox_dirfd::split(&name);
            let is_wanted = |kind| {
                let is_directory = kind == EntryKind::Directory;
                (is_directory || !only_directories) && selection.takes(above, name, is_directory)
            };
            let found = kind.filter(|kind| is_wanted(*kind)).map(|_| WireString::from(pattern));
            return Ok(reply(&path, found.into_iter().collect(), None));
        }
        let (mut found, mut bytes) = (Vec::new(), 0);
        let walked = self.walk_breadth_first(
            written,
            (limit, CutBy::Entries),
            watch,
            &|directory, name, is_directory| {
                if is_hidden(name) && !hidden || only_directories && !is_directory {
                    return Visit::SKIP;
                }
                let path = join_written(directory, name);
                let above = join_written(prefix, directory);
                Visit {
                    returned: glob.matches(&path) && selection.takes(&above, name, is_directory),
                    entered: is_directory
                        && reach.leads_on(&path)
                        && selection.enters(&above, name),
                }
            },
            &mut |path, _| {
                let name = WireString::from(path);
                bytes += name.encoded_len() + 1;
                if bytes > MAX_GLOB_BYTES {
                    return Ok(ControlFlow::Break(CutBy::Bytes));
                }
                found.push(name);
                Ok(ControlFlow::Continue(()))
            },
        );
        match walked {
            Ok(WalkEnd { path, cut }) => {
                expect_some(found.len(), cut.as_ref(), watch, written)?;
                found.sort_by(in_order);
                Ok(reply(&path, found, cut))
            }
            // Nothing matches where nothing is; a slash after something else is refused as elsewhere.
            Err(error) if matches!(error.kind, ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                self.exists(written).map(|(path, _)| reply(&path, Vec::new(), None))
            }
            Err(error) => Err(error),
        }
    }

    /// The lines that match in a file, or in the files below a directory. Files with a NUL byte, or
    /// with a line longer than [`READ_BYTES`], are searched up to there.
    ///
    /// # Errors
    ///
    /// [`FileError`] of the path itself; what cannot be read below it is left out.
    /// `invalid_request` for a pattern that is not a regular expression, `timeout` as for a glob.
    pub fn grep(&self, options: &Grep, watch: &Watch) -> Result<GrepReply, FileError> {
        let written = options.path.as_bytes();
        expect_short(options.pattern.len(), written)?;
        let expression = Expression::new(&options.pattern, options.ignore_case);
        let expression = expression.map_err(|cause| {
            let reason = format!("not a regular expression: {cause}");
            FileError::invalid(reason, options.pattern.as_bytes())
        })?;
        if options.context > MAX_GREP_CONTEXT {
            let reason = format!("the context has more than {MAX_GREP_CONTEXT} lines");
            return Err(FileError::invalid(reason, written));
        }
        let selection = selection(&options.selection(), written)?;
        let limit = self.search_limit(options.limit, written)?;
        let context = usize::try_from(options.context).unwrap_or(usize::MAX);
        let mut search =
            Search { expression, context, limit, watch, lines: Vec::new(), bytes: 0, cut: None };
        match self.open(written, OpenMode::Read) {
            Ok(file) => {
                let searched = search.file(&WireString::default(), file.fd, written);
                if watch.in_time(searched)?.is_none() {
                    search.cut = Some(CutBy::Time);
                }
                let Search { lines, cut, .. } = search;
                let cut = cut.map(|by| Cut { by, at: WireString::default() });
                expect_some(lines.len(), cut.as_ref(), watch, written)?;
                return Ok(GrepReply { path: (&file.path).into(), lines, files: 1, cut });
            }
            Err(error) if error.kind == ErrorKind::IsDirectory => {}
            Err(_) if self.inputs(written).is_some() => {}
            Err(error) => return Err(error),
        }
        let mut files = 0;
        let WalkEnd { path, cut } = self.walk_breadth_first(
            written,
            (self.list_entries as u64, CutBy::Files),
            watch,
            &|directory, name, is_directory| {
                let is_wanted = options.hidden || !is_hidden(name);
                Visit {
                    returned: is_wanted
                        && !is_directory
                        && selection.takes(directory, name, is_directory),
                    entered: is_wanted
                        && is_directory
                        && !is_repository(name)
                        && selection.enters(directory, name),
                }
            },
            &mut |path, kind| {
                if kind != EntryKind::File {
                    return Ok(ControlFlow::Continue(()));
                }
                let inner = join_written(written, &path);
                // What may not be read, or has gone meanwhile.
                let Ok(file) = self.open(&inner, OpenMode::Read) else {
                    return Ok(ControlFlow::Continue(()));
                };
                files += 1;
                search.file(&WireString::from(path), file.fd, &inner)?;
                Ok(match search.cut {
                    Some(by) => ControlFlow::Break(by),
                    None => ControlFlow::Continue(()),
                })
            },
        )?;
        let mut lines = search.lines;
        expect_some(lines.len(), cut.as_ref(), watch, written)?;
        // Those of a file are in order.
        lines.sort_by(|one, other| in_order(&one.name, &other.name));
        Ok(GrepReply { path: (&path).into(), lines, files, cut })
    }

    fn search_limit(&self, limit: Option<u64>, written: &[u8]) -> Result<u64, FileError> {
        match limit {
            Some(0) => Err(FileError::invalid("`limit` must be at least 1", written)),
            limit => Ok(limit.unwrap_or(u64::MAX).min(self.list_entries as u64)),
        }
    }
}

fn is_hidden(name: &[u8]) -> bool {
    name.starts_with(b".")
}

/// The order of paths: component by component.
fn in_order(one: &WireString, other: &WireString) -> Ordering {
    let components = |path| <[u8]>::split(path, |&byte| byte == b'/');
    components(one.as_bytes()).cmp(components(other.as_bytes()))
}

/// Refuses the end of a search that found nothing until its time was over.
fn expect_some(
    found: usize,
    cut: Option<&Cut>,
    watch: &Watch,
    written: &[u8],
) -> Result<(), FileError> {
    match cut {
        Some(Cut { by: CutBy::Time, at }) if found == 0 => {
            Err(watch.timeout(&join_written(written, at.as_bytes())))
        }
        _ => Ok(()),
    }
}

fn selection(globs: &[String], written: &[u8]) -> Result<Selection, FileError> {
    expect_short(globs.iter().map(|glob| glob.len() + 1).sum(), written)?;
    Selection::new(globs).map_err(|(glob, reason)| no_glob(glob, &reason))
}

/// Where the paths are that a glob may match: a directory elsewhere is not entered.
struct Reach {
    /// Globs of the names of the directories above, from the outermost on, as far as they are known.
    names: Vec<Pattern>,
    /// The most names of a path that matches; `None`: any number.
    most_names: Option<usize>,
}

impl Reach {
    fn of(pattern: &str, hidden: bool) -> Self {
        let names = || pattern.split('/');
        // Alternatives may have slashes of their own: no path has more than all of them.
        let most_names = (!pattern.contains("**")).then(|| names().count());
        let known = if pattern.contains('{') { 0 } else { names().count() - 1 };
        let names = names()
            .take(known)
            .take_while(|name| !name.contains("**"))
            // A slash within brackets or after a backslash leaves no glob before it.
            .map_while(|name| Pattern::new(name, hidden).ok())
            .collect();
        Self { names, most_names }
    }

    /// Whether paths below a directory may match, if they may below the one that it is in.
    fn leads_on(&self, directory: &[u8]) -> bool {
        let mut names = directory.rsplit(|byte| *byte == b'/');
        let name = names.next().unwrap_or_default();
        let depth = names.count();
        self.most_names.is_none_or(|most| depth + 1 < most)
            && self.names.get(depth).is_none_or(|glob| glob.matches(name))
    }
}

fn no_glob(glob: &str, reason: &str) -> FileError {
    FileError::invalid(format!("not a glob: {reason}"), glob.as_bytes())
}

fn expect_short(pattern: usize, written: &[u8]) -> Result<(), FileError> {
    if pattern <= MAX_PATTERN_BYTES {
        return Ok(());
    }
    let reason = format!("a pattern has more than {MAX_PATTERN_BYTES} bytes");
    Err(FileError::invalid(reason, written))
}

/// The lines that a search has found so far.
struct Search<'a> {
    expression: Expression,
    context: usize,
    /// How many more lines may match.
    limit: u64,
    watch: &'a Watch,
    lines: Vec<GrepLine>,
    bytes: usize,
    /// What has ended it.
    cut: Option<CutBy>,
}

impl Search<'_> {
    /// Searches a file.
    fn file(&mut self, name: &WireString, file: OwnedFd, written: &[u8]) -> Result<(), FileError> {
        let mut lines = Lines { file, buffer: Vec::new(), left: 0..0, ended: false };
        // Lines before the next match, and how many are to follow the last one.
        let mut before: Vec<(u64, Vec<u8>)> = Vec::new();
        let mut after = 0;
        let mut number = 0;
        while let Some(line) = lines.next().map_err(|errno| FileError::system(errno, written))? {
            number += 1;
            let is_match = self.expression.is_match(line, self.watch)?;
            if is_match {
                if self.limit == 0 {
                    self.cut = Some(CutBy::Entries);
                    return Ok(());
                }
                self.limit -= 1;
                for (number, line) in std::mem::take(&mut before) {
                    self.add(name, number, &line, true);
                }
            }
            if is_match || after > 0 {
                after = if is_match { self.context } else { after - 1 };
                self.add(name, number, line, !is_match);
            } else if self.context > 0 {
                if before.len() == self.context {
                    before.remove(0);
                }
                before.push((number, line[..line.len().min(MAX_GREP_LINE_BYTES + 1)].to_vec()));
            }
            if self.cut.is_some() {
                return Ok(());
            }
        }
        Ok(())
    }

    fn add(&mut self, name: &WireString, number: u64, line: &[u8], context: bool) {
        let cut = line.len() > MAX_GREP_LINE_BYTES;
        let text = String::from_utf8_lossy(beginning(line, MAX_GREP_LINE_BYTES)).into_owned();
        self.bytes += encoded_len(&text) + name.encoded_len() + LINE_BYTES;
        if self.bytes > MAX_GREP_BYTES {
            self.cut = Some(CutBy::Bytes);
        } else {
            self.lines.push(GrepLine { name: name.clone(), line: number, text, cut, context });
        }
    }
}

/// The lines of a text file, without their ends.
struct Lines {
    file: OwnedFd,
    buffer: Vec<u8>,
    /// What of the buffer is to be returned.
    left: std::ops::Range<usize>,
    ended: bool,
}

impl Lines {
    /// The next line; `None` at the end, and where the file is not text.
    fn next(&mut self) -> rustix::io::Result<Option<&[u8]>> {
        loop {
            let left = self.left.clone();
            let pending = &self.buffer[left.clone()];
            let line = match memchr::memchr2(b'\n', 0, pending) {
                Some(at) if pending[at] == b'\n' => left.start..left.start + at,
                Some(_) => return Ok(None),
                None if self.ended && pending.is_empty() => return Ok(None),
                None if self.ended => left.clone(),
                None if pending.len() >= READ_BYTES => return Ok(None),
                None => {
                    self.fill()?;
                    continue;
                }
            };
            self.left.start = (line.end + 1).min(left.end);
            let line = &self.buffer[line];
            return Ok(Some(line.strip_suffix(b"\r").unwrap_or(line)));
        }
    }

    /// Reads more behind what is left.
    fn fill(&mut self) -> rustix::io::Result<()> {
        self.buffer.drain(..self.left.start);
        let filled = self.left.len();
        self.buffer.resize(filled + READ_BYTES, 0);
        let read = retry(|| rustix::io::read(&self.file, &mut self.buffer[filled..]))?;
        self.ended = read == 0;
        self.left = 0..filled + read;
        self.buffer.truncate(filled + read);
        Ok(())
    }
}
