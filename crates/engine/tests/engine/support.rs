//! Files and memory for tests on the real kernel.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;

use engine::{Completion, Op, Request};

pub const BLOCK: usize = 4096;

/// Memory that direct I/O accepts.
#[derive(Clone)]
#[repr(C, align(4096))]
pub struct Block(pub [u8; BLOCK]);

pub struct TempFile {
    file: File,
    pub name: tempfile::NamedTempFile,
}

impl TempFile {
    /// Opens the file with direct I/O where the file system supports it, since only then the kernel is asynchronous. The
    /// results are the same.
    pub fn new(bytes: u64) -> Self {
        let name = tempfile::NamedTempFile::new().unwrap();
        name.as_file().set_len(bytes).unwrap();
        let open = |flags| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .custom_flags(flags)
                .open(name.path())
        };
        let file = open(libc::O_DIRECT).or_else(|_| open(0)).unwrap();
        Self { file, name }
    }

    /// The same file through the page cache.
    pub fn cached(&self) -> File {
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(self.name.path())
            .unwrap()
    }

    pub fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

/// A request's memory: blocks, cut into `parts` buffers of whole sectors.
pub struct Buffers {
    pub blocks: Vec<Block>,
    pub iov: Vec<libc::iovec>,
}

impl Buffers {
    /// Blocks filled with `fill`, as `parts` buffers.
    pub fn new(blocks: usize, parts: usize, fill: u8) -> Self {
        let mut blocks = vec![Block([fill; BLOCK]); blocks];
        let total = blocks.len() * BLOCK;
        let base = blocks.as_mut_ptr().cast::<u8>();
        let part = total / parts / 512 * 512;
        let iov = (0..parts)
            .map(|i| libc::iovec {
                iov_base: base.wrapping_add(i * part).cast(),
                iov_len: if i + 1 == parts {
                    total - i * part
                } else {
                    part
                },
            })
            .collect();
        Self { blocks, iov }
    }

    /// A request to a file.
    pub fn io<F>(&mut self, op: Op, file: F, offset: u64, token: u64) -> (F, Request) {
        let request = Request {
            op,
            fua: false,
            offset,
            iov: self.iov.as_mut_ptr(),
            iov_count: u32::try_from(self.iov.len()).unwrap(),
            len: (self.blocks.len() * BLOCK) as u64,
            token,
        };
        (file, request)
    }

    /// A write from the start that is stable when it completes.
    pub fn durable<F>(&mut self, file: F, token: u64) -> (F, Request) {
        let (file, request) = self.io(Op::Write, file, 0, token);
        let fua = true;
        (file, Request { fua, ..request })
    }

    pub fn bytes(&self) -> impl Iterator<Item = u8> {
        self.blocks.iter().flat_map(|block| block.0)
    }
}

pub fn ok(tokens: std::ops::Range<u64>) -> Vec<Completion> {
    tokens
        .map(|token| Completion {
            token,
            result: Ok(()),
        })
        .collect()
}

pub fn fill_of(token: u64) -> u8 {
    u8::try_from(token % 250).unwrap() + 1
}
