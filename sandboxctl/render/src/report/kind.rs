//! The formats, and where a report of one goes.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

sandbox_protocol::words! {
    /// A format.
    pub enum ReportKind {
        /// The result document, a line for each script.
        Json = "json",
        /// Numbered events, a line each, as they come.
        Ndjson = "ndjson",
        /// JUnit's XML.
        Junit = "junit",
        /// Markdown for people.
        Markdown = "markdown",
        /// SARIF 2.1.0: errors with their positions.
        Sarif = "sarif",
    }
}

/// `--report KIND=FILE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportArgument {
    /// Its format.
    pub kind: ReportKind,
    /// Where it is written to.
    pub file: PathBuf,
}

impl ReportArgument {
    /// Reads `KIND=FILE`.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn parse(written: &OsStr) -> Result<Self, String> {
        let bytes = written.as_bytes();
        let Some(at) = bytes.iter().position(|&byte| byte == b'=') else {
            return Err("expected KIND=FILE".to_owned());
        };
        let (kind, file) = (String::from_utf8_lossy(&bytes[..at]), &bytes[at + 1..]);
        let Some(kind) = ReportKind::from_word(&kind) else {
            let all = ReportKind::ALL.map(ReportKind::as_str).join(", ");
            return Err(format!("there is no kind '{kind}'; kinds are {all}"));
        };
        if file.is_empty() {
            return Err("there is no file after the '='".to_owned());
        }
        Ok(Self { kind, file: OsStr::from_bytes(file).into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn argument_is_a_kind_and_a_file() {
        let parse = |text: &str| ReportArgument::parse(OsStr::new(text));
        let parsed = parse("junit=a=b.xml").unwrap();
        assert_eq!((parsed.kind, parsed.file), (ReportKind::Junit, PathBuf::from("a=b.xml")));
        for (wrong, why) in
            [("junit", "KIND=FILE"), ("html=a", "json, ndjson, junit"), ("json=", "no file")]
        {
            assert!(parse(wrong).unwrap_err().contains(why), "{wrong}");
        }
    }
}
