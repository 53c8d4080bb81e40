//! Tests of single stores to guest memory. Another process writes a word, is stopped after each of its
//! instructions, and finds that a guest has taken the word out: so what comes back is seen whenever it does.

use std::sync::atomic::{AtomicU32, Ordering};

use virtqueue::testing::TestMemory;

/// Exit status of the other process where tracing is not allowed.
const MAY_NOT: i32 = 77;

/// What became of a process that was waited for.
fn wait(process: libc::pid_t) -> i32 {
    let mut status = 0;
    // SAFETY: a child of ours, and a number to put its status in.
    let waited = unsafe { libc::waitpid(process, &raw mut status, 0) };
    assert_eq!(waited, process);
    status
}

/// Has `action` carried out by another process, and `look` called after each of its instructions. False: the system does not
/// let a process be looked at.
///
/// # Safety
/// `action` neither allocates nor waits for a lock: other threads do not exist there, and what they held stays held.
unsafe fn step_through(action: impl FnOnce() -> bool, mut look: impl FnMut()) -> bool {
    let null = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: the child does what the caller promised, makes system calls, and ends without what an exit does.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        // SAFETY: as above.
        unsafe {
            if libc::ptrace(libc::PTRACE_TRACEME, 0, null, null) != 0 {
                libc::_exit(MAY_NOT);
            }
            libc::raise(libc::SIGSTOP);
            let done = action();
            libc::_exit(i32::from(!done));
        }
    }
    let mut status = wait(child);
    while libc::WIFSTOPPED(status) {
        let signal = libc::WSTOPSIG(status);
        assert!([libc::SIGSTOP, libc::SIGTRAP].contains(&signal), "{signal}");
        look();
        // SAFETY: a child that has stopped goes on for an instruction, without the signal.
        let stepped = unsafe { libc::ptrace(libc::PTRACE_SINGLESTEP, child, null, null) };
        assert_eq!(stepped, 0, "{}", std::io::Error::last_os_error());
        status = wait(child);
    }
    assert!(libc::WIFEXITED(status), "{status:#x}");
    match libc::WEXITSTATUS(status) {
        MAY_NOT => false,
        code => {
            assert_eq!(code, 0);
            true
        }
    }
}

#[test]
fn a_word_that_was_taken_out_does_not_come_back() {
    let test = TestMemory::with_regions(&[(0x1000, 0x1000)]);
    let memory = test.guest_memory();
    let (host, _) = memory.first_contiguous_part(0x1100, 4).unwrap();
    // SAFETY: four aligned bytes that the memory has for as long as it is there; both processes access them as a word.
    let word = unsafe { AtomicU32::from_ptr(host.cast().as_ptr()) };
    // Its length is no constant, as in a device that has it from an instruction of the guest's.
    let entry = std::hint::black_box(&[1, 2, 3, 4][..]);
    let (mut taken, mut steps) = (Vec::new(), 0);
    let write = || memory.write(0x1100, entry);
    let look = || {
        steps += 1;
        let found = word.swap(0, Ordering::SeqCst);
        taken.extend((found != 0).then(|| found.to_ne_bytes()));
    };
    // SAFETY: a write looks addresses up and copies.
    if !unsafe { step_through(write, look) } {
        test_support::report::not_run("this system lets no process look at another (ptrace)");
        return;
    }
    assert!(steps > 10, "{steps}");
    assert_eq!(taken, [[1, 2, 3, 4]]);
}
