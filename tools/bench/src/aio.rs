//! AIO engines by their names in `aio=`.

use std::fmt;
use std::str::FromStr;

use clap::ValueEnum;

/// Of a server's disk, or of the load on the host itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Aio {
    /// Linux AIO
    Native,
    /// io_uring
    #[value(name = "io_uring")]
    IoUring,
    /// Threads that wait, each for one request
    Threads,
}

impl fmt::Display for Aio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Aio::Native => "native",
            Aio::IoUring => "io_uring",
            Aio::Threads => "threads",
        })
    }
}

impl FromStr for Aio {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        <Aio as ValueEnum>::from_str(text, false)
            .map_err(|_| format!("'{text}': the engine is native, io_uring or threads"))
    }
}
