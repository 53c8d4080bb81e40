//! Tests of resizing open disks.

use std::fs;
use std::process::Command;
use std::sync::Arc;

use block::{Node, ResizeError};

use crate::harness::{Call, Rig, pattern};
use crate::storage::{LoopDevice, device, file, image, new_image, null, options, try_file, ways};

const LEN: u64 = 1 << 20;

/// Both steps of a resize.
fn resize(node: &Arc<Node>, size: u64) -> Result<(), ResizeError> {
    let end = node.check_size_and_compute_disk_end_offset(size)?;
    let size = node.size_if_disk_ends_at(end)?;
    node.set_file_or_image_end(end)?;
    node.record_new_size(size);
    Ok(())
}

#[test]
fn a_file_grows_with_zeroes_and_shrinks_for_good() {
    let (_folder, path) = new_image(LEN);
    for how in ways(&path) {
        fs::write(&path, pattern(1, 1 << 20)).unwrap();
        let node = file(&how);
        let mut rig = Rig::new();
        resize(&node, 2 * LEN).unwrap();
        assert_eq!((node.size(), node.geometry().size), (2 * LEN, 2 * LEN));
        assert_eq!(fs::metadata(&path).unwrap().len(), 2 * LEN);
        assert!(rig.read(&node, LEN, 65_536) == [0; 65_536]);
        rig.ok(&node, Call::write(2 * LEN - 4096, &[7; 4096]));
        resize(&node, 8192).unwrap();
        assert_eq!(fs::read(&path).unwrap(), &pattern(1, 1 << 20)[..8192]);
        resize(&node, LEN).unwrap();
        assert!(rig.read(&node, 8192, 65_536) == [0; 65_536]);
    }
}

#[test]
fn a_partial_last_sector_counts_and_so_does_a_change_from_outside() {
    let (_folder, path) = new_image(LEN);
    let node = file(&options(&path));
    let sizes = || (node.size(), fs::metadata(&path).unwrap().len());
    resize(&node, 1000).unwrap();
    assert_eq!(sizes(), (1024, 1000));
    let outside = fs::OpenOptions::new().write(true).open(&path).unwrap();
    outside.set_len(3 * LEN).unwrap();
    assert_eq!(sizes(), (1024, 3 * LEN));
    resize(&node, 3 * LEN).unwrap();
    assert_eq!(sizes(), (3 * LEN, 3 * LEN));
}

#[test]
fn windows_to_the_end_follow_a_resize_and_fixed_ones_are_not_cut() {
    let (folder, path) = new_image(LEN);
    let node = file(&options(&path));
    let window = |name: &str, below: &Arc<Node>, offset, size| {
        Node::new_window(name, below, offset, size, false, true).unwrap()
    };
    let tail = window("tail", &node, 65_536, None);
    let inner = window("inner", &tail, 4096, None);
    let fixed = window("fixed", &node, 0, Some(131_072));
    let inside = window("inside", &fixed, 4096, None);
    let other = file(&options(&image(&folder, "other", LEN)));
    assert!(inner.shares_disk_with(&node) && !other.shares_disk_with(&node));

    let end = inner
        .check_size_and_compute_disk_end_offset(2 * LEN)
        .unwrap();
    assert_eq!(end, 2 * LEN + 65_536 + 4096);
    assert_eq!(node.size_if_disk_ends_at(end).unwrap(), end);
    assert_eq!(tail.size_if_disk_ends_at(end).unwrap(), 2 * LEN + 4096);
    assert_eq!(inner.size_if_disk_ends_at(end).unwrap(), 2 * LEN);
    assert_eq!(fixed.size_if_disk_ends_at(end).unwrap(), 131_072);
    assert_eq!(fixed.size_if_disk_ends_at(131_072).unwrap(), 131_072);

    let error = fixed.size_if_disk_ends_at(131_071 - 512).unwrap_err();
    assert_eq!(
        error.to_string(),
        "node 'fixed' shows bytes 0 to 131072 of this disk, which would end at 130559: remove that \
         node first, or keep the disk larger"
    );
    let error = inner.size_if_disk_ends_at(65_536).unwrap_err();
    assert!(matches!(error, ResizeError::Cut { .. }), "{error}");
    for node in [&fixed, &inside] {
        let error = resize(node, LEN).unwrap_err();
        assert_eq!(error.to_string(), "Cannot resize fixed-size raw disks");
    }
}

#[test]
fn no_node_is_left_without_a_sector_nor_with_a_size_that_cannot_be_opened() {
    let (_folder, path) = new_image(LEN);
    let node = file(&options(&path));
    let tail = Node::new_window("tail", &node, 65_536, None, false, true).unwrap();
    let text = |node: &Arc<Node>, end| node.size_if_disk_ends_at(end).unwrap_err().to_string();
    let expected = format!(
        "node '{}' begins at byte 0 of this disk, which would end at 0, and needs at least one sector of 512 bytes: remove that \
         node first, or keep the disk larger",
        node.name()
    );
    assert_eq!(text(&node, 0), expected);
    let error = tail.size_if_disk_ends_at(65_536).unwrap_err();
    assert!(matches!(error, ResizeError::NoSector { start: 65_536, .. }));
    assert_eq!(tail.size_if_disk_ends_at(65_536 + 512).unwrap(), 512);
    for end in [1 << 63, u64::MAX] {
        let error = node.size_if_disk_ends_at(end).unwrap_err();
        assert!(matches!(error, ResizeError::TooLarge(_)), "{error}");
    }
}

#[test]
fn nodes_that_cannot_be_resized_report_why() {
    const MOST: u64 = 0x7fff_ffff_c000_0000;
    let (_folder, path) = new_image(LEN);
    let error = |node: &Arc<Node>, size| resize(node, size).unwrap_err().to_string();
    let no_driver = error(&null(0, false), LEN);
    assert_eq!(no_driver, "Image format driver does not support resize");
    let read_only = error(&try_file(&options(&path), true).unwrap(), LEN);
    assert_eq!(read_only, "Image is read-only");
    let node = file(&options(&path));
    let tail = Node::new_window("tail", &node, 4096, None, false, true).unwrap();
    for (node, size, offset) in [(&node, MOST + 1, MOST + 1), (&tail, MOST, MOST + 4096)] {
        let expected = format!("offset({offset}) exceeds maximum({MOST})");
        assert_eq!(error(node, size), expected);
    }
    let too_large = error(&tail, (1 << 63) - 4096);
    assert_eq!(too_large, "Disk size too large for the chosen offset");
    // The file systems that tests run on have less.
    let too_large = error(&node, MOST);
    let expected = "Could not resize file: File too large";
    assert!(too_large.starts_with(expected), "{too_large}");
    assert_eq!(fs::metadata(&path).unwrap().len(), LEN);
}

#[test]
fn a_block_device_cannot_be_resized() {
    let Some(disk) = LoopDevice::new(LEN, 512) else {
        return;
    };
    let node = device(&options(&disk.path));
    let error = resize(&node, LEN + 512).unwrap_err().to_string();
    assert!(error.starts_with("Cannot grow device files"), "{error}");
    // As in QEMU a smaller size means the real one.
    resize(&node, 512).unwrap();
    assert_eq!(node.size(), LEN);
    let image = fs::OpenOptions::new().write(true).open(&disk.image);
    image.unwrap().set_len(2 * LEN).unwrap();
    let grown = Command::new("losetup").arg("-c").arg(&disk.path).status();
    assert!(grown.unwrap().success());
    assert_eq!(node.size(), LEN);
    resize(&node, 2 * LEN).unwrap();
    assert_eq!(node.size(), 2 * LEN);
    let mut rig = Rig::new();
    let data = pattern(1, 4096);
    rig.ok(&node, Call::write(2 * LEN - 4096, &data));
    assert!(rig.read(&node, 2 * LEN - 4096, 4096) == data);
}
