//! The guest: it asks, and knows what the answers may be.

mod driver;
mod order;
mod slot;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use data_plane::OnError;
use rustix::event::{EventfdFlags, eventfd};
use virtqueue::RingFeatures;
use virtqueue::testing::{Buffer, TestMemory};

use crate::model::{Ended, Model, SECTOR, WORDS, word};
use crate::plan::{Config, Kind, Then};
use crate::trace::Trace;

use order::Order;

pub use driver::Driver;
use slot::{Contents, SLOT, Slot};

/// Where guest memory begins.
const MEMORY: u64 = 0x10_0000;
/// How much of it is for rings and tables.
const RINGS: u64 = 0x6_0000;
/// Where one region of it ends and the next begins: within the data of the second slot.
const BORDER: u64 = RINGS + SLOT + 0x200 + 600;

/// What `GET_ID` is answered.
pub const SERIAL: &str = "simulated";

const OK: u8 = 0;
const UNSUPPORTED: u8 = 2;

/// A request that is not answered.
#[derive(Debug)]
pub struct Asked {
    queue: usize,
    /// What was asked for.
    pub kind: Kind,
    /// Where on the disk.
    pub sector: u64,
    /// How much.
    pub sectors: u64,
    asked: u64,
    slot: usize,
    buffers: Vec<Buffer>,
    /// The disk has failed something that may be this.
    pub may_fail: bool,
    /// It was within the disk at some time, and beyond its end at some time.
    fitted: bool,
    was_beyond: bool,
}

impl Asked {
    fn range(&self) -> (u64, u64) {
        (self.sector, self.sectors)
    }

    fn fits(&self, sectors: u64) -> bool {
        match self.kind {
            Kind::Flush | Kind::GetId | Kind::Unknown => true,
            _ => self.sector + self.sectors <= sectors,
        }
    }
}

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
    /// Some were prepared and not shown.
    prepared: bool,
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
    /// Its queues.
    pub queues: Vec<GuestQueue>,
    /// What it knows of the disk.
    pub model: Model,
    /// What is not answered.
    pub asked: BTreeMap<u32, Asked>,
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
    /// Requests that were answered.
    pub answered: u64,
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
        let memory = TestMemory::with_regions(&[(MEMORY, border), (MEMORY + border, end - border)]);
        let mut guest = Guest {
            config: config.clone(),
            memory,
            queues: Vec::new(),
            model: Model::new(usize::from(config.sectors) + 8),
            asked: BTreeMap::new(),
            slots: (0..slots as u64)
                .map(|slot| Slot::new(MEMORY + RINGS + SLOT * slot))
                .collect(),
            free: (0..slots).rev().collect(),
            next: 0,
            now: 1,
            sectors: config.sectors.into(),
            trace,
            wrong: None,
            order: Order::default(),
            answered: 0,
        };
        guest.new_queues();
        guest
    }

    /// What was chosen about the rings.
    pub fn features(&self) -> RingFeatures {
        RingFeatures {
            event_idx: self.config.event_idx,
            indirect: self.config.indirect,
            packed: self.config.packed,
        }
    }

    /// The driver begins anew: what was asked for and not answered is forgotten.
    pub fn new_queues(&mut self) {
        self.now += 1;
        for (id, asked) in std::mem::take(&mut self.asked) {
            self.model
                .ended(id, asked.range(), Ended::Unknown, self.now);
            // What was done to it is not known either.
            let _ = self.slots[asked.slot].written(&self.memory, &asked.buffers);
            self.free.push(asked.slot);
        }
        let Config {
            queues, size, base, ..
        } = self.config;
        self.queues = (0..queues)
            .map(|_| GuestQueue {
                driver: Driver::new(&self.memory, size, self.features(), base),
                names: BTreeMap::new(),
                asleep: false,
                call: new_call(),
                prepared: false,
                late_kick: false,
                kicks: 0,
            })
            .collect();
    }

    /// Prepares a request.
    pub fn ask(&mut self, queue: usize, kind: Kind, (sector, sectors): (u64, u64), shape: u32) {
        let Some(&slot) = self.free.last() else {
            return;
        };
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
        let mut asked = Asked {
            queue,
            kind,
            sector,
            sectors,
            asked: self.now,
            slot,
            buffers,
            may_fail: false,
            fitted: false,
            was_beyond: false,
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
                told(&asked)
            )
        });
        self.asked.insert(id, asked);
        let queue = &mut self.queues[queue];
        queue.names.insert(name, id);
        queue.prepared = true;
    }

    /// Shows what was prepared.
    pub fn publish(&mut self, index: usize, kicks: u8) {
        let queue = &mut self.queues[index];
        if !std::mem::take(&mut queue.prepared) {
            return;
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
            let prepared = self.queues[index].prepared;
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
                    "queue {index} gives back {name}, which it does not have"
                ));
                return;
            };
            if let Err(wrong) = self.answered(id, written) {
                self.complain(format!("#{id}: {wrong}"));
            }
        }
    }

    fn complain(&mut self, wrong: String) {
        self.trace.say(|| format!("WRONG: {wrong}"));
        self.wrong.get_or_insert(wrong);
    }

    /// A request is answered.
    fn answered(&mut self, id: u32, written: u32) -> Result<(), String> {
        let asked = self.asked.remove(&id).ok_or("was answered before")?;
        self.now += 1;
        self.answered += 1;
        let status = self.slots[asked.slot].status(&self.memory);
        let data = self.slots[asked.slot].written(&self.memory, &asked.buffers)?;
        self.free.push(asked.slot);
        let status = status.ok_or("is done, and has no status")?;
        self.trace.say(|| {
            let status = ["succeeded", "failed", "is not supported"].get(usize::from(status));
            format!("guest: #{id} {}", status.unwrap_or(&"has no known status"))
        });
        let room = data.len() + 1;
        if written as usize != room {
            return Err(format!("{written} bytes are said to be written, of {room}"));
        }
        let may_be = |is: u8| match asked.kind {
            Kind::Unknown => is == UNSUPPORTED,
            _ if is == OK => asked.fitted,
            _ => is == 1 && (asked.may_fail || asked.was_beyond),
        };
        if !may_be(status) {
            return Err(format!(
                "{} has status {status}, which it cannot have",
                told(&asked)
            ));
        }
        let succeeded = status == OK;
        // What is said to have succeeded has, unless errors are ignored.
        let [reads, writes] = self.config.policy;
        let policy = if asked.kind == Kind::Read {
            reads
        } else {
            writes
        };
        let done = succeeded && !(asked.may_fail && policy == OnError::Ignore);
        match asked.kind {
            Kind::Read if done => {
                for (sector, bytes) in (asked.sector..).zip(data.chunks(SECTOR)) {
                    self.model.check(sector, bytes, asked.asked)?;
                }
            }
            Kind::GetId if !data.starts_with(SERIAL.as_bytes()) => {
                return Err("the serial is not that of the disk".to_owned());
            }
            Kind::Write | Kind::Discard | Kind::WriteZeroes => {
                let how = match (done, self.config.write_through) {
                    (false, _) => Ended::Unknown,
                    (true, true) if asked.kind != Kind::Discard => Ended::Stable,
                    (true, _) => Ended::Done,
                };
                self.model.ended(id, asked.range(), how, self.now);
            }
            Kind::Flush if done => self.model.flushed(asked.asked),
            _ => {}
        }
        Ok(())
    }

    /// A request came to the kernel, with its first buffer at this address of ours.
    pub fn came(&mut self, host: usize) {
        // What is joined comes in the disk's order.
        if self.config.merging {
            return;
        }
        let memory = self.memory.guest_memory();
        let addr = memory.regions().iter().find_map(|region| {
            let offset = host.checked_sub(region.host.addr())? as u64;
            (offset < region.len).then(|| region.guest_addr + offset)
        });
        let slot = addr.map(|addr| (addr - MEMORY - RINGS) / SLOT);
        let asked = self
            .asked
            .iter()
            .find(|(_, asked)| Some(asked.slot as u64) == slot);
        if let Some((&id, asked)) = asked
            && let Err(wrong) = self.order.came(id, asked.queue)
        {
            self.complain(wrong);
        }
    }

    /// Another daemon takes over.
    pub fn restarted(&mut self) {
        self.order.begin();
    }

    /// The disk has failed a request like this: whatever asks for that may fail.
    pub fn failed(&mut self, read: bool, flush: bool, sectors: std::ops::Range<u64>) {
        for asked in self.asked.values_mut() {
            let (first, count) = asked.range();
            let overlaps = first < sectors.end && sectors.start < first + count;
            asked.may_fail |= match asked.kind {
                Kind::Flush => flush,
                Kind::Read => read && overlaps,
                Kind::Write | Kind::Discard | Kind::WriteZeroes => !read && overlaps,
                Kind::GetId | Kind::Unknown => false,
            };
        }
    }

    /// The disk may have this size from now on.
    pub fn resized(&mut self, sectors: u64) {
        self.sectors = sectors;
        for asked in self.asked.values_mut() {
            let fits = asked.fits(sectors);
            asked.fitted |= fits;
            asked.was_beyond |= !fits;
        }
    }

    /// What was beyond the disk's new end is gone.
    pub fn cut(&mut self, from: u64) {
        self.now += 1;
        self.model.resized(from, self.now);
    }

    /// Power has failed.
    pub fn power_failed(&mut self) {
        self.new_queues();
        self.now += 1;
        self.model.power_failed(self.now);
    }

    /// Whether the disk holds what it may hold.
    pub fn check_disk(&self, disk: &[u8]) -> Result<(), String> {
        for (sector, bytes) in (0..).zip(disk.chunks(SECTOR)) {
            self.model.check(sector, bytes, self.now + 1)?;
        }
        Ok(())
    }

    /// Nobody has written where nothing was asked for.
    pub fn check_memory(&self) -> Result<(), String> {
        self.memory.check_canaries();
        match self
            .free
            .iter()
            .find(|slot| !self.slots[**slot].is_as_left(&self.memory))
        {
            Some(slot) => Err(format!(
                "memory of a request that is over has changed (slot {slot})"
            )),
            None => Ok(()),
        }
    }

    /// Whether the device would have to be asked for more.
    pub fn shows_all(&mut self) {
        for queue in 0..self.queues.len() {
            self.publish(queue, 1);
        }
    }

    /// Which queue a request is on.
    pub fn queue_of(&self, id: u32) -> usize {
        self.asked[&id].queue
    }
}

fn data(id: u32, sector: u64, sectors: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    for sector in sector..sector + sectors {
        for index in 0..WORDS {
            bytes.extend_from_slice(&word(id, sector, index).to_le_bytes());
        }
    }
    bytes
}

/// A request, for people.
pub fn told(asked: &Asked) -> String {
    let Asked {
        kind,
        sector,
        sectors,
        ..
    } = asked;
    let end = sector + sectors;
    match kind {
        Kind::Read => format!("read of sectors {sector}..{end}"),
        Kind::Write => format!("write of sectors {sector}..{end}"),
        Kind::Discard => format!("discard of sectors {sector}..{end}"),
        Kind::WriteZeroes => format!("zeroes in sectors {sector}..{end}"),
        Kind::Flush => "flush".to_owned(),
        Kind::GetId => "question for the serial".to_owned(),
        Kind::Unknown => "request that there is not".to_owned(),
    }
}
