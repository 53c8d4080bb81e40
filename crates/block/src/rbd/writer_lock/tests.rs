//! The writer lock of an image whose thread is the test.

use std::collections::VecDeque;
use std::sync::OnceLock;
use std::thread::{self, JoinHandle};

use ceph::{LockCheckDone, LockDone, OnHeaderChange};

use super::*;

/// How long a second thread has to post its call before that of the first, if nothing prevents it.
const TIME_TO_OVERTAKE: Duration = Duration::from_millis(300);

const OURS: LockFeatureAndOwner = LockFeatureAndOwner {
    is_supported: true,
    is_ours: true,
};
const LOST: LockFeatureAndOwner = LockFeatureAndOwner {
    is_supported: false,
    is_ours: false,
};

/// A call that was posted for the image's thread.
enum Call {
    Lock(LockDone),
    Unlock,
    Check(LockCheckDone),
}

type BeforeUnlock = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct TestImage {
    calls: Mutex<VecDeque<Call>>,
    on_header_change: OnceLock<OnHeaderChange>,
    /// Runs when an unlock is about to be posted.
    before_unlock: Mutex<Option<BeforeUnlock>>,
}

impl TestImage {
    fn post(&self, call: Call) {
        self.calls.lock().unwrap().push_back(call);
    }

    fn next_call(&self) -> Option<Call> {
        self.calls.lock().unwrap().pop_front()
    }

    fn next_lock(&self) -> LockDone {
        match self.next_call() {
            Some(Call::Lock(done)) => done,
            _ => panic!("no acquisition is next"),
        }
    }

    fn next_check(&self) -> LockCheckDone {
        match self.next_call() {
            Some(Call::Check(done)) => done,
            _ => panic!("no check is next"),
        }
    }

    fn change_header(&self) {
        self.on_header_change.get().unwrap()();
    }
}

impl LockableImage for TestImage {
    fn name(&self) -> &str {
        "pool/image"
    }

    fn set_on_header_change(&self, on_header_change: OnHeaderChange) {
        assert!(self.on_header_change.set(on_header_change).is_ok());
    }

    fn spawn_lock(self: &Arc<Self>, _: Duration, _: Box<dyn Fn() -> bool + Send>, done: LockDone) {
        self.post(Call::Lock(done));
    }

    fn spawn_unlock(self: &Arc<Self>) {
        let before = self.before_unlock.lock().unwrap().take();
        if let Some(before) = before {
            before();
        }
        self.post(Call::Unlock);
    }

    fn spawn_lock_check(self: &Arc<Self>, done: LockCheckDone) {
        self.post(Call::Check(done));
    }
}

type TestLock = Arc<WriterLock<TestImage>>;

/// A lock that a source is acquiring.
fn acquiring() -> (Arc<TestImage>, TestLock) {
    let image = Arc::new(TestImage::default());
    let lock = WriterLock::new(image.clone(), Locking::Auto);
    lock.follow_image();
    add_source_and_acquire(&lock);
    (image, lock)
}

/// A lock that is held for a source.
fn held() -> (Arc<TestImage>, TestLock) {
    let (image, lock) = acquiring();
    image.next_lock()(Ok(()));
    assert_eq!(lock.state(), WriterLockState::Held);
    (image, lock)
}

fn add_source_and_acquire(lock: &TestLock) {
    lock.add_source();
    lock.acquire(Arc::new(|| ()));
}

/// The other thread, as soon as it is started.
type OtherThread = Arc<Mutex<Option<JoinHandle<()>>>>;

/// Has another thread add a source, which acquires the lock, when an unlock is about to be posted.
fn acquire_on_other_thread_before_unlock(image: &TestImage, lock: &TestLock) -> OtherThread {
    let (lock, other) = (lock.clone(), OtherThread::default());
    let started = other.clone();
    let before = move || {
        let (sender, posted) = channel();
        let thread = thread::spawn(move || {
            add_source_and_acquire(&lock);
            let _ = sender.send(());
        });
        *started.lock().unwrap() = Some(thread);
        let _ = posted.recv_timeout(TIME_TO_OVERTAKE);
    };
    *image.before_unlock.lock().unwrap() = Some(Box::new(before));
    other
}

#[test]
fn acquisition_for_the_next_source_comes_behind_the_release_for_the_last_one() {
    type Release = fn(&TestImage, &TestLock);
    let source_leaves: Release = |_, lock| lock.remove_source();
    let node_is_inactivated: Release = |_, lock| lock.release_if_held();
    let acquisition_ends: Release = |image, _| image.next_lock()(Ok(()));
    let without_source = || {
        let (image, lock) = acquiring();
        lock.remove_source();
        (image, lock)
    };
    for ((image, lock), release) in [
        (held(), source_leaves),
        (held(), node_is_inactivated),
        (without_source(), acquisition_ends),
    ] {
        let other = acquire_on_other_thread_before_unlock(&image, &lock);
        release(&image, &lock);
        let other = other.lock().unwrap().take();
        other.unwrap().join().unwrap();
        assert!(matches!(image.next_call(), Some(Call::Unlock)));
        image.next_lock()(Ok(()));
        assert_eq!(lock.state(), WriterLockState::Held);
        assert!(image.next_call().is_none());
    }
}

#[test]
fn header_change_during_an_acquisition_is_looked_at_when_it_has_ended() {
    for (found, state) in [
        (OURS, WriterLockState::Held),
        (LOST, WriterLockState::Released),
    ] {
        let (image, lock) = acquiring();
        let acquired = image.next_lock();
        image.change_header();
        acquired(Ok(()));
        assert!(lock.permits_changes());
        image.next_check()(Ok(found));
        assert_eq!(lock.state(), state);
        assert_eq!(lock.permits_changes(), state == WriterLockState::Held);
    }
}

#[test]
fn header_change_while_the_lock_is_neither_held_nor_acquired_needs_no_check() {
    let (image, lock) = held();
    lock.remove_source();
    assert!(matches!(image.next_call(), Some(Call::Unlock)));
    image.change_header();
    assert!(image.next_call().is_none());
}

#[test]
fn failed_check_is_repeated_until_one_finds_that_the_lock_is_lost() {
    let (image, lock) = held();
    image.change_header();
    for errno in [Errno::TIMEDOUT, Errno::IO] {
        image.next_check()(Err(errno));
        assert!(lock.permits_changes());
    }
    image.next_check()(Ok(LOST));
    assert_eq!(lock.state(), WriterLockState::Released);
    assert!(!lock.permits_changes());
    assert!(image.next_call().is_none());
}

#[test]
fn failed_check_is_not_repeated_beside_a_newer_one_nor_without_the_lock() {
    let (image, lock) = held();
    image.change_header();
    image.change_header();
    image.next_check()(Err(Errno::TIMEDOUT));
    let newer = image.next_check();
    assert!(image.next_call().is_none());
    lock.remove_source();
    assert!(matches!(image.next_call(), Some(Call::Unlock)));
    newer(Err(Errno::TIMEDOUT));
    assert!(image.next_call().is_none());
}

#[test]
fn check_of_a_client_on_the_blocklist_is_not_repeated() {
    let (image, _lock) = held();
    image.change_header();
    image.next_check()(Err(Errno::SHUTDOWN));
    assert!(image.next_call().is_none());
}
