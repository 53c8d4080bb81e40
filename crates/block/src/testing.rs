//! Nodes and a loop for tests of this crate's parts.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::Completion;

use crate::route::{Carrier, Target};
use crate::{Aio, FileOptions, IoContext, Locking, Node, NodeOptions};

/// A file with this content, through the page cache and without a lock.
pub(crate) fn file(path: &Path, bytes: &[u8], aio: Aio) -> Arc<Node> {
    std::fs::write(path, bytes).unwrap();
    let options = FileOptions {
        path: path.to_owned(),
        direct: false,
        no_flush: false,
        unmap: true,
        aio,
        aio_max_batch: 0,
        locking: Locking::Off,
    };
    Node::open("file", false, &NodeOptions::File(options)).unwrap()
}

/// All of a file that is carried so.
pub(crate) fn target(path: &Path, carrier: Carrier) -> Target {
    let node = file(path, &[0; 8192], Aio::IoUring);
    Target {
        file: node.driver.file().unwrap().clone(),
        carrier,
        base: 0,
        unmap: true,
    }
}

/// Runs the phases of an iothread until so many requests have completed.
pub(crate) fn run_until_completed(io: &mut IoContext, count: usize) -> Vec<Completion> {
    let (begin, mut done) = (Instant::now(), Vec::new());
    while done.len() < count {
        assert!(begin.elapsed() < Duration::from_secs(60), "not complete");
        io.flush_batch();
        io.reap(&mut done);
        std::thread::yield_now();
    }
    done
}
