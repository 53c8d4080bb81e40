//! `blockdev-reopen`.

use qmp::{Arguments, Command, Error, Member, Object, Reply, Run, Type};

use super::errors::{failed, live_without, refused};
use crate::control::Control;
use crate::later::AtTheEnd;
use crate::reopen::{self, Reopen};

pub(super) fn commands() -> Vec<Command<Control>> {
    vec![Command {
        name: "blockdev-reopen",
        arguments: Object::of(vec![Member::required(
            "options",
            Type::list_of("BlockdevOptions"),
        )]),
        returns: None,
        run: Run::Later(run),
    }]
}

/// Waits for what guests have asked of the old openings.
fn run(control: &mut Control, arguments: &Arguments, reply: Reply) {
    let reopen = match plan(control, arguments) {
        Ok(reopen) => reopen,
        Err(error) => return reply.send(Err(error)),
    };
    let reserved = reopen.reserved().to_vec();
    let carry_out = move || {
        let done = reopen.carry_out();
        done.map_err(|failure| failed(&failure))?;
        Ok(reopen)
    };
    let finish = move |control: &mut Control, done: Result<Reopen, Error>| {
        control.objects.release(&reserved);
        done.map(|reopen| reopen.finish(&mut control.objects))
    };
    control.later(
        "reopen".to_owned(),
        AtTheEnd::Finish,
        reply,
        carry_out,
        finish,
    );
}

fn plan(control: &mut Control, arguments: &Arguments) -> Result<Reopen, Error> {
    let mut wanted = Vec::new();
    for node in arguments["options"].as_array().into_iter().flatten() {
        let name = node["node-name"]
            .as_str()
            .ok_or_else(|| Error::generic("node-name not specified".to_owned()))?;
        let objects = &control.objects;
        let opening = objects.check_not_opening(name);
        opening.map_err(|failure| failed(&failure))?;
        if objects.find_node(name).is_none() {
            let text = format!("Failed to find node with node-name='{name}'");
            return Err(Error::generic(text));
        }
        let options = live_without(objects, name)?.blockdev(&node.to_string());
        wanted.push(options.map_err(|problem| refused(&problem))?);
    }
    reopen::plan(&mut control.objects, &wanted).map_err(|failure| failed(&failure))
}
