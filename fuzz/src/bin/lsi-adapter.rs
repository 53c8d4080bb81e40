//! The LSI 53C895A in its slot, with SCSI disks: see [`fuzz::lsi_adapter`].
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::lsi_adapter::run(bytes));
