//! Standard error that systemd's journal reads: lines begin with their priority, as sd-daemon(3) has
//! it. Lines of text leave out the time and the level, which the journal keeps itself.

use std::fmt;
use std::os::fd::AsFd;

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Whether `JOURNAL_STREAM` names what standard error is. (A shell in between may have put a file
/// there, and left the variable.)
pub(super) fn reads_stderr() -> bool {
    let Ok(named) = std::env::var("JOURNAL_STREAM") else {
        return false;
    };
    let stat = rustix::fs::fstat(std::io::stderr().as_fd());
    stat.is_ok_and(|stat| named == format!("{}:{}", stat.st_dev, stat.st_ino))
}

/// The priority as syslog(3) counts them.
pub(super) fn priority(level: &Level) -> &'static str {
    match *level {
        Level::ERROR => "<3>",
        Level::WARN => "<4>",
        Level::INFO => "<6>",
        Level::DEBUG | Level::TRACE => "<7>",
    }
}

/// Events of another format behind their priority, which the journal takes off again.
pub(super) struct WithPriority<F>(pub F);

impl<S, N, F> FormatEvent<S, N> for WithPriority<F>
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
        writer.write_str(priority(event.metadata().level()))?;
        self.0.format_event(cx, writer, event)
    }
}
