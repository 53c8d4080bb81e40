//! Table rows: an invalid input with its defined answer, and the checks that follow each of them.

use std::collections::HashSet;

use crate::daemon::{Daemon, HOSTILE, SCSI};
use crate::front_end::{FEATURES, HostileFrontEnd};
use crate::scsi;

/// The effect that a front-end observes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// The connection is closed.
    Dropped,
    /// An error reply; the connection stays.
    Refused,
    /// The input is accepted, or has no effect.
    Accepted,
    /// The daemon waits for the rest.
    Waiting,
    /// The queue stands still and its err descriptor is signalled; the other queue goes on.
    Broken,
    /// The request ends with this status: 0 OK, 1 IOERR, 2 UNSUPP.
    Status(u8),
    /// A SCSI controller's request ends with this response.
    Response(u8),
    /// No answer is defined, but nothing else is harmed.
    Contained,
}

pub const OK: Answer = Answer::Status(0);
pub const IOERR: Answer = Answer::Status(1);
pub const UNSUPP: Answer = Answer::Status(2);

/// In the log when a front-end is disconnected.
pub const DISCONNECTED: &str = "the front-end is disconnected";

type Act = Box<dyn Fn(&mut HostileFrontEnd) -> Answer>;

/// A row of a table.
pub struct Row {
    what: String,
    answer: Answer,
    /// What the log says of it; empty: nothing at all.
    says: &'static str,
    export: &'static str,
    /// Only split queues can have this.
    split_only: bool,
    packed: bool,
    act: Act,
}

/// The rows of a table.
#[derive(Default)]
pub struct Rows(Vec<Row>);

impl Rows {
    /// A row: what is wrong, the answer, and how it is done. The log says that a front-end is disconnected, and of other answers
    /// nothing, unless [`Row::says`] has something else.
    pub fn row(
        &mut self,
        what: impl Into<String>,
        answer: Answer,
        act: impl Fn(&mut HostileFrontEnd) -> Answer + 'static,
    ) -> &mut Row {
        self.0.push(Row {
            what: what.into(),
            answer,
            says: match answer {
                Answer::Dropped | Answer::Waiting => DISCONNECTED,
                _ => "",
            },
            export: HOSTILE,
            split_only: false,
            packed: false,
            act: Box::new(act),
        });
        self.0.last_mut().unwrap()
    }

    /// A row that begins when features are negotiated.
    pub fn negotiated(
        &mut self,
        what: impl Into<String>,
        answer: Answer,
        act: impl Fn(&mut HostileFrontEnd) -> Answer + 'static,
    ) -> &mut Row {
        self.row(what, answer, move |guest| {
            guest.negotiate(FEATURES);
            act(guest)
        })
    }

    /// A row that begins when both queues run.
    pub fn running(
        &mut self,
        what: impl Into<String>,
        answer: Answer,
        act: impl Fn(&mut HostileFrontEnd) -> Answer + 'static,
    ) -> &mut Row {
        self.row(what, answer, move |guest| {
            guest.ready();
            act(guest)
        })
    }

    /// A message with so many eventfds, sent when features are negotiated, that disconnects the front-end.
    pub fn bad_message(
        &mut self,
        what: impl Into<String>,
        request: u32,
        payload: Vec<u8>,
        fds: usize,
    ) -> &mut Row {
        self.negotiated(what, Answer::Dropped, move |guest| {
            guest.tell_with_events(request, &payload, fds)
        })
    }

    /// Against another export, all of them.
    pub fn all_on(&mut self, export: &'static str) {
        self.0.iter_mut().for_each(|row| row.export = export);
    }

    /// The same rows with packed queues, without those for which that makes no sense.
    pub fn make_packed(&mut self) {
        self.0.retain(|row| !row.split_only);
        for row in &mut self.0 {
            row.packed = true;
            row.what = format!("packed: {}", row.what);
        }
    }

    fn of(tables: &[fn(&mut Rows)]) -> Vec<Row> {
        let mut all = Vec::new();
        for table in tables {
            let mut rows = Rows::default();
            table(&mut rows);
            all.extend(rows.0);
        }
        all
    }
}

impl Row {
    /// Another answer than the usual one.
    pub fn answers(&mut self, answer: Answer) -> &mut Self {
        self.answer = answer;
        self
    }

    /// What the log says.
    pub fn says(&mut self, says: &'static str) -> &mut Self {
        self.says = says;
        self
    }

    /// Against another export.
    pub fn on(&mut self, export: &'static str) -> &mut Self {
        self.export = export;
        self
    }

    /// Only split queues can have this.
    pub fn split_only(&mut self) -> &mut Self {
        self.split_only = true;
        self
    }

    /// A guest that has done what the row says, with its answer.
    fn act(&self, daemon: &mut Daemon) -> HostileFrontEnd {
        let log_before = daemon.log().len();
        let mut guest = HostileFrontEnd::connect(&daemon.socket(self.export));
        if self.packed {
            guest.choose_packed();
        }
        let seen = (self.act)(&mut guest);
        daemon.assert_running(&self.what);
        let log = &daemon.log()[log_before..];
        assert_eq!(seen, self.answer, "{}; {log}", self.what);
        guest
    }

    /// The most lines that it may cost in the log: what is wrong, and what follows for the
    /// connection.
    fn most_lines(&self) -> usize {
        match (self.says, self.answer) {
            // A queue may or may not have broken.
            ("", Answer::Contained) => 1,
            ("", _) => 0,
            _ => 2,
        }
    }
}

/// Rows for one daemon: of lines in the log that are alike, so many are written at once.
const ROWS_OF_ONE_DAEMON: usize = 10;

/// Runs all rows, one after the other, against daemons in which another guest works.
pub fn daemon_survives(tables: &[fn(&mut Rows)]) {
    for rows in Rows::of(tables).chunks(ROWS_OF_ONE_DAEMON) {
        one_daemon_survives(rows);
    }
}

fn one_daemon_survives(rows: &[Row]) {
    let mut daemon = Daemon::start();
    let guest = daemon.start_undisturbed_guest();
    let before = daemon.footprint_beside(&guest);
    for row in rows {
        let what = &row.what;
        let log_before = daemon.log().len();
        let mut offender = row.act(&mut daemon);
        if row.answer == Answer::Broken && row.export == HOSTILE && offender.queues.len() > 1 {
            let other = offender.verified_io(1, 1, 0xc3);
            assert_eq!(other, Ok(()), "{what}: the other queue");
        }
        guest.goes_on(what);
        drop(offender);
        assert_next_front_end_works(&daemon, row.export, what);
        daemon.holds(&before, what);
        let log = daemon.log();
        let said = &log[log_before..];
        let lines = said.lines().count();
        assert!(lines <= row.most_lines(), "{what}: {lines} lines: {said}");
        assert!(said.contains(row.says), "{what}: no '{}': {said}", row.says);
        println!("{:?}, {lines} lines: {}: {what}", row.answer, row.export);
    }
    guest.stop();
    daemon.stop();
}

/// Runs rows against a daemon of their own each, which is then stopped while the offender is connected: one row for each answer
/// with each text in the log, or all of them.
pub fn stops_in_good_order(table: fn(&mut Rows), one_of_each: bool) {
    let mut done = HashSet::new();
    for row in Rows::of(&[table]) {
        let is_new = done.insert((row.answer, row.says, row.export));
        if row.answer == Answer::Dropped || (one_of_each && !is_new) {
            continue;
        }
        // Which one it was, when it fails.
        println!("{}", row.what);
        let mut daemon = Daemon::start();
        let _offender = row.act(&mut daemon);
        daemon.stop();
    }
}

/// Asserts that another front-end can use the export after a row.
fn assert_next_front_end_works(daemon: &Daemon, export: &str, after: &str) {
    let mut guest = HostileFrontEnd::connect(&daemon.socket(export));
    if export == SCSI {
        scsi::ready(&mut guest);
        return scsi::assert_works(&mut guest, after);
    }
    guest.ready();
    if export == HOSTILE {
        for queue in 0..guest.queues.len() {
            let done = guest.verified_io(queue, 2, 0x5a);
            assert_eq!(done, Ok(()), "the front-end after: {after}");
        }
    }
}
