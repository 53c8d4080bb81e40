//! An iothread that serves requests allocates nothing, calls no futex and wakes no worker thread.
//!
//! Allocations are counted by the allocator, per thread. For locks, the kernel tells a supervisor of
//! every futex(2) of the thread (seccomp's user notification), and lets it go on: a lock that is
//! contended, or a condition variable that is signalled, is such a call.

use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use block::{Aio, BackendSettings};
use engine::PoolSettings;
use iothread::Message;
use iothread::event_loop::{Epoll, PollSettings, Remote};
use test_support::allocations::of_this_thread;
use test_support::threads::read_of_each_thread;

use crate::queue_driver::{CARRIERS, FLUSH, QueueDriver, disk_by, queues_loop};

#[global_allocator]
static ALLOCATOR: test_support::allocations::Counting = test_support::allocations::Counting;

/// What the test and its threads share.
struct Shared {
    phase: AtomicU32,
    /// The supervisor's descriptor, once there is one. Not a channel: that would be a futex.
    listener: AtomicI32,
    futexes: AtomicU64,
}

const WARM_UP: u32 = 0;
const MEASURE: u32 = 1;
const END: u32 = 2;

/// From now on, each futex(2) of the calling thread is reported to the descriptor that is returned,
/// and waits until it was seen there.
fn report_futexes() -> OwnedFd {
    let statement = |code: u32, jump_if_not: u8, k: u32| libc::sock_filter {
        code: u16::try_from(code).unwrap(),
        jt: 0,
        jf: jump_if_not,
        k,
    };
    let futex = u32::try_from(libc::SYS_futex).unwrap();
    let mut filter = [
        // The number of the system call is the first field.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, futex),
        statement(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_USER_NOTIF),
        statement(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).unwrap(),
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: plain numbers.
    let restricted = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(restricted, 0);
    // SAFETY: the program and its instructions live until the call is over.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
            &raw const program,
        )
    };
    assert!(
        fd >= 0,
        "seccomp with user notification (Linux 5.5): {}",
        std::io::Error::last_os_error()
    );
    // SAFETY: a new descriptor without another owner.
    unsafe { OwnedFd::from_raw_fd(i32::try_from(fd).unwrap()) }
}

/// Counts what is reported, and lets it happen, until the reporting thread is gone.
fn supervise(shared: &Shared) {
    let listener = loop {
        match shared.listener.load(Ordering::Acquire) {
            -1 => thread::sleep(Duration::from_millis(1)),
            listener => break listener,
        }
    };
    loop {
        let mut events = libc::pollfd {
            fd: listener,
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one entry.
        unsafe { libc::poll(&raw mut events, 1, -1) };
        if events.revents & libc::POLLIN == 0 {
            return;
        }
        // SAFETY: integers only.
        let mut call: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: the structure that this request fills.
        if unsafe { libc::ioctl(listener, libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut call) } != 0 {
            // The thread went away in between.
            continue;
        }
        shared.futexes.fetch_add(1, Ordering::SeqCst);
        // SAFETY: integers only.
        let mut answer: libc::seccomp_notif_resp = unsafe { std::mem::zeroed() };
        answer.id = call.id;
        answer.flags = u32::try_from(libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE).unwrap();
        // SAFETY: the structure that this request reads.
        unsafe { libc::ioctl(listener, libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut answer) };
    }
}

/// An iothread, as `EventLoop::spawn` runs it, that measures itself between two phases: allocations, futex calls, and worker threads
/// at the end.
fn iothread(shared: &Shared, remote: &Sender<Remote<Message>>) -> (u64, u64, usize) {
    let settings = BackendSettings {
        pool: PoolSettings {
            name: "pool quiet".to_owned(),
            ..PoolSettings::default()
        },
        ..BackendSettings::default()
    };
    let poller = Epoll::new().unwrap();
    let mut iothread = queues_loop(poller, PollSettings::default(), settings);
    remote.send(iothread.remote()).unwrap();
    let mut run_while = |phase| {
        while shared.phase.load(Ordering::Acquire) == phase {
            assert!(iothread.iterate().unwrap());
        }
    };
    run_while(WARM_UP);

    let listener = report_futexes();
    let raw = std::os::fd::AsRawFd::as_raw_fd(&listener);
    shared.listener.store(raw, Ordering::Release);
    // Both counters count.
    let word = AtomicU32::new(0);
    // SAFETY: an address of our own, where no thread waits.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, 1) };
    assert_eq!(shared.futexes.load(Ordering::SeqCst), 1);
    let before = of_this_thread();
    drop(std::hint::black_box(vec![0_u8; 64]));
    assert_eq!(of_this_thread(), before + 1);

    let before = of_this_thread();
    run_while(MEASURE);
    let allocated = of_this_thread() - before;
    let threads = read_of_each_thread(rustix::process::getpid(), "comm");
    let workers = threads.iter().map(|thread| &thread.text);
    let measured = (
        allocated,
        shared.futexes.load(Ordering::SeqCst) - 1,
        workers
            .filter(|comm| comm.starts_with("pool quiet"))
            .count(),
    );
    drop(iothread);
    // Only the supervisor uses it, until this thread has ended.
    std::mem::forget(listener);
    measured
}

/// Reads, writes, neighbours that are merged, flushes; the guest sleeps whenever it can.
fn work(guest: &mut QueueDriver, requests: u64) {
    let (mut asked, mut answered) = (0, 0);
    while answered < requests {
        // Batches of all sizes, so that the loop runs full and runs dry.
        let depth = 1 + usize::try_from(asked % 37).unwrap();
        while asked < requests && guest.room() > 0 && guest.in_flight() < depth {
            match asked % 200 {
                0 => guest.ask(asked, FLUSH, 0, 0),
                tag if tag % 8 < 4 => guest.read(asked, asked % 1000),
                _ => guest.write(asked, asked % 1000, 3),
            }
            asked += 1;
        }
        guest.submit();
        for done in guest.wait_some() {
            assert_eq!(done.status, 0);
            answered += 1;
        }
    }
}

#[test]
fn the_thread_neither_allocates_nor_waits_for_a_lock() {
    for aio in CARRIERS {
        assert_eq!(measured(aio), (0, 0, 0), "{aio}");
    }
}

/// Counts allocations, futex calls and worker threads while a warmed-up iothread serves requests from a disk.
fn measured(aio: Aio) -> (u64, u64, usize) {
    let shared = Shared {
        phase: AtomicU32::new(WARM_UP),
        listener: AtomicI32::new(-1),
        futexes: AtomicU64::new(0),
    };
    let (disk, _folder) = disk_by(aio);
    thread::scope(|scope| {
        scope.spawn(|| supervise(&shared));
        let (started, start) = channel();
        let shared = &shared;
        let thread = scope.spawn(move || iothread(shared, &started));
        let remote = start.recv().unwrap();
        let enter = |phase| {
            shared.phase.store(phase, Ordering::Release);
            remote.waker().wake();
        };

        let mut guests = [QueueDriver::new(256, true), QueueDriver::new(128, false)];
        for guest in &guests {
            let (reply, answer) = channel();
            let setup = Box::new(guest.setup(&disk, 0));
            remote.send(Message::Start(setup, reply)).unwrap();
            answer.recv().unwrap().unwrap();
        }
        for guest in &mut guests {
            work(guest, 1000);
        }
        enter(MEASURE);
        for _ in 0..4 {
            for guest in &mut guests {
                work(guest, 2000);
            }
        }
        enter(END);
        thread.join().unwrap()
    })
}
