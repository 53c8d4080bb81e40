//! The time between completions under a limit, and what a request that waits costs the server.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Limit, Options, disk, reads};
use crate::error::{Error, Result};
use crate::load::{Detail, Measured, Waiting, measure as measure_load};
use crate::progress::Progress;
use crate::server::ThrottleGroup;
use crate::server_programs::ServerProgram;
use crate::stats::number;
use crate::storage::Backing;
use crate::table::Table;

const LIMIT: &str = "iops-total=10000";
const DEPTH: u16 = 32;
const BLOCK_BYTES: u32 = 4096;
/// The bucket is full after that.
const WARM_UP: Duration = Duration::from_secs(1);

/// What is shown of the gaps.
const PERCENTILES: [(&str, f64); 4] = [
    ("p50", 50.0),
    ("p99", 99.0),
    ("p99.9", 99.9),
    ("max", 100.0),
];

/// One server.
pub(super) struct Row {
    server: &'static str,
    measured: Measured,
}

/// A run of each server.
pub(super) fn measure(options: &Options, servers: &[ServerProgram]) -> Result<Vec<Row>> {
    let progress = Progress::start("throttle, spacing", servers.len());
    let limit: Limit = LIMIT.parse().map_err(Error::Unsuitable)?;
    let detail = Detail {
        gaps: true,
        ..Detail::default()
    };
    let cpus = &options.place.client_cpus;
    let load = reads(BLOCK_BYTES, DEPTH, Waiting::Polling, detail, cpus);
    let row = |program: &ServerProgram| {
        progress.now(program.name);
        let group = ThrottleGroup {
            id: "limits",
            limits: limit.options(),
        };
        let mut server = program.start(1, &[disk(Backing::Null, vec![group])])?;
        let stream = server.connect(0)?;
        let measured = measure_load(stream, &load, WARM_UP, options.time, Some(server.pid()));
        let measured = measured.map_err(|error| server.explain(error))?;
        server.stop()?;
        progress.step();
        Ok(Row {
            server: program.name,
            measured,
        })
    };
    let row = |program: &ServerProgram| row(program).map_err(|error: Error| error.of(program.name));
    servers.iter().map(row).collect()
}

impl Row {
    /// So many percent of the completions came this soon after the one before, in microseconds.
    fn gap_us(&self, percent: f64) -> f64 {
        let gaps = self.measured.threads.first();
        let gaps = gaps.and_then(|tally| tally.gaps.as_ref());
        gaps.map_or(f64::NAN, |gaps| {
            gaps.value_at_percentile(percent) as f64 / 1e3
        })
    }

    fn cpu_us(&self) -> f64 {
        self.measured.server_cpu_ns().unwrap_or(f64::NAN) / 1e3
    }
}

/// A row for each server.
pub(super) fn table(rows: &[Row]) -> Table {
    let mut columns = vec!["server".to_owned(), "IOPS".into()];
    columns.extend(PERCENTILES.map(|(name, _)| format!("{name} us")));
    columns.push("CPU us/IO".to_owned());
    let title = format!("The time between completions: {LIMIT}, null, 4k, depth {DEPTH}");
    let mut table = Table::new(&title, &columns);
    for row in rows {
        let mut cells = vec![row.server.to_owned(), number(row.measured.iops())];
        cells.extend(PERCENTILES.map(|(_, percent)| number(row.gap_us(percent))));
        cells.push(number(row.cpu_us()));
        table.row(cells);
    }
    table.note("0 us: the client, which polls, found them together");
    table
}

/// For scripts.
pub(super) fn json(rows: &[Row]) -> Value {
    let row = |row: &Row| {
        json!({
            "server": row.server,
            "limit": LIMIT,
            "depth": DEPTH,
            "block_bytes": BLOCK_BYTES,
            "iops": row.measured.iops(),
            "gap_p50_us": row.gap_us(50.0),
            "gap_p99_us": row.gap_us(99.0),
            "gap_p99_9_us": row.gap_us(99.9),
            "gap_max_us": row.gap_us(100.0),
            "cpu_us_per_io": row.cpu_us(),
        })
    };
    rows.iter().map(row).collect()
}
