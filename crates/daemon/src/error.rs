//! `BoxError`: the error type of the daemon, any error whose text is one line.

/// An error that ends a command or the program, in which case the exit status is 1. Its text is one line.
pub type BoxError = Box<dyn std::error::Error>;
