//! Searching the files of a sandbox, by path and by content.

use sandbox_api::files::{GlobData, GlobMatch, GrepData, GrepLine};
use sandbox_protocol::limits::{MAX_GLOB_BYTES, MAX_GREP_BYTES, MAX_GREP_LINE_BYTES};
use sandbox_protocol::operation::{FileOperation as _, Glob, Grep};
use sandbox_protocol::path::{GuestPath, join_written};
use sandbox_protocol::{WireString, message};

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
    /// not an error: `truncated` reports it, and `note` where; nor is a timeout once a path was found.
    pub async fn glob(&self, glob: Glob) -> Result<GlobData, Error> {
        let (top, directory, _) = glob.split();
        let (top, directory) = (WireString::from(top), directory.as_bytes().to_vec());
        let call = OperationCall::new(self.inner().clone(), Glob::NAME, (&top, None));
        call.run(async |call| {
            let limit = glob.limit;
            let reply = call.call(glob, None).await?;
            let bytes: usize = reply.names.iter().map(WireString::encoded_len).sum();
            call.check_count(reply.names.len(), limit, bytes <= MAX_GLOB_BYTES)?;
            let top = call.resolved()?;
            let matches = reply.names.iter().map(|below| {
                let name = join_written(&directory, below.as_bytes()).into();
                Ok(GlobMatch { name, path: call.found(&top, below)? })
            });
            let matches = matches.collect::<Result<_, Error>>()?;
            let note = call.note(reply.cut, limit);
            Ok(GlobData { path: reply.path, matches, truncated: note.is_some(), note })
        })
        .await
    }

    /// Returns the lines that match a regular expression, in the syntax of the crate `regex`: of a
    /// file, or of the files below a directory. A file with a NUL byte, or a line longer than
    /// 256 KiB, is searched up to there. Links are not followed, and directories of version control not
    /// entered.
    ///
    /// # Errors
    ///
    /// The errors of every operation; `invalid_request` if it is not a regular expression. Exceeding
    /// a limit is not an error: `truncated` reports it, and `note` where; nor is a timeout once a line
    /// was found.
    pub async fn grep(&self, grep: Grep) -> Result<GrepData, Error> {
        let (limit, written) = (grep.limit, grep.path.clone());
        self.begin(&grep)
            .run(async |call| {
                let reply = call.call(grep, None).await?;
                let matches = reply.lines.iter().filter(|line| !line.context).count();
                let bytes: usize = reply.lines.iter().map(|line| line.text.len()).sum();
                let fits = |line: &message::GrepLine| line.text.len() <= 3 * MAX_GREP_LINE_BYTES;
                let is_bounded = bytes <= MAX_GREP_BYTES && reply.lines.iter().all(fits);
                call.check_count(matches, limit, is_bounded)?;
                let top = call.resolved()?;
                let above = if written.as_bytes() == b"." { b"" } else { written.as_bytes() };
                let lines = reply.lines.into_iter().map(|found| {
                    let message::GrepLine { name: below, line, text, cut, context } = found;
                    let path = call.found(&top, &below)?;
                    let name = join_written(above, below.as_bytes()).into();
                    Ok(GrepLine { name, path, line, text, cut, context })
                });
                let lines = lines.collect::<Result<_, Error>>()?;
                let (path, matches, files) = (reply.path, matches as u64, reply.files);
                let note = call.note(reply.cut, limit);
                let truncated = note.is_some();
                Ok(GrepData { path, lines, matches, files, truncated, note })
            })
            .await
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

    /// A path that the agent found below `top`, or that itself.
    fn found(&self, top: &GuestPath, below: &WireString) -> Result<WireString, Error> {
        match below.as_bytes() {
            b"" => Ok(top.into()),
            below => Ok((&self.below(top, below)?).into()),
        }
    }
}
