//! Packed virtqueues: see [`fuzz::rings`].
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::rings::packed(bytes));
