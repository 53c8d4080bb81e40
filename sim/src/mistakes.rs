//! Mistakes that can be planted in the program, by name.

use virtqueue::planted::Mistake;

/// All that there are.
pub const MISTAKES: [(&str, Mistake); 28] = [
    ("publish-before-data", Mistake::PublishBeforeData),
    ("clear-inflight-early", Mistake::ClearInflightEarly),
    ("record-after-acting", Mistake::RecordAfterActing),
    ("resubmit-reversed", Mistake::ResubmitReversed),
    ("notify-lost", Mistake::NotifyLost),
    ("event-idx-off-by-one", Mistake::EventIdxOffByOne),
    ("kick-lost", Mistake::KickLost),
    ("flush-early", Mistake::FlushEarly),
    ("fua-forgotten", Mistake::FuaForgotten),
    ("wrong-chain", Mistake::WrongChain),
    ("merged-tail-lost", Mistake::MergedTailLost),
    ("base-off-by-one", Mistake::BaseOffByOne),
    ("parked-forgotten", Mistake::ParkedForgotten),
    ("stalled-forgotten", Mistake::StalledForgotten),
    ("error-swallowed", Mistake::ErrorSwallowed),
    ("dirty-page-forgotten", Mistake::DirtyPageForgotten),
    ("marked-before-data", Mistake::MarkedBeforeData),
    ("used-ring-not-marked", Mistake::UsedRingNotMarked),
    ("ring-marked-early", Mistake::RingMarkedEarly),
    ("taken-before-forgotten", Mistake::TakenBeforeForgotten),
    ("wrap-kept", Mistake::WrapKept),
    ("chain-not-skipped", Mistake::ChainNotSkipped),
    ("flags-before-rest", Mistake::FlagsBeforeRest),
    ("first-entry-early", Mistake::FirstEntryEarly),
    ("unseen-entries-left", Mistake::UnseenEntriesLeft),
    ("packed-event-off-by-one", Mistake::PackedEventOffByOne),
    ("packed-event-wrap-ignored", Mistake::PackedEventWrapIgnored),
    (
        "packed-kick-wrap-forgotten",
        Mistake::PackedKickWrapForgotten,
    ),
];

/// The one of that name.
#[must_use]
pub fn named(name: &str) -> Option<Mistake> {
    let found = MISTAKES.iter().find(|(known, _)| *known == name);
    found.map(|(_, mistake)| *mistake)
}
