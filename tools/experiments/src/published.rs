//! The published results: a mechanism of a server, with and without.

use bench::load::Waiting::{Blocking, Polling};

use crate::Setup;
use crate::contest::{AccessPath, Contest, Variant};
use crate::idle_queues;
use crate::lsi::Bus;
use crate::scsi_load::LsiRequestOptions;

const SIZES: [&[u16]; 2] = [&[1, 4], &[1, 8, 64, 128]];

/// A limit alone cannot be taken off: what an iteration takes from a queue is bounded as well. `pile-up` takes off both.
pub(crate) fn batch_limit(setup: &Setup) -> Contest {
    let limited = |name: &str, limit: u32| Variant {
        iothread: format!("aio-max-batch={limit}"),
        ..Variant::new(name)
    };
    let mut variants = vec![Variant {
        patch: Some("pile-up"),
        ..limited("pile-up", 1024)
    }];
    variants.extend([1024, 8, 16, 32, 64].map(|limit| limited(&limit.to_string(), limit)));
    let [queues, depths] = SIZES;
    Contest {
        title: "A limit on the submission batch",
        variants,
        loads: setup.loads(100, &[4, 16], queues, depths, Polling),
        in_megabytes: false,
        ratios: &[("32", "pile-up"), ("32", "1024")],
        notes: &[],
    }
}

pub(crate) fn completions(setup: &Setup) -> Contest {
    let loads = |reads| setup.loads(reads, &[4, 64], &[8], &[1, 16], Polling);
    Contest {
        title: "Completions read in user space",
        variants: vec![
            Variant::patched("io_getevents", "completion-syscall"),
            Variant::new("ring"),
        ],
        loads: [loads(100), loads(0)].concat(),
        in_megabytes: true,
        ratios: &[("ring", "io_getevents")],
        notes: &[],
    }
}

pub(crate) fn notify(setup: &Setup) -> Contest {
    let [queues, depths] = SIZES;
    Contest {
        title: "When the guest is signalled",
        variants: vec![
            Variant::patched("after the submission", "late-notify"),
            Variant::new("before it"),
        ],
        loads: setup.loads(100, &[4], queues, depths, Blocking),
        in_megabytes: false,
        ratios: &[("before it", "after the submission")],
        notes: &[],
    }
}

/// A busy queue beside thousands of idle ones, without polling and with it; and so with a loop that scans all its handlers.
pub(crate) fn handlers(setup: &Setup) -> Contest {
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
    Contest {
        title: "One busy queue, alone and beside 3,168 idle ones",
        variants,
        loads: setup.loads(100, &[4], &[1], &[32], Polling),
        in_megabytes: false,
        ratios: &[
            ("beside idle", "alone"),
            ("scanning", "alone"),
            ("beside idle, polling", "alone, polling"),
            ("scanning, polling", "alone, polling"),
        ],
        notes: &[],
    }
}

/// What made old emulations slow is the driver's to switch on: a write that keeps the SCSI bus until it is done, and requests in
/// pieces, one after the other.
pub(crate) fn scsi(setup: &Setup) -> Contest {
    let variant = |name: &str, access| Variant {
        access,
        ..Variant::new(name)
    };
    let lsi = |name, bus, piece_bytes| {
        variant(
            name,
            AccessPath::Lsi(LsiRequestOptions { bus, piece_bytes }),
        )
    };
    let loads = |reads, kib, depth| setup.loads(reads, &[kib], &[1], &[depth], Polling);
    Contest {
        title: "An emulated SCSI adapter beside virtio",
        variants: vec![
            lsi("LSI, as of old", Bus::HeldByWrites, 4096),
            lsi("LSI, pieces", Bus::Shared, 4096),
            lsi("LSI", Bus::Shared, 0),
            variant("virtio-scsi", AccessPath::VirtioScsi),
            variant("virtio-blk", AccessPath::VirtioBlk),
            variant("host", AccessPath::Host),
        ],
        loads: [
            loads(0, 16, 16),
            loads(100, 16, 16),
            loads(0, 64, 16),
            loads(100, 64, 16),
            loads(100, 4, 32),
        ]
        .concat(),
        in_megabytes: true,
        ratios: &[
            ("LSI", "LSI, as of old"),
            ("LSI", "virtio-scsi"),
            ("virtio-scsi", "virtio-blk"),
            ("virtio-blk", "host"),
        ],
        notes: &[
            "as of old: a write has the SCSI bus until it is done, and requests go in pieces of 4k, one after the other; pieces: \
             writes are queued like reads",
        ],
    }
}
