//! Tests of registered guest memory, with several queues, maps and disks of one iothread.

use std::path::Path;
use std::sync::Arc;

use block::{AttachedDisk, Node, Op, Request};

use crate::harness::{Rig, pattern};
use crate::storage::{file, folder, image, options, ring};

const PAGE: usize = 4096;

/// A region of a guest's memory.
#[repr(C, align(4096))]
struct Page([u8; PAGE]);

impl Page {
    fn new() -> Box<Self> {
        Box::new(Page([0; PAGE]))
    }

    fn range(&self) -> (usize, usize) {
        (std::ptr::from_ref(self) as usize, PAGE)
    }
}

/// A disk that a ring carries, full of a pattern.
fn disk(path: &Path, seed: u64) -> Arc<Node> {
    std::fs::write(path, pattern(seed, PAGE)).unwrap();
    file(&ring(options(path)))
}

fn join(rig: &mut Rig, route: &AttachedDisk, key: usize, pages: &[&Page]) {
    let ranges = pages.iter().map(|page| page.range());
    // SAFETY: every test keeps its pages until all users have left, or the engines are dropped.
    unsafe { rig.io.register_memory_or_count_user(route, key, ranges) };
}

/// Reads a page of a disk into memory and checks it; whether the memory was registered.
fn is_registered(rig: &mut Rig, route: &AttachedDisk, seed: u64, page: &mut Page) -> bool {
    page.0.fill(0xee);
    let fixed = |rig: &Rig| rig.io.ring_stats().unwrap().fixed;
    let before = fixed(rig);
    let mut iov = libc::iovec {
        iov_base: page.0.as_mut_ptr().cast(),
        iov_len: PAGE,
    };
    let request = Request {
        op: Op::Read,
        fua: false,
        offset: 0,
        len: PAGE as u64,
        iov: &raw mut iov,
        iov_count: 1,
        token: 0,
    };
    // SAFETY: the page and the segment outlive the loop, which ends with the completion.
    unsafe { rig.io.submit(route, request) }.unwrap();
    rig.io.poll_tasks_and_submit();
    let mut out = Vec::new();
    while out.is_empty() {
        rig.io.reap_and_poll_tasks(&mut out);
        std::thread::yield_now();
    }
    assert_eq!(out[0].result, Ok(()));
    assert!(page.0[..] == pattern(seed, PAGE), "disk {seed}");
    fixed(rig) > before
}

#[test]
fn memory_of_a_guest_is_registered_while_its_queues_use_it() {
    if !test_support::report::has_io_uring() {
        return;
    }
    let folder = folder();
    let disks = [1, 2].map(|seed| disk(&image(&folder, &format!("{seed}"), 0), seed));
    let [mut one, mut two] = [Page::new(), Page::new()];
    let mut rig = Rig::new();
    let disks = disks.map(|node| rig.attach(&node));
    // Two queues of the first, one of the second.
    join(&mut rig, &disks[0], 1, &[&one]);
    join(&mut rig, &disks[0], 1, &[&one]);
    assert!(!is_registered(&mut rig, &disks[1], 2, &mut two));
    join(&mut rig, &disks[1], 2, &[&two]);
    assert!(is_registered(&mut rig, &disks[0], 1, &mut one));
    assert!(is_registered(&mut rig, &disks[1], 2, &mut two));
    rig.io.remove_memory_user(1);
    assert!(
        is_registered(&mut rig, &disks[0], 1, &mut one),
        "it has a user"
    );
    rig.io.remove_memory_user(1);
    assert!(
        !is_registered(&mut rig, &disks[0], 1, &mut one),
        "it has none"
    );
    assert!(is_registered(&mut rig, &disks[1], 2, &mut two), "another's");
    rig.io.remove_memory_user(2);
    assert!(!is_registered(&mut rig, &disks[1], 2, &mut two));
    // And once more, in the places that are free again.
    join(&mut rig, &disks[1], 3, &[&two]);
    assert!(is_registered(&mut rig, &disks[1], 2, &mut two));
}

/// A new map has most regions of the old one, and both are in use for a while.
#[test]
fn a_region_of_two_maps_is_registered_until_both_are_gone() {
    if !test_support::report::has_io_uring() {
        return;
    }
    let folder = folder();
    let node = disk(&image(&folder, "disk", 0), 1);
    let [mut shared, mut new] = [Page::new(), Page::new()];
    let mut rig = Rig::new();
    let route = rig.attach(&node);
    join(&mut rig, &route, 1, &[&shared]);
    join(&mut rig, &route, 2, &[&shared, &new]);
    rig.io.remove_memory_user(1);
    assert!(is_registered(&mut rig, &route, 1, &mut shared));
    assert!(is_registered(&mut rig, &route, 1, &mut new));
    rig.io.remove_memory_user(2);
    assert!(!is_registered(&mut rig, &route, 1, &mut shared));
    assert!(!is_registered(&mut rig, &route, 1, &mut new));
}
