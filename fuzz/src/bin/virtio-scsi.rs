//! The virtio SCSI controller: see [`fuzz::virtio_scsi`].
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::virtio_scsi::run(bytes));
