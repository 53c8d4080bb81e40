//! The devices of exports, virtio-blk, virtio-scsi and the LSI 53C895A, with their servers and their queues on iothreads.

pub(crate) mod export_server;
pub(crate) mod image_use;
mod in_flight;
pub(crate) mod lsi53c895a;
pub(crate) mod queues;
pub(crate) mod scsi_unit;
pub(crate) mod virtio_blk;
pub(crate) mod virtio_scsi;
