//! Nodes from their options.

use std::sync::Arc;

use block::{Node, NodeError, NodeOptions};
use options::{BlockdevOptions, Discard, Driver, FileOptions, NodeRef, RawOptions};

use crate::Failure;
use crate::objects::{Objects, OpenNode};

/// Opens a node, and those written in place below it: all of them or none.
pub(crate) fn open(options: &BlockdevOptions, objects: &mut Objects) -> Result<(), Failure> {
    let mut opened = Vec::new();
    open_below(options, None, objects, &mut opened)?;
    objects.nodes.extend(opened);
    Ok(())
}

/// Opens a node that was written into `parent`, behind those that were written into it.
fn open_below(
    options: &BlockdevOptions,
    parent: Option<&str>,
    objects: &mut Objects,
    opened: &mut Vec<OpenNode>,
) -> Result<(), Failure> {
    let node = match &options.driver {
        Driver::File(file) => open_fd(options, file, NodeOptions::File, objects)?,
        Driver::HostDevice(file) => open_fd(options, file, NodeOptions::HostDevice, objects)?,
        Driver::NullCo(null) => {
            let null = NodeOptions::Null(block::NullOptions {
                size: null.size,
                read_zeroes: null.read_zeroes,
                latency_ns: null.latency_ns,
            });
            Node::open(&options.node_name, options.read_only, &null)?
        }
        Driver::Raw(raw) => window(options, raw, objects, opened)?,
    };
    opened.push(OpenNode {
        options: options.clone(),
        node,
        parent: parent.map(str::to_owned),
        busy: None,
    });
    Ok(())
}

fn window(
    options: &BlockdevOptions,
    raw: &RawOptions,
    objects: &mut Objects,
    opened: &mut Vec<OpenNode>,
) -> Result<Arc<Node>, Failure> {
    let below = match &raw.file {
        NodeRef::Name(name) => objects.node(name)?,
        NodeRef::Inline(below) => {
            open_below(below, Some(&options.node_name), objects, opened)?;
            let below = opened.last().map(|below| below.node.clone());
            below.ok_or("a node that was opened is not there")?
        }
    };
    let passes_discard = options.discard == Discard::Unmap;
    Ok(Node::window(
        &options.node_name,
        &below,
        raw.offset,
        raw.size,
        options.read_only,
        passes_discard,
    )?)
}

/// Opens a file or block device.
pub(crate) fn open_fd(
    options: &BlockdevOptions,
    file: &FileOptions,
    driver: fn(block::FileOptions) -> NodeOptions,
    objects: &mut Objects,
) -> Result<Arc<Node>, NodeError> {
    let direct = options.cache_direct != Some(false);
    let mut how = block::FileOptions {
        path: file.filename.clone(),
        direct,
        no_flush: options.cache_no_flush,
        unmap: options.discard == Discard::Unmap,
        aio: objects.aio.choose(file.aio, &file.filename, direct),
        aio_max_batch: file.aio_max_batch,
        locking: locking(file.locking),
    };
    let name = &options.node_name;
    let open =
        |how: &block::FileOptions, read_only| Node::open(name, read_only, &driver(how.clone()));
    let mut opened = open(&how, options.read_only);
    if let (Err(NodeError::NoDirectIo { path }), None) = (&opened, options.cache_direct) {
        tracing::warn!(
            node = name, path = %path.display(),
            advice = "move the image to a file system with direct I/O, or set cache.direct=off",
            "this file system has no direct I/O: the page cache is used"
        );
        how.direct = false;
        how.aio = objects.aio.choose(file.aio, &file.filename, false);
        opened = open(&how, options.read_only);
    }
    match opened {
        Err(NodeError::ReadOnlyMedium { .. } | NodeError::Open { .. })
            if options.auto_read_only && !options.read_only =>
        {
            open(&how, true)
        }
        opened => opened,
    }
}

pub(crate) fn locking(locking: options::Locking) -> block::Locking {
    match locking {
        options::Locking::Auto => block::Locking::Auto,
        options::Locking::On => block::Locking::On,
        options::Locking::Off => block::Locking::Off,
    }
}
