//! Dirty sectors of the disk, as a copy of a disk in use tracks them.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::model::SECTOR;

/// The sectors that were written since they were last taken.
#[derive(Clone, Debug, Default)]
pub struct DirtySectors(Arc<Mutex<BTreeSet<u64>>>);

fn sectors(bytes: Range<u64>) -> Range<u64> {
    let sector = SECTOR as u64;
    bytes.start / sector..bytes.end.div_ceil(sector)
}

impl DirtySectors {
    fn unmarked(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The disk changes.
    pub fn changed(&self, bytes: Range<u64>) {
        self.unmarked().extend(sectors(bytes));
    }

    /// The daemon marks what may have changed.
    pub fn mark(&self, bytes: Range<u64>) {
        let marked = sectors(bytes);
        self.unmarked().retain(|sector| !marked.contains(sector));
    }

    /// Whether this sector has changed without a mark.
    #[must_use]
    pub fn lacks(&self, sector: u64) -> bool {
        self.unmarked().contains(&sector)
    }
}
