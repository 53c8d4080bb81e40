//! Options that come while the program runs: the same keys as on the command line, in JSON.
//!
//! What they may refer to, and which names are taken, is what runs at that moment: a [`Live`] is
//! told, and forgotten when one set of options was read.

use crate::{
    BlockdevOptions, ExportOptions, Injected, Key, LunOptions, ObjectOptions, Problem, SocketAddr,
    blockdev, export, fields::Fields, json, names::Names, object, reference,
};

/// What runs.
#[derive(Debug, Default)]
pub struct Live {
    names: Names,
}

impl Live {
    /// There is a node, which refuses writes or does not.
    ///
    /// # Errors
    /// [`Problem::Duplicate`].
    pub fn add_node(&mut self, name: &str, read_only: bool) -> Result<(), Problem> {
        self.names.add_node(name, read_only)
    }

    /// There is an iothread.
    ///
    /// # Errors
    /// [`Problem::Duplicate`].
    pub fn add_iothread(&mut self, id: &str) -> Result<(), Problem> {
        self.names.add_iothread(id)
    }

    /// There is an export, which listens there.
    ///
    /// # Errors
    /// [`Problem::Duplicate`], [`Problem::Conflict`].
    pub fn add_export(&mut self, id: &str, addr: &SocketAddr) -> Result<(), Problem> {
        self.names.add_export(id, addr)
    }

    /// Reads the options of one more object.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn object(mut self, json: &str) -> Result<ObjectOptions, Problem> {
        object::parse(json::parse(json)?, &mut self.names)
    }

    /// Reads the options of one more node.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn blockdev(mut self, json: &str) -> Result<BlockdevOptions, Problem> {
        blockdev::parse(json::parse(json)?, &mut self.names)
    }

    /// Reads `inject-error` and `seed` alone, for a node that is there.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn injected(json: &str) -> Result<Injected, Problem> {
        let mut fields = Fields::new(json::parse(json)?, "", &[blockdev::BLKDEBUG_KEYS], &[])?;
        let injected = blockdev::injected(&mut fields)?;
        fields.finish();
        Ok(injected)
    }

    /// Reads the options of one more export.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn export(mut self, json: &str) -> Result<ExportOptions, Problem> {
        export::parse(json::parse(json)?, &mut self.names)
    }
}

/// A disk that is added to a virtio SCSI controller which has others.
impl Live {
    /// Reads its options. What they do not say about writing is as of the controller.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn lun(
        self,
        json: &str,
        writable: bool,
        others: &[LunOptions],
    ) -> Result<LunOptions, Problem> {
        let object = json::parse(json)?;
        let places = &export::VIRTIO_PLACES;
        export::lun(object, "", &self.names, places, writable, others)
    }
}

/// Keys of an iothread.
#[must_use]
pub fn iothread_keys() -> &'static [Key] {
    object::IOTHREAD_KEYS
}

/// Keys of every node.
#[must_use]
pub fn node_keys() -> &'static [Key] {
    blockdev::COMMON_KEYS
}

/// The drivers, each with the keys that it adds to those of every node.
#[must_use]
pub fn drivers() -> Vec<(&'static str, &'static [Key])> {
    let drivers = blockdev::DRIVERS.iter();
    drivers.map(|(name, which)| (*name, which.keys())).collect()
}

/// Keys of exports, of all types.
#[must_use]
pub fn export_keys() -> Vec<Key> {
    let groups = reference::KEYS.iter();
    let of_exports = groups.filter(|group| group.option == "export");
    of_exports.flat_map(|group| group.keys).copied().collect()
}

/// Keys of a disk of a SCSI controller.
#[must_use]
pub fn lun_keys() -> Vec<Key> {
    [export::LUN_KEYS, export::LUN_DEVICE_KEYS].concat()
}

/// Keys of one fault of a `blkdebug` node.
#[must_use]
pub fn inject_error_keys() -> &'static [Key] {
    blockdev::INJECT_KEYS
}

/// Types of exports.
#[must_use]
pub fn export_types() -> Vec<&'static str> {
    export::TYPES.iter().map(|(name, _)| *name).collect()
}
