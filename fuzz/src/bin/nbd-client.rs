//! Replies of an NBD server: see [`fuzz::nbd_client`].
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::nbd_client::run(bytes));
