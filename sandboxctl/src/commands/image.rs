//! `image`: the sandbox image, which `run` builds by itself.

use std::io::IsTerminal;
use std::path::Path;
use std::time::SystemTime;

use sandbox_controller::{ImageInfo, ImageSelector, Rebuild};
use tokio::fs::File;

use super::Context;
use crate::cli::ImageCommand;
use crate::error::Error;
use crate::render;

pub fn image(context: &Context<'_>, command: ImageCommand) -> Result<u8, Error> {
    let output = context.output;
    let (images, json) = match command {
        ImageCommand::Build { rebuild, json } => {
            let rebuild = if rebuild { Rebuild::Always } else { Rebuild::IfMissing };
            let built = context.with_controller(async |controller| {
                controller.image_build(rebuild, |line| output.progress(line)).await
            })?;
            return one(context, &built, json);
        }
        ImageCommand::Ls { json } => {
            (context.with_controller(async |controller| controller.image_list().await)?, json)
        }
        ImageCommand::Rm { ids, all, stale, json } => {
            let removed = context.with_controller(async |controller| {
                if all || stale {
                    let which = if all { ImageSelector::All } else { ImageSelector::Stale };
                    return controller.image_remove(which).await;
                }
                let mut removed = Vec::new();
                for id in ids {
                    removed.extend(controller.image_remove(ImageSelector::Id(id)).await?);
                }
                Ok(removed)
            })?;
            (removed, json)
        }
        ImageCommand::Save { file, json } => return save(context, &file, json),
        ImageCommand::Load { file, json } => return load(context, &file, json),
    };
    if json {
        output.document(&images)?;
    } else {
        output.text(&listing(&images))?;
    }
    Ok(0)
}

fn save(context: &Context<'_>, file: &Path, json: bool) -> Result<u8, Error> {
    if file == Path::new("-") {
        if json {
            return Err(Error::usage("--json", "stdout is taken by the image"));
        }
        if std::io::stdout().is_terminal() {
            return Err(Error::usage("FILE", "not writing an image to a terminal"));
        }
        context
            .with_controller(async |controller| controller.image_save(tokio::io::stdout()).await)?;
        return Ok(0);
    }
    let created = std::fs::File::create(file).map_err(|error| unusable(file, &error))?;
    let saved = context
        .with_controller(async |controller| controller.image_save(File::from_std(created)).await);
    if saved.is_err() && file.is_file() {
        // Half an image is none.
        _ = std::fs::remove_file(file);
    }
    one(context, &saved?, json)
}

fn load(context: &Context<'_>, file: &Path, json: bool) -> Result<u8, Error> {
    let loaded = if file == Path::new("-") {
        context
            .with_controller(async |controller| controller.image_load(tokio::io::stdin()).await)?
    } else {
        let opened = std::fs::File::open(file).map_err(|error| unusable(file, &error))?;
        context.with_controller(async |controller| {
            controller.image_load(File::from_std(opened)).await
        })?
    };
    one(context, &loaded, json)
}

fn unusable(file: &Path, error: &std::io::Error) -> Error {
    Error::usage("FILE", format!("{}: {error}", file.display()))
}

fn one(context: &Context<'_>, image: &ImageInfo, json: bool) -> Result<u8, Error> {
    if json {
        context.output.document(image)?;
    } else {
        context.output.text(&format!("{}\n", image.id))?;
    }
    Ok(0)
}

fn listing(images: &[ImageInfo]) -> String {
    let now = SystemTime::now();
    let rows: Vec<_> = images
        .iter()
        .map(|image| {
            let since = now.duration_since(image.created).unwrap_or_default();
            [
                image.id.trim_start_matches("sha256:").chars().take(12).collect(),
                image.engine.to_string(),
                image.agent.chars().take(12).collect(),
                format!("{} ago", render::age(since)),
                render::size(image.size),
                if image.current { "yes" } else { "no" }.to_owned(),
            ]
        })
        .collect();
    render::table(["ID", "ENGINE", "AGENT", "CREATED", "SIZE", "CURRENT"], &rows)
}
