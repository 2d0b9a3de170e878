//! `image`: the sandbox image, which `run` builds automatically.

use std::fs;
use std::io::{self, IsTerminal, Read};
use std::path::Path;
use std::time::SystemTime;

use sandbox_controller::{
    Controller, Error as ControllerError, ImageInfo, ImageSelector, ProgramImage, Rebuild,
};
use tokio::fs::File;
use tokio::io::{AsyncRead, AsyncReadExt};

use super::Context;
use crate::cli::ImageCommand;
use crate::error::{Error, UNREAD};
use crate::render;
use crate::target::Target;

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
        ImageCommand::Ls { programs: true, json } => {
            let list = async |controller: &Controller| controller.program_images().await;
            return programs(context, &context.with_controller(list)?, json);
        }
        ImageCommand::Ls { programs: false, json } => {
            (context.with_controller(async |controller| controller.image_list().await)?, json)
        }
        ImageCommand::Rm { ids, programs: true, json, .. } => {
            let which = if ids.is_empty() { ImageSelector::All } else { ImageSelector::Ids(ids) };
            let remove =
                async |controller: &Controller| controller.program_images_remove(which).await;
            return programs(context, &context.with_controller(remove)?, json);
        }
        ImageCommand::Rm { ids, all, stale, json, programs: false } => {
            let which = match (all, stale) {
                (true, _) => ImageSelector::All,
                (_, true) => ImageSelector::Stale,
                _ => ImageSelector::Ids(ids),
            };
            let work = async |controller: &Controller| controller.image_remove(which).await;
            (context.with_controller(work)?, json)
        }
        ImageCommand::Save { file, json } => return save(context, &file, json),
        ImageCommand::Load { file, json } => return load(context, &file, json),
    };
    output.show(json, &images, |width| listing(&images, width))?;
    Ok(0)
}

/// Prints what programs can run in.
fn programs(context: &Context<'_>, images: &[ProgramImage], json: bool) -> Result<u8, Error> {
    let now = SystemTime::now();
    let row = |image: &ProgramImage| {
        let since = now.duration_since(image.since).unwrap_or_default();
        [
            short(&image.id),
            image.engine.to_string(),
            if image.names.is_empty() { "-".into() } else { image.names.join(" ") },
            format!("{} ago", render::age(since)),
            render::size(image.size),
        ]
    };
    let headings = ["ID", "ENGINE", "NAMES", "CREATED OR USED", "SIZE"];
    let text = |width| render::table(headings, images.iter().map(row), width);
    context.output.show(json, &images, text).map(|()| 0)
}

/// The start of an id, which is enough to name it.
fn short(id: &str) -> String {
    id.trim_start_matches("sha256:").chars().take(12).collect()
}

fn save(context: &Context<'_>, file: &Path, json: bool) -> Result<u8, Error> {
    if file == Path::new("-") {
        if json {
            return Err(Error::usage("--json", "stdout is taken by the image"));
        }
        if io::stdout().is_terminal() {
            return Err(Error::usage("FILE", "not writing an image to a terminal"));
        }
        let save = async |controller: &Controller| controller.image_save(tokio::io::stdout()).await;
        return match context.with_controller(save) {
            // Its reader has what it wants.
            Err(Error::Controller(ControllerError::ImageStream { source, .. }))
                if source.kind() == io::ErrorKind::BrokenPipe =>
            {
                Ok(UNREAD)
            }
            saved => saved.map(|_| 0),
        };
    }
    context.check_output("FILE", file)?;
    let saved = context.with_controller(async |controller| {
        let target = Target::open(file).map_err(|error| unusable(file, &error))?;
        let writer = target.writer().map_err(|error| unusable(file, &error))?;
        let image = controller.image_save(File::from_std(writer)).await?;
        target.finish().map_err(|error| unusable(file, &error))?;
        Ok::<_, Error>(image)
    })?;
    one(context, &saved, json)
}

fn load(context: &Context<'_>, file: &Path, json: bool) -> Result<u8, Error> {
    // Before the engine is contacted: it accepts almost anything as an image, and its errors say
    // little.
    let unusable = |error| unusable(file, &error);
    let (head, rest): (_, Box<dyn AsyncRead + Send + Unpin>) = if file == Path::new("-") {
        (head(&mut io::stdin().lock()).map_err(unusable)?, Box::new(tokio::io::stdin()))
    } else {
        let mut opened = fs::File::open(file).map_err(unusable)?;
        (head(&mut opened).map_err(unusable)?, Box::new(File::from_std(opened)))
    };
    let image = AsyncReadExt::chain(head, rest);
    let loaded = context.with_controller(async |controller| controller.image_load(image).await)?;
    one(context, &loaded, json)
}

/// The first bytes of an image archive: a tar, possibly compressed.
fn head(from: &mut impl Read) -> io::Result<io::Cursor<Vec<u8>>> {
    /// Magic numbers of gzip, bzip2, xz and zstd, which engines decompress themselves.
    const COMPRESSED: [&[u8]; 4] = [b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd"];
    /// Size of a tar header, and the offset of its magic.
    const HEADER: u64 = 512;
    const MAGIC: std::ops::Range<usize> = 257..262;
    let mut head = Vec::new();
    from.take(HEADER).read_to_end(&mut head)?;
    let is_tar = head.get(MAGIC).is_some_and(|magic| magic == b"ustar");
    if head.is_empty() {
        Err(io::Error::other("it is empty"))
    } else if is_tar || COMPRESSED.iter().any(|magic| head.starts_with(magic)) {
        Ok(io::Cursor::new(head))
    } else {
        Err(io::Error::other("it is not an image archive that `sandboxctl image save` wrote"))
    }
}

fn unusable(file: &Path, error: &io::Error) -> Error {
    Error::unusable("FILE", file, error)
}

fn one(context: &Context<'_>, image: &ImageInfo, json: bool) -> Result<u8, Error> {
    context.output.show(json, image, |_| format!("{}\n", image.id)).map(|()| 0)
}

fn listing(images: &[ImageInfo], width: Option<usize>) -> String {
    let now = SystemTime::now();
    let row = |image: &ImageInfo| {
        let since = now.duration_since(image.created).unwrap_or_default();
        [
            short(&image.id),
            image.engine.to_string(),
            image.agent.chars().take(12).collect(),
            format!("{} ago", render::age(since)),
            render::size(image.size),
            if image.current { "yes" } else { "no" }.to_owned(),
        ]
    };
    let headings = ["ID", "ENGINE", "AGENT", "CREATED", "SIZE", "CURRENT"];
    render::table(headings, images.iter().map(row), width)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_that_is_not_an_image_is_known_by_its_first_bytes() {
        let judged = |bytes: &[u8]| head(&mut &*bytes).map_err(|error| error.to_string());
        assert_eq!(judged(b"").unwrap_err(), "it is empty");
        assert!(judged(b"hello").unwrap_err().starts_with("it is not an image archive"));
        let mut tar = [0; 600];
        tar[257..262].copy_from_slice(b"ustar");
        assert_eq!(judged(&tar).unwrap().into_inner(), tar[..512]);
        assert!(judged(b"\x1f\x8b...").is_ok());
    }
}
