//! An allow-list: what tests may lack on a machine.

/// Reasons, or parts of them, for which a test may report that it does not run where continuous integration runs: what that machine
/// lacks and cannot install.
const MAY_BE_MISSING: [&str; 3] = [
    // Its kernel has no CONFIG_UPROBE_EVENTS; the tests of tracepoints without it run.
    "no user probes by /sys/kernel/tracing",
    // Linux before 6.5, and file systems without a page cache of dirty pages.
    "cachestat(2)",
    // A bug of some releases of the program that ours is compared with.
    "at which qemu-storage-daemon",
];

/// Whether a test may not run for this reason. Elsewhere than in continuous integration (`CI` is set in the environment) it may
/// for any reason: a contributor's machine may lack root rights, loop devices, or a kernel's feature.
pub(super) fn may_not_run(reason: &str) -> bool {
    let is_strict = std::env::var_os("CI").is_some();
    !is_strict || MAY_BE_MISSING.iter().any(|known| reason.contains(known))
}
