//! Queues on an iothread, with a guest's driver in front and disks behind.
//!
//! - `serve`: starting, kicking, enabling, stopping, starting again.
//! - `signals`: how often the guest is signalled, and that no signal is lost.
//! - `share`: queues on one thread do not disturb each other.
//! - `fair`: what queues without end cost others, and idle ones the busy.
//! - `steps`: control messages between chosen iterations, the loop run by hand.
//! - `tuned`: what is changed while it works takes effect at once.
//! - `idle`: a thread without work does nothing.
//! - `scsi`: queues of a controller, which tell each other things.
//! - `controller`: a device without queues beside them; `polled`: when its socket is looked at.
//! - `no_holes`: guests that want zeroes, or give space back, where the disk's file cannot have holes.
//! - `confined`: what iothreads and workers do is allowed in the sandbox.
//! - `quiet`: a thread with work neither allocates nor waits for a lock.

#![allow(clippy::unwrap_used, reason = "a test ends when it surprises")]

mod confined;
mod controller;
mod fair;
mod guest;
mod idle;
mod no_holes;
mod polled;
mod quiet;
mod scsi;
mod serve;
mod share;
mod signals;
mod steps;
mod tuned;
mod unkicked;
