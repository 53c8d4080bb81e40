//! Source of the completions of Linux AIO: the ring in user space, or io_getevents(2) where the ring cannot be read. The choice is
//! made once, with the engine.

use super::abi::IoEvent;
use super::kernel::{AioKernel, ContextId};
use super::ring::CompletionRing;
use super::settings::AioSettings;

/// Most events of one io_getevents(2).
const GETEVENTS_BATCH: usize = 128;

/// The source of completions.
#[derive(Debug)]
pub(super) enum CompletionSource {
    /// The ring, in user space.
    Ring(CompletionRing),
    /// io_getevents(2), into this array.
    Syscall(Box<[IoEvent]>),
}

impl CompletionSource {
    /// The ring of a context, or io_getevents(2) if the ring is not as expected.
    pub(super) fn new<K: AioKernel>(kernel: &K, context: ContextId, settings: AioSettings) -> Self {
        let fallback = || Self::Syscall(vec![IoEvent::default(); GETEVENTS_BATCH].into());
        // SAFETY: `AioKernel` promises that the pointer is valid until `destroy`, which only `drop` calls.
        let checked = kernel
            .ring(context)
            .and_then(|header| unsafe { CompletionRing::validated(header, settings.max_events) });
        checked.map_or_else(
            || {
                tracing::warn!("the AIO completion ring is not as expected: using io_getevents");
                fallback()
            },
            Self::Ring,
        )
    }
}
