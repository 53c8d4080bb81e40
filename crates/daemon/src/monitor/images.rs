//! `BlockImageInfo`: the state of an image of a Ceph cluster, with its connection and its lock, in the results of queries.
//!
//! All of it is known without asking the cluster, which may not answer.

use block::{ImageStatus, WriterLockState};
use ceph::ConnectionState;
use qmp::{Member, ObjectType, Type, TypeDefinition};
use serde_json::{Value, json};

/// The type, with those of its members.
pub(super) fn qmp_type_definitions() -> Vec<(&'static str, TypeDefinition)> {
    let info = ObjectType::with_members(vec![
        Member::required("pool", Type::Str),
        Member::optional("namespace", Type::Str),
        Member::required("image", Type::Str),
        Member::optional("snapshot", Type::Str),
        Member::required("fsid", Type::Str),
        Member::required("monitors", Type::Str),
        Member::required("user", Type::Str),
        Member::required("connection", Type::Int),
        Member::required("state", Type::Named("BlockImageConnectionState")),
        Member::optional("not-answering-ns", Type::Int),
        Member::required("lock", Type::Named("BlockImageLockState")),
        Member::optional("lock-owner", Type::Str),
        Member::required("in-flight", Type::Int),
    ]);
    let states = TypeDefinition::Enum(ConnectionState::NAMES.to_vec());
    let lock_states = TypeDefinition::Enum(WriterLockState::NAMES.to_vec());
    vec![
        ("BlockImageInfo", TypeDefinition::Object(info)),
        ("BlockImageConnectionState", states),
        ("BlockImageLockState", lock_states),
    ]
}

/// `BlockImageInfo` of an image.
pub(super) fn image_info(status: &ImageStatus) -> Value {
    let ImageStatus {
        image,
        connection,
        requests,
        lock,
        ..
    } = status;
    let state = connection.state();
    let mut info = json!({
        "pool": image.pool,
        "image": image.image,
        "fsid": connection.fsid(),
        "monitors": connection.monitors(),
        "user": connection.user(),
        "connection": connection.number(),
        "state": state.name(),
        "lock": lock.name(),
        "in-flight": requests.in_flight(),
    });
    let refused_by = match lock {
        WriterLockState::Refused { owner_address } => owner_address.as_ref(),
        _ => None,
    };
    let silence = match state {
        ConnectionState::NotAnswering(silence) => u64::try_from(silence.as_nanos()).ok(),
        ConnectionState::Connected | ConnectionState::Blocklisted => None,
    };
    let optional = [
        ("namespace", json!(image.namespace)),
        ("snapshot", json!(image.snapshot)),
        ("lock-owner", json!(refused_by)),
        ("not-answering-ns", json!(silence)),
    ];
    for (key, value) in optional.into_iter().filter(|(_, value)| !value.is_null()) {
        info[key] = value;
    }
    info
}

/// Lines of `info block` about an image.
pub(super) fn hmp_lines(info: &Value) -> String {
    let text = |key: &str| info[key].as_str().unwrap_or_default();
    let mut state = text("state").to_owned();
    if let Some(ns) = info["not-answering-ns"].as_u64() {
        state += &format!(" for {} s", ns / 1_000_000_000);
    }
    let mut lock = text("lock").to_owned();
    if let Some(owner) = info["lock-owner"].as_str() {
        lock += &format!(" by {owner}");
    }
    format!(
        "    Ceph cluster:     {} at {}, as {}, connection {}: {state}\n    Image lock:       {lock}\n",
        text("fsid"),
        text("monitors"),
        text("user"),
        info["connection"],
    )
}
