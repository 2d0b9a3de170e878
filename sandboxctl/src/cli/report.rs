//! Reports: the flag of `run` and `exec`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, ValueHint};

use crate::ci::CiMode;
use crate::report::ReportKind;

/// Where the results are written to, beside the live output.
#[derive(Debug, Args)]
#[command(next_help_heading = "Reports")]
pub struct ReportArgs {
    /// Write a report to this file, whatever the outcome: KIND is json, ndjson, junit, markdown or
    /// sarif; repeatable
    #[arg(long = "report", value_name = "KIND=FILE", value_hint = ValueHint::Other,
        value_parser = argument())]
    pub reports: Vec<ReportArgument>,

    /// CI runner to write groups, annotations, a summary and outputs for; guest output cannot issue
    /// its commands; auto detects it from the environment
    #[arg(long = "ci", value_name = "RUNNER", value_enum, default_value_t)]
    pub ci: CiMode,
}

/// `--report KIND=FILE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportArgument {
    /// Its format.
    pub kind: ReportKind,
    /// Where it is written to.
    pub file: PathBuf,
}

fn argument() -> impl TypedValueParser<Value = ReportArgument> {
    OsStringValueParser::new().try_map(|written| ReportArgument::parse(&written))
}

impl ReportArgument {
    fn parse(written: &OsStr) -> Result<Self, String> {
        let bytes = written.as_bytes();
        let Some(at) = bytes.iter().position(|&byte| byte == b'=') else {
            return Err("expected KIND=FILE".to_owned());
        };
        let (kind, file) = (String::from_utf8_lossy(&bytes[..at]), &bytes[at + 1..]);
        let Some(kind) = ReportKind::ALL.into_iter().find(|it| it.as_str() == kind) else {
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
