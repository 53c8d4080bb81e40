//! Requests that wait at throttled nodes: counters of a sample, and the load between two samples.

use serde_json::{Value, json};

use crate::operator::histogram::Histogram;
use crate::operator::units::{format_ns, format_with_thousands_separators};

/// Counters of a throttled node.
#[derive(Clone, Debug, Default)]
pub(crate) struct ThrottleSample {
    pub node: String,
    pub group: String,
    /// Requests that wait now.
    pub waiting: u64,
    /// Times that requests have waited.
    pub waits: Histogram,
    /// Limits, and how often each made requests wait.
    pub limit_hits: Vec<(String, u64)>,
}

/// A throttled node between two samples.
#[derive(Clone, Debug)]
pub(crate) struct ThrottleLoad {
    node: String,
    group: String,
    waiting: u64,
    waits: Histogram,
    /// The limit that made requests wait most often; without such requests, that of earlier ones.
    limit: Option<String>,
}

impl ThrottleLoad {
    /// Loads of nodes between two samples. A node that `before` lacks counts from 0.
    pub fn between(before: &[ThrottleSample], now: &[ThrottleSample]) -> Vec<Self> {
        let none = ThrottleSample::default();
        let loads = now.iter().map(|now| {
            let before = before.iter().find(|before| before.node == now.node);
            ThrottleLoad::from_counter_increases(before.unwrap_or(&none), now)
        });
        loads.collect()
    }

    fn from_counter_increases(before: &ThrottleSample, now: &ThrottleSample) -> Self {
        let increase = |(limit, hits): &(String, u64)| {
            let before = before.limit_hits.iter().find(|(other, _)| other == limit);
            hits.saturating_sub(before.map_or(0, |(_, hits)| *hits))
        };
        let hit = now.limit_hits.iter().filter(|(_, hits)| *hits > 0);
        let most = hit.max_by_key(|limit| (increase(limit), limit.1));
        ThrottleLoad {
            node: now.node.clone(),
            group: now.group.clone(),
            waiting: now.waiting,
            waits: now.waits.since(&before.waits),
            limit: most.map(|(limit, _)| limit.clone()),
        }
    }

    /// Whether requests waited.
    pub fn has_waits(&self) -> bool {
        self.waiting > 0 || self.waits.count() > 0
    }

    /// The group, and if requests waited, the limit and how long they did:
    /// `throttled by tenant: iops-total, 12 waiting, p50 3.1 ms, p99 9 ms`.
    pub fn text(&self) -> String {
        let mut parts = Vec::new();
        if self.has_waits() {
            parts.extend(self.limit.clone());
        }
        let waiting = format_with_thousands_separators(self.waiting);
        parts.push(format!("{waiting} waiting"));
        for (name, percent) in [("p50", 50.0), ("p99", 99.0)] {
            if let Some(ns) = self.waits.percentile(percent) {
                #[allow(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "rounded, for people"
                )]
                parts.push(format!("{name} {}", format_ns(ns.round() as u64)));
            }
        }
        format!("throttled by {}: {}", self.group, parts.join(", "))
    }

    /// The load as JSON.
    pub fn to_json(&self) -> Value {
        let us = |percent| self.waits.percentile(percent).map(|ns| ns / 1e3);
        json!({
            "node-name": self.node,
            "group": self.group,
            "waiting": self.waiting,
            "waited": self.waits.count(),
            "wait_p50_us": us(50.0),
            "wait_p99_us": us(99.0),
            "limit": self.limit.as_ref().filter(|_| self.has_waits()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(waiting: u64, waited: u64, hits: [u64; 2]) -> ThrottleSample {
        let limits = ["bps-total", "iops-total"].map(str::to_owned);
        ThrottleSample {
            node: "t".to_owned(),
            group: "tenant".to_owned(),
            waiting,
            waits: Histogram::from_bucket_ends_and_counts(
                [2_000_000].into_iter(),
                [waited].into_iter(),
            ),
            limit_hits: limits.into_iter().zip(hits).collect(),
        }
    }

    fn between(before: &ThrottleSample, now: &ThrottleSample) -> ThrottleLoad {
        let before = std::slice::from_ref(before);
        ThrottleLoad::between(before, std::slice::from_ref(now)).remove(0)
    }

    #[test]
    fn limit_is_the_one_that_was_hit_between_the_samples() {
        let load = between(&sample(5, 100, [50, 1]), &sample(7, 180, [50, 9]));
        let json = load.to_json();
        assert_eq!(json["limit"], "iops-total");
        assert_eq!([&json["waiting"], &json["waited"]], [7, 80]);
        assert_eq!(
            load.text(),
            "throttled by tenant: iops-total, 7 waiting, p50 2.0 ms, p99 2.0 ms"
        );
    }

    /// A request may wait for longer than the time between samples.
    #[test]
    fn request_that_still_waits_has_the_limit_of_its_beginning() {
        let earlier = sample(1, 0, [0, 1]);
        let load = between(&earlier, &earlier);
        assert_eq!(load.text(), "throttled by tenant: iops-total, 1 waiting");
        assert_eq!(load.to_json()["wait_p99_us"], Value::Null);
    }

    #[test]
    fn node_without_waits_has_no_limit() {
        let earlier = sample(0, 8, [3, 0]);
        let load = between(&earlier, &earlier);
        assert_eq!(load.text(), "throttled by tenant: 0 waiting");
        assert_eq!(load.to_json()["limit"], Value::Null);
    }
}
