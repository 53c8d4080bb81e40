//! `VFIO_USER_VERSION`: negotiation of the version and of limits.

use rustix::io::Errno;
use serde_json::{Map, Value, json};

use crate::error::CommandError;
use crate::limits::{MAX_DATA_BYTES, MAX_DMA_MAPS, MAX_FDS, MAX_VERSION_BYTES, PAGE_BYTES};
use crate::wire::Version;

/// The protocol's version.
const MAJOR: u16 = 0;
const MINOR: u16 = 0;

/// Least `max_data_xfer_size` that is accepted: a smaller one would split accesses to memory into single bytes.
const MIN_DATA_BYTES: u64 = 64;

/// Limits that both sides keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NegotiatedLimits {
    /// Most data in a message to the front-end.
    pub max_data_bytes: u32,
    /// Most memory regions at the same time.
    pub max_dma_maps: u32,
}

/// Reads the front-end's proposal, and returns the limits and the payload of the reply.
///
/// # Errors
/// [`CommandError`]: another version, or malformed capabilities.
pub(crate) fn negotiate(payload: &[u8]) -> Result<(NegotiatedLimits, Vec<u8>), CommandError> {
    let version = Version::decode(payload)
        .ok_or_else(|| CommandError::invalid("VERSION without a version"))?;
    if version.major != MAJOR {
        return Err(CommandError::new(
            Errno::NOTSUP,
            format!(
                "the front-end speaks vfio-user {}.{}, we speak {MAJOR}.{MINOR}",
                version.major, version.minor
            ),
        ));
    }
    let proposed = parse_capabilities(&payload[Version::BYTES..])?;
    let max_data_bytes = capability_number(&proposed, "max_data_xfer_size", MAX_DATA_BYTES.into())?
        .min(MAX_DATA_BYTES.into());
    if max_data_bytes < MIN_DATA_BYTES {
        return Err(CommandError::invalid(format!(
            "max_data_xfer_size is {max_data_bytes}, it has to be {MIN_DATA_BYTES} at least"
        )));
    }
    let pgsizes = capability_number(&proposed, "pgsizes", PAGE_BYTES)?;
    if pgsizes & PAGE_BYTES == 0 {
        return Err(CommandError::invalid(format!(
            "pgsizes is {pgsizes:#x}, it has to have {PAGE_BYTES:#x}"
        )));
    }
    let max_dma_maps =
        capability_number(&proposed, "max_dma_maps", MAX_DMA_MAPS.into())?.min(MAX_DMA_MAPS.into());
    // Not needed, since we pass no descriptors, but it should be a number.
    capability_number(&proposed, "max_msg_fds", 1)?;
    let mut ours = json!({
        "max_msg_fds": MAX_FDS,
        "max_data_xfer_size": MAX_DATA_BYTES,
        "max_dma_maps": max_dma_maps,
        "pgsizes": PAGE_BYTES,
    });
    if proposed.get("write_multiple") == Some(&Value::Bool(true)) {
        ours["write_multiple"] = Value::Bool(true);
    }
    let mut reply = Vec::new();
    Version {
        major: MAJOR,
        // No front-end proposes a lower one.
        minor: MINOR,
    }
    .encode(&mut reply);
    reply.extend_from_slice(json!({ "capabilities": ours }).to_string().as_bytes());
    reply.push(0);
    let to_u32 = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    let limits = NegotiatedLimits {
        max_data_bytes: to_u32(max_data_bytes),
        max_dma_maps: to_u32(max_dma_maps),
    };
    Ok((limits, reply))
}

/// The object `capabilities` of the JSON text. Both may be missing.
fn parse_capabilities(text: &[u8]) -> Result<Map<String, Value>, CommandError> {
    let Some((end, text)) = text.split_last() else {
        return Ok(Map::new());
    };
    if text.len() >= MAX_VERSION_BYTES {
        return Err(CommandError::invalid(format!(
            "{} bytes of capabilities, at most {MAX_VERSION_BYTES} are read",
            text.len()
        )));
    }
    if *end != 0 {
        return Err(CommandError::invalid("capabilities do not end with a NUL"));
    }
    let no_json = |error| CommandError::invalid(format!("capabilities are no JSON: {error}"));
    let object = |value| match value {
        Value::Object(object) => Ok(object),
        other => Err(CommandError::invalid(format!(
            "capabilities: an object is expected instead of {other}"
        ))),
    };
    let mut whole = object(serde_json::from_slice(text).map_err(no_json)?)?;
    whole
        .remove("capabilities")
        .map_or_else(|| Ok(Map::new()), object)
}

/// The number with this name in the capabilities, or its default.
fn capability_number(
    capabilities: &Map<String, Value>,
    name: &str,
    default: u64,
) -> Result<u64, CommandError> {
    match capabilities.get(name) {
        None => Ok(default),
        Some(value) => value.as_u64().ok_or_else(|| {
            CommandError::invalid(format!("{name} is {value}, a whole number is expected"))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(text: &str) -> Vec<u8> {
        let mut payload = vec![0, 0, 1, 0];
        payload.extend_from_slice(text.as_bytes());
        payload
    }

    #[test]
    fn lower_limits_are_accepted_and_only_proposed_capabilities_are_offered() {
        let (limits, reply) = negotiate(&payload(
            "{\"capabilities\":{\"max_data_xfer_size\":4096,\"max_dma_maps\":10}}\0",
        ))
        .unwrap();
        let expected = NegotiatedLimits {
            max_data_bytes: 4096,
            max_dma_maps: 10,
        };
        assert_eq!(limits, expected);
        assert_eq!(&reply[..4], [0; 4], "the minor version is the lower one");
        let text = std::str::from_utf8(&reply[4..reply.len() - 1]).unwrap();
        let text: Value = serde_json::from_str(text).unwrap();
        assert_eq!(text["capabilities"]["max_dma_maps"], 10);
        assert_eq!(text["capabilities"]["max_data_xfer_size"], 1 << 20);
        assert_eq!(text["capabilities"]["write_multiple"], Value::Null);
        assert_eq!(reply.last(), Some(&0));
    }

    #[test]
    fn missing_capabilities_have_defaults() {
        let default = NegotiatedLimits {
            max_data_bytes: 1 << 20,
            max_dma_maps: MAX_DMA_MAPS,
        };
        for text in ["", "{}\0", "{\"capabilities\":{}}\0", "{\"more\":1}\0"] {
            assert_eq!(negotiate(&payload(text)).unwrap().0, default, "{text}");
        }
    }

    #[test]
    fn errors_name_their_cause() {
        let error = |payload: &[u8]| negotiate(payload).unwrap_err().to_string();
        error(&[]);
        assert!(error(&[1, 0, 0, 0]).contains("speaks vfio-user 1.0"));
        let long = [" ".repeat(5000) + "\0", "[".repeat(4000) + "\0"];
        for (text, cause) in [
            ("{}", "NUL"),
            ("{\0", "no JSON"),
            ("[]\0", "object"),
            ("{\"capabilities\":1}\0", "object"),
            ("{\"capabilities\":{\"max_dma_maps\":-1}}\0", "max_dma_maps"),
            ("{\"capabilities\":{\"pgsizes\":65536}}\0", "pgsizes"),
            ("{\"capabilities\":{\"max_data_xfer_size\":0}}\0", "64"),
            (&long[0], "5000 bytes"),
            (&long[1], "no JSON"),
        ] {
            assert!(error(&payload(text)).contains(cause), "{text}");
        }
    }
}
