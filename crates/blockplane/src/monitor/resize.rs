//! `block_resize`.

use qmp::{Arguments, Command, Error, Member, Object, Run, Type};
use serde_json::{Value, json};

use super::errors::failed;
use super::text;
use crate::control::Control;
use crate::resize;

pub(super) fn commands() -> Vec<Command<Control>> {
    vec![Command {
        name: "block_resize",
        arguments: Object::of(vec![
            Member::optional("device", Type::Str),
            Member::optional("node-name", Type::Str),
            Member::required("size", Type::Int),
        ]),
        returns: None,
        run: Run::InBand(run),
    }]
}

/// `device` would be one of a machine, of which a storage daemon has none.
fn run(control: &mut Control, arguments: &Arguments) -> Result<Value, Error> {
    let (device, name) = (text(arguments, "device"), text(arguments, "node-name"));
    let size = arguments["size"].as_i64().ok_or_else(|| {
        Error::generic("Invalid parameter type for 'size', expected: integer".to_owned())
    })?;
    let node = control.objects.node(name).map_err(|_| {
        Error::generic(format!(
            "Cannot find device='{device}' nor node-name='{name}'"
        ))
    })?;
    let size = u64::try_from(size)
        .map_err(|_| Error::generic("Parameter 'size' expects a >0 size".to_owned()))?;
    resize::resize(&control.objects, &node, size).map_err(|failure| failed(&failure))?;
    Ok(json!({}))
}
