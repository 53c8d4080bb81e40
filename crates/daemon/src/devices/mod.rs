//! The devices of exports: vhost-user targets and the LSI 53C895A, on the iothreads of an export.

pub(crate) mod export_server;
mod in_flight;
pub(crate) mod lsi53c895a;
pub(crate) mod queues;
pub(crate) mod scsi_unit;
pub(crate) mod virtio_blk;
pub(crate) mod virtio_scsi;
