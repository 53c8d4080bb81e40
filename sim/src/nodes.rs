//! Nodes of a daemon: an opening of the disk, and filters in front of it.

use std::any::Any;
use std::sync::{Arc, Weak};

use block::{Aio, DiscardLimits, FaultRules, Faults, Geometry, Node};

use crate::kernel::Kernel;
use crate::model::SECTOR;
use crate::plan::{Config, Filters};

/// The name of all openings of the disk, and of what is in front of them.
const NAME: &str = "simulated";

/// Of a block of [`block::Node::with_rewritten_blocks`].
pub const REWRITTEN_SECTORS: u64 = 4;

/// Lives as long as a node, or a route to it, is used.
pub type Use = Weak<dyn Any + Send + Sync>;

/// The nodes of a daemon.
pub struct Nodes {
    /// What filters that come and go are in front of.
    base: Arc<Node>,
    shown: Arc<Node>,
    use_of_opening: Use,
    use_of_filter: Use,
}

fn geometry(sectors: usize) -> Geometry {
    Geometry {
        size: (sectors * SECTOR) as u64,
        logical_block_size: 512,
        physical_block_size: 512,
        min_io_size: 0,
        opt_io_size: 0,
        discard: DiscardLimits {
            granularity: 512,
            max_bytes: 1 << 30,
        },
    }
}

impl Nodes {
    /// This node, which others may use.
    #[must_use]
    pub fn of(node: Arc<Node>) -> Self {
        let unused: Use = Weak::<()>::new();
        Nodes {
            base: node.clone(),
            shown: node,
            use_of_opening: unused.clone(),
            use_of_filter: unused,
        }
    }

    /// A simulated disk of this size, with these in front of it.
    #[must_use]
    pub fn open(config: &Config, kernel: &Kernel, sectors: usize, filters: Filters) -> Self {
        let aio = match config.io_uring {
            true => Aio::IoUring,
            false => Aio::Native,
        };
        let disk = Arc::new(kernel.clone());
        let used: Arc<dyn Any + Send + Sync> = disk.clone();
        let opening = Node::new_simulated(geometry(sectors), config.memory_alignment, aio, disk);
        let opening = opening.expect("a node");
        let mut base = opening;
        if filters.marks {
            let marks = kernel.state().disk.marks.clone();
            base = Node::with_reported_changes(NAME, &base, move |bytes| marks.mark(bytes));
        }
        if filters.gate_turns > 0 {
            base = Node::with_alternating_gate(NAME, &base, filters.gate_turns);
        }
        if filters.rewrites {
            base = Node::with_rewritten_blocks(NAME, &base);
        }
        let nodes = Nodes {
            use_of_opening: Arc::downgrade(&used),
            ..Nodes::of(base)
        };
        nodes.filtered(filters.passes_on)
    }

    /// The same opening, with a filter in front of it that passes on all that comes, or without.
    #[must_use]
    pub fn filtered(&self, present: bool) -> Self {
        let mut nodes = Nodes {
            use_of_opening: self.use_of_opening.clone(),
            ..Nodes::of(self.base.clone())
        };
        if present {
            let faults = Faults::new(FaultRules::default());
            let used: Arc<dyn Any + Send + Sync> = faults.clone();
            nodes.use_of_filter = Arc::downgrade(&used);
            nodes.shown = Node::new_filter(NAME, &self.base, faults, false, true);
        }
        nodes
    }

    /// What exports have.
    #[must_use]
    pub fn shown(&self) -> &Arc<Node> {
        &self.shown
    }

    /// These nodes are closed; whether something uses the opening after that, or the filter.
    #[must_use]
    pub fn close(self) -> [Use; 2] {
        [self.use_of_opening, self.use_of_filter]
    }
}
