//! Shares of the members of a throttle group that differ in depth and in what they want.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Options, disk, reads};
use crate::error::{Error, Result};
use crate::load::{Detail, Load, Waiting, measure_together};
use crate::progress::Progress;
use crate::server::ThrottleGroup;
use crate::server_programs::ServerProgram;
use crate::stats::number;
use crate::storage::Backing;
use crate::table::Table;

/// Operations per second of the group.
const LIMIT: u32 = 10_000;
/// Requests in flight of each member.
const DEPTHS: [u16; 4] = [1, 8, 32, 128];
/// Every second member is on another iothread.
const IOTHREADS: u16 = 2;
/// The member that wants less, in the second case: a limit of its own, in front of the group's.
const MODEST: usize = 1;
const MODEST_LIMIT: u32 = 1000;
const BLOCK_BYTES: u32 = 4096;
/// The bucket is full after that.
const WARM_UP: Duration = Duration::from_secs(1);

/// One member.
pub(super) struct Row {
    case: &'static str,
    member: usize,
    /// Its fair share.
    share: f64,
    /// By server.
    iops: Vec<f64>,
}

/// A run of each server for each case.
pub(super) fn measure(options: &Options, servers: &[ServerProgram]) -> Result<Vec<Row>> {
    let progress = Progress::start("throttle, shares", 2 * servers.len());
    let mut rows = Vec::new();
    for (case, modest) in [("all want more", None), ("one wants less", Some(MODEST))] {
        let mut by_server = Vec::new();
        for server in servers {
            progress.now(format!("{case}: {}", server.name));
            let run = run(server, modest, options);
            by_server.push(run.map_err(|error| error.of(server.name))?);
            progress.step();
        }
        let wants = (0..DEPTHS.len()).map(|member| match modest {
            Some(modest) if modest == member => f64::from(MODEST_LIMIT),
            _ => f64::INFINITY,
        });
        let shares = fair_shares(f64::from(LIMIT), &wants.collect::<Vec<_>>());
        rows.extend(shares.into_iter().enumerate().map(|(member, share)| Row {
            case,
            member,
            share,
            iops: by_server.iter().map(|iops| iops[member]).collect(),
        }));
    }
    Ok(rows)
}

/// Operations per second of each member.
fn run(program: &ServerProgram, modest: Option<usize>, options: &Options) -> Result<Vec<f64>> {
    let group = |id, limit| ThrottleGroup {
        id,
        limits: format!("limits.iops-total={limit}"),
    };
    let disks = (0..DEPTHS.len()).map(|member| {
        let mut groups = vec![group("all", LIMIT)];
        if modest == Some(member) {
            groups.push(group("own", MODEST_LIMIT));
        }
        disk(Backing::Null, groups)
    });
    let mut server = program.start(IOTHREADS, &disks.collect::<Vec<_>>())?;
    let cpus = &options.place.client_cpus;
    let loads = DEPTHS.map(|depth| {
        reads(
            BLOCK_BYTES,
            depth,
            Waiting::Blocking,
            Detail::default(),
            cpus,
        )
    });
    let together = |server: &mut crate::server::Server| {
        let disks = loads.iter().enumerate();
        let disks = disks.map(|(index, load)| Ok((server.connect(index)?, load)));
        let disks = disks.collect::<Result<Vec<(_, &Load)>>>()?;
        measure_together(disks, WARM_UP, options.time, server.pid())
    };
    let measured = together(&mut server).map_err(|error: Error| server.explain(error))?;
    server.stop()?;
    Ok(measured.iter().map(|measured| measured.iops()).collect())
}

/// How a limit is divided: a member that wants less than an equal part gets what it wants, and the others have equal parts of
/// the rest.
fn fair_shares(limit: f64, wants: &[f64]) -> Vec<f64> {
    let mut shares = vec![0.0; wants.len()];
    let mut order: Vec<usize> = (0..wants.len()).collect();
    order.sort_by(|a, b| wants[*a].total_cmp(&wants[*b]));
    let mut left = limit;
    for (index, member) in order.into_iter().enumerate() {
        let equal = left / (wants.len() - index) as f64;
        shares[member] = wants[member].min(equal);
        left -= shares[member];
    }
    shares
}

/// A row for each member.
pub(super) fn table(rows: &[Row], servers: &[ServerProgram]) -> Table {
    let mut columns = vec!["members".to_owned(), "depth".into(), "share".into()];
    for server in servers {
        columns.extend([server.name.to_owned(), "off by".to_owned()]);
    }
    let title = format!(
        "Four members of a group with iops-total={LIMIT}, on {IOTHREADS} iothreads: null, 4k"
    );
    let mut table = Table::new(&title, &columns);
    for row in rows {
        let mut cells = vec![
            row.case.to_owned(),
            DEPTHS[row.member].to_string(),
            number(row.share),
        ];
        for iops in &row.iops {
            let off = (iops / row.share - 1.0) * 100.0;
            cells.extend([number(*iops), format!("{off:+.1} %")]);
        }
        table.row(cells);
    }
    table.note(format!(
        "the member that wants less has a limit of {MODEST_LIMIT} in a group of its own, in front of the other"
    ));
    table
}

/// For scripts.
pub(super) fn json(rows: &[Row], servers: &[ServerProgram]) -> Value {
    let row = |row: &Row| {
        let each = row.iops.iter().zip(servers);
        let each = each.map(|(iops, server)| json!({ "server": server.name, "iops": iops }));
        json!({
            "case": row.case,
            "depth": DEPTHS[row.member],
            "share": row.share,
            "figures": each.collect::<Value>(),
        })
    };
    rows.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_that_want_more_have_equal_parts_of_what_others_leave() {
        const MORE: f64 = f64::INFINITY;
        assert_eq!(fair_shares(100.0, &[MORE; 4]), [25.0; 4]);
        assert_eq!(
            fair_shares(100.0, &[MORE, 10.0, 28.0, MORE]),
            [31.0, 10.0, 28.0, 31.0]
        );
        assert_eq!(fair_shares(100.0, &[10.0, 20.0]), [10.0, 20.0]);
    }
}
