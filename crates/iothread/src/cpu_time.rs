//! Reads the CPU time of a thread of this process by its ID.

use std::mem::MaybeUninit;

/// Bits of a clock number for the scheduled time of a thread: see clock_gettime(2). pthread_getcpuclockid(3) needs a handle that the
/// standard library does not give out.
const THREAD_CLOCK: libc::clockid_t = 6;

/// CPU time that the thread has taken, in nanoseconds; 0 if there is no such thread in this process.
#[must_use]
pub fn thread_cpu_time_ns(thread_id: i32) -> u64 {
    let clock = !thread_id << 3 | THREAD_CLOCK;
    let mut time = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: there is room for the answer.
    if unsafe { libc::clock_gettime(clock, time.as_mut_ptr()) } != 0 {
        return 0;
    }
    // SAFETY: filled in, as the return value says.
    let time = unsafe { time.assume_init() };
    // A time span: neither part is negative.
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_working_thread_uses_cpu_time() {
        let (send_id, ids) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let worker = std::thread::spawn(move || {
            let id = rustix::thread::gettid().as_raw_nonzero().get();
            let begin = thread_cpu_time_ns(id);
            while thread_cpu_time_ns(id) < begin + 2_000_000 {}
            send_id.send(id).unwrap();
            let _ = ended.recv();
        });
        let id = ids.recv().unwrap();
        let worked = thread_cpu_time_ns(id);
        assert!(worked >= 2_000_000);
        drop(end);
        worker.join().unwrap();
        assert_eq!(thread_cpu_time_ns((1 << 28) - 1), 0, "no such thread");
    }
}
