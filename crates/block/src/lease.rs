//! Leases on places that a lookup has found.
//!
//! A request that goes to a place found by a [lookup](crate::route::Lookup) has a lease until it completes. A driver that
//! is to free or move something takes it out of its mapping, and then waits until all leases are gone that there were.
//! Leases are not counted by place but by generation: new requests, which do not find the place any more, do not prolong
//! the wait, and one wait serves any number of places.

use std::future::poll_fn;
use std::sync::{Arc, PoisonError};
use std::task::{Poll, Waker};

use crate::sync::{Mutex, MutexGuard};

/// The leases of one node, on all iothreads.
#[derive(Default)]
pub(crate) struct Leases {
    current: Mutex<Arc<Generation>>,
}

/// Lives as long as a lease of it, or of an earlier one.
#[derive(Default)]
struct Generation {
    end: Mutex<End>,
}

/// What is there once a generation is not the current one.
#[derive(Default)]
struct End {
    next: Option<Arc<Generation>>,
    waiter: Option<Arc<Waiter>>,
}

/// Waits for the end of a generation.
#[derive(Default)]
struct Waiter {
    state: Mutex<WaiterState>,
}

#[derive(Default)]
struct WaiterState {
    has_ended: bool,
    waker: Option<Waker>,
}

/// Keeps what a lookup has found where it is.
pub(crate) struct Lease {
    _generation: Arc<Generation>,
}

/// Nothing that can panic runs under these locks: a poisoned one guards sound data.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Waiter {
    fn end(&self) {
        let mut state = lock(&self.state);
        state.has_ended = true;
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Drop for Generation {
    /// In a loop: any number of later generations may end with it.
    fn drop(&mut self) {
        let mut end = self.take_end();
        loop {
            if let Some(waiter) = end.waiter {
                waiter.end();
            }
            match end.next.and_then(Arc::into_inner) {
                Some(mut next) => end = next.take_end(),
                None => return,
            }
        }
    }
}

impl Generation {
    fn take_end(&mut self) -> End {
        let end = self.end.get_mut();
        std::mem::take(end.unwrap_or_else(PoisonError::into_inner))
    }
}

impl Leases {
    /// A lease on what was just found: the caller has its mapping locked.
    pub fn lease(&self) -> Lease {
        Lease {
            _generation: lock(&self.current).clone(),
        }
    }

    /// Waits until all leases are gone that there are now, on whatever iothread. What is to be freed or moved was taken
    /// out of the mapping before.
    pub fn settle(&self) -> impl Future<Output = ()> + use<> {
        let waiter = Arc::new(Waiter::default());
        let next = Arc::new(Generation::default());
        let mut current = lock(&self.current);
        let old = std::mem::replace(&mut *current, next.clone());
        *lock(&old.end) = End {
            next: Some(next),
            waiter: Some(waiter.clone()),
        };
        drop(current);
        drop(old);
        poll_fn(move |cx| {
            let mut state = lock(&waiter.state);
            if state.has_ended {
                return Poll::Ready(());
            }
            state.waker = Some(cx.waker().clone());
            Poll::Pending
        })
    }
}
