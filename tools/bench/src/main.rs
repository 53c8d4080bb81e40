//! `blockplane-bench`: measures blockplane, or any other vhost-user-blk server.

use std::process::ExitCode;

fn main() -> ExitCode {
    bench::cli::main(std::env::args_os().skip(1))
}
