//! The QMP command `upgrade`: starts a live upgrade to a new program, and replies with the new PID and the pause.

use std::path::PathBuf;
use std::time::Duration;

use qmp::{
    Arguments, Command, CommandHandler, Error, Member, ObjectType, ReplySender, Type,
    TypeDefinition,
};
use serde_json::{Value, json};

use super::str_arg_or_empty;
use crate::control::MainThread;
use crate::upgrade::CompletedHandover;
use crate::upgrade::channel::RESPONSE_TIMEOUT;

/// The command that starts a live upgrade.
pub(super) fn qmp_commands() -> Vec<Command<MainThread>> {
    vec![Command {
        name: "upgrade",
        arguments: ObjectType::with_members(vec![
            Member::optional("binary", Type::Str),
            Member::optional("response-timeout", Type::Int),
        ]),
        returns: Some(Type::Named("UpgradeInfo")),
        run: CommandHandler::Deferred(start_upgrade),
    }]
}

/// The type of its result.
pub(super) fn qmp_type_definitions() -> Vec<(&'static str, TypeDefinition)> {
    let members = ["pid", "pause-us"].map(|name| Member::required(name, Type::Int));
    let info = TypeDefinition::Object(ObjectType::with_members(members.into()));
    vec![("UpgradeInfo", info)]
}

/// Starts the upgrade. The client gets its response before it is disconnected.
fn start_upgrade(control: &mut MainThread, arguments: &Arguments, reply: ReplySender) {
    let binary = Some(str_arg_or_empty(arguments, "binary")).filter(|binary| !binary.is_empty());
    let timeout = match arguments.get("response-timeout").map(Value::as_u64) {
        None => RESPONSE_TIMEOUT,
        Some(Some(seconds @ 1..=86_400)) => Duration::from_secs(seconds),
        Some(_) => {
            return reply.send(Err(Error::generic(
                "Parameter 'response-timeout' expects seconds from 1 to 86400",
            )));
        }
    };
    control.begin_upgrade(binary.map(PathBuf::from), timeout, |outcome| {
        reply.send(match outcome {
            Ok(CompletedHandover { pid, pause }) => {
                let pause_us = u64::try_from(pause.as_micros()).unwrap_or(u64::MAX);
                Ok(json!({"pid": pid, "pause-us": pause_us}))
            }
            Err(reason) => Err(Error::generic(reason.clone())),
        });
    });
}
