//! SCSI commands and their data: see [`fuzz::scsi_disk`].
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::scsi_disk::run(bytes));
