//! Virtqueue with an observer, which checks the chains that are admitted and returned.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use virtqueue::{Chain, ChainId, Queue, QueueObserver, RingFeatures};

use crate::driver::Driver;
use crate::guest::{Memory, WritableRanges};

/// A ring with its driver, and the device's queue with an observer.
pub struct Ring {
    pub driver: Driver,
    pub queue: Queue,
    chains: Arc<Mutex<Chains>>,
    pub is_broken: bool,
}

impl Ring {
    /// Ring number `index` of the guest.
    pub fn new(index: u64, size: u16, features: RingFeatures, memory: &Memory) -> Self {
        let mut driver = Driver::new(index, size, features);
        let regions = memory.map.regions().iter().map(|region| {
            let len = usize::try_from(region.len).expect("short");
            (region.host.addr(), len)
        });
        let chains = Chains {
            taken: Vec::new(),
            shared: Vec::new(),
            pushed: Vec::new(),
            answered: Vec::new(),
            on_push: |_| true,
            regions: regions.collect(),
        };
        let mut ring = Ring {
            queue: driver.start(memory),
            driver,
            chains: Arc::new(Mutex::new(chains)),
            is_broken: false,
        };
        ring.observe();
        ring
    }

    fn observe(&mut self) {
        let sender = Sender(self.chains.clone());
        self.queue.set_observer(Box::new(sender));
    }

    /// Goes on with another queue of the same driver. What the device has stays so.
    pub fn set_queue(&mut self, queue: Queue) {
        self.queue = queue;
        self.observe();
    }

    /// The driver resets the device, which has nothing of it.
    pub fn restart(&mut self, memory: &Memory) {
        let queue = self.driver.start(memory);
        self.set_queue(queue);
        self.chains().taken.clear();
        self.is_broken = false;
    }

    pub fn chains(&self) -> MutexGuard<'_, Chains> {
        self.chains.lock().expect("no panic")
    }
}

/// A device with its rings.
pub trait Rings {
    fn parts(&mut self) -> (&Memory, &mut [Ring]);

    /// The device does something: it writes only where it may.
    fn step(&mut self, what: impl FnOnce(&mut Self)) {
        let (memory, rings) = self.parts();
        let before = memory.snapshot();
        let mut allowed = WritableRanges::default();
        for ring in rings {
            ring.driver.allow(memory, &mut allowed);
            ring.chains().allow(&mut allowed);
        }
        what(self);
        for ring in self.parts().1 {
            let mut chains = ring.chains();
            chains.allow(&mut allowed);
            // A chain that was admitted and returned within the step has only its status, or its id.
            for (base, len) in chains.answered.drain(..) {
                allowed.add(std::ptr::with_exposed_provenance(base), len);
            }
        }
        allowed.check(&before);
    }
}

/// The chains that a device has admitted, and those that it has returned.
pub struct Chains {
    /// What the device has: names, and where it may write.
    pub taken: Vec<(ChainId, Vec<(usize, usize)>)>,
    /// Writable buffers of chains that shared an id: it is unknown which of them was returned.
    shared: Vec<(usize, usize)>,
    /// Chains that were returned since the last check, with the reported number of written bytes.
    pub pushed: Vec<(ChainId, u32)>,
    /// Writable buffers of chains that were admitted since the last check and are returned.
    pub answered: Vec<(usize, usize)>,
    /// Checks a returned chain: whether its last writable byte, if there is one, has a valid value.
    pub on_push: fn(Option<*const u8>) -> bool,
    /// All memory.
    regions: BTreeMap<usize, usize>,
}

/// The queue's end.
struct Sender(Arc<Mutex<Chains>>);

impl Chains {
    /// Where the device may write for chains that it has.
    pub fn allow(&self, allowed: &mut WritableRanges) {
        let taken = self.taken.iter().flat_map(|(_, writable)| writable);
        for (base, len) in taken.chain(&self.shared) {
            allowed.add(std::ptr::with_exposed_provenance(*base), *len);
        }
    }

    /// The number of chains in flight, and of those returned since the last check.
    pub fn count(&self) -> usize {
        self.taken.len() + self.pushed.len()
    }

    fn inside(&self, base: usize, len: usize) -> bool {
        let mut regions = self.regions.iter();
        regions.any(|(start, bytes)| base >= *start && len > 0 && base + len <= start + bytes)
    }
}

impl QueueObserver for Sender {
    fn on_popped(&mut self, id: ChainId, chain: &Chain) {
        self.0.lock().expect("no panic").popped(id, chain);
    }

    fn on_pushed(&mut self, id: ChainId, written_bytes: u32) {
        self.0.lock().expect("no panic").pushed(id, written_bytes);
    }
}

impl Chains {
    fn popped(&mut self, id: ChainId, chain: &Chain) {
        let sum = |segments: &[libc::iovec]| -> u64 {
            segments.iter().map(|one| one.iov_len as u64).sum()
        };
        assert!(chain.readable().len() + chain.writable().len() <= virtqueue::MAX_SEGMENTS);
        assert_eq!(sum(chain.readable()), chain.readable_len());
        assert_eq!(sum(chain.writable()), chain.writable_len());
        assert!(chain.readable_len() + chain.writable_len() <= u32::MAX.into());
        for segment in chain.readable().iter().chain(chain.writable()) {
            assert!(
                self.inside(segment.iov_base.addr(), segment.iov_len),
                "{segment:?}"
            );
        }
        let writable = chain.writable().iter();
        let writable = writable.map(|one| (one.iov_base.addr(), one.iov_len));
        self.taken.push((id, writable.collect()));
    }

    fn pushed(&mut self, id: ChainId, written_bytes: u32) {
        let room = |writable: &[(usize, usize)]| writable.iter().map(|(_, len)| len).sum::<usize>();
        let fits = |(taken, writable): &(ChainId, Vec<_>)| {
            *taken == id && written_bytes as usize <= room(writable)
        };
        let named = self.taken.iter().filter(|(taken, _)| *taken == id).count();
        if named > 1 {
            let same = self.taken.iter().filter(|(taken, _)| *taken == id);
            self.shared.extend(same.flat_map(|(_, writable)| writable));
        }
        // A driver may have given the same name to several: then it is most likely the one that is written in full.
        let is_full =
            |chain: &(ChainId, Vec<_>)| fits(chain) && room(&chain.1) == written_bytes as usize;
        let full = self.taken.iter().position(is_full);
        let at = full.or_else(|| self.taken.iter().position(fits));
        let (_, writable) = self
            .taken
            .remove(at.expect("a chain that it has, and has room"));
        let last = writable.last();
        let last = last.map(|(base, len)| std::ptr::with_exposed_provenance(base + len - 1));
        assert!(named > 1 || (self.on_push)(last), "it has a status");
        self.pushed.push((id, written_bytes));
        self.answered.extend(writable);
    }
}
