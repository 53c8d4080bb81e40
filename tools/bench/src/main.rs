//! `blockplane-bench`: measures blockplane, or any other vhost-user-blk server.

use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    let status = bench::cli::main(std::env::args_os().skip(1));
    if !ceph::wait_for_connections(Duration::ZERO) {
        // A cluster does not answer, which was reported as an error.
        ceph::exit_process(1, Duration::ZERO);
    }
    status
}
