//! Requests of a host adapter that an engine has: what they count as, and what tracers see of them.
//!
//! The adapter has no queues. It is counted as one, which a request's slot names a request of.

use std::sync::Arc;

use block::{Op, Request, SECTOR_BYTES, token};
use telemetry::counters::{Clock, Scale};
use telemetry::queue::{Kind, QueueName, QueueStats, Tally};
use telemetry::tracepoints::{request_complete, request_submit};

/// A request that an engine has.
#[derive(Clone, Copy)]
pub(crate) struct Asked {
    pub disk: usize,
    pub kind: Kind,
    op: Op,
    bytes: u64,
    /// In ticks.
    since: u64,
}

/// All of them.
pub(crate) struct Requests {
    name: QueueName,
    queue: Arc<QueueStats>,
    /// ExportStats of each disk.
    disks: Vec<Arc<QueueStats>>,
    /// By slot.
    asked: Vec<Option<Asked>>,
    tally: Tally,
    clock: Clock,
}

impl Requests {
    pub fn new(export: &str, queue: Arc<QueueStats>, disks: Vec<Arc<QueueStats>>) -> Self {
        Requests {
            name: QueueName::new(export, 0),
            queue,
            disks,
            asked: Vec::new(),
            tally: Tally::default(),
            clock: Clock::new(),
        }
    }

    /// In ticks.
    pub fn now(&self) -> u64 {
        self.clock.now()
    }

    /// One goes to its disk, `now` in ticks.
    pub fn submitted(&mut self, disk: u32, request: &Request, now: u64) {
        let (disk, slot) = (disk as usize, token::number(request.token));
        let kind = request.op.kind();
        let stats = &self.disks[disk];
        stats.in_flight().add(1);
        if kind == Kind::Write {
            let end = request.offset + request.len;
            self.queue.highest_offset().raise(end);
            stats.highest_offset().raise(end);
        }
        let index = slot as usize;
        if self.asked.len() <= index {
            self.asked.resize(index + 1, None);
        }
        self.asked[index] = Some(Asked {
            disk,
            kind,
            op: request.op,
            bytes: request.len,
            since: now,
        });
        if request_submit::enabled() {
            request_submit::fire(
                self.name.export(),
                self.name.index().into(),
                slot.into(),
                request.op.request_type().into(),
                request.offset / SECTOR_BYTES,
                request.len,
            );
        }
    }

    /// One is done, which is returned; `None`: nobody asked for it.
    pub fn completed(&mut self, slot: u32, succeeded: bool) -> Option<Asked> {
        let asked = self.asked.get_mut(slot as usize)?.take()?;
        let Asked { kind, bytes, .. } = asked;
        let now = self.clock.now();
        let ticks = now.saturating_sub(asked.since);
        let disk = &self.disks[asked.disk];
        disk.in_flight()
            .set(disk.in_flight().get().saturating_sub(1));
        if succeeded {
            self.tally.add(&self.queue, kind, 1, bytes, ticks);
            disk.of(kind).succeeded(1, bytes, ticks);
            self.queue.last_ticks().set(now);
            disk.last_ticks().set(now);
        } else {
            self.queue.of(kind).failed.add(1);
            disk.of(kind).failed.add(1);
        }
        if request_complete::enabled() {
            request_complete::fire(
                self.name.export(),
                self.name.index().into(),
                slot.into(),
                asked.op.request_type().into(),
                telemetry::tracepoints::status(succeeded),
                Scale::new().to_ns(ticks),
            );
        }
        Some(asked)
    }
}
