//! The calls of an image that its writer lock makes. Tests of the writer lock have an image of their own.

use std::sync::Arc;
use std::time::Duration;

use ceph::{Image, LockCheckDone, LockDone, OnHeaderChange};

/// An image with an exclusive lock. None of the calls waits, or calls back before it returns.
pub(crate) trait LockableImage: Send + Sync + 'static {
    /// See [`Image::name`].
    fn name(&self) -> &str;

    /// See [`Image::set_on_header_change`].
    fn set_on_header_change(&self, on_header_change: OnHeaderChange);

    /// See [`Image::spawn_lock`].
    fn spawn_lock(
        self: &Arc<Self>,
        patience: Duration,
        is_wanted: Box<dyn Fn() -> bool + Send>,
        done: LockDone,
    );

    /// See [`Image::spawn_unlock`].
    fn spawn_unlock(self: &Arc<Self>);

    /// See [`Image::spawn_lock_check`].
    fn spawn_lock_check(self: &Arc<Self>, done: LockCheckDone);
}

impl LockableImage for Image {
    fn name(&self) -> &str {
        Image::name(self)
    }

    fn set_on_header_change(&self, on_header_change: OnHeaderChange) {
        Image::set_on_header_change(self, on_header_change);
    }

    fn spawn_lock(
        self: &Arc<Self>,
        patience: Duration,
        is_wanted: Box<dyn Fn() -> bool + Send>,
        done: LockDone,
    ) {
        Image::spawn_lock(self, patience, is_wanted, done);
    }

    fn spawn_unlock(self: &Arc<Self>) {
        Image::spawn_unlock(self);
    }

    fn spawn_lock_check(self: &Arc<Self>, done: LockCheckDone) {
        Image::spawn_lock_check(self, done);
    }
}
