//! The format of a log whose repeated lines are limited, see [`line_limit`](super::line_limit).

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use daemon::process::END_OF_LOG;
use options::LogFormat;
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use super::line_limit::{Decision, DueLine, HeldLine, RepeatedLines, SubjectAndPart};

/// A format that writes repeated lines at a limited rate.
pub(super) struct LimitedFormat<F, C = fn() -> Instant> {
    format: F,
    written_as: LogFormat,
    /// The clock.
    now: C,
    lines: Mutex<RepeatedLines>,
}

impl<F> LimitedFormat<F> {
    pub fn new(format: F, written_as: LogFormat) -> Self {
        LimitedFormat::with_clock(format, written_as, Instant::now)
    }
}

impl<F, C> LimitedFormat<F, C> {
    fn with_clock(format: F, written_as: LogFormat, now: C) -> Self {
        LimitedFormat {
            format,
            written_as,
            now,
            lines: Mutex::default(),
        }
    }

    fn lock_lines(&self) -> MutexGuard<'_, RepeatedLines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a formatted line with additional fields; those that are 0 are omitted.
    fn write_with_fields(
        &self,
        writer: &mut Writer<'_>,
        line: &str,
        fields: &[(&str, u64)],
    ) -> fmt::Result {
        let line = line.trim_end_matches('\n');
        let fields = fields.iter().filter(|(_, value)| *value > 0);
        match self.written_as {
            LogFormat::Text => {
                writer.write_str(line)?;
                for (name, value) in fields {
                    write!(writer, " {name}={value}")?;
                }
                writeln!(writer)
            }
            LogFormat::Json => {
                writer.write_str(line.strip_suffix('}').unwrap_or(line))?;
                for (name, value) in fields {
                    write!(writer, ",\"{name}\":{value}")?;
                }
                writeln!(writer, "}}")
            }
        }
    }

    /// Writes lines that were held back.
    fn write_due_lines(
        &self,
        writer: &mut Writer<'_>,
        due: Vec<DueLine>,
        now: Instant,
    ) -> fmt::Result {
        for due in due {
            let age = now.saturating_duration_since(due.line.time).as_secs();
            let fields = [("left_out", due.left_out_before), ("seconds_ago", age)];
            self.write_with_fields(writer, &due.line.text, &fields)?;
        }
        Ok(())
    }
}

impl<S, N, F, C> FormatEvent<S, N> for LimitedFormat<F, C>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
    C: Fn() -> Instant,
{
    fn format_event(
        &self,
        cx: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let now = (self.now)();
        if event.metadata().target() == END_OF_LOG {
            let held = self.lock_lines().take_all();
            return self.write_due_lines(&mut writer, held, now);
        }
        let Some(about) = SubjectAndPart::of(event) else {
            let due = self.lock_lines().take_due(now);
            self.write_due_lines(&mut writer, due, now)?;
            return self.format.format_event(cx, writer, event);
        };
        // Before the lock is taken: other threads do not wait for it.
        let mut text = String::new();
        self.format
            .format_event(cx, Writer::new(&mut text), event)?;
        let mut lines = self.lock_lines();
        let due = lines.take_due(now);
        let written = match lines.decide(event.metadata().callsite(), about, now) {
            Decision::Write { left_out } => Some((text, left_out)),
            Decision::Hold(held) => {
                *held = Some(HeldLine { text, time: now });
                None
            }
        };
        drop(lines);
        self.write_due_lines(&mut writer, due, now)?;
        match written {
            Some((text, left_out)) => {
                self.write_with_fields(&mut writer, &text, &[("left_out", left_out)])
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;
    use std::time::Duration;

    use tracing::dispatcher::{Dispatch, with_default};
    use tracing_subscriber::fmt::format::{Format, Full};

    use super::super::line_limit::{INTERVAL, MAX_PARTS};
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

    /// Time that passes only when a test says so.
    #[derive(Clone)]
    struct Clock(Arc<Mutex<Instant>>);

    impl Clock {
        fn new() -> Self {
            Clock(Arc::new(Mutex::new(Instant::now())))
        }

        fn advance(&self, by: Duration) {
            *self.0.lock().unwrap() += by;
        }

        fn limited<F>(&self, format: F, written_as: LogFormat) -> LimitedFormat<F, BoxedClock> {
            let time = self.0.clone();
            let now: BoxedClock = Box::new(move || *time.lock().unwrap());
            LimitedFormat::with_clock(format, written_as, now)
        }
    }

    type BoxedClock = Box<dyn Fn() -> Instant + Send + Sync>;

    fn broke(export: &str, number: u32) {
        tracing::warn!(export, number, "broke its queue");
    }

    #[test]
    fn lines_of_a_kind_about_one_export_are_limited_and_those_left_out_are_counted() {
        let (written, clock) = (Written::default(), Clock::new());
        with_default(&text_dispatch(&written, &clock), || {
            (0..100).for_each(|number| broke("e", number));
            assert_eq!(written.take_lines().len(), 10);
            broke("f", 0);
            tracing::warn!(export = "e", "of another kind");
            (0..20).for_each(|_| tracing::warn!("of the program itself"));
            assert_eq!(written.take_lines().len(), 22);
            (0..20)
                .for_each(|_| tracing::warn!(target: "nbd_server::negotiation", "no export yet"));
            assert_eq!(written.take_lines().len(), 10);
            clock.advance(INTERVAL);
            (100..103).for_each(|number| broke("e", number));
        });
        let expected = "broke its queue export=\"e\" number=100 left_out=90";
        let lines = written.take_lines();
        assert_eq!(lines[0].trim_start(), expected);
        assert_eq!(lines.len(), 1);
    }

    #[test]
    fn lines_left_out_are_counted_in_json() {
        let (written, clock) = (Written::default(), Clock::new());
        let writer = written.clone();
        let builder = tracing_subscriber::fmt()
            .with_writer(move || writer.clone())
            .json()
            .flatten_event(true);
        let builder = builder.map_event_format(|format| clock.limited(format, LogFormat::Json));
        with_default(&Dispatch::from(builder), || {
            (0..100).for_each(|number| broke("e", number));
            assert_eq!(written.take_lines().len(), 10);
            clock.advance(INTERVAL);
            broke("e", 100);
        });
        let line = &written.take_lines()[0];
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(
            (&line["number"], &line["left_out"]),
            (&100.into(), &90.into())
        );
    }

    fn user_refused(uid: u32) {
        tracing::warn!(target: "unix_socket::listener", uid, pid = 1, "refused");
    }

    /// A dispatcher that writes text like `message field=value`.
    fn text_dispatch(written: &Written, clock: &Clock) -> Dispatch {
        let writer = written.clone();
        tracing_subscriber::fmt()
            .with_writer(move || writer.clone())
            .with_target(false)
            .with_level(false)
            .with_ansi(false)
            .without_time()
            .map_event_format(|format| clock.limited(format, LogFormat::Text))
            .into()
    }

    #[test]
    fn queues_and_users_do_not_hide_each_other() {
        let written = Written::default();
        with_default(&text_dispatch(&written, &Clock::new()), || {
            for queue in 0..16_u16 {
                tracing::error!(export = "e", queue, "broke this queue");
            }
            let lines = written.take_lines();
            for (queue, line) in lines.iter().enumerate() {
                assert!(line.contains(&format!("queue={queue}")), "{line}");
            }
            assert_eq!(lines.len(), 16);
            let failed = |export: &str, queue: u16| {
                tracing::warn!(export = %export, queue, "parked requests are failed");
            };
            (0..20).for_each(|_| failed("e", 1));
            assert_eq!(written.take_lines().len(), 10);
            failed("e", 2);
            (0..20).for_each(|_| failed("f", 1));
            assert_eq!(written.take_lines().len(), 11);
            (0..12).for_each(|_| user_refused(1001));
            assert_eq!(written.take_lines().len(), 10);
            (0..3).for_each(|_| user_refused(1002));
            let lines = written.take_lines();
            assert_eq!(lines.len(), 1, "{lines:?}");
            assert!(lines[0].contains("uid=1002"), "{lines:?}");
            let host_refused =
                |host: &str| tracing::info!(target: "nbd_server::negotiation", host, "no NBD");
            (0..20).for_each(|_| host_refused("192.0.2.1"));
            host_refused("192.0.2.2");
            assert_eq!(written.take_lines().len(), 11);
            for index in 0..10_000_u32 {
                tracing::warn!(export = "e", index, "a queue that is not there");
            }
            assert_eq!(written.take_lines().len(), MAX_PARTS + 1);
        });
    }

    #[test]
    fn lines_about_one_image_are_limited() {
        let written = Written::default();
        with_default(&text_dispatch(&written, &Clock::new()), || {
            (0..100).for_each(|_| tracing::error!(image = "i", "lock was not acquired"));
            tracing::error!(image = "j", "of another image");
        });
        assert_eq!(written.take_lines().len(), 11);
    }

    #[test]
    fn the_latest_line_is_written_at_the_end_of_the_program() {
        let written = Written::default();
        with_default(&text_dispatch(&written, &Clock::new()), || {
            (0..100).for_each(|number| broke("e", number));
            written.take_lines();
            tracing::error!(target: END_OF_LOG, "");
            let lines = written.take_lines();
            assert_eq!(lines.len(), 1);
            let expected = "broke its queue export=\"e\" number=99 left_out=89";
            assert_eq!(lines[0].trim_start(), expected);
            tracing::error!(target: END_OF_LOG, "");
            assert_eq!(written.take_lines().len(), 0);
        });
    }

    /// A value that looks at the lock of its dispatcher's format while it is formatted.
    struct LockState(Dispatch);

    impl fmt::Display for LockState {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            type TextFormat = LimitedFormat<Format<Full, ()>, BoxedClock>;
            let format = self.0.downcast_ref::<TextFormat>().unwrap();
            let is_free = format.lines.try_lock().is_ok();
            f.write_str(if is_free { "free" } else { "locked" })
        }
    }

    #[test]
    fn other_threads_can_log_while_a_line_is_formatted() {
        let written = Written::default();
        let dispatch = text_dispatch(&written, &Clock::new());
        with_default(&dispatch, || {
            let lock = LockState(dispatch.clone());
            (0..11).for_each(|_| tracing::warn!(export = "e", %lock, "of one kind"));
            tracing::error!(target: END_OF_LOG, "");
        });
        let lines = written.take_lines();
        assert_eq!(lines.len(), 11);
        for line in lines {
            assert!(line.contains("lock=free"), "{line}");
        }
    }

    #[test]
    fn held_line_says_how_old_it_is() {
        let (written, clock) = (Written::default(), Clock::new());
        with_default(&text_dispatch(&written, &clock), || {
            (0..11).for_each(|number| broke("e", number));
            written.take_lines();
            clock.advance(INTERVAL * 10);
            tracing::warn!("of the program itself");
        });
        let lines = written.take_lines();
        let expected = "broke its queue export=\"e\" number=10 seconds_ago=10";
        assert_eq!(lines[0].trim_start(), expected);
        assert_eq!(lines.len(), 2);
    }
}
