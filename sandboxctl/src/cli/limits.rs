//! Flags of limits, made from the table of limits.

use std::marker::PhantomData;

use clap::builder::TypedValueParser;
use clap::error::Error;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use sandbox_api::LimitKey::{
    Cpus, Entries, MaxFileSize, MaxWrite, Memory, OperationTimeout, Pids, Shm, StopTimeout,
    Timeout, Tmpfs, VmMemory,
};
use sandbox_api::{LimitKey, LimitValue};

use super::values::Utf8;
use crate::config::{Flags, Key, Value};

/// The limits that a command has flags for.
pub trait LimitSet {
    /// The limits, in the order of the help.
    const LIMITS: &[LimitKey];
    /// The heading in the help.
    const HEADING: &str = "Limits";
    /// Whether the flags may also follow the name of a subcommand.
    const IS_GLOBAL: bool = false;

    /// The flag of one of them.
    fn flag(limit: LimitKey) -> &'static str {
        limit.flag().expect("a limit without a flag is in no set")
    }

    /// What the help says of one of them.
    fn help(limit: LimitKey) -> String {
        Key::Limit(limit).help()
    }
}

/// Defines sets of limits.
macro_rules! sets {
    ($($(#[$doc:meta])* $set:ident { $($item:item)* })+) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Copy)]
            pub enum $set {}

            impl LimitSet for $set { $($item)* }
        )+
    };
}

sets! {
    /// What a sandbox may use.
    SandboxLimits {
        const LIMITS: &[LimitKey] = &[Memory, Cpus, Pids, MaxWrite, Entries, MaxFileSize];
        const IS_GLOBAL: bool = true;
    }
    /// What a script may use.
    ScriptLimits {
        const LIMITS: &[LimitKey] = &[Timeout, VmMemory];
    }
    /// What a call of an agent may use.
    AgentLimits {
        const LIMITS: &[LimitKey] =
            &[Timeout, Memory, VmMemory, Cpus, Pids, MaxWrite, Entries, MaxFileSize];
    }
    /// What a command may use.
    CommandLimits {
        const LIMITS: &[LimitKey] = &[Timeout];
    }
    /// What a command may use in a sandbox that has the other limits.
    CommandInLimits {
        const LIMITS: &[LimitKey] = &[Timeout, StopTimeout];

        fn help(limit: LimitKey) -> String {
            format!("{} [default: the sandbox's]", Key::Limit(limit).description())
        }
    }
    /// What a file operation may use.
    OperationLimits {
        const LIMITS: &[LimitKey] = &[OperationTimeout];
        const IS_GLOBAL: bool = true;

        /// The time of a run has the same flag in the table: here there are no runs.
        fn flag(_: LimitKey) -> &'static str {
            "--timeout"
        }
    }
    /// What programs have in addition to their root filesystem.
    ProgramLimits {
        const LIMITS: &[LimitKey] = &[Tmpfs, Shm, StopTimeout];
        const HEADING: &str = "Programs";
    }
}

/// Reads the flag of a limit. A time without a unit is seconds, as for `timeout(1)`; in a file it
/// would be read by someone who did not write it.
fn value_of_limit(key: Key) -> impl TypedValueParser<Value = Value> {
    Utf8(move |text: &str| {
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let is_time = matches!(key, Key::Limit(limit) if matches!(limit.default_value(), LimitValue::Time(_)));
        let read = match is_number && is_time {
            true => Value::from_text(key, &format!("{text}s")),
            false => Value::from_text(key, text),
        };
        read.map_err(|error| error.to_string())
    })
}

/// The values of the flags of a [`LimitSet`].
#[derive(Debug)]
pub struct LimitArgs<S> {
    values: Vec<(LimitKey, Value)>,
    set: PhantomData<S>,
}

impl<S: LimitSet> LimitArgs<S> {
    /// Adds the settings among these flags.
    pub fn add_flags(&self, flags: &mut Flags) {
        let values = self.values.iter();
        flags.values.extend(
            values.map(|(limit, value)| (Key::Limit(*limit), value.clone(), S::flag(*limit))),
        );
    }

    fn name(limit: LimitKey) -> &'static str {
        S::flag(limit).trim_start_matches("--")
    }

    fn arg(limit: LimitKey) -> Arg {
        let name = Self::name(limit);
        let value = match limit.default_value() {
            LimitValue::Time(_) => "TIME",
            LimitValue::Size(_) => "SIZE",
            LimitValue::Cpus(_) | LimitValue::Count(_) => "NUMBER",
        };
        Arg::new(name)
            .long(name)
            .value_name(value)
            .help(S::help(limit))
            .help_heading(S::HEADING)
            .value_parser(value_of_limit(Key::Limit(limit)))
            .global(S::IS_GLOBAL)
            // A hyphen begins a negative number, of which we say what is wrong with it.
            .allow_hyphen_values(true)
    }
}

impl<S: LimitSet> Args for LimitArgs<S> {
    fn augment_args(command: Command) -> Command {
        command.args(S::LIMITS.iter().copied().map(Self::arg))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<S: LimitSet> FromArgMatches for LimitArgs<S> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let value = |limit| matches.get_one::<Value>(Self::name(limit)).cloned();
        let values = S::LIMITS.iter().filter_map(|&limit| value(limit).map(|value| (limit, value)));
        Ok(Self { values: values.collect(), set: PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
