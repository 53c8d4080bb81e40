//! `bench`: the measurements as a program.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let cli = bench::cli::Cli::parse();
    match bench::cli::run(&cli, &mut std::io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}
