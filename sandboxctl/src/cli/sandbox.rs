//! What every command takes that launches sandboxes.

use std::path::PathBuf;

use clap::{Args, ValueHint};
use sandbox_api::{DEFAULT_PROTECTED, User};

use super::allow::AllowArgs;
use super::limits::{LimitArgs, SandboxLimits};
use super::root::RootArgs;
use super::values::{guest_path, user, written};
use crate::config::{Flags, Key, Value};
use crate::input::InputArgument;

/// A sandbox: what every command that launches one takes, before or after the name of a
/// subcommand.
#[derive(Debug, Args)]
pub struct SandboxArgs {
    /// What bounds it.
    #[command(flatten)]
    bounds: BoundsArgs,

    /// Its files.
    #[command(flatten)]
    pub files: FileArgs,

    /// Guest path that relative paths start from [default: the io dir's root]
    #[arg(long, help_heading = "Files", global = true, value_name = "PATH",
        value_parser = guest_path())]
    pub workdir: Option<String>,
}

/// What bounds a sandbox, wherever its files are.
#[derive(Debug, Args)]
pub struct BoundsArgs {
    #[arg(long, global = true, value_name = "FILE", help = Key::AuditFile.help(),
        value_hint = ValueHint::FilePath)]
    audit: Option<PathBuf>,

    /// Refuse writes to names that others run or trust, such as .bashrc, .git, .vscode
    #[arg(long, help_heading = "Files", global = true)]
    protect: bool,

    /// What it may use.
    #[command(flatten)]
    limits: LimitArgs<SandboxLimits>,
}

/// The files of a sandbox.
#[derive(Debug, Args)]
#[command(next_help_heading = "Files")]
pub struct FileArgs {
    #[arg(long, global = true, value_name = "DIR", help = Key::IoDir.help(),
        value_hint = ValueHint::DirPath)]
    pub(super) io_dir: Option<PathBuf>,

    /// It was given by `--volume`.
    #[arg(skip)]
    pub(super) io_dir_is_volume: bool,

    /// Show a file or directory read-only at /in/NAME, or all that a glob matches; - is stdin;
    /// repeatable
    // A hyphen begins `-:NAME`.
    #[arg(long = "in", global = true, value_name = "SRC[:NAME]", value_hint = ValueHint::AnyPath,
        allow_hyphen_values = true, value_parser = written(InputArgument::parse))]
    pub inputs: Vec<InputArgument>,

    /// Where the io dir appears in the sandbox [default: /io]
    #[arg(long, global = true, value_name = "PATH", value_parser = guest_path())]
    pub mount_path: Option<String>,

    /// Run as this user and group [default: the owner of the io dir]
    #[arg(short, long, global = true, value_name = "UID[:GID]", allow_hyphen_values = true,
        value_parser = user())]
    pub user: Option<User>,
}

impl SandboxArgs {
    /// Adds the settings among these flags.
    pub fn add_flags(&self, flags: &mut Flags) {
        self.files.add_flags(flags);
        self.bounds.add_flags(flags);
    }
}

impl FileArgs {
    /// Adds the settings among these flags.
    pub fn add_flags(&self, flags: &mut Flags) {
        if let Some(dir) = &self.io_dir {
            // Any directory: an explicit flag is trusted.
            let flag = if self.io_dir_is_volume { "--volume" } else { "--io-dir" };
            flags.values.push((Key::IoDir, Value::Path(dir.clone()), flag));
            flags.values.push((Key::IoEnabled, Value::Switch(true), flag));
        }
    }
}

impl BoundsArgs {
    /// Adds the settings among these flags.
    pub fn add_flags(&self, flags: &mut Flags) {
        if self.protect {
            let names = DEFAULT_PROTECTED.iter().map(ToString::to_string).collect();
            flags.set(Key::Protected, Some(Value::Names(names)));
        }
        flags.set(Key::AuditFile, self.audit.clone().map(Value::Path));
        self.limits.add_flags(flags);
    }
}

/// What holds for the sandboxes that `sandbox_init` makes.
#[derive(Debug, Args)]
pub struct KeptArgs {
    /// What bounds them.
    #[command(flatten)]
    bounds: BoundsArgs,

    /// What they are made from where `imageName` does not say.
    #[command(flatten)]
    pub root: RootArgs,

    /// Whom programs may reach in them.
    #[command(flatten)]
    allow: AllowArgs,
}

impl KeptArgs {
    /// Adds the settings among these flags.
    pub fn add_flags(&self, flags: &mut Flags) {
        self.root.add_flags(flags);
        self.allow.add_flags(flags);
        self.bounds.add_flags(flags);
    }
}
