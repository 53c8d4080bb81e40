//! Tests of names that are used again while a request with them is in flight, and of buffers that overlap.

use std::cell::Cell;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::dirty_log::LOG_PAGE_BYTES;
use crate::store_hook::run_with_hook;
use crate::testing::{
    DESC_F_WRITE, DriverRing, PackedDriverRing, RawDescriptor, RawPackedDescriptor, TestMemory,
};
use crate::{Queue, RingFeatures};

const START: u64 = 0x10_0000;
const PAGES: u64 = LEN as u64 / LOG_PAGE_BYTES;
const LEN: u32 = 1 << 26;
/// Words of the log that have bits of the memory.
const WORDS: u64 = PAGES / 64;
const SIZE: u16 = 256;

/// The driver's ring, written without its rules.
enum RawRing {
    Split(DriverRing),
    Packed(PackedDriverRing, u16),
}

/// A guest whose queue is migrated, with its front-end's log.
struct MigratedGuest {
    memory: TestMemory,
    ring: RawRing,
    queue: Queue,
    log: Arc<[AtomicU64]>,
    chain: Chain,
}

impl MigratedGuest {
    fn new(packed: bool) -> MigratedGuest {
        let memory = TestMemory::with_regions(&[(START, LEN.into())]);
        let (ring, queue) = match packed {
            false => {
                let ring = DriverRing::new(&memory, SIZE, RingFeatures::default());
                let queue = Queue::from(ring.device_queue());
                (RawRing::Split(ring), queue)
            }
            true => {
                let features = RingFeatures {
                    packed,
                    ..RingFeatures::default()
                };
                let ring = PackedDriverRing::new(&memory, SIZE, features);
                let queue = Queue::from(ring.device_queue());
                (RawRing::Packed(ring, 0), queue)
            }
        };
        let bytes = DirtyLog::needed_bytes(&memory.guest_memory());
        let log = (0..bytes.div_ceil(8)).map(|_| AtomicU64::new(0)).collect();
        MigratedGuest {
            memory,
            ring,
            queue,
            log,
            chain: Chain::new(),
        }
    }

    /// Its front-end's log, as the device maps it.
    fn map_log(&self) -> QueueDirtyLog {
        let host = NonNull::from(&self.log[0]).cast();
        let bytes = 8 * self.log.len() as u64;
        // SAFETY: as many bytes as the list has, all of them atomics, kept by the owner.
        let log = Arc::new(unsafe { DirtyLog::new(host, bytes, Arc::new(self.log.clone())) });
        QueueDirtyLog { log, used: None }
    }

    /// Sets the log of its queue.
    fn begin_migration(&mut self) {
        let queue_log = self.map_log();
        let memory = self.memory.guest_memory();
        self.queue.set_dirty_log(Some(queue_log), &memory);
    }

    /// Makes a request with this name and one buffer available, which the device pops.
    fn make_and_pop(&mut self, id: u16, page: u64, len: u32) -> ChainId {
        let addr = START + page * LOG_PAGE_BYTES;
        match &mut self.ring {
            RawRing::Split(ring) => {
                let descriptor = RawDescriptor {
                    addr,
                    len,
                    flags: DESC_F_WRITE,
                    next: 0,
                };
                ring.write_descriptor(id, descriptor);
                ring.make_available(id);
            }
            RawRing::Packed(ring, next) => {
                let flags = DESC_F_WRITE | PackedDriverRing::available(true);
                let descriptor = RawPackedDescriptor {
                    addr,
                    len,
                    id,
                    flags,
                };
                ring.write_descriptor(*next, descriptor);
                *next += 1;
            }
        }
        let memory = self.memory.guest_memory();
        self.queue.pop(&memory, &mut self.chain).unwrap().unwrap()
    }

    fn push_and_publish(&mut self, chains: impl IntoIterator<Item = ChainId>) {
        for chain in chains {
            self.queue.push(chain, 1);
        }
        self.queue.publish();
    }

    /// The pages of its memory that are marked, which they are not any more.
    fn take_marked_pages(&self) -> Vec<u64> {
        let words = self
            .log
            .iter()
            .map(|word| u64::from_le(word.swap(0, Ordering::AcqRel)));
        let bits = words.flat_map(|word| (0..64).map(move |bit| word >> bit & 1 != 0));
        let marked = bits.enumerate().filter(|(_, is_set)| *is_set);
        let first = START / LOG_PAGE_BYTES;
        marked.map(|(page, _)| page as u64 - first).collect()
    }

    fn is_all_marked(&self) -> bool {
        self.take_marked_pages().into_iter().eq(0..PAGES)
    }
}

/// Counts the stores that other processes see.
fn count_stores(device: impl FnOnce()) -> u64 {
    let count = Rc::new(Cell::new(0));
    let counter = count.clone();
    let hook = move || counter.set(counter.get() + 1);
    run_with_hook(Box::new(hook), device).unwrap();
    count.get()
}

#[test]
fn requests_that_all_name_all_memory_mark_it_twice_at_most() {
    const REQUESTS: u16 = 64;
    let bound = 2 * (WORDS + 2) + 2 * u64::from(REQUESTS);
    for packed in [false, true] {
        let mut guest = MigratedGuest::new(packed);
        guest.begin_migration();
        let chains: Vec<ChainId> = (0..REQUESTS)
            .map(|id| guest.make_and_pop(id, 0, LEN))
            .collect();
        let stores = count_stores(|| guest.push_and_publish(chains));
        assert!(guest.is_all_marked());
        assert!(stores <= bound, "{stores} stores, packed: {packed}");
    }
}

#[test]
fn queues_of_one_log_mark_all_memory_once_together() {
    let guest = MigratedGuest::new(false);
    let (log, memory) = (guest.map_log(), guest.memory.guest_memory());
    let new_marker = || PageMarker::new(log.clone(), memory.clone());
    let mut markers: Vec<PageMarker> = (0..16).map(|_| new_marker()).collect();
    for _ in 0..3 {
        markers.iter_mut().for_each(PageMarker::require_all);
        let publish_all = || {
            markers
                .iter_mut()
                .for_each(PageMarker::mark_all_if_required)
        };
        let stores = count_stores(publish_all);
        assert!(guest.is_all_marked());
        assert!(stores <= WORDS + 2, "{stores} stores");
    }
    // What is written after another queue has marked all must be marked again; and so must other memory.
    for marker in &mut markers {
        marker.require_all();
        marker.mark_all_if_required();
        assert!(guest.is_all_marked());
    }
    markers[0].require_all();
    markers[1].require_all();
    markers[0].mark_all_if_required();
    assert!(guest.is_all_marked());
    markers[1].set_memory(guest.memory.remap());
    markers[1].mark_all_if_required();
    assert!(guest.is_all_marked());
}

#[test]
fn a_name_that_was_used_for_much_memory_marks_it_twice_at_most_per_publish() {
    const REQUESTS: u64 = 20;
    for packed in [false, true] {
        let mut guest = MigratedGuest::new(packed);
        guest.begin_migration();
        guest.make_and_pop(0, 0, 1);
        for _ in 0..REQUESTS {
            let chain = guest.make_and_pop(0, 0, LEN);
            let stores = count_stores(|| guest.push_and_publish([chain]));
            assert!(guest.is_all_marked());
            assert!(stores <= 2 * (WORDS + 2) + 8, "{stores}, packed: {packed}");
        }
    }
}

#[test]
fn a_name_keeps_no_more_buffers_than_one_chain_has() {
    let memory = TestMemory::new(1 << 16).guest_memory();
    let host = memory.host_addr_of_range(START, 1).unwrap();
    let mut buffers = WritableBuffers::default();
    for chains in 1..=2 * MAX_SEGMENTS {
        let mut chain = Chain::new();
        let mut counts = crate::chain::SegmentCounts::default();
        let segment = chain.append_segment(&mut counts, host.as_ptr(), 1, true);
        segment.and(chain.set_counts_and_check_len(counts)).unwrap();
        buffers.add(&memory, &chain);
        assert_eq!(buffers.chains, chains);
        assert_eq!(buffers.are_forgotten, chains > MAX_SEGMENTS);
        assert!(buffers.ranges.len() <= MAX_SEGMENTS);
    }
}

/// Their buffers lie in all of the memory but for the last page, the last ones in parts of a page.
#[test]
fn requests_with_buffers_of_their_own_mark_only_these() {
    let mut guest = MigratedGuest::new(false);
    guest.begin_migration();
    for round in 0..3 {
        let halves = [(0, 0, (LEN / 2)), (1, PAGES / 2, LEN / 2 - 2 * 4096)];
        let parts = (2..SIZE).map(|id| (id, PAGES - 2, 16));
        let chains: Vec<ChainId> = halves
            .into_iter()
            .chain(parts)
            .map(|(id, page, len)| guest.make_and_pop(id, page, len))
            .collect();
        guest.push_and_publish(chains);
        let marked = guest.take_marked_pages();
        assert!(marked.into_iter().eq(0..PAGES - 1), "round {round}");
    }
}

#[test]
fn all_is_marked_if_a_name_was_popped_before_the_log_was_set_and_again_after_it() {
    for packed in [false, true] {
        for older_first in [false, true] {
            let mut guest = MigratedGuest::new(packed);
            let older = guest.make_and_pop(3, 100, 1);
            guest.begin_migration();
            let newer = guest.make_and_pop(3, 200, 1);
            let order = match older_first {
                true => [older, newer],
                false => [newer, older],
            };
            for chain in order {
                guest.push_and_publish([chain]);
            }
            let what = format!("packed: {packed}, older first: {older_first}");
            assert!(guest.is_all_marked(), "{what}");
        }
    }
}

#[test]
fn a_name_that_was_free_again_before_it_was_reused_marks_only_its_buffers() {
    let mut guest = MigratedGuest::new(false);
    let older = guest.make_and_pop(3, 100, 1);
    guest.begin_migration();
    guest.push_and_publish([older]);
    assert_eq!(guest.take_marked_pages(), [100]);
    for page in 200..210 {
        let newer = guest.make_and_pop(3, page, 1);
        guest.push_and_publish([newer]);
        assert_eq!(guest.take_marked_pages(), [page]);
    }
}
