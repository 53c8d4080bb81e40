//! The QMP command `block-export-resume`: resumes requests of an export that are parked after an error.

use iothread::ResumeAction;
use qmp::{Arguments, Command, CommandHandler, Error, Member, ObjectType, Type, TypeDefinition};
use serde_json::{Value, json};

use super::str_arg_or_empty;
use crate::control::MainThread;

/// The command that resumes parked requests.
pub(super) fn qmp_commands() -> Vec<Command<MainThread>> {
    vec![Command {
        name: "block-export-resume",
        arguments: ObjectType::with_members(vec![
            Member::required("id", Type::Str),
            Member::optional("action", Type::Named("BlockExportResumeAction")),
        ]),
        returns: None,
        run: CommandHandler::InBand(retry_or_fail_parked_requests),
    }]
}

/// The type of its argument `action`.
pub(super) fn qmp_type_definitions() -> Vec<(&'static str, TypeDefinition)> {
    let actions = TypeDefinition::Enum(vec!["retry", "report"]);
    vec![("BlockExportResumeAction", actions)]
}

/// Submits the parked requests of an export again, or reports their errors to the guest.
fn retry_or_fail_parked_requests(
    control: &mut MainThread,
    arguments: &Arguments,
) -> Result<Value, Error> {
    let id = str_arg_or_empty(arguments, "id");
    let mut exports = control.objects.exports.iter();
    let export = exports.find(|export| export.options.id == id);
    let export = export.ok_or_else(|| Error::generic(format!("Export '{id}' is not found")))?;
    let Some(reports) = &export.reports else {
        let text = format!(
            "Export '{id}' cannot park requests: only a 'vhost-user-blk' export has 'rerror' and 'werror'"
        );
        return Err(Error::generic(text));
    };
    reports
        .queues()
        .send_resume_to_queues(match str_arg_or_empty(arguments, "action") {
            "report" => ResumeAction::Report,
            _ => ResumeAction::Retry,
        });
    Ok(json!({}))
}
