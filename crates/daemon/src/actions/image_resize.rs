//! Adoption of the new size of an image that a client of its cluster has resized (`rbd resize`), while guests use it.

use std::time::Duration;

use super::resize;
use crate::command_threads::CommandOnShutdown;
use crate::control::{MainThread, run_on_main_thread};

/// The time after which an adoption is tried again while a command has reserved a node of the disk.
const RETRY_AFTER: Duration = Duration::from_millis(200);

/// What an operator does after an adoption has failed.
const ADVICE_AFTER_FAILURE: &str =
    "remove the cause, then have the node resized to the image's size (block_resize)";

/// Adopts the sizes of all images that were resized while a job used them, which has ended.
pub(crate) fn adopt_announced_sizes(control: &mut MainThread) {
    let nodes = control.objects.nodes.iter().map(|open| &open.node);
    let images = nodes.filter(|node| node.announced_image_size().is_some());
    let names: Vec<String> = images.map(|node| node.name().to_owned()).collect();
    for name in names {
        adopt_announced_size(control, &name);
    }
}

/// Gives a node, and the nodes above it, the size that its image has now. Guests are notified.
pub(crate) fn adopt_announced_size(control: &mut MainThread, node_name: &str) {
    // It may have been removed since, or be opening: then this is called again.
    let Some(open) = control.objects.find_node(node_name) else {
        return;
    };
    let node = open.node.clone();
    let mut nodes = control.objects.nodes.iter();
    if nodes.any(|open| open.reserved_by.is_some() && open.node.shares_disk_with(&node)) {
        // The command may replace a node by one of another size, or give it another export.
        return adopt_later(control, node_name);
    }
    let Some(size) = node.announced_image_size() else {
        return;
    };
    if node.disk_size_for_end(size) == node.size() {
        return;
    }
    if control.objects.check_not_used_by_job(&node).is_err() {
        let advice = "nothing is to be done: it is adopted when the job ends";
        tracing::warn!(
            node = node_name,
            size,
            advice,
            "the image has a new size, and a job uses it"
        );
        return;
    }
    let plan = match resize::plan_adoption_and_reserve_nodes(&mut control.objects, node, size) {
        Ok(plan) => plan,
        Err(error) => {
            let advice = "resize the image to a size that all of its nodes can have, or remove the node that the error names";
            tracing::error!(node = node_name, size, %error, advice, "the image has a new size that is not adopted");
            return;
        }
    };
    let (nodes, name) = (plan.node_names(), node_name.to_owned());
    control.spawn_command_thread(
        format!("resize {node_name}"),
        CommandOnShutdown::Wait,
        move || {
            let adopted = plan.apply();
            adopted.map_err(|error| qmp::Error::generic(error.to_string()))
        },
        move |control, adopted| {
            control.objects.release_nodes(&nodes);
            match adopted {
                // It may have been resized again meanwhile.
                Ok(()) => adopt_announced_size(control, &name),
                // Another attempt would end the same way now. The next one is made when the image is resized again, or a job ends.
                Err(error) => tracing::error!(
                    node = name,
                    error = error.text,
                    advice = ADVICE_AFTER_FAILURE,
                    "the image's new size is not adopted"
                ),
            }
        },
    );
}

/// Tries again when the command that has reserved a node of the disk may be done.
fn adopt_later(control: &MainThread, node_name: &str) {
    let (sender, name) = (control.message_sender.clone(), node_name.to_owned());
    let spawned = std::thread::Builder::new()
        .name("resize later".to_owned())
        .spawn(move || {
            std::thread::sleep(RETRY_AFTER);
            run_on_main_thread(&sender, move |control| adopt_announced_size(control, &name));
        });
    if let Err(error) = spawned {
        let advice = ADVICE_AFTER_FAILURE;
        tracing::error!(node = node_name, %error, advice, "no thread to adopt the image's new size");
    }
}
