//! Tables of guest memory: the one that devices use, and older ones as long as requests in flight need them.
//!
//! A table has all regions, or all but one, which is plugged in and out. The regions of a new table are at other host addresses, so
//! that an address of ours says which table it was found in.

use std::any::Any;
use std::sync::{Arc, Weak};

use virtqueue::GuestMemory;
use virtqueue::testing::TestMemory;

/// The region that comes and goes, by its index.
const HOTPLUG_REGION: usize = 2;

/// A region of a table, which is mapped as long as a queue or a request uses it.
#[derive(Debug)]
struct Mapped {
    /// Number of its table.
    table: u64,
    guest_addr: u64,
    host: usize,
    len: u64,
    owner: Weak<dyn Any + Send + Sync>,
}

impl Mapped {
    fn is_used(&self) -> bool {
        self.owner.strong_count() > 0
    }
}

/// The tables of a guest's memory.
#[derive(Debug)]
pub struct Tables {
    memory: TestMemory,
    mapped: Vec<Mapped>,
    /// Number of the youngest table.
    youngest: u64,
    /// All queues that run use this one or a younger one.
    in_force: u64,
    /// The region that comes and goes is in the youngest table.
    pub plugged: bool,
}

impl Tables {
    /// The first table, with all regions.
    #[must_use]
    pub fn new(memory: &TestMemory) -> Self {
        let mut tables = Tables {
            memory: memory.clone(),
            mapped: Vec::new(),
            youngest: 0,
            in_force: 0,
            plugged: true,
        };
        tables.add(&memory.guest_memory());
        tables.is_in_force();
        tables
    }

    fn add(&mut self, table: &GuestMemory) {
        self.youngest += 1;
        let number = self.youngest;
        let regions = table.regions().iter().map(|region| Mapped {
            table: number,
            guest_addr: region.guest_addr,
            host: region.host.addr(),
            len: region.len,
            owner: Arc::downgrade(&region.owner),
        });
        self.mapped.extend(regions);
    }

    /// Another table.
    pub fn renew(&mut self) -> Arc<GuestMemory> {
        let plugged = self.plugged;
        let table = self
            .memory
            .remap_regions(|region| region != HOTPLUG_REGION || plugged);
        self.mapped.retain(Mapped::is_used);
        self.add(&table);
        table
    }

    /// All queues use the youngest one for what they take from now on.
    pub fn is_in_force(&mut self) {
        self.in_force = self.youngest;
    }

    /// The oldest one that a request may be found in that is shown now.
    pub fn in_force(&self) -> u64 {
        self.in_force
    }

    /// The table that an address of ours is in, by its number, and the guest address.
    pub fn find(&self, host: usize) -> Option<(u64, u64)> {
        let mut used = self.mapped.iter().filter(|mapped| mapped.is_used());
        used.find_map(|mapped| {
            let offset = host.checked_sub(mapped.host)? as u64;
            (offset < mapped.len).then(|| (mapped.table, mapped.guest_addr + offset))
        })
    }

    /// Whether an older one is in use.
    pub fn has_old(&self) -> bool {
        let old = |mapped: &Mapped| mapped.table < self.youngest && mapped.is_used();
        self.mapped.iter().any(old)
    }
}
