//! Limits the log lines that a party outside the program can cause without end: a guest that breaks its queue, a front-end or a client
//! that connects and leaves.
//!
//! They are the lines that name an export, a node or an image, and those of the crates that speak with front-ends and clients. Of one
//! kind (a place in the source) about one export a few are written at once and then one per second, which has the number of those that
//! were left out before it. The first line about each queue, user or host is written in any case, so that one of them does not hide the others.
//!
//! The latest line is held back rather than dropped. If no other of its kind follows, it is written before the next line of any kind, or
//! at the program's end: there is no thread for it.

use std::collections::HashMap;
use std::fmt;
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level};

/// Lines that are written at once after a time without any.
const BURST: u32 = 10;

/// Interval of further ones.
pub(super) const INTERVAL: Duration = Duration::from_secs(1);

/// Time after the last written line of a kind about one part. Then a line that is held back is written, and the part is forgotten.
const MEMORY: Duration = INTERVAL.saturating_mul(BURST);

/// Most parts of a subject that are distinguished, further ones share a limit: others may choose their numbers.
pub(super) const MAX_PARTS: usize = 64;

/// Most parts of all subjects, further lines of a kind have one limit.
const MAX_PARTS_OF_ALL: usize = 4096;

/// Crates whose lines others cause before it is known which export they want.
const CRATES_THAT_FACE_OTHERS: [&str; 4] = ["nbd_server", "unix_socket", "vfio_user", "vhost_user"];

/// What lines with one limit have in common.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Subject {
    export: String,
    /// An export may have many nodes, of which several may fail.
    node: String,
    /// An image of a Ceph cluster, which does not know its export.
    image: String,
}

/// One of those that a subject has several of, and that lines may be about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
enum Part {
    /// A line about the subject as a whole, or about a part that is not distinguished.
    #[default]
    Whole,
    /// The number of a queue or a user.
    Number(u64),
    /// The address of a client.
    Host(String),
}

/// The fields of a line that say what it is about.
#[derive(Default)]
pub(super) struct SubjectAndPart {
    subject: Subject,
    part: Part,
}

impl SubjectAndPart {
    /// Of a line that is limited.
    pub fn of(event: &Event<'_>) -> Option<Self> {
        let metadata = event.metadata();
        if *metadata.level() > Level::INFO {
            return None;
        }
        let mut about = SubjectAndPart::default();
        event.record(&mut about);
        let of_crate = metadata.target().split("::").next().unwrap_or_default();
        let is_limited =
            about.subject != Subject::default() || CRATES_THAT_FACE_OTHERS.contains(&of_crate);
        is_limited.then_some(about)
    }
}

impl Visit for SubjectAndPart {
    fn record_str(&mut self, field: &Field, value: &str) {
        let subject = &mut self.subject;
        match field.name() {
            "export" => value.clone_into(&mut subject.export),
            "node" => value.clone_into(&mut subject.node),
            "image" => value.clone_into(&mut subject.image),
            "host" => self.part = Part::Host(value.to_owned()),
            _ => {}
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        if matches!(field.name(), "queue" | "index" | "uid") {
            self.part = Part::Number(value);
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.record_u64(field, value.cast_unsigned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if matches!(field.name(), "export" | "node" | "image" | "host") {
            // A name may be written with `%`.
            self.record_str(field, &format!("{value:?}"));
        }
    }
}

/// Lines of a kind about one subject.
struct SimilarLines {
    /// Moves on by one interval for each line; a line may be written while this is less than a burst of intervals ahead of now (a token
    /// bucket).
    full_rate_until: Instant,
    parts: HashMap<Part, LinesAboutPart>,
}

/// Those of them about one part.
struct LinesAboutPart {
    last_written: Instant,
    /// Since then.
    left_out: u64,
    /// The latest of these.
    held: Option<HeldLine>,
}

/// A line that is held back.
pub(super) struct HeldLine {
    pub text: String,
    pub time: Instant,
}

/// A held line that is to be written now.
pub(super) struct DueLine {
    pub line: HeldLine,
    pub left_out_before: u64,
}

impl LinesAboutPart {
    fn take_due_line(&mut self) -> Option<DueLine> {
        let line = self.held.take()?;
        let left_out_before = std::mem::take(&mut self.left_out).saturating_sub(1);
        Some(DueLine {
            line,
            left_out_before,
        })
    }
}

/// The treatment of a line.
pub(super) enum Decision<'a> {
    /// It is written; so many like it were left out before it.
    Write { left_out: u64 },
    /// It is left out, and held here in the place of the one before it.
    Hold(&'a mut Option<HeldLine>),
}

/// The lines that are limited at present.
#[derive(Default)]
pub(super) struct RepeatedLines {
    lines: HashMap<(Identifier, Subject), SimilarLines>,
    part_count: usize,
    last_cleaned: Option<Instant>,
}

impl RepeatedLines {
    /// Decides what becomes of a line.
    pub fn decide(
        &mut self,
        kind: Identifier,
        about: SubjectAndPart,
        now: Instant,
    ) -> Decision<'_> {
        let SubjectAndPart { subject, mut part } = about;
        let key = (kind.clone(), subject);
        let known = self.lines.get(&key);
        let has_part = |part: &Part| known.is_some_and(|lines| lines.parts.contains_key(part));
        if known.is_some_and(|lines| lines.parts.len() >= MAX_PARTS) && !has_part(&part) {
            part = Part::Whole;
        }
        let key = match self.part_count >= MAX_PARTS_OF_ALL && !has_part(&part) {
            false => key,
            true => {
                part = Part::Whole;
                (kind, Subject::default())
            }
        };
        let lines = self.lines.entry(key).or_insert_with(|| SimilarLines {
            full_rate_until: now,
            parts: HashMap::new(),
        });
        let has_token = lines.full_rate_until <= now + INTERVAL * (BURST - 1);
        let is_new = !lines.parts.contains_key(&part);
        self.part_count += usize::from(is_new);
        let about_part = lines.parts.entry(part).or_insert(LinesAboutPart {
            last_written: now,
            left_out: 0,
            held: None,
        });
        if has_token {
            lines.full_rate_until = lines.full_rate_until.max(now) + INTERVAL;
        }
        if has_token || is_new {
            about_part.last_written = now;
            about_part.held = None;
            let left_out = std::mem::take(&mut about_part.left_out);
            return Decision::Write { left_out };
        }
        about_part.left_out += 1;
        Decision::Hold(&mut about_part.held)
    }

    /// Takes the held lines that no other of their kind has followed for a while, and forgets their parts. This is looked for once per
    /// interval.
    pub fn take_due(&mut self, now: Instant) -> Vec<DueLine> {
        if self.last_cleaned.is_some_and(|last| now < last + INTERVAL) {
            return Vec::new();
        }
        self.last_cleaned = Some(now);
        self.take_of_parts(|part| now >= part.last_written + MEMORY)
    }

    /// Takes all held lines.
    pub fn take_all(&mut self) -> Vec<DueLine> {
        self.take_of_parts(|_| true)
    }

    /// Takes the held lines of the parts for which this holds, in the order of their times, and forgets these parts.
    fn take_of_parts(&mut self, ends: impl Fn(&LinesAboutPart) -> bool) -> Vec<DueLine> {
        let mut due = Vec::new();
        self.lines.retain(|_, lines| {
            lines.parts.retain(|_, part| {
                let ends = ends(part);
                if ends {
                    due.extend(part.take_due_line());
                }
                !ends
            });
            !lines.parts.is_empty()
        });
        self.part_count = self.lines.values().map(|lines| lines.parts.len()).sum();
        due.sort_by_key(|due| due.line.time);
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives lines of one kind to a limit: the texts of those that are written, with the number of lines left out before each.
    struct Limit {
        lines: RepeatedLines,
        start: Instant,
    }

    impl Limit {
        fn new() -> Self {
            Limit {
                lines: RepeatedLines::default(),
                start: Instant::now(),
            }
        }

        fn kind() -> Identifier {
            static KIND: tracing::callsite::DefaultCallsite = {
                static METADATA: tracing::Metadata<'static> = tracing::metadata! {
                    name: "kind", target: "t", level: Level::WARN, fields: &[],
                    callsite: &KIND, kind: tracing::metadata::Kind::EVENT
                };
                tracing::callsite::DefaultCallsite::new(&METADATA)
            };
            tracing::callsite::Callsite::metadata(&KIND).callsite()
        }

        /// The number of lines that were left out before it, if it is written.
        fn line(&mut self, export: &str, part: u64, ms: u64, text: &str) -> Option<u64> {
            let subject = Subject {
                export: export.to_owned(),
                ..Subject::default()
            };
            let part = Part::Number(part);
            let time = self.start + Duration::from_millis(ms);
            let about = SubjectAndPart { subject, part };
            match self.lines.decide(Self::kind(), about, time) {
                Decision::Write { left_out } => Some(left_out),
                Decision::Hold(held) => {
                    let text = text.to_owned();
                    *held = Some(HeldLine { text, time });
                    None
                }
            }
        }

        fn due(&mut self, ms: u64) -> Vec<(String, u64)> {
            let due = self.lines.take_due(self.start + Duration::from_millis(ms));
            due.into_iter()
                .map(|due| (due.line.text, due.left_out_before))
                .collect()
        }
    }

    #[test]
    fn the_latest_line_is_written_before_one_of_any_kind_and_forgotten() {
        let mut limit = Limit::new();
        for number in 0..100 {
            limit.line("removed", 0, 0, &number.to_string());
        }
        assert_eq!(limit.due(9_000), []);
        assert_eq!(limit.due(10_000), [("99".to_owned(), 89)]);
        assert_eq!((limit.lines.lines.len(), limit.lines.part_count), (0, 0));
        // The count is not that of a later export with the same name.
        assert_eq!(limit.line("removed", 0, 10_000, ""), Some(0));
    }

    #[test]
    fn lines_about_many_parts_are_limited_together() {
        let mut limit = Limit::new();
        let mut written = 0;
        for ms in 0..100_000 {
            written += limit.due(ms).len();
            for part in 0..4 {
                written += usize::from(limit.line("e", part, ms, "").is_some());
            }
        }
        // One per second, and for each part that has not had its turn for a while a held line and the first one after it.
        assert!((100..100 + 10 + 4 * 2 * 10).contains(&written), "{written}");
    }

    #[test]
    fn number_of_distinguished_lines_is_bounded() {
        let mut limit = Limit::new();
        for export in 0..100_000 {
            limit.line(&export.to_string(), 0, 0, "");
        }
        assert_eq!(limit.lines.part_count, MAX_PARTS_OF_ALL + 1);
        assert_eq!(limit.lines.lines.len(), MAX_PARTS_OF_ALL + 1);
        limit.due(11_000);
        assert_eq!(limit.lines.part_count, 0);
    }
}
