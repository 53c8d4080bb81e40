//! A real Linux guest in QEMU, for tests and the demonstration.
