//! Searching the files of a sandbox, by path and by content.

use sandbox_api::files::{GlobData, GlobMatch, GlobOptions, GrepData, GrepLine, GrepOptions};
use sandbox_protocol::limits::{MAX_GLOB_BYTES, MAX_GREP_BYTES, MAX_GREP_LINE_BYTES};
use sandbox_protocol::path::{GuestPath, join_written, split_glob};
use sandbox_protocol::{Base64, WireString, message};

use super::call::OperationCall;
use crate::error::Error;
use crate::sandbox::Sandbox;

impl Sandbox {
    /// Returns the paths that match a pattern relative to a directory: `*` and `?` match within a
    /// name, `**` matches any directories, and there are `[a-z]`, `{a,b}` and `\\`. With a slash at
    /// its end it matches directories alone. A pattern may also begin with `/` or `~/`. Links are not
    /// followed.
    ///
    /// # Errors
    ///
    /// The errors of every operation; `invalid_request` if it is not a glob. Exceeding a limit is
    /// not an error: `truncated` reports it, and `note` where.
    pub async fn glob(
        &self,
        path: impl AsRef<[u8]>,
        pattern: &str,
        options: GlobOptions,
    ) -> Result<GlobData, Error> {
        let (directory, below) = split_glob(pattern);
        let top = match directory.as_bytes() {
            [b'/', ..] | b"~" | [b'~', b'/', ..] => directory.as_bytes().to_vec(),
            _ => join_written(path.as_ref(), directory.as_bytes()),
        };
        let call = self.begin("glob", &top);
        let result = async {
            let request = message::Glob {
                path: call.wire(),
                pattern: below.to_owned(),
                globs: options.globs,
                prefix: WireString::new(directory),
                hidden: options.hidden,
                limit: options.limit,
            };
            let reply = call.ask(request).await?;
            let (path, path_b64) = call.checked(&reply.path)?;
            let bytes: usize = reply.names.iter().map(WireString::encoded_len).sum();
            call.check_count(reply.names.len(), options.limit, bytes <= MAX_GLOB_BYTES)?;
            let top = call.searched()?;
            let matches = reply.names.iter().map(|below| {
                let (path, path_b64) = call.found(&top, below)?;
                let name = join_written(directory.as_bytes(), below.as_bytes());
                let (name, name_b64) = WireString::from(name).into_parts();
                Ok(GlobMatch { name, name_b64, path, path_b64 })
            });
            let matches = matches.collect::<Result<_, Error>>()?;
            let note = call.note(reply.cut, options.limit);
            Ok(GlobData { path, path_b64, matches, truncated: note.is_some(), note })
        }
        .await;
        call.end(result)
    }

    /// Returns the lines that match a regular expression, in the syntax of the crate `regex`: of a
    /// file, or of the files below a directory. A file with a NUL byte, or a line longer than
    /// 256 KiB, is searched up to there. Links are not followed, and directories of version control not
    /// entered.
    ///
    /// # Errors
    ///
    /// The errors of every operation; `invalid_request` if it is not a regular expression. Exceeding
    /// a limit is not an error: `truncated` reports it, and `note` where.
    pub async fn grep(
        &self,
        path: impl AsRef<[u8]>,
        pattern: &str,
        options: GrepOptions,
    ) -> Result<GrepData, Error> {
        let written = path.as_ref();
        let call = self.begin("grep", written);
        let result = async {
            let GrepOptions { globs, context, ignore_case, hidden, limit } = options;
            let pattern = pattern.to_owned();
            let path = call.wire();
            let request =
                message::Grep { path, pattern, globs, context, ignore_case, hidden, limit };
            let reply = call.ask(request).await?;
            let (path, path_b64) = call.checked(&reply.path)?;
            let matches = reply.lines.iter().filter(|line| !line.context).count();
            let bytes: usize = reply.lines.iter().map(|line| line.text.len()).sum();
            let fits = |line: &message::GrepLine| line.text.len() <= 3 * MAX_GREP_LINE_BYTES;
            let is_bounded = bytes <= MAX_GREP_BYTES && reply.lines.iter().all(fits);
            call.check_count(matches, limit, is_bounded)?;
            let top = call.searched()?;
            let above = if written == b"." { b"" } else { written };
            let lines = reply.lines.into_iter().map(|found| {
                let message::GrepLine { name: below, line, text, cut, context } = found;
                let (path, path_b64) = call.found(&top, &below)?;
                let name = join_written(above, below.as_bytes());
                let (name, name_b64) = WireString::from(name).into_parts();
                Ok(GrepLine { name, name_b64, path, path_b64, line, text, cut, context })
            });
            let lines = lines.collect::<Result<_, Error>>()?;
            let (matches, files) = (matches as u64, reply.files);
            let note = call.note(reply.cut, limit);
            let truncated = note.is_some();
            Ok(GrepData { path, path_b64, lines, matches, files, truncated, note })
        }
        .await;
        call.end(result)
    }
}

impl OperationCall {
    /// Refuses more results than were requested.
    fn check_count(&self, count: usize, limit: Option<u64>, is_bounded: bool) -> Result<(), Error> {
        let most = self.inner().limits.for_agent().list_entries;
        match is_bounded && count as u64 <= limit.unwrap_or(most).min(most) {
            true => Ok(()),
            false => Err(self.breach("more results than were asked for")),
        }
    }

    /// The path where the search began.
    fn searched(&self) -> Result<GuestPath, Error> {
        self.resolved().ok_or_else(|| self.breach("a result of no path"))
    }

    /// A path that the agent found below `top`, or that itself.
    fn found(
        &self,
        top: &GuestPath,
        below: &WireString,
    ) -> Result<(String, Option<Base64>), Error> {
        if below.as_bytes().is_empty() {
            return Ok(WireString::from(top).into_parts());
        }
        Ok(WireString::from(&self.below(top, below.as_bytes())?).into_parts())
    }
}
