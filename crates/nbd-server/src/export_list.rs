//! The exports of a server, as clients find them.
//!
//! Clients send options without end, so that an export is found without a look at the others.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use nbd::server::{ExportDescription, ExportDirectory, ExportNumber};

use crate::export::Export;

/// The exports of a server.
#[derive(Default)]
pub(crate) struct ExportList(Mutex<Exports>);

/// Exports, also those that are gone.
#[derive(Default)]
struct Exports {
    /// In the order in which clients list them: that of their creation.
    by_number: BTreeMap<ExportNumber, Weak<Export>>,
    numbers: HashMap<String, ExportNumber>,
}

impl ExportList {
    /// Adds an export. False: clients find another one of its name.
    #[must_use]
    pub fn add(&self, export: &Arc<Export>) -> bool {
        let mut exports = self.lock();
        if exports.find_by_name(export.name()).is_some() {
            return false;
        }
        let Exports { by_number, numbers } = &mut *exports;
        by_number.retain(|_, export| export.strong_count() > 0);
        numbers.retain(|_, number| by_number.contains_key(number));
        by_number.insert(export.number(), Arc::downgrade(export));
        numbers.insert(export.name().to_owned(), export.number());
        true
    }

    /// The export that a client has chosen by its name, and not one that has the name now: that may be read-only, or another disk.
    pub fn find_by_number(&self, number: ExportNumber) -> Option<Arc<Export>> {
        self.lock().find_by_number(number)
    }

    fn lock(&self) -> MutexGuard<'_, Exports> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Exports {
    fn find_by_name(&self, name: &str) -> Option<Arc<Export>> {
        self.find_by_number(*self.numbers.get(name)?)
    }

    fn find_by_number(&self, number: ExportNumber) -> Option<Arc<Export>> {
        let export = self.by_number.get(&number)?.upgrade()?;
        (!export.is_removed()).then_some(export)
    }
}

impl ExportDirectory for ExportList {
    fn list(&self) -> Vec<ExportDescription> {
        let exports = self.lock();
        let exports = exports.by_number.values().filter_map(Weak::upgrade);
        let found: Vec<_> = exports.filter(|export| !export.is_removed()).collect();
        found.iter().map(|export| export.description()).collect()
    }

    fn find(&self, name: &str) -> Option<ExportDescription> {
        let export = self.lock().find_by_name(name);
        export.map(|export| export.description())
    }
}

#[cfg(test)]
mod tests {
    use nbd::wire::transmission_flag;

    use super::*;
    use crate::testing::export_without_iothreads;

    fn export(writable: bool) -> Arc<Export> {
        export_without_iothreads(writable, || unreachable!("no client connects"))
    }

    /// A client that reads slowly has chosen it, and knows that it may write.
    #[test]
    fn client_of_a_removed_export_gets_no_other_of_that_name() {
        let old = export(true);
        let list = ExportList::default();
        assert!(list.add(&old));
        let chosen = list.find("disk").unwrap().number;
        assert!(list.find_by_number(chosen).is_some());
        let new = export(false);
        assert!(!list.add(&new), "the name is in use");
        assert!(old.remove_if_unconnected());
        assert!(list.find("disk").is_none());
        assert!(list.add(&new));
        assert!(list.find("disk").unwrap().flags & transmission_flag::READ_ONLY != 0);
        assert_eq!(list.list(), [new.description()]);
        assert!(list.find_by_number(chosen).is_none());
    }
}
