//! Monitors: see [`fuzz::qmp_bytes`].
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::qmp_bytes::run(bytes));
