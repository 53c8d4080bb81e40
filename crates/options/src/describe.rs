//! Writes the options of nodes, exports, objects, chardevs and monitors as JSON, for the process that takes over in a
//! live upgrade.
//!
//! They are read back unchanged: a test writes and reads every key.

use serde_json::Map;

use crate::{
    AuthzListOptions, BlockdevOptions, ChardevOptions, Driver, ExportKind, ExportOptions,
    IothreadOptions, LunOptions, MonitorOptions, NbdServerOptions, NodeRef, SecretOptions,
    SocketAddr, ThrottleGroupOptions, TlsCredsOptions,
    form::{NonUtf8Path, SwitchForm, ValueForm, path_value},
    tree::{Object, Value},
};

/// The reason why the options of an object cannot be written as JSON.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ToJsonError {
    /// A path that is not UTF-8.
    #[error(transparent)]
    Path(#[from] NonUtf8Path),
    /// A filter with faults: how often they have occurred is not part of its options.
    #[error("node '{0}' is a blkdebug filter, whose state cannot be handed over: restart instead")]
    Faults(String),
    /// A snapshot of a disk, which belongs to a backup.
    #[error(
        "node '{0}' is a snapshot of a disk, which cannot be handed over: remove it by blockdev-del, then try again"
    )]
    Snapshot(String),
}

impl IothreadOptions {
    /// These options as JSON, as in `--object`.
    ///
    /// # Errors
    /// Never for an iothread.
    pub fn to_json(&self) -> Result<serde_json::Value, ToJsonError> {
        let mut object = Object::default();
        object.push_dotted_key("qom-type", string_value("iothread"));
        self.write_to(&mut object)?;
        Ok(object.into())
    }
}

impl SecretOptions {
    /// These options as JSON, as in `--object`. The text has the secret itself if it was given as `data`: it must not be shown.
    ///
    /// # Errors
    /// A path that is not UTF-8.
    pub fn to_json(&self) -> Result<serde_json::Value, ToJsonError> {
        let mut object = Object::default();
        object.push_dotted_key("qom-type", string_value("secret"));
        self.write_to(&mut object)?;
        Ok(object.into())
    }
}

impl ThrottleGroupOptions {
    /// These options as JSON, as in `--object`.
    ///
    /// # Errors
    /// Never for a throttle group.
    pub fn to_json(&self) -> Result<serde_json::Value, ToJsonError> {
        let mut object = Object::default();
        object.push_dotted_key("qom-type", string_value("throttle-group"));
        self.write_to(&mut object)?;
        Ok(object.into())
    }
}

impl TlsCredsOptions {
    /// These options as JSON, as in `--object`.
    ///
    /// # Errors
    /// A path that is not UTF-8.
    pub fn to_json(&self) -> Result<serde_json::Value, ToJsonError> {
        let mut object = Object::default();
        object.push_dotted_key("qom-type", string_value("tls-creds-x509"));
        self.write_to(&mut object)?;
        Ok(object.into())
    }
}

impl AuthzListOptions {
    /// These options as JSON, as in `--object`.
    ///
    /// # Errors
    /// Never for a list.
    pub fn to_json(&self) -> Result<serde_json::Value, ToJsonError> {
        let mut object = Object::default();
        object.push_dotted_key("qom-type", string_value("authz-list"));
        self.write_to(&mut object)?;
        Ok(object.into())
    }
}

impl BlockdevOptions {
    /// These options as JSON, as in `--blockdev`. `current` returns the present options of a node by its name, for nodes that are
    /// written inside of this one.
    ///
    /// # Errors
    /// A path that is not UTF-8; a node with faults.
    pub fn to_json<'a>(
        &'a self,
        current: &dyn Fn(&str) -> Option<&'a BlockdevOptions>,
    ) -> Result<serde_json::Value, ToJsonError> {
        Ok(self.to_object(current)?.into())
    }

    /// These options as a tree, which `to_json` converts.
    fn to_object<'a>(
        &'a self,
        current: &dyn Fn(&str) -> Option<&'a BlockdevOptions>,
    ) -> Result<Object, ToJsonError> {
        let mut object = Object::default();
        object.push_dotted_key("driver", string_value(self.driver.name()));
        object.push_dotted_key("node-name", string_value(&self.node_name));
        self.settings.write_to(&mut object)?;
        match &self.driver {
            Driver::File(file) | Driver::HostDevice(file) => file.write_to(&mut object)?,
            Driver::NullCo(null) => null.write_to(&mut object)?,
            Driver::Nbd(nbd) => nbd.write_to(&mut object)?,
            Driver::Rbd(rbd) => rbd.write_to(&mut object)?,
            Driver::Raw { file, part } => {
                part.write_to(&mut object)?;
                object.push_dotted_key("file", child_value(file, current)?);
            }
            Driver::Throttle { file, member } => {
                member.write_to(&mut object)?;
                object.push_dotted_key("file", child_value(file, current)?);
            }
            Driver::Blkdebug { .. } => {
                return Err(ToJsonError::Faults(self.node_name.clone()));
            }
            Driver::SnapshotAccess { .. } => {
                return Err(ToJsonError::Snapshot(self.node_name.clone()));
            }
        }
        Ok(object)
    }
}

/// The node below another one: its name, or its present options if it is written inside of that.
fn child_value<'a>(
    child: &'a NodeRef,
    current: &dyn Fn(&str) -> Option<&'a BlockdevOptions>,
) -> Result<Value, ToJsonError> {
    Ok(match child {
        NodeRef::Name(name) => string_value(name),
        NodeRef::Inline(node) => {
            let node = current(&node.node_name).unwrap_or(node);
            Value::Object(node.to_object(current)?)
        }
    })
}

impl ExportOptions {
    /// These options as JSON, as in `--export`.
    ///
    /// # Errors
    /// A path that is not UTF-8.
    pub fn to_json(&self) -> Result<serde_json::Value, ToJsonError> {
        let mut object = Object::default();
        object.push_dotted_key("type", string_value(self.kind.name()));
        object.push_dotted_key("id", string_value(&self.id));
        self.settings.write_to(&mut object)?;
        if let Some(addr) = self.kind.socket() {
            let (r#type, key, value) = match addr {
                SocketAddr::Unix { path: socket } => ("unix", "addr.path", path_value(socket)?),
                SocketAddr::Fd { fd } => ("fd", "addr.str", string_value(&fd.to_string())),
                SocketAddr::FdName { name } => ("fd", "addr.str", string_value(name)),
            };
            object.push_dotted_key("addr.type", string_value(r#type));
            object.push_dotted_key(key, value);
        }
        match &self.kind {
            ExportKind::VhostUserBlk { disk, .. } => {
                object.push_dotted_key("node-name", string_value(&self.node_name));
                disk.write_to(&mut object)?;
            }
            ExportKind::VhostUserScsi { queues, luns, .. } => {
                queues.write_to(&mut object)?;
                write_luns_if_any(luns, &mut object)?;
            }
            ExportKind::VfioUserLsi53c895a { luns, .. } => write_luns_if_any(luns, &mut object)?,
            ExportKind::Nbd(nbd) => {
                object.push_dotted_key("node-name", string_value(&self.node_name));
                nbd.write_to(&mut object)?;
            }
        }
        write_iothreads(&self.iothreads, &mut object);
        Ok(object.into())
    }
}

/// Writes the disks of a controller, if it has any.
fn write_luns_if_any(luns: &[LunOptions], to: &mut Object) -> Result<(), NonUtf8Path> {
    let lun_value = |lun: &LunOptions| {
        let mut object = Object::default();
        object.push_dotted_key("node-name", string_value(&lun.node_name));
        object.push_dotted_key("target", Value::Number(lun.target.to_string()));
        object.push_dotted_key("lun", Value::Number(lun.lun.to_string()));
        object.push_dotted_key("writable", SwitchForm.to_value(&lun.writable)?);
        lun.device.write_to(&mut object)?;
        Ok(Value::Object(object))
    };
    let luns: Vec<Value> = luns.iter().map(lun_value).collect::<Result<_, _>>()?;
    if !luns.is_empty() {
        to.push_dotted_key("luns", Value::List(luns));
    }
    Ok(())
}

/// Writes the iothreads: queue *i* runs on number *i* modulo their count. A list with duplicates is from `iothread-vq-mapping`.
fn write_iothreads(iothreads: &[String], to: &mut Object) {
    let mut distinct: Vec<&String> = Vec::new();
    for id in iothreads {
        if !distinct.contains(&id) {
            distinct.push(id);
        }
    }
    if distinct.len() == iothreads.len() {
        if !iothreads.is_empty() {
            let ids = iothreads.iter().map(|id| string_value(id));
            to.push_dotted_key("iothread", Value::List(ids.collect()));
        }
        return;
    }
    let entries = distinct.iter().map(|id| {
        let queues = iothreads.iter().enumerate();
        let queues = queues.filter(|(_, found)| found == id);
        let queues = queues.map(|(queue, _)| Value::Number(queue.to_string()));
        let mut entry = Object::default();
        entry.push_dotted_key("iothread", string_value(id));
        entry.push_dotted_key("vqs", Value::List(queues.collect()));
        Value::Object(entry)
    });
    to.push_dotted_key("iothread-vq-mapping", Value::List(entries.collect()));
}

impl NbdServerOptions {
    /// These options as JSON, as in `--nbd-server`.
    ///
    /// # Errors
    /// A path that is not UTF-8.
    pub fn to_json(&self) -> Result<serde_json::Value, ToJsonError> {
        Ok(self.to_object()?.into())
    }
}

impl ChardevOptions {
    /// These options as JSON, as in `--chardev`.
    ///
    /// # Errors
    /// A path that is not UTF-8.
    pub fn to_json(&self) -> Result<serde_json::Value, ToJsonError> {
        let mut object = Object::default();
        object.push_dotted_key("backend", string_value("socket"));
        self.settings.write_to(&mut object)?;
        match &self.addr {
            SocketAddr::Unix { path: socket } => {
                object.push_dotted_key("path", path_value(socket)?)
            }
            SocketAddr::Fd { fd } => object.push_dotted_key("fd", string_value(&fd.to_string())),
            SocketAddr::FdName { name } => object.push_dotted_key("fd", string_value(name)),
        }
        Ok(object.into())
    }
}

impl MonitorOptions {
    /// These options as JSON, as in `--monitor`.
    ///
    /// # Errors
    /// None for a monitor.
    pub fn to_json(&self) -> Result<serde_json::Value, ToJsonError> {
        let mut object = Object::default();
        self.write_to(&mut object)?;
        Ok(object.into())
    }
}

fn string_value(text: &str) -> Value {
    Value::String(text.to_owned())
}

impl From<Object> for serde_json::Value {
    fn from(object: Object) -> Self {
        let entries = object.entries.into_iter();
        let entries: Map<_, _> = entries.map(|(key, value)| (key, value.into())).collect();
        Self::Object(entries)
    }
}

impl From<Value> for serde_json::Value {
    fn from(value: Value) -> Self {
        match value {
            Value::Text(text) | Value::String(text) => Self::String(text),
            Value::Number(text) => text.parse::<u64>().map_or(Self::String(text), Self::from),
            Value::Bool(value) => Self::Bool(value),
            Value::Null => Self::Null,
            Value::List(items) => items.into_iter().map(Self::from).collect(),
            Value::Object(object) => object.into(),
        }
    }
}
