//! Reads `luns`: the disks of a SCSI controller, with their targets and LUNs.
//!
//! `node-name` without `luns` is one disk at target 0, LUN 0.

use crate::{
    LunDeviceOptions, LunOptions, Problem,
    fields::Fields,
    form::{NODE_NAME_FORM, SwitchForm, number_form},
    key::{KeySpec, ValueType},
    names::DefinedNames,
    tree::{Object, Value},
};

/// The keys of an export with several disks.
pub(crate) const LUNS_KEYS: &[KeySpec] = &[KeySpec::new(
    "luns",
    "LIST",
    "several disks: luns.0.node-name=NODE, with target=N, lun=N, writable=on|off and other keys of SCSI disks (blockplane's own)",
    ValueType::ListOf("BlockExportLun"),
)];

/// The keys of one disk, beside those of [`LunDeviceOptions`].
pub(crate) const LUN_KEYS: &[KeySpec] = &[
    KeySpec::new("node-name", "NODE", "the node", ValueType::Str).required(),
    KeySpec::new("target", "N", "target (default 0)", ValueType::Int),
    KeySpec::new(
        "lun",
        "N",
        "logical unit (default: the first free one)",
        ValueType::Int,
    ),
    SwitchForm.define_key(
        "writable",
        "let the guest write (default: as of the export)",
    ),
];

/// Keys that each disk has for itself if there are several.
fn per_disk_key_names() -> impl Iterator<Item = &'static str> {
    LunDeviceOptions::KEYS.iter().map(|key| key.name)
}

/// The targets and LUNs that a controller can have.
pub(crate) struct LunLimits {
    /// The highest target.
    pub max_target: u16,
    /// The highest logical unit.
    pub max_lun: u16,
    /// The target of the controller itself.
    pub initiator: Option<u16>,
    /// Most disks.
    pub max_disks: usize,
    /// Whether it may start without disks.
    pub may_be_empty: bool,
}

/// Reads the disks of a controller: those in `luns`, or the one of `node-name`. `writable` is that of the export.
pub(super) fn read_luns_or_only_node(
    fields: &mut Fields,
    names: &DefinedNames,
    limits: &LunLimits,
    writable: bool,
) -> Result<Vec<LunOptions>, Problem> {
    let only_node = fields.take_typed("node-name", &NODE_NAME_FORM)?;
    let items = match fields.take_raw("luns") {
        None => {
            if only_node.is_none()
                && limits.may_be_empty
                && !per_disk_key_names().any(|key| fields.contains_key(key))
            {
                return Ok(Vec::new());
            }
            let missing_node = || {
                Problem::Missing {
                key: "node-name".to_owned(),
                expected: "write node-name=NODE with the node-name of a --blockdev, or a list of them: luns.0.node-name=NODE".to_owned(),
            }
            };
            let node_name = only_node.ok_or_else(missing_node)?;
            check_node_exists_and_writability(names, "node-name", &node_name, writable)?;
            return Ok(vec![LunOptions {
                node_name,
                target: 0,
                lun: 0,
                writable,
                device: LunDeviceOptions::read(fields, None)?,
            }]);
        }
        Some(Value::List(items)) if !items.is_empty() => items,
        Some(other) => {
            return Err(Problem::BadValue {
                key: fields.full_key("luns"),
                value: other.excerpt(),
                expected: "a list of disks, such as luns.0.node-name=NODE,luns.1.node-name=NODE,luns.1.lun=1".to_owned(),
            });
        }
    };
    let disk_key = per_disk_key_names().find(|key| fields.take_raw(key).is_some());
    if let Some(key) = only_node.map(|_| "node-name").or(disk_key) {
        let reason =
            format!("'{key}' and 'luns' contradict each other; write luns.0.{key} instead");
        return Err(Problem::Conflict { reason });
    }
    let mut luns: Vec<LunOptions> = Vec::new();
    for (i, item) in items.into_iter().enumerate() {
        let key = format!("luns.{i}");
        let Value::Object(object) = item else {
            return Err(Problem::BadValue {
                key,
                value: item.excerpt(),
                expected: "a group, as in luns.0.node-name=NODE".to_owned(),
            });
        };
        let prefix = format!("{key}.");
        luns.push(read_lun_beside_others(
            object, &prefix, names, limits, writable, &luns,
        )?);
    }
    Ok(luns)
}

/// Reads one disk, which gets a free LUN beside `others` unless it names one. `prefix` precedes its keys in errors.
pub(crate) fn read_lun_beside_others(
    object: Object,
    prefix: &str,
    names: &DefinedNames,
    limits: &LunLimits,
    writable: bool,
    others: &[LunOptions],
) -> Result<LunOptions, Problem> {
    let mut fields =
        Fields::with_known_keys(object, prefix, &[LUN_KEYS, LunDeviceOptions::KEYS], &[])?;
    if others.len() >= limits.max_disks {
        let reason = format!(
            "there are {} disks already, and the controller cannot have more",
            others.len()
        );
        return Err(Problem::Conflict { reason });
    }
    let node_name =
        fields.take_required_string("node-name", "write the node-name of a --blockdev")?;
    let writable = fields
        .take_typed("writable", &SwitchForm)?
        .unwrap_or(writable);
    check_node_exists_and_writability(names, &fields.full_key("node-name"), &node_name, writable)?;
    let target = fields.take_typed("target", &number_form(0, limits.max_target))?;
    let target = target.unwrap_or(0);
    let lun = fields.take_typed("lun", &number_form(0, limits.max_lun))?;
    if limits.initiator == Some(target) {
        let expected = format!(
            "a target from 0 to {} that is not {target}, which is the controller itself",
            limits.max_target
        );
        return Err(fields.bad_value_error("target", &target.to_string(), &expected));
    }
    let disk_at = |lun: u16| {
        let mut others = others.iter();
        others.find(move |other| (other.target, other.lun) == (target, lun))
    };
    let first_free = || (0..=limits.max_lun).find(|lun| disk_at(*lun).is_none());
    let lun = lun.or_else(first_free).unwrap_or(limits.max_lun);
    if let Some(other) = disk_at(lun) {
        let reason = format!(
            "'{}': target {target}, LUN {lun} is node '{}' already; give it another 'lun' or 'target'",
            fields.full_key("lun"),
            other.node_name
        );
        return Err(Problem::Conflict { reason });
    }
    let device = LunDeviceOptions::read(&mut fields, None)?;
    let has_same_pr_file = |other: &&LunOptions| other.device.pr_file == device.pr_file;
    if device.pr_file.is_some()
        && let Some(other) = others.iter().find(has_same_pr_file)
    {
        let reason = format!(
            "'{}': target {}, LUN {} keeps its reservations in this file; name another file",
            fields.full_key("pr-file"),
            other.target,
            other.lun
        );
        return Err(Problem::Conflict { reason });
    }
    let lun = LunOptions {
        node_name,
        target,
        lun,
        writable,
        device,
    };
    fields.debug_assert_all_taken();
    Ok(lun)
}

/// Checks that the node exists, and that it is writable if the export is.
pub(super) fn check_node_exists_and_writability(
    names: &DefinedNames,
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
