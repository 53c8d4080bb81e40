//! The vfio-user socket: see [`fuzz::vfio_socket`].
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::vfio_socket::run(bytes));
