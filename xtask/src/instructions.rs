//! `cargo xtask instructions`: how many instructions a request costs an iothread.
//!
//! Runs `data-plane`'s example `request_cost` under callgrind, which counts what the loop executes and
//! not what the guest's side of the example does. Each figure is the difference of two runs of different
//! length, so that starting and stopping do not count. No time is measured: the figures are the
//! same on every machine with the same processor features and compiler. It judges nothing.
//!
//! The same sources are built once more for each of [`BUILDS`], in folders of their own, so that what statistics
//! and tracepoints cost is counted and not remembered.

#![allow(clippy::print_stdout, reason = "printing is what it is for")]

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::cargo;

/// Requests of the shorter run; the longer has twice as many.
const REQUESTS: u64 = 25_600;

const DEPTHS: [u32; 4] = [1, 8, 32, 128];

/// What is built: what it is called, what the compiler is told, and where it goes below the target folder.
const BUILDS: [(&str, &str, &str); 3] = [
    ("as it is", "", "."),
    ("without statistics", "--cfg uncounted", "uncounted"),
    ("without tracepoints", "--cfg untraced", "untraced"),
];

/// What the guest does.
const GUESTS: [(&str, &[&str]); 3] = [
    ("polls", &[]),
    ("waits for signals, and kicks", &["blocking"]),
    ("polls, what is in flight is recorded", &["recorded"]),
];

/// What the loop executes counts, except the guest's turns within.
const COUNTED: [&str; 2] = [
    "--toggle-collect=*request_cost*iteration*",
    "--toggle-collect=*guest_turn*",
];

pub fn instructions() -> ExitCode {
    match table() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("instructions: {error}");
            ExitCode::FAILURE
        }
    }
}

fn table() -> Result<(), String> {
    let mut programs = Vec::new();
    for (build, flags, folder) in BUILDS {
        programs.push((build, program(flags, folder)?));
    }
    for (guest, options) in GUESTS {
        print!("{:<30}", format!("guest {guest}"));
        for depth in DEPTHS {
            print!("{:>18}", format!("depth {depth}"));
        }
        println!();
        let mut whole = Vec::new();
        for (build, program) in &programs {
            print!("  {build:<28}");
            for (index, depth) in DEPTHS.into_iter().enumerate() {
                let short = count(program, depth, REQUESTS, options)?;
                let long = count(program, depth, 2 * REQUESTS, options)?;
                let cost = long.saturating_sub(short) as f64 / REQUESTS as f64;
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

/// Builds the example, with flags for the compiler.
fn program(flags: &str, folder: &str) -> Result<PathBuf, String> {
    let target = guest::target_dir().join(folder);
    let mut build = cargo(&["build", "--release", "-p", "data-plane"]);
    build.args(["--example", "request_cost", "--target-dir"]);
    build.arg(&target);
    if !flags.is_empty() {
        build.env("RUSTFLAGS", flags);
    }
    if !build.status().is_ok_and(|status| status.success()) {
        return Err("the example cannot be built".to_owned());
    }
    Ok(target.join("release/examples/request_cost"))
}

/// Instructions of one run.
fn count(program: &Path, depth: u32, requests: u64, options: &[&str]) -> Result<u64, String> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .args(COUNTED)
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
