//! Cost of a request with one buffer as PREAD and as PREADV: io_submit(2) and io_getevents(2)
//! of reads from memory, so that the kernel's own work is nearly all of it.
//!
//! The engine sends such requests as PREAD. Run it with `--release` to see whether that is still
//! right on your kernel; it prints the best of several rounds, in turn.
#![allow(clippy::print_stdout, clippy::unwrap_used)] // a program that prints, for developers

use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use engine::aio::abi::{IOCB_CMD_PREAD, IOCB_CMD_PREADV, IoEvent, Iocb};
use engine::{AioKernel, Kernel};

const BATCH: usize = 32;
const BATCHES: u32 = 5_000;
const ROUNDS: u32 = 9;

/// Times both opcodes in turn, and prints the best of each.
fn main() {
    let file = rustix::fs::memfd_create("cost", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::io::write(&file, &[1; 4096]).unwrap();
    let mut buffer = [0_u8; 512];
    let iov = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    let fildes = file.as_raw_fd().cast_unsigned();
    let pread = Iocb {
        opcode: IOCB_CMD_PREAD,
        fildes,
        buf: buffer.as_mut_ptr() as u64,
        nbytes: buffer.len() as u64,
        ..Iocb::default()
    };
    let preadv = Iocb {
        opcode: IOCB_CMD_PREADV,
        buf: &raw const iov as u64,
        nbytes: 1,
        ..pread
    };

    let mut best = [Duration::MAX; 2];
    for _ in 0..ROUNDS {
        for (best, iocb) in best.iter_mut().zip([pread, preadv]) {
            *best = (*best).min(time(iocb));
        }
    }
    let requests = f64::from(BATCHES) * BATCH as f64;
    let [pread, preadv] = best.map(|time| time.as_secs_f64() * 1e9 / requests);
    println!("PREAD  {pread:6.1} ns per request");
    println!(
        "PREADV {preadv:6.1} ns per request, {:.3} of PREAD",
        preadv / pread
    );
}

/// The time of all batches of this control block.
fn time(iocb: Iocb) -> Duration {
    let mut kernel = Kernel;
    let context = kernel.setup(64).unwrap();
    let mut iocbs = [iocb; BATCH];
    let pointers = iocbs.each_mut().map(|iocb| &raw mut *iocb);
    let mut events = [IoEvent::default(); BATCH];
    let start = Instant::now();
    for _ in 0..BATCHES {
        // SAFETY: control blocks and the buffer live in this function and its caller, and a read
        // from memory ends inside io_submit.
        assert_eq!(unsafe { kernel.submit(context, &pointers) }, Ok(BATCH));
        assert_eq!(kernel.getevents(context, &mut events), Ok(BATCH));
    }
    let time = start.elapsed();
    kernel.destroy(context);
    time
}
