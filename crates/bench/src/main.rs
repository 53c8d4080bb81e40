//! `bench`: what `blockplane bench` is, in a program without the daemon.

use std::process::ExitCode;

fn main() -> ExitCode {
    bench::cli::main(std::env::args_os().skip(1))
}
