//! Receipts: the flags of `run` and `exec`, and the commands.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueHint};
use sandbox_controller::receipts::SigningKey;
use sandbox_env::Environment;

use super::allow::AllowArgs;
use super::env_file::Variable;
use super::secret::{SecretArgs, Source, take_stdin};
use super::values::{Utf8, text, written};
use super::volume::Volume;
use crate::error::Error;
use crate::input::{Argument, InputArgument};

/// Signed provenance of a run.
#[derive(Debug, Args)]
#[command(next_help_heading = "Receipt")]
pub struct ReceiptArgs {
    /// Write provenance of the run to this file: an in-toto statement with SLSA provenance, whose
    /// subjects are the artifacts, or else the changed files
    #[arg(id = "receipt", long = "receipt", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub file: Option<PathBuf>,

    /// Sign the receipt with this private key (see `sandboxctl keys new`): a file, env:VARIABLE,
    /// file:PATH or - (stdin)
    #[arg(long, value_name = "KEY", value_hint = ValueHint::FilePath, requires = "receipt",
        allow_hyphen_values = true)]
    sign: Option<OsString>,
}

impl ReceiptArgs {
    fn source(&self) -> Option<Source<'_>> {
        let sign = self.sign.as_deref()?;
        Some(Source::parse(sign.as_bytes()).unwrap_or(Source::File(Path::new(sign))))
    }

    /// The file of the private key, if it may be in one.
    pub fn key_file(&self) -> Option<&Path> {
        match self.source()? {
            Source::File(path) => Some(path),
            Source::Stdin => Some(Path::new("/proc/self/fd/0")),
            Source::Variable(_) => None,
        }
    }

    /// Reads the private key, if there is one. The second value is the argument that uses stdin, if one
    /// does; `stdin` is the one that uses it already.
    ///
    /// # Errors
    ///
    /// If it cannot be read, or is invalid. No message contains it, not even if it was typed in
    /// place of its file.
    pub fn key(
        &self,
        environment: &Environment,
        mut stdin: Option<String>,
    ) -> Result<(Option<SigningKey>, Option<String>), Error> {
        const MAKES: &str = "`sandboxctl keys new FILE` makes one";
        let Some(source) = self.source() else { return Ok((None, stdin)) };
        let shown = match &source {
            Source::Stdin => {
                take_stdin(&mut stdin, "--sign -".to_owned())?;
                "stdin".to_owned()
            }
            Source::Variable(name) => name.to_string_lossy().into_owned(),
            Source::File(path) if path.as_os_str().as_bytes().starts_with(b"-") => {
                let why = "expected a file, env:VARIABLE, file:PATH or -";
                return Err(Error::usage("--sign", why).with_hint(MAKES));
            }
            Source::File(path) => path.display().to_string(),
        };
        let value = source.read("--sign", environment)?;
        let text = std::str::from_utf8(value.as_bytes()).unwrap_or_default();
        let key = SigningKey::from_pem(text).map_err(|error| {
            Error::usage("--sign", format!("{shown}: {error}")).with_hint(MAKES)
        })?;
        Ok((Some(key), stdin))
    }
}

/// What makes a script do the same each time.
#[derive(Debug, Args)]
#[command(next_help_heading = "Reproducibility")]
pub struct ReproducibleArgs {
    /// Seed of math.random, 0 to 4294967295
    #[arg(long, value_name = "N", value_parser = seed)]
    pub seed: Option<u32>,

    /// Fixed time for os.time and os.date: a time in RFC 3339 such as 2026-01-01T00:00:00Z, or
    /// seconds since 1970; os.clock begins at 0
    #[arg(long, value_name = "TIME", value_parser = Utf8(unix_seconds))]
    pub now: Option<u64>,
}

/// clap's own message names no range for text that is not a number.
fn seed(text: &str) -> Result<u32, &'static str> {
    text.parse().map_err(|_| "expected a whole number, 0 to 4294967295")
}

/// Reads a time, in seconds since 1970.
fn unix_seconds(text: &str) -> Result<u64, &'static str> {
    // The last one that a receipt can have: near the end of the year 9999.
    const LAST: u64 = 253_402_207_200;
    let seconds = text.parse().ok().or_else(|| match sandbox_api::time::parse_rfc3339(text)? {
        (seconds, 0) => u64::try_from(seconds).ok(),
        _ => None,
    });
    seconds.filter(|&seconds| seconds <= LAST).ok_or(
        "expected a time in whole seconds, from 1970 to 9999: 2026-01-01T00:00:00Z, or 1767225600",
    )
}

/// `keys`.
#[derive(Debug, Subcommand)]
pub enum KeysCommand {
    /// Make a key that signs receipts
    ///
    /// Writes an ed25519 key in PEM to FILE, which only you may read, and its public key, which
    /// verifies receipts, to FILE.pub. Neither may exist. Prints the id of the key, which receipts that
    /// it signs have as keyid.
    #[command(after_long_help = "\
sandboxctl keys new release.key
sandboxctl run build.luau --artifact dist --artifacts-dir dist --receipt receipt.json --sign release.key
sandboxctl receipt verify receipt.json --key release.key.pub --artifacts dist")]
    New {
        /// Where the private key is written
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
    },
}

/// `receipt`.
#[derive(Debug, Subcommand)]
pub enum ReceiptCommand {
    /// Verify a receipt: its form, its signature, its artifacts
    ///
    /// Without --key the signature is not checked: anybody may have written the receipt. A run that
    /// failed has a receipt too: --require-ok refuses it. Exits with 1 if the receipt is not by the
    /// key, or artifacts differ.
    #[command(after_long_help = "\
sandboxctl receipt verify receipt.json
sandboxctl receipt verify receipt.json --key release.key.pub --artifacts dist --require-ok")]
    Verify {
        /// The receipt
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// The public key that must have signed it
        #[arg(long, value_name = "PUB", value_hint = ValueHint::FilePath)]
        key: Option<PathBuf>,
        /// The directory that must have the files of the receipt and no others; manifest.json and
        /// SHA256SUMS of an artifacts directory do not count
        #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
        artifacts: Option<PathBuf>,
        /// Exit with 1 also if the run of the receipt did not end with the status ok
        #[arg(long)]
        require_ok: bool,
        /// Print JSON: {"signed", "verified", "subjects", "outcome", "script", "tests", "differences":
        /// [{"path", "change"}]}
        #[arg(long)]
        json: bool,
    },
    /// Show what a receipt says: what ran, in what, what it made and how it ended
    ///
    /// Nothing is verified: anybody may have written the receipt.
    #[command(after_long_help = "\
sandboxctl receipt show receipt.json
sandboxctl receipt show receipt.json --json")]
    Show {
        /// The receipt
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// Print its statement as JSON, without the envelope of a signature
        #[arg(long)]
        json: bool,
    },
}

/// `replay`.
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// The receipt
    #[arg(value_hint = ValueHint::FilePath)]
    pub receipt: PathBuf,

    /// The command that ran, if it was one and the receipt does not have it (--receipt-argv)
    #[arg(last = true, num_args = 1..,
        conflicts_with_all = ["script", "shell"])]
    pub command: Vec<OsString>,

    /// The script that ran, if it was one
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub script: Option<PathBuf>,

    /// The line for the shell that ran, if it was one
    #[arg(long, value_name = "LINE", allow_hyphen_values = true, conflicts_with = "script")]
    pub shell: Option<OsString>,

    /// An environment variable that was set for the command; repeatable
    #[arg(short, long, value_name = "NAME[=VALUE]", value_parser = written(Variable::parse),
        conflicts_with = "script")]
    pub env: Vec<Variable>,

    /// The file of variables that were set for the command; repeatable
    #[arg(long = "env-file", value_name = "FILE", value_hint = ValueHint::FilePath,
        conflicts_with = "script")]
    pub env_files: Vec<PathBuf>,

    /// The working directory that was given for the command
    #[arg(short, long, value_name = "DIR", conflicts_with = "script")]
    pub workdir: Option<OsString>,

    /// Pass a string as args.KEY, as the run of the receipt did; repeatable
    #[arg(long = "arg", value_name = "KEY=VALUE", value_parser = text::<Argument>())]
    pub args: Vec<Argument>,

    /// Pass the members of this JSON object as args; --arg wins
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub args_file: Option<PathBuf>,

    /// An input of the receipt, with its name there; repeatable
    #[arg(long = "in", value_name = "SRC[:NAME]", value_parser = written(InputArgument::parse),
        allow_hyphen_values = true)]
    pub inputs: Vec<InputArgument>,

    /// An input of the receipt that was mounted elsewhere, with its path there; repeatable
    #[arg(long = "volume", value_name = "SRC:DST:ro", value_hint = ValueHint::AnyPath,
        value_parser = written(Volume::parse))]
    pub volumes: Vec<Volume>,

    /// The io dir as it was before the run, if it had files; it is not changed
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub io_dir: Option<PathBuf>,

    /// The directory that programs ran in, if it was one (embedded engine)
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath,
        conflicts_with = "image_archive")]
    pub rootfs: Option<PathBuf>,

    /// The image archive that programs ran in, if it was one (embedded engine)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub image_archive: Option<PathBuf>,

    /// The files of the receipt: the first line that differs is shown
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub artifacts: Option<PathBuf>,

    /// The public key that must have signed the receipt; without it anybody may have written it
    #[arg(long, value_name = "PUB", value_hint = ValueHint::FilePath)]
    pub key: Option<PathBuf>,

    /// Print JSON: {"identical", "verified", "stage": "materials" or "results", "outcome": "same" or
    /// "changed", "expected" and "actual": {"status", "exit_code"}, "differences": [{"path", "change",
    /// "expected", "actual"}], "line": {"path", "line", "expected", "actual"}}
    #[arg(long)]
    pub json: bool,

    /// The secrets of the script.
    #[command(flatten)]
    pub secrets: SecretArgs,

    /// The hosts that its programs may reach.
    #[command(flatten)]
    pub allow: AllowArgs,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_key_is_read_from_each_source_and_never_shown() {
        let folder = tempfile::tempdir().unwrap();
        let made = SigningKey::generate().unwrap();
        let pem = made.to_pem();
        let file = folder.path().join("k");
        std::fs::write(&file, &pem).unwrap();
        let environment = Environment::new(Path::new("/"), 1000, &[("KEY", &pem), ("BAD", "no")]);
        let read = |sign: &str, stdin: Option<&str>| {
            let args = ReceiptArgs { file: None, sign: Some(sign.into()) };
            args.key(&environment, stdin.map(str::to_owned)).map_err(|error| error.to_text())
        };
        let path = file.to_str().unwrap();
        for sign in [path, &format!("file:{path}"), "env:KEY"] {
            let (key, stdin) = read(sign, Some("--in -:a")).unwrap();
            assert_eq!(key.unwrap().public(), made.public(), "{sign}");
            assert_eq!(stdin.as_deref(), Some("--in -:a"));
        }
        for (sign, stdin, expected) in [
            ("-", Some("SCRIPT -"), "stdin is taken by SCRIPT -"),
            ("env:NONE", None, "NONE is not set here"),
            ("env:BAD", None, "it is not an ed25519 private key in PEM"),
            ("missing", None, "missing: "),
            (&pem, None, "expected a file, env:VARIABLE, file:PATH or -"),
        ] {
            let Err(refused) = read(sign, stdin) else { panic!("{sign} is refused") };
            assert!(refused.contains(expected), "{refused}");
            assert!(!refused.contains("PRIVATE KEY"), "{refused}");
        }
    }
}
