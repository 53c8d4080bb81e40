//! State of SCSI controllers and their units as JSON, which the old process of a live upgrade describes and the new one restores.
//!
//! It changes until the last command completes, so it is described after the queues have stopped.

use scsi::{NexusNumber, UnitState};
use serde_json::{Value, json};
use virtio_scsi::{Address, DeviceState, UnitEvent};

use super::replaced_files::{file_from_json, file_to_json};
use crate::state::export::Export;
use crate::upgrade::state_json::{INVALID_STATE, IncomingFds, OutgoingFds, read_list, read_number};

/// Describes the SCSI state of an export whose queues have stopped. Without a controller `device` is null.
pub(crate) fn save_state_to_json(export: &Export, fds: &mut OutgoingFds) -> Result<Value, String> {
    let mut units = Vec::new();
    for disk in &export.disks {
        if let Some(unit) = disk.scsi_unit() {
            let mut json = unit_to_json(&unit.save_state());
            if let Some(file) = &disk.pr_file {
                json["pr-file"] = file_to_json(file.duplicate_descriptors(), fds)
                    .map_err(|why| format!("export '{}': pr-file: {why}", export.options.id))?;
            }
            units.push(json);
        }
    }
    let device = export.controller.as_ref();
    let device =
        device.map(|controller| controller_to_json(&controller.virtio_scsi_device().save_state()));
    Ok(json!({"device": device, "units": units}))
}

/// Restores the SCSI state of an export from its description, before queues start.
pub(crate) fn restore_state_and_take_over_pr_files(
    export: &Export,
    json: &Value,
    fds: &mut IncomingFds,
) -> Result<(), &'static str> {
    if let Some(controller) = &export.controller {
        let device = controller_from_json(&json["device"])?;
        controller.virtio_scsi_device().restore_state(&device);
    }
    let mut described = read_list(&json["units"])?.iter();
    for disk in &export.disks {
        if let Some(unit) = disk.scsi_unit() {
            let json = described.next().ok_or(INVALID_STATE)?;
            let state = unit_from_json(json)?;
            unit.restore_state(&state).map_err(|_| INVALID_STATE)?;
            if let Some(file) = &disk.pr_file {
                file.take_over(file_from_json(&json["pr-file"], fds)?);
            }
        }
    }
    Ok(())
}

/// State of a unit as JSON. All fields are named, so that none is forgotten.
fn unit_to_json(state: &UnitState) -> Value {
    let UnitState {
        blocks,
        stopped,
        write_cache,
        descriptor_sense,
        software_write_protect,
        attentions,
        reserved,
        persistent,
        persists,
        generation,
    } = state;
    let attentions = attentions
        .iter()
        .map(|(nexus, codes)| json!({"nexus": nexus.0, "codes": codes}));
    let attentions: Vec<Value> = attentions.collect();
    json!({
        "blocks": blocks,
        "stopped": stopped,
        "write-cache": write_cache,
        "descriptor-sense": descriptor_sense,
        "software-write-protect": software_write_protect,
        "attentions": attentions,
        "reserved": reserved.map(|nexus| nexus.0),
        "persistent": persistent,
        "persists": persists,
        "generation": generation,
    })
}

/// Reads what [`unit_to_json`] has written.
fn unit_from_json(json: &Value) -> Result<UnitState, &'static str> {
    let flag = |name| read_flag(json, name);
    let mut attentions = Vec::new();
    for attention in read_list(&json["attentions"])? {
        let codes = read_list(&attention["codes"])?.iter().map(read_number);
        attentions.push((
            NexusNumber(read_number(&attention["nexus"])?),
            codes.collect::<Result<_, _>>()?,
        ));
    }
    Ok(UnitState {
        blocks: read_number(&json["blocks"])?,
        stopped: flag("stopped")?,
        write_cache: flag("write-cache")?,
        descriptor_sense: flag("descriptor-sense")?,
        software_write_protect: flag("software-write-protect")?,
        attentions,
        reserved: match &json["reserved"] {
            Value::Null => None,
            nexus => Some(NexusNumber(read_number(nexus)?)),
        },
        persistent: json["persistent"].as_str().ok_or(INVALID_STATE)?.to_owned(),
        persists: flag("persists")?,
        generation: read_number(&json["generation"])?,
    })
}

/// State of a controller as JSON. All fields are named, so that none is forgotten.
fn controller_to_json(state: &DeviceState) -> Value {
    let DeviceState {
        sense_bytes,
        cdb_bytes,
        events,
        missed,
    } = state;
    let events = events.iter().map(|event| {
        let (what, Address { target, lun }) = match event {
            UnitEvent::Added(address) => ("added", address),
            UnitEvent::Removed(address) => ("removed", address),
            UnitEvent::Resized(address) => ("resized", address),
        };
        json!({"what": what, "target": target, "lun": lun})
    });
    let events: Vec<Value> = events.collect();
    json!({
        "sense-size": sense_bytes,
        "cdb-size": cdb_bytes,
        "events": events,
        "missed": missed,
    })
}

/// Reads what [`controller_to_json`] has written.
fn controller_from_json(json: &Value) -> Result<DeviceState, &'static str> {
    let events = read_list(&json["events"])?.iter().map(|event| {
        let address = Address {
            target: read_number(&event["target"])?,
            lun: read_number(&event["lun"])?,
        };
        match event["what"].as_str() {
            Some("added") => Ok(UnitEvent::Added(address)),
            Some("removed") => Ok(UnitEvent::Removed(address)),
            Some("resized") => Ok(UnitEvent::Resized(address)),
            _ => Err(INVALID_STATE),
        }
    });
    Ok(DeviceState {
        events: events.collect::<Result<_, _>>()?,
        sense_bytes: read_number(&json["sense-size"])?,
        cdb_bytes: read_number(&json["cdb-size"])?,
        missed: read_flag(json, "missed")?,
    })
}

/// Reads a member that is true or false.
fn read_flag(json: &Value, name: &str) -> Result<bool, &'static str> {
    json[name].as_bool().ok_or(INVALID_STATE)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test that cannot go on fails where it is
mod tests {
    use super::super::assert_all_differ::assert_all_differ;
    use super::*;

    /// Two states that differ in every field, so that none is restored by its default. They are written without `..`: a new
    /// field does not compile until it is part of the test.
    #[test]
    fn every_field_is_restored() {
        let unit = UnitState {
            blocks: 77,
            stopped: true,
            write_cache: true,
            descriptor_sense: true,
            software_write_protect: true,
            attentions: vec![
                (NexusNumber(0), vec![0x2a09, 0x3f0e]),
                (NexusNumber(3), vec![]),
            ],
            reserved: Some(NexusNumber(3)),
            persistent: scsi::NO_RESERVATIONS.to_owned(),
            persists: true,
            generation: 9,
        };
        let other = UnitState {
            blocks: 78,
            stopped: false,
            write_cache: false,
            descriptor_sense: false,
            software_write_protect: false,
            attentions: vec![],
            reserved: None,
            persistent: "other".to_owned(),
            persists: false,
            generation: 10,
        };
        assert_all_differ(&unit, &other);
        for unit in [unit, other] {
            assert_eq!(unit_from_json(&unit_to_json(&unit)), Ok(unit));
        }
        let address = Address {
            target: 3,
            lun: 400,
        };
        let device = DeviceState {
            sense_bytes: 96,
            cdb_bytes: 32,
            events: vec![
                UnitEvent::Added(address),
                UnitEvent::Removed(address),
                UnitEvent::Resized(address),
            ],
            missed: true,
        };
        let other = DeviceState {
            sense_bytes: 97,
            cdb_bytes: 33,
            events: vec![],
            missed: false,
        };
        assert_all_differ(&device, &other);
        for device in [device, other] {
            assert_eq!(
                controller_from_json(&controller_to_json(&device)),
                Ok(device)
            );
        }
    }

    #[test]
    fn a_missing_field_or_an_unknown_event_is_refused() {
        let mut json = unit_to_json(&UnitState::default());
        json.as_object_mut().unwrap().remove("generation");
        assert_eq!(unit_from_json(&json), Err(INVALID_STATE));
        let event = json!({"events": [{"what": "moved", "target": 0, "lun": 0}]});
        assert_eq!(controller_from_json(&event), Err(INVALID_STATE));
    }
}
