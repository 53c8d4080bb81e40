//! URIs of exports of NBD servers: `nbd://HOST[:PORT]/[EXPORT]`, `nbd+unix:///[EXPORT]?socket=PATH`.

use crate::{
    NbdOptions, Problem, ServeDisk,
    blockdev::NBD_PORT,
    tree::{Object, Value},
};

const FORM: &str = "nbd://HOST[:PORT]/[EXPORT] or nbd+unix:///[EXPORT]?socket=PATH";

/// Whether a text is a URI of an export, and not a file.
#[must_use]
pub fn is_nbd_uri(text: &[u8]) -> bool {
    let schemes: [&[u8]; 5] = [
        b"nbd:",
        b"nbds:",
        b"nbd+unix:",
        b"nbds+unix:",
        b"nbd+vsock:",
    ];
    schemes.iter().any(|scheme| text.starts_with(scheme))
}

/// Parses a URI as DISK of `serve`.
pub(super) fn parse_nbd_uri(uri: &str) -> Result<ServeDisk, String> {
    let parsed = read_nbd_uri(uri).and_then(|object| {
        NbdOptions::from_object(object).map_err(|problem| describe(uri, &problem))
    });
    match parsed {
        Ok(nbd) => Ok(ServeDisk::Nbd(Box::new(nbd))),
        Err(error) => Err(format!("DISK {error}")),
    }
}

/// The options of a node with `driver=nbd` for the export of a URI, as `blockdev-add` takes them, without the node's name.
///
/// # Errors
/// The text names what is expected.
pub fn nbd_uri_to_json(uri: &str) -> Result<serde_json::Value, String> {
    let object = read_nbd_uri(uri)?;
    NbdOptions::from_object(object.clone()).map_err(|problem| describe(uri, &problem))?;
    let mut options = serde_json::Value::from(object);
    options["driver"] = "nbd".into();
    Ok(options)
}

fn describe(uri: &str, problem: &Problem) -> String {
    format!("'{}': {problem}", crate::error::excerpt(uri))
}

/// Reads a URI as options of a node.
fn read_nbd_uri(uri: &str) -> Result<Object, String> {
    let shown = crate::error::excerpt(uri);
    let malformed =
        || format!("'{shown}': expected {FORM}; for a file of that name write ./{shown}");
    let (scheme, rest) = uri.split_once("://").ok_or_else(malformed)?;
    let (rest, query) = match rest.split_once('?') {
        Some((rest, query)) => (rest, Some(query)),
        None => (rest, None),
    };
    let (authority, export) = rest.split_once('/').unwrap_or((rest, ""));
    let export = decode_percent(export).ok_or_else(malformed)?;
    let mut object = Object::default();
    let mut push = |key: &str, value: &str| {
        object.push_dotted_key(key, Value::Text(value.to_owned()));
    };
    match (scheme, query) {
        ("nbd", None) => {
            let (host, port) = split_port(authority).ok_or_else(malformed)?;
            push("server.type", "inet");
            push("server.host", host);
            push("server.port", port.unwrap_or(&NBD_PORT.to_string()));
        }
        ("nbd+unix", Some(query)) if authority.is_empty() => {
            let path = query.strip_prefix("socket=").ok_or_else(malformed)?;
            push("server.type", "unix");
            push("server.path", &decode_percent(path).ok_or_else(malformed)?);
        }
        ("nbds" | "nbds+unix", _) => {
            return Err(format!(
                "'{shown}': for TLS use --object tls-creds-x509 and --blockdev nbd,tls-creds=…; expected {FORM}"
            ));
        }
        _ => return Err(malformed()),
    }
    if !export.is_empty() {
        push("export", &export);
    }
    Ok(object)
}

/// Splits `HOST[:PORT]`; an IPv6 address is in brackets.
fn split_port(authority: &str) -> Option<(&str, Option<&str>)> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']')?;
            match port {
                "" => (host, None),
                port => (host, Some(port.strip_prefix(':')?)),
            }
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    let is_host = !host.is_empty() && !host.contains(['@', '%']);
    is_host.then_some((host, port))
}

/// Replaces `%` and two hexadecimal digits by the byte that they name.
fn decode_percent(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || char::from(rest.next()?).to_digit(16);
        let byte = digit()? << 4 | digit()?;
        bytes.push(u8::try_from(byte).ok()?);
    }
    String::from_utf8(bytes).ok()
}
