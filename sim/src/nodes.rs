//! Nodes of a daemon: an opening of the disk, and filters in front of it.

use std::any::Any;
use std::sync::{Arc, Weak};

use block::dirty_bitmap::NodeBitmaps;
use block::{
    Aio, DiscardLimits, FaultRules, Faults, Geometry, Node, ThrottleGroup, ThrottleLimits,
};

use crate::kernel::{File, Kernel};
use crate::model::SECTOR;
use crate::plan::{Config, Filters};

/// The name of all openings of the disk, and of what is in front of them.
const NAME: &str = "simulated";

/// Of a block of [`block::Node::with_rewritten_blocks`].
pub const REWRITTEN_SECTORS: u64 = 4;

/// Lives as long as a node, or a route to it, is used.
pub type Use = Weak<dyn Any + Send + Sync>;

/// What nodes that are closed may still be used for.
pub struct ClosedNodes {
    /// The opening of the disk.
    pub opening: Use,
    /// The filter that passes on all that comes.
    pub filter: Use,
    /// The throttled nodes.
    pub throttled: Vec<Use>,
}

/// The throttle groups of a daemon.
#[derive(Clone)]
pub struct Groups {
    /// That of the disks, which take turns among so many members.
    pub disks: Arc<ThrottleGroup>,
    members: u8,
    /// One whose members are below those.
    tenant: Option<Arc<ThrottleGroup>>,
}

impl Groups {
    /// Those of a new process, if there are any.
    #[must_use]
    pub fn new(config: &Config, limits: ThrottleLimits) -> Option<Self> {
        config.throttling.map(|throttling| Groups {
            disks: ThrottleGroup::new("disks", limits),
            members: throttling.members,
            tenant: throttling
                .tenant
                .map(|limits| ThrottleGroup::new("tenant", limits)),
        })
    }

    /// New members in front of a node.
    fn members(&self, below: &Arc<Node>) -> Vec<Arc<Node>> {
        let member = |_| {
            let tenant = self.tenant.as_ref();
            let tenant = tenant.map(|group| Node::new_throttle(NAME, below, group, false, true));
            Node::new_throttle(
                NAME,
                tenant.as_ref().unwrap_or(below),
                &self.disks,
                false,
                true,
            )
        };
        (0..self.members).map(member).collect()
    }
}

/// The nodes of a daemon.
pub struct Nodes {
    /// The opening of the disk, which has the bitmaps.
    opening: Arc<Node>,
    /// What filters that come and go are in front of.
    base: Arc<Node>,
    /// Throttled nodes in front of it.
    members: Vec<Arc<Node>>,
    /// What exports have: one, or as many as there are members.
    shown: Vec<Arc<Node>>,
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

fn open_disk(config: &Config, geometry: Geometry, file: Arc<File>) -> Arc<Node> {
    let aio = match config.io_uring {
        true => Aio::IoUring,
        false => Aio::Native,
    };
    Node::new_simulated(geometry, config.memory_alignment, aio, file).expect("a node")
}

impl Nodes {
    /// This node, which others may use.
    #[must_use]
    pub fn of(node: Arc<Node>) -> Self {
        let unused: Use = Weak::<()>::new();
        Nodes {
            opening: node.clone(),
            base: node.clone(),
            members: Vec::new(),
            shown: vec![node],
            use_of_opening: unused.clone(),
            use_of_filter: unused,
        }
    }

    /// A simulated disk of this size, with these in front of it. It keeps the bitmaps of `old`.
    #[must_use]
    pub fn open(
        config: &Config,
        kernel: &Kernel,
        sectors: usize,
        filters: Filters,
        groups: Option<&Groups>,
        old: Option<&Nodes>,
    ) -> Self {
        let disk = Arc::new(kernel.open(false));
        let used: Arc<dyn Any + Send + Sync> = disk.clone();
        let opening = open_disk(config, geometry(sectors), disk);
        match old {
            Some(old) => opening.share_bitmaps_of(&old.opening),
            None => opening.bitmaps().let_new_routes_record(filters.marks),
        }
        let mut base = opening.clone();
        if filters.gate_turns > 0 {
            base = Node::with_alternating_gate(NAME, &base, filters.gate_turns);
        }
        if filters.rewrites {
            base = Node::with_rewritten_blocks(NAME, &base);
        }
        let nodes = Nodes {
            opening,
            use_of_opening: Arc::downgrade(&used),
            ..Nodes::of(base)
        };
        let groups = groups.filter(|_| filters.throttles);
        nodes.throttled(groups, filters.passes_on)
    }

    /// The same opening, with other throttled nodes in front of it, or none, and with a filter in front of these or without.
    #[must_use]
    pub fn throttled(&self, groups: Option<&Groups>, passes_on: bool) -> Self {
        let members = groups.map_or_else(Vec::new, |groups| groups.members(&self.base));
        self.with_in_front(members, passes_on)
    }

    /// The same opening and throttled nodes, with a filter in front of them that passes on all that comes, or without.
    #[must_use]
    pub fn filtered(&self, present: bool) -> Self {
        self.with_in_front(self.members.clone(), present)
    }

    fn with_in_front(&self, members: Vec<Arc<Node>>, passes_on: bool) -> Self {
        let mut nodes = Nodes {
            opening: self.opening.clone(),
            use_of_opening: self.use_of_opening.clone(),
            ..Nodes::of(self.base.clone())
        };
        if !members.is_empty() {
            nodes.shown.clone_from(&members);
        }
        if passes_on {
            let faults = Faults::new(FaultRules::default());
            let used: Arc<dyn Any + Send + Sync> = faults.clone();
            nodes.use_of_filter = Arc::downgrade(&used);
            for node in &mut nodes.shown {
                *node = Node::new_filter(NAME, node, faults.clone(), false, true);
            }
        }
        nodes.members = members;
        nodes
    }

    /// The opening of the disk.
    #[must_use]
    pub fn opening(&self) -> &Arc<Node> {
        &self.opening
    }

    /// Opens a target for a job, as large as the disk.
    #[must_use]
    pub fn open_target(&self, config: &Config, kernel: &Kernel) -> (Arc<Node>, Use) {
        let file = Arc::new(kernel.open(true));
        let used: Arc<dyn Any + Send + Sync> = file.clone();
        let target = open_disk(config, self.opening.geometry(), file);
        (target, Arc::downgrade(&used))
    }

    /// Whether nothing is in front of the opening.
    #[must_use]
    pub fn are_unfiltered(&self) -> bool {
        let mut shown = self.shown.iter();
        shown.all(|node| Arc::ptr_eq(node, &self.opening))
    }

    /// An opening of another disk, with nothing in front of it.
    #[must_use]
    pub fn moved_to(opening: Arc<Node>, use_of_opening: Use) -> Self {
        Nodes {
            use_of_opening,
            ..Nodes::of(opening)
        }
    }

    /// The bitmaps of the opening.
    #[must_use]
    pub fn bitmaps(&self) -> &Arc<NodeBitmaps> {
        self.opening.bitmaps()
    }

    /// The opening has another size.
    pub fn record_new_size(&self, bytes: u64) {
        self.opening.record_new_size(bytes);
    }

    /// What a source of requests has: a queue by its index, or the client behind these.
    #[must_use]
    pub fn shown(&self, source: usize) -> &Arc<Node> {
        &self.shown[source % self.shown.len()]
    }

    /// These nodes are closed; what they may still be used for.
    #[must_use]
    pub fn close(self) -> ClosedNodes {
        let throttled = self.members.into_iter().map(|node| {
            let node: Arc<dyn Any + Send + Sync> = node;
            Arc::downgrade(&node)
        });
        ClosedNodes {
            opening: self.use_of_opening,
            filter: self.use_of_filter,
            throttled: throttled.collect(),
        }
    }
}
