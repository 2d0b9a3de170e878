//! `man`, generated from the definition of the command line.

use std::fs;
use std::io;
use std::path::Path;

use super::Context;
use crate::cli;
use crate::error::Error;
use crate::whole_file::{MissingDirs, NewFile};

pub fn man(context: &Context<'_>, dir: Option<&Path>) -> Result<u8, Error> {
    let pages = pages().map_err(Error::stdout)?;
    let Some(dir) = dir else {
        context.output.write(pages[0].1.as_bytes())?;
        return Ok(0);
    };
    context.check_output("--dir", dir)?;
    let missing = MissingDirs::of(dir);
    write(dir, &pages).map_err(|error| {
        missing.remove();
        Error::usage("--dir", format!("{}: {error}", dir.display()))
    })?;
    Ok(0)
}

/// Writes all pages, and puts them in their places then: a full disk leaves none.
fn write(dir: &Path, pages: &[(String, String)]) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    let new = |(_, page): &(String, String)| NewFile::write(dir, page.as_bytes(), 0o644);
    let new = pages.iter().map(new).collect::<io::Result<Vec<_>>>()?;
    let names = pages.iter().map(|(name, _)| dir.join(format!("{name}.1")));
    new.into_iter().zip(names).try_for_each(|(new, file)| new.put(&file))
}

/// Every page with its name: the main page first, then one per command.
fn pages() -> io::Result<Vec<(String, String)>> {
    let mut whole = cli::parse::command().disable_help_subcommand(true);
    whole.build();
    let mut pages = Vec::new();
    let mut left = vec![&whole];
    while let Some(command) = left.pop() {
        let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
        pages.push((name, page(command)?));
        left.extend(command.get_subcommands());
    }
    Ok(pages)
}

fn page(command: &clap::Command) -> io::Result<String> {
    let mut page = Vec::new();
    let source = concat!("sandboxctl ", env!("CARGO_PKG_VERSION"));
    clap_mangen::Man::new(command.clone()).source(source).manual("sandboxctl").render(&mut page)?;
    let page = String::from_utf8_lossy(&page)
        // The help's own headings are in one section for everything that clap does not know.
        .replace(".SH EXTRA\nExamples:\n", ".SH EXAMPLES\n.nf\n")
        .replace("\n\nExit codes:\n", "\n.fi\n.SH \"EXIT STATUS\"\n.nf\n")
        .replace("\n.SH VERSION\n", "\n.fi\n.SH VERSION\n");
    Ok(if page.contains("EXIT STATUS") {
        page
    } else {
        let page = page.trim_end();
        format!("{page}\n.fi\n.SH \"EXIT STATUS\"\n\\fBsandboxctl\\fR(1) lists the exit codes.\n")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_names_its_version_its_examples_and_the_exit_codes() {
        let pages = pages().unwrap();
        assert_eq!(pages[0].0, "sandboxctl");
        assert!(pages.iter().any(|(name, _)| name == "sandboxctl-image-save"));
        for (name, page) in &pages {
            let title = page.lines().find(|line| line.starts_with(".TH")).unwrap();
            assert!(title.contains(env!("CARGO_PKG_VERSION")), "{title}");
            assert!(!page.contains(".SH EXTRA"), "{name}");
            assert_eq!(page.matches(".SH \"EXIT STATUS\"").count(), 1, "{name}");
            let groups = [
                "artifacts", "cluster", "database", "executions", "image", "config", "keys",
                "local", "mcp-upstream", "receipt", "sandbox", "server", "token",
            ];
            let is_group = groups.map(|group| format!("sandboxctl-{group}")).contains(name);
            assert_eq!(page.contains(".SH EXAMPLES"), !is_group, "{name}");
        }
    }
}
