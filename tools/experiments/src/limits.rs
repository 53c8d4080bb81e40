//! The limit on descriptors of this process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What the program itself and its libraries may open beside what is measured.
const RESERVE: u64 = 64;

/// Raises the soft limit of `RLIMIT_NOFILE` (`getrlimit(2)`) to the hard one, which takes no
/// rights, and returns it.
#[must_use]
pub(crate) fn raise_descriptor_limit() -> u64 {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    // Fails only where the limit is what it may be at most already.
    let _ = setrlimit(Resource::Nofile, raised);
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Descriptors that can still be opened under a limit of `limit`.
#[must_use]
pub(crate) fn descriptors_left(limit: u64) -> usize {
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let left = limit.saturating_sub(open as u64).saturating_sub(RESERVE);
    usize::try_from(left).unwrap_or(usize::MAX)
}
