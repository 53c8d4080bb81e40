//! Environment variables that change what tests do: a run sets them, and a contributor's own are removed.

use std::process::Command;

/// Variables that make tests longer in a full run.
pub(crate) const FULL_RUN_SETTINGS: [(&str, &str); 4] = [
    ("BLOCKPLANE_KILLS", "500"),
    ("BLOCKPLANE_OPENS", "1000"),
    ("BLOCKPLANE_OSD_KILLS", "10"),
    ("BLOCKPLANE_RBD_UPGRADES", "10"),
];

/// What a contributor has set would have another program tested, make tests shorter, or let them record what they should compare.
pub(crate) fn remove_settings_of_contributor(command: &mut Command) {
    let lengths = FULL_RUN_SETTINGS.map(|(name, _)| name).into_iter();
    let others = [
        "BLOCKPLANE_BIN",
        "BLOCKPLANE_BENCH_BIN",
        "UPDATE_EXPECT",
        "PROPTEST_CASES",
    ];
    for name in lengths.chain(others) {
        command.env_remove(name);
    }
}
