//! `luns`: the disks behind a SCSI controller, and where it has them.
//!
//! `node-name` alone is one disk, at target 0, LUN 0.

use crate::{
    LunOptions, Problem,
    fields::{Fields, Key},
    names::{MAX_NODE_NAME_BYTES, Names},
    tree::{Object, Value},
};

use super::lun_device;

/// The keys of an export of several disks.
pub(crate) const KEYS: &[Key] = &[Key {
    name: "luns",
    value: "LIST",
    help: "several disks: luns.0.node-name=NODE, with target=N, lun=N, writable=on|off and what else a disk has of its own beside it (blockplane's own)",
}];

/// The keys of one of them.
pub(crate) const LUN_KEYS: &[Key] = &[
    Key {
        name: "node-name",
        value: "NODE",
        help: "the node",
    },
    Key {
        name: "target",
        value: "N",
        help: "target (default 0)",
    },
    Key {
        name: "lun",
        value: "N",
        help: "logical unit (default: the first that is free)",
    },
    Key {
        name: "serial",
        value: "TEXT",
        help: "serial number, at most 247 bytes",
    },
    Key {
        name: "logical-block-size",
        value: "BYTES",
        help: "a power of two",
    },
    Key {
        name: "writable",
        value: "on|off",
        help: "let the guest write (default: as the export)",
    },
];

/// Keys of an export of which each disk of several has its own.
fn alone() -> impl Iterator<Item = &'static str> {
    let device = lun_device::KEYS.iter().map(|key| key.name);
    ["serial", "logical-block-size"].into_iter().chain(device)
}

/// What places a controller has.
pub(crate) struct Places {
    /// The highest target.
    pub max_target: u16,
    /// The highest logical unit.
    pub max_lun: u16,
    /// The target that is the controller itself.
    pub initiator: Option<u16>,
    /// How many disks it has at most.
    pub max_disks: usize,
    /// Whether disks may all come later.
    pub may_be_empty: bool,
}

/// Takes all of them. `writable` is what the export says.
pub(super) fn luns(
    fields: &mut Fields,
    names: &Names,
    places: &Places,
    writable: bool,
) -> Result<Vec<LunOptions>, Problem> {
    let one = fields.identifier("node-name", MAX_NODE_NAME_BYTES)?;
    let items = match fields.take("luns") {
        None => {
            if one.is_none() && places.may_be_empty && !alone().any(|key| fields.has(key)) {
                return Ok(Vec::new());
            }
            let missing = || {
                Problem::Missing {
                key: "node-name".to_owned(),
                expected: "write node-name=NODE with the node-name of a --blockdev, or a list of them: luns.0.node-name=NODE".to_owned(),
            }
            };
            let node_name = one.ok_or_else(missing)?;
            check_node(names, "node-name", &node_name, writable)?;
            return Ok(vec![LunOptions {
                node_name,
                target: 0,
                lun: 0,
                serial: lun_device::serial(fields)?,
                device: lun_device::device(fields)?,
                logical_block_size: super::read::logical_block_size(fields)?,
                writable,
            }]);
        }
        Some(Value::List(items)) if !items.is_empty() => items,
        Some(other) => {
            return Err(Problem::BadValue {
                key: fields.path("luns"),
                value: other.shown(),
                expected: "a list of disks, such as luns.0.node-name=NODE,luns.1.node-name=NODE,luns.1.lun=1".to_owned(),
            });
        }
    };
    let beside = alone().find(|key| fields.take(key).is_some());
    if let Some(key) = one.map(|_| "node-name").or(beside) {
        let reason =
            format!("'{key}' and 'luns' both say what is shown; write luns.0.{key} instead");
        return Err(Problem::Conflict { reason });
    }
    let mut luns: Vec<LunOptions> = Vec::new();
    for (i, item) in items.into_iter().enumerate() {
        let path = format!("luns.{i}");
        let Value::Object(object) = item else {
            return Err(Problem::BadValue {
                key: path,
                value: item.shown(),
                expected: "a group, as in luns.0.node-name=NODE".to_owned(),
            });
        };
        let prefix = format!("{path}.");
        luns.push(lun(object, &prefix, names, places, writable, &luns)?);
    }
    Ok(luns)
}

/// One disk more than `others`.
pub(crate) fn lun(
    object: Object,
    prefix: &str,
    names: &Names,
    places: &Places,
    writable: bool,
    others: &[LunOptions],
) -> Result<LunOptions, Problem> {
    let mut fields = Fields::new(object, prefix, &[LUN_KEYS, lun_device::KEYS], &[])?;
    if others.len() >= places.max_disks {
        let reason = format!(
            "there are {} disks already: the controller has no more",
            others.len()
        );
        return Err(Problem::Conflict { reason });
    }
    let node_name = fields.required("node-name", "write the node-name of a --blockdev")?;
    let writable = fields.boolean("writable")?.unwrap_or(writable);
    check_node(names, &fields.path("node-name"), &node_name, writable)?;
    let mut number = |key, max: u16| {
        let number = fields.number(key, 0, max.into())?;
        // The range above is that of the type, so the conversion cannot fail.
        Ok::<_, Problem>(number.and_then(|n| u16::try_from(n).ok()))
    };
    let target = number("target", places.max_target)?.unwrap_or(0);
    let lun = number("lun", places.max_lun)?;
    if places.initiator == Some(target) {
        let expected = format!(
            "a target from 0 to {} that is not {target}, which is the controller itself",
            places.max_target
        );
        return Err(fields.bad_text("target", &target.to_string(), &expected));
    }
    let at = |lun: u16| {
        let mut others = others.iter();
        others.find(move |other| (other.target, other.lun) == (target, lun))
    };
    let free = || (0..=places.max_lun).find(|lun| at(*lun).is_none());
    let lun = lun.or_else(free).unwrap_or(places.max_lun);
    if let Some(other) = at(lun) {
        let reason = format!(
            "'{}': target {target}, LUN {lun} is node '{}' already; give it another 'lun' or 'target'",
            fields.path("lun"),
            other.node_name
        );
        return Err(Problem::Conflict { reason });
    }
    let lun = LunOptions {
        node_name,
        target,
        lun,
        serial: lun_device::serial(&mut fields)?,
        device: lun_device::device(&mut fields)?,
        logical_block_size: super::read::logical_block_size(&mut fields)?,
        writable,
    };
    fields.finish();
    Ok(lun)
}

/// The node exists, and may be written if it is to be.
pub(super) fn check_node(
    names: &Names,
    key: &str,
    node: &str,
    writable: bool,
) -> Result<(), Problem> {
    if names.node_is_read_only(key, node)? && writable {
        let reason = format!(
            "'writable=on' on node '{node}', which is read-only; remove it, or remove 'read-only=on' from the node"
        );
        return Err(Problem::Conflict { reason });
    }
    Ok(())
}
