//! Windows onto a part of a disk: what the `raw` driver makes.

use std::sync::Arc;

use block::{Node, NodeError};

use crate::harness::{Call, Rig, pattern};
use crate::storage::{LoopDevice, device, file, new_image, options, try_file};

const LEN: u64 = 1 << 20;

fn window(below: &Arc<Node>, offset: u64, size: Option<u64>) -> Result<Arc<Node>, NodeError> {
    Node::new_window("part", below, offset, size, false, true)
}

#[test]
fn windows_on_large_blocks() {
    let Some(disk) = LoopDevice::new(LEN, 4096) else {
        return;
    };
    let node = device(&options(&disk.path));
    // A window may end within a block, but not begin there.
    assert!(window(&node, 512, Some(4096)).is_err());
    let part = window(&node, 8192, Some(4608)).unwrap();
    part.set_guest_block_size(512).unwrap().keep();
    let mut rig = Rig::new();
    let data = pattern(1, 512);
    rig.ok(&part, Call::write(4096, &data));
    let mut block = data.clone();
    block.resize(4096, 0);
    assert!(rig.read(&node, 12_288, 4096) == block);
    // Which need not be aligned relative to the window to be seen in its place.
    assert!(rig.read(&part, 4096, 512) == data);
}

#[test]
fn a_window_must_lie_in_its_disk() {
    let (_folder, path) = new_image(LEN);
    let node = file(&options(&path));
    for (offset, size) in [(0, Some(LEN)), (LEN - 512, None), (LEN - 512, Some(512))] {
        window(&node, offset, size).unwrap();
    }
    let says = |offset, size| {
        window(&node, offset, size)
            .map(drop)
            .unwrap_err()
            .to_string()
    };
    for (offset, size) in [
        (LEN - 512, Some(1024)),
        (LEN, None),
        (LEN, Some(512)),
        (u64::MAX - 511, Some(1024)),
        (512, Some(u64::MAX - 511)),
    ] {
        let expected = format!(
            "size={} at offset={offset} does not lie within the 1048576 bytes of node 'disk'",
            size.unwrap_or(0)
        );
        assert_eq!(says(offset, size), expected);
    }
    for (offset, size, expected) in [
        (0, Some(0), "size=0 is no disk"),
        (0, Some(1000), "size=1000 is not a multiple of 512"),
        (
            100,
            None,
            "offset=100 is not a multiple of the block of 512",
        ),
    ] {
        assert!(says(offset, size).starts_with(expected), "{expected}");
    }
}

#[test]
fn what_is_below_read_only_stays_read_only() {
    let (_folder, path) = new_image(LEN);
    for (below, above) in [(true, true), (true, false), (false, true), (false, false)] {
        let node = try_file(&options(&path), below).unwrap();
        let part = Node::new_window("part", &node, 0, None, above, true).unwrap();
        assert_eq!(part.read_only(), below || above);
    }
}

/// The file stays open and locked as long as a window needs it.
#[test]
fn a_window_keeps_its_disk() {
    let (_folder, path) = new_image(LEN);
    let node = file(&options(&path));
    let part = window(&node, 512, None).unwrap();
    drop(node);
    assert!(matches!(
        try_file(&options(&path), false),
        Err(NodeError::Locked { .. })
    ));
    Rig::new().ok(&part, Call::write(0, &[1; 512]));
    drop(part);
    file(&options(&path));
}
