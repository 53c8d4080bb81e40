//! Parses the values of `serve`'s options: sizes, counts, CPU sets, serial numbers and switches.

use crate::{
    MAX_AIO_EVENTS, MAX_QUEUES, MAX_SERIAL_BYTES, cpus, form, limits,
    size::{self, NumberError},
};

/// Reads a number with `parse` and checks its range.
fn parse_in_range(
    text: &str,
    min: u64,
    max: u64,
    parse: fn(&str) -> Result<u64, NumberError>,
) -> Result<u64, String> {
    match parse(text) {
        Ok(number) if (min..=max).contains(&number) => Ok(number),
        Err(NumberError::Malformed) => Err("not a number".to_owned()),
        _ => Err(format!("must be from {min} to {max}")),
    }
}

/// Reads `--size`, which the largest file offset of the kernel limits.
pub(super) fn parse_disk_size(text: &str) -> Result<u64, String> {
    const EXPECTED: &str = "expected a size above 0, a multiple of 512, such as 4096, 512M or 1.5G";
    let bytes = size::parse_size(text).map_err(|_| EXPECTED.to_owned())?;
    let fits = bytes > 0 && bytes.is_multiple_of(512) && i64::try_from(bytes).is_ok();
    if fits {
        Ok(bytes)
    } else {
        Err(EXPECTED.to_owned())
    }
}

/// Reads a whole number in a range.
fn parse_integer<T: TryFrom<u64>>(text: &str, min: u64, max: u64) -> Result<T, String> {
    let number = parse_in_range(text, min, max, size::parse_integer)?;
    T::try_from(number).map_err(|_| format!("must be from {min} to {max}"))
}

/// Reads `--num-queues`, or `--iothreads`, of which there is at most one per queue.
pub(super) fn parse_queue_or_iothread_count(text: &str) -> Result<u16, String> {
    parse_integer(text, 1, MAX_QUEUES.into())
}

/// Reads `--aio-max-batch`.
pub(super) fn parse_batch_size(text: &str) -> Result<u32, String> {
    parse_integer(text, 0, u32::MAX.into())
}

/// Reads `--aio-max-events`.
pub(super) fn parse_aio_event_count(text: &str) -> Result<u32, String> {
    parse_integer(text, 1, MAX_AIO_EVENTS.into())
}

/// A set of CPUs. `clap` would take a list of numbers for several values.
#[derive(Clone)]
pub(super) struct CpuSetArg(pub(super) Vec<u16>);

/// Reads `--cpu-affinity`.
pub(super) fn parse_cpus(text: &str) -> Result<CpuSetArg, String> {
    let cpus = cpus::parse_cpu_set(text).map(CpuSetArg);
    cpus.ok_or_else(|| format!("expected {}", cpus::CPUS_EXPECTED))
}

/// Reads `--poll-cpu-max`.
pub(super) fn parse_percent(text: &str) -> Result<u32, String> {
    parse_integer(text, 0, 100)
}

/// Reads `--poll-max-ns`.
pub(super) fn parse_nanoseconds(text: &str) -> Result<u64, String> {
    parse_integer(text, 0, i64::MAX.unsigned_abs())
}

/// Reads `--queue-size`, a power of two.
pub(super) fn parse_queue_size(text: &str) -> Result<u16, String> {
    let entries = size::parse_integer(text)
        .ok()
        .and_then(limits::queue_size_if_valid);
    entries.ok_or_else(|| format!("expected {}", limits::QUEUE_SIZE_EXPECTED))
}

/// Reads `--logical-block-size`, a power of two.
pub(super) fn parse_block_size(text: &str) -> Result<u32, String> {
    let bytes = size::parse_size(text)
        .ok()
        .and_then(limits::block_size_if_valid);
    bytes.ok_or_else(|| format!("expected {}", limits::BLOCK_SIZE_EXPECTED))
}

/// Reads `--serial`, a text that guests can show.
pub(super) fn parse_serial(text: &str) -> Result<String, String> {
    if limits::is_label(text, MAX_SERIAL_BYTES) {
        Ok(text.to_owned())
    } else {
        Err(format!(
            "expected {}",
            limits::expected_label_text(MAX_SERIAL_BYTES)
        ))
    }
}

/// Reads `on` or `off`, or another word for them.
pub(super) fn parse_switch(text: &str) -> Result<bool, String> {
    form::parse_switch(text).ok_or_else(|| format!("expected {}", form::SWITCH_EXPECTED))
}
