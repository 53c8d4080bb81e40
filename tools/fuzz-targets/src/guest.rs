//! Guest memory, and checks for unexpected changes of it.

use std::sync::Arc;

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};
use virtqueue::{GuestMemory, Region};

use crate::input::Input;

/// Regions of guest memory: address and bytes. The first two are next to each other, and are mapped apart.
const REGIONS: [(u64, usize); 3] = [
    (0x1_0000, 0x8000),
    (0x1_8000, 0x2000),
    (0x1_0000_0000, 0x1000),
];

const PAGE: usize = 4096;

/// What is above a guest address where the front-end sees it.
const USER: u64 = 0x7f00_0000_0000;

thread_local! {
    /// Addresses of the mappings, which are never removed, each between two guard pages.
    static MAPPED: [*mut u8; REGIONS.len()] = REGIONS.map(|(_, len)| {
        let whole = len + 2 * PAGE;
        // SAFETY: a new mapping, whose middle is opened up.
        unsafe {
            let none = ProtFlags::empty();
            let start = mmap_anonymous(std::ptr::null_mut(), whole, none, MapFlags::PRIVATE);
            let inside = start.expect("memory").byte_add(PAGE);
            let access = MprotectFlags::READ | MprotectFlags::WRITE;
            mprotect(inside, len, access).expect("memory");
            inside.cast()
        }
    });
}

fn mapped() -> [*mut u8; REGIONS.len()] {
    MAPPED.with(|mapped| *mapped)
}

/// Guest memory, zero at first.
pub struct Memory {
    pub map: Arc<GuestMemory>,
}

impl Memory {
    pub fn new() -> Self {
        for ((_, len), host) in REGIONS.iter().zip(mapped()) {
            // SAFETY: all of the mapping, to which there is no reference.
            unsafe { host.write_bytes(0, *len) };
        }
        Memory { map: Memory::map() }
    }

    /// The same memory in another map.
    pub fn map() -> Arc<GuestMemory> {
        let places = REGIONS.iter().zip(mapped());
        let regions = places.map(|((guest_addr, len), host)| Region {
            guest_addr: *guest_addr,
            user_addr: guest_addr + USER,
            len: *len as u64,
            host,
            owner: Arc::new(()),
        });
        // SAFETY: never unmapped, and no references to it are made.
        Arc::new(unsafe { GuestMemory::new(regions.collect()) }.expect("sound regions"))
    }

    /// All of it, region by region.
    pub fn snapshot(&self) -> Vec<Vec<u8>> {
        let copy = |((_, len), host): (&(u64, usize), *mut u8)| {
            let mut bytes = vec![0; *len];
            // SAFETY: all of the mapping.
            unsafe { std::ptr::copy_nonoverlapping(host, bytes.as_mut_ptr(), *len) };
            bytes
        };
        REGIONS.iter().zip(mapped()).map(copy).collect()
    }

    /// Writes what is inside of memory.
    pub fn write(&self, addr: u64, bytes: &[u8]) {
        // Byte by byte only over a border of regions.
        if !self.map.write(addr, bytes) {
            for (byte, offset) in bytes.iter().zip(0..) {
                let _ = self.map.write(addr.wrapping_add(offset), &[*byte]);
            }
        }
    }

    pub fn read<const N: usize>(&self, addr: u64) -> [u8; N] {
        let mut bytes = [0; N];
        assert!(self.map.read(addr, &mut bytes), "{addr:#x}");
        bytes
    }

    pub fn read_u16(&self, addr: u64) -> u16 {
        u16::from_le_bytes(self.read(addr))
    }
}

/// What may have changed: host ranges.
#[derive(Default)]
pub struct WritableRanges(Vec<(usize, usize)>);

impl WritableRanges {
    pub fn add(&mut self, base: *const u8, len: usize) {
        self.0.push((base.addr(), base.addr() + len));
    }

    /// Nothing else has changed since.
    pub fn check(&self, before: &[Vec<u8>]) {
        for (before, host) in before.iter().zip(mapped()) {
            for (page, old) in before.chunks(PAGE).enumerate() {
                // SAFETY: within the mapping; nothing writes now.
                let now = unsafe { std::slice::from_raw_parts(host.add(page * PAGE), old.len()) };
                if old == now {
                    continue;
                }
                let first = host.addr() + page * PAGE;
                for offset in (0..old.len()).filter(|offset| old[*offset] != now[*offset]) {
                    let at = first + offset;
                    let inside = |(start, end): &(usize, usize)| (*start..*end).contains(&at);
                    assert!(
                        self.0.iter().any(inside),
                        "a byte outside of writable buffers was written: {offset:#x} of page {page}"
                    );
                }
            }
        }
    }
}

/// Some address: mostly inside memory.
pub fn address(input: &mut Input) -> u64 {
    let offset = u64::from(input.u16());
    match input.below(8) {
        0..=3 => 0x1_2000 + offset % 0x6000,
        4 => 0x1_8000 - 64 + offset % 128,
        5 => 0x1_8000 + offset % 0x2000,
        6 => 0x1_0000_0000 + offset % 0x1010,
        _ => input.u64(),
    }
}

/// Some length: mostly a short one.
pub fn length(input: &mut Input) -> u32 {
    match input.below(10) {
        0 => 0,
        1 => 1,
        2 => 16,
        3..=5 => 512,
        6 => 1024,
        7 => input.byte().into(),
        8 => input.u16().into(),
        _ => input.u32(),
    }
}
