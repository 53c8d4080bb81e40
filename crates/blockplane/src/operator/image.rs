//! Texts about images of Ceph clusters, from the member `rbd` of the monitor's replies.

use serde_json::Value;

/// An image of an export or a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Image {
    /// As of [`image_name`].
    pub name: String,
    /// As of [`image_state`].
    pub state: String,
    /// Requests may wait or fail.
    pub has_trouble: bool,
}

impl Image {
    /// Reads the member `rbd`; `None` for other disks.
    pub fn read(rbd: &Value) -> Option<Self> {
        Some(Image {
            name: image_name(rbd)?,
            state: image_state(rbd)?,
            has_trouble: has_trouble(rbd),
        })
    }
}

/// The image's name in the notation of `blockplane serve`; `None` for other disks.
pub(super) fn image_name(rbd: &Value) -> Option<String> {
    let text = |key: &str| rbd[key].as_str();
    let mut name = format!("rbd:{}/", text("pool")?);
    if let Some(namespace) = text("namespace") {
        name += &format!("{namespace}/");
    }
    name += text("image")?;
    if let Some(snapshot) = text("snapshot") {
        name += &format!("@{snapshot}");
    }
    Some(name)
}

/// The state of its connection and its lock; `None` for other disks.
pub(super) fn image_state(rbd: &Value) -> Option<String> {
    let state = match rbd["state"].as_str()? {
        "not-answering" => match rbd["not-answering-ns"].as_u64() {
            Some(ns) => format!("not answering for {} s", ns / 1_000_000_000),
            None => "not answering".to_owned(),
        },
        state => state.to_owned(),
    };
    let lock = match (rbd["lock"].as_str(), rbd["lock-owner"].as_str()) {
        (Some("refused"), Some(owner)) => format!(", locked by {owner}"),
        (Some("refused"), None) => ", lock refused".to_owned(),
        (Some("waiting"), _) => ", waits for lock".to_owned(),
        (Some("held"), _) => ", lock held".to_owned(),
        _ => String::new(),
    };
    Some(state + &lock)
}

/// Whether requests may wait or fail.
fn has_trouble(rbd: &Value) -> bool {
    let is_one_of = |key: &str, values: [&str; 2]| {
        rbd[key]
            .as_str()
            .is_some_and(|value| values.contains(&value))
    };
    is_one_of("state", ["blocklisted", "not-answering"])
        || is_one_of("lock", ["waiting", "refused"])
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_are_those_of_serve_and_states_name_what_is_wrong() {
        let mut image =
            json!({"pool": "vms", "image": "disk", "state": "connected", "lock": "held"});
        assert_eq!(image_name(&image).unwrap(), "rbd:vms/disk");
        assert_eq!(image_state(&image).unwrap(), "connected, lock held");
        assert!(!has_trouble(&image));
        image["namespace"] = "tenant".into();
        image["snapshot"] = "monday".into();
        image["lock"] = "off".into();
        image["state"] = "not-answering".into();
        image["not-answering-ns"] = 12_345_678_901_u64.into();
        assert_eq!(image_name(&image).unwrap(), "rbd:vms/tenant/disk@monday");
        assert_eq!(image_state(&image).unwrap(), "not answering for 12 s");
        assert!(has_trouble(&image));
        image["state"] = "connected".into();
        image["lock"] = "refused".into();
        image["lock-owner"] = "192.0.2.1:0/7".into();
        let state = image_state(&image).unwrap();
        assert_eq!(state, "connected, locked by 192.0.2.1:0/7");
        assert!(has_trouble(&image));
        assert_eq!(image_name(&Value::Null), None);
        assert_eq!(image_state(&Value::Null), None);
    }
}
