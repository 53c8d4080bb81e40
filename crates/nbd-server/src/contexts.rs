//! Metadata contexts of an export: what `NBD_CMD_BLOCK_STATUS` can query.

use std::sync::Arc;

use block::dirty_bitmap::BitmapUse;
use nbd::server::ChosenContext;
use nbd::wire::{BASE_ALLOCATION, QEMU_ALLOCATION_DEPTH, QEMU_DIRTY_BITMAP};

/// A metadata context.
#[derive(Clone)]
pub(crate) enum MetaContext {
    /// `base:allocation`: which parts are allocated.
    Allocation,
    /// `qemu:allocation-depth`: there is one layer, so all is of this one.
    AllocationDepth,
    /// `qemu:dirty-bitmap:NAME`: which parts have changed.
    DirtyBitmap(Arc<BitmapUse>),
}

impl MetaContext {
    /// Its name in the protocol.
    pub fn name(&self) -> String {
        match self {
            MetaContext::Allocation => BASE_ALLOCATION.to_owned(),
            MetaContext::AllocationDepth => QEMU_ALLOCATION_DEPTH.to_owned(),
            MetaContext::DirtyBitmap(bitmap) => format!("{QEMU_DIRTY_BITMAP}{}", bitmap.name()),
        }
    }
}

/// A context that a client has chosen, with its number in replies.
pub(crate) struct NumberedContext {
    pub number: u32,
    pub context: MetaContext,
}

/// Finds the contexts that a client has chosen by their names; `None` if one is missing: the export was replaced by another one since.
pub(crate) fn find_chosen(
    chosen: &[ChosenContext],
    contexts: &[MetaContext],
) -> Option<Vec<NumberedContext>> {
    let find = |chosen: &ChosenContext| {
        let found = contexts
            .iter()
            .find(|context| context.name() == chosen.name);
        Some(NumberedContext {
            number: chosen.number,
            context: found?.clone(),
        })
    };
    chosen.iter().map(find).collect()
}
