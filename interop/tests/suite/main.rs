//! The suite: one module per subject, one row per test. See README.md for how to run it.

mod errors;
mod monitor;
mod patterns;
mod queues;
mod read_only;
mod reconnect;
mod shapes;
mod variants;
mod zeroes;

use std::process::ExitCode;

fn main() -> ExitCode {
    let subjects = [
        patterns::TESTS,
        shapes::TESTS,
        queues::TESTS,
        zeroes::TESTS,
        read_only::TESTS,
        errors::TESTS,
        reconnect::TESTS,
        variants::TESTS,
        monitor::TESTS,
    ];
    interop::suite::run(subjects.into_iter().flatten().copied())
}
