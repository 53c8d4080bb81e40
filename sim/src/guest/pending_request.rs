//! Requests of a guest.

use virtqueue::testing::Buffer;

use crate::plan::Kind;

use super::Guest;

/// A request without a completion.
#[derive(Debug)]
pub struct PendingRequest {
    pub(super) queue: usize,
    /// What was asked for.
    pub kind: Kind,
    /// Where on the disk.
    pub sector: u64,
    /// How much.
    pub sectors: u64,
    pub(super) asked: u64,
    pub(super) slot: usize,
    pub(super) buffers: Vec<Buffer>,
    /// The disk has failed something that may be this.
    pub may_fail: bool,
    /// It may be flushed behind what it does.
    pub(super) may_flush: bool,
    /// The table of guest memory that all queues had when it was shown.
    pub(super) table: u64,
    /// Its queue was disabled when it was shown, and still is: the device may not take it.
    pub(super) off_limits: bool,
    /// It was within the disk at some time, and beyond its end at some time.
    pub(super) fitted: bool,
    pub(super) was_beyond: bool,
}

impl PendingRequest {
    pub(super) fn range(&self) -> (u64, u64) {
        (self.sector, self.sectors)
    }

    pub(super) fn fits(&self, sectors: u64) -> bool {
        match self.kind {
            Kind::Flush | Kind::GetId | Kind::Unknown => true,
            _ => self.sector + self.sectors <= sectors,
        }
    }
}

impl Guest {
    /// Which queue a request is on.
    pub fn queue_of(&self, id: u32) -> usize {
        self.asked[&id].queue
    }
}

/// A request, for people.
pub fn describe(asked: &PendingRequest) -> String {
    let PendingRequest {
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
