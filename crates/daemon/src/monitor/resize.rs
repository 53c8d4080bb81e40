//! The QMP command `block_resize`: changes the size of a node.

use qmp::{Arguments, Command, CommandHandler, Error, Member, ObjectType, ReplySender, Type};

use super::error_conversion::error_of_failed_action;
use super::str_arg_or_empty;
use crate::actions::resize;
use crate::actions::resize::ResizePlan;
use crate::command_threads::CommandOnShutdown;
use crate::control::MainThread;

/// The command that resizes nodes.
pub(super) fn qmp_commands() -> Vec<Command<MainThread>> {
    vec![Command {
        name: "block_resize",
        arguments: ObjectType::with_members(vec![
            Member::optional("device", Type::Str),
            Member::optional("node-name", Type::Str),
            Member::required("size", Type::Int),
        ]),
        returns: None,
        run: CommandHandler::Deferred(resize_node),
    }]
}

/// Resizes on a thread: when a node shrinks, it waits for requests beyond the new end.
fn resize_node(control: &mut MainThread, arguments: &Arguments, reply: ReplySender) {
    let resize = match plan_resize_and_reserve_nodes(control, arguments) {
        Ok(resize) => resize,
        Err(error) => return reply.send(Err(error)),
    };
    let nodes = resize.node_names();
    let thread = format!("resize {}", str_arg_or_empty(arguments, "node-name"));
    let carry_out = move || {
        let done = resize.apply();
        done.map_err(|error| error_of_failed_action(&error.into()))
    };
    control.spawn_command_thread_and_reply_later(
        thread,
        CommandOnShutdown::Wait,
        reply,
        carry_out,
        move |control, done| {
            control.objects.release_nodes(&nodes);
            done
        },
    );
}

/// Checks the arguments, and plans the change of size. `device` is accepted for compatibility: a storage daemon has no
/// devices.
fn plan_resize_and_reserve_nodes(
    control: &mut MainThread,
    arguments: &Arguments,
) -> Result<ResizePlan, Error> {
    let (device, name) = (
        str_arg_or_empty(arguments, "device"),
        str_arg_or_empty(arguments, "node-name"),
    );
    let size = arguments["size"].as_i64().ok_or_else(|| {
        Error::generic("Invalid parameter type for 'size', expected: integer".to_owned())
    })?;
    let checked = control.objects.check_node_not_opening(name);
    checked.map_err(|failure| error_of_failed_action(&failure))?;
    let found = control.objects.find_node(name).ok_or_else(|| {
        Error::generic(format!(
            "Cannot find device='{device}' nor node-name='{name}'"
        ))
    })?;
    let size = u64::try_from(size)
        .map_err(|_| Error::generic("Parameter 'size' expects a >0 size".to_owned()))?;
    if size == 0 {
        // QEMU accepts 0; here a disk without a sector could not be opened again.
        let text =
            "Parameter 'size' expects a >0 size: a disk needs at least one sector of 512 bytes";
        return Err(Error::generic(text));
    }
    if !found.options.settings.active {
        let text = format!("Node '{name}' is inactive: activate it with blockdev-set-active first");
        return Err(Error::generic(text));
    }
    let node = found.node.clone();
    resize::plan_and_reserve_nodes(&mut control.objects, node, size)
        .map_err(|failure| error_of_failed_action(&failure))
}
