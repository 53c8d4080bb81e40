//! The filter *copy before write* in front of a node, while a job copies it: part of all routes that are made meanwhile.

use std::sync::{Arc, Mutex, PoisonError};

use super::{AttachContext, Node};
use crate::copy::{BlockCopy, add_copy_before_write};
use crate::route::Route;

/// The filter, if there is one: the copy, and its target.
#[derive(Default)]
pub(super) struct CopyBeforeWriteSlot(Mutex<Option<(Arc<BlockCopy>, Arc<Node>)>>);

impl CopyBeforeWriteSlot {
    /// The route of a source to the node, which `below` is without the filter.
    pub fn add_to_route(&self, below: Route, cx: &mut AttachContext<'_>) -> Route {
        match self.get() {
            Some((copy, target)) => {
                let target = cx.attach_route(&target);
                add_copy_before_write(copy, below, target)
            }
            None => below,
        }
    }

    fn get(&self) -> Option<(Arc<BlockCopy>, Arc<Node>)> {
        let slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        slot.clone()
    }
}

impl Node {
    /// Gives routes that are made from now on a filter that copies to `target` before a write, or none. The copy is right only
    /// if all routes that requests use have it: replace those that exist, and wait for their requests.
    pub fn set_copy_before_write(&self, copy: Option<(Arc<BlockCopy>, Arc<Node>)>) {
        let slot = &self.copy_before_write.0;
        *slot.lock().unwrap_or_else(PoisonError::into_inner) = copy;
    }
}
