//! `cargo xtask instructions`: how many instructions a request costs an iothread.
//!
//! Runs `data-plane`'s example `request_cost` under callgrind, which counts what the loop executes and
//! not what the guest's side of the example does. Each figure is the difference of two runs of different
//! length, so that starting and stopping do not count. No time is measured: the figures are the
//! same on every machine with the same processor features and compiler. It judges nothing.

#![allow(clippy::print_stdout, reason = "printing is what it is for")]

use std::path::Path;
use std::process::{Command, ExitCode};

use crate::cargo;

/// Requests of the shorter run; the longer has twice as many.
const REQUESTS: u64 = 25_600;

const DEPTHS: [u32; 4] = [1, 8, 32, 128];

/// What the guest does.
const GUESTS: [(&str, &[&str]); 2] = [
    ("polls", &[]),
    ("waits for signals, and kicks", &["blocking"]),
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
    let arguments = [
        "build",
        "--release",
        "-p",
        "data-plane",
        "--example",
        "request_cost",
    ];
    let built = cargo(&arguments).status();
    if !built.is_ok_and(|status| status.success()) {
        return Err("the example cannot be built".to_owned());
    }
    let program = guest::target_dir().join("release/examples/request_cost");
    print!("{:<30}", "instructions per request");
    for depth in DEPTHS {
        print!("{:>12}", format!("depth {depth}"));
    }
    println!();
    for (guest, options) in GUESTS {
        print!("{guest:<30}");
        for depth in DEPTHS {
            let short = count(&program, depth, REQUESTS, options)?;
            let long = count(&program, depth, 2 * REQUESTS, options)?;
            print!("{:>12}", long.saturating_sub(short) / REQUESTS);
        }
        println!();
    }
    Ok(())
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
