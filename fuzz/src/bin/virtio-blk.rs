//! The virtio block device: see [`fuzz::virtio_blk`].
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::virtio_blk::run(bytes));
