//! Deterministic simulation: guests, kernel, disk and all that can happen to them, on one thread and from a seed.
//!
//! What runs are the program's own iothreads ([`iothread`]): event loop, rings, device, engines, control messages.
//! What is simulated is what surrounds them: guests ([`guest`]), a [`client`] without rings, the kernel below Linux
//! AIO and io_uring ([`kernel`], [`ring`]) with its disk ([`disk`]) and the [`nodes`] in front of that, what wakes a
//! thread ([`poller`], [`clock`]), migration of the guest's memory ([`migration_copy`]), and starts, stops, kills and resizes
//! ([`world`]). A seed makes a [`plan`]; a [`model`] says what may be read, another one
//! what [throttle groups](throttle_model) may let pass.

pub mod campaign;
pub mod client;
pub mod clock;
pub mod daemon;
pub mod dirty_sectors;
pub mod disk;
pub mod failure;
pub mod guest;
pub mod inflight_memory;
pub mod iothread;
pub mod kernel;
pub mod migration_copy;
pub mod model;
pub mod nodes;
pub mod options;
pub mod plan;
pub mod poller;
pub mod random;
pub mod run;
pub mod shared_words;
pub mod shrink;
pub mod throttle_model;
pub mod trace;
pub mod world;
