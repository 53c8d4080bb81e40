//! Tracepoints `submit_begin` and `submit_end`, fired around each call that submits requests to the kernel or to a library.

use rustix::io::Errno;
use telemetry::tracepoints::{submit_begin, submit_end};

/// Fires `submit_begin`: a call with so many requests is about to be made.
#[inline(always)]
pub fn fire_begin(engine: u64, requests: usize) {
    if submit_begin::enabled() {
        submit_begin::fire(engine, requests as u64);
    }
}

/// Fires `submit_end`: the call has returned.
#[inline(always)]
pub fn fire_end(engine: u64, requests: usize, taken: Result<usize, Errno>) {
    if submit_end::enabled() {
        let taken = match taken {
            Ok(taken) => i64::try_from(taken).unwrap_or(i64::MAX),
            Err(errno) => -i64::from(errno.raw_os_error()),
        };
        submit_end::fire(engine, requests as u64, taken);
    }
}
