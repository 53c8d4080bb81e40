//! The demonstration: one new disk, two guests, every byte read back.

use std::io::Write;
use std::path::Path;
use std::time::Instant;

use crate::cache::disk_folder;
use crate::error::{Error, Result};
use crate::report::Report;
use crate::scenario::{Boot, Scenario};
use crate::server::{Program, Server, ServerOptions};

const SIZE_BYTES: u64 = 1 << 30;
const NUM_QUEUES: u16 = 4;

/// Serves a new 1 GiB disk with `blockplane`, boots a guest that fills it, boots another that
/// reads everything back, and prints what they saw to `out`.
///
/// # Errors
/// Where no guest can be run, the error says what to install; otherwise what went wrong.
pub fn demo(blockplane: &Path, out: &mut dyn Write) -> Result<()> {
    show(&Program::Blockplane(blockplane.to_owned()), out)
}

/// The demonstration with any server.
fn show(program: &Program, out: &mut dyn Write) -> Result<()> {
    let folder = disk_folder()?;
    let mut options = ServerOptions::new(&folder.path().join("demo.img"), SIZE_BYTES);
    options.num_queues = NUM_QUEUES;
    options.serial = "BLOCKPLANE-DEMO".to_owned();

    let started = Instant::now();
    let server = Server::start(program, &options)?;
    print(out, &format!("The server\n  {}\n", server.command()))?;

    let first = Boot::new(&server, Scenario::FirstBoot).run()?;
    print(
        out,
        &format!("\nFirst boot: a new disk, filled\n{}", first.transcript()),
    )?;
    let occupied_mib = server.allocated_bytes()? >> 20;
    print(
        out,
        &format!(
            "\nThe image now occupies {occupied_mib} of {} MiB on the host.\n",
            SIZE_BYTES >> 20
        ),
    )?;

    let second = Boot::new(&server, Scenario::SecondBoot).run()?;
    print(
        out,
        &format!(
            "\nSecond boot: the same server, another guest\n{}",
            second.transcript()
        ),
    )?;
    let count = same_sums(&first, &second)?;

    server.stop()?;
    let seconds = started.elapsed().as_secs();
    print(
        out,
        &format!(
            "\nAll {count} checksums of what the second guest read are those of what the first one had to write.\n\
             The server ended on SIGTERM without an error. {seconds} s in all.\n"
        ),
    )
}

/// How many sums there are, if both guests have the same.
fn same_sums(first: &Report, second: &Report) -> Result<usize> {
    let (wrote, read) = (first.sums(), second.sums());
    if wrote == read && !wrote.is_empty() {
        return Ok(wrote.len());
    }
    let differing: Vec<&&str> = wrote
        .keys()
        .filter(|name| wrote.get(*name) != read.get(*name))
        .collect();
    Err(second.error(format!(
        "what was written is not what was read: {differing:?}"
    )))
}

fn print(out: &mut dyn Write, text: &str) -> Result<()> {
    out.write_all(text.as_bytes())
        .map_err(Error::io("print the demonstration"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demonstration_shows_both_guests_without_data_loss() {
        let mut out = Vec::new();
        show(&crate::server::blockplane().unwrap(), &mut out)
            .unwrap_or_else(|error| panic!("{error}"));
        let text = String::from_utf8(out).unwrap();
        for expected in [
            "1073741824",
            "ok     write_files",
            "ok     verify_files",
            "All 41 checksums",
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
        print!("{text}");
    }
}
