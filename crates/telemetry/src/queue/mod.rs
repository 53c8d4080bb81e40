//! Names, statistics and admission results that the queues of all devices share.
//!
//! virtio-blk, virtio-scsi and the LSI adapter count alike ([`QueueStats`]) and are named alike ([`QueueName`]); those with rings
//! end an admission alike ([`AdmissionEnd`]).

mod admission;
mod admit_time;
mod completion_group;
mod histograms;
mod name;
mod request_kind;
mod request_stats_writer;
mod stats;
pub mod zero_pages;

pub use admission::AdmissionEnd;
pub use admit_time::AdmitTimeAndKind;
pub use completion_group::CompletionGroup;
pub use histograms::ConfiguredHistograms;
pub use name::QueueName;
pub use request_kind::RequestKind;
pub use request_stats_writer::RequestStatsWriter;
pub use stats::{KindStats, QueueStats};
