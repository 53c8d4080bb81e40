//! Where a process may end: before every store that others see.
//!
//! Nothing outside this crate's own tests, which end at each of these points once.

#[cfg(test)]
thread_local! {
    static LEFT: std::cell::Cell<Option<u32>> = const { std::cell::Cell::new(None) };
}

/// A store comes next that outlives the process.
#[inline(always)]
pub(crate) fn before_store() {
    #[cfg(test)]
    LEFT.with(|left| match left.get() {
        None => {}
        Some(0) => {
            left.set(None);
            std::panic::resume_unwind(Box::new(Killed));
        }
        Some(more) => left.set(Some(more - 1)),
    });
}

/// The process has ended.
#[cfg(test)]
pub(crate) struct Killed;

/// Runs `device`, and ends it before the store after `stores` more. `None`: it ended so.
#[cfg(test)]
pub(crate) fn killed_after<T>(stores: u32, device: impl FnOnce() -> T) -> Option<T> {
    LEFT.with(|left| left.set(Some(stores)));
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(device));
    LEFT.with(|left| left.set(None));
    match ended {
        Ok(result) => Some(result),
        Err(payload) if payload.is::<Killed>() => None,
        Err(payload) => std::panic::resume_unwind(payload),
    }
}
