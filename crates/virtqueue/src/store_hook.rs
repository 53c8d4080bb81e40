//! Hook before every store that is visible outside this process, for crash tests and for the simulator.
//!
//! This crate's tests end the device before each store once, and the simulator also runs its guest there. Without the feature
//! `simulation` there is no hook.

#[cfg(any(test, feature = "simulation"))]
use std::cell::RefCell;

/// Function that is called before a store.
#[cfg(any(test, feature = "simulation"))]
pub type StoreHook = Box<dyn FnMut()>;

#[cfg(any(test, feature = "simulation"))]
thread_local! {
    static HOOK: RefCell<Option<StoreHook>> = const { RefCell::new(None) };
}

/// Calls the hook. A store that outlives the process follows.
#[inline(always)]
pub(crate) fn before_store() {
    #[cfg(any(test, feature = "simulation"))]
    run_hook();
}

/// Runs the hook of this thread, if there is one.
#[cfg(any(test, feature = "simulation"))]
fn run_hook() {
    // Removed while it runs, and for good once it has ended the process.
    let hook = HOOK.with_borrow_mut(Option::take);
    if let Some(mut hook) = hook {
        hook();
        HOOK.set(Some(hook));
    }
}

/// Panic payload of a process that was ended.
#[cfg(any(test, feature = "simulation"))]
pub struct ProcessEnded;

/// Ends the process that [`run_with_hook`] runs.
#[cfg(any(test, feature = "simulation"))]
pub fn end_simulated_process() -> ! {
    std::panic::resume_unwind(Box::new(ProcessEnded));
}

/// Runs `device`, and calls `hook` on this thread before each store. `None`: it was ended by [`end_simulated_process`].
#[cfg(any(test, feature = "simulation"))]
pub fn run_with_hook<T>(hook: StoreHook, device: impl FnOnce() -> T) -> Option<T> {
    HOOK.set(Some(hook));
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(device));
    HOOK.set(None);
    match ended {
        Ok(result) => Some(result),
        Err(payload) if payload.is::<ProcessEnded>() => None,
        Err(payload) => std::panic::resume_unwind(payload),
    }
}

/// Runs `device`, and ends it after `stores` stores, before the next one. `None`: it was ended so.
#[cfg(test)]
pub(crate) fn ended_after_stores<T>(stores: u32, device: impl FnOnce() -> T) -> Option<T> {
    let mut left = stores;
    let hook = move || match left.checked_sub(1) {
        Some(less) => left = less,
        None => end_simulated_process(),
    };
    run_with_hook(Box::new(hook), device)
}
