//! A ring whose chains are looked at.

use std::collections::BTreeMap;

use virtqueue::{Chain, ChainId, GuestMemory, Queue, RingError, TrackedQueue, Virtqueue};

use crate::guest::{Allowed, Memory};

/// A ring whose chains are looked at when they are taken and when they are given back.
pub struct Observed {
    pub queue: Queue,
    /// What the device has: names, and where it may write.
    pub taken: Vec<(ChainId, Vec<(usize, usize)>)>,
    /// Where chains may be written whose name several had: which of them was given back cannot be told.
    shared: Vec<(usize, usize)>,
    /// What it has given back since the last look, and how much it says it has written.
    pub pushed: Vec<(ChainId, u32)>,
    /// Where chains were written that were taken since the last look, and are given back.
    pub answered: Vec<(usize, usize)>,
    /// Looks at a chain that is given back: whether its last byte that may be written, if there is one, is as it should be.
    pub on_push: fn(Option<*const u8>) -> bool,
    /// All memory.
    regions: BTreeMap<usize, usize>,
}

impl Observed {
    pub fn new(queue: Queue, memory: &Memory) -> Self {
        let regions = memory.map.regions().iter();
        Observed {
            queue,
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
        }
    }

    /// Where the device may write for chains that it has.
    pub fn allow(&self, allowed: &mut Allowed) {
        let taken = self.taken.iter().flat_map(|(_, writable)| writable);
        for (base, len) in taken.chain(&self.shared) {
            allowed.add(std::ptr::with_exposed_provenance(*base), *len);
        }
    }

    fn inside(&self, base: usize, len: usize) -> bool {
        let mut regions = self.regions.iter();
        regions.any(|(start, bytes)| base >= *start && len > 0 && base + len <= start + bytes)
    }
}

impl Virtqueue for Observed {
    fn pop(
        &mut self,
        memory: &GuestMemory,
        chain: &mut Chain,
    ) -> Result<Option<ChainId>, RingError> {
        let popped = pop(&mut self.queue, memory, chain)?;
        let Some(id) = popped else {
            return Ok(None);
        };
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
        Ok(Some(id))
    }

    fn push(&mut self, id: ChainId, written_bytes: u32) {
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
        push(&mut self.queue, id, written_bytes);
    }
}

/// Takes a chain off a ring of any form.
pub fn pop(
    queue: &mut Queue,
    memory: &GuestMemory,
    chain: &mut Chain,
) -> Result<Option<ChainId>, RingError> {
    match queue {
        Queue::Split(queue) => Virtqueue::pop(queue, memory, chain),
        Queue::Packed(queue) => Virtqueue::pop(queue, memory, chain),
        Queue::Tracked(queue) => match &mut **queue {
            TrackedQueue::Split(queue) => Virtqueue::pop(queue, memory, chain),
            TrackedQueue::Packed(queue) => Virtqueue::pop(queue, memory, chain),
            TrackedQueue::Logged(queue) => Virtqueue::pop(queue, memory, chain),
        },
    }
}

/// Gives one back.
pub fn push(queue: &mut Queue, id: ChainId, written_bytes: u32) {
    match queue {
        Queue::Split(queue) => Virtqueue::push(queue, id, written_bytes),
        Queue::Packed(queue) => Virtqueue::push(queue, id, written_bytes),
        Queue::Tracked(queue) => match &mut **queue {
            TrackedQueue::Split(queue) => Virtqueue::push(queue, id, written_bytes),
            TrackedQueue::Packed(queue) => Virtqueue::push(queue, id, written_bytes),
            TrackedQueue::Logged(queue) => Virtqueue::push(queue, id, written_bytes),
        },
    }
}
