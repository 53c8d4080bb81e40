//! `block_resize`.

use qmp::{Arguments, Command, Error, Member, Object, Reply, Run, Type};

use super::errors::failed;
use super::text;
use crate::actions::resize;
use crate::actions::resize::Resize;
use crate::control::Control;
use crate::jobs::OnShutdown;

pub(super) fn commands() -> Vec<Command<Control>> {
    vec![Command {
        name: "block_resize",
        arguments: Object::of(vec![
            Member::optional("device", Type::Str),
            Member::optional("node-name", Type::Str),
            Member::required("size", Type::Int),
        ]),
        returns: None,
        run: Run::Deferred(run),
    }]
}

/// Waits for what guests have asked for behind a new end.
fn run(control: &mut Control, arguments: &Arguments, reply: Reply) {
    let resize = match plan(control, arguments) {
        Ok(resize) => resize,
        Err(error) => return reply.send(Err(error)),
    };
    let nodes = resize.names();
    let thread = format!("resize {}", text(arguments, "node-name"));
    let carry_out = move || {
        let done = resize.apply();
        done.map_err(|error| failed(&error.into()))
    };
    control.run_command_job(
        thread,
        OnShutdown::Wait,
        reply,
        carry_out,
        move |control, done| {
            control.objects.release(&nodes);
            done
        },
    );
}

/// `device` would be one of a machine, of which a storage daemon has none.
fn plan(control: &mut Control, arguments: &Arguments) -> Result<Resize, Error> {
    let (device, name) = (text(arguments, "device"), text(arguments, "node-name"));
    let size = arguments["size"].as_i64().ok_or_else(|| {
        Error::generic("Invalid parameter type for 'size', expected: integer".to_owned())
    })?;
    let opening = control.objects.check_not_opening(name);
    opening.map_err(|failure| failed(&failure))?;
    let found = control.objects.find_node(name).ok_or_else(|| {
        Error::generic(format!(
            "Cannot find device='{device}' nor node-name='{name}'"
        ))
    })?;
    let size = u64::try_from(size)
        .map_err(|_| Error::generic("Parameter 'size' expects a >0 size".to_owned()))?;
    if size == 0 {
        // The field's programs take it; here a disk without a sector could not be opened again.
        let text =
            "Parameter 'size' expects a >0 size: a disk needs at least one sector of 512 bytes";
        return Err(Error::generic(text));
    }
    if !found.options.settings.active {
        let text = format!("Node '{name}' is inactive: activate it by blockdev-set-active first");
        return Err(Error::generic(text));
    }
    let node = found.node.clone();
    resize::plan(&mut control.objects, node, size).map_err(|failure| failed(&failure))
}
