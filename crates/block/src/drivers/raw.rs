//! Driver `raw`: a window onto another node, whose routes are those of that node with shifted offsets.

use std::rc::Rc;
use std::sync::Arc;

use engine::Errno;

use crate::error::NodeError;
use crate::network::NetworkTarget;
use crate::node::AttachContext;
use crate::node::Driver;
use crate::node::{Node, SizePolicy};
use crate::route::gate::GatedRoute;
use crate::route::task::{LocalFuture, TaskContext, TaskNode};
use crate::route::{FileTarget, LookupResult, MappedNode, OpHandler, Route};
use engine::{Op, Request};

/// A window onto a node.
pub(crate) struct Window {
    below: Arc<Node>,
    /// The byte of it at which the window begins.
    offset: u64,
}

impl Window {
    /// A window of `size` bytes (`None`: to the end) at `offset`, with its resulting size and size policy.
    pub fn onto(
        below: &Arc<Node>,
        offset: u64,
        size: Option<u64>,
    ) -> Result<(Self, u64, SizePolicy), NodeError> {
        let available = below.size();
        let align = below.geometry().logical_block_size;
        let size_policy = match (size, below.size_policy) {
            (None, SizePolicy::ToEnd) => SizePolicy::ToEnd,
            _ => SizePolicy::Fixed,
        };
        let size = size.unwrap_or(available.saturating_sub(offset));
        let fits = offset.checked_add(size).is_some_and(|end| end <= available);
        if !fits
            || size == 0
            || !offset.is_multiple_of(u64::from(align))
            || !size.is_multiple_of(crate::SECTOR_BYTES)
        {
            return Err(NodeError::Window {
                node: below.name().to_owned(),
                offset,
                size,
                available,
                align,
            });
        }
        let below = below.clone();
        Ok((Window { below, offset }, size, size_policy))
    }
}

impl Driver for Window {
    fn below(&self) -> Option<(&Arc<Node>, u64)> {
        Some((&self.below, self.offset))
    }

    /// The route below with shifted offsets, without discards and flushes that the window's options exclude.
    fn attach_route(&self, node: &Node, cx: &mut AttachContext<'_>) -> Route {
        let below = cx.attach_route(&self.below);
        let keeps_unmap = node.passes_discards() || !self.below.passes_discards();
        let mut route = self.shift_route(below, keeps_unmap);
        if !node.passes_discards() {
            route.discard = OpHandler::Nothing;
        }
        if node.read_only() && matches!(route.flush, OpHandler::File(_) | OpHandler::Network(_)) {
            route.flush = OpHandler::Nothing;
        }
        route
    }
}

impl Window {
    /// The window's route, made of the route below.
    fn shift_route(&self, below: Route, keeps_unmap: bool) -> Route {
        Route {
            read: self.shift_handler(below.read, true),
            write: self.shift_handler(below.write, true),
            zeroes: self.shift_handler(below.zeroes, keeps_unmap),
            discard: self.shift_handler(below.discard, true),
            flush: self.shift_handler(below.flush, true),
            storage: below.storage,
            merging_helps: below.merging_helps,
            disk: below.disk.map(|disk| self.shift_target(disk, keeps_unmap)),
        }
    }

    /// The handler of an operation below, for requests at offsets of the window.
    fn shift_handler(&self, below: OpHandler, keeps_unmap: bool) -> OpHandler {
        match below {
            OpHandler::File(target) => OpHandler::File(self.shift_target(target, keeps_unmap)),
            OpHandler::Network(target) => OpHandler::Network(NetworkTarget {
                base: target.base + self.offset,
                unmap: target.unmap && keeps_unmap,
                ..target
            }),
            OpHandler::Gated(gated) => OpHandler::Gated(Rc::new(GatedRoute::new(
                gated.gate.clone(),
                self.shift_route(gated.below.clone(), keeps_unmap),
            ))),
            OpHandler::Marked(marked) => {
                let below = self.shift_route(marked.below.clone(), keeps_unmap);
                OpHandler::Marked(Rc::new(marked.shifted(self.offset, below)))
            }
            OpHandler::Lookup(node) if self.offset > 0 || !keeps_unmap => {
                OpHandler::Lookup(Rc::new(self.shift_node(node, keeps_unmap)))
            }
            OpHandler::Filtered(filter) if self.offset > 0 || !keeps_unmap => {
                let node: Rc<dyn TaskNode> = filter;
                OpHandler::Task(Rc::new(self.shift_node(node, keeps_unmap)))
            }
            OpHandler::Task(node) if self.offset > 0 || !keeps_unmap => {
                OpHandler::Task(Rc::new(self.shift_node(node, keeps_unmap)))
            }
            handler => handler,
        }
    }

    /// The lookup or task of the node below, for requests at offsets of the window.
    fn shift_node<N: ?Sized>(&self, node: Rc<N>, keeps_unmap: bool) -> ShiftedNode<N> {
        ShiftedNode {
            node,
            offset: self.offset,
            keeps_unmap,
        }
    }

    /// The target of the route below, beginning where the window begins.
    fn shift_target(&self, target: FileTarget, keeps_unmap: bool) -> FileTarget {
        FileTarget {
            base: target.base + self.offset,
            unmap: target.unmap && keeps_unmap,
            ..target
        }
    }
}

/// A lookup or async task of the node below, with requests shifted by the window's offset.
struct ShiftedNode<N: ?Sized> {
    node: Rc<N>,
    offset: u64,
    keeps_unmap: bool,
}

impl<N: ?Sized> ShiftedNode<N> {
    /// Translates a request to the window into one to the node below.
    fn to_request_below(&self, mut request: Request) -> Request {
        request.offset += self.offset;
        if let Op::WriteZeroes { unmap } = &mut request.op {
            *unmap &= self.keeps_unmap;
        }
        request
    }
}

impl<N: TaskNode + ?Sized> TaskNode for ShiftedNode<N> {
    fn needed_buffer_bytes(&self, request: &Request) -> usize {
        self.node
            .needed_buffer_bytes(&self.to_request_below(*request))
    }

    fn run(self: Rc<Self>, cx: TaskContext, request: Request) -> LocalFuture<Result<(), Errno>> {
        self.node.clone().run(cx, self.to_request_below(request))
    }
}

impl MappedNode for ShiftedNode<dyn MappedNode> {
    fn lookup(&self, request: &Request) -> Option<LookupResult> {
        self.node.lookup(&self.to_request_below(*request))
    }

    fn target(&self) -> &FileTarget {
        self.node.target()
    }
}
