//! Artifacts: the flags of `run` and `exec`, and the command.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};

use super::values::text;

/// Which files are copied out of the io dir.
#[derive(Debug, Args)]
#[command(next_help_heading = "Artifacts")]
pub struct ArtifactArgs {
    /// Copy the files of the io dir that match to --artifacts-dir, whatever the status; a path
    /// selects a file or all of a directory; !GLOB excludes; repeatable
    #[arg(long = "artifact", value_name = "GLOB", value_parser = text::<String>())]
    pub globs: Vec<String>,

    /// Where artifacts are copied to, with manifest.json and SHA256SUMS: a directory that is missing
    /// or empty
    #[arg(long = "artifacts-dir", value_hint = ValueHint::DirPath)]
    pub dir: Option<PathBuf>,

    /// Ignore globs that match no file
    #[arg(long = "artifact-optional")]
    pub is_optional: bool,
}

/// `artifacts`.
#[derive(Debug, Subcommand)]
pub enum ArtifactsCommand {
    /// Verify that the files of an artifacts directory are those of its manifest
    ///
    /// Prints a line for each file that is missing, changed or unexpected, and exits with 1 if there
    /// is one. Modes and times do not count.
    #[command(after_long_help = "\
sandboxctl artifacts verify dist
sandboxctl artifacts verify dist --json")]
    Verify {
        /// The artifacts directory
        #[arg(value_hint = ValueHint::DirPath)]
        dir: PathBuf,
        /// Print JSON: {"files", "bytes", "differences": [{"path", "change"}]}
        #[arg(long)]
        json: bool,
    },
    /// List the files of an artifacts directory, as its manifest has them
    ///
    /// They are not verified. One path per line; --long prints mode, size, digest and type too.
    #[command(after_long_help = "\
sandboxctl artifacts ls dist
sandboxctl artifacts ls -l dist")]
    Ls {
        /// The artifacts directory
        #[arg(value_hint = ValueHint::DirPath)]
        dir: PathBuf,
        /// Print a table of mode, size, SHA-256 and MIME type
        #[arg(short, long)]
        long: bool,
        /// Print the manifest as JSON (sandboxctl.artifacts/1)
        #[arg(long)]
        json: bool,
    },
    /// Write a reproducible archive of an artifacts directory
    ///
    /// The directory is verified while it is read. Equal files give equal bytes: order, times, owners
    /// and modes are fixed.
    #[command(after_long_help = "\
sandboxctl artifacts archive dist -o dist.tar.zst
sandboxctl artifacts archive dist -o dist.tar.gz
sandboxctl artifacts archive dist -o dist.zip")]
    Archive {
        /// The artifacts directory
        #[arg(value_hint = ValueHint::DirPath)]
        dir: PathBuf,
        /// The archive: FILE.tar.zst, FILE.tar.gz or FILE.zip
        #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        output: PathBuf,
    },
    /// Compare two artifacts directories
    ///
    /// Both are verified first. Prints a line for each path that is added, removed or changed in DIR2,
    /// and exits with 1 if there is one.
    #[command(after_long_help = "\
sandboxctl artifacts diff dist-1.0 dist-1.1
sandboxctl artifacts diff dist-1.0 dist-1.1 --json")]
    Diff {
        /// The old artifacts directory
        #[arg(value_name = "DIR1", value_hint = ValueHint::DirPath)]
        old: PathBuf,
        /// The new artifacts directory
        #[arg(value_name = "DIR2", value_hint = ValueHint::DirPath)]
        new: PathBuf,
        /// Print JSON: {"differences": [{"path", "change"}]}
        #[arg(long)]
        json: bool,
    },
}
