//! `blockplane-bench handlers`, second part: one busy queue beside thousands of idle ones.
//!
//! Every queue has a kick that the iothread watches. One disk with one queue is read from, alone
//! or beside disks whose queues are all started and idle, without and with polling; and again, where a program
//! with that patch was named, with a loop that scans all its handlers.

use std::path::Path;

use super::contest::{self, Variant};
use super::drive::Load;
use super::{ERRORS, Report, Setup, panel};
use crate::client::{Doorbells, Layout, Session, SharedMemory};
use crate::error::Result;
use crate::limits::raise_descriptor_limit;
use crate::server::{Disk, FrontEnd, Server};
use crate::stats::count;
use crate::storage::Backing;
use crate::svg::Figure;
use crate::table::Table;

/// Entries of an idle queue, which stays empty.
const IDLE_QUEUE_SIZE: u16 = 128;

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
#[group(id = "many-queues")]
pub struct Options {
    /// Idle disks beside the busy one
    #[arg(long, value_name = "N", default_value = "99", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub idle_disks: u16,
    /// Queues of each of them
    #[arg(long, value_name = "N", default_value = "32", value_parser = clap::value_parser!(u8).range(1..=255))]
    pub idle_queues: u8,
    /// Reads of 4 KiB in flight in the busy queue
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "32", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub depth: Vec<u16>,
    /// Longest polling, in nanoseconds, where it is on [default: the server's]
    #[arg(long, value_name = "NS")]
    pub poll_max_ns: Option<u64>,
    /// Where and how long.
    #[command(flatten)]
    pub setup: Setup,
}

/// A disk's front-end that does nothing; its queues stop when it goes.
struct Idle {
    _session: Session,
    _memory: SharedMemory,
    _doorbells: Doorbells,
}

/// Measures.
///
/// # Errors
/// When a server or the disk fails, or descriptors run out.
pub fn run(options: &Options) -> Result<Report> {
    let setup = &options.setup;
    // Servers inherit it.
    let _ = raise_descriptor_limit();
    let storage = setup.storage()?;
    let disk = |backing, num_queues| Disk {
        backing,
        num_queues,
        writable: false,
        front_end: FrontEnd::Blk,
        throttle_groups: Vec::new(),
    };
    let busy = disk(storage.backing.clone(), 1);
    let idle = disk(Backing::Null, u16::from(options.idle_queues));
    let beside: Vec<Disk> = std::iter::once(busy.clone())
        .chain((0..options.idle_disks).map(|_| idle.clone()))
        .collect();
    let loads = Load::grid(&[1], &[4], &options.depth, false);
    let queues = u64::from(options.idle_disks) * u64::from(options.idle_queues);
    let beside_name = format!("beside {} idle", count(queues));
    let scanning = setup.patched("scan-handlers");
    let mut parts = Vec::new();
    for polling in [false, true] {
        let poll = match (polling, options.poll_max_ns) {
            (false, _) => "poll-max-ns=0".to_owned(),
            (true, Some(ns)) => format!("poll-max-ns={ns}"),
            (true, None) => String::new(),
        };
        let variant = |name: &str, program: Option<&Path>, disks: &[Disk]| Variant {
            name: name.to_owned(),
            program: program.map(Path::to_owned),
            iothread: poll.clone(),
            disks: disks.to_vec(),
        };
        let mut variants = vec![
            variant("alone", None, std::slice::from_ref(&busy)),
            variant(&beside_name, None, &beside),
        ];
        if scanning.is_some() {
            variants.push(variant(
                &format!("{beside_name}, scanning"),
                scanning,
                &beside,
            ));
        }
        let title = if polling {
            "handlers, polling"
        } else {
            "handlers, no polling"
        };
        let outcome = contest::run(title, setup, &variants, &loads, |server, variant| {
            (1..variant.disks.len())
                .map(|index| attach(server, index, options.idle_queues))
                .collect::<Result<Vec<_>>>()
        })?;
        parts.push((if polling { "polling" } else { "no polling" }, outcome));
    }

    let mut columns = vec!["IOPS, 4k random read".to_owned()];
    columns.extend(
        parts
            .first()
            .map(|(_, outcome)| outcome.variants.clone())
            .unwrap_or_default(),
    );
    let variants = 2 + usize::from(scanning.is_some());
    let ratios = ["idle/alone", "scanning/alone"].map(str::to_owned);
    columns.extend(ratios.into_iter().take(variants - 1));
    let title = format!(
        "One busy queue beside {} disks with {} idle queues each",
        options.idle_disks, options.idle_queues
    );
    let mut table = Table::new(&title, &columns);
    for (name, outcome) in &parts {
        for (row, load) in outcome.loads.iter().enumerate() {
            let mut cells = vec![format!("{name}, qd {}", load.depth)];
            cells.extend((0..variants).map(|variant| outcome.iops_text(row, variant, 1.0)));
            cells.extend((1..variants).map(|variant| {
                let ratio = outcome.ratio(row, variant, 0);
                ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.3}x"))
            }));
            table.row(cells);
        }
    }
    table.note(ERRORS);
    if scanning.is_some() {
        table.note(
            "scanning: the loop looks at all handlers in every iteration, and at all queues when it polls",
        );
    }
    let costs: Vec<Table> = parts
        .iter()
        .map(|(name, outcome)| outcome.costs(&format!("What a read cost the server, {name}")))
        .collect();
    let rows: Vec<usize> = (0..loads.len()).collect();
    let panels = parts
        .iter()
        .map(|(name, outcome)| panel(name, "kIOPS", outcome, &rows, |cell| cell.iops, 1000.0));
    let figure = Figure {
        title: title.clone(),
        subtitle: format!("4k random reads; {}", setup.conditions(&storage)),
        x_label: "reads in flight".to_owned(),
        groups: loads.iter().map(|load| load.depth.to_string()).collect(),
        panels: panels.collect(),
    };
    let json: serde_json::Map<_, _> = parts
        .iter()
        .map(|(name, outcome)| (name.replace(' ', "_"), outcome.json()))
        .collect();
    Ok(Report {
        tables: std::iter::once(table).chain(costs).collect(),
        json: serde_json::json!({ "many_queues": json }),
        figure,
    })
}

/// Starts all queues of a disk. They share two eventfds here, and have their own descriptors of
/// them in the server: which is what it watches.
fn attach(server: &mut Server, disk: usize, queues: u8) -> Result<Idle> {
    let mut session = Session::negotiate(server.connect(disk)?)?;
    let mut layout = Layout::new();
    let places: Vec<_> = (0..queues).map(|_| layout.queue(IDLE_QUEUE_SIZE)).collect();
    let memory = SharedMemory::new(layout.len_bytes())?;
    session.share(&memory)?;
    let doorbells = Doorbells::new()?;
    for (index, place) in (0..).zip(places) {
        session.start_queue(index, &memory, place, &doorbells)?;
    }
    Ok(Idle {
        _session: session,
        _memory: memory,
        _doorbells: doorbells,
    })
}
