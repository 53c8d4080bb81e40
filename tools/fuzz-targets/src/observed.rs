//! Virtqueue with an observer, which checks the chains that are admitted and returned.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use virtqueue::{Chain, ChainId, Queue, QueueObserver};

use crate::guest::{Memory, WritableRanges};

/// A queue with an observer.
pub struct ObservedQueue {
    pub queue: Queue,
    chains: Arc<Mutex<Chains>>,
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

impl ObservedQueue {
    pub fn new(queue: Queue, memory: &Memory) -> Self {
        let regions = memory.map.regions().iter();
        let chains = Chains {
            taken: Vec::new(),
            shared: Vec::new(),
            pushed: Vec::new(),
            answered: Vec::new(),
            on_push: |_| true,
            regions: regions
                .map(|region| {
                    (
                        region.host.addr(),
                        usize::try_from(region.len).expect("short"),
                    )
                })
                .collect(),
        };
        let chains = Arc::new(Mutex::new(chains));
        let mut observed = ObservedQueue { queue, chains };
        observed.observe();
        observed
    }

    fn observe(&mut self) {
        self.queue
            .set_observer(Box::new(Sender(self.chains.clone())));
    }

    /// Goes on with another queue of the same driver. What the device has stays so.
    pub fn set_queue(&mut self, queue: Queue) {
        self.queue = queue;
        self.observe();
    }

    pub fn chains(&self) -> MutexGuard<'_, Chains> {
        self.chains.lock().expect("no panic")
    }
}

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
        self.taken.push((
            id,
            writable
                .map(|one| (one.iov_base.addr(), one.iov_len))
                .collect(),
        ));
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
