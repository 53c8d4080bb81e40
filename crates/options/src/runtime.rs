//! Options that come while the program runs: the same keys as on the command line, in JSON.
//!
//! What they may refer to, and which names are taken, is what runs at that moment: a [`RunningObjects`] is
//! told, and forgotten when one set of options was read.

use crate::{
    BlkdebugOptions, BlockdevOptions, ExportOptions, IothreadOptions, Key, LunOptions,
    ObjectOptions, Problem, SocketAddr, VhostUserBlkOptions, blockdev, export, fields::Fields,
    json, names::Names, object, reference,
};

/// What runs.
#[derive(Debug, Default)]
pub struct RunningObjects {
    names: Names,
}

impl RunningObjects {
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

    /// Reads keys of an iothread over the options that it has: others stay as they are.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn iothread(now: &IothreadOptions, json: &str) -> Result<IothreadOptions, Problem> {
        object::read(json::parse(json)?, Some(now))
    }

    /// The same of a virtio disk's own keys.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn vhost_user_blk(
        now: &VhostUserBlkOptions,
        json: &str,
    ) -> Result<VhostUserBlkOptions, Problem> {
        let keys = [VhostUserBlkOptions::KEYS];
        let mut fields = Fields::new(json::parse(json)?, "", &keys, &[])?;
        let read = VhostUserBlkOptions::read(&mut fields, Some(now))?;
        fields.finish();
        Ok(read)
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
    pub fn blkdebug(json: &str) -> Result<BlkdebugOptions, Problem> {
        let mut fields = Fields::new(json::parse(json)?, "", &[blockdev::BlkdebugKeys::KEYS], &[])?;
        let injected = blockdev::read_blkdebug(&mut fields)?;
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
impl RunningObjects {
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
    object::IothreadOptions::KEYS
}

/// Keys of every node.
#[must_use]
pub fn node_keys() -> &'static [Key] {
    blockdev::NodeSettings::KEYS
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
    let mut keys: Vec<Key> = Vec::new();
    for key in of_exports.flat_map(|group| group.keys) {
        if !keys.iter().any(|known| known.name == key.name) {
            keys.push(*key);
        }
    }
    keys
}

/// Keys of exports of one type; none if there is no such type.
#[must_use]
pub fn export_keys_of(r#type: &str) -> Vec<Key> {
    let found = export::TYPES.iter().find(|(name, _)| *name == r#type);
    let tables = found.map_or(&[][..], |(_, found)| found.keys);
    tables.concat()
}

/// Keys of a disk of a SCSI controller.
#[must_use]
pub fn lun_keys() -> Vec<Key> {
    [export::LUN_KEYS, export::LunDevice::KEYS].concat()
}

/// Keys of one fault of a `blkdebug` node.
#[must_use]
pub fn inject_error_keys() -> &'static [Key] {
    blockdev::InjectErrorKeys::KEYS
}

/// Types of exports.
#[must_use]
pub fn export_types() -> Vec<&'static str> {
    export::TYPES.iter().map(|(name, _)| *name).collect()
}
