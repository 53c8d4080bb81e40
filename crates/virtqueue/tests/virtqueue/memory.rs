//! Tests of the memory table: invalid regions are refused, and guest addresses are translated.

use std::ptr;
use std::sync::Arc;

use virtqueue::{GuestMemory, MemoryError, Region};

/// A region that is never accessed: the table only calculates with its addresses.
fn region(guest_addr: u64, user_addr: u64, len: u64, host: usize) -> Region {
    let host = ptr::without_provenance_mut(host);
    Region {
        guest_addr,
        user_addr,
        len,
        host,
        owner: Arc::new(()),
    }
}

fn table(regions: Vec<Region>) -> Result<GuestMemory, MemoryError> {
    // SAFETY: no code in this file accesses the memory at the addresses.
    unsafe { GuestMemory::new(regions) }
}

fn refused(regions: Vec<Region>) -> MemoryError {
    table(regions).unwrap_err()
}

#[test]
fn regions_must_be_mapped_and_not_pass_the_end_of_an_address_space() {
    let (guest_addr, last_page) = (0x1000, u64::MAX - 0xfff);
    let wraps = |guest_addr, len, space| MemoryError::WrapAround {
        guest_addr,
        len,
        space,
    };
    for (invalid, error) in [
        (
            region(0x1000, 0, 0, 0x1000),
            MemoryError::ZeroLength { guest_addr },
        ),
        (
            region(0x1000, 0, 0x1000, 0),
            MemoryError::NotMapped { guest_addr },
        ),
        (
            region(last_page, 0, 0x1001, 0x1000),
            wraps(last_page, 0x1001, "guest"),
        ),
        (
            region(0, last_page, 0x1001, 0x1000),
            wraps(0, 0x1001, "front-end"),
        ),
        (
            region(0, 0, 0x1001, usize::MAX - 0xfff),
            wraps(0, 0x1001, "host"),
        ),
        (region(0, 0, 1 << 63, 0x1000), wraps(0, 1 << 63, "host")),
    ] {
        assert_eq!(refused(vec![invalid]), error);
    }
    // The last byte of an address space may be used.
    let memory = table(vec![region(last_page, last_page, 0x1000, 0x1000)]).unwrap();
    let last_byte = memory.host_addr_of_range(u64::MAX, 1).unwrap();
    assert_eq!(last_byte.addr().get(), 0x1fff);
    assert_eq!(memory.user_to_guest(u64::MAX), Some(u64::MAX));
}

#[test]
fn overlapping_guest_addresses_are_refused_in_any_order() {
    let low = region(0x1000, 0, 0x1001, 0x10_0000);
    let high = region(0x2000, 0x10_0000, 0x1000, 0x20_0000);
    let overlap = MemoryError::Overlap {
        first: 0x1000,
        first_len: 0x1001,
        second: 0x2000,
    };
    assert_eq!(refused(vec![low.clone(), high.clone()]), overlap);
    assert_eq!(refused(vec![high.clone(), low.clone()]), overlap);

    let inside = region(0x1800, 0, 0x10, 0x30_0000);
    assert!(table(vec![low.clone(), inside]).is_err());
    assert!(table(vec![low.clone(), low.clone()]).is_err());

    let adjacent = Region { len: 0x1000, ..low };
    assert!(table(vec![high, adjacent]).is_ok());
}

/// Two adjacent regions, and one apart.
fn three_regions() -> GuestMemory {
    table(vec![
        region(0x8000, 0x6000_0000, 0x1000, 0x30_0000),
        region(0x1000, 0x7000_0000, 0x1000, 0x10_0000),
        region(0x2000, 0x5000_0000, 0x1000, 0x20_0000),
    ])
    .unwrap()
}

#[test]
fn a_range_must_be_inside_one_region() {
    let memory = three_regions();
    for (addr, len, expected) in [
        (0x1000, 0x1000, Some(0x10_0000)),
        (0x1fff, 1, Some(0x10_0fff)),
        (0x2000, 1, Some(0x20_0000)),
        (0x8123, 0x10, Some(0x30_0123)),
        // Below all of them, across two, in the gap, behind.
        (0xfff, 1, None),
        (0xfff, 2, None),
        (0x1fff, 2, None),
        (0x3000, 1, None),
        (0x8000, 0x1001, None),
        (0x9000, 1, None),
        (0x8fff, u64::MAX, None),
        (u64::MAX, 1, None),
    ] {
        let host = memory.host_addr_of_range(addr, len);
        let host = host.ok().map(|host| host.addr().get());
        assert_eq!(host, expected, "{len:#x} bytes at {addr:#x}");
    }
}

#[test]
fn front_end_addresses_are_translated() {
    let memory = three_regions();
    for (user_addr, expected) in [
        (0x7000_0000, Some(0x1000)),
        (0x7000_0fff, Some(0x1fff)),
        (0x6000_0010, Some(0x8010)),
        (0x7000_1000, None),
        (0x6fff_ffff, None),
        (0x1000, None),
    ] {
        assert_eq!(memory.user_to_guest(user_addr), expected, "{user_addr:#x}");
    }
}

#[test]
fn the_owner_lives_as_long_as_the_table() {
    let owner = Arc::new(());
    let mut shared = region(0x1000, 0, 0x1000, 0x1000);
    shared.owner = owner.clone();
    let memory = table(vec![shared]).unwrap();
    assert_eq!(Arc::strong_count(&owner), 2);
    drop(memory);
    assert_eq!(Arc::strong_count(&owner), 1);
}
