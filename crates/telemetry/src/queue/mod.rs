//! Names, statistics and admission results that the queues of all devices share.
//!
//! virtio-blk, virtio-scsi and the LSI adapter count alike ([`QueueStats`]) and are named alike ([`QueueName`]); those with rings
//! end an admission alike ([`Admission`]).

mod admission;
mod admit_time;
mod completion_group;
mod histograms;
mod name;
mod stats;
mod tally;
pub mod zero_pages;

pub use admission::Admission;
pub use admit_time::AdmitTime;
pub use completion_group::CompletionGroup;
pub use histograms::Histograms;
pub use name::QueueName;
pub use stats::{KindStats, QueueStats, RequestKind};
pub use tally::Tally;
