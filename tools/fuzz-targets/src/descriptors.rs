//! File descriptors that a front-end may pass, suitable and unsuitable.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::pwrite;
use test_support::events::event as new_event;
use test_support::vfio_user::memory as new_memory;

use crate::input::Input;

/// Bytes of memory that can be shared.
pub const BYTES: u64 = 64 << 10;

thread_local! {
    /// They stay open for ever.
    static ALL: &'static [OwnedFd] = {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().expect("sockets");
        Box::leak(Box::new([
            new_memory(BYTES),
            new_event(),
            new_memory(100),
            new_event(),
            ours.into(),
            theirs.into(),
        ]))
    };
}

fn all() -> &'static [OwnedFd] {
    ALL.with(|all| *all)
}

/// Memory of [`BYTES`].
pub fn memory() -> BorrowedFd<'static> {
    all()[0].as_fd()
}

/// It is zero again.
pub fn clear() {
    let zeroes = [0; 4096];
    for page in (0..BYTES).step_by(zeroes.len()) {
        write(page, &zeroes);
    }
}

/// Writes there, as a guest does.
pub fn write(at: u64, bytes: &[u8]) {
    let len = bytes
        .len()
        .min(usize::try_from(BYTES.saturating_sub(at)).expect("64 bits"));
    pwrite(memory(), &bytes[..len], at).expect("within the file");
}

/// An eventfd.
pub fn event() -> BorrowedFd<'static> {
    all()[1].as_fd()
}

/// Some.
pub fn some(input: &mut Input) -> Vec<BorrowedFd<'static>> {
    let count = match input.below(8) {
        0..=4 => 1,
        5 | 6 => 0,
        _ => input.below(20),
    };
    let all = all();
    (0..count)
        .map(|_| all[input.below(all.len())].as_fd())
        .collect()
}
