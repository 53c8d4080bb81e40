//! Answers that a guest may get, and contents that disk and memory may have.

use std::collections::BTreeSet;

use iothread::OnError;

use crate::failure::Failure;
use crate::model::{Ended, SECTOR};
use crate::nodes::REWRITTEN_SECTORS;
use crate::plan::Kind;

use super::pending_request::{PendingRequest, describe};
use super::{Guest, SERIAL};

const OK: u8 = 0;
const UNSUPPORTED: u8 = 2;

impl Guest {
    /// A request is answered.
    pub(super) fn answered(&mut self, id: u32, written: u32) -> Result<(), String> {
        let asked = self.asked.remove(&id).ok_or("was answered before")?;
        if asked.off_limits {
            return Err(
                "is done: its queue was disabled before it was shown, and still is".to_owned(),
            );
        }
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
                describe(&asked)
            ));
        }
        let succeeded = status == OK;
        self.throttles.answered(id, !succeeded);
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
                let how = match (done, self.cache.writes_are_stable()) {
                    (false, _) => Ended::Unknown,
                    (true, true) if asked.kind != Kind::Discard => Ended::Stable,
                    (true, _) => Ended::Done,
                };
                self.changed(id, asked.range(), how, self.now)?;
            }
            Kind::Flush if done => self.model.flushed(asked.asked),
            _ => {}
        }
        Ok(())
    }

    /// A request has ended so that may have changed something, which is marked then.
    pub fn changed(
        &mut self,
        id: u32,
        range: (u64, u64),
        how: Ended,
        now: u64,
    ) -> Result<(), String> {
        self.model.ended(id, range, how, now);
        let (first, sectors) = range;
        let Some(marks) = self.marks.as_ref().filter(|_| how != Ended::Unknown) else {
            return Ok(());
        };
        for sector in first..first + sectors {
            // What others have under way may have changed it since, in its whole block.
            let block = sector / REWRITTEN_SECTORS * REWRITTEN_SECTORS;
            if self.model.is_changing(block..block + REWRITTEN_SECTORS) {
                continue;
            }
            if marks.lacks(sector) {
                return Err(format!("sector {sector} has changed, and is not marked"));
            }
        }
        Ok(())
    }

    /// The disk has failed something.
    pub fn failed(&mut self, failure: &Failure) {
        for asked in self.asked.values_mut() {
            // Zeroes that are to be stable are flushed behind the kernel's answer.
            let flushes =
                asked.may_flush && matches!(asked.kind, Kind::Discard | Kind::WriteZeroes);
            asked.may_fail |= flushes && failure.flush || failure.may_be(asked.kind, asked.range());
        }
        if self.config.merging && self.config.jobs {
            self.spread_to_joined_writes();
        }
    }

    /// A mirror divides long writes. If a part fails, all writes fail that were joined to the long one.
    fn spread_to_joined_writes(&mut self) {
        let ends = |asked: &PendingRequest| [asked.sector, asked.sector + asked.sectors];
        loop {
            let writes = self.asked.values();
            let failing = writes.filter(|asked| asked.kind == Kind::Write && asked.may_fail);
            let ends_of_failing: BTreeSet<u64> = failing.flat_map(ends).collect();
            let mut spread = false;
            for asked in self.asked.values_mut() {
                if asked.kind == Kind::Write
                    && !asked.may_fail
                    && ends(asked).iter().any(|end| ends_of_failing.contains(end))
                {
                    (asked.may_fail, spread) = (true, true);
                }
            }
            if !spread {
                return;
            }
        }
    }

    /// The driver sets the cache mode; true: it waits for the device, until the cache [is off](Self::cache_is_off).
    pub fn set_cache_mode(&mut self, write_back: bool) -> bool {
        let waits = self.cache.set(write_back);
        for asked in self.asked.values_mut() {
            asked.may_flush |= !self.cache.is_on();
        }
        waits
    }

    /// There is no write cache any more, and all that was done before is stable.
    pub fn cache_is_off(&mut self) {
        self.cache.is_off();
        self.now += 1;
        self.model.flushed(self.now);
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
        self.copying = None;
        self.reset(self.cache.driver);
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

    /// Checks that memory without a request was not written.
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
}
