//! `blockdev-reopen`.

use qmp::{Arguments, Command, Error, Member, Object, Run, Type};
use serde_json::{Value, json};

use super::errors::{failed, live_without, refused};
use crate::control::Control;
use crate::reopen;

pub(super) fn commands() -> Vec<Command<Control>> {
    vec![Command {
        name: "blockdev-reopen",
        arguments: Object::of(vec![Member::required(
            "options",
            Type::list_of("BlockdevOptions"),
        )]),
        returns: None,
        run: Run::InBand(run),
    }]
}

fn run(control: &mut Control, arguments: &Arguments) -> Result<Value, Error> {
    let mut wanted = Vec::new();
    for node in arguments["options"].as_array().into_iter().flatten() {
        let name = node["node-name"]
            .as_str()
            .ok_or_else(|| Error::generic("node-name not specified".to_owned()))?;
        let objects = &control.objects;
        if objects.node(name).is_err() {
            let text = format!("Failed to find node with node-name='{name}'");
            return Err(Error::generic(text));
        }
        let options = live_without(objects, name)?.blockdev(&node.to_string());
        wanted.push(options.map_err(|problem| refused(&problem))?);
    }
    reopen::reopen(&mut control.objects, wanted).map_err(|failure| failed(&failure))?;
    Ok(json!({}))
}
