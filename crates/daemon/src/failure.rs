//! The error type of the daemon.

/// What ends a command or the program: said in one line. The program's exit status is 1 then.
pub type Failure = Box<dyn std::error::Error>;
