//! Contradictory memory tables, and memory that cannot be mapped.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use crate::descriptors::{Kind, pipe, read_only_file};
use crate::front_end::*;
use crate::row::Answer::{self, Accepted, Dropped};
use crate::row::{DISCONNECTED, OK, Rows};
use crate::wire::*;

pub const MIB: u64 = 1 << 20;
const SHORT: &str = "has only 1048576 bytes";

/// A memory file.
pub fn memory_file(bytes: u64) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create("guest", flags).unwrap();
    ftruncate(&file, bytes).unwrap();
    file
}

/// A region as a message describes it.
pub fn region(guest_addr: u64, len: u64, user_addr: u64, offset: u64) -> Region {
    Region {
        guest_addr,
        len,
        user_addr,
        offset,
    }
}

/// Regions of 1 MiB, one after the other.
fn adjacent(count: u64) -> Vec<Region> {
    let addresses = (0..count).map(|number| number * MIB);
    addresses.map(|at| region(at, MIB, at, 0)).collect()
}

pub fn rows(rows: &mut Rows) {
    tables(rows);
    files(rows);
    slots(rows);
    crate::placement::rows(rows);
    crate::removed_memory::rows(rows);
}

/// Shares these regions of one file of 1 MiB.
fn share(guest: &mut HostileFrontEnd, request: u32, regions: &[Region]) -> Answer {
    let file = memory_file(MIB);
    if request == ADD_MEM_REG {
        let add = |region: &Region| guest.ask(request, &single_region(*region), &[file.as_fd()]);
        let mut answers = regions.iter().map(add);
        return answers
            .find(|answer| *answer != Accepted)
            .unwrap_or(Accepted);
    }
    let files = vec![file.as_fd(); regions.len()];
    guest.ask(SET_MEM_TABLE, &mem_table(regions), &files)
}

fn tables(rows: &mut Rows) {
    const TOP: u64 = u64::MAX - MIB + 4097;
    let overlapping = [region(0, MIB, 0, 0), region(MIB - 4096, 4096, MIB, 0)];
    let mut both = |what: &str, says, regions: &[Region]| {
        for (name, request) in [("SET", SET_MEM_TABLE), ("ADD", ADD_MEM_REG)] {
            let regions = regions.to_vec();
            let row = rows.negotiated(format!("{name}: {what}"), Dropped, move |guest| {
                share(guest, request, &regions)
            });
            row.says(says);
        }
    };
    both("guest addresses overlap", "overlap", &overlapping);
    both("the same twice", "overlap", &[region(0, MIB, 0, 0); 2]);
    both("longer than its file", SHORT, &[region(0, MIB + 1, 0, 0)]);
    both("beyond its file", SHORT, &[region(0, MIB, 0, 4096)]);
    both("1 TiB", SHORT, &[region(0, 1 << 40, 0, 0)]);
    for (what, region) in [
        ("2^63 bytes", region(0, 1 << 63, 0, 0)),
        ("no bytes", region(0, 0, 0, 0)),
        ("guest addresses wrap", region(TOP, MIB, 0, 0)),
        ("front-end addresses wrap", region(0, MIB, TOP, 0)),
        ("file offsets wrap", region(0, MIB, 0, TOP)),
        ("file offset 2^63", region(0, MIB, 0, 1 << 63)),
    ] {
        both(what, DISCONNECTED, &[region]);
    }
    let mut padded = mem_table(&adjacent(1));
    padded[4] = 1;
    for (what, payload, fds) in [
        ("no regions", mem_table(&[]), 0),
        ("33 regions, 32 descriptors", mem_table(&adjacent(33)), 32),
        ("2 regions, 1 descriptor", mem_table(&adjacent(2)), 1),
        ("1 region, 2 descriptors", mem_table(&adjacent(1)), 2),
        ("says 2^32 - 1 regions", u32s(&[u32::MAX, 0]), 1),
        ("bytes in the padding", padded, 1),
    ] {
        rows.negotiated(format!("SET_MEM_TABLE: {what}"), Dropped, move |guest| {
            let file = memory_file(MIB);
            guest.tell(SET_MEM_TABLE, &payload, &vec![file.as_fd(); fds])
        });
    }
    rows.negotiated("SET_MEM_TABLE: 32 regions, the most", Accepted, |guest| {
        share(guest, SET_MEM_TABLE, &adjacent(32))
    });
    rows.running("SET_MEM_TABLE: again, 200 times", OK, |guest| {
        for _ in 0..200 {
            guest.share_memory();
        }
        guest.read_sector()
    });
    let row = rows.running("SET_MEM_TABLE: one good, one bad", Dropped, |guest| {
        let regions = [region(0, MIB, 0, 0), region(MIB, 2 * MIB, MIB, 0)];
        share(guest, SET_MEM_TABLE, &regions)
    });
    row.says(SHORT);
}

/// Descriptors that are no memory. Each is made when its row is tried.
fn files(rows: &mut Rows) {
    fn sealed() -> OwnedFd {
        let file = memory_file(MIB);
        fcntl_add_seals(&file, SealFlags::WRITE).unwrap();
        file
    }
    fn for_reading() -> OwnedFd {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(MIB).unwrap();
        File::open(file.path()).unwrap().into()
    }
    let kinds: [Kind; 8] = [
        ("a pipe", || pipe().0),
        ("a socket", || UnixStream::pair().unwrap().0.into()),
        ("an eventfd", event),
        ("a directory", || File::open("/").unwrap().into()),
        ("/dev/null", read_only_file),
        ("an empty file", || tempfile::tempfile().unwrap().into()),
        ("a file opened for reading", for_reading),
        ("a file sealed against writing", sealed),
    ];
    for (what, make) in kinds {
        let row = rows.negotiated(format!("memory: {what}"), Dropped, move |guest| {
            guest.ask(SET_MEM_TABLE, &mem_table(&adjacent(1)), &[make().as_fd()])
        });
        row.says("cannot map 1048576 bytes");
    }
}

fn slots(rows: &mut Rows) {
    const NO_REGION: &str = "no region of";
    let row = rows.negotiated("ADD_MEM_REG: 510 regions", Dropped, |guest| {
        share(guest, ADD_MEM_REG, &adjacent(510))
    });
    row.says("more than 509 memory slots");
    rows.negotiated("ADD_MEM_REG: 509 regions, the most", Accepted, |guest| {
        share(guest, ADD_MEM_REG, &adjacent(509))
    });
    rows.negotiated("ADD_ and REM_MEM_REG, 1000 times", Accepted, |guest| {
        let (file, region) = (memory_file(MIB), single_region(region(MIB, MIB, MIB, 0)));
        for _ in 0..1000 {
            guest.must(ADD_MEM_REG, &region, &[file.as_fd()]);
            guest.must(REM_MEM_REG, &region, &[]);
        }
        guest.still_there()
    });
    let payload = single_region(region(MIB, MIB, MIB, 0));
    let row = rows.bad_message("REM_MEM_REG: before any memory", REM_MEM_REG, payload, 0);
    row.says(NO_REGION);
    for (what, len, user_addr) in [("length", 4096, 0), ("front-end address", 0, 4096)] {
        let what = format!("REM_MEM_REG: another {what}");
        let row = rows.running(what, Dropped, move |guest| {
            let mut region = guest.regions()[0];
            region.len -= len;
            region.user_addr += user_addr;
            guest.ask(REM_MEM_REG, &single_region(region), &[])
        });
        row.says(NO_REGION);
    }
}
