//! Bytes of a client of the NBD server: see [`fuzz::nbd_server`].
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::nbd_server::run(bytes));
