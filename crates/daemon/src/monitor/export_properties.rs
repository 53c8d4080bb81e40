//! QOM properties of exports: all of their options, of which those of request merging can be changed at runtime. A change applies from
//! the next batch of each queue on.

use options::ExportKind;
use options::qmp_options::{self, RunningObjectNames};
use qmp::Error;
use serde_json::Value;

use super::error_conversion::error_of_invalid_options;
use super::property::{HasQomProperties, QomClass};
use crate::actions::export::to_request_merging_limits;
use crate::disk::exported_disk::GuestDevice;
use crate::state::export::Export;

/// Keys of options that can be changed at runtime.
const WRITABLE_KEYS: [&str; 3] = ["request-merging", "max-merge-requests", "max-merge-bytes"];

/// Keys that are not shown as properties: name, type and iothreads of an export.
const HIDDEN_KEYS: [&str; 4] = ["type", "id", "iothread", "iothread-vq-mapping"];

/// Builds the QOM class of each type of exports.
pub(super) fn build_export_qom_classes() -> impl Iterator<Item = QomClass> {
    qmp_options::export_type_names()
        .into_iter()
        .map(build_qom_class)
}

/// Builds the QOM class of a type of exports: its properties are the keys of the type's options that are not hidden.
fn build_qom_class(r#type: &'static str) -> QomClass {
    let keys = qmp_options::keys_of_export_type(r#type);
    let has_luns = keys.iter().any(|key| key.name == "luns");
    // On an export with LUNs these are options of each LUN.
    let lun_keys: Vec<_> = qmp_options::lun_keys().iter().map(|key| key.name).collect();
    let keys = keys.into_iter().filter(|key| {
        let belongs_to_luns = has_luns && key.name != "writable" && lun_keys.contains(&key.name);
        !belongs_to_luns && !HIDDEN_KEYS.contains(&key.name) && !key.name.starts_with("addr.")
    });
    QomClass::new(r#type, keys, |name| WRITABLE_KEYS.contains(&name))
}

impl HasQomProperties for Export {
    fn class(&self) -> QomClass {
        build_qom_class(self.options.kind.name())
    }

    fn options_to_json(&self) -> Result<Value, Error> {
        let described = self.options.to_json();
        described.map_err(|error| Error::generic(error.to_string()))
    }

    /// Changes options of request merging, the only ones that are writable, and gives the devices the new limits.
    fn change_options(&mut self, json: &str) -> Result<(), Error> {
        let ExportKind::VhostUserBlk { disk: kind, .. } = &mut self.options.kind else {
            unreachable!("no property of another kind can be changed");
        };
        *kind = RunningObjectNames::updated_vhost_user_blk_options(kind, json)
            .map_err(|problem| error_of_invalid_options(&problem))?;
        let limits = to_request_merging_limits(kind);
        for disk in &self.disks {
            if let GuestDevice::Blk(device) = &disk.guest_device {
                device.set_merge_limits(limits);
            }
        }
        Ok(())
    }
}
