//! An export for unit tests, of this crate and of its users.

use std::sync::Arc;

use block::Node;
use iothread::{ExportReporter, ReportedExport};
use nbd::server::BlockSizes;

use crate::{Export, ExportSettings};

/// An export of 1 MiB called `disk` that no client can use: it has no iothread. `node` returns the node that it serves.
#[must_use]
pub fn export_without_iothreads(
    writable: bool,
    node: impl Fn() -> Arc<Node> + Send + Sync + 'static,
) -> Arc<Export> {
    let (reports, _) = iothread::report_channel();
    Export::new(ExportSettings {
        id: "e".to_owned(),
        name: "disk".to_owned(),
        description: String::new(),
        writable,
        write_through: false,
        block_sizes: BlockSizes {
            minimum: 1,
            preferred: 4096,
        },
        max_range_bytes: 1 << 20,
        multi_conn: true,
        allocation_depth: false,
        bitmaps: Vec::new(),
        size: 1 << 20,
        iothreads: Vec::new(),
        stats: Vec::new(),
        reports: Arc::new(ExportReporter::new(
            reports,
            &ReportedExport::new("e"),
            "null",
        )),
        node: Box::new(node),
        on_connected: Box::new(|_| ()),
    })
}
