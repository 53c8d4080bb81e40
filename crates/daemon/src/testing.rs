//! A disk for unit tests.

use std::sync::Arc;

use block::{Node, NodeOptions, NullOptions};

/// A null disk.
pub(crate) fn null_disk() -> Arc<Node> {
    let options = NullOptions {
        size: 1 << 20,
        read_zeroes: true,
        latency_ns: 0,
    };
    Node::open("null", false, &NodeOptions::Null(options)).unwrap()
}
