//! What a sandbox's file system is made from, where programs are to run in it.

use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueHint};
use sandbox_api::RootFs;

use super::limits::{LimitArgs, ProgramLimits};
use super::values::{Utf8, word_of};
use crate::config::{Flags, Key, Settings, Value};

/// What a sandbox's file system is made from.
#[derive(Debug, Args)]
#[command(next_help_heading = "Programs")]
pub struct RootArgs {
    /// Run in this image, with its programs
    #[arg(long, value_name = "REF", value_hint = ValueHint::Other,
        value_parser = Utf8(NonEmptyStringValueParser::new()),
        conflicts_with_all = ["rootfs", "image_archive"])]
    image: Option<String>,

    #[arg(long, value_name = "WHEN", help = Key::Pull.help(), value_parser = word_of(Key::Pull))]
    pull: Option<Value>,

    /// Run in this directory as root file system, read-only (embedded engine)
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath,
        conflicts_with = "image_archive")]
    rootfs: Option<PathBuf>,

    /// Run in this image archive, as `docker save` writes it (embedded engine)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    image_archive: Option<PathBuf>,

    /// What programs have in addition to it.
    #[command(flatten)]
    limits: LimitArgs<ProgramLimits>,
}

impl RootArgs {
    /// Adds the settings among these flags.
    pub fn add_flags(&self, flags: &mut Flags) {
        flags.set(Key::Pull, self.pull.clone());
        self.limits.add_flags(flags);
    }

    /// The image, if one is named.
    #[must_use]
    pub fn image_name(&self) -> Option<&str> {
        self.image.as_deref()
    }

    /// Whether a flag names what to run in.
    #[must_use]
    pub const fn is_named(&self) -> bool {
        self.image.is_some() || self.rootfs.is_some() || self.image_archive.is_some()
    }

    /// What the flags name.
    #[must_use]
    pub fn root(&self, settings: &Settings) -> RootFs {
        match self {
            Self { image: Some(reference), .. } => image(reference, settings),
            Self { rootfs: Some(directory), .. } => RootFs::Directory(directory.clone()),
            Self { image_archive: Some(file), .. } => RootFs::Archive(file.clone()),
            _ => RootFs::Builtin,
        }
    }
}

/// An image, pulled as the settings say.
#[must_use]
pub fn image(reference: &str, settings: &Settings) -> RootFs {
    RootFs::Image { reference: reference.to_owned(), pull: settings.pull() }
}
