//! `blockdev-reopen`.

use qmp::{Arguments, Command, Error, Member, Object, Reply, Run, Type};

use super::errors::{failed, live_without, refused};
use crate::actions::reopen;
use crate::actions::reopen::{ReopenPlan, ReopenedNodes};
use crate::control::Control;
use crate::jobs::OnShutdown;

pub(super) fn commands() -> Vec<Command<Control>> {
    vec![Command {
        name: "blockdev-reopen",
        arguments: Object::of(vec![Member::required(
            "options",
            Type::list_of("BlockdevOptions"),
        )]),
        returns: None,
        run: Run::Deferred(run),
    }]
}

/// Waits until the files are open, and the program's end does not wait for that: nothing has changed yet.
fn run(control: &mut Control, arguments: &Arguments, reply: Reply) {
    let opening = match plan(control, arguments) {
        Ok(opening) => opening,
        Err(error) => return reply.send(Err(error)),
    };
    let reserved = opening.reserved().to_vec();
    control.run_job(
        "reopen".to_owned(),
        OnShutdown::Abandon,
        move || opening.open().map_err(|failure| failed(&failure)),
        move |control, opened| match opened {
            Ok(reopen) => exchange(control, reopen, reserved, reply),
            Err(error) => {
                control.objects.release(&reserved);
                reply.send(Err(error));
            }
        },
    );
}

/// Waits for what guests have asked of the old openings.
fn exchange(control: &mut Control, reopen: ReopenedNodes, reserved: Vec<String>, reply: Reply) {
    let carry_out = move || {
        let done = reopen.replace_old();
        done.map_err(|failure| failed(&failure))?;
        Ok(reopen)
    };
    let finish = move |control: &mut Control, done: Result<ReopenedNodes, Error>| {
        control.objects.release(&reserved);
        done.map(|reopen| reopen.finish(&mut control.objects))
    };
    control.run_command_job(
        "reopen".to_owned(),
        OnShutdown::Wait,
        reply,
        carry_out,
        finish,
    );
}

fn plan(control: &mut Control, arguments: &Arguments) -> Result<ReopenPlan, Error> {
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
