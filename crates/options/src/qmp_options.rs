//! Reads the options of objects that QMP creates or changes in a running daemon, in JSON, and lists their keys for the QMP
//! schema. The keys are those of the command line.
//!
//! They may refer to the objects that run at that moment, and must not use their names: [`RunningObjectNames`] holds these, to read
//! one set of options.

use crate::{
    BlkdebugOptions, BlockdevOptions, ChardevOptions, ExportOptions, IothreadOptions, KeySpec,
    LunOptions, NbdServerOptions, ObjectOptions, Problem, SocketAddr, ThrottleGroupOptions,
    VhostUserBlkOptions, blockdev, export, fields::Fields, json, monitor, names::DefinedNames,
    nbd_server, object,
};

/// Names of the running objects.
#[derive(Debug, Default)]
pub struct RunningObjectNames {
    names: DefinedNames,
}

impl RunningObjectNames {
    /// Adds a node.
    ///
    /// # Errors
    /// [`Problem::Duplicate`].
    pub fn add_node(&mut self, name: &str, read_only: bool) -> Result<(), Problem> {
        self.names.add_node(name, read_only)
    }

    /// Adds an object of a type (`qom-type`).
    ///
    /// # Errors
    /// [`Problem::Duplicate`].
    pub fn add_object(&mut self, r#type: &'static str, id: &str) -> Result<(), Problem> {
        self.names.add_object(r#type, id)
    }

    /// Adds an export, with its socket if it has one.
    ///
    /// # Errors
    /// [`Problem::Duplicate`], [`Problem::Conflict`].
    pub fn add_export_and_socket(
        &mut self,
        id: &str,
        addr: Option<&SocketAddr>,
    ) -> Result<(), Problem> {
        self.names.add_export_and_socket(id, addr)
    }

    /// Adds a chardev, with its socket if it is a server.
    ///
    /// # Errors
    /// [`Problem::Duplicate`], [`Problem::Conflict`].
    pub fn add_chardev_and_socket(&mut self, options: &ChardevOptions) -> Result<(), Problem> {
        let ChardevOptions { addr, settings } = options;
        let listens = settings.server.then_some(addr);
        self.names.add_chardev_and_socket(&settings.id, listens)
    }

    /// Reads the options of a new object.
    ///
    /// # Errors
    /// The first problem of the options.
    pub fn read_object(mut self, json: &str) -> Result<ObjectOptions, Problem> {
        object::read_and_register_object(json::parse(json)?, &mut self.names)
    }

    /// The `old` options of an iothread with the changes in `json`: keys that are not given keep their values.
    ///
    /// # Errors
    /// The first problem of the options.
    pub fn updated_iothread_options(
        old: &IothreadOptions,
        json: &str,
    ) -> Result<IothreadOptions, Problem> {
        object::read_iothread(json::parse(json)?, Some(old))
    }

    /// The `old` options of a throttle group with the changes in `json`: limits that are not given keep their values.
    ///
    /// # Errors
    /// The first problem of the options.
    pub fn updated_throttle_group_options(
        old: &ThrottleGroupOptions,
        json: &str,
    ) -> Result<ThrottleGroupOptions, Problem> {
        object::read_throttle_group(json::parse(json)?, Some(old))
    }

    /// The `old` options that only a vhost-user-blk export has, with the changes in `json`.
    ///
    /// # Errors
    /// The first problem of the options.
    pub fn updated_vhost_user_blk_options(
        old: &VhostUserBlkOptions,
        json: &str,
    ) -> Result<VhostUserBlkOptions, Problem> {
        let keys = [VhostUserBlkOptions::KEYS];
        let mut fields = Fields::with_known_keys(json::parse(json)?, "", &keys, &[])?;
        let read = VhostUserBlkOptions::read(&mut fields, Some(old))?;
        fields.debug_assert_all_taken();
        Ok(read)
    }

    /// Reads the options of a new node.
    ///
    /// # Errors
    /// The first problem of the options.
    pub fn read_blockdev(mut self, json: &str) -> Result<BlockdevOptions, Problem> {
        blockdev::read_and_register_blockdev(json::parse(json)?, &mut self.names)
    }

    /// Reads `inject-error` and `seed`, for an existing blkdebug node.
    ///
    /// # Errors
    /// The first problem of the options.
    pub fn read_inject_errors_and_seed(json: &str) -> Result<BlkdebugOptions, Problem> {
        let mut fields = Fields::with_known_keys(
            json::parse(json)?,
            "",
            &[blockdev::BlkdebugSeedKey::KEYS],
            &[],
        )?;
        let injected = blockdev::read_inject_errors_and_seed(&mut fields)?;
        fields.debug_assert_all_taken();
        Ok(injected)
    }

    /// Reads the options of a new export.
    ///
    /// # Errors
    /// The first problem of the options.
    pub fn read_export(mut self, json: &str) -> Result<ExportOptions, Problem> {
        // That no server runs is no error of an option.
        self.names.assume_nbd_server();
        export::read_and_register_export(json::parse(json)?, &mut self.names)
    }

    /// Reads the options of an NBD server.
    ///
    /// # Errors
    /// The first problem of the options.
    pub fn read_nbd_server(mut self, json: &str) -> Result<NbdServerOptions, Problem> {
        nbd_server::read_and_register_nbd_server(json::parse(json)?, &mut self.names)
    }

    /// Reads the options of a new chardev.
    ///
    /// # Errors
    /// The first problem of the options.
    pub fn read_chardev(mut self, json: &str) -> Result<ChardevOptions, Problem> {
        monitor::read_and_register_chardev(json::parse(json)?, &mut self.names)
    }
}

impl RunningObjectNames {
    /// Reads the options of a disk that is added to a virtio SCSI controller with the disks `others`. `writable` is the default.
    ///
    /// # Errors
    /// The first problem of the options.
    pub fn read_lun_beside_others(
        self,
        json: &str,
        writable: bool,
        others: &[LunOptions],
    ) -> Result<LunOptions, Problem> {
        let object = json::parse(json)?;
        let limits = &export::VIRTIO_SCSI_LIMITS;
        export::read_lun_beside_others(object, "", &self.names, limits, writable, others)
    }
}

/// Keys of an iothread.
#[must_use]
pub fn iothread_keys() -> &'static [KeySpec] {
    object::IothreadOptions::KEYS
}

/// Keys of a secret.
#[must_use]
pub fn secret_keys() -> &'static [KeySpec] {
    object::SecretOptions::KEYS
}

/// Keys of certificates for TLS.
#[must_use]
pub fn tls_creds_keys() -> &'static [KeySpec] {
    object::TlsCredsOptions::KEYS
}

/// Keys of a list of clients.
#[must_use]
pub fn authz_list_keys() -> &'static [KeySpec] {
    object::AuthzListKeys::KEYS
}

/// Keys of a rule of a list of clients.
#[must_use]
pub fn authz_rule_keys() -> &'static [KeySpec] {
    object::AuthzRuleKeys::KEYS
}

/// The types of objects, each with the keys that only it has.
#[must_use]
pub fn object_types_with_specific_keys() -> Vec<(&'static str, Vec<KeySpec>)> {
    let is_specific = |key: &KeySpec| !matches!(key.name, "qom-type" | "id");
    let types = object::TYPES.iter();
    types
        .map(|(name, r#type)| {
            let keys = r#type.keys().iter().copied();
            (*name, keys.filter(is_specific).collect())
        })
        .collect()
}

/// Keys of every node.
#[must_use]
pub fn common_node_keys() -> &'static [KeySpec] {
    blockdev::CommonNodeOptions::KEYS
}

/// The drivers, each with the keys that only it has.
#[must_use]
pub fn drivers_with_specific_keys() -> Vec<(&'static str, &'static [KeySpec])> {
    let drivers = blockdev::DRIVERS.iter();
    drivers
        .map(|(name, driver)| (*name, driver.specific_keys()))
        .collect()
}

/// Keys of every export.
#[must_use]
pub fn common_export_keys() -> &'static [KeySpec] {
    export::CommonExportOptions::KEYS
}

/// A type of exports for the QMP schema.
pub struct ExportTypeSchema {
    /// Its value of `type`.
    pub name: &'static str,
    /// Name of its options.
    pub schema_name: &'static str,
    /// The keys that not every export has.
    pub specific_keys: Vec<KeySpec>,
}

/// The types of exports.
#[must_use]
pub fn export_types() -> Vec<ExportTypeSchema> {
    let types = export::TYPES.iter();
    types
        .map(|(name, r#type)| ExportTypeSchema {
            name,
            schema_name: r#type.schema_name,
            specific_keys: r#type.keys[1..].concat(),
        })
        .collect()
}

/// Keys of exports of one type; empty if there is no such type.
#[must_use]
pub fn keys_of_export_type(r#type: &str) -> Vec<KeySpec> {
    let export_type = export::TYPES.iter().find(|(name, _)| *name == r#type);
    let tables = export_type.map_or(&[][..], |(_, export_type)| export_type.keys);
    tables.concat()
}

/// Keys of a disk of a SCSI controller.
#[must_use]
pub fn lun_keys() -> Vec<KeySpec> {
    [export::LUN_KEYS, export::LunDeviceOptions::KEYS].concat()
}

/// Keys of one fault of a `blkdebug` node.
#[must_use]
pub fn inject_error_keys() -> &'static [KeySpec] {
    blockdev::InjectErrorKeys::KEYS
}

/// Keys of a monitor of an `rbd` node.
#[must_use]
pub fn rbd_server_keys() -> &'static [KeySpec] {
    blockdev::RbdServer::KEYS
}

/// Words of `auth-client-required` of an `rbd` node.
#[must_use]
pub fn rbd_auth_modes() -> Vec<&'static str> {
    blockdev::RbdAuthMode::FORM.placeholder.split('|').collect()
}

/// Types of exports.
#[must_use]
pub fn export_type_names() -> Vec<&'static str> {
    export::TYPES.iter().map(|(name, _)| *name).collect()
}
