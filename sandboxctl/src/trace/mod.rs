//! Traces of the library, on stderr: none, unless requested.

mod json;

use std::fmt;
use std::io;

use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::{FormatFields, Writer, debug_fn};
use tracing_subscriber::fmt::{FmtContext, FormatEvent};
use tracing_subscriber::registry::LookupSpan;

use crate::ci;
use crate::cli::serve::LogFormat;
use crate::cli::{Cli, Command};
use crate::config::LOG_VARIABLE;
use crate::output::Output;
use crate::render::escaped_line;
use json::{Json, JsonFields};

/// Starts to write what the flags or the variable request; of a service more than of a command.
pub fn start(cli: &Cli, output: &Output) {
    let global = &cli.global;
    let format = match &cli.command {
        Command::Serve(args) if !args.private => Some(args.log_format),
        _ => None,
    };
    let is_for_people =
        global.verbose == 1 && std::env::var_os(LOG_VARIABLE).is_none_or(|text| text.is_empty());
    let directives = match (global.verbose, std::env::var(LOG_VARIABLE)) {
        (_, Ok(directives)) if !directives.is_empty() => directives,
        // A service logs its actions; other libraries log only warnings.
        (0, _) if format.is_some() && global.quiet => "warn".to_owned(),
        (0, _) if format.is_some() => "warn,sandbox=info".to_owned(),
        (0, _) => return,
        // A target matches by its beginning: all crates of the project, and no other library, which
        // the variable can ask for.
        (1 | 2, _) => "sandbox=debug".to_owned(),
        (_, _) => "sandbox=trace".to_owned(),
    };
    let filter = EnvFilter::builder().with_default_directive(LevelFilter::ERROR.into());
    let filter = match filter.parse(&directives) {
        Ok(filter) => filter,
        // The lossy parser prints the directives that it ignores to stderr itself, unescaped.
        Err(error) => return output.warning(&format!("{LOG_VARIABLE}: '{directives}': {error}")),
    };
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| Log)
        .with_ansi(output.stderr_has_colour)
        .fmt_fields(escaped_fields());
    match (format, is_for_people) {
        (Some(LogFormat::Json), _) => subscriber.event_format(Json).fmt_fields(JsonFields).init(),
        (None, true) => subscriber.event_format(Steps).init(),
        (Some(LogFormat::Text) | None, _) => subscriber.init(),
    }
}

/// stderr, in which the runner of a job finds no command: a path may be one.
struct Log;

impl io::Write for Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        io::stderr().write_all(&ci::outside_of_groups(line)).map(|()| line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// A line for each step, for people: what, and how long it took. Other events are for developers.
struct Steps;

impl<S, N> FormatEvent<S, N> for Steps
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut step = StepFields::default();
        event.record(&mut step);
        match step.took {
            Some(took) => writeln!(writer, "{}: {took}", escaped_line(&step.what)),
            None => Ok(()),
        }
    }
}

/// The fields of an event that is a step.
#[derive(Default)]
struct StepFields {
    what: String,
    took: Option<String>,
}

impl Visit for StepFields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" | "operation" => self.what.insert_str(0, &format!("{value:?}")),
            "path" => self.what.push_str(&format!(" {value:?}")),
            "took" => self.took = Some(format!("{value:.1?}")),
            _ => {}
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
}

/// Fields as `name=value`, escaped for a terminal: a path or an engine's message may contain
/// anything.
fn escaped_fields() -> impl for<'w> FormatFields<'w> + Send + Sync + 'static {
    debug_fn(|writer: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug| {
        let value = format!("{value:?}");
        let value = escaped_line(&value);
        match field.name() {
            "message" => write!(writer, "{value}"),
            name => write!(writer, "{name}={value}"),
        }
    })
    .delimited(" ")
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    pub struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Lines {
        pub fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn steps_are_printed_with_their_time_and_other_events_are_not() {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::DEBUG)
            .with_writer(move || writer.clone())
            .event_format(Steps)
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            let took = std::time::Duration::from_micros(12_345);
            tracing::debug!(?took, "creating the container");
            tracing::info!(endpoint = "e", "connected to the engine");
            tracing::debug!(operation = "read", path = "/io/\u{1b}[2J", outcome = "ok", ?took);
        });
        let text = lines.text();
        assert_eq!(text, "creating the container: 12.3ms\nread /io/\\u{1b}[2J: 12.3ms\n");
    }

    #[test]
    fn traced_values_cannot_steer_a_terminal() {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(move || writer.clone())
            .with_ansi(false)
            .without_time()
            .fmt_fields(escaped_fields())
            .finish();
        let evil = "\u{1b}[2J\r\nERROR forged\u{202e}";
        tracing::subscriber::with_default(subscriber, || {
            let span = tracing::info_span!("call", path = %evil);
            let _entered = span.enter();
            tracing::info!(shown = %evil, debugged = ?evil, text = evil, number = 3, "about {evil}");
        });
        let text = lines.text();
        let shown = "\\u{1b}[2J\\r\\nERROR forged\\u{202e}";
        let expected = format!(
            " INFO call{{path={shown}}}: sandboxctl::trace::tests: about {shown} shown={shown} \
             debugged=\"{shown}\" text=\"{shown}\" number=3\n"
        );
        assert_eq!(text, expected);
    }
}
