//! Source of completions: the ring in user space, or the system call where the
//! ring cannot be read. Decided once, when the engine is made.

use super::abi::IoEvent;
use super::kernel::{AioKernel, ContextId};
use super::ring::CompletionRing;
use super::settings::AioSettings;

/// Events taken by one io_getevents(2) where the ring cannot be read.
const GETEVENTS_BATCH: usize = 128;

/// Where completions come from.
#[derive(Debug)]
pub(super) enum CompletionSource {
    /// The ring, in user space.
    Ring(CompletionRing),
    /// io_getevents(2), into this array.
    Syscall(Box<[IoEvent]>),
}

impl CompletionSource {
    pub(super) fn new<K: AioKernel>(kernel: &K, context: ContextId, settings: AioSettings) -> Self {
        let fallback = || Self::Syscall(vec![IoEvent::default(); GETEVENTS_BATCH].into());
        // SAFETY: `AioKernel` vouches for the pointer until `destroy`, which only `drop` calls.
        let checked = kernel
            .ring(context)
            .and_then(|header| unsafe { CompletionRing::new(header, settings.max_events) });
        checked.map_or_else(
            || {
                tracing::warn!("the AIO completion ring is not as expected: using io_getevents");
                fallback()
            },
            Self::Ring,
        )
    }
}
