//! Logs the counters of an iothread's engines when the thread ends: one line for each engine.

use block::IoContext;

/// Logs the counters of an engine; `$also` are those that only this one has.
macro_rules! log {
    ($stats:expr, $engine:literal $(, $also:ident)*) => {
        if let Some(stats) = $stats {
            tracing::debug!(
                submitted = stats.submitted,
                submit_calls = stats.submit_calls,
                largest_batch = stats.largest_batch,
                max_batch = stats.max_batch,
                completed = stats.completed,
                getevents_calls = stats.getevents_calls,
                $($also = stats.$also,)*
                concat!($engine, " in all")
            );
        }
    };
}

/// Logs one line for each engine that was created.
pub fn log_engine_counters(io: &IoContext) {
    log!(io.aio_stats(), "Linux AIO", synchronous);
    log!(io.ring_stats(), "io_uring", retried, fixed);
}
