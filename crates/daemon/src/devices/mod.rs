//! The devices that front-ends connect to: vhost-user targets and the LSI 53C895A, on the queues and iothreads of an export.

pub(crate) mod export_server;
pub(crate) mod lsi53c895a;
pub(crate) mod queues;
mod requests;
pub(crate) mod unit;
pub(crate) mod virtio_blk;
pub(crate) mod virtio_scsi;
