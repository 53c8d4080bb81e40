//! Test knob: dispatch as a loop does it that keeps its handlers in a list.
//!
//! Each handler has a place for what the kernel saw of it, and all are looked at in every iteration
//! to find those that are ready. `blockplane bench handlers` measures what that costs; nobody else wants it.

use crate::handlers::HandlerId;
use crate::iothread::{Plane, PlaneContext};
use crate::poller::{Event, Readiness};

/// What a scanning loop keeps.
#[derive(Default)]
pub(crate) struct Scan {
    /// By slot: the handler that was seen ready there, until it was told.
    seen: Vec<Option<(HandlerId, Readiness)>>,
    /// Slots looked at so far.
    pub looked_at: u64,
}

/// Tells the plane of each handler that is ready, in order of slots.
pub(crate) fn dispatch<P: Plane>(plane: &mut P, cx: &mut PlaneContext<P>, events: &[Event]) {
    // It is back at the end: a handler may use the context meanwhile.
    let Some(mut scan) = cx.scan.take() else {
        return;
    };
    scan.seen.resize(cx.handlers.slots(), None);
    for event in events {
        let id = HandlerId::from_cookie(event.cookie);
        // The wake-up's cookie is no handler's.
        if let Some(seen) = scan.seen.get_mut(id.slot()) {
            *seen = Some((id, event.readiness));
        }
    }
    for seen in &mut scan.seen {
        scan.looked_at += 1;
        if let Some((id, readiness)) = seen.take()
            && let Some(handler) = cx.handlers.get(id)
        {
            plane.ready(cx, id, handler, readiness);
        }
    }
    cx.scan = Some(scan);
}
