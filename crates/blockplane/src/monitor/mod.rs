//! What monitors can be asked: names, arguments and results are those of QEMU.

use qmp::{Command, Interface, Object, Product, Run};
use serde_json::json;

use crate::control::Control;

/// All commands and events.
pub(crate) fn interface() -> Interface<Control> {
    Interface::new(product(), Vec::new(), vec![quit()], Vec::new())
}

/// Who we are: clients that look for a version of QEMU's find ours, and our name.
fn product() -> Product {
    let part = |text: &str| text.parse().unwrap_or_default();
    Product {
        package: concat!("blockplane ", env!("CARGO_PKG_VERSION")).to_owned(),
        version: [
            part(env!("CARGO_PKG_VERSION_MAJOR")),
            part(env!("CARGO_PKG_VERSION_MINOR")),
            part(env!("CARGO_PKG_VERSION_PATCH")),
        ],
    }
}

fn quit() -> Command<Control> {
    Command {
        name: "quit",
        arguments: Object::default(),
        returns: None,
        run: Run::InBand(|control, _| {
            tracing::info!("a monitor's client ends the daemon");
            control.quit = true;
            Ok(json!({}))
        }),
    }
}
