//! Nodes that are opened anew with other options, or put in front of others, while guests use them.
//!
//! Everything that can fail comes first: the new openings are made beside the old ones, by a thread of their own
//! ([`ReopenPlan`]), since a disk or its server may take its time; and they take over the image locks. Then they take the
//! old ones' places, one export after the other: its queues finish what they have taken, and go on with the new one.

use std::sync::Arc;

use block::{Faults, Node, NodeError, NodeOptions, Released};
use options::{BlockdevOptions, Driver, FileOptions, Locking, NodeRef};

use crate::actions::node;
use crate::devices::export_server::ExportFrontEnds;
use crate::disk::aio::AioChoices;
use crate::disk::exported_disk::{ExportedDisk, GuestDevice, NodeSlot};
use crate::disk::faults;
use crate::failure::Failure;
use crate::state::export::Export;
use crate::state::node::OpenNode;
use crate::state::objects::Objects;

/// Nodes that are to be opened anew: all of them or none. Nothing has changed yet.
pub(crate) struct ReopenPlan {
    planned: Vec<PlannedNode>,
    /// All nodes of their disks: nothing else changes them until it is done.
    reserved: Vec<String>,
    aio: AioChoices,
}

/// A node that is to get another opening.
struct PlannedNode {
    options: BlockdevOptions,
    /// These are other options than before, perhaps.
    described: bool,
    old: Arc<Node>,
    had_locking: Locking,
    /// The node below it, if that is not opened anew.
    below: Option<Arc<Node>>,
    exports: Vec<Shows>,
}

/// Nodes that were opened anew, beside the old ones.
pub(crate) struct ReopenedNodes {
    renewed: Vec<Renewed>,
    aio: AioChoices,
}

/// A node that takes the place of one.
struct Renewed {
    options: BlockdevOptions,
    described: bool,
    old: Arc<Node>,
    had_locking: Locking,
    node: Arc<Node>,
    exports: Vec<Shows>,
}

/// An export that shows it to guests.
struct Shows {
    node: NodeSlot,
    guest_device: GuestDevice,
    /// None any more of one that ends.
    front_ends: Option<ExportFrontEnds>,
}

/// Finds what there is to open, and reserves the nodes. All options are as given; what a node's options do not say
/// has its default.
pub(crate) fn plan(
    objects: &mut Objects,
    wanted: &[BlockdevOptions],
) -> Result<ReopenPlan, Failure> {
    for options in wanted {
        if let Some(open) = objects.find_node(&options.node_name) {
            open.check_free()?;
            check_unchanged(&open.options.driver, &options.driver)?;
        }
    }
    let planned = plan_all(objects, wanted)?;
    let of_these = |node: &Node| planned.iter().any(|new| new.old.shares_disk_with(node));
    let nodes = objects.nodes.iter().map(|open| &open.node);
    let nodes = nodes.filter(|node| of_these(node));
    let mut reserved: Vec<String> = nodes.map(|node| node.name().to_owned()).collect();
    let below = planned.iter().filter_map(|new| new.below.as_ref());
    reserved.extend(below.map(|below| below.name().to_owned()));
    objects.reserve(&reserved, "blockdev-reopen")?;
    Ok(ReopenPlan {
        planned,
        reserved,
        aio: objects.aio.clone(),
    })
}

impl ReopenPlan {
    /// The nodes that are reserved for it.
    pub fn reserved(&self) -> &[String] {
        &self.reserved
    }

    /// Makes the new openings, if the exports can be with them. This waits for the disks.
    pub fn open(mut self) -> Result<ReopenedNodes, Failure> {
        let mut renewed: Vec<Renewed> = Vec::new();
        for planned in self.planned {
            let node = planned.open(&renewed, &mut self.aio)?;
            planned.check_size(&node, &renewed)?;
            // What the file has become outside is block_resize's to take over.
            node.set_size(planned.old.size());
            renewed.push(Renewed {
                options: planned.options,
                described: planned.described,
                old: planned.old,
                had_locking: planned.had_locking,
                node,
                exports: planned.exports,
            });
        }
        for Renewed { node, exports, .. } in &renewed {
            if node.read_only() && exports.iter().any(|export| export.guest_device.writable()) {
                let name = node.name();
                return Err(format!(
                    "Read-only block node '{name}' cannot support read-write users"
                )
                .into());
            }
            for export in exports {
                node.use_block_size(export.guest_device.logical_block_size())?;
            }
        }
        let aio = self.aio;
        Ok(ReopenedNodes { renewed, aio })
    }
}

impl PlannedNode {
    /// The new node; a window onto one that is opened anew is onto that.
    fn open(&self, renewed: &[Renewed], aio: &mut AioChoices) -> Result<Arc<Node>, Failure> {
        let options = &self.options;
        let child = options.driver.child();
        let below = child.map(|(_, child)| self.below(renewed, child.node_name()));
        let faults = self.old.faults();
        let node = node::open_one(options, below, faults, |file, driver| {
            open_unlocked(options, file, driver, aio)
        })?;
        Ok(node)
    }

    /// A node that gets another one below it keeps its size.
    fn check_size(&self, node: &Node, renewed: &[Renewed]) -> Result<(), Failure> {
        let Some((option, child)) = self.options.driver.child() else {
            return Ok(());
        };
        let below = self.below(renewed, child.node_name());
        if self.old.shares_disk_with(below) || node.size() == self.old.size() {
            return Ok(());
        }
        Err(format!(
            "Node '{}' has {} bytes and would have {} with '{option}': '{}'; resize that node first",
            self.old.name(),
            self.old.size(),
            node.size(),
            child.node_name(),
        )
        .into())
    }

    /// The node of that name, below this one.
    fn below<'a>(&'a self, renewed: &'a [Renewed], name: &str) -> &'a Arc<Node> {
        let mut anew = renewed.iter().map(|new| &new.node);
        let anew = anew.find(|node| node.name() == name);
        let Some(below) = anew.or(self.below.as_ref()) else {
            unreachable!("planned with the node below");
        };
        below
    }
}

impl ReopenedNodes {
    /// Lets the new openings take the old ones' places. This waits for requests in flight.
    pub fn replace_old(&self) -> Result<(), Failure> {
        for Renewed { old, .. } in self
            .renewed
            .iter()
            .filter(|new| new.options.settings.active)
        {
            // Whoever reads only from now on will not flush it at the end.
            old.flush_blocking()
                .map_err(|error| format!("{}: flushing it failed: {error}", old.name()))?;
        }
        take_locks(&self.renewed)?;
        // What hangs would not settle, in filters that are taken away as in others. Queues take more until they are told.
        let filters = self.renewed.iter().flat_map(|Renewed { old, .. }| {
            let own = old.faults().into_iter();
            own.chain(old.filters_below())
        });
        let released: Vec<Released> = filters.map(Faults::release).collect();
        for Renewed { node, exports, .. } in &self.renewed {
            for export in exports {
                match &export.front_ends {
                    Some(front_ends) => front_ends.exchange(&export.node, node),
                    // What it still has to do it does with the old one.
                    None => export.node.set(node.clone()),
                }
            }
            tracing::info!(node = node.name(), "opened anew");
        }
        for new in self.renewed.iter().filter(|new| new.described) {
            if let (Driver::Blkdebug { injected, .. }, Some(faults)) =
                (&new.options.driver, new.node.faults())
            {
                faults.set(Some(faults::rules(injected)));
            }
        }
        drop(released);
        Ok(())
    }

    /// The old openings are closed.
    pub fn finish(self, objects: &mut Objects) {
        objects.aio.learn(self.aio);
        for Renewed { options, node, .. } in self.renewed {
            let mut nodes = objects.nodes.iter_mut();
            if let Some(open) = nodes.find(|open| open.node.name() == node.name()) {
                (open.options, open.node) = (options, node);
            }
        }
        // A node may be in front of a younger one now, and a program that takes over opens them in this order.
        let order = in_order(&objects.nodes, |open| open.below().map(str::to_owned));
        if let Ok(order) = order {
            let names: Vec<String> = order
                .iter()
                .map(|open| open.node.name().to_owned())
                .collect();
            let place = |open: &OpenNode| names.iter().position(|name| name == open.node.name());
            objects.nodes.sort_by_key(place);
        }
    }
}

/// The disks that exports show of a node.
fn shown<'a>(
    objects: &'a Objects,
    node: &'a Node,
) -> impl Iterator<Item = (&'a Export, &'a ExportedDisk)> {
    objects.exports.iter().flat_map(move |export| {
        let disks = export.disks.iter();
        let disks = disks.filter(move |disk| disk.name == node.name());
        disks.map(move |disk| (export, disk))
    })
}

/// Some options make a node what it is.
fn check_unchanged(old: &Driver, new: &Driver) -> Result<(), Failure> {
    let changed: &[(&str, bool)] = match (old, new) {
        (Driver::File(old), Driver::File(new))
        | (Driver::HostDevice(old), Driver::HostDevice(new)) => {
            &[("filename", old.filename != new.filename)]
        }
        (Driver::NullCo(old), Driver::NullCo(new)) => &[
            ("size", old.size != new.size),
            ("read-zeroes", old.read_zeroes != new.read_zeroes),
            ("latency-ns", old.latency_ns != new.latency_ns),
        ],
        (
            Driver::Raw { file: old, part },
            Driver::Raw {
                file: new,
                part: new_part,
            },
        ) => &[
            ("file.driver", is_made_anew(old, new)),
            ("size", part != new_part),
        ],
        (Driver::Blkdebug { image: old, .. }, Driver::Blkdebug { image: new, .. }) => {
            &[("image.driver", is_made_anew(old, new))]
        }
        // All of them are named, so that a new driver needs a line above.
        (
            Driver::File(_)
            | Driver::HostDevice(_)
            | Driver::NullCo(_)
            | Driver::Raw { .. }
            | Driver::Blkdebug { .. },
            _,
        ) => &[("driver", true)],
    };
    match changed.iter().find(|(_, changed)| *changed) {
        None => Ok(()),
        Some((option, _)) => Err(format!("Cannot change the option '{option}'").into()),
    }
}

/// A child is named, or described in place; that one is made with its parent.
fn is_made_anew(old: &NodeRef, new: &NodeRef) -> bool {
    let was_in_place = matches!(old, NodeRef::Inline(_));
    matches!(new, NodeRef::Inline(_)) || was_in_place && old.node_name() != new.node_name()
}

/// The nodes that are described, and nodes in front of them: nodes come behind those that they are in front of.
fn plan_all(objects: &Objects, wanted: &[BlockdevOptions]) -> Result<Vec<PlannedNode>, Failure> {
    let mut planned: Vec<PlannedNode> = Vec::new();
    // Of two descriptions the last one counts.
    let described = |name: &str| wanted.iter().rev().find(|new| new.node_name == name);
    let child = |open: &OpenNode| {
        let options = described(open.node.name()).unwrap_or(&open.options);
        let (_, child) = options.driver.child()?;
        Some(child.node_name().to_owned())
    };
    for open in in_order(&objects.nodes, child)? {
        let old = open.node.clone();
        let described = described(old.name());
        let below = child(open);
        let is_onto = |new: &PlannedNode| below.as_deref() == Some(new.old.name());
        let onto_these = planned.iter().any(is_onto);
        if described.is_none() && !onto_these {
            continue;
        }
        // As active as before, and so is the node below, opened anew or not.
        let active = open.options.settings.active;
        if let Some(below) = &below {
            objects.check_active_below(active, below)?;
        }
        let below = match below {
            Some(below) if !onto_these => Some(objects.node(&below)?),
            _ => None,
        };
        let exports = shown(objects, &old).map(|(export, disk)| Shows {
            node: disk.node.clone(),
            guest_device: disk.guest_device.clone(),
            front_ends: export.front_ends(),
        });
        let exports = exports.collect();
        let mut options = described.unwrap_or(&open.options).clone();
        options.settings.active = active;
        planned.push(PlannedNode {
            options,
            described: described.is_some(),
            exports,
            old,
            had_locking: locking(&open.options),
            below,
        });
    }
    Ok(planned)
}

/// All nodes, each behind the one below it, else in the order that they have.
///
/// # Errors
/// A node would be below itself.
fn in_order(
    nodes: &[OpenNode],
    child: impl Fn(&OpenNode) -> Option<String>,
) -> Result<Vec<&OpenNode>, Failure> {
    let mut ordered: Vec<&OpenNode> = Vec::new();
    for open in nodes {
        // It and what is below it, as far as that has no place yet.
        let mut chain: Vec<&OpenNode> = Vec::new();
        let mut next = Some(open);
        while let Some(open) = next
            && !contains(&ordered, open)
        {
            if contains(&chain, open) {
                let (below, name) = (open.node.name(), chain[chain.len() - 1].node.name());
                return Err(
                    format!("Making '{below}' a child of '{name}' would create a cycle").into(),
                );
            }
            chain.push(open);
            let below = child(open);
            let mut nodes = nodes.iter();
            next = nodes.find(|other| below.as_deref() == Some(other.node.name()));
        }
        ordered.extend(chain.into_iter().rev());
    }
    Ok(ordered)
}

fn contains(nodes: &[&OpenNode], open: &OpenNode) -> bool {
    nodes.iter().any(|other| std::ptr::eq(*other, open))
}

/// The locks that a node has, which is no filter.
fn locking(options: &BlockdevOptions) -> Locking {
    let file = options.driver.file().filter(|_| options.settings.active);
    file.map_or(Locking::Off, |file| file.locking)
}

fn open_unlocked(
    options: &BlockdevOptions,
    file: &FileOptions,
    driver: fn(block::FileOptions) -> NodeOptions,
    aio: &mut AioChoices,
) -> Result<Arc<Node>, NodeError> {
    let file = FileOptions {
        locking: Locking::Off,
        ..file.clone()
    };
    node::open_fd(options, &file, driver, aio)
}

/// The new nodes get the old ones' locks: all of them or none.
fn take_locks(renewed: &[Renewed]) -> Result<(), Failure> {
    let files = renewed.iter().filter_map(|new| match &new.options.driver {
        Driver::File(file) | Driver::HostDevice(file) => Some((new, file)),
        _ => None,
    });
    let mut taken: Vec<(&Renewed, &FileOptions)> = Vec::new();
    for (new, file) in files {
        let lockings = [locking(&new.options), new.had_locking].map(node::locking);
        if let Err(error) = new.node.take_locks(&new.old, &file.filename, lockings) {
            for (new, file) in taken {
                let lockings = [new.had_locking, locking(&new.options)].map(node::locking);
                // They had them a moment ago, and nobody else could take them, unless they were let go.
                let _ = new.old.take_locks(&new.node, &file.filename, lockings);
            }
            return Err(error.into());
        }
        taken.push((new, file));
    }
    Ok(())
}
