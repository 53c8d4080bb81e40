//! Metadata contexts: those that a client has chosen, and queries for them.

/// A metadata context that a client has chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChosenContext {
    /// Its number in replies: the index in [`ExportDescription::contexts`](super::ExportDescription) when it was chosen.
    pub number: u32,
    /// Its name. If the export was replaced by another one meanwhile, the number may mean something else there.
    pub name: String,
}

/// Whether a query of `NBD_OPT_SET_META_CONTEXT` names this context.
pub(super) fn selects(query: &str, context: &str) -> bool {
    query == context
}

/// Whether a query of `NBD_OPT_LIST_META_CONTEXT` names this context, or its namespace: `base:`, or `qemu:dirty-bitmap:`.
pub(super) fn lists(query: &str, context: &str) -> bool {
    query == context || query.ends_with(':') && context.starts_with(query)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_lists_its_contexts_and_selects_none() {
        let (allocation, bitmap) = ("base:allocation", "qemu:dirty-bitmap:b0");
        assert!(lists("base:", allocation) && lists(allocation, allocation));
        assert!(lists("qemu:", bitmap) && lists("qemu:dirty-bitmap:", bitmap));
        assert!(!lists("base", allocation) && !lists("qemu:", allocation) && !lists("", bitmap));
        assert!(selects(bitmap, bitmap) && !selects("qemu:dirty-bitmap:", bitmap));
    }
}
