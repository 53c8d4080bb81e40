//! Events of a run.

use block::ThrottleLimits;
use iothread::OnError;

use super::Kind;
use crate::dirty_sectors::BitmapSwitch;

/// The next step of the guest after it has checked for completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// It looks again by itself.
    Polls,
    /// It wants to be signalled for the next.
    Sleeps,
    /// It wants to be signalled when so many more are done, if the ring can say that.
    SleepsFor(u8),
}

/// The way in which the kernel completes a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// All of it.
    Whole,
    /// A part, in words.
    Short(u16),
    /// Not at all.
    Error,
    /// Not at all: the disk is full.
    NoSpace,
}

/// Features of a virtio-blk driver that decide when a write has to be stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverFeatures {
    /// `VIRTIO_BLK_F_FLUSH`. Without it the driver cannot flush: each write is stable when it completes.
    pub flush: bool,
    /// `VIRTIO_BLK_F_CONFIG_WCE`: the driver may turn the write cache on and off.
    pub config_wce: bool,
}

/// How a live upgrade ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handover {
    /// Another process goes on with the queues.
    Done,
    /// It is refused while the queues are disabled: they are enabled again.
    Refused,
    /// It fails when the queues have stopped: they start again in the same process.
    Failed,
}

/// Which node takes the place of the one that is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// Another opening of the disk.
    Reopened {
        /// With a node that rewrites blocks in front of it.
        rewrites: bool,
    },
    /// The same opening.
    Filtered {
        /// With a filter in front of it that passes on all that comes.
        present: bool,
    },
    /// The same opening, if there are throttle groups.
    Throttled {
        /// With new throttled nodes in front of it.
        present: bool,
    },
    /// The same nodes, if there may be bitmaps.
    Recorded {
        /// By routes that record, so that a bitmap can begin.
        present: bool,
    },
}

/// The reason why a front-end disconnects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DisconnectReason {
    /// It will come back.
    Disconnect,
    /// It is gone without a word, and so will it come back, if there is a record of what was in flight; else as `Disconnect`.
    Vanish,
    /// The guest resets its device, and a driver with these features goes on (`RESET_DEVICE`).
    Reset(DriverFeatures),
    /// It goes on with another daemon, and in the copy of its memory if there is one.
    Migrate,
}

/// A backup that begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backup {
    /// It uses the bitmap that records, if one does.
    pub bitmap: bool,
    /// With that it copies what is dirty, if the target has the rest. Without, it is [pulled](Self::is_pulled).
    pub incremental: bool,
    /// What it has copied becomes clean also if it fails.
    pub always: bool,
    /// Errors of both disks.
    pub on_error: OnError,
    /// Parts that are copied at once.
    pub workers: u8,
}

impl Backup {
    /// It copies what the guest changes, and a client copies the rest from the disk as of the moment, to the same target.
    #[must_use]
    pub fn is_pulled(&self) -> bool {
        self.incremental && !self.bitmap
    }
}

/// A mirror that begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mirror {
    /// The guest goes over to the target; else that is a copy as of the end.
    pub switches_over: bool,
    /// Writes wait for the target from the beginning.
    pub blocks_writes: bool,
    /// Errors of both disks.
    pub on_error: OnError,
    /// Parts that are copied at once.
    pub workers: u8,
}

/// What happens to a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobEvent {
    /// A backup begins, if there is no job.
    Backup(Backup),
    /// A mirror begins, if there is no job, and the disk has no filters and bitmaps.
    Mirror(Mirror),
    /// A mirror that is ready is to end.
    Complete,
    /// The job is paused.
    Pause,
    /// It goes on.
    Resume,
    /// It is cancelled.
    Cancel,
    /// The machine works, and nothing else happens, until the job has ended.
    Finish,
}

/// One thing that happens.
#[derive(Clone, Debug)]
pub enum Event {
    /// The guest prepares a request. `shape` says how it lies in memory.
    Ask {
        /// Where.
        queue: u8,
        /// What.
        kind: Kind,
        /// Where on the disk.
        sector: u16,
        /// How much.
        sectors: u8,
        /// Bits.
        shape: u32,
    },
    /// The client that has no ring sends a request.
    Send {
        /// A read, a write or a flush.
        kind: Kind,
        /// Where on the disk.
        sector: u16,
        /// How much.
        sectors: u8,
        /// A write is stable when it is done.
        stable: bool,
    },
    /// Its connection ends.
    HangUp,
    /// The guest shows all that it has prepared, and kicks if it is to: so many times at once (the first of them may be late).
    Publish {
        /// Where.
        queue: u8,
        /// 0: later.
        kicks: u8,
    },
    /// Late kicks arrive.
    Kicks,
    /// It checks for completions, unless it sleeps without a signal.
    Look {
        /// Where.
        queue: u8,
        /// And then.
        then: Then,
    },
    /// An iothread runs so many iterations, if there is a reason.
    Run {
        /// Which.
        iothread: u8,
        /// How many.
        times: u8,
    },
    /// It runs once; this happens before the store with that number.
    Between {
        /// Which iothread.
        iothread: u8,
        /// Which store.
        store: u8,
        /// What the guest does, or that another iothread runs.
        event: Box<Event>,
    },
    /// The process is killed before that store of an iothread, or at the end of the iterations.
    Kill {
        /// Which iothread.
        iothread: u8,
        /// Which store.
        store: u16,
        /// What becomes of what the kernel has.
        salt: u32,
    },
    /// The kernel ends one of the requests that it has.
    Complete {
        /// Which.
        pick: u16,
        /// How.
        how: End,
    },
    /// A worker ends one of its jobs.
    Work {
        /// Which.
        pick: u16,
        /// It fails.
        fails: bool,
    },
    /// The next submission takes no more than that; 0: it is to be tried later.
    Busy {
        /// How many.
        takes: u8,
    },
    /// Power fails.
    PowerFail {
        /// What survives.
        salt: u32,
    },
    /// The queues stop, and wait for what is in flight.
    DisconnectReason(DisconnectReason),
    /// The front-end shares a log of what is written, and copies the guest's memory from now on; or it shares another log.
    Log,
    /// It copies some of the pages that were written, or not copied yet.
    Copy {
        /// How many at most.
        pages: u16,
        /// With which it begins.
        pick: u16,
    },
    /// It gives that up.
    LogNoMore,
    /// A daemon is started if there is none, and the queues with it.
    Connect,
    /// The guest's memory is mapped anew.
    Remap,
    /// A region is added to the guest's memory, or removed if the guest has nothing in it.
    Hotplug {
        /// Added.
        present: bool,
    },
    /// Another eventfd for signals.
    SetCall {
        /// Where.
        queue: u8,
    },
    /// Another eventfd for kicks.
    SetKick {
        /// Where.
        queue: u8,
    },
    /// The queue is enabled, or disabled.
    Enable {
        /// Where.
        queue: u8,
        /// Enabled.
        enabled: bool,
    },
    /// One queue stops (`GET_VRING_BASE`), and starts again where it stood, or from the beginning.
    StopQueue {
        /// Where.
        queue: u8,
        /// Its driver sets it up anew (`VIRTIO_F_RING_RESET`).
        reset: bool,
    },
    /// The driver turns the write cache on or off, if it has negotiated that.
    CacheMode {
        /// On.
        write_back: bool,
    },
    /// A live upgrade: the queues are handed over to another process.
    Upgrade(Handover),
    /// The daemon goes on with another node.
    Exchange(Exchange),
    /// A job begins, or something happens to it, if there are jobs.
    Job(JobEvent),
    /// Bitmaps change, if one records.
    Bitmaps(BitmapSwitch),
    /// The disk gets another size.
    Resize {
        /// Sectors.
        sectors: u16,
    },
    /// What waits after an error is tried again, or given up.
    Resume {
        /// Given up.
        report: bool,
    },
    /// The limits of the disks change, if there are any.
    Limits(ThrottleLimits),
    /// Time passes until something is due.
    Time,
    /// So much time passes.
    Wait {
        /// Milliseconds.
        ms: u16,
    },
}
