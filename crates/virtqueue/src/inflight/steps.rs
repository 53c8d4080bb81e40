//! Places where a process may end, and where a guest may come in between: before every store that others see.
//!
//! Nothing, but for this crate's own tests, which end at each of these points once, and for the simulator, which
//! also lets its guest run there.

#[cfg(any(test, feature = "simulation"))]
use std::cell::RefCell;

/// What is done before a store.
#[cfg(any(test, feature = "simulation"))]
pub type Watcher = Box<dyn FnMut()>;

#[cfg(any(test, feature = "simulation"))]
thread_local! {
    static WATCHER: RefCell<Option<Watcher>> = const { RefCell::new(None) };
}

/// A store comes next that outlives the process.
#[inline(always)]
pub(crate) fn before_store() {
    #[cfg(any(test, feature = "simulation"))]
    look();
}

#[cfg(any(test, feature = "simulation"))]
fn look() {
    // Not there while it runs, nor after it has ended the process.
    let watcher = WATCHER.with_borrow_mut(Option::take);
    if let Some(mut watcher) = watcher {
        watcher();
        WATCHER.set(Some(watcher));
    }
}

/// The process has ended.
#[cfg(any(test, feature = "simulation"))]
pub struct Killed;

/// Ends the process that [`watched`] runs.
#[cfg(any(test, feature = "simulation"))]
pub fn kill() -> ! {
    std::panic::resume_unwind(Box::new(Killed));
}

/// Runs `device`, and `watcher` on this thread before each store. `None`: it was ended by [`kill`].
#[cfg(any(test, feature = "simulation"))]
pub fn watched<T>(watcher: Watcher, device: impl FnOnce() -> T) -> Option<T> {
    WATCHER.set(Some(watcher));
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(device));
    WATCHER.set(None);
    match ended {
        Ok(result) => Some(result),
        Err(payload) if payload.is::<Killed>() => None,
        Err(payload) => std::panic::resume_unwind(payload),
    }
}

/// Runs `device`, and ends it before the store after `stores` more. `None`: it ended so.
#[cfg(test)]
pub(crate) fn killed_after<T>(stores: u32, device: impl FnOnce() -> T) -> Option<T> {
    let mut left = stores;
    let watcher = move || match left.checked_sub(1) {
        Some(less) => left = less,
        None => kill(),
    };
    watched(Box::new(watcher), device)
}
