//! Mistakes that can be planted in the program, by name.

use virtqueue::planted::Mistake;

/// All that there are.
pub const MISTAKES: [(&str, Mistake); 15] = [
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
];

/// The one of that name.
#[must_use]
pub fn named(name: &str) -> Option<Mistake> {
    let found = MISTAKES.iter().find(|(known, _)| *known == name);
    found.map(|(_, mistake)| *mistake)
}
