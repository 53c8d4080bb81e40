//! Guest memory for tests: mapped regions with reads and writes by guest address, canaries around them, and a log of written pages.
//!
//! Each region is a memory file of its own, so that it can be mapped a second time (a memory map
//! that changes) and handed to another process (a front-end of a test).

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use libc::iovec;

use crate::dirty_log::LOG_PAGE_BYTES;
use crate::memory::{GuestMemory, Region};

/// Difference between a region's front-end address and its guest address.
pub const USER_ADDR_OFFSET: u64 = 0x7f00_0000_0000;

/// Fills the part of a region's last page that lies outside the region.
const CANARY: u8 = 0xa5;

/// Guest memory of a test. Clones share the same memory.
///
/// Fresh memory is zero. Handing it out with [`alloc`](Self::alloc) is a convenience: any address
/// inside the regions may be used directly.
#[derive(Clone, Debug)]
pub struct TestMemory {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    files: Vec<RegionFile>,
    guest_memory: RwLock<Arc<GuestMemory>>,
    /// The lowest guest address that was not handed out.
    next_alloc: AtomicU64,
    /// Numbers of the pages that the guest writes, in `written`.
    watched: AtomicBool,
    written: Mutex<BTreeSet<u64>>,
}

/// One region's file and place.
#[derive(Debug)]
struct RegionFile {
    file: File,
    guest_addr: u64,
    len: u64,
}

/// A mapping of a region's file with an inaccessible page before and after it.
#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping belongs to the process; it is unmapped once, when the last owner is gone.
unsafe impl Send for Mapping {}
// SAFETY: nothing can be done with a shared `Mapping`.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `start` and `len` are those of a mapping made by `map`, dropped once.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

impl TestMemory {
    /// One region of `len` bytes at guest address `0x10_0000`.
    pub fn new(len: u64) -> TestMemory {
        TestMemory::with_regions(&[(0x10_0000, len)])
    }

    /// Regions given as guest address and length in bytes, sorted by address here if they are not.
    /// Adjacent ones stay separate mappings.
    pub fn with_regions(regions: &[(u64, u64)]) -> TestMemory {
        let mut files: Vec<_> = regions
            .iter()
            .map(|&(guest_addr, len)| RegionFile {
                file: memory_file(len),
                guest_addr,
                len,
            })
            .collect();
        files.sort_by_key(|region| region.guest_addr);
        let guest_memory = RwLock::new(Arc::new(map_all(&files)));
        let next_alloc = AtomicU64::new(0);
        TestMemory {
            shared: Arc::new(Shared {
                files,
                guest_memory,
                next_alloc,
                watched: AtomicBool::new(false),
                written: Mutex::default(),
            }),
        }
    }

    /// The memory as the device sees it.
    pub fn guest_memory(&self) -> Arc<GuestMemory> {
        let current = &self.shared.guest_memory;
        Arc::clone(&current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Maps the same memory once more, at other host addresses, and returns the new table, which
    /// [`guest_memory`](Self::guest_memory) returns from now on. The old one works until it is
    /// dropped.
    pub fn remap(&self) -> Arc<GuestMemory> {
        self.remap_regions(|_| true)
    }

    /// The same with a table that has only some of the regions, by their index.
    pub fn remap_regions(&self, included: impl Fn(usize) -> bool) -> Arc<GuestMemory> {
        let files = self.shared.files.iter().enumerate();
        let files = files.filter_map(|(index, file)| included(index).then_some(file));
        let fresh = Arc::new(map_all(files));
        let current = &self.shared.guest_memory;
        *current.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&fresh);
        fresh
    }

    /// The file behind a region, for tests that hand it to a server. Offset 0 is the region's start.
    pub fn region_file(&self, index: usize) -> BorrowedFd<'_> {
        self.shared.files[index].file.as_fd()
    }

    /// Begins to keep, or keeps no more, which pages are written through this and its clones, as a hypervisor does for what
    /// the guest writes. What a device writes goes another way.
    pub fn watch_guest(&self, watched: bool) {
        self.take_written();
        self.shared.watched.store(watched, Ordering::Relaxed);
    }

    /// The numbers of the pages that the guest has written since it is watched, or since this was last asked.
    pub fn take_written(&self) -> BTreeSet<u64> {
        let written = &self.shared.written;
        std::mem::take(&mut *written.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Notes the pages of a write by the guest, if they are watched.
    fn note_guest_write(&self, guest_addr: u64, len: usize) {
        if len > 0 && self.shared.watched.load(Ordering::Relaxed) {
            let last = guest_addr + (len as u64 - 1);
            let mut written = self
                .shared
                .written
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            written.extend(guest_addr / LOG_PAGE_BYTES..=last / LOG_PAGE_BYTES);
        }
    }

    /// The front-end's address of a guest address.
    pub fn user_addr(&self, guest_addr: u64) -> u64 {
        guest_addr + USER_ADDR_OFFSET
    }

    /// Hands out `len` unused bytes, contiguous in one region, at a multiple of `align`, from the
    /// lowest address up.
    pub fn alloc(&self, len: u64, align: u64) -> u64 {
        let next = &self.shared.next_alloc;
        let start = next.load(Ordering::Relaxed);
        for region in &self.shared.files {
            let addr = start.max(region.guest_addr).next_multiple_of(align);
            if addr + len <= region.guest_addr + region.len {
                next.store(addr + len, Ordering::Relaxed);
                return addr;
            }
        }
        panic!("test memory exhausted: no {len} bytes left");
    }

    /// Hands out memory with `bytes` in it.
    pub fn alloc_bytes(&self, bytes: &[u8]) -> u64 {
        let addr = self.alloc(bytes.len() as u64, 16);
        self.write(addr, bytes);
        addr
    }

    /// Writes `bytes` at `guest_addr`, across adjacent regions if need be.
    pub fn write(&self, guest_addr: u64, bytes: &[u8]) {
        self.note_guest_write(guest_addr, bytes.len());
        let memory = self.guest_memory();
        let mut done = 0;
        while done < bytes.len() {
            let (host, here) = piece(&memory, guest_addr, done, bytes.len());
            // SAFETY: `here` bytes at `host` are mapped; guest memory is never borrowed.
            unsafe { ptr::copy_nonoverlapping(bytes[done..].as_ptr(), host.as_ptr(), here) };
            done += here;
        }
    }

    /// Reads `len` bytes at `guest_addr`, across adjacent regions if need be.
    pub fn read(&self, guest_addr: u64, len: usize) -> Vec<u8> {
        let memory = self.guest_memory();
        let mut bytes = vec![0; len];
        let mut done = 0;
        while done < len {
            let (host, here) = piece(&memory, guest_addr, done, len);
            // SAFETY: as in `write`.
            unsafe { ptr::copy_nonoverlapping(host.as_ptr(), bytes[done..].as_mut_ptr(), here) };
            done += here;
        }
        bytes
    }

    /// Fills `len` bytes at `guest_addr`.
    pub fn fill(&self, guest_addr: u64, len: usize, byte: u8) {
        self.write(guest_addr, &vec![byte; len]);
    }

    /// The bytes in a device's segments, which must come from this memory and be still mapped.
    pub fn gather(&self, segments: &[iovec]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for segment in segments {
            self.guest_addr_of(segment);
            let start = bytes.len();
            bytes.resize(start + segment.iov_len, 0);
            // SAFETY: `guest_addr_of` found the segment inside a mapped region.
            unsafe {
                ptr::copy_nonoverlapping(
                    segment.iov_base.cast(),
                    bytes[start..].as_mut_ptr(),
                    segment.iov_len,
                );
            }
        }
        bytes
    }

    /// Writes `bytes` into a device's segments as far as they reach and returns how many went in.
    pub fn scatter(&self, segments: &[iovec], bytes: &[u8]) -> usize {
        let mut done = 0;
        for segment in segments {
            self.guest_addr_of(segment);
            let here = segment.iov_len.min(bytes.len() - done);
            // SAFETY: as in `gather`.
            unsafe {
                ptr::copy_nonoverlapping(bytes[done..].as_ptr(), segment.iov_base.cast(), here);
            }
            done += here;
        }
        done
    }

    /// The guest address of a device's segment. Panics unless the segment lies in full inside one
    /// region of the current mapping, which makes it a check as well.
    pub fn guest_addr_of(&self, segment: &iovec) -> u64 {
        let start = segment.iov_base.addr() as u64;
        let memory = self.guest_memory();
        let found = memory.regions().iter().find_map(|region| {
            let offset = start.checked_sub(region.host.addr() as u64)?;
            let left = region.len.checked_sub(offset)?;
            (segment.iov_len as u64 <= left).then(|| region.guest_addr + offset)
        });
        found.unwrap_or_else(|| panic!("segment {segment:?} is outside guest memory"))
    }

    /// Panics if a byte was changed behind the end of a region, in the rest of its last page. (The
    /// pages around a region cannot be accessed at all.)
    pub fn check_canaries(&self) {
        for region in self.guest_memory().regions() {
            let len = usize::try_from(region.len).expect("mapped");
            for offset in len..len.next_multiple_of(page_size()) {
                // SAFETY: the file and its mapping are whole pages.
                let byte = unsafe { region.host.add(offset).read_volatile() };
                assert_eq!(byte, CANARY, "byte {offset:#x} of {region:?} was changed");
            }
        }
    }

    /// Loads the little-endian 16-bit word at an even `guest_addr`, with Acquire order.
    pub fn load_u16(&self, guest_addr: u64) -> u16 {
        u16::from_le(self.with_word(guest_addr, |word| word.load(Ordering::Acquire)))
    }

    /// Stores a little-endian 16-bit word at an even `guest_addr`, with Release order.
    pub fn store_u16(&self, guest_addr: u64, value: u16) {
        self.note_guest_write(guest_addr, 2);
        self.with_word(guest_addr, |word| {
            word.store(value.to_le(), Ordering::Release)
        });
    }

    /// Calls `access` with the word at `guest_addr`.
    fn with_word<T>(&self, guest_addr: u64, access: impl FnOnce(&AtomicU16) -> T) -> T {
        let memory = self.guest_memory();
        let host = memory
            .host_addr_of_range(guest_addr, 2)
            .expect("word outside test memory")
            .cast();
        assert!(
            host.cast::<AtomicU16>().is_aligned(),
            "word at odd address {guest_addr:#x}"
        );
        // SAFETY: mapped as just looked up, as long as `memory`; aligned as just seen.
        access(unsafe { AtomicU16::from_ptr(host.as_ptr()) })
    }
}

/// The host address of byte `done` of `len` bytes at `guest_addr`, and how many follow it there.
fn piece(memory: &GuestMemory, guest_addr: u64, done: usize, len: usize) -> (NonNull<u8>, usize) {
    let (host, here) = memory
        .first_contiguous_part_with_hint(&mut 0, guest_addr + done as u64, (len - done) as u64)
        .unwrap_or_else(|| panic!("{len} bytes at {guest_addr:#x} are outside test memory"));
    (host, usize::try_from(here).expect("at most len"))
}

fn page_size() -> usize {
    // SAFETY: a pure query.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).expect("a page size")
}

/// A file of whole pages for a region of `len` bytes, with the canary behind its end.
fn memory_file(len: u64) -> File {
    // SAFETY: a valid name; the result is checked.
    let fd = unsafe { libc::memfd_create(c"test-memory".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(fd >= 0, "memfd_create: {}", io::Error::last_os_error());
    // SAFETY: a new descriptor without another owner.
    let file = unsafe { File::from_raw_fd(fd) };
    let whole = len.next_multiple_of(page_size() as u64);
    file.set_len(whole).expect("memory for a test");
    let canary = vec![CANARY; usize::try_from(whole - len).expect("less than a page")];
    std::os::unix::fs::FileExt::write_all_at(&file, &canary, len).expect("memory for a test");
    file
}

fn map_all<'a>(files: impl IntoIterator<Item = &'a RegionFile>) -> GuestMemory {
    let regions = files.into_iter().map(map).collect();
    // SAFETY: `map` maps each region in full, readable and writable, until its owner is dropped,
    // and this module makes no references into them.
    unsafe { GuestMemory::new(regions) }.expect("regions of a test")
}

/// Maps a region's file between two inaccessible pages.
fn map(region: &RegionFile) -> Region {
    let page = page_size();
    let file_len = usize::try_from(region.len)
        .expect("fits")
        .next_multiple_of(page);
    let len = file_len + 2 * page;
    // SAFETY: a new reservation wherever there is room.
    let reserved = unsafe {
        libc::mmap(
            ptr::null_mut(),
            len,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    assert!(
        reserved != libc::MAP_FAILED,
        "mmap: {}",
        io::Error::last_os_error()
    );
    let start = NonNull::new(reserved.cast::<u8>()).expect("not at zero");
    let mapping = Mapping { start, len };
    // SAFETY: replaces pages of our own reservation, which is two pages longer than the file.
    let host = unsafe {
        libc::mmap(
            start.add(page).as_ptr().cast(),
            file_len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_FIXED,
            region.file.as_raw_fd(),
            0,
        )
    };
    assert!(
        host != libc::MAP_FAILED,
        "mmap: {}",
        io::Error::last_os_error()
    );
    Region {
        guest_addr: region.guest_addr,
        user_addr: region.guest_addr.wrapping_add(USER_ADDR_OFFSET),
        len: region.len,
        host: host.cast(),
        owner: Arc::new(mapping),
    }
}
