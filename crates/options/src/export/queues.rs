//! Reads which iothread runs each queue of an export: `iothread`, or `iothread-vq-mapping` as of QEMU's devices.
//!
//! The result is one list: queue *i* runs on member *i* modulo its length. Names without `vqs` are the list itself; with `vqs` the
//! list has one member per queue.

use crate::{
    Problem,
    fields::Fields,
    form::{ValueForm, number_form},
    key::{KeySpec, ValueType},
    names::DefinedNames,
    tree::Value,
};

const MAPPING_KEY: &str = "iothread-vq-mapping";

/// The keys of one entry of the mapping.
const MAPPING_ENTRY_KEYS: &[KeySpec] = &[
    KeySpec::new("iothread", "ID", "the thread", ValueType::Str),
    KeySpec::new("vqs", "LIST", "the queues it runs", ValueType::Str),
];

/// One entry of the mapping.
struct IothreadMappingEntry {
    iothread: String,
    /// The queues, each with the full name of its key. `None`: not given.
    vqs: Option<Vec<(String, u16)>>,
}

/// Reads both keys. The list is empty if neither is given.
pub(super) fn read_iothreads_or_mapping(
    fields: &mut Fields,
    names: &DefinedNames,
    num_queues: u16,
) -> Result<Vec<String>, Problem> {
    let mut ids: Vec<String> = Vec::new();
    for (key, item) in fields.take_one_or_list("iothread")? {
        let (Value::Text(id) | Value::String(id)) = item else {
            return Err(Problem::BadValue {
                key,
                value: item.excerpt(),
                expected: "the id of an iothread, or a list of ids".to_owned(),
            });
        };
        names.check_object_defined(&key, "iothread", &id)?;
        if ids.contains(&id) {
            let reason = format!(
                "'{key}' names iothread '{id}' a second time; queues are spread evenly, name each once"
            );
            return Err(Problem::Conflict { reason });
        }
        ids.push(id);
    }
    let entries = read_mapping(fields, names, num_queues)?;
    match (ids.is_empty(), entries.is_empty()) {
        (_, true) => Ok(ids),
        (true, false) => iothread_per_queue_or_pool(entries, num_queues),
        (false, false) => Err(conflict_error_with_reason(format!(
            "'iothread' and '{MAPPING_KEY}' contradict each other; use one of them"
        ))),
    }
}

/// Reads `iothread-vq-mapping`; empty if it is not given.
fn read_mapping(
    fields: &mut Fields,
    names: &DefinedNames,
    num_queues: u16,
) -> Result<Vec<IothreadMappingEntry>, Problem> {
    let mut entries: Vec<IothreadMappingEntry> = Vec::new();
    let example = format!("entries such as {MAPPING_KEY}.0.iothread=ID");
    let items = match fields.take_raw(MAPPING_KEY) {
        None => return Ok(entries),
        Some(Value::List(items)) if !items.is_empty() => items,
        Some(other) => {
            return Err(Problem::BadValue {
                key: MAPPING_KEY.to_owned(),
                value: other.excerpt(),
                expected: format!("a list of {example}"),
            });
        }
    };
    for (i, item) in items.into_iter().enumerate() {
        let key = format!("{MAPPING_KEY}.{i}");
        let Value::Object(object) = item else {
            return Err(Problem::BadValue {
                key,
                value: item.excerpt(),
                expected: format!("a group, as in {example}"),
            });
        };
        let mut entry =
            Fields::with_known_keys(object, &format!("{key}."), &[MAPPING_ENTRY_KEYS], &[])?;
        let iothread = entry.take_required_string("iothread", "write the id of an iothread")?;
        names.check_object_defined(&entry.full_key("iothread"), "iothread", &iothread)?;
        if entries.iter().any(|other| other.iothread == iothread) {
            return Err(conflict_error_with_reason(format!(
                "'{key}.iothread' names iothread '{iothread}' a second time; put all of its queues into one entry"
            )));
        }
        let vqs = read_queue_indices(&mut entry, num_queues)?;
        entry.debug_assert_all_taken();
        entries.push(IothreadMappingEntry { iothread, vqs });
    }
    Ok(entries)
}

/// Reads the queues of an entry of the mapping, each with the full name of its key, for errors.
fn read_queue_indices(
    entry: &mut Fields,
    num_queues: u16,
) -> Result<Option<Vec<(String, u16)>>, Problem> {
    let path = entry.full_key("vqs");
    let items = match entry.take_raw("vqs") {
        None => return Ok(None),
        Some(Value::List(items)) if !items.is_empty() => items,
        Some(other) => {
            return Err(Problem::BadValue {
                expected: format!(
                    "a list of queues, such as {path}.0=0,{path}.1=2; or leave 'vqs' out of all entries"
                ),
                key: path,
                value: other.excerpt(),
            });
        }
    };
    let numbered = items.iter().enumerate();
    let read_index = |(i, item): (usize, &Value)| {
        let path = format!("{path}.{i}");
        let last = num_queues - 1;
        let index =
            number_form(0, last)
                .read(&path, item.clone())
                .map_err(|problem| match problem {
                    Problem::OutOfRange { key, value, .. } => Problem::BadValue {
                        key,
                        value,
                        expected: format!(
                            "a queue from 0 to {last} ('num-queues' is {num_queues})"
                        ),
                    },
                    other => other,
                })?;
        Ok((path, index))
    };
    numbered.map(read_index).collect::<Result<_, _>>().map(Some)
}

/// The iothread of each queue. Without `vqs` in any entry, the list of iothreads, over which queues are spread.
fn iothread_per_queue_or_pool(
    entries: Vec<IothreadMappingEntry>,
    num_queues: u16,
) -> Result<Vec<String>, Problem> {
    let with_vqs = entries.iter().filter(|entry| entry.vqs.is_some()).count();
    if with_vqs == 0 {
        return Ok(entries.into_iter().map(|entry| entry.iothread).collect());
    }
    if let Some(i) = entries.iter().position(|entry| entry.vqs.is_none()) {
        return Err(conflict_error_with_reason(format!(
            "'{MAPPING_KEY}.{i}' has no 'vqs' and others have; either all entries have 'vqs' or none has"
        )));
    }
    let mut queues: Vec<Option<&str>> = vec![None; usize::from(num_queues)];
    for IothreadMappingEntry { iothread, vqs } in &entries {
        for (path, index) in vqs.iter().flatten() {
            if let Some(taken) = queues[usize::from(*index)].replace(iothread) {
                return Err(conflict_error_with_reason(format!(
                    "'{path}' gives queue {index} to iothread '{iothread}', but it was given to '{taken}' already"
                )));
            }
        }
    }
    if let Some(missing) = queues.iter().position(Option::is_none) {
        return Err(conflict_error_with_reason(format!(
            "'{MAPPING_KEY}' leaves out queue {missing}; with 'vqs', each of the {num_queues} queues ('num-queues') is given to one iothread"
        )));
    }
    Ok(queues.into_iter().flatten().map(str::to_owned).collect())
}

/// The error for settings that contradict each other.
fn conflict_error_with_reason(reason: String) -> Problem {
    Problem::Conflict { reason }
}
