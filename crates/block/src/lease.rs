//! Leases: while requests use a location that a lookup has found, its driver waits before it frees or moves it.
//!
//! A request to a place found by a [lookup](crate::route::MappedNode) has a lease until it completes. A driver that frees or
//! moves a place first removes it from its mapping, and then waits until the leases that exist at that moment have ended.
//! Leases are not counted by place but by generation: new requests, which do not find the place any more, do not prolong
//! the wait, and one wait serves any number of places.

use std::future::poll_fn;
use std::sync::{Arc, PoisonError};
use std::task::{Poll, Waker};

use crate::sync::{Mutex, MutexGuard};

/// The leases of one node, on all iothreads.
#[derive(Default)]
pub(crate) struct PlaceLeases {
    current: Mutex<Arc<LeaseGeneration>>,
}

/// The leases between two waits. It lives as long as a lease of it, or of an earlier generation.
#[derive(Default)]
struct LeaseGeneration {
    end_actions: Mutex<LeaseGenerationEndActions>,
}

/// Done when a generation has ended that is not the current one: its waiter is woken, and the next generation, which
/// may end with it, is released.
#[derive(Default)]
struct LeaseGenerationEndActions {
    next: Option<Arc<LeaseGeneration>>,
    waiter: Option<Arc<LeaseGenerationWaiter>>,
}

/// Waits for the end of a generation.
#[derive(Default)]
struct LeaseGenerationWaiter {
    state: Mutex<LeaseGenerationWaitState>,
}

/// Whether the generation has ended, and the waker of the task that waits for that.
#[derive(Default)]
struct LeaseGenerationWaitState {
    has_ended: bool,
    waker: Option<Waker>,
}

/// Keeps the place that a lookup has found from being freed or moved.
pub(crate) struct Lease {
    _generation: Arc<LeaseGeneration>,
}

/// Nothing that can panic runs under these locks: a poisoned one guards sound data.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LeaseGenerationWaiter {
    /// Wakes the task that waits: the generation and all earlier ones have ended.
    fn on_generation_ended(&self) {
        let mut state = lock(&self.state);
        state.has_ended = true;
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Drop for LeaseGeneration {
    /// Ends later generations in a loop, since any number of them may end with this one.
    fn drop(&mut self) {
        let mut end_actions = self.take_end_actions();
        loop {
            if let Some(waiter) = end_actions.waiter {
                waiter.on_generation_ended();
            }
            match end_actions.next.and_then(Arc::into_inner) {
                Some(mut next) => end_actions = next.take_end_actions(),
                None => return,
            }
        }
    }
}

impl LeaseGeneration {
    /// Takes what to do when this generation has ended, which is now.
    fn take_end_actions(&mut self) -> LeaseGenerationEndActions {
        let end_actions = self.end_actions.get_mut();
        std::mem::take(end_actions.unwrap_or_else(PoisonError::into_inner))
    }
}

impl PlaceLeases {
    /// A lease on a place that was just found. The caller has its mapping locked.
    pub fn take_lease(&self) -> Lease {
        Lease {
            _generation: lock(&self.current).clone(),
        }
    }

    /// Waits until all leases that exist now, on any iothread, have ended. The caller has removed the place from its
    /// mapping before.
    pub fn wait_for_current_leases_async(&self) -> impl Future<Output = ()> + use<> {
        let waiter = Arc::new(LeaseGenerationWaiter::default());
        let next = Arc::new(LeaseGeneration::default());
        let mut current = lock(&self.current);
        let old = std::mem::replace(&mut *current, next.clone());
        *lock(&old.end_actions) = LeaseGenerationEndActions {
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
