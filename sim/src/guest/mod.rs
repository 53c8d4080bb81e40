//! The simulated guest: sends requests, and knows their valid replies.

mod answers;
mod cache;
mod driver;
mod migration;
mod order;
mod pending_request;
mod slot;
mod tables;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use virtqueue::testing::TestMemory;
use virtqueue::{GuestMemory, RingFeatures};

use crate::dirty_sectors::DirtySectors;
use crate::migration_copy::MigrationCopy;
use crate::model::{Ended, Model, data};
use crate::plan::{Config, DriverFeatures, Kind, Then};
use crate::throttle_model::ThrottleModel;
use crate::trace::Trace;

use cache::WriteCache;
use order::Order;
use tables::Tables;

pub use driver::Driver;
pub use pending_request::{PendingRequest, describe};
use slot::{Contents, SLOT, Slot};

/// Where guest memory begins.
const MEMORY: u64 = 0x10_0000;
/// How much of it is for rings and tables.
const RINGS: u64 = 0x6_0000;
/// Where one region of it ends and the next begins: within the data of the second slot.
const BORDER: u64 = RINGS + SLOT + 0x200 + 600;
/// Slots in the region that comes and goes.
const HOTPLUG_SLOTS: usize = 4;

/// What `GET_ID` is answered.
pub const SERIAL: &str = "simulated";

/// One queue, as its driver knows it.
pub struct GuestQueue {
    /// The ring.
    pub driver: Driver,
    /// Requests by the name that the ring has for them.
    names: BTreeMap<u16, u32>,
    /// It waits for a signal.
    pub asleep: bool,
    /// To be signalled with.
    pub call: OwnedFd,
    /// Those that were prepared and not shown.
    prepared: Vec<u32>,
    /// The device knows that the queue is disabled.
    disabled: bool,
    /// A kick is on its way.
    pub late_kick: bool,
    /// Kicks that arrive at once.
    pub kicks: u8,
}

/// The guest.
pub struct Guest {
    config: Config,
    /// Its memory.
    pub memory: TestMemory,
    /// How devices see it, and saw it.
    tables: Tables,
    /// The copy of its memory during a migration.
    pub copying: Option<MigrationCopy>,
    /// Its queues.
    pub queues: Vec<GuestQueue>,
    /// What it knows of the disk.
    pub model: Model,
    /// What is not answered.
    pub asked: BTreeMap<u32, PendingRequest>,
    slots: Vec<Slot>,
    free: Vec<usize>,
    next: u32,
    now: u64,
    /// How large it may think the disk is.
    sectors: u64,
    /// What was done.
    pub trace: Trace,
    /// What must not be.
    pub wrong: Option<String>,
    order: Order,
    /// What its driver knows of the device's write cache.
    pub cache: WriteCache,
    /// Requests that were answered.
    pub answered: u64,
    /// What the daemon marks, if it does.
    pub marks: Option<DirtySectors>,
    /// What throttle groups may let pass.
    pub throttles: ThrottleModel,
}

fn new_call() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd")
}

impl Guest {
    /// A guest with new queues.
    pub fn new(config: &Config, trace: Trace) -> Self {
        let slots = config.queues * usize::from(config.size);
        let end = RINGS + SLOT * slots as u64;
        // Through data, unless that is to be as direct I/O wants it.
        let border = match config.memory_alignment {
            512 => RINGS + SLOT,
            _ => BORDER,
        };
        let hotplug = (MEMORY + end, SLOT * HOTPLUG_SLOTS as u64);
        let regions = [(MEMORY, border), (MEMORY + border, end - border), hotplug];
        let memory = TestMemory::with_regions(&regions);
        let mut guest = Guest {
            config: config.clone(),
            tables: Tables::new(&memory),
            memory,
            copying: None,
            queues: Vec::new(),
            model: Model::new(usize::from(config.sectors) + 8),
            asked: BTreeMap::new(),
            slots: (0..(slots + HOTPLUG_SLOTS) as u64)
                .map(|slot| Slot::new(MEMORY + RINGS + SLOT * slot))
                .collect(),
            free: (0..slots + HOTPLUG_SLOTS).rev().collect(),
            next: 0,
            now: 1,
            sectors: config.sectors.into(),
            trace,
            wrong: None,
            order: Order::default(),
            cache: WriteCache::new(config, config.driver),
            answered: 0,
            marks: None,
            throttles: ThrottleModel::default(),
        };
        guest.new_queues(config.base);
        guest
    }

    /// The next moment.
    pub fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    /// The name of another request, and of what that writes.
    pub fn new_id(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    /// What was chosen about the rings.
    pub fn features(&self) -> RingFeatures {
        RingFeatures {
            event_idx: self.config.event_idx,
            indirect: self.config.indirect,
            packed: self.config.packed,
        }
    }

    /// The driver begins anew: what was asked for and not answered is forgotten. Split rings begin at `base`.
    fn new_queues(&mut self, base: u16) {
        self.queues = (0..self.config.queues)
            .map(|index| {
                self.forget_requests(index);
                self.new_queue(base)
            })
            .collect();
    }

    fn new_queue(&self, base: u16) -> GuestQueue {
        let size = self.config.size;
        let driver = Driver::new(&self.memory, size, self.features(), base);
        assert!(driver.layout().used < MEMORY + RINGS, "no room for rings");
        GuestQueue {
            driver,
            names: BTreeMap::new(),
            asleep: false,
            call: new_call(),
            prepared: Vec::new(),
            disabled: false,
            late_kick: false,
            kicks: 0,
        }
    }

    /// What was asked for in a queue and not answered never will be.
    fn forget_requests(&mut self, index: usize) {
        self.now += 1;
        let asked = std::mem::take(&mut self.asked);
        let (forgotten, kept) = asked
            .into_iter()
            .partition::<BTreeMap<_, _>, _>(|(_, asked)| asked.queue == index);
        self.asked = kept;
        for (id, asked) in forgotten {
            self.throttles.forget(id);
            self.model
                .ended(id, asked.range(), Ended::Unknown, self.now);
            // What was done to it is not known either.
            let _ = self.slots[asked.slot].written(&self.memory, &asked.buffers);
            self.free.push(asked.slot);
        }
    }

    /// The device is reset, and a driver with these features begins at the rings' beginnings.
    pub fn reset(&mut self, driver: DriverFeatures) {
        self.new_queues(0);
        self.cache = WriteCache::new(&self.config, driver);
    }

    /// The same driver sets one queue up anew, from its beginning.
    pub fn reset_queue(&mut self, index: usize) {
        self.forget_requests(index);
        self.queues[index] = self.new_queue(0);
    }

    /// A queue is enabled, or was started so: the device may take all that is in it.
    pub fn enabled(&mut self, index: usize) {
        self.queues[index].disabled = false;
        for asked in self.asked.values_mut() {
            asked.off_limits &= asked.queue != index;
        }
    }

    /// The device knows that the queue is disabled: it takes nothing that is shown from now on.
    pub fn disabled(&mut self, index: usize) {
        self.queues[index].disabled = true;
    }

    /// Prepares a request.
    pub fn ask(&mut self, queue: usize, kind: Kind, (sector, sectors): (u64, u64), shape: u32) {
        let Some(&slot) = self.free.last() else {
            return;
        };
        if kind == Kind::Flush && !self.cache.driver.flush {
            return;
        }
        let id = self.next + 1;
        let data = match kind {
            Kind::Write => data(id, sector, sectors),
            _ => Vec::new(),
        };
        let contents = Contents {
            kind,
            sector,
            sectors,
            shape,
            data: &data,
            alignment: self.config.memory_alignment,
        };
        let mut buffers = self.slots[slot].fill(&self.memory, &contents);
        let driver = &mut self.queues[queue].driver;
        let indirect = self.config.indirect && shape >> 20 & 1 == 1;
        let room = driver.free();
        if room == 0 || !indirect && room < buffers.len() {
            // In as few pieces as can be, if that helps.
            buffers = self.slots[slot].fill(
                &self.memory,
                &Contents {
                    shape: 0,
                    ..contents
                },
            );
            if room < buffers.len() {
                return;
            }
        }
        let name = driver.add(&buffers, indirect && room > 0);
        self.free.pop();
        self.next = id;
        self.now += 1;
        let mut asked = PendingRequest {
            queue,
            kind,
            sector,
            sectors,
            asked: self.now,
            slot,
            buffers,
            may_fail: false,
            may_flush: !self.cache.is_on(),
            fitted: false,
            was_beyond: false,
            table: 0,
            off_limits: false,
        };
        asked.fitted = asked.fits(self.sectors);
        asked.was_beyond = !asked.fitted;
        let value = if kind == Kind::Write { id } else { 0 };
        if matches!(kind, Kind::Write | Kind::Discard | Kind::WriteZeroes) {
            let certain = kind != Kind::Discard;
            self.model
                .asked(id, value, certain, asked.range(), self.now);
        }
        self.trace.say(|| {
            let pieces = asked.buffers.len();
            format!(
                "guest: #{id} on queue {queue}: {} ({pieces} buffers)",
                describe(&asked)
            )
        });
        self.asked.insert(id, asked);
        let queue = &mut self.queues[queue];
        queue.names.insert(name, id);
        queue.prepared.push(id);
    }

    /// Shows what was prepared.
    pub fn publish(&mut self, index: usize, kicks: u8) {
        let queue = &mut self.queues[index];
        let shown = std::mem::take(&mut queue.prepared);
        if shown.is_empty() {
            return;
        }
        for id in shown {
            if let Some(asked) = self.asked.get_mut(&id) {
                asked.table = self.tables.in_force();
                asked.off_limits = queue.disabled;
                self.throttles.shown(id, asked.kind, asked.sectors);
            }
        }
        let wanted = queue.driver.publish();
        if wanted {
            match kicks {
                0 => queue.late_kick = true,
                _ => queue.kicks = kicks,
            }
        }
        self.trace.say(|| {
            let kick = match (wanted, kicks) {
                (false, _) => "no kick is wanted",
                (true, 0) => "its kick is late",
                (true, 1) => "kicks",
                (true, _) => "kicks twice",
            };
            format!("guest: shows what is new on queue {index}; {kick}")
        });
    }

    /// Whether it was signalled since this was last asked.
    fn was_signalled(&mut self, queue: usize) -> bool {
        rustix::io::read(&self.queues[queue].call, &mut [0; 8]).is_ok()
    }

    /// Looks at what is done, unless it sleeps; whether it did.
    pub fn look(&mut self, index: usize, then: Then) -> bool {
        let asleep = self.queues[index].asleep;
        if asleep && !self.was_signalled(index) {
            return false;
        }
        self.trace.say(|| {
            let why = if asleep {
                "was signalled on"
            } else {
                "looks at"
            };
            format!("guest: {why} queue {index}")
        });
        loop {
            self.take_used(index);
            let event_idx = self.config.event_idx;
            let under_way = u16::try_from(self.queues[index].names.len()).expect("few");
            let prepared = !self.queues[index].prepared.is_empty();
            let queue = &mut self.queues[index];
            let more = match then {
                Then::Polls => {
                    queue.driver.polls(event_idx);
                    queue.asleep = false;
                    return true;
                }
                Then::Sleeps => 0,
                // What was only prepared is not under way.
                Then::SleepsFor(_) if prepared => 0,
                Then::SleepsFor(more) => u16::from(more).min(under_way.saturating_sub(1)),
            };
            queue.asleep = true;
            if !queue.driver.sleeps(event_idx, more) {
                return true;
            }
        }
    }

    fn take_used(&mut self, index: usize) {
        for (name, written) in self.queues[index].driver.take_used() {
            let Some(id) = self.queues[index].names.remove(&name) else {
                self.complain(format!(
                    "queue {index} returns {name}, which is not in flight"
                ));
                return;
            };
            if let Err(wrong) = self.answered(id, written) {
                self.complain(format!("#{id}: {wrong}"));
            }
        }
    }

    /// Something must not be: the first such thing is kept.
    pub fn complain(&mut self, wrong: String) {
        self.trace.say(|| format!("WRONG: {wrong}"));
        self.wrong.get_or_insert(wrong);
    }

    /// A request came to the kernel, with its first buffer at this address of ours.
    pub fn came(&mut self, host: usize) {
        // Others are in memory of the daemon's.
        let Some((table, addr)) = self.tables.find(host) else {
            return;
        };
        let slot = addr.checked_sub(MEMORY + RINGS).map(|at| at / SLOT);
        let asked = self
            .asked
            .iter()
            .find(|(_, asked)| Some(asked.slot as u64) == slot);
        let Some((&id, asked)) = asked else {
            return;
        };
        if asked.off_limits {
            self.complain(format!(
                "#{id} is taken: its queue was disabled before it was shown, and still is"
            ));
        } else if table < asked.table {
            self.complain(format!(
                "#{id} is in an older table of the guest's memory than the one that all queues had when it was shown"
            ));
        } else if !self.config.merging
            // What is joined comes in the disk's order. One that was refused since the disk ended before it has no place among
            // those that came, should it come after all.
            && !asked.was_beyond
            && let Err(wrong) = self.order.came(id, asked.queue)
        {
            self.complain(wrong);
        }
    }

    /// Its memory has another table, which is [in force](Self::table_is_in_force) later.
    pub fn remap(&mut self) -> Arc<GuestMemory> {
        self.tables.renew()
    }

    /// The region that comes and goes is put into the next table, or taken out of it, if it has to be and can be: whether it is.
    pub fn hotplug(&mut self, present: bool) -> bool {
        let first = self.slots.len() - HOTPLUG_SLOTS;
        let unused = self.free.iter().filter(|slot| **slot >= first).count();
        let can = present || unused == HOTPLUG_SLOTS;
        // As hypervisors do it, not during a migration.
        if present == self.tables.plugged || !can || self.copying.is_some() {
            return false;
        }
        self.free.retain(|slot| *slot < first);
        self.tables.plugged = present;
        true
    }

    /// All queues that run have the youngest table.
    pub fn table_is_in_force(&mut self) {
        self.tables.is_in_force();
        let last = self.slots.len();
        let first = last - HOTPLUG_SLOTS;
        let known = |slot: usize| {
            self.free.contains(&slot) || self.asked.values().any(|asked| asked.slot == slot)
        };
        if self.tables.plugged && !(first..last).any(known) {
            // They are used next.
            self.free.extend((first..last).rev());
        }
    }

    /// Whether older tables of its memory are still in use.
    pub fn has_old_tables(&self) -> bool {
        self.tables.has_old()
    }

    /// Its requests come to the kernel in no particular order.
    pub fn is_served_by_tasks(&mut self) {
        self.order.is_lost = true;
    }

    /// Another daemon takes over.
    pub fn restarted(&mut self) {
        self.order.begin();
        self.table_is_in_force();
    }

    /// Whether the device would have to be asked for more.
    pub fn shows_all(&mut self) {
        for queue in 0..self.queues.len() {
            self.publish(queue, 1);
        }
    }
}
