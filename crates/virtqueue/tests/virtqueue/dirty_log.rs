//! Tests of the dirty log: a front-end copies the guest's memory by it while a device writes to it,
//! against all that the device may do meanwhile.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use test_support::vhost_user::ring::Ring;
use virtqueue::testing::{Buffer, TestMemory};
use virtqueue::{
    Chain, ChainId, DirtyLog, InflightRegion, LOG_PAGE_BYTES, Queue, QueueDirtyLog, RingFeatures,
};

const PAGE: u64 = LOG_PAGE_BYTES;
/// Two that touch each other, the first without a whole number of pages before it, and one far behind.
const REGIONS: [(u64, u64); 3] = [
    (0x10_0000, 16 * PAGE),
    (0x11_0000, 3 * PAGE),
    (0x723_4000, 8 * PAGE),
];
const SIZE: u16 = 16;

/// Numbers that look random, the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

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

    /// The pages that are marked, which they are not any more.
    fn take(&self) -> Vec<u64> {
        let mut pages = Vec::new();
        for (index, byte) in (0..).zip(&*self.0) {
            let bits = byte.swap(0, Ordering::AcqRel);
            pages.extend(
                (0..8)
                    .filter(|bit| bits >> bit & 1 != 0)
                    .map(|bit| index * 8 + bit),
            );
        }
        pages
    }
}

/// A request in flight.
struct Held {
    id: ChainId,
    writable: Vec<libc::iovec>,
    written: bool,
}

struct Model {
    random: Random,
    memory: TestMemory,
    driver: Ring,
    queue: Queue,
    held: Vec<Held>,
    chain: Chain,
    /// While it is copied.
    log: Option<Log>,
    /// The copy, region by region.
    copy: Vec<Vec<u8>>,
}

impl Model {
    /// A guest with an idle queue; `tracked`: with an in-flight recorder.
    fn new(features: RingFeatures, tracked: bool, seed: u64) -> Model {
        let memory = TestMemory::with_regions(&REGIONS);
        let driver = Ring::new(&memory, SIZE, features);
        let (map, layout) = (memory.guest_memory(), driver.layout());
        let base = if features.packed { 0x8000 } else { 0 };
        let queue = match tracked {
            false => Queue::new(&map, layout, features, base),
            true => Queue::with_recorder(&map, layout, features, base, record(features.packed)),
        };
        Model {
            random: Random(seed),
            memory,
            driver,
            queue: queue.unwrap(),
            held: Vec::new(),
            chain: Chain::new(),
            log: None,
            copy: Vec::new(),
        }
    }

    fn all(&self) -> Vec<Vec<u8>> {
        REGIONS
            .iter()
            .map(|(addr, len)| self.memory.read(*addr, usize::try_from(*len).unwrap()))
            .collect()
    }

    /// What the guest's processors write is found by other means.
    fn as_guest(&mut self, act: impl FnOnce(&mut Model)) {
        let before = self.all();
        act(self);
        if self.log.is_none() {
            return;
        }
        let after = self.all();
        for region in 0..before.len() {
            for (at, (old, new)) in before[region].iter().zip(&after[region]).enumerate() {
                if old != new {
                    self.copy[region][at] = *new;
                }
            }
        }
    }

    /// Makes a request with random writable buffers available, if there is room.
    fn add_request(&mut self) {
        let room = self.driver.free_descriptors();
        let mut buffers = vec![Buffer::readable(REGIONS[0].0, 16)];
        for _ in 0..self.random.below(4) {
            // Behind the rings and tables, also from the first region into the second.
            let (start, end) = match self.random.below(2) {
                0 => (REGIONS[0].0 + 12 * PAGE, REGIONS[1].0 + REGIONS[1].1),
                _ => (REGIONS[2].0, REGIONS[2].0 + REGIONS[2].1),
            };
            let addr = start + self.random.below(end - start);
            let len = (1 + self.random.below(2 * PAGE)).min(end - addr);
            buffers.push(Buffer::writable(addr, u32::try_from(len).unwrap()));
        }
        if room < buffers.len() {
            return;
        }
        self.as_guest(|model| {
            model.driver.add(&buffers);
            model.driver.publish();
        });
    }

    /// Pops a request, if there is one.
    fn pop(&mut self) {
        let map = self.memory.guest_memory();
        if let Some(id) = self.queue.pop(&map, &mut self.chain).unwrap() {
            let writable = self.chain.writable().to_vec();
            self.held.push(Held {
                id,
                writable,
                written: false,
            });
        }
    }

    fn pick(&mut self) -> Option<usize> {
        let held = self.held.len() as u64;
        (held > 0).then(|| usize::try_from(self.random.below(held)).unwrap())
    }

    /// The data of a request arrives, wherever the memory is mapped by now.
    fn write(&mut self) {
        let Some(index) = self.pick() else { return };
        let byte = u8::try_from(1 + self.random.below(255)).unwrap();
        let held = &mut self.held[index];
        held.written = true;
        for segment in &held.writable {
            // SAFETY: no test here drops a mapping while a request uses it.
            unsafe {
                segment
                    .iov_base
                    .cast::<u8>()
                    .write_bytes(byte, segment.iov_len)
            };
        }
    }

    /// Pushes a request whose data was written.
    fn push(&mut self) {
        let Some(index) = self.pick() else { return };
        if self.held[index].written {
            let held = self.held.swap_remove(index);
            let written = held
                .writable
                .iter()
                .map(|segment| segment.iov_len)
                .sum::<usize>();
            self.queue.push(held.id, u32::try_from(written).unwrap());
        }
    }

    /// Starts a copy of the memory with a log, replaces the log, or ends the copy.
    fn set_dirty_log(&mut self) {
        let map = self.memory.guest_memory();
        let used = Some(self.driver.layout().used);
        let old = self.log.take();
        if old.is_some() && self.random.below(3) == 0 {
            self.queue.set_dirty_log(None, &map);
            return;
        }
        // As large as it has to be, and larger.
        let log = Log::new(DirtyLog::needed_bytes(&map) + self.random.below(2) * 5);
        let new = QueueDirtyLog {
            log: log.device(),
            used,
        };
        self.queue.set_dirty_log(Some(new), &map);
        self.log = Some(log);
        match old {
            Some(old) => self.copy_pages(&old.take()),
            None => self.copy = self.all(),
        }
    }

    /// Copies what was marked since the last time.
    fn sync(&mut self) {
        if let Some(log) = &self.log {
            let pages = log.take();
            self.copy_pages(&pages);
        }
    }

    /// Copies these pages of the memory.
    fn copy_pages(&mut self, pages: &[u64]) {
        for page in pages {
            let addr = page * PAGE;
            let in_it = |(start, len): &(u64, u64)| (*start..start + len).contains(&addr);
            let region = REGIONS
                .iter()
                .position(in_it)
                .expect("only the guest's memory is marked");
            let at = usize::try_from(addr - REGIONS[region].0).unwrap();
            let bytes = self.memory.read(addr, 4096);
            self.copy[region][at..at + 4096].copy_from_slice(&bytes);
        }
    }

    /// Stops the guest and the device for a moment: nothing may be missing.
    fn check(&mut self) {
        for held in std::mem::take(&mut self.held) {
            match held.written {
                true => self.queue.push(held.id, 1),
                false => self.held.push(held),
            }
        }
        self.queue.publish();
        self.sync();
        if self.log.is_some() {
            assert!(self.copy == self.all(), "a page was written and not marked");
        }
    }

    /// Takes random steps of guest, device and front-end, and checks the copy.
    fn run(&mut self, steps: u32) {
        // Maps that requests in flight may use.
        let mut maps = vec![self.memory.guest_memory()];
        for _ in 0..steps {
            match self.random.below(40) {
                0..8 => self.add_request(),
                8..15 => self.pop(),
                15..22 => self.write(),
                22..27 => self.push(),
                27..30 => drop(self.queue.publish()),
                30..32 => self.queue.disable_kicks(),
                32 => drop(self.queue.enable_kicks_and_recheck()),
                33..35 => self.as_guest(|model| drop(model.driver.take_used())),
                35..37 => self.sync(),
                37 => self.set_dirty_log(),
                38 => {
                    maps.push(self.memory.remap());
                    self.queue.remap(maps.last().unwrap()).unwrap();
                }
                _ => self.check(),
            }
        }
        self.check();
    }
}

fn record(packed: bool) -> InflightRegion {
    let words: Arc<[AtomicU64]> = (0..InflightRegion::len_bytes(packed, SIZE) / 8)
        .map(|_| AtomicU64::new(0))
        .collect();
    let host = NonNull::from(&words[0]).cast();
    // SAFETY: as many words as a region of this form has, all of them atomics, kept by the owner.
    unsafe { InflightRegion::new(host, packed, SIZE, Arc::new(words.clone())) }
}

/// Checks with many seeds that no written page is missing in the copy.
fn nothing_is_missing(packed: bool, tracked: bool) {
    for seed in 0..12 {
        let features = RingFeatures {
            event_idx: seed % 2 == 0,
            indirect: true,
            packed,
        };
        Model::new(features, tracked, seed).run(1500);
    }
}

#[test]
fn a_copy_of_a_guest_with_a_split_queue_misses_nothing() {
    nothing_is_missing(false, false);
}

#[test]
fn a_copy_of_a_guest_with_a_packed_queue_misses_nothing() {
    nothing_is_missing(true, false);
}

#[test]
fn a_copy_of_a_guest_with_a_recorded_split_queue_misses_nothing() {
    nothing_is_missing(false, true);
}

#[test]
fn a_copy_of_a_guest_with_a_recorded_packed_queue_misses_nothing() {
    nothing_is_missing(true, true);
}

/// A request for one buffer in the third region, taken while there was a log or before; then it is answered.
fn pages_of_one_request(packed: bool, before: bool) -> Vec<u64> {
    pages_when_it_ends(packed, false, before, |queue, id| {
        queue.push(id, 2);
        queue.publish();
    })
}

/// The same, in a queue with an in-flight region or without, and with another end.
fn pages_when_it_ends(
    packed: bool,
    tracked: bool,
    before: bool,
    end: impl FnOnce(&mut Queue, ChainId),
) -> Vec<u64> {
    let features = RingFeatures {
        packed,
        ..RingFeatures::default()
    };
    let mut model = Model::new(features, tracked, 0);
    let map = model.memory.guest_memory();
    let buffers = [
        Buffer::readable(REGIONS[0].0 + 13 * PAGE, 16),
        Buffer::writable(REGIONS[2].0 + 2 * PAGE - 1, 2),
    ];
    model.driver.add(&buffers);
    model.driver.publish();
    if before {
        model.pop();
    }
    let log = Log::new(DirtyLog::needed_bytes(&map));
    let device = log.device();
    model.queue.set_dirty_log(
        Some(QueueDirtyLog {
            log: device,
            used: None,
        }),
        &map,
    );
    if !before {
        model.pop();
    }
    assert!(log.take().is_empty(), "nothing is written yet");
    let id = model.held[0].id;
    end(&mut model.queue, id);
    log.take()
}

/// A read that was done in part waits after an error when its queue stops, and stays in the in-flight region.
#[test]
fn what_was_read_for_a_request_that_stays_in_flight_is_marked() {
    let two = [REGIONS[2].0 / PAGE + 1, REGIONS[2].0 / PAGE + 2];
    for (packed, before) in [(false, false), (false, true), (true, false)] {
        let pages = pages_when_it_ends(packed, true, before, |queue, id| {
            queue.mark_unpushed_chains_dirty(&[id])
        });
        assert_eq!(pages, two, "{packed}, {before}");
    }
    let pages = pages_when_it_ends(true, true, true, |queue, id| {
        queue.mark_unpushed_chains_dirty(&[id])
    });
    assert!(two.iter().all(|page| pages.contains(page)), "{pages:?}");
}

#[test]
fn what_a_request_wrote_is_marked_and_no_more() {
    let two = [REGIONS[2].0 / PAGE + 1, REGIONS[2].0 / PAGE + 2];
    assert_eq!(pages_of_one_request(false, false), two);
    assert_eq!(pages_of_one_request(true, false), two);
    assert_eq!(pages_of_one_request(false, true), two);
    // It cannot be known.
    let all = REGIONS
        .iter()
        .flat_map(|(start, len)| start / PAGE..(start + len) / PAGE);
    assert_eq!(pages_of_one_request(true, true), all.collect::<Vec<_>>());
}

#[test]
fn a_ring_is_logged_where_the_front_end_says() {
    let mut model = Model::new(RingFeatures::default(), false, 0);
    let map = model.memory.guest_memory();
    let log = Log::new(DirtyLog::needed_bytes(&map));
    // Not where it is: that is the front-end's to know.
    let used = Some(REGIONS[2].0 + 5 * PAGE);
    let queue_log = QueueDirtyLog {
        log: log.device(),
        used,
    };
    model.queue.set_dirty_log(Some(queue_log), &map);
    let page = REGIONS[2].0 / PAGE + 5;
    assert_eq!(log.take(), [page], "it may have been written before");
    model.queue.disable_kicks();
    assert_eq!(log.take(), [page]);
    assert!(!model.queue.enable_kicks_and_recheck());
    assert_eq!(log.take(), [page]);
}

#[test]
fn pages_that_a_log_does_not_have_are_left_out() {
    let log = Log::new(2);
    let device = log.device();
    device.mark(14 * PAGE, 100 * PAGE);
    assert_eq!(log.take(), [14, 15]);
    device.mark(u64::MAX - 3, 4);
    device.mark(3 * PAGE, 0);
    assert!(log.take().is_empty());
    device.mark(PAGE - 1, 2);
    assert_eq!(log.take(), [0, 1]);
    device.mark(4 * PAGE, 8 * PAGE);
    assert_eq!(log.take(), (4..12).collect::<Vec<_>>());
}
