//! The demonstration: one new disk, two guests, every byte read back.

use std::io::Write;
use std::path::Path;
use std::time::Instant;

use crate::boot::Boot;
use crate::cache::disk_folder;
use crate::error::{Error, Result};
use crate::server::{Server, ServerOptions};

const SIZE_BYTES: u64 = 1 << 30;
const NUM_QUEUES: u16 = 4;

/// Serves a new 1 GiB disk with `blockplane`, boots a guest that fills it, boots another that
/// reads everything back, and prints what they saw to `out`.
///
/// # Errors
/// Where no guest can be run, the error says what to install; otherwise what went wrong.
pub fn demo(blockplane: &Path, out: &mut dyn Write) -> Result<()> {
    let mut print = |text: String| {
        out.write_all(text.as_bytes())
            .map_err(Error::io("print the demonstration"))
    };
    let folder = disk_folder()?;
    let mut options = ServerOptions::new(&folder.path().join("demo.img"), SIZE_BYTES);
    options.num_queues = NUM_QUEUES;
    options.serial = "BLOCKPLANE-DEMO";

    let started = Instant::now();
    let server = Server::start(blockplane, &options)?;
    print(format!("The server\n  {}\n", server.command()))?;
    let first = Boot::new(&server, "first_boot").run()?;
    print(format!(
        "\nFirst boot: a new disk, filled\n{}\nThe image now occupies {} of {} MiB on the host.\n",
        first.transcript(),
        server.allocated_bytes()? >> 20,
        SIZE_BYTES >> 20
    ))?;
    let second = Boot::new(&server, "second_boot").run()?;
    print(format!(
        "\nSecond boot: the same server, another guest\n{}",
        second.transcript()
    ))?;
    let (wrote, read) = (first.sums(), second.sums());
    if wrote.is_empty() || wrote != read {
        return Err(Error::new(format!(
            "what was written is not what was read: {wrote:?}, {read:?}"
        )));
    }
    server.stop()?;
    print(format!(
        "\nAll {} checksums of what the second guest read are those of what the first one had to write.\n\
         The server ended on SIGTERM without an error. {} s in all.\n",
        wrote.len(),
        started.elapsed().as_secs()
    ))
}
