//! Changes of the daemon's nodes and exports, with typed arguments and results: opening, reopening, resizing, activation, export, and
//! live upgrade. Monitors, the command line and live upgrades call them.

pub(crate) mod activation;
pub(crate) mod backup;
pub(crate) mod bitmaps;
pub(crate) mod create;
pub(crate) mod export;
pub(crate) mod image_resize;
mod job_start;
pub(crate) mod jobs;
pub(crate) mod mirror;
pub(crate) mod nbd;
pub(crate) mod node;
pub(crate) mod one_connection;
pub(crate) mod rbd;
pub(crate) mod reopen;
pub(crate) mod resize;
pub(crate) mod transaction;
pub(crate) mod upgrade;
mod users;
mod writes_under_way;
