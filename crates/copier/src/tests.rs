//! A copier on disks that complete requests when a test says so.

use std::sync::Arc;

use block::{
    BlockCopy, COPY_CLUSTER_BYTES, CopyExtent, DiskCall, DiskIo, Node, NodeOptions, NullOptions,
    Request,
};
use iothread::{Completion, OnError, SocketDevice};
use telemetry::queue::{QueueStats, RequestKind};

use super::{Copier, CopierControl, CopierSettings, CopierWork};

const DISK_BYTES: u64 = 64 << 20;
const MAX_CHUNK: u64 = 1 << 20;
const MS: u64 = 1_000_000;

/// What a copier has submitted and was not completed.
#[derive(Default)]
struct Submitted {
    parts: Vec<Request>,
    calls: Vec<(DiskCall, u32)>,
}

impl DiskIo for Submitted {
    fn room(&self, _: u32) -> usize {
        64
    }

    unsafe fn submit(&mut self, _: u32, request: Request) {
        self.parts.push(request);
    }

    fn submit_blocking_call(&mut self, _: u32, call: DiskCall, number: u32) {
        self.calls.push((call, number));
    }
}

struct Rig {
    copier: Copier,
    guest: Arc<QueueStats>,
    submitted: Submitted,
}

impl Rig {
    fn new() -> Self {
        let options = NullOptions {
            size: DISK_BYTES,
            read_zeroes: false,
            latency_ns: 0,
        };
        let disk = Node::open("null", false, &NodeOptions::Null(options)).unwrap();
        let copy = BlockCopy::new(
            DISK_BYTES,
            COPY_CLUSTER_BYTES,
            Arc::default(),
            CopyExtent::All,
            |_| (),
        );
        let settings = CopierSettings {
            on_source_error: OnError::Report,
            on_target_error: OnError::Report,
            max_workers: 8,
            max_chunk: MAX_CHUNK,
            clones: false,
            work: CopierWork::All,
        };
        let control = Arc::new(CopierControl::default());
        let guest = Arc::new(QueueStats::new());
        control.guests.set(vec![guest.clone()]);
        let copier = Copier::new((&disk, &disk), &copy.unwrap(), settings, &control, |_| ());
        Rig {
            copier,
            guest,
            submitted: Submitted::default(),
        }
    }

    /// A turn at this time, after so many more requests of the guest's. Searches for holes have ended by its end.
    fn turn(&mut self, now_ms: u64, requests: u64) {
        let reads = self.guest.of_kind(RequestKind::Read);
        reads.latency.add_durations(1000, requests);
        reads.ticks.add(1000 * requests);
        self.copier.run_turn(now_ms * MS);
        self.copier.submit(&mut self.submitted);
        while let Some((DiskCall::Other(call), number)) = self.submitted.calls.pop() {
            call().unwrap();
            self.complete(number.into());
            self.copier.submit(&mut self.submitted);
        }
    }

    fn complete(&mut self, token: u64) {
        let result = Ok(());
        self.copier.complete(&[Completion { token, result }]);
    }

    /// The sizes of the parts that are being copied.
    fn parts(&self) -> Vec<u64> {
        self.submitted.parts.iter().map(|part| part.len).collect()
    }
}

#[test]
fn beside_a_guest_a_rest_comes_first_and_then_one_small_part_at_a_time() {
    let mut rig = Rig::new();
    rig.turn(1000, 100);
    rig.turn(1005, 50);
    assert_eq!(rig.parts(), [0; 0], "it rests");
    rig.turn(1025, 50);
    assert_eq!(rig.parts(), [COPY_CLUSTER_BYTES]);
    rig.turn(1026, 10);
    assert_eq!(rig.parts(), [COPY_CLUSTER_BYTES], "the other one goes on");
    let copied = rig.submitted.parts.pop().unwrap();
    rig.complete(copied.token);
    rig.turn(1027, 10);
    assert_eq!(rig.parts(), [COPY_CLUSTER_BYTES]);
    assert!(rig.submitted.parts[0].offset > copied.offset);
}

#[test]
fn without_guests_as_many_parts_as_it_may_are_copied_at_once() {
    let mut rig = Rig::new();
    rig.turn(1000, 0);
    let parts = rig.parts();
    assert_eq!(parts.len(), 8);
    assert!(parts.iter().all(|bytes| *bytes > COPY_CLUSTER_BYTES));
}
