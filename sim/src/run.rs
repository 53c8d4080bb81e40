//! A run from a plan, whose panics are findings.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use crate::plan::Plan;
use crate::trace::Trace;
use crate::world::{Coverage, World};

thread_local! {
    /// What this thread's last panic said.
    static SAID: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Keeps the text of a panic, which the runner of a plan reports.
fn keep_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        std::panic::set_hook(Box::new(|panic| {
            let place = panic
                .location()
                .map(ToString::to_string)
                .unwrap_or_default();
            let said = panic.payload_as_str().unwrap_or("something");
            SAID.set(format!("panic: {said} ({place})"));
        }));
    });
}

/// Runs a plan.
///
/// # Errors
/// What was found.
pub fn run(plan: &Plan, trace: Trace) -> Result<Coverage, String> {
    keep_panics();
    let ran = catch_unwind(AssertUnwindSafe(|| World::run(plan, trace)));
    ran.unwrap_or_else(|_| Err(SAID.take()))
}
