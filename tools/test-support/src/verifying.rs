//! A guest that verifies all data that it reads, and outlives its servers.
//!
//! It keeps what a front-end keeps when a server ends (memory, rings, the in-flight region), and knows what each block may hold.

pub mod blocks;
pub mod device;
pub mod guest;
pub mod load;
pub mod random;
pub mod recording_writer;
