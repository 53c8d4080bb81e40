//! The event loop, and queues on an iothread with a guest's driver in front and disks behind.
//!
//! - `serve`: starting, kicking, not kicking, stopping, starting again, breaking.
//! - `signals`: the number of signals to the guest, and that none is lost.
//! - `fair`: the cost of endless queues to others, and of idle queues to busy ones.
//! - `stepped`: control messages between chosen iterations of a loop that the test runs step by step.
//! - `tuned`: changes of settings under load take effect at once.
//! - `idle`: a thread without work does nothing.
//! - `scsi`: queues of a controller, and the messages between them.
//! - `socket_device`: a device without queues.
//! - `confined`: all that iothreads and workers do is allowed in the sandbox.
//! - `quiet`: a thread with work neither allocates nor waits for a lock.
//! - `iteration`: the loop over a fake kernel; `polling`: when it polls, on a fake clock.

#![allow(clippy::unwrap_used, reason = "a test ends when it surprises")]

mod confined;
mod fair;
mod idle;
mod iteration;
mod polling;
mod queue_driver;
mod quiet;
mod scsi;
mod serve;
mod signals;
mod socket_device;
mod stepped;
mod tuned;
