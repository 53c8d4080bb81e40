//! Drops all capabilities (capabilities(7)) of the calling thread but the few that the process, or an iothread, needs.

use rustix::io;
use rustix::thread::{
    CapabilitySet, capabilities, capability_is_in_bounding_set,
    remove_capability_from_bounding_set, set_capabilities,
};

/// To open disks of other users, as root can, and to pin guest memory.
pub(crate) const PROCESS_CAPABILITIES: CapabilitySet = CapabilitySet::DAC_OVERRIDE
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(IOTHREAD_CAPABILITIES);

/// To read keyrings of other users, as root can.
pub(crate) const NETWORK_CLIENT_CAPABILITIES: CapabilitySet = CapabilitySet::DAC_READ_SEARCH;

/// Buffers that are registered with a ring count as locked memory.
pub(crate) const IOTHREAD_CAPABILITIES: CapabilitySet = CapabilitySet::IPC_LOCK;

const CAPABILITY_NAMES: [(CapabilitySet, &str); 3] = [
    (CapabilitySet::DAC_OVERRIDE, "CAP_DAC_OVERRIDE"),
    (CapabilitySet::DAC_READ_SEARCH, "CAP_DAC_READ_SEARCH"),
    (CapabilitySet::IPC_LOCK, "CAP_IPC_LOCK"),
];

/// Drops all capabilities of the calling thread but these, and returns the names of those that it has kept.
pub(crate) fn drop_all_but(wanted: CapabilitySet) -> io::Result<Vec<&'static str>> {
    let mut sets = capabilities(None)?;
    if sets.effective.contains(CapabilitySet::SETPCAP) {
        // So that no program that it might execute gets them back.
        for capability in CapabilitySet::all().difference(wanted).iter() {
            if capability_is_in_bounding_set(capability).unwrap_or(false) {
                remove_capability_from_bounding_set(capability)?;
            }
        }
    }
    let old_sets = sets;
    sets.permitted &= wanted;
    sets.effective &= wanted;
    sets.inheritable = CapabilitySet::empty();
    // A process without capabilities may not be allowed to drop any: a service manager's filter may refuse the call.
    if sets != old_sets {
        set_capabilities(None, sets)?;
    }
    let kept = CAPABILITY_NAMES
        .iter()
        .filter(|(capability, _)| sets.effective.contains(*capability));
    Ok(kept.map(|(_, name)| *name).collect())
}
