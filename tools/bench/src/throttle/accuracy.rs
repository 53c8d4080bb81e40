//! Accuracy of limits: requests that pass from the first one on, beside what the bucket gives in theory.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Limit, Options, disk, reads};
use crate::aio::Aio;
use crate::error::Result;
use crate::load::{Detail, Load, Tally, Waiting, measure as measure_load};
use crate::progress::Progress;
use crate::server::ThrottleGroup;
use crate::server_programs::ServerProgram;
use crate::stats::number;
use crate::storage::Backing;
use crate::table::Table;
use crate::units;

/// How often what has passed is counted: finer than what is to be seen.
const MARK_INTERVAL: Duration = Duration::from_millis(1);
/// Load after the last count.
const REST: Duration = Duration::from_millis(20);

/// One load and one time.
pub(super) struct Row {
    backing: String,
    limit: Limit,
    block_bytes: u32,
    depth: u16,
    after: Duration,
    /// Per second on average.
    theory: f64,
    /// By server.
    servers: Vec<Passed>,
}

/// What one server let pass.
struct Passed {
    /// Per second on average.
    iops: f64,
    /// Percent above the theory.
    deviation: f64,
}

/// A run of each server for each load.
pub(super) fn measure(options: &Options, servers: &[ServerProgram]) -> Result<Vec<Row>> {
    let loads = options.limit.len() * options.bs.len() * options.depth.len();
    let steps = options.backing.len() * loads * servers.len();
    let progress = Progress::start("throttle, accuracy", steps);
    let mut rows = Vec::new();
    for wanted in &options.backing {
        progress.now(format!("making the disk: {wanted}"));
        let storage = wanted.storage(options.place.room(), Some(Aio::Native))?;
        for limit in &options.limit {
            for &bs in &options.bs {
                for &depth in &options.depth {
                    let detail = Detail {
                        mark_interval: Some(MARK_INTERVAL),
                        ..Detail::default()
                    };
                    let cpus = &options.place.client_cpus;
                    let load = reads(bs, depth, Waiting::Polling, detail, cpus);
                    let mut tallies = Vec::new();
                    for server in servers {
                        let block = units::shown_bytes(bs.into());
                        progress.now(format!(
                            "{limit}, {block} at depth {depth}: {}",
                            server.name
                        ));
                        let run = run(server, &storage.backing, limit, &load, &options.after);
                        tallies.push(run.map_err(|error| error.of(server.name))?);
                        progress.step();
                    }
                    rows.extend(options.after.iter().map(|&after| {
                        Row {
                            backing: wanted.to_string(),
                            limit: limit.clone(),
                            block_bytes: bs,
                            depth,
                            after,
                            theory: limit.requests_after(after.as_secs_f64(), bs)
                                / after.as_secs_f64(),
                            servers: tallies
                                .iter()
                                .map(|tally| passed(tally, limit, bs, after))
                                .collect(),
                        }
                    }));
                }
            }
        }
    }
    Ok(rows)
}

fn run(
    server: &ServerProgram,
    backing: &Backing,
    limit: &Limit,
    load: &Load,
    after: &[Duration],
) -> Result<Tally> {
    let group = ThrottleGroup {
        id: "limits",
        limits: limit.options(),
    };
    let mut server = server.start(1, &[disk(backing.clone(), vec![group])])?;
    let stream = server.connect(0)?;
    let time = after.iter().max().copied().unwrap_or_default() + REST;
    let pid = Some(server.pid());
    let measured = measure_load(stream, load, Duration::ZERO, time, pid);
    let measured = measured.map_err(|error| server.explain(error))?;
    server.stop()?;
    Ok(measured.threads.into_iter().next().unwrap_or_default())
}

/// What had passed at the last mark before a time, and its deviation from the theory for the time of that mark.
fn passed(tally: &Tally, limit: &Limit, block_bytes: u32, after: Duration) -> Passed {
    let start_ns = tally.course.first().map_or(0, |mark| mark.at_ns);
    let until_ns = start_ns.saturating_add(u64::try_from(after.as_nanos()).unwrap_or(u64::MAX));
    let marks = tally.course.iter();
    let Some(last) = marks.take_while(|mark| mark.at_ns <= until_ns).last() else {
        return Passed {
            iops: 0.0,
            deviation: -100.0,
        };
    };
    let seconds = (last.at_ns - start_ns) as f64 / 1e9;
    let completed = last.completed as f64;
    let theory = limit.requests_after(seconds, block_bytes);
    Passed {
        iops: completed / seconds.max(f64::MIN_POSITIVE),
        deviation: (completed / theory - 1.0) * 100.0,
    }
}

/// A row for each load and time.
pub(super) fn table(rows: &[Row], servers: &[ServerProgram]) -> Table {
    let mut columns = vec!["limit, load".to_owned(), "after".into(), "theory/s".into()];
    for server in servers {
        columns.extend([format!("{}/s", server.name), "off by".to_owned()]);
    }
    let mut table = Table::new("What limits let pass", &columns);
    for row in rows {
        let Row {
            backing,
            limit,
            depth,
            ..
        } = row;
        let block = units::shown_bytes(row.block_bytes.into());
        let mut cells = vec![
            format!("{limit}: {backing}, {block}, depth {depth}"),
            format!("{} s", row.after.as_secs_f64()),
            number(row.theory),
        ];
        for passed in &row.servers {
            cells.extend([number(passed.iops), format!("{:+.2} %", passed.deviation)]);
        }
        table.row(cells);
    }
    table.note("requests per second since the first one, on average: the rate, and what the empty bucket holds");
    table
}

/// For scripts.
pub(super) fn json(rows: &[Row], servers: &[ServerProgram]) -> Value {
    let figures = |row: &Row| {
        let each = row.servers.iter().zip(servers);
        each.map(|(passed, server)| {
            json!({
                "server": server.name,
                "iops": passed.iops,
                "deviation_percent": passed.deviation,
            })
        })
        .collect::<Value>()
    };
    let row = |row: &Row| {
        json!({
            "backing": row.backing,
            "limit": row.limit.to_string(),
            "block_bytes": row.block_bytes,
            "depth": row.depth,
            "seconds": row.after.as_secs_f64(),
            "theory_iops": row.theory,
            "figures": figures(row),
        })
    };
    rows.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Mark;

    #[test]
    fn deviation_is_that_of_the_time_of_the_last_mark() {
        let mark = |ms: u64, completed| Mark {
            at_ns: 7_000_000_000 + ms * 1_000_000,
            completed,
        };
        let tally = Tally {
            course: vec![mark(0, 0), mark(500, 660), mark(1001, 5000)],
            ..Tally::default()
        };
        let limit = "iops-total=1000".parse().unwrap();
        let passed = passed(&tally, &limit, 4096, Duration::from_secs(1));
        assert_eq!(passed.iops, 1320.0);
        assert!((passed.deviation - 10.0).abs() < 1e-9);
    }
}
