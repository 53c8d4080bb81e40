//! Lines of the list of exports in `blockplane top`: exports in the chosen order, with their images, units and queues.

use super::screen::ViewState;
use crate::operator::image::Image;
use crate::operator::interval_load::{DaemonLoad, ExportLoad, IntervalLoad};

/// A line of the list of exports.
pub(super) enum Row<'a> {
    /// An export, queue or unit: its name and load.
    Load(String, &'a IntervalLoad),
    /// The image of the export or unit above it, and its state.
    Image(String),
}

impl Row<'_> {
    /// The line of an image, if there is one: always if requests may wait or fail, or else if `shows_all`.
    fn of_image(indent: &str, image: Option<&Image>, shows_all: bool) -> Option<Self> {
        let image = image.filter(|image| shows_all || image.has_trouble)?;
        Some(Row::Image(format!(
            "{indent}{}: {}",
            image.name, image.state
        )))
    }
}

/// Exports in the chosen order, each followed by its image, units and queues if the view shows these.
pub(super) fn export_and_queue_rows<'a>(rates: &'a DaemonLoad, view: &ViewState) -> Vec<Row<'a>> {
    let mut exports: Vec<&ExportLoad> = rates.exports.iter().collect();
    exports.sort_by(|a, b| view.sort.sort_value(b).total_cmp(&view.sort.sort_value(a)));
    let mut disks = Vec::new();
    for export in exports {
        disks.push(Row::Load(export.id.clone(), &export.load));
        disks.extend(Row::of_image(
            "  ",
            export.image.as_ref(),
            view.shows_queues,
        ));
        for lun in &export.luns {
            let name = format!("  {}:{} {}", lun.target, lun.lun, lun.node);
            let image = Row::of_image("    ", lun.image.as_ref(), view.shows_queues);
            if view.shows_queues || image.is_some() {
                disks.push(Row::Load(name, &lun.load));
            }
            disks.extend(image);
        }
        if view.shows_queues {
            let running = export.queues.iter().filter(|queue| queue.running);
            disks.extend(running.map(|queue| {
                let name = format!("  {} {}", queue.index, queue.iothread);
                Row::Load(name, &queue.load)
            }));
        }
    }
    disks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operator::testing::two_samples;
    use crate::operator::top::screen::{ScreenSize, layout_screen};

    #[test]
    fn image_in_trouble_has_a_line_of_its_own_and_others_with_the_queues() {
        let [before, mut now] = two_samples();
        for (export, has_trouble) in now.exports.iter_mut().zip([false, true]) {
            export.image = Some(Image {
                name: format!("rbd:vms/{}", export.id),
                state: "some state".to_owned(),
                has_trouble,
            });
        }
        let rates = DaemonLoad::between(&before, &now);
        let images = |shows_queues| {
            let view = ViewState {
                shows_queues,
                ..ViewState::default()
            };
            let size = ScreenSize {
                columns: Some(80),
                rows: None,
            };
            let lines = layout_screen("top", &rates, &view, size);
            let texts = lines.into_iter().map(|line| line.text);
            texts
                .filter(|text| text.contains("rbd:"))
                .collect::<Vec<_>>()
        };
        assert_eq!(images(false), ["  rbd:vms/busy: some state"]);
        assert_eq!(
            images(true),
            ["  rbd:vms/idle: some state", "  rbd:vms/busy: some state"]
        );
        let json = rates.to_json();
        assert_eq!(json["exports"][1]["image"], "rbd:vms/busy");
        assert_eq!(json["exports"][1]["image_state"], "some state");
    }
}
