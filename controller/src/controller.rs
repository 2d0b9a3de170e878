//! The controller: an engine, the sandboxes on it, and what is kept between them.

use std::path::Path;

use tokio::io::{AsyncRead, AsyncWrite};

use crate::config::Config;
use crate::doctor::Check;
use crate::engine::EngineInfo;
use crate::error::Error;
use crate::image::{ImageInfo, ImageSelector, Rebuild};
use crate::reap::{GcOptions, GcReport, SandboxSummary};
use crate::sandbox::Sandbox;
use crate::spec::SandboxSpec;

/// An engine, and the sandboxes on it.
#[derive(Debug)]
pub struct Controller {
    info: EngineInfo,
}

#[expect(clippy::unused_async, reason = "the bodies come next")]
impl Controller {
    /// Finds an engine, and begins to remove what dead controllers left on it.
    ///
    /// # Errors
    ///
    /// [`Error`] where none answers, or the configuration is wrong.
    pub async fn connect(_config: Config) -> Result<Self, Error> {
        Err(Error::NoEngine { tried: Vec::new() })
    }

    /// The engine, and why it was taken.
    #[must_use]
    pub fn engine(&self) -> &EngineInfo {
        &self.info
    }

    /// Launches a sandbox.
    ///
    /// # Errors
    ///
    /// [`Error`]; nothing of the guest's has run then.
    pub async fn launch(&self, _spec: SandboxSpec) -> Result<Sandbox, Error> {
        Err(Error::NoEngine { tried: Vec::new() })
    }

    /// The containers of sandboxes that the engine has.
    ///
    /// # Errors
    ///
    /// [`Error`] where the engine fails.
    pub async fn ps(&self) -> Result<Vec<SandboxSummary>, Error> {
        Ok(Vec::new())
    }

    /// Removes what dead controllers left.
    ///
    /// # Errors
    ///
    /// [`Error`] where the engine cannot list. What cannot be removed is in the report.
    pub async fn gc(&self, _options: GcOptions) -> Result<GcReport, Error> {
        Ok(GcReport::default())
    }

    /// Builds the sandbox image. `progress` gets the engine's lines.
    ///
    /// # Errors
    ///
    /// [`Error`] where the engine fails.
    pub async fn image_build(
        &self,
        _rebuild: Rebuild,
        _progress: impl FnMut(&str) + Send,
    ) -> Result<ImageInfo, Error> {
        Err(Error::NoEngine { tried: Vec::new() })
    }

    /// The sandbox images that the engine has.
    ///
    /// # Errors
    ///
    /// [`Error`] where the engine fails.
    pub async fn image_list(&self) -> Result<Vec<ImageInfo>, Error> {
        Ok(Vec::new())
    }

    /// Removes sandbox images, and gives those that went.
    ///
    /// # Errors
    ///
    /// [`Error`] where there is no such image, or the engine fails.
    pub async fn image_remove(&self, _which: ImageSelector) -> Result<Vec<ImageInfo>, Error> {
        Ok(Vec::new())
    }

    /// Writes the current sandbox image as a tar, building it first where it is missing.
    ///
    /// # Errors
    ///
    /// [`Error`] where the engine or the writer fails.
    pub async fn image_save(
        &self,
        _writer: impl AsyncWrite + Send + Unpin,
    ) -> Result<ImageInfo, Error> {
        Err(Error::NoEngine { tried: Vec::new() })
    }

    /// Loads an image that [`image_save`](Self::image_save) wrote.
    ///
    /// # Errors
    ///
    /// [`Error`] where the engine or the reader fails, or the image is none of ours.
    pub async fn image_load(
        &self,
        _reader: impl AsyncRead + Send + Unpin + 'static,
    ) -> Result<ImageInfo, Error> {
        Err(Error::NoEngine { tried: Vec::new() })
    }

    /// Looks at all that a sandbox needs. Works without an engine too.
    pub async fn doctor(_config: Config, _io_dir: Option<&Path>) -> Vec<Check> {
        Vec::new()
    }

    /// Waits until everything that is to be removed is.
    pub async fn close(self) {}
}
