//! Mistakes put in on purpose, to see that the simulator finds them. Without the feature `simulation` there are none, and
//! no code for them.

/// A mistake that somebody could have made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// The used index is shown before the used entry is written.
    PublishBeforeData,
    /// A request is struck out of the record before the guest sees that it is done.
    ClearInflightEarly,
    /// A request is recorded when it is done.
    RecordAfterActing,
    /// What was in flight is taken again with the last first.
    ResubmitReversed,
    /// Every fourth batch is published without a signal that is wanted.
    NotifyLost,
    /// The guest is not signalled when the entry that it waits for is the last of a batch.
    EventIdxOffByOne,
    /// Kicks are asked for without another look at the ring.
    KickLost,
    /// A flush is answered without the disk.
    FlushEarly,
    /// A write is not stable when it completes, where the guest cannot flush.
    FuaForgotten,
    /// A used entry names another chain than the one that is done.
    WrongChain,
    /// The last of requests that were joined is not answered.
    MergedTailLost,
    /// A queue that stops says that it took one more.
    BaseOffByOne,
    /// The last of the requests that wait after an error is not tried again.
    ParkedForgotten,
    /// Who waits for room in an engine is not told when there is some.
    StalledForgotten,
    /// A request that has failed is answered as if it had not.
    ErrorSwallowed,
    /// Of what lies in several pages the last one is not logged.
    DirtyPageForgotten,
    /// The pages of a request are logged when it is taken, before its data is there.
    MarkedBeforeData,
    /// The ring is not logged.
    UsedRingNotMarked,
    /// The ring is logged before it is written, and not behind that.
    RingMarkedEarly,
    /// Requests that were taken before logging began are not logged.
    TakenBeforeForgotten,
    /// The wrap counter of a packed ring stays as it is when a chain reaches across the ring's end.
    WrapKept,
    /// The next used entry of a packed ring goes directly behind the last one, however long that one's chain was.
    ChainNotSkipped,
    /// The flags of a packed ring's used entry are there before the rest of it.
    FlagsBeforeRest,
    /// The first used entry of a packed ring's batch is shown before the others are there.
    FirstEntryEarly,
    /// Used entries that a dead server has written, and the guest does not see, stay in a packed ring.
    UnseenEntriesLeft,
    /// A packed ring's guest is not signalled when it waits for the last entry of a batch.
    PackedEventOffByOne,
    /// The lap in which a packed ring's guest wants to be signalled is not looked at.
    PackedEventWrapIgnored,
    /// Kicks for a packed ring are asked for without the lap.
    PackedKickWrapForgotten,
}

#[cfg(feature = "simulation")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Mistake>> = const { std::cell::Cell::new(None) };
}

/// Whether this mistake is to be made.
#[cfg(feature = "simulation")]
pub fn is_planted(mistake: Mistake) -> bool {
    PLANTED.get() == Some(mistake)
}

/// Whether this mistake is to be made: never.
#[cfg(not(feature = "simulation"))]
#[inline(always)]
#[must_use]
pub const fn is_planted(_: Mistake) -> bool {
    false
}

/// From now on this thread makes this mistake, or none.
#[cfg(feature = "simulation")]
pub fn plant(mistake: Option<Mistake>) {
    PLANTED.set(mistake);
}
