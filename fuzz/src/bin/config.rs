//! Configuration files: see [`fuzz::words`].
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::words::configuration(bytes));
