//! Tests of the memory table: invalid regions are refused, and guest addresses are translated.

use std::ptr;
use std::sync::Arc;

use virtqueue::testing::{TestMemory, USER_ADDR_OFFSET};
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
fn an_empty_table_holds_nothing() {
    let memory = table(vec![]).unwrap();
    assert_eq!(memory.regions().len(), 0);
    assert_eq!(
        memory.host_addr_of_range(0, 1),
        Err(MemoryError::Outside {
            guest_addr: 0,
            len: 1
        })
    );
    assert_eq!(memory.user_to_guest(0), None);
}

#[test]
fn a_region_of_zero_bytes_is_refused() {
    let error = refused(vec![region(0x1000, 0, 0, 0x1000)]);
    assert_eq!(error, MemoryError::ZeroLength { guest_addr: 0x1000 });
}

#[test]
fn an_unmapped_region_is_refused() {
    let error = refused(vec![region(0x1000, 0, 0x1000, 0)]);
    assert_eq!(error, MemoryError::NotMapped { guest_addr: 0x1000 });
}

#[test]
fn a_region_beyond_the_end_of_an_address_space_is_refused() {
    let last_page = u64::MAX - 0xfff;
    let wraps = |guest_addr, len, space| MemoryError::WrapAround {
        guest_addr,
        len,
        space,
    };

    let error = refused(vec![region(last_page, 0, 0x1001, 0x1000)]);
    assert_eq!(error, wraps(last_page, 0x1001, "guest"));
    let error = refused(vec![region(0, last_page, 0x1001, 0x1000)]);
    assert_eq!(error, wraps(0, 0x1001, "front-end"));
    let error = refused(vec![region(0, 0, 0x1001, usize::MAX - 0xfff)]);
    assert_eq!(error, wraps(0, 0x1001, "host"));
    let error = refused(vec![region(0, 0, 1 << 63, 0x1000)]);
    assert_eq!(error, wraps(0, 1 << 63, "host"));

    // The last byte of an address space may be used.
    let memory = table(vec![region(last_page, last_page, 0x1000, 0x1000)]).unwrap();
    assert_eq!(
        memory.host_addr_of_range(u64::MAX, 1).unwrap().addr().get(),
        0x1fff
    );
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

#[test]
fn regions_are_sorted_by_guest_address() {
    let memory = table(vec![
        region(0x3000, 0, 0x1000, 0x10_0000),
        region(0x1000, 0, 0x1000, 0x20_0000),
        region(0x2000, 0, 0x1000, 0x30_0000),
    ])
    .unwrap();
    let order: Vec<_> = memory
        .regions()
        .iter()
        .map(|region| region.guest_addr)
        .collect();
    assert_eq!(order, [0x1000, 0x2000, 0x3000]);
}

#[test]
fn a_range_must_be_inside_one_region() {
    // Two adjacent regions, and one apart.
    let memory = table(vec![
        region(0x1000, 0, 0x1000, 0x10_0000),
        region(0x2000, 0, 0x1000, 0x20_0000),
        region(0x8000, 0, 0x1000, 0x30_0000),
    ])
    .unwrap();
    let host = |addr, len| {
        memory
            .host_addr_of_range(addr, len)
            .ok()
            .map(|host| host.addr().get())
    };

    assert_eq!(host(0x1000, 0x1000), Some(0x10_0000));
    assert_eq!(host(0x1fff, 1), Some(0x10_0fff));
    assert_eq!(host(0x2000, 1), Some(0x20_0000));
    assert_eq!(host(0x8123, 0x10), Some(0x30_0123));

    assert_eq!(host(0xfff, 1), None, "below all");
    assert_eq!(host(0xfff, 2), None, "begins below");
    assert_eq!(host(0x1fff, 2), None, "across adjacent regions");
    assert_eq!(host(0x3000, 1), None, "in the gap");
    assert_eq!(host(0x8000, 0x1001), None, "ends behind");
    assert_eq!(host(0x9000, 1), None, "above all");
    assert_eq!(
        host(0x8fff, u64::MAX),
        None,
        "longer than the address space"
    );
    assert_eq!(host(u64::MAX, 1), None);
}

#[test]
fn front_end_addresses_are_translated() {
    let memory = table(vec![
        region(0x1000, 0x7000_0000, 0x1000, 0x10_0000),
        region(0x8000, 0x6000_0000, 0x1000, 0x20_0000),
    ])
    .unwrap();
    assert_eq!(memory.user_to_guest(0x7000_0000), Some(0x1000));
    assert_eq!(memory.user_to_guest(0x7000_0fff), Some(0x1fff));
    assert_eq!(memory.user_to_guest(0x6000_0010), Some(0x8010));
    assert_eq!(memory.user_to_guest(0x7000_1000), None);
    assert_eq!(memory.user_to_guest(0x6fff_ffff), None);
    assert_eq!(memory.user_to_guest(0x1000), None);
}

#[test]
fn the_owner_lives_as_long_as_the_table() {
    let owner = Arc::new(());
    let shared = Region {
        owner: owner.clone(),
        ..region(0x1000, 0, 0x1000, 0x1000)
    };
    let memory = table(vec![shared]).unwrap();
    assert_eq!(Arc::strong_count(&owner), 2);
    drop(memory);
    assert_eq!(Arc::strong_count(&owner), 1);
}

#[test]
fn test_memory_is_what_it_says() {
    let memory = TestMemory::with_regions(&[(0x2000, 0x800), (0x1000, 0x1000)]);
    let bytes: Vec<u8> = (0..=255).collect();
    memory.write(0x1f80, &bytes);
    assert_eq!(memory.read(0x1f80, 256), bytes, "across both regions");
    assert_eq!(memory.remap().regions().len(), 2);
    assert_eq!(
        memory.read(0x1f80, 256),
        bytes,
        "the same memory, mapped anew"
    );
    let user_addr = memory.user_addr(0x2010);
    assert_eq!(user_addr, 0x2010 + USER_ADDR_OFFSET);
    assert_eq!(memory.guest_memory().user_to_guest(user_addr), Some(0x2010));
    memory.check_canaries();
}

#[test]
#[should_panic(expected = "was changed")]
fn test_memory_notices_a_write_behind_its_end() {
    let memory = TestMemory::new(100);
    let start = memory.guest_memory().regions()[0].host;
    // SAFETY: behind the region, but inside the page that is mapped for it.
    unsafe { start.add(100).write(0) };
    memory.check_canaries();
}
