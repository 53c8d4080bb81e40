//! Slots of requests in flight: their submission to librbd, and the callback of librbd.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use engine::Errno;

use super::MAX_IN_FLIGHT;
use super::completion_list::CompletionList;
use crate::Image;
use crate::errno::check;
use crate::library::RawCompletion;

/// The state of one request in flight.
struct Slot {
    index: u32,
    /// A flush follows the request, so that it is stable.
    flush_follows: AtomicBool,
    /// While librbd has the request: a counted reference to all slots.
    owner: AtomicPtr<Slots>,
}

/// The slots of a queue, and the completions of those that librbd has completed.
///
/// A request in flight counts as a reference, so that a callback finds its slot even after the queue is gone.
pub(super) struct Slots {
    image: Arc<Image>,
    slots: Box<[Slot]>,
    completions: CompletionList,
}

impl Slots {
    pub(super) fn new(image: Arc<Image>, wake: Arc<dyn Fn() + Send + Sync>) -> Arc<Self> {
        let slot = |index| Slot {
            index,
            flush_follows: AtomicBool::new(false),
            owner: AtomicPtr::new(ptr::null_mut()),
        };
        Arc::new(Self {
            image,
            slots: (0..).take(MAX_IN_FLIGHT).map(slot).collect(),
            completions: CompletionList::new(MAX_IN_FLIGHT, wake),
        })
    }

    pub(super) fn completions(&self) -> &CompletionList {
        &self.completions
    }

    pub(super) fn image(&self) -> &Arc<Image> {
        &self.image
    }

    /// Starts the request of a slot: `submit` calls librbd with the completion that it gets. With `stable`, a flush follows
    /// before the slot is complete.
    pub(super) fn start(
        self: &Arc<Self>,
        slot: u32,
        stable: bool,
        submit: impl FnOnce(RawCompletion) -> c_int,
    ) {
        let slot = &self.slots[slot as usize];
        slot.flush_follows.store(stable, Ordering::Relaxed);
        let reference = Arc::into_raw(Arc::clone(self)).cast_mut();
        slot.owner.store(reference, Ordering::Relaxed);
        if let Err(errno) = self.submit(slot, submit) {
            // SAFETY: librbd has not taken the request, so that no callback takes the reference.
            drop(unsafe { Arc::from_raw(reference) });
            self.complete_early(slot.index, Err(errno));
        }
    }

    /// Completes a slot that librbd does not have.
    pub(super) fn complete_early(&self, slot: u32, result: Result<(), Errno>) {
        let returned = result.map_or_else(|errno| -i64::from(errno.raw_os_error()), |()| 0);
        self.completions.push(slot, returned);
    }

    /// Makes a completion of librbd for a slot, and calls librbd with it. An error: librbd does not have it.
    fn submit(
        &self,
        slot: &Slot,
        submit: impl FnOnce(RawCompletion) -> c_int,
    ) -> Result<(), Errno> {
        let functions = self.image.functions();
        let mut completion = ptr::null_mut();
        // SAFETY: the slot stays where it is, since all slots are counted as referenced until the callback.
        check(unsafe {
            (functions.rbd_aio_create_completion)(
                ptr::from_ref(slot).cast_mut().cast(),
                request_completed,
                &raw mut completion,
            )
        })?;
        check(submit(completion)).inspect_err(|_| {
            // SAFETY: librbd has refused the request, and does not use its completion.
            unsafe { (functions.rbd_aio_release)(completion) };
        })
    }
}

/// Called on a thread of librbd when a request, or the flush after it, is complete.
///
/// # Safety
/// `slot` is a slot whose `owner` is a counted reference.
unsafe extern "C" fn request_completed(completion: RawCompletion, slot: *mut c_void) {
    // SAFETY: our caller promises it; the reference keeps the slot.
    let slot = unsafe { &*slot.cast::<Slot>() };
    // SAFETY: the reference was counted in `start`, for this callback.
    let slots = unsafe { Arc::from_raw(slot.owner.load(Ordering::Relaxed).cast_const()) };
    let functions = slots.image.functions();
    // SAFETY: the completion is that of the callback, and released once.
    let returned = unsafe { (functions.rbd_aio_get_return_value)(completion) };
    // SAFETY: as above.
    unsafe { (functions.rbd_aio_release)(completion) };
    let returned = i64::try_from(returned).unwrap_or(i64::MAX);
    if returned >= 0 && slot.flush_follows.load(Ordering::Relaxed) {
        let image = slots.image.pointer().0;
        // SAFETY: the image is open, since the slots keep it.
        let flush = |completion| unsafe { (functions.rbd_aio_flush)(image, completion) };
        slots.start(slot.index, false, flush);
    } else {
        slots.completions.push(slot.index, returned);
    }
}
