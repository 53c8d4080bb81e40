//! Log lines for systemd's journal on standard error: each begins with its priority, see sd-daemon(3).
//! Lines of text omit the time and the level, which the journal records itself.

use std::fmt;
use std::os::fd::AsFd;

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Whether standard error is the stream that `JOURNAL_STREAM` names. (A shell may have redirected standard
/// error and kept the variable.)
pub(super) fn is_stderr_journal() -> bool {
    let Ok(named) = std::env::var("JOURNAL_STREAM") else {
        return false;
    };
    let stat = rustix::fs::fstat(std::io::stderr().as_fd());
    stat.is_ok_and(|stat| named == format!("{}:{}", stat.st_dev, stat.st_ino))
}

/// The prefix that gives a line the priority of syslog(3) for its level.
pub(super) fn priority_prefix(level: &Level) -> &'static str {
    match *level {
        Level::ERROR => "<3>",
        Level::WARN => "<4>",
        Level::INFO => "<6>",
        Level::DEBUG | Level::TRACE => "<7>",
    }
}

/// A format that puts the priority before each event; the journal removes it.
pub(super) struct JournalPriorityFormat<F>(pub F);

impl<S, N, F> FormatEvent<S, N> for JournalPriorityFormat<F>
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
        writer.write_str(priority_prefix(event.metadata().level()))?;
        self.0.format_event(cx, writer, event)
    }
}
