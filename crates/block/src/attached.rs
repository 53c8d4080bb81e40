//! The disks whose queues an iothread serves, and which of its engines carries each.

use std::sync::Arc;

use engine::uring::File;

use crate::node::{Backing, FdBacking};

/// Which engine carries the requests that it can carry; the worker threads do the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrier {
    /// None: worker threads do it all.
    Workers,
    /// Linux AIO.
    Native,
    /// The ring, which knows the disk's file as this.
    Ring(File),
}

struct Attachment {
    /// Keeps the file open, and its number taken.
    _backing: Arc<Backing>,
    queues: usize,
    carrier: Carrier,
}

/// By the number of the backing.
#[derive(Default)]
pub(crate) struct Attached(Vec<Option<Attachment>>);

impl Attached {
    /// Of a disk that no queue of this iothread serves, nobody carries anything but workers.
    #[inline]
    pub fn carrier(&self, backing: &FdBacking) -> Carrier {
        match self.0.get(backing.id.index()) {
            Some(Some(attachment)) => attachment.carrier,
            _ => Carrier::Workers,
        }
    }

    /// No disk has a queue on this iothread.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }

    /// Counts one more queue; false if the disk was not known.
    pub fn add_queue(&mut self, backing: &FdBacking) -> bool {
        match self.0.get_mut(backing.id.index()) {
            Some(Some(attachment)) => {
                attachment.queues += 1;
                true
            }
            _ => false,
        }
    }

    /// The first queue of a disk.
    pub fn insert(&mut self, backing: &FdBacking, keep: Arc<Backing>, carrier: Carrier) {
        let index = backing.id.index();
        if self.0.len() <= index {
            self.0.resize_with(index + 1, || None);
        }
        self.0[index] = Some(Attachment {
            _backing: keep,
            queues: 1,
            carrier,
        });
    }

    /// Counts one queue less. If it was the last, the disk is forgotten; who carried it.
    pub fn remove_queue(&mut self, backing: &FdBacking) -> Option<Carrier> {
        let entry = self.0.get_mut(backing.id.index())?;
        let attachment = entry.as_mut()?;
        attachment.queues -= 1;
        if attachment.queues > 0 {
            return None;
        }
        entry.take().map(|attachment| attachment.carrier)
    }
}
