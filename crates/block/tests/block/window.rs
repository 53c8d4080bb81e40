//! Windows onto a part of a disk: what the `raw` driver makes.

use std::fs;
use std::sync::Arc;

use block::{FileOptions, Node, NodeError};

use crate::harness::{Call, Rig, pattern};
use crate::storage::{
    LoopDevice, allocated, device, file, folder, image, new_image, options, try_file, ways,
};

const LEN: u64 = 1 << 20;

fn window(below: &Arc<Node>, offset: u64, size: Option<u64>) -> Result<Arc<Node>, NodeError> {
    Node::new_window("part", below, offset, size, false, true)
}

#[test]
fn requests_land_in_the_window() {
    let (_folder, path) = new_image(LEN);
    for how in ways(&path) {
        fs::write(&path, pattern(1, 1 << 20)).unwrap();
        let mut model = pattern(1, 1 << 20);
        let node = file(&how);
        let outer = window(&node, 65_536, Some(131_072)).unwrap();
        let inner = window(&outer, 4096, None).unwrap();
        assert_eq!(outer.geometry().size, 131_072);
        assert_eq!(inner.geometry().size, 126_976);
        assert_eq!((outer.name(), inner.aio()), ("part", node.aio()));
        let mut rig = Rig::new();
        let base = 65_536 + 4096;
        let place = |model: &mut Vec<u8>, at: usize, data: &[u8]| {
            model[base + at..base + at + data.len()].copy_from_slice(data);
        };
        let data = pattern(2, 8192);
        rig.ok(&inner, Call::write(0, &data));
        place(&mut model, 0, &data);
        rig.ok(&inner, Call::write(16_384, &data).skewed(1));
        place(&mut model, 16_384, &data);
        rig.ok(&inner, Call::write_zeroes(32_768, 1024, false));
        place(&mut model, 32_768, &[0; 1024]);
        rig.ok(&inner, Call::discard(40_960, 4096));
        place(&mut model, 40_960, &[0; 4096]);
        assert!(rig.read(&inner, 0, 65_536) == model[base..base + 65_536]);
        let skewed = Call::read(512, 65_536).skewed(7);
        assert!(rig.ok(&inner, skewed) == model[base + 512..base + 512 + 65_536]);
        assert!(fs::read(&path).unwrap() == model);
    }
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
    part.set_guest_block_size(512).unwrap();
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
    let folder = folder();
    let node = file(&options(&image(&folder, "disk", LEN)));
    for (offset, size, text) in [
        (0, Some(LEN), None),
        (LEN - 512, None, None),
        (LEN - 512, Some(512), None),
        (
            LEN - 512,
            Some(1024),
            Some(
                "size=1024 at offset=1048064 does not lie within the 1048576 bytes of node 'disk'",
            ),
        ),
        (
            LEN,
            None,
            Some("size=0 at offset=1048576 does not lie within the 1048576 bytes of node 'disk'"),
        ),
        (
            LEN,
            Some(512),
            Some("size=512 at offset=1048576 does not lie within the 1048576 bytes of node 'disk'"),
        ),
        (
            u64::MAX - 511,
            Some(1024),
            Some(
                "size=1024 at offset=18446744073709551104 does not lie within the 1048576 bytes of node 'disk'",
            ),
        ),
        (
            512,
            Some(u64::MAX - 511),
            Some(
                "size=18446744073709551104 at offset=512 does not lie within the 1048576 bytes of node 'disk'",
            ),
        ),
        (
            0,
            Some(0),
            Some("size=0 is no disk: it needs at least 512 bytes"),
        ),
        (0, Some(1000), Some("size=1000 is not a multiple of 512")),
        (
            100,
            None,
            Some("offset=100 is not a multiple of the block of 512 bytes of node 'disk'"),
        ),
    ] {
        let made = window(&node, offset, size).map(drop);
        let said = made.err().map(|error| error.to_string());
        let expected = text.map(str::to_owned);
        assert_eq!(said, expected, "{size:?} bytes at {offset}");
    }
}

#[test]
fn discards_pass_when_window_and_disk_let_them() {
    let folder = folder();
    let path = folder.path().join("disk");
    for (below, above) in [(true, true), (true, false), (false, true), (false, false)] {
        fs::write(&path, pattern(1, 1 << 20)).unwrap();
        let full = allocated(&path);
        let node = file(&FileOptions {
            unmap: below,
            ..options(&path)
        });
        let part = Node::new_window("part", &node, 0, None, false, above).unwrap();
        assert_eq!(part.passes_discards(), below && above);
        Rig::new().ok(&part, Call::discard(0, 1 << 20));
        assert_eq!(allocated(&path) < full, below && above, "{below} {above}");
        // So with zeroes that may give space back.
        fs::write(&path, pattern(1, 1 << 20)).unwrap();
        Rig::new().ok(&part, Call::write_zeroes(0, 1 << 20, true));
        assert_eq!(allocated(&path) < full, below && above, "{below} {above}");
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
