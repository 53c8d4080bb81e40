//! Limits the log lines that a party outside the program can cause without end: a guest that breaks its queue, a front-end or a client
//! that connects and leaves.
//!
//! They are the lines that name an export, and those of the crates that speak with front-ends and clients. Of one kind (a place in the
//! source) about one export a few are written at once and then one per second, which says how many were left out before it.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use options::LogFormat;
use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Lines that are written at once after a time without any.
const BURST: u32 = 10;

/// Interval of further ones.
const INTERVAL: Duration = Duration::from_secs(1);

/// Crates whose lines others cause before it is known which export they want.
const CRATES_THAT_FACE_OTHERS: [&str; 4] = ["nbd_server", "unix_socket", "vfio_user", "vhost_user"];

/// What lines with one limit have in common.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Subject {
    export: String,
    /// An export may have many nodes, of which several may fail.
    node: String,
    /// The name of a queue, which has that of its export.
    queue: String,
}

impl Subject {
    /// Of a line that is limited.
    fn of(event: &Event<'_>) -> Option<Self> {
        let metadata = event.metadata();
        if *metadata.level() > Level::INFO {
            return None;
        }
        let mut subject = Subject::default();
        event.record(&mut subject);
        let of_crate = metadata.target().split("::").next().unwrap_or_default();
        let is_limited = !subject.export.is_empty()
            || !subject.queue.is_empty()
            || CRATES_THAT_FACE_OTHERS.contains(&of_crate);
        is_limited.then_some(subject)
    }
}

impl Visit for Subject {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "export" => value.clone_into(&mut self.export),
            "node" => value.clone_into(&mut self.node),
            "queue" => value.clone_into(&mut self.queue),
            _ => {}
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if matches!(field.name(), "export" | "node") {
            // A name may be written with `%`.
            self.record_str(field, &format!("{value:?}"));
        }
    }
}

/// Lines of a kind about one export.
struct SimilarLines {
    /// Moves on by one interval for each line; a line may be written while this is less than a burst of intervals ahead of now (a token
    /// bucket).
    full_rate_until: Instant,
    left_out: u64,
}

/// The lines that are limited at present.
#[derive(Default)]
struct RepeatedLines(HashMap<(Identifier, Subject), SimilarLines>);

impl RepeatedLines {
    /// Whether a line may be written now: if so, how many like it were left out before it.
    fn count_left_out_before(
        &mut self,
        kind: Identifier,
        subject: Subject,
        now: Instant,
    ) -> Option<u64> {
        let key = (kind, subject);
        if !self.0.contains_key(&key) {
            self.0
                .retain(|_, lines| lines.full_rate_until > now || lines.left_out > 0);
        }
        let lines = self.0.entry(key).or_insert(SimilarLines {
            full_rate_until: now,
            left_out: 0,
        });
        if lines.full_rate_until > now + INTERVAL * (BURST - 1) {
            lines.left_out += 1;
            return None;
        }
        lines.full_rate_until = lines.full_rate_until.max(now) + INTERVAL;
        Some(std::mem::take(&mut lines.left_out))
    }
}

/// A format that writes repeated lines at a limited rate.
pub(super) struct LimitedFormat<F> {
    format: F,
    written_as: LogFormat,
    lines: Mutex<RepeatedLines>,
}

impl<F> LimitedFormat<F> {
    pub fn new(format: F, written_as: LogFormat) -> Self {
        LimitedFormat {
            format,
            written_as,
            lines: Mutex::default(),
        }
    }
}

impl<S, N, F> FormatEvent<S, N> for LimitedFormat<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        cx: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let left_out = match Subject::of(event) {
            None => 0,
            Some(subject) => {
                let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
                let kind = event.metadata().callsite();
                match lines.count_left_out_before(kind, subject, Instant::now()) {
                    Some(left_out) => left_out,
                    None => return Ok(()),
                }
            }
        };
        if left_out == 0 {
            return self.format.format_event(cx, writer, event);
        }
        let mut line = String::new();
        self.format
            .format_event(cx, Writer::new(&mut line), event)?;
        let line = line.trim_end_matches('\n');
        match self.written_as {
            LogFormat::Text => writeln!(writer, "{line} left_out={left_out}"),
            LogFormat::Json => {
                let object = line.strip_suffix('}').unwrap_or(line);
                writeln!(writer, "{object},\"left_out\":{left_out}}}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use tracing::dispatcher::{Dispatch, with_default};

    use super::*;

    /// Where lines are written.
    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Written {
        fn take_lines(&self) -> Vec<String> {
            let text = std::mem::take(&mut *self.0.lock().unwrap());
            let text = String::from_utf8(text).unwrap();
            text.lines().map(str::to_owned).collect()
        }
    }

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn broke(export: &str, number: u32) {
        tracing::warn!(export, number, "broke its queue");
    }

    #[test]
    fn lines_of_a_kind_about_one_export_are_limited_and_those_left_out_are_counted() {
        let written = Written::default();
        let writer = written.clone();
        let builder = tracing_subscriber::fmt()
            .with_writer(move || writer.clone())
            .with_target(false)
            .with_level(false)
            .with_ansi(false)
            .without_time();
        let builder =
            builder.map_event_format(|format| LimitedFormat::new(format, LogFormat::Text));
        with_default(&Dispatch::from(builder), || {
            (0..100).for_each(|number| broke("e", number));
            assert_eq!(written.take_lines().len(), 10);
            broke("f", 0);
            tracing::warn!(export = "e", "of another kind");
            (0..20).for_each(|_| tracing::warn!("of the program itself"));
            assert_eq!(written.take_lines().len(), 22);
            (0..20)
                .for_each(|_| tracing::warn!(target: "nbd_server::negotiation", "no export yet"));
            assert_eq!(written.take_lines().len(), 10);
            std::thread::sleep(INTERVAL + INTERVAL / 10);
            (100..103).for_each(|number| broke("e", number));
        });
        let expected = "broke its queue export=\"e\" number=100 left_out=90";
        let lines = written.take_lines();
        assert_eq!(lines[0].trim_start(), expected);
        assert_eq!(lines.len(), 1);
    }

    #[test]
    fn lines_left_out_are_counted_in_json() {
        let written = Written::default();
        let writer = written.clone();
        let builder = tracing_subscriber::fmt()
            .with_writer(move || writer.clone())
            .json()
            .flatten_event(true);
        let builder =
            builder.map_event_format(|format| LimitedFormat::new(format, LogFormat::Json));
        with_default(&Dispatch::from(builder), || {
            (0..100).for_each(|number| broke("e", number));
            assert_eq!(written.take_lines().len(), 10);
            std::thread::sleep(INTERVAL + INTERVAL / 10);
            broke("e", 100);
        });
        let line = &written.take_lines()[0];
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(
            (&line["number"], &line["left_out"]),
            (&100.into(), &90.into())
        );
    }
}
