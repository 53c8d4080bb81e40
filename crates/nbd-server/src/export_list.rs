//! List of the exports of a server, as clients find them. Lookups by name and number do not walk the list: clients may send options
//! without end.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use nbd::server::{ExportDescription, ExportDirectory, ExportNumber};

use crate::export::Export;

/// The exports of a server.
#[derive(Default)]
pub(crate) struct ExportList(Mutex<Exports>);

/// Exports, with those that are removed or dropped until the next one is added.
#[derive(Default)]
struct Exports {
    /// In the order of their creation, in which clients list them.
    by_number: BTreeMap<ExportNumber, Weak<Export>>,
    /// The number of the newest export of each name.
    number_by_name: HashMap<String, ExportNumber>,
}

impl ExportList {
    /// Adds an export. False: clients find another one of its name.
    #[must_use]
    pub fn add(&self, export: &Arc<Export>) -> bool {
        let mut exports = self.lock();
        if exports.find_by_name(export.name()).is_some() {
            return false;
        }
        let Exports {
            by_number,
            number_by_name,
        } = &mut *exports;
        by_number.retain(|_, export| export.strong_count() > 0);
        number_by_name.retain(|_, number| by_number.contains_key(number));
        by_number.insert(export.number(), Arc::downgrade(export));
        number_by_name.insert(export.name().to_owned(), export.number());
        true
    }

    /// The export that a client has chosen. (Its name may belong to another export by now, which may be read-only or another disk.)
    pub fn find_by_number(&self, number: ExportNumber) -> Option<Arc<Export>> {
        self.lock().find_by_number(number)
    }

    /// How many connections of all exports have lost their client, or are being disconnected since their export is removed.
    pub fn gone_connection_count(&self) -> usize {
        let exports = self.lock();
        let exports = exports.by_number.values().filter_map(Weak::upgrade);
        exports.map(|export| export.gone_connection_count()).sum()
    }

    fn lock(&self) -> MutexGuard<'_, Exports> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Exports {
    fn find_by_name(&self, name: &str) -> Option<Arc<Export>> {
        self.find_by_number(*self.number_by_name.get(name)?)
    }

    fn find_by_number(&self, number: ExportNumber) -> Option<Arc<Export>> {
        let export = self.by_number.get(&number)?.upgrade()?;
        (!export.is_removed()).then_some(export)
    }
}

impl ExportDirectory for ExportList {
    fn list(&self) -> Vec<ExportDescription> {
        let exports = self.lock();
        let present = exports.by_number.values().filter_map(Weak::upgrade);
        let present = present.filter(|export| !export.is_removed());
        present.map(|export| export.description()).collect()
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
