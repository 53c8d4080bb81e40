//! Tests of the dirty log: which pages are marked for the writes of a device, and when. That a front-end which copies a guest's memory by
//! it misses nothing, whatever guest and device do meanwhile, is a part of the simulator.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use test_support::vhost_user::ring::Ring;
use virtqueue::testing::{Buffer, DESC_F_WRITE, RawDescriptor, TestMemory};
use virtqueue::{
    Chain, ChainId, DirtyLog, InflightRegion, LOG_PAGE_BYTES, MAX_SEGMENTS, Queue, QueueDirtyLog,
    RingFeatures,
};

const PAGE: u64 = LOG_PAGE_BYTES;
/// Two that touch each other, the first without a whole number of pages before it, and one far behind.
const REGIONS: [(u64, u64); 3] = [
    (0x10_0000, 16 * PAGE),
    (0x11_0000, 3 * PAGE),
    (0x723_4000, 8 * PAGE),
];
const SIZE: u16 = 16;

/// The front-end's log.
#[derive(Clone)]
struct Log(Arc<[AtomicU8]>);

impl Log {
    fn new(bytes: u64) -> Log {
        Log((0..bytes).map(|_| AtomicU8::new(0)).collect())
    }

    fn device(&self) -> Arc<DirtyLog> {
        let host = NonNull::from(&self.0[0]).cast();
        // SAFETY: as many bytes as the list has, all of them atomics, kept by the owner.
        Arc::new(unsafe { DirtyLog::new(host, self.0.len() as u64, Arc::new(self.0.clone())) })
    }

    /// Makes a queue log to it, and says where its used ring is.
    fn set_for(&self, queue: &mut Queue, memory: &TestMemory, used: Option<u64>) {
        let log = self.device();
        let queue_log = QueueDirtyLog { log, used };
        queue.set_dirty_log(Some(queue_log), &memory.guest_memory());
    }

    /// The pages that are marked, which they are not any more.
    fn take(&self) -> Vec<u64> {
        let bytes = self.0.iter().map(|byte| byte.swap(0, Ordering::AcqRel));
        let bytes: Vec<u8> = bytes.collect();
        let is_marked = |page: &u64| bytes[(page / 8) as usize] >> (page % 8) & 1 != 0;
        (0..8 * bytes.len() as u64).filter(is_marked).collect()
    }
}

/// A guest with an idle queue; `recorded`: with an in-flight recorder.
fn start(packed: bool, recorded: bool) -> (TestMemory, Ring, Queue, Log) {
    let memory = TestMemory::with_regions(&REGIONS);
    let features = RingFeatures {
        packed,
        ..RingFeatures::default()
    };
    let driver = Ring::new(&memory, SIZE, features);
    let (map, layout, base) = (memory.guest_memory(), driver.layout(), driver.base());
    let queue = match recorded {
        false => Queue::new(&map, layout, features, base),
        true => Queue::with_recorder(&map, layout, features, base, record(packed)),
    };
    let log = Log::new(DirtyLog::needed_bytes(&map));
    (memory, driver, queue.unwrap(), log)
}

fn record(packed: bool) -> InflightRegion {
    let words: Arc<[AtomicU64]> = (0..InflightRegion::len_bytes(packed, SIZE) / 8)
        .map(|_| AtomicU64::new(0))
        .collect();
    let host = NonNull::from(&words[0]).cast();
    // SAFETY: as many words as a region of this form has, all of them atomics, kept by the owner.
    unsafe { InflightRegion::new(host, packed, SIZE, Arc::new(words.clone())) }
}

/// The pages that are marked when a request for two buffers ends, one of them across regions, which was taken while there was a log or
/// before. The memory map changes meanwhile.
fn pages_when_it_ends(
    (packed, recorded, before): (bool, bool, bool),
    end: impl FnOnce(&mut Queue, ChainId),
) -> Vec<u64> {
    let (memory, mut driver, mut queue, log) = start(packed, recorded);
    driver.add(&[
        Buffer::readable(REGIONS[0].0 + 13 * PAGE, 16),
        Buffer::writable(REGIONS[1].0 - 1, 2),
        Buffer::writable(REGIONS[2].0 + 2 * PAGE - 1, 2),
    ]);
    driver.publish();
    let mut chain = Chain::new();
    let mut pop = |queue: &mut Queue| queue.pop(&memory.guest_memory(), &mut chain).unwrap();
    let early = if before { pop(&mut queue) } else { None };
    log.set_for(&mut queue, &memory, None);
    let id = early.or_else(|| pop(&mut queue)).unwrap();
    assert!(log.take().is_empty(), "nothing is written yet");
    queue.remap(&memory.remap()).unwrap();
    end(&mut queue, id);
    log.take()
}

/// A read that was done in part waits after an error when its queue stops, and stays in the in-flight region.
#[test]
fn what_a_request_wrote_is_marked_and_no_more_also_if_it_stays_in_flight() {
    let border = REGIONS[1].0 / PAGE;
    let end = REGIONS[2].0 / PAGE + 1;
    let written = [border - 1, border, end, end + 1];
    let pushed = |queue: &mut Queue, id| {
        queue.push(id, 4);
        queue.publish();
    };
    let unpushed = |queue: &mut Queue, id| queue.mark_unpushed_chains_dirty(&[id]);
    for (packed, before) in [(false, false), (false, true), (true, false)] {
        for recorded in [false, true] {
            let pages = pages_when_it_ends((packed, recorded, before), pushed);
            assert_eq!(pages, written, "{packed}, {recorded}, {before}");
            let pages = pages_when_it_ends((packed, recorded, before), unpushed);
            assert_eq!(pages, written, "{packed}, {recorded}, {before}, unpushed");
        }
    }
    // What a packed queue had taken before cannot be known.
    let all = REGIONS
        .iter()
        .flat_map(|(start, len)| start / PAGE..(start + len) / PAGE);
    let pages = pages_when_it_ends((true, false, true), pushed);
    assert_eq!(pages, all.collect::<Vec<_>>());
    let pages = pages_when_it_ends((true, true, true), unpushed);
    assert!(written.iter().all(|page| pages.contains(page)), "{pages:?}");
}

/// One request stays in flight, and its head is used again and again: nothing tells which of them has ended.
#[test]
fn dirty_log_marks_all_memory_when_a_reused_head_has_had_too_many_buffers() {
    let (memory, mut driver, mut queue, log) = start(false, false);
    log.set_for(&mut queue, &memory, None);
    let (ring, map, mut chain) = (driver.split(), memory.guest_memory(), Chain::new());
    let mut ask_and_pop = |queue: &mut Queue, page| {
        let descriptor = RawDescriptor {
            addr: REGIONS[0].0 + page * PAGE,
            len: 1,
            flags: DESC_F_WRITE,
            next: 0,
        };
        ring.write_descriptor(0, descriptor);
        ring.make_available(0);
        queue.pop(&map, &mut chain).unwrap().unwrap()
    };
    ask_and_pop(&mut queue, 10);
    let mut most = 0;
    for round in 0..3 * MAX_SEGMENTS as u64 {
        let id = ask_and_pop(&mut queue, round % 10);
        queue.push(id, 1);
        queue.publish();
        let marked = log.take();
        assert!(marked.contains(&(REGIONS[0].0 / PAGE + round % 10)));
        most = marked.len();
    }
    let all: u64 = REGIONS.iter().map(|(_, len)| len).sum();
    assert_eq!(most as u64 * PAGE, all);
}

#[test]
fn a_ring_is_logged_where_the_front_end_says() {
    let (memory, _driver, mut queue, log) = start(false, false);
    // Not where it is: that is the front-end's to know.
    log.set_for(&mut queue, &memory, Some(REGIONS[2].0 + 5 * PAGE));
    let page = REGIONS[2].0 / PAGE + 5;
    assert_eq!(log.take(), [page], "it may have been written before");
    queue.disable_kicks();
    assert_eq!(log.take(), [page]);
    assert!(!queue.enable_kicks_and_recheck());
    assert_eq!(log.take(), [page]);
    // A log may be replaced, and removed.
    let second = Log::new(log.0.len() as u64);
    second.set_for(&mut queue, &memory, Some(REGIONS[2].0));
    assert_eq!(second.take(), [REGIONS[2].0 / PAGE]);
    queue.set_dirty_log(None, &memory.guest_memory());
    queue.disable_kicks();
    assert!(log.take().is_empty() && second.take().is_empty());
}

#[test]
fn pages_that_a_log_does_not_have_are_left_out() {
    let log = Log::new(2);
    let device = log.device();
    for (addr, len, marked) in [
        (14 * PAGE, 100 * PAGE, 14..16),
        (u64::MAX - 3, 4, 0..0),
        (3 * PAGE, 0, 0..0),
        (PAGE - 1, 2, 0..2),
        (4 * PAGE, 8 * PAGE, 4..12),
    ] {
        device.mark(addr, len);
        assert!(log.take().into_iter().eq(marked), "{len:#x} at {addr:#x}");
    }
}
