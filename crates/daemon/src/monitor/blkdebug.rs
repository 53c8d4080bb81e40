//! The QMP command `x-blkdebug-set`: replaces the faults that a `blkdebug` node injects.

use options::{Driver, qmp_options::RunningObjectNames};
use qmp::{Arguments, Command, CommandHandler, Error, Member, ObjectType, Type};
use serde_json::{Value, json};

use super::error_conversion::error_of_invalid_options;
use super::str_arg_or_empty;
use crate::control::MainThread;
use crate::disk::faults;

/// The command that replaces injected faults.
pub(super) fn qmp_commands() -> Vec<Command<MainThread>> {
    vec![Command {
        name: "x-blkdebug-set",
        arguments: ObjectType::with_members(vec![
            Member::required("node-name", Type::Str),
            Member::optional(
                "inject-error",
                Type::list_of_named("BlkdebugInjectErrorOptions"),
            ),
            Member::optional("seed", Type::Int),
        ]),
        returns: None,
        run: CommandHandler::InBand(release_hanging_and_set_fault_rules),
    }]
}

/// Replaces the rules that say which requests fail. It must work while other commands wait for the node, since it can
/// end an injected hang.
fn release_hanging_and_set_fault_rules(
    control: &mut MainThread,
    arguments: &Arguments,
) -> Result<Value, Error> {
    let name = str_arg_or_empty(arguments, "node-name");
    let nodes = control.objects.nodes.iter_mut();
    let found = nodes.into_iter().find(|open| open.node.name() == name);
    let open = found
        .ok_or_else(|| Error::generic(format!("Failed to find node with node-name='{name}'")))?;
    let (Driver::Blkdebug { injected, .. }, Some(faults)) =
        (&mut open.options.driver, open.node.faults())
    else {
        let text = format!("Node '{name}' cannot inject errors: its driver is not 'blkdebug'");
        return Err(Error::generic(text));
    };
    let has_argument = |key: &str| arguments.contains_key(key);
    if !has_argument("inject-error") {
        if has_argument("seed") {
            let text = "Parameter 'inject-error' is missing: 'seed' applies to new rules";
            return Err(Error::generic(text));
        }
        faults.release_hanging_and_set_rules(None);
        return Ok(json!({}));
    }
    let mut options = arguments.clone();
    options.remove("node-name");
    let rules =
        RunningObjectNames::read_inject_errors_and_seed(&Value::Object(options).to_string());
    *injected = rules.map_err(|problem| error_of_invalid_options(&problem))?;
    faults.release_hanging_and_set_rules(Some(faults::to_block_fault_rules(injected)));
    Ok(json!({}))
}
