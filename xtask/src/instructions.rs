//! `cargo xtask instructions`: how many instructions a request costs an iothread.
//!
//! Runs `iothread`'s example `request_cost` under callgrind, which counts what the loop executes and
//! not what the guest's side of the example does; and `bench`'s `command_cost`, for a command to an LSI 53C895A.
//! Each figure is the difference of two runs of different length, so that starting and stopping do not count. No
//! time is measured: the figures are the same on every machine with the same processor features and compiler. No
//! figure is an error.
//!
//! A copy of the sources is built with each patch of [`WITHOUT`] as well, so that what statistics
//! and tracepoints cost is counted and not remembered.

#![allow(clippy::print_stdout, reason = "printing is what it is for")]

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::{cargo, experiment, patches};

/// Requests of the shorter run; the longer has twice as many.
const REQUESTS: u64 = 25_600;

const DEPTHS: [u32; 4] = [1, 8, 32, 128];

/// Commands of an LSI 53C895A in flight.
const LSI_DEPTHS: [u32; 4] = [1, 4, 16, 64];

/// What is left out, by the patch that does it.
const WITHOUT: [&str; 2] = ["without-statistics", "without-tracepoints"];

/// What the guest does.
const GUESTS: [(&str, &[&str]); 4] = [
    ("polls", &[]),
    ("polls, of a SCSI controller", &["scsi"]),
    ("waits for signals, and kicks", &["blocking"]),
    ("polls, what is in flight is recorded", &["recorded"]),
];

/// An example, and where counting begins and ends.
struct Example {
    package: &'static str,
    name: &'static str,
    toggles: &'static [&'static str],
}

/// What the loop executes counts, except the guest's turns within.
const REQUEST: Example = Example {
    package: "iothread",
    name: "request_cost",
    toggles: &[
        "--toggle-collect=*request_cost*iteration*",
        "--toggle-collect=*guest_turn*",
    ],
};

/// The adapter's turns, as its iothread would give them, count.
const COMMAND: Example = Example {
    package: "bench",
    name: "command_cost",
    toggles: &["--toggle-collect=*command_cost*counted*"],
};

pub fn instructions() -> ExitCode {
    match requests().and_then(|()| commands()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("instructions: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A command of 64 KiB through the LSI 53C895A, from the bytes in its socket to the interrupt.
fn commands() -> Result<(), String> {
    let program = program(&COMMAND)?;
    for (kind, options) in [("reads", &[][..]), ("writes", &["writes"][..])] {
        heading(&format!("LSI 53C895A, {kind}"), &LSI_DEPTHS);
        print!("  {:<28}", "as it is");
        for depth in LSI_DEPTHS {
            print!(
                "{:>9.0}{:>9}",
                cost(&COMMAND, &program, depth, options)?,
                ""
            );
        }
        println!();
    }
    Ok(())
}

fn heading(what: &str, depths: &[u32]) {
    print!("{what:<30}");
    for depth in depths {
        print!("{:>18}", format!("depth {depth}"));
    }
    println!();
}

fn requests() -> Result<(), String> {
    let mut programs = vec![("as it is".to_owned(), program(&REQUEST)?)];
    let patches = patches::experiments()?;
    for name in WITHOUT {
        let what = ["build", "-p", REQUEST.package, "--example", REQUEST.name];
        let product = format!("examples/{}", REQUEST.name);
        let patch = patches::named(&patches, name)?;
        let program = experiment::patched(patch, &what, "release", &product)?;
        programs.push((name.replace('-', " "), program));
    }
    for (guest, options) in GUESTS {
        heading(&format!("guest {guest}"), &DEPTHS);
        let mut whole = Vec::new();
        for (build, program) in &programs {
            print!("  {build:<28}");
            for (index, depth) in DEPTHS.into_iter().enumerate() {
                let cost = cost(&REQUEST, program, depth, options)?;
                print!("{cost:>9.1}");
                match whole.get(index) {
                    None => {
                        whole.push(cost);
                        print!("{:>9}", "");
                    }
                    // What is left out costs the rest.
                    Some(whole) => print!(" {:>+7.1}%", 100.0 * (whole / cost - 1.0)),
                }
            }
            println!();
        }
    }
    Ok(())
}

/// Builds the example.
fn program(example: &Example) -> Result<PathBuf, String> {
    let mut build = cargo(&["build", "--release", "-p", example.package]);
    build.args(["--example", example.name]);
    if !build.status().is_ok_and(|status| status.success()) {
        return Err(format!("the example {} cannot be built", example.name));
    }
    let examples = guest::target_dir().join("release/examples");
    Ok(examples.join(example.name))
}

/// Instructions of one request: the difference that more of them make.
fn cost(example: &Example, program: &Path, depth: u32, options: &[&str]) -> Result<f64, String> {
    let short = count(example, program, depth, REQUESTS, options)?;
    let long = count(example, program, depth, 2 * REQUESTS, options)?;
    Ok(long.saturating_sub(short) as f64 / REQUESTS as f64)
}

/// Instructions of one run.
fn count(
    example: &Example,
    program: &Path,
    depth: u32,
    requests: u64,
    options: &[&str],
) -> Result<u64, String> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .args(example.toggles)
        .arg(program)
        .args([depth.to_string(), requests.to_string()])
        .args(options)
        .output()
        .map_err(|error| format!("cannot run valgrind: {error} (apt-get install valgrind)"))?;
    let report = String::from_utf8_lossy(&output.stderr);
    report
        .lines()
        .find_map(|line| line.split("Collected :").nth(1)?.trim().parse().ok())
        .ok_or_else(|| format!("callgrind did not count:\n{report}"))
}
