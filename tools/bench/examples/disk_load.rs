//! A load on a disk or file without a server, past the page cache, with Linux AIO; prints requests per second.
//!
//! ```text
//! disk_load PATH PATTERN BLOCK_BYTES DEPTH WARM_UP_MS TIME_MS
//! ```
//! Patterns have fio's names: `randread`, `write` and so on. `cargo xtask bench-guest` runs it in a guest, on disks
//! that differ in how the guest reaches them.

use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use bench::aio::Aio;
use bench::client::{Form, Placement};
use bench::load::{Detail, Load, Waiting, raw};

const USAGE: &str = "usage: disk_load PATH PATTERN BLOCK_BYTES DEPTH WARM_UP_MS TIME_MS";

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [path, pattern, block_bytes, depth, warm_up, time] = arguments.as_slice() else {
        return Err(USAGE.into());
    };
    let load = Load {
        pattern: pattern.parse()?,
        block_bytes: block_bytes.parse()?,
        depth: depth.parse()?,
        queues: 1,
        waiting: Waiting::Blocking,
        threads: 1,
        cpus: Vec::new(),
        detail: Detail::default(),
        span_bytes: 0,
        gives_way: false,
        recorded: false,
        placement: Placement::Packed,
        form: Form::Plain,
    };
    let milliseconds = |text: &str| text.parse().map(Duration::from_millis);
    let (warm_up, time) = (milliseconds(warm_up)?, milliseconds(time)?);
    let measured = raw::measure(Path::new(path), Aio::Native, &load, &[], warm_up, time)?;
    Ok(writeln!(std::io::stdout(), "{:.1}", measured.iops())?)
}
