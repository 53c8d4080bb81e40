//! Parses a QMP request: its command, arguments and `id`, and whether it is out of band.

use serde_json::{Map, Value};

use crate::{Error, strict_json};

/// A command with its arguments, as a client sent it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Request {
    /// Returned with the response, unchanged.
    pub id: Option<Value>,
    pub command: String,
    /// Out of band: run ahead of commands that wait.
    pub oob: bool,
    pub arguments: Map<String, Value>,
}

impl Request {
    /// Parses a message. An error comes with the `id`, if the message has one, for the response.
    pub fn parse(text: &[u8]) -> Result<Self, (Option<Value>, Error)> {
        let value = strict_json::parse_with_unique_keys(text)
            .map_err(|error| (None, Error::generic(format!("JSON parse error, {error}"))))?;
        let Value::Object(mut members) = value else {
            return Err((None, Error::generic("QMP input must be a JSON object")));
        };
        let id = members.shift_remove("id");
        Self::from_members(members, id.clone()).map_err(|text| (id, Error::generic(text)))
    }

    /// Makes a request of the members of a message, of which `id` has been taken out.
    fn from_members(mut members: Map<String, Value>, id: Option<Value>) -> Result<Self, String> {
        let (command, oob) = match (
            members.shift_remove("execute"),
            members.shift_remove("exec-oob"),
        ) {
            (Some(_), Some(_)) => {
                return Err("QMP input member 'execute' clashes with 'exec-oob'".to_owned());
            }
            (Some(command), None) => (command, false),
            (None, Some(command)) => (command, true),
            (None, None) => {
                if let Some(name) = members.keys().find(|name| *name != "arguments") {
                    return Err(format!("QMP input member '{name}' is unexpected"));
                }
                return Err("QMP input lacks member 'execute'".to_owned());
            }
        };
        let Value::String(command) = command else {
            let name = if oob { "exec-oob" } else { "execute" };
            return Err(format!("QMP input member '{name}' must be a string"));
        };
        let arguments = match members.shift_remove("arguments") {
            None => Map::new(),
            Some(Value::Object(arguments)) => arguments,
            Some(_) => return Err("QMP input member 'arguments' must be an object".to_owned()),
        };
        if let Some(name) = members.keys().next() {
            return Err(format!("QMP input member '{name}' is unexpected"));
        }
        Ok(Request {
            id,
            command,
            oob,
            arguments,
        })
    }
}
