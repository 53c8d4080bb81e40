//! The vhost-user socket: see [`fuzz::vhost_socket`].
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::vhost_socket::run(bytes));
