//! Tests of allocated parts of a disk.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use block::{Allocation, Node};

use crate::storage::{LoopDevice, device, file, new_image, null, options, ways};

const MIB: u64 = 1 << 20;

fn pieces(node: &Arc<Node>, offset: u64, len: u64, most: usize) -> Vec<(u64, bool)> {
    let mut found = node.allocations(offset, len, most).unwrap();
    Allocation::cut(&mut found, len);
    let pairs = found.iter().map(|piece| (piece.len, piece.allocated));
    pairs.collect()
}

#[test]
fn holes_of_a_file_are_not_allocated() {
    let (_folder, path) = new_image(8 * MIB);
    let image = File::options().write(true).open(&path).unwrap();
    for at in [MIB, 2 * MIB, 5 * MIB] {
        image.write_all_at(&[1; 1 << 20], at).unwrap();
    }
    for how in ways(&path) {
        let node = file(&how);
        let all = [
            (MIB, false),
            (2 * MIB, true),
            (2 * MIB, false),
            (MIB, true),
            (2 * MIB, false),
        ];
        assert_eq!(pieces(&node, 0, 8 * MIB, 100), all);
        assert_eq!(
            pieces(&node, 0, 8 * MIB, 2),
            all[..2],
            "no more than was asked for"
        );
        let part = pieces(&node, MIB + 4096, 2 * MIB, 100);
        assert_eq!(part, [(2 * MIB - 4096, true), (4096, false)]);
        assert_eq!(pieces(&node, 0, 0, 100), []);
        let uncut = node.allocations(0, MIB / 2, 1).unwrap();
        assert_eq!(uncut[0].len, MIB, "as far as it is known");
        let window = Node::new_window("part", &node, 2 * MIB, Some(4 * MIB), false, true).unwrap();
        let within = [(MIB, true), (2 * MIB, false), (MIB, true)];
        assert_eq!(pieces(&window, 0, 4 * MIB, 100), within);
        let short = Node::new_window("short", &node, MIB, Some(MIB), false, true).unwrap();
        let uncut = short.allocations(0, 4096, 1).unwrap();
        assert_eq!(uncut[0].len, MIB, "the window ends there");
    }
    fs::remove_file(&path).unwrap();
}

#[test]
fn a_disk_that_does_not_report_it_counts_as_allocated() {
    assert_eq!(pieces(&null(0, true), 0, MIB, 1), [(MIB, true)]);
    let Some(disk) = LoopDevice::new(MIB, 512) else {
        return;
    };
    let node = device(&options(&disk.path));
    assert_eq!(pieces(&node, 4096, 8192, 9), [(8192, true)]);
}
