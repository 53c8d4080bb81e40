//! The published results: a mechanism of a server, with and without.

use bench::Result;
use bench::client::Placement;
use bench::load::{Load, Waiting};
use bench::storage::BackingOption;
use bench::table::Table;

use crate::contest::{AccessPath, Contest, Unit, Variant};
use crate::event_loop;
use crate::idle_queues;
use crate::lsi::Bus;
use crate::scsi_load::LsiRequestOptions;
use crate::setup::Setup;

/// Loads of each size at each depth on so many queues.
fn grid(
    setup: &Setup,
    read_percent: u8,
    blocks_kib: &[u32],
    queues: &[u16],
    depths: &[u16],
    waiting: Waiting,
) -> Vec<Load> {
    let mut loads = Vec::new();
    for &queues in queues {
        for &kib in blocks_kib {
            for &depth in depths {
                loads.push(setup.load(read_percent, kib, queues, depth, waiting));
            }
        }
    }
    loads
}

/// A limit alone cannot be taken off: what an iteration takes from a queue is bounded as well. `pile-up` takes off both.
pub(crate) fn batch_limit(setup: &Setup) -> Result<Vec<Table>> {
    let limited = |name: &str, limit: u32| Variant {
        iothread: format!("aio-max-batch={limit}"),
        ..Variant::new(name)
    };
    let mut variants = vec![Variant {
        patch: Some("pile-up"),
        ..limited("pile-up", 1024)
    }];
    variants.extend([1024, 8, 16, 32, 64].map(|limit| limited(&limit.to_string(), limit)));
    let contest = Contest {
        title: "A limit on the submission batch",
        variants,
        loads: grid(
            setup,
            100,
            &[4, 16],
            &[1, 4],
            &[1, 8, 64, 128],
            Waiting::Polling,
        ),
        unit: Unit::Iops,
        ratios: &[("32", "pile-up"), ("32", "1024")],
    };
    contest.run(setup, &[BackingOption::File])
}

pub(crate) fn completions(setup: &Setup) -> Result<Vec<Table>> {
    let loads = |reads| grid(setup, reads, &[4, 64], &[8], &[1, 16], Waiting::Polling);
    let contest = Contest {
        title: "Completions read in user space",
        variants: vec![
            Variant::patched("io_getevents", "completion-syscall"),
            Variant::new("ring"),
        ],
        loads: [loads(100), loads(0)].concat(),
        unit: Unit::Megabytes,
        ratios: &[("ring", "io_getevents")],
    };
    contest.run(setup, &[BackingOption::File])
}

pub(crate) fn notify(setup: &Setup) -> Result<Vec<Table>> {
    let contest = Contest {
        title: "When the guest is signalled",
        variants: vec![
            Variant::patched("after the submission", "late-notify"),
            Variant::new("before it"),
        ],
        loads: grid(
            setup,
            100,
            &[4],
            &[1, 4],
            &[1, 8, 64, 128],
            Waiting::Blocking,
        ),
        unit: Unit::Iops,
        ratios: &[("before it", "after the submission")],
    };
    contest.run(setup, &[BackingOption::File])
}

/// The loop alone, and a busy queue beside thousands of idle ones, without polling and with it; and so with a loop that scans all
/// its handlers.
pub(crate) fn handlers(setup: &Setup) -> Result<Vec<Table>> {
    let mut tables = vec![event_loop::table(setup.repetitions)?];
    let mut variants = Vec::new();
    for (polling, iothread) in [("", "poll-max-ns=0"), (", polling", "")] {
        for (name, patch, idle_disks) in [
            ("alone", None, 0),
            ("beside idle", None, idle_queues::DISKS),
            ("scanning", Some("scan-handlers"), idle_queues::DISKS),
        ] {
            variants.push(Variant {
                patch,
                iothread: iothread.to_owned(),
                idle_disks,
                ..Variant::new(&format!("{name}{polling}"))
            });
        }
    }
    let contest = Contest {
        title: &format!(
            "One busy queue, alone and beside {} idle ones",
            u32::from(idle_queues::DISKS) * u32::from(idle_queues::QUEUES)
        ),
        variants,
        loads: grid(setup, 100, &[4], &[1], &[32], Waiting::Polling),
        unit: Unit::Iops,
        ratios: &[
            ("beside idle", "alone"),
            ("scanning", "alone"),
            ("beside idle, polling", "alone, polling"),
            ("scanning, polling", "alone, polling"),
        ],
    };
    tables.extend(contest.run(setup, &[BackingOption::File])?);
    Ok(tables)
}

/// What made old emulations slow is the driver's to switch on: a write that keeps the SCSI bus until it is done, and requests in
/// pieces, one after the other.
pub(crate) fn scsi(setup: &Setup) -> Result<Vec<Table>> {
    let lsi = |name: &str, bus, piece_bytes| Variant {
        access: AccessPath::Lsi(LsiRequestOptions { bus, piece_bytes }),
        ..Variant::new(name)
    };
    let other = |name: &str, access| Variant {
        access,
        ..Variant::new(name)
    };
    let load = |reads, kib, depth| Load {
        // A SCSI client cannot pack its responses.
        placement: Placement::Apart,
        ..setup.load(reads, kib, 1, depth, Waiting::Polling)
    };
    let contest = Contest {
        title: "An emulated SCSI adapter beside virtio",
        variants: vec![
            lsi("LSI, as of old", Bus::HeldByWrites, 4096),
            lsi("LSI, pieces", Bus::Shared, 4096),
            lsi("LSI", Bus::Shared, 0),
            other("virtio-scsi", AccessPath::VirtioScsi),
            other("virtio-blk", AccessPath::VirtioBlk),
            other("host", AccessPath::Host),
        ],
        loads: vec![
            load(0, 16, 16),
            load(100, 16, 16),
            load(0, 64, 16),
            load(100, 64, 16),
            load(100, 4, 32),
        ],
        unit: Unit::Megabytes,
        ratios: &[
            ("LSI", "LSI, as of old"),
            ("LSI", "virtio-scsi"),
            ("virtio-scsi", "virtio-blk"),
            ("virtio-blk", "host"),
        ],
    };
    let mut tables = contest.run(setup, &[BackingOption::File])?;
    for table in tables.iter_mut().step_by(2) {
        table.note(
            "as of old: a write has the SCSI bus until it is done, and requests go in pieces of 4k, one after the \
             other; pieces: writes are queued like reads",
        );
    }
    Ok(tables)
}
