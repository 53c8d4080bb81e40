//! The disk is opened anew, or gets another filter: exports go on with another node in the place of the one that they show.
//!
//! Iothreads get the messages that the daemon's `FrontEndHandle` sends, in their order. A new opening is shown to queues and
//! socket devices that are disabled and have settled. A filter in front of the same opening comes and goes while they run; what
//! they have taken goes the old way to its end.

use iothread::OnError;

use crate::daemon::Daemon;
use crate::model::SECTOR;
use crate::nodes::{ClosedNodes, Nodes};
use crate::plan::Exchange;

use super::{Waits, World};

impl World {
    /// An exchange begins. For another opening of the disk all are disabled first, and settle.
    pub(super) fn exchange(&mut self, how: Exchange) {
        let Some(daemon) = self.daemon.as_ref().filter(|_| self.waits.is_none()) else {
            return;
        };
        // What a job uses stays.
        let is_refused = self.has_mirror()
            || matches!(how, Exchange::Reopened { .. } | Exchange::Recorded { .. });
        if !daemon.is_used() || is_refused && self.has_job() {
            return;
        }
        match how {
            Exchange::Reopened { rewrites } => {
                self.begin_wait(Waits::ExchangeSettled(rewrites, daemon.disable()));
            }
            Exchange::Throttled { .. } if daemon.groups.is_none() => {}
            Exchange::Recorded { .. } if !self.config.filters.marks => {}
            Exchange::Filtered { .. } | Exchange::Throttled { .. } | Exchange::Recorded { .. } => {
                self.show_other(how);
            }
        }
    }

    /// They have settled.
    pub(super) fn exchange_settled(&mut self, rewrites: bool) {
        self.expect_idle("all have settled, for another opening of the disk");
        self.show_other(Exchange::Reopened { rewrites });
    }

    /// The other node is shown from now on.
    fn show_other(&mut self, how: Exchange) {
        let sectors = self.kernel.state().disk().bytes().len() / SECTOR;
        let Some(daemon) = &mut self.daemon else {
            return;
        };
        let filters = &mut self.filters;
        let nodes = match how {
            Exchange::Reopened { rewrites } => {
                filters.rewrites = rewrites;
                let groups = daemon.groups.as_ref();
                let old = Some(&daemon.nodes);
                Nodes::open(&self.config, &self.kernel, sectors, *filters, groups, old)
            }
            Exchange::Filtered { present } => {
                filters.passes_on = present;
                daemon.nodes.filtered(present)
            }
            Exchange::Recorded { present } => {
                filters.marks = present;
                if !present {
                    self.kernel.state().disk().marks.end();
                }
                daemon.nodes.bitmaps().let_new_routes_record(present);
                daemon.nodes.filtered(filters.passes_on)
            }
            Exchange::Throttled { present } => {
                filters.throttles = present;
                let groups = daemon.groups.as_ref().filter(|_| present);
                daemon.nodes.throttled(groups, filters.passes_on)
            }
        };
        if filters.are_tasks() {
            self.guest.borrow_mut().is_served_by_tasks();
        }
        let old = std::mem::replace(&mut daemon.nodes, nodes).close();
        let answers = daemon.set_node();
        self.begin_wait(Waits::Exchanged(how, old, answers));
        self.note_exchange(how);
    }

    /// All go on with it, and what they had taken before is done. Nothing uses what was shown before.
    pub(super) fn exchanged(&mut self, how: Exchange, old: &ClosedNodes) {
        let Some(daemon) = &self.daemon else {
            return;
        };
        if matches!(how, Exchange::Reopened { .. }) {
            daemon.enable(self.known.iter().map(|known| !known.disabled));
        }
        self.routes_exchanged(how);
        self.seen.add("exchanges", 1);
        // A request that is parked keeps the filter that it came through.
        let is_used = match how {
            Exchange::Recorded { .. } => false,
            Exchange::Filtered { .. } | Exchange::Throttled { .. } if self.parks() => false,
            Exchange::Reopened { .. } => old.opening.strong_count() > 0,
            Exchange::Filtered { .. } => old.filter.strong_count() > 0,
            Exchange::Throttled { .. } => old.throttled.iter().any(|node| node.strong_count() > 0),
        };
        if is_used {
            let wrong = "the exchange is done, and something uses the node that was shown before";
            self.guest.borrow_mut().complain(wrong.to_owned());
        }
    }

    /// Whether requests may be parked.
    pub(super) fn parks(&self) -> bool {
        let parks = |policy: &OnError| matches!(policy, OnError::Stop | OnError::NoSpace);
        self.config.policy.iter().any(parks)
    }

    /// No request is under way.
    fn expect_idle(&self, why: &str) {
        let busy = self.kernel.state().held_count();
        let jobs = self.daemon.as_ref().map_or(0, Daemon::waiting_job_count);
        if busy + jobs > 0 {
            self.guest.borrow_mut().complain(format!(
                "{why}: the kernel still has {busy} requests, and workers have {jobs}"
            ));
        }
    }
}
