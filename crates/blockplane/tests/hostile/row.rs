//! Table rows: an invalid input with its defined answer, and the checks that follow each of them.

use std::fmt;

use crate::daemon::{Daemon, HOSTILE, SCSI};
use crate::guest::{FEATURES, Guest};
use crate::scsi;
use crate::verifying_guest::VerifyingGuest;

/// The effect that a front-end observes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let response;
        f.pad(match self {
            Answer::Dropped => "connection dropped",
            Answer::Refused => "refused",
            Answer::Accepted => "accepted",
            Answer::Waiting => "waits",
            Answer::Broken => "queue broken",
            Answer::Status(0) => "status OK",
            Answer::Status(1) => "status IOERR",
            Answer::Status(2) => "status UNSUPP",
            Answer::Status(_) => "status ?",
            Answer::Response(code) => {
                response = format!("response {code}");
                &response
            }
            Answer::Contained => "contained",
        })
    }
}

type Act = Box<dyn Fn(&mut Guest) -> Answer>;

/// A row of a table.
pub struct Row {
    what: String,
    answer: Answer,
    /// What the log says of it; empty: nothing at all.
    says: &'static str,
    export: &'static str,
    forms: Forms,
    act: Act,
}

/// The forms of queues that a row is about.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Forms {
    Split,
    Both,
    Packed,
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
        act: impl Fn(&mut Guest) -> Answer + 'static,
    ) -> &mut Row {
        self.0.push(Row {
            what: what.into(),
            answer,
            says: match answer {
                Answer::Dropped | Answer::Waiting => "the front-end is disconnected",
                _ => "",
            },
            export: HOSTILE,
            forms: Forms::Both,
            act: Box::new(act),
        });
        self.0.last_mut().unwrap()
    }

    /// A row that begins when features are negotiated.
    pub fn negotiated(
        &mut self,
        what: impl Into<String>,
        answer: Answer,
        act: impl Fn(&mut Guest) -> Answer + 'static,
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
        act: impl Fn(&mut Guest) -> Answer + 'static,
    ) -> &mut Row {
        self.row(what, answer, move |guest| {
            guest.ready();
            act(guest)
        })
    }

    /// Against another export, all of them.
    pub fn all_on(&mut self, export: &'static str) {
        self.0.iter_mut().for_each(|row| row.export = export);
    }

    /// The same rows with packed queues, without those for which that makes no sense.
    pub fn make_packed(&mut self) {
        self.0.retain(|row| row.forms == Forms::Both);
        for row in &mut self.0 {
            row.forms = Forms::Packed;
            row.what = format!("packed: {}", row.what);
        }
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
        self.forms = Forms::Split;
        self
    }

    fn guest(&self, daemon: &Daemon) -> Guest {
        let mut guest = Guest::connect(&daemon.socket(self.export));
        if self.forms == Forms::Packed {
            guest.choose_packed();
        }
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

fn rows_of(table: fn(&mut Rows)) -> Vec<Row> {
    let mut rows = Rows::default();
    table(&mut rows);
    rows.0
}

/// Runs all rows against one daemon, in which another guest works.
pub fn one_daemon_survives(table: fn(&mut Rows)) {
    let rows = rows_of(table);
    let mut daemon = Daemon::start();
    let bystander = VerifyingGuest::start(&daemon);
    let before = daemon.footprint_beside(&bystander);
    println!("{:20} {:9} {:5} what", "answer", "export", "lines");
    for row in &rows {
        let log_before = daemon.log().len();
        let mut guest = row.guest(&daemon);
        let seen = (row.act)(&mut guest);
        daemon.assert_running(&row.what);
        assert_eq!(
            seen,
            row.answer,
            "{}; {}",
            row.what,
            &daemon.log()[log_before..]
        );
        if seen == Answer::Broken && row.export == HOSTILE && guest.queues.len() > 1 {
            let other = guest.verified_io(1, 1, 0xc3);
            assert_eq!(other, Ok(()), "{}: the other queue", row.what);
        }
        bystander.goes_on(&row.what);
        drop(guest);
        assert_next_front_end_works(&daemon, row.export, &row.what);
        daemon.holds(&before, &row.what);
        let log = daemon.log();
        let said = &log[log_before..];
        let lines = said.lines().count();
        assert!(
            lines <= row.most_lines(),
            "{}: {lines} lines: {said}",
            row.what
        );
        assert!(
            said.contains(row.says),
            "{}: no '{}' in: {said}",
            row.what,
            row.says
        );
        println!("{seen:20} {:9} {lines:5} {}", row.export, row.what);
    }
    bystander.stop();
    daemon.stop("after all rows");
    println!("{} rows", rows.len());
}

/// Runs each row against a daemon of its own, which is then stopped while the offender is connected.
pub fn each_stops_in_good_order(table: fn(&mut Rows)) {
    for row in rows_of(table) {
        // Which one it was, when it fails.
        println!("{}", row.what);
        let mut daemon = Daemon::start();
        let mut guest = row.guest(&daemon);
        let seen = (row.act)(&mut guest);
        daemon.assert_running(&row.what);
        assert_eq!(seen, row.answer, "{}; {}", row.what, daemon.log());
        daemon.stop(&row.what);
    }
}

/// Asserts that another front-end can use the export after a row.
fn assert_next_front_end_works(daemon: &Daemon, export: &str, after: &str) {
    let mut guest = Guest::connect(&daemon.socket(export));
    if export == SCSI {
        scsi::ready(&mut guest);
        let works = scsi::works(&mut guest);
        assert_eq!(works, Ok(()), "the front-end after: {after}");
        return;
    }
    guest.ready();
    if export == HOSTILE {
        for queue in 0..guest.queues.len() {
            assert_eq!(
                guest.verified_io(queue, 2, 0x5a),
                Ok(()),
                "the front-end after: {after}"
            );
        }
    }
}
