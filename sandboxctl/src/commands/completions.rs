//! `completions`: a script for a shell, and the words that it offers.
//!
//! The script asks `sandboxctl` itself, so that it offers the images of the engine and the keys of
//! the configuration.

use std::ffi::OsStr;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use clap_complete::engine::{
    ArgValueCandidates, ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter,
};
use clap_complete::env::Shells;
use clap_complete::{CompleteEnv, Shell};
use sandbox_controller::Controller;
use sandbox_env::Environment;

use super::Context;
use crate::cli::{self, Global};
use crate::config::Key;
use crate::error::Error;
use crate::output::{Output, Verbosity};

/// The variable by which the script asks for words.
const VARIABLE: &str = "SANDBOXCTL_COMPLETE";
/// The maximum time for the engine's answer: a user waits at a prompt.
const ENGINE_TIMEOUT: Duration = Duration::from_secs(2);

/// Prints the script.
pub(super) fn print(context: &Context<'_>, shell: Shell) -> Result<u8, Error> {
    let mut script = Vec::new();
    let shells = Shells::builtins();
    let completer = shells.completer(&shell.to_string());
    completer
        .ok_or_else(|| Error::usage("SHELL", format!("{shell} has no completions")))?
        .write_registration(VARIABLE, "sandboxctl", "sandboxctl", "sandboxctl", &mut script)
        .map_err(Error::stdout)?;
    context.output.write(&script)?;
    Ok(0)
}

/// Answers a shell that asks for words. False if none does.
pub fn answered() -> bool {
    let arguments = std::env::args_os();
    let directory = std::env::current_dir().ok();
    CompleteEnv::with_factory(command)
        .var(VARIABLE)
        .try_complete(arguments, directory.as_deref())
        // Unknown at a prompt.
        .unwrap_or(true)
}

/// The command line, with candidates for values.
fn command() -> clap::Command {
    let image_flag = |command: clap::Command| {
        command.mut_arg("image", |arg| arg.add(ArgValueCandidates::new(images)))
    };
    cli::parse::command()
        .mut_subcommand("run", image_flag)
        .mut_subcommand("exec", |exec| {
            image_flag(exec).mut_arg("words", |arg| arg.add(ArgValueCompleter::new(ImageOrFile)))
        })
        .mut_subcommand("sandbox", |sandbox| sandbox.mut_subcommand("create", image_flag))
        .mut_subcommand("image", |image| {
            image.mut_subcommand("rm", |rm| {
                rm.mut_arg("ids", |arg| arg.add(ArgValueCandidates::new(image_ids)))
            })
        })
        .mut_subcommand("config", |config| {
            config.mut_subcommand("show", |show| {
                show.mut_arg("keys", |arg| arg.add(ArgValueCandidates::new(keys)))
            })
        })
}

/// The words of `exec`: an image, then files.
struct ImageOrFile;

impl ValueCompleter for ImageOrFile {
    fn complete(&self, current: &OsStr) -> Vec<CompletionCandidate> {
        PathCompleter::any().complete(current)
    }

    fn complete_at(&self, index: usize, current: &OsStr) -> Vec<CompletionCandidate> {
        if index > 0 {
            return self.complete(current);
        }
        let current = current.to_string_lossy();
        let is_meant = |image: &CompletionCandidate| {
            image.get_value().to_string_lossy().starts_with(&*current)
        };
        images().into_iter().filter(is_meant).collect()
    }
}

/// The names of the images that commands can run in.
fn images() -> Vec<CompletionCandidate> {
    from_engine(async |controller| {
        let images = controller.program_images().await?;
        let names = images.into_iter().flat_map(|image| image.names);
        // Podman's name of an image that came from no registry can be typed without this.
        let short = |name: &String| name.strip_prefix("localhost/").map(str::to_owned);
        Ok(names.flat_map(|name| [short(&name), Some(name)]).flatten().collect())
    })
}

/// The ids of the sandbox images.
fn image_ids() -> Vec<CompletionCandidate> {
    from_engine(async |controller| {
        let images = controller.image_list().await?;
        Ok(images.into_iter().map(|image| image.id).collect())
    })
}

/// The keys of the configuration.
fn keys() -> Vec<CompletionCandidate> {
    Key::all()
        .map(|key| CompletionCandidate::new(key.name()).help(Some(key.help().into())))
        .collect()
}

/// Asks the engine that a command without flags uses. Nothing if it does not answer in time.
fn from_engine<L>(list: L) -> Vec<CompletionCandidate>
where
    L: AsyncFnOnce(&Controller) -> Result<Vec<String>, sandbox_controller::Error> + Send + 'static,
{
    let (answer, answered) = mpsc::channel();
    thread::spawn(move || {
        let Ok(environment) = Environment::capture() else { return };
        let output = Output::new(Verbosity::Quiet);
        let context = Context { global: &Global::default(), environment, output: &output };
        // The caller stops waiting if it takes too long.
        _ = answer.send(context.with_controller(list));
    });
    let names = answered.recv_timeout(ENGINE_TIMEOUT);
    let names = names.unwrap_or_else(|_| Ok(Vec::new())).unwrap_or_default();
    names.into_iter().map(CompletionCandidate::new).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definition_with_candidates_holds_together() {
        command().debug_assert();
        assert!(keys().iter().any(|key| key.get_value() == "limits.timeout"));
    }

    #[test]
    fn words_after_the_image_are_files() {
        let directory = env!("CARGO_MANIFEST_DIR");
        let words = ImageOrFile.complete_at(1, OsStr::new(&format!("{directory}/Cargo.to")));
        let words: Vec<_> = words.iter().map(|word| word.get_value().to_owned()).collect();
        assert_eq!(words, [OsStr::new(&format!("{directory}/Cargo.toml"))]);
    }
}
