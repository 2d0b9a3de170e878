//! Traces of the library, on stderr: none, unless requested.

use std::fmt;

use tracing::field::Field;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::{FormatFields, Writer, debug_fn};

use crate::cli::Global;
use crate::config::LOG_VARIABLE;
use crate::output::Output;
use crate::render::escaped_line;

/// Starts to write what the flags or the variable request.
pub fn start(global: &Global, output: &Output) {
    let directives = match (global.verbose, std::env::var(LOG_VARIABLE)) {
        (_, Ok(directives)) if !directives.is_empty() => directives,
        (0, _) => return,
        // A target matches by its beginning: all crates of the project, and no other library, which
        // the variable can ask for.
        (1, _) => "sandbox=info".to_owned(),
        (2, _) => "sandbox=debug".to_owned(),
        (_, _) => "sandbox=trace".to_owned(),
    };
    let filter = EnvFilter::builder().with_default_directive(LevelFilter::ERROR.into());
    let filter = match filter.parse(&directives) {
        Ok(filter) => filter,
        // The lossy parser prints the directives that it ignores to stderr itself, unescaped.
        Err(error) => return output.warning(&format!("{LOG_VARIABLE}: '{directives}': {error}")),
    };
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(output.stderr_has_colour())
        .fmt_fields(escaped_fields())
        .init();
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
    struct Lines(Arc<Mutex<Vec<u8>>>);

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
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        let shown = "\\u{1b}[2J\\r\\nERROR forged\\u{202e}";
        let expected = format!(
            " INFO call{{path={shown}}}: sandboxctl::trace::tests: about {shown} shown={shown} \
             debugged=\"{shown}\" text=\"{shown}\" number=3\n"
        );
        assert_eq!(text, expected);
    }
}
