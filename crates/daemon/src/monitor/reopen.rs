//! The QMP command `blockdev-reopen`: changes options of nodes in use, by replacing them with newly opened ones.

use qmp::{Arguments, Command, CommandHandler, Error, Member, ObjectType, ReplySender, Type};

use super::error_conversion::{error_of_failed_action, error_of_invalid_options};
use super::running_object_names::names_of_running_objects_except_node;
use crate::actions::reopen;
use crate::actions::reopen::{ReopenPlan, ReopenedNodes};
use crate::command_threads::CommandOnShutdown;
use crate::control::MainThread;

/// The command that reopens nodes.
pub(super) fn qmp_commands() -> Vec<Command<MainThread>> {
    vec![Command {
        name: "blockdev-reopen",
        arguments: ObjectType::with_members(vec![Member::required(
            "options",
            Type::list_of_named("BlockdevOptions"),
        )]),
        returns: None,
        run: CommandHandler::Deferred(reopen_nodes),
    }]
}

/// First phase: opens the files on a thread. Shutdown does not wait for it, since nothing has changed yet.
fn reopen_nodes(control: &mut MainThread, arguments: &Arguments, reply: ReplySender) {
    let plan = match plan_reopen_and_reserve_nodes(control, arguments) {
        Ok(plan) => plan,
        Err(error) => return reply.send(Err(error)),
    };
    let reserved = plan.reserved_node_names().to_vec();
    control.spawn_command_thread(
        "reopen".to_owned(),
        CommandOnShutdown::Abandon,
        move || {
            plan.open_check_and_configure_new_nodes()
                .map_err(|failure| error_of_failed_action(&failure))
        },
        move |control, opened| match opened {
            Ok(nodes) => switch_to_reopened_nodes(control, nodes, reserved, reply),
            Err(error) => {
                control.objects.release_nodes(&reserved);
                reply.send(Err(error));
            }
        },
    );
}

/// Second phase: replaces the nodes by those with the new files on a thread, which waits for requests that use the old ones.
fn switch_to_reopened_nodes(
    control: &mut MainThread,
    nodes: ReopenedNodes,
    reserved: Vec<String>,
    reply: ReplySender,
) {
    let carry_out = move || {
        let done = nodes.switch_exports();
        done.map_err(|failure| error_of_failed_action(&failure))?;
        Ok(nodes)
    };
    let finish = move |control: &mut MainThread, done: Result<ReopenedNodes, Error>| {
        control.objects.release_nodes(&reserved);
        done.map(|nodes| nodes.replace_nodes_in_objects(&mut control.objects))
    };
    control.spawn_command_thread_and_reply_later(
        "reopen".to_owned(),
        CommandOnShutdown::Wait,
        reply,
        carry_out,
        finish,
    );
}

/// Validates the new options of each node, and plans how to replace the old ones.
fn plan_reopen_and_reserve_nodes(
    control: &mut MainThread,
    arguments: &Arguments,
) -> Result<ReopenPlan, Error> {
    let mut wanted = Vec::new();
    for node in arguments["options"].as_array().into_iter().flatten() {
        let name = node["node-name"]
            .as_str()
            .ok_or_else(|| Error::generic("node-name not specified".to_owned()))?;
        let objects = &control.objects;
        let checked = objects.check_node_not_opening(name);
        checked.map_err(|failure| error_of_failed_action(&failure))?;
        if objects.find_node(name).is_none() {
            let text = format!("Failed to find node with node-name='{name}'");
            return Err(Error::generic(text));
        }
        let options =
            names_of_running_objects_except_node(objects, name)?.read_blockdev(&node.to_string());
        wanted.push(options.map_err(|problem| error_of_invalid_options(&problem))?);
    }
    reopen::plan_and_reserve_nodes(&mut control.objects, &wanted)
        .map_err(|failure| error_of_failed_action(&failure))
}
