//! Writes the metric families of throttled nodes, and of the limits of their groups.

use std::collections::BTreeMap;

use block::{LimitKind, RateLimit, ThrottleLimits};

use super::family::{SECONDS, new_family};
use super::latency_histogram::LatencyHistogram;
use super::snapshot::{MetricsSnapshot, ThrottleSnapshot};
use crate::openmetrics::{MetricType, MetricsTextEncoder};

/// Writes all families, unless no node throttles.
pub(super) fn write_throttle_families(snapshot: &MetricsSnapshot, out: &mut MetricsTextEncoder) {
    let nodes = snapshot.nodes.iter();
    let throttles: Vec<(&str, &ThrottleSnapshot)> = nodes
        .filter_map(|node| Some((node.name.as_str(), node.throttle.as_ref()?)))
        .collect();
    if !throttles.is_empty() {
        write_families_of_nodes(&throttles, out);
        write_families_of_groups(&throttles, out);
    }
}

fn write_families_of_nodes(throttles: &[(&str, &ThrottleSnapshot)], out: &mut MetricsTextEncoder) {
    out.begin_family(new_family(
        "blockplane_throttle_waiting",
        MetricType::Gauge,
        None,
        "Requests that wait until the limits of the throttle group permit them.",
    ));
    for (node, throttle) in throttles {
        let labels = [("node", *node), ("group", &throttle.group)];
        out.add_integer_sample(&labels, throttle.stats.waiting());
    }
    out.begin_family(new_family(
        "blockplane_throttle_wait_seconds",
        MetricType::Histogram,
        SECONDS,
        "Time that requests waited for the limits. Requests that pass at once are not counted.",
    ));
    for (node, throttle) in throttles {
        let stats = &throttle.stats;
        let labels = [("node", *node), ("group", &throttle.group)];
        LatencyHistogram::from_buckets(stats.waits().nonempty_buckets(), stats.waited_ns())
            .write_samples_if_used(&labels, out);
    }
    out.begin_family(new_family(
        "blockplane_throttle_limit_hits",
        MetricType::Counter,
        None,
        "Times that a look at the first waiting request of a queue found that it has to wait for the limit.",
    ));
    for (node, throttle) in throttles {
        for kind in limits_set_or_hit(throttle) {
            let labels = [
                ("node", *node),
                ("group", &throttle.group),
                ("limit", kind.name()),
            ];
            out.add_integer_sample(&labels, throttle.stats.limit_hits(kind));
        }
    }
}

/// The limits that a group has, and those that it had when they made requests of the node wait.
fn limits_set_or_hit(throttle: &ThrottleSnapshot) -> impl Iterator<Item = LimitKind> {
    LimitKind::ALL
        .into_iter()
        .filter(|kind| throttle.limits.rate(*kind).rate > 0 || throttle.stats.limit_hits(*kind) > 0)
}

fn write_families_of_groups(throttles: &[(&str, &ThrottleSnapshot)], out: &mut MetricsTextEncoder) {
    let groups: BTreeMap<&str, ThrottleLimits> = throttles
        .iter()
        .map(|(_, throttle)| (throttle.group.as_str(), throttle.limits))
        .collect();
    let mut write_family = |name, help, value: fn(RateLimit) -> u64| {
        out.begin_family(new_family(name, MetricType::Gauge, None, help));
        for (group, limits) in &groups {
            for kind in LimitKind::ALL {
                let value = value(limits.rate(kind));
                if value > 0 {
                    out.add_integer_sample(&[("group", *group), ("limit", kind.name())], value);
                }
            }
        }
    };
    write_family(
        "blockplane_throttle_limit",
        "Limit of a throttle group, in operations or bytes per second.",
        |limit| limit.rate,
    );
    write_family(
        "blockplane_throttle_burst_limit",
        "Limit during a burst, in operations or bytes per second.",
        |limit| limit.burst_rate,
    );
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use super::*;
    use crate::metrics::snapshot::NodeSnapshot;
    use crate::openmetrics::MetricsTextFormat;
    use crate::testing::null_disk;
    use block::{BackendSettings, IoContext, Node, Op, Request, ThrottleGroup};

    /// The samples of these nodes.
    fn samples(nodes: &[&Node]) -> Vec<String> {
        let nodes = nodes.iter().map(|node| NodeSnapshot {
            name: node.name().to_owned(),
            size_bytes: node.size(),
            image: None,
            throttle: ThrottleSnapshot::of_node(node),
        });
        let snapshot = MetricsSnapshot {
            nodes: nodes.collect(),
            ..MetricsSnapshot::default()
        };
        let mut out = MetricsTextEncoder::new(MetricsTextFormat::Prometheus);
        write_throttle_families(&snapshot, &mut out);
        let text = out.finish();
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        samples.map(str::to_owned).collect()
    }

    /// A node of group `tenant` with a limit of one byte per second: the first request takes an hour to pay for.
    #[test]
    fn waits_are_those_of_the_node_and_limits_those_of_its_group() {
        let mut limits = ThrottleLimits::default();
        *limits.rate_mut(LimitKind::BpsTotal) = RateLimit::of(1);
        let group = ThrottleGroup::new("tenant", limits);
        let node = Node::new_throttle("throttled", &null_disk(), &group, false, true);
        let mut io = IoContext::new(BackendSettings::default(), Arc::new(|| ())).unwrap();
        let disk = io.attach(&node, &mut |_| Ok(()));
        for token in 0..3 {
            let request = Request::without_data(Op::WriteZeroes { unmap: false }, 0, 4096, token);
            assert!(io.room(&disk) > 0);
            // SAFETY: the request has no memory.
            unsafe { io.submit(&disk, request) }.unwrap();
        }
        complete(&mut io, 1);
        let expected = [
            r#"blockplane_throttle_waiting{node="throttled",group="tenant"} 2"#,
            r#"blockplane_throttle_limit_hits_total{node="throttled",group="tenant",limit="bps-total"} 1"#,
            r#"blockplane_throttle_limit{group="tenant",limit="bps-total"} 1"#,
        ];
        assert_eq!(samples(&[&null_disk(), &node]), expected);
        assert_eq!(samples(&[&null_disk()]), [""; 0], "no node throttles");

        *limits.rate_mut(LimitKind::BpsTotal) = RateLimit {
            rate: 1 << 40,
            burst_rate: 1 << 41,
            burst_seconds: 1,
        };
        group.set_limits(limits);
        complete(&mut io, 2);
        let raised = samples(&[&node]);
        let expected = [
            r#"blockplane_throttle_waiting{node="throttled",group="tenant"} 0"#,
            r#"blockplane_throttle_wait_seconds_count{node="throttled",group="tenant"} 2"#,
            r#"blockplane_throttle_limit{group="tenant",limit="bps-total"} 1099511627776"#,
            r#"blockplane_throttle_burst_limit{group="tenant",limit="bps-total"} 2199023255552"#,
        ];
        for sample in expected {
            assert!(raised.iter().any(|found| found == sample), "{raised:?}");
        }
        assert_eq!(names_and_labels(&raised), documented_names_and_labels());

        group.set_limits(ThrottleLimits::default());
        let unlimited = samples(&[&node]).concat();
        assert!(unlimited.contains("limit_hits"), "{unlimited}");
        assert!(!unlimited.contains("throttle_limit{"), "{unlimited}");
    }

    /// Waits for the ends of so many requests.
    fn complete(io: &mut IoContext, requests: usize) {
        let mut done = Vec::new();
        while done.len() < requests {
            io.poll_tasks_and_submit();
            io.reap_and_poll_tasks(&mut done);
        }
        assert_eq!(done.len(), requests);
    }

    /// Metrics with their labels, as the documentation has them.
    fn names_and_labels(samples: &[String]) -> BTreeSet<String> {
        let name_and_labels = |sample: &String| {
            let (name, labels) = sample.split_once('{').unwrap();
            let mut suffixes = ["_bucket", "_count", "_sum"].into_iter();
            let histogram = suffixes.find_map(|suffix| name.strip_suffix(suffix));
            let labels = labels.split(',').filter_map(|label| label.split_once('='));
            let labels: Vec<String> = labels
                .filter(|(name, _)| *name != "le")
                .map(|(name, _)| format!("`{name}`"))
                .collect();
            format!("`{}` {}", histogram.unwrap_or(name), labels.join(", "))
        };
        samples.iter().map(name_and_labels).collect()
    }

    fn documented_names_and_labels() -> BTreeSet<String> {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
        let page = std::fs::read_to_string(page).unwrap();
        let rows = page.lines().filter_map(|line| line.strip_prefix("| "));
        rows.filter(|row| row.starts_with("`blockplane_throttle_"))
            .map(|row| {
                let cells: Vec<&str> = row.split(" | ").collect();
                format!("{} {}", cells[0], cells[2])
            })
            .collect()
    }
}
