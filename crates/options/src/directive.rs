//! The kinds of things that can be created, whether an option or a table of a file describes them.

use crate::{
    BlockdevOptions, ChardevOptions, ExportOptions, MonitorOptions, ObjectOptions, Problem,
    blockdev, export, monitor,
    names::Names,
    object,
    tree::{Object, Value},
};

/// One thing to create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Directive {
    /// `--object`
    Object(ObjectOptions),
    /// `--blockdev`
    Blockdev(BlockdevOptions),
    /// `--export`
    Export(ExportOptions),
    /// `--chardev`
    Chardev(ChardevOptions),
    /// `--monitor`
    Monitor(MonitorOptions),
}

/// A kind. The order is that in which a configuration creates them: what others refer to comes first,
/// and a disk is served only when a monitor that waits for its client has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Object,
    Blockdev,
    Chardev,
    Monitor,
    Export,
}

impl Kind {
    /// The key of the first value of an option, which may stand without it.
    pub(crate) fn implied_key(self) -> &'static str {
        match self {
            Self::Object => "qom-type",
            Self::Blockdev => "driver",
            Self::Chardev => "backend",
            Self::Monitor => "chardev",
            Self::Export => "type",
        }
    }

    /// The key by which there is one of a kind.
    pub(crate) fn name_key(self) -> &'static str {
        match self {
            Self::Blockdev => "node-name",
            Self::Monitor => "chardev",
            Self::Object | Self::Chardev | Self::Export => "id",
        }
    }

    /// Reads a tree and notes the names in it.
    pub(crate) fn read(self, object: Object, names: &mut Names) -> Result<Directive, Problem> {
        Ok(match self {
            Self::Object => Directive::Object(object::parse(object, names)?),
            Self::Blockdev => Directive::Blockdev(blockdev::parse(object, names)?),
            Self::Chardev => Directive::Chardev(monitor::chardev(object, names)?),
            Self::Monitor => Directive::Monitor(monitor::monitor(object, names)?),
            Self::Export => Directive::Export(export::parse(object, names)?),
        })
    }
}

/// What one option of the command line asks for, before it is judged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) kind: Kind,
    pub(crate) object: Object,
    /// The option, for errors.
    pub(crate) place: String,
}

impl Written {
    /// The name it gives, if it has one.
    pub(crate) fn name(&self) -> Option<&str> {
        match self.object.get(self.kind.name_key()) {
            Some(Value::Text(name) | Value::String(name)) => Some(name),
            _ => None,
        }
    }
}
