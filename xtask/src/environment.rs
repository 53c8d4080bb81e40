//! Variables that choose what tests test, make them longer or let them record, for a run and not for a contributor to set.

use std::process::Command;

/// What makes tests longer in a full run.
pub(crate) const LONGER: [(&str, &str); 4] = [
    ("BLOCKPLANE_KILLS", "500"),
    ("BLOCKPLANE_OPENS", "1000"),
    ("BLOCKPLANE_OSD_KILLS", "10"),
    ("BLOCKPLANE_RBD_UPGRADES", "10"),
];

/// What a contributor has set would have another program tested, make tests shorter, or let them record what they should compare.
pub(crate) fn remove_settings_of_contributor(command: &mut Command) {
    let lengths = LONGER.map(|(name, _)| name).into_iter();
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
