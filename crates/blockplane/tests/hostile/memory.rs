//! Contradictory memory tables, and memory that cannot be mapped.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use crate::descriptors::{Kind, pipe, read_only_file};
use crate::guest::*;
use crate::row::Answer::{self, Accepted, Dropped};
use crate::row::{OK, Rows};
use crate::wire::*;

pub const MIB: u64 = 1 << 20;
const ENDED: &str = "the front-end is disconnected";

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

pub fn rows(rows: &mut Rows) {
    tables(rows);
    files(rows);
    slots(rows);
    crate::placement::rows(rows);
    crate::removed_memory::rows(rows);
}

/// Shares these regions of one file of 1 MiB.
fn share(guest: &mut Guest, request: u32, regions: &[Region]) -> Answer {
    guest.negotiate(FEATURES);
    let file = memory_file(MIB);
    if request == ADD_MEM_REG {
        let mut answer = Accepted;
        for region in regions {
            if answer == Accepted {
                answer = guest.ask(request, &single_region(*region), &[file.as_fd()]);
            }
        }
        return answer;
    }
    let files = vec![file.as_fd(); regions.len()];
    guest.ask(SET_MEM_TABLE, &mem_table(regions), &files)
}

fn tables(rows: &mut Rows) {
    let top = u64::MAX - MIB + 1;
    for (what, says, regions) in [
        (
            "guest addresses overlap",
            "overlap",
            vec![region(0, MIB, 0, 0), region(MIB - 4096, 4096, MIB, 0)],
        ),
        (
            "the same region twice",
            "overlap",
            vec![region(0, MIB, 0, 0); 2],
        ),
        (
            "one byte longer than its file",
            "has only 1048576 bytes",
            vec![region(0, MIB + 1, 0, 0)],
        ),
        (
            "beyond its file by the offset",
            "has only 1048576 bytes",
            vec![region(0, MIB, 0, 4096)],
        ),
        (
            "1 TiB of a file of 1 MiB",
            "has only 1048576 bytes",
            vec![region(0, 1 << 40, 0, 0)],
        ),
        ("2^63 bytes", ENDED, vec![region(0, 1 << 63, 0, 0)]),
        ("2^64 - 1 bytes", ENDED, vec![region(0, u64::MAX, 0, 0)]),
        ("no bytes", ENDED, vec![region(0, 0, 0, 0)]),
        (
            "guest addresses wrap",
            ENDED,
            vec![region(top + 4096, MIB, 0, 0)],
        ),
        (
            "front-end addresses wrap",
            ENDED,
            vec![region(0, MIB, top + 4096, 0)],
        ),
        (
            "file offsets wrap",
            ENDED,
            vec![region(0, MIB, 0, top + 4096)],
        ),
        ("file offset 2^63", ENDED, vec![region(0, MIB, 0, 1 << 63)]),
    ] {
        for (name, request) in [
            ("SET_MEM_TABLE", SET_MEM_TABLE),
            ("ADD_MEM_REG", ADD_MEM_REG),
        ] {
            let regions = regions.clone();
            rows.row(format!("{name}: {what}"), Dropped, move |guest| {
                share(guest, request, &regions)
            })
            .says(says);
        }
    }
    rows.negotiated("SET_MEM_TABLE: no regions", Dropped, |guest| {
        guest.tell(SET_MEM_TABLE, &mem_table(&[]), &[])
    });
    rows.negotiated(
        "SET_MEM_TABLE: 33 regions, 32 descriptors",
        Dropped,
        |guest| {
            let regions: Vec<_> = (0..33).map(|n| region(n * MIB, MIB, n * MIB, 0)).collect();
            let file = memory_file(MIB);
            guest.tell(SET_MEM_TABLE, &mem_table(&regions), &[file.as_fd(); 32])
        },
    );
    rows.negotiated("SET_MEM_TABLE: 2 regions, 1 descriptor", Dropped, |guest| {
        let regions = [region(0, MIB, 0, 0), region(MIB, MIB, MIB, 0)];
        let file = memory_file(MIB);
        guest.tell(SET_MEM_TABLE, &mem_table(&regions), &[file.as_fd()])
    });
    rows.negotiated("SET_MEM_TABLE: 1 region, 2 descriptors", Dropped, |guest| {
        let file = memory_file(MIB);
        let fds = [file.as_fd(), file.as_fd()];
        guest.tell(SET_MEM_TABLE, &mem_table(&[region(0, MIB, 0, 0)]), &fds)
    });
    rows.negotiated("SET_MEM_TABLE: says 2^32 - 1 regions", Dropped, |guest| {
        let file = memory_file(MIB);
        guest.tell(SET_MEM_TABLE, &u32s(&[u32::MAX, 0]), &[file.as_fd()])
    });
    rows.negotiated("SET_MEM_TABLE: bytes in the padding", Dropped, |guest| {
        let file = memory_file(MIB);
        let mut payload = mem_table(&[region(0, MIB, 0, 0)]);
        payload[4] = 1;
        guest.tell(SET_MEM_TABLE, &payload, &[file.as_fd()])
    });
    rows.row(
        "SET_MEM_TABLE: 32 regions, all there may be",
        Accepted,
        |guest| {
            let regions: Vec<_> = (0..32).map(|n| region(n * MIB, MIB, n * MIB, 0)).collect();
            share(guest, SET_MEM_TABLE, &regions)
        },
    );
    rows.running("SET_MEM_TABLE: again, 200 times", OK, |guest| {
        for _ in 0..200 {
            guest.share_memory();
        }
        guest.read_sector()
    });
    rows.running(
        "SET_MEM_TABLE: a bad one leaves nothing behind",
        Dropped,
        |guest| {
            let file = memory_file(MIB);
            let regions = [region(0, MIB, 0, 0), region(MIB, 2 * MIB, MIB, 0)];
            guest.ask(
                SET_MEM_TABLE,
                &mem_table(&regions),
                &[file.as_fd(), file.as_fd()],
            )
        },
    )
    .says("has only");
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
    let kinds: [Kind; 9] = [
        ("a pipe", || pipe().0),
        ("a socket", || UnixStream::pair().unwrap().0.into()),
        ("an eventfd", event),
        ("a directory", || File::open("/").unwrap().into()),
        ("/dev/null for reading", read_only_file),
        ("/dev/null for writing too", || {
            let null = File::options().read(true).write(true).open("/dev/null");
            null.unwrap().into()
        }),
        ("an empty file", || tempfile::tempfile().unwrap().into()),
        ("a file opened for reading", for_reading),
        ("a file sealed against writing", sealed),
    ];
    for (what, make) in kinds {
        let says = "cannot map 1048576 bytes";
        rows.negotiated(format!("memory: {what}"), Dropped, move |guest| {
            let table = mem_table(&[region(0, MIB, 0, 0)]);
            guest.ask(SET_MEM_TABLE, &table, &[make().as_fd()])
        })
        .says(says);
    }
}

fn slots(rows: &mut Rows) {
    rows.row("ADD_MEM_REG: 510 regions", Dropped, |guest| {
        let regions: Vec<_> = (0..510).map(|n| region(n * MIB, MIB, n * MIB, 0)).collect();
        share(guest, ADD_MEM_REG, &regions)
    })
    .says("more than 509 memory slots");
    rows.row(
        "ADD_MEM_REG: 509 regions, all there may be",
        Accepted,
        |guest| {
            let regions: Vec<_> = (0..509).map(|n| region(n * MIB, MIB, n * MIB, 0)).collect();
            share(guest, ADD_MEM_REG, &regions)
        },
    );
    rows.negotiated(
        "ADD_MEM_REG and REM_MEM_REG in turn, 1000 times",
        Accepted,
        |guest| {
            let file = memory_file(MIB);
            let region = single_region(region(MIB, MIB, MIB, 0));
            for _ in 0..1000 {
                guest.must(ADD_MEM_REG, &region, &[file.as_fd()]);
                guest.must(REM_MEM_REG, &region, &[]);
            }
            guest.still_there()
        },
    );
    rows.negotiated("REM_MEM_REG: before any memory", Dropped, |guest| {
        guest.ask(REM_MEM_REG, &single_region(region(MIB, MIB, MIB, 0)), &[])
    })
    .says("no region of");
    rows.running("REM_MEM_REG: another length", Dropped, |guest| {
        let mut region = guest.regions()[0];
        region.len -= 4096;
        guest.ask(REM_MEM_REG, &single_region(region), &[])
    })
    .says("no region of");
    rows.running("REM_MEM_REG: another front-end address", Dropped, |guest| {
        let mut region = guest.regions()[0];
        region.user_addr += 4096;
        guest.ask(REM_MEM_REG, &single_region(region), &[])
    })
    .says("no region of");
}
