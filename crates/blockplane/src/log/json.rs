//! One JSON object per line.
//!
//! Its members are promised to whoever collects logs: `timestamp` (RFC 3339, UTC), `level` (`error`,
//! `warn`, `info`, `debug`, `trace`), `message`, `fields` (an object, maybe empty) and, where there is
//! something that an operator should do, `advice`.

use std::fmt::{self, Debug};

use serde_json::{Map, Value, json};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Writes events that way.
pub(super) struct Json {
    /// The journal reads it: behind their priority, which it takes off again.
    pub journal: bool,
}

impl<S, N> FormatEvent<S, N> for Json
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
        let mut fields = Fields(Map::new());
        event.record(&mut fields);
        let level = event.metadata().level();
        if self.journal {
            writer.write_str(super::journal::priority(level))?;
        }
        writeln!(writer, "{}", object(level, fields.0))
    }
}

/// The line for a message without fields.
pub(super) fn line(level: &Level, message: &str) -> String {
    object(
        level,
        Map::from_iter([("message".to_owned(), message.into())]),
    )
    .to_string()
}

/// Message and advice are members of their own, the rest is in `fields`.
fn object(level: &Level, mut fields: Map<String, Value>) -> Value {
    let mut timestamp = String::new();
    // Writing to a string does not fail.
    let _ = SystemTime.format_time(&mut Writer::new(&mut timestamp));
    let message = fields.shift_remove("message").unwrap_or_default();
    let advice = fields.shift_remove("advice");
    let mut object = json!({
        "timestamp": timestamp,
        "level": level.as_str().to_ascii_lowercase(),
        "message": message,
    });
    if let Some(advice) = advice {
        object["advice"] = advice;
    }
    object["fields"] = Value::Object(fields);
    object
}

/// What an event carries, in its order.
struct Fields(Map<String, Value>);

impl Fields {
    fn add(&mut self, field: &Field, value: Value) {
        self.0.insert(field.name().to_owned(), value);
    }
}

impl Visit for Fields {
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.add(field, format!("{value:?}").into());
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test that cannot go on fails where it is
mod tests {
    use super::*;

    #[test]
    fn members_come_in_their_order_and_quotes_are_escaped() {
        let fields = [
            ("message", json!("a \"disk\"\nfell")),
            ("queue", json!(3)),
            ("advice", json!("catch it")),
        ];
        let fields = fields.map(|(name, value)| (name.to_owned(), value));
        let line = object(&Level::WARN, Map::from_iter(fields)).to_string();
        let (time, rest) = line.split_once(r#"","level""#).unwrap();
        assert!(
            time.starts_with(r#"{"timestamp":"2"#) && time.ends_with('Z'),
            "{time}"
        );
        assert_eq!(
            rest,
            r#":"warn","message":"a \"disk\"\nfell","advice":"catch it","fields":{"queue":3}}"#
        );
    }

    #[test]
    fn fields_are_there_when_nothing_is_in_them() {
        assert!(line(&Level::ERROR, "no disk").ends_with(r#""message":"no disk","fields":{}}"#));
    }
}
