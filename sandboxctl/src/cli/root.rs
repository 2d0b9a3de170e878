//! What a sandbox's file system is made from, where programs are to run in it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueHint};
use sandbox_api::RootFs;
use serde::{Deserialize, Serialize};

use super::limits::{LimitArgs, ProgramLimits};
use super::values::{Utf8, word_of};
use crate::config::{Flags, Key, Settings, Value};

/// What a sandbox's file system is made from.
#[derive(Debug, Args)]
#[command(next_help_heading = "Programs")]
pub struct RootArgs {
    /// Run in this image, with its programs
    #[arg(long, value_name = "REF", value_parser = Utf8(NonEmptyStringValueParser::new()),
        conflicts_with_all = ["rootfs", "image_archive"])]
    pub image: Option<String>,

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

    /// Whether a flag names what to run in.
    pub const fn is_named(&self) -> bool {
        self.image.is_some() || self.rootfs.is_some() || self.image_archive.is_some()
    }

    /// What they name of this machine.
    pub fn local(&self) -> LocalRootArgs {
        LocalRootArgs { rootfs: self.rootfs.clone(), image_archive: self.image_archive.clone() }
    }

    /// What the flags name.
    pub fn root(&self, settings: &Settings) -> RootFs {
        self.image.as_deref().map_or_else(|| self.local().root(), |it| image(it, settings))
    }
}

/// What programs run in, in the sandboxes of the local service: the embedded engine fetches no image.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args, Serialize, Deserialize)]
pub struct LocalRootArgs {
    /// Run in this directory as root file system (the local service, embedded engine)
    #[arg(long, help_heading = "Programs", value_name = "DIR", value_hint = ValueHint::DirPath,
        conflicts_with = "image_archive")]
    pub rootfs: Option<PathBuf>,

    /// Run in this image archive (the local service, embedded engine)
    #[arg(long, help_heading = "Programs", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub image_archive: Option<PathBuf>,
}

impl LocalRootArgs {
    /// Whether one of them is given.
    pub const fn is_named(&self) -> bool {
        self.rootfs.is_some() || self.image_archive.is_some()
    }

    /// What it names.
    pub fn root(&self) -> RootFs {
        match (&self.rootfs, &self.image_archive) {
            (Some(directory), _) => RootFs::Directory(directory.clone()),
            (None, Some(file)) => RootFs::Archive(file.clone()),
            (None, None) => RootFs::Builtin,
        }
    }

    /// The same, whatever the working directory.
    pub fn absolute(&self, here: &Path) -> Self {
        let absolute = |path: &Option<PathBuf>| path.as_ref().map(|path| here.join(path));
        Self { rootfs: absolute(&self.rootfs), image_archive: absolute(&self.image_archive) }
    }

    /// As words of a command line.
    pub fn words(&self) -> Vec<OsString> {
        let flags = [("--rootfs", &self.rootfs), ("--image-archive", &self.image_archive)];
        let given = flags.into_iter().filter_map(|(flag, path)| Some((flag, path.as_ref()?)));
        given.flat_map(|(flag, path)| [flag.into(), path.into()]).collect()
    }
}

/// An image, pulled as the settings say.
pub fn image(reference: &str, settings: &Settings) -> RootFs {
    RootFs::Image { reference: reference.to_owned(), pull: settings.pull() }
}
