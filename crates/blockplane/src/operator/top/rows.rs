//! Lines of the list of exports in `blockplane top`: exports in the chosen order, with images, throttled nodes, units, queues.

use super::view_state::ViewState;
use crate::operator::image::Image;
use crate::operator::interval_load::{DaemonLoad, ExportLoad, IntervalLoad};
use crate::operator::throttle::ThrottleLoad;

/// A line of the list of exports.
pub(super) enum Row<'a> {
    /// An export, queue or unit: its name and load.
    Load(String, &'a IntervalLoad),
    /// The image of the export or unit above it and its state, or a throttled node.
    Disk(String),
}

impl Row<'_> {
    /// The lines of an image and of throttled nodes: always where requests wait or may fail, all of them if `shows_all`.
    fn of_disk(
        indent: &str,
        image: Option<&Image>,
        throttles: &[ThrottleLoad],
        shows_all: bool,
    ) -> Vec<Self> {
        let image = image.filter(|image| shows_all || image.has_trouble);
        let image = image.map(|image| format!("{}: {}", image.name, image.state));
        let throttles = throttles.iter();
        let throttles = throttles.filter(|throttle| shows_all || throttle.has_waits());
        let texts = image.into_iter().chain(throttles.map(ThrottleLoad::text));
        texts
            .map(|text| Row::Disk(format!("{indent}{text}")))
            .collect()
    }
}

/// Exports in the chosen order, each followed by its image, throttled nodes, units and queues if the view shows these.
pub(super) fn export_and_queue_rows<'a>(rates: &'a DaemonLoad, view: &ViewState) -> Vec<Row<'a>> {
    let mut exports: Vec<&ExportLoad> = rates.exports.iter().collect();
    exports.sort_by(|a, b| view.sort.sort_value(b).total_cmp(&view.sort.sort_value(a)));
    let shows_all = view.shows_queues;
    let mut disks = Vec::new();
    for export in exports {
        disks.push(Row::Load(export.id.clone(), &export.load));
        let image = export.image.as_ref();
        disks.extend(Row::of_disk("  ", image, &export.throttles, shows_all));
        for lun in &export.luns {
            let name = format!("  {}:{} {}", lun.target, lun.lun, lun.node);
            let disk = Row::of_disk("    ", lun.image.as_ref(), &lun.throttles, shows_all);
            if shows_all || !disk.is_empty() {
                disks.push(Row::Load(name, &lun.load));
            }
            disks.extend(disk);
        }
        if shows_all {
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
    use crate::operator::throttle::ThrottleSample;
    use crate::operator::top::screen::{ScreenSize, layout_screen};

    /// The lines about disks, which contain this, without and with the queues.
    fn lines_with(part: &str, load: &DaemonLoad) -> [Vec<String>; 2] {
        [false, true].map(|shows_queues| {
            let view = ViewState {
                shows_queues,
                ..ViewState::default()
            };
            let lines = layout_screen("top", load, &view, ScreenSize::default());
            let texts = lines.into_iter().map(|line| line.text);
            texts.filter(|text| text.contains(part)).collect()
        })
    }

    #[test]
    fn throttled_node_has_a_line_when_requests_wait_and_others_with_the_queues() {
        let [before, mut now] = two_samples();
        for (export, waiting) in now.exports.iter_mut().zip([0, 12]) {
            export.throttles = vec![ThrottleSample {
                node: "t".to_owned(),
                group: format!("limits-of-{}", export.id),
                waiting,
                limit_hits: vec![("iops-total".to_owned(), waiting)],
                ..ThrottleSample::default()
            }];
        }
        let load = DaemonLoad::between(&before, &now);
        let busy = "  throttled by limits-of-busy: iops-total, 12 waiting";
        let idle = "  throttled by limits-of-idle: 0 waiting";
        let [without_queues, with_queues] = lines_with("throttled", &load);
        assert_eq!(without_queues, [busy]);
        assert_eq!(with_queues, [idle, busy]);
        let json = load.to_json();
        assert_eq!(json["exports"][1]["throttle"][0]["limit"], "iops-total");
    }

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
        let load = DaemonLoad::between(&before, &now);
        let [idle, busy] = ["idle", "busy"].map(|id| format!("  rbd:vms/{id}: some state"));
        let [without_queues, with_queues] = lines_with("rbd:", &load);
        assert_eq!(without_queues, std::slice::from_ref(&busy));
        assert_eq!(with_queues, [idle, busy]);
        let json = load.to_json();
        assert_eq!(json["exports"][1]["image"], "rbd:vms/busy");
        assert_eq!(json["exports"][1]["image_state"], "some state");
    }
}
