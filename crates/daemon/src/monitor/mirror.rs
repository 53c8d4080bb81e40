//! The arguments of `blockdev-mirror`.

use qmp::{Arguments, Error};
use serde_json::Value;

use super::error_conversion::error_of_failed_action;
use super::job_arguments::{on_error, read_speed, report_failed_copy};
use super::str_arg_or_empty;
use crate::actions::backup::JobPlan;
use crate::actions::mirror::{self, MirrorOptions};
use crate::control::MainThread;

/// Checks the arguments, and plans the mirror.
pub(super) fn plan(control: &mut MainThread, data: &Arguments) -> Result<JobPlan, Error> {
    let text = |key| data.get(key).and_then(Value::as_str);
    let flag = |key, default| data.get(key).and_then(Value::as_bool).unwrap_or(default);
    let number = |key| {
        let value = data.get(key).map_or(Some(0), Value::as_i64);
        value.and_then(|value| u64::try_from(value).ok())
    };
    refuse_what_is_missing(data)?;
    let options = MirrorOptions {
        job_id: str_arg_or_empty(data, "job-id").to_owned(),
        device: str_arg_or_empty(data, "device").to_owned(),
        target: str_arg_or_empty(data, "target").to_owned(),
        speed: read_speed(data)?,
        // Out of range.
        granularity: number("granularity").unwrap_or(1),
        buffer_bytes: number("buf-size")
            .ok_or_else(|| Error::generic("Invalid parameter 'buf-size'"))?,
        on_source_error: on_error(text("on-source-error")),
        on_target_error: on_error(text("on-target-error")),
        is_write_blocking: text("copy-mode") == Some("write-blocking"),
        target_is_zero: flag("target-is-zero", false),
        auto_dismiss: flag("auto-dismiss", true),
    };
    let on_failed = report_failed_copy(control);
    let planned = mirror::plan(&mut control.objects, options, on_failed);
    planned.map_err(|failure| error_of_failed_action(&failure))
}

/// Refuses arguments that do nothing here.
fn refuse_what_is_missing(data: &Arguments) -> Result<(), Error> {
    for key in ["replaces", "filter-node-name"] {
        if data.contains_key(key) {
            return Err(Error::generic(format!(
                "Parameter '{key}' is not supported: exports of the source go over to the target, and there is no filter node"
            )));
        }
    }
    if data.get("auto-finalize").and_then(Value::as_bool) == Some(false) {
        return Err(Error::generic(
            "Parameter 'auto-finalize' has to be true: guests go over to the target when job-complete says so",
        ));
    }
    match data.get("sync").and_then(Value::as_str) {
        // A raw disk has nothing below that `top` would leave out.
        Some("full" | "top") => Ok(()),
        sync => Err(Error::generic(format!(
            "Sync mode '{}' not supported",
            sync.unwrap_or_default()
        ))),
    }
}
