//! The CPU time of another thread of ours.

use std::mem::MaybeUninit;

/// What makes a clock's number one of a thread, by its scheduled time: see clock_gettime(2) and
/// pthread_getcpuclockid(3), which wants a handle that the standard library's threads keep for themselves.
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
    fn a_thread_that_works_takes_time_and_one_that_waits_takes_none() {
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let worker = std::thread::spawn(move || {
            let id = rustix::thread::gettid().as_raw_nonzero().get();
            let begin = thread_cpu_time_ns(id);
            while thread_cpu_time_ns(id) < begin + 2_000_000 {}
            tell.send(id).unwrap();
            let _ = ended.recv();
        });
        let id = told.recv().unwrap();
        let worked = thread_cpu_time_ns(id);
        assert!(worked >= 2_000_000);
        drop(end);
        worker.join().unwrap();
        assert_eq!(thread_cpu_time_ns((1 << 28) - 1), 0, "no such thread");
    }
}
