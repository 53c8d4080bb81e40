//! Registers and SCRIPTS of the LSI 53C895A: see [`fuzz::lsi_chip`].
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::lsi_chip::run(bytes));
