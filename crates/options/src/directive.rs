//! Directives: the kinds of objects to create (object, node, chardev, monitor, NBD server, export), from an option or a table
//! of a configuration file, and the dispatch to the reader of each kind.

use crate::{
    BlockdevOptions, ChardevOptions, ExportOptions, MonitorOptions, NbdServerOptions,
    ObjectOptions, Problem, blockdev, export, monitor,
    names::DefinedNames,
    nbd_server, object,
    tree::{Object, Value},
};

/// An object to create, with its options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Directive {
    /// `--object`
    Object(ObjectOptions),
    /// `--blockdev`
    Blockdev(BlockdevOptions),
    /// `--nbd-server`
    NbdServer(NbdServerOptions),
    /// `--export`
    Export(ExportOptions),
    /// `--chardev`
    Chardev(ChardevOptions),
    /// `--monitor`
    Monitor(MonitorOptions),
}

/// A kind of directive. Configuration files create objects in this order: those that others refer to come first, and exports come
/// after monitors that wait for a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DirectiveKind {
    Object,
    Blockdev,
    Chardev,
    Monitor,
    NbdServer,
    Export,
}

impl DirectiveKind {
    /// The key that the first value of an option may omit.
    pub(crate) fn implied_key(self) -> &'static str {
        match self {
            Self::Object => "qom-type",
            Self::Blockdev => "driver",
            Self::Chardev => "backend",
            Self::Monitor => "chardev",
            Self::NbdServer => "addr.type",
            Self::Export => "type",
        }
    }

    /// The key of the name; `None` if there is only one of the kind.
    pub(crate) fn name_key(self) -> Option<&'static str> {
        Some(match self {
            Self::NbdServer => return None,
            Self::Blockdev => "node-name",
            Self::Monitor => "chardev",
            Self::Object | Self::Chardev | Self::Export => "id",
        })
    }

    /// Reads a tree, and adds the names that it defines.
    pub(crate) fn read_and_register(
        self,
        object: Object,
        names: &mut DefinedNames,
    ) -> Result<Directive, Problem> {
        Ok(match self {
            Self::Object => Directive::Object(object::read_and_register_object(object, names)?),
            Self::Blockdev => {
                Directive::Blockdev(blockdev::read_and_register_blockdev(object, names)?)
            }
            Self::Chardev => Directive::Chardev(monitor::read_and_register_chardev(object, names)?),
            Self::Monitor => {
                Directive::Monitor(monitor::read_monitor_and_reserve_chardev(object, names)?)
            }
            Self::NbdServer => {
                Directive::NbdServer(nbd_server::read_and_register_nbd_server(object, names)?)
            }
            Self::Export => Directive::Export(export::read_and_register_export(object, names)?),
        })
    }
}

/// A directive of the command line whose keys are not checked yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RawDirective {
    pub(crate) kind: DirectiveKind,
    pub(crate) object: Object,
    /// The option, for errors.
    pub(crate) option: String,
}

impl RawDirective {
    /// The name of the object, if it has one; empty if there is only one of its kind.
    pub(crate) fn object_name(&self) -> Option<&str> {
        let Some(name_key) = self.kind.name_key() else {
            return Some("");
        };
        match self.object.get(name_key) {
            Some(Value::Text(name) | Value::String(name)) => Some(name),
            _ => None,
        }
    }
}
