//! Commands whose arguments are only defined if a command line names them: together they have hundreds,
//! and every process reads one command line.

use std::cell::RefCell;
use std::ffi::OsString;
use std::ops::Deref;

use clap::{ArgMatches, Args, Command, Error, FromArgMatches};

thread_local! {
    /// The command line that is being read; `None` if the whole definition is wanted.
    static LINE: RefCell<Option<Vec<OsString>>> = const { RefCell::new(None) };
}

/// Defines what this command line may need: the arguments of every command that it has as a word.
pub fn for_line<T>(line: &[OsString], define: impl FnOnce() -> T) -> T {
    LINE.set(Some(line.to_vec()));
    let defined = define();
    LINE.set(None);
    defined
}

/// The arguments of a command that has many.
#[derive(Debug)]
pub struct OnDemand<T>(pub Box<T>);

impl<T> Deref for OnDemand<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Args> Args for OnDemand<T> {
    fn augment_args(command: Command) -> Command {
        let is_needed = LINE.with_borrow(|line| {
            line.as_ref().is_none_or(|line| line.iter().any(|word| word == command.get_name()))
        });
        if is_needed { T::augment_args(command) } else { command }
    }

    fn augment_args_for_update(command: Command) -> Command {
        T::augment_args_for_update(command)
    }
}

impl<T: FromArgMatches> FromArgMatches for OnDemand<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        T::from_arg_matches(matches).map(|args| Self(Box::new(args)))
    }

    fn from_arg_matches_mut(matches: &mut ArgMatches) -> Result<Self, Error> {
        T::from_arg_matches_mut(matches).map(|args| Self(Box::new(args)))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        self.0.update_from_arg_matches(matches)
    }
}
