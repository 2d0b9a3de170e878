//! Events as JSON, one object a line: for the log of a service.

use std::fmt;

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::{FormatFields, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormattedFields};
use tracing_subscriber::registry::LookupSpan;

use crate::error::causes;

/// `{"time", "level", "target", "message", …}`, with the fields of the event, and before them those of
/// the spans that it is in.
pub struct Json;

impl<S, N> FormatEvent<S, N> for Json
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let metadata = event.metadata();
        let mut line = Map::new();
        line.insert("time".to_owned(), sandbox_api::time::now().into());
        line.insert("level".to_owned(), metadata.level().as_str().to_lowercase().into());
        line.insert("target".to_owned(), metadata.target().into());
        let mut fields = Map::new();
        for span in context.event_scope().into_iter().flat_map(|scope| scope.from_root()) {
            let extensions = span.extensions();
            let formatted = extensions.get::<FormattedFields<N>>();
            // Each `record` of a span adds an object.
            let objects = formatted.map_or("", |fields| &fields.fields);
            for object in serde_json::Deserializer::from_str(objects).into_iter::<Map<_, _>>() {
                fields.extend(object.unwrap_or_default());
            }
        }
        event.record(&mut Collect(&mut fields));
        for (name, value) in fields {
            line.entry(name).or_insert(value);
        }
        writeln!(writer, "{}", Value::Object(line))
    }
}

/// The fields of a span, as an object.
pub struct JsonFields;

impl<'w> FormatFields<'w> for JsonFields {
    fn format_fields<R: tracing_subscriber::field::RecordFields>(
        &self,
        mut writer: Writer<'w>,
        fields: R,
    ) -> fmt::Result {
        let mut object = Map::new();
        fields.record(&mut Collect(&mut object));
        write!(writer, "{}", Value::Object(object))
    }
}

/// Collects fields with the types that JSON has.
struct Collect<'a>(&'a mut Map<String, Value>);

impl Collect<'_> {
    fn put(&mut self, field: &Field, value: Value) {
        self.0.insert(field.name().to_owned(), value);
    }
}

macro_rules! values {
    ($($record:ident($type:ty);)*) => {
        $(fn $record(&mut self, field: &Field, value: $type) {
            self.put(field, value.into());
        })*
    };
}

impl Visit for Collect<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, format!("{value:?}").into());
    }

    values! {
        record_str(&str);
        record_bool(bool);
        record_i64(i64);
        record_u64(u64);
        record_f64(f64);
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.put(field, causes(value).into());
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::Lines;
    use super::*;

    #[test]
    fn each_event_is_one_object_with_the_fields_of_its_spans() {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(move || writer.clone())
            .event_format(Json)
            .fmt_fields(JsonFields)
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            let span = tracing::info_span!("request", id = "r1", status = tracing::field::Empty);
            span.record("status", 200);
            let _entered = span.enter();
            tracing::info!(ok = true, level = "fake", evil = "\u{1b}\n{}", "answered {}", 7);
        });
        let text = lines.text();
        assert_eq!(text.lines().count(), 1, "{text}");
        let line: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(line["message"], "answered 7");
        // What an event says does not replace what it is.
        assert_eq!(line["level"], "info");
        assert_eq!(
            (&line["id"], &line["status"], &line["ok"]),
            (&"r1".into(), &200.into(), &true.into())
        );
        assert_eq!(line["evil"], "\u{1b}\n{}");
        assert!(line["time"].as_str().is_some_and(|time| time.ends_with('Z')), "{line}");
    }
}
