//! A file and the options beside it, put in order and judged as a whole.
//!
//! The readers of options stop at the first thing that is wrong. Here the culprit is taken out of the table and
//! the table is read again, so that one look at the file names everything.

use std::{collections::BTreeSet, ops::Range};

use crate::{
    Directive, Finding, MetricsAddr, Problem,
    config::{
        document::{self, Document, Fault, Section},
        order,
        place::Lines,
    },
    directive::{Kind, Written},
    names::Names,
    suggest,
    tree::{Object, Value},
};

/// One thing to create, and who says so.
enum Entry {
    File(Section),
    Option(Written),
}

impl Entry {
    fn kind(&self) -> Kind {
        match self {
            Self::File(section) => section.kind,
            Self::Option(written) => written.kind,
        }
    }

    fn object(&self) -> &Object {
        match self {
            Self::File(section) => &section.object,
            Self::Option(written) => &written.object,
        }
    }

    /// Where a problem is. `None`: in an option.
    fn place(&self, problem: &Problem, culprit: Option<&str>) -> Option<Range<usize>> {
        let Self::File(section) = self else {
            return None;
        };
        let key_only = match problem {
            Problem::Unsupported { what, .. } => !what.contains('='),
            Problem::UnknownKey { .. } | Problem::Missing { .. } | Problem::Conflict { .. } => true,
            _ => false,
        };
        Some(section.place(culprit.unwrap_or_default(), key_only))
    }
}

/// Something wrong in the file (with its place) or in an option.
struct Found {
    at: Option<Range<usize>>,
    message: String,
}

/// What is to run: everything in the order in which it is created, and where figures are served.
type Run = (Vec<Directive>, Option<MetricsAddr>);

/// Most mistakes that are looked for in one table. Each is a new look at all of it.
const MOST_PER_TABLE: usize = 100;

/// Everything that is to run, or everything that is wrong. `metrics` takes the place of what the file says of it.
pub(super) fn all(
    text: &str,
    written: Vec<Written>,
    metrics: Option<MetricsAddr>,
) -> Result<Run, Vec<Finding>> {
    let Document {
        mut sections,
        metrics: metrics_of_file,
        faults,
    } = document::read(text);
    let metrics = metrics.or(metrics_of_file);
    let mut found: Vec<Found> = faults.into_iter().map(Found::from).collect();
    let replaced: BTreeSet<(Kind, &str)> = written
        .iter()
        .filter_map(|option| Some((option.kind, option.name()?)))
        .collect();
    sections.retain(|section| !replaced.contains(&(section.kind, section.name.as_str())));
    let file = sections.into_iter().map(Entry::File);
    let entries: Vec<Entry> = file.chain(written.into_iter().map(Entry::Option)).collect();

    let mut names = Names::default();
    if let Some(MetricsAddr::Socket(addr)) = &metrics {
        // The first listener: it cannot be in anybody's way.
        let _ = names.add_metrics(addr);
    }
    let entries = in_order(entries, &mut names, &mut found);
    let mut directives = Vec::with_capacity(entries.len());
    for entry in &entries {
        directives.extend(read(entry, &mut names, &mut found));
    }
    if found.is_empty() {
        return Ok((directives, metrics));
    }
    found.sort_by_key(|found| found.at.as_ref().map_or(usize::MAX, |at| at.start));
    let lines = Lines::of(text);
    let finding = |found: Found| Finding {
        place: found.at.map(|at| lines.place(&at)),
        message: found.message,
    };
    Err(found.into_iter().map(finding).collect())
}

/// Sorts entries by what they refer to. Nodes on a circle are left out.
fn in_order(mut entries: Vec<Entry>, names: &mut Names, found: &mut Vec<Found>) -> Vec<Entry> {
    entries.sort_by_key(Entry::kind);
    let is_node = |entry: &Entry| entry.kind() == Kind::Blockdev;
    let first = entries.partition_point(|entry| entry.kind() < Kind::Blockdev);
    let number = entries[first..].iter().take_while(|e| is_node(e)).count();
    let nodes: Vec<&Object> = entries[first..first + number]
        .iter()
        .map(Entry::object)
        .collect();
    let (sorted, circle) = order::sorted(&nodes);
    for node in circle {
        let entry = &entries[first + node];
        let children = ["file", "image"];
        let mut children = children
            .into_iter()
            .filter(|child| entry.object().get(child).is_some());
        let child = children.next().unwrap_or("file");
        let reason = format!("nodes are below each other in a circle: '{child}' leads back here");
        report(entry, &Problem::Conflict { reason }, Some(child), found);
        define(entry, names);
    }
    let mut rank = vec![None; entries.len()];
    for (position, node) in sorted.into_iter().enumerate() {
        rank[first + node] = Some(first + position);
    }
    let mut ranked: Vec<(usize, Entry)> = Vec::with_capacity(entries.len());
    for (index, entry) in entries.into_iter().enumerate() {
        match rank[index] {
            Some(rank) => ranked.push((rank, entry)),
            None if is_node(&entry) => {}
            None => ranked.push((index, entry)),
        }
    }
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.into_iter().map(|(_, entry)| entry).collect()
}

/// Reads one entry, and reports all that is wrong with it.
fn read(entry: &Entry, names: &mut Names, found: &mut Vec<Found>) -> Option<Directive> {
    let mut object = entry.object().clone();
    let begin = names.mark();
    // What this entry lacks is there for it, and not for others, once that was said.
    let mut pretended = begin;
    let mut said: Vec<String> = Vec::new();
    let mut stood_in: Vec<String> = Vec::new();
    while said.len() < MOST_PER_TABLE {
        let problem = match entry.kind().read(object.clone(), names) {
            Ok(directive) if said.is_empty() => return Some(directive),
            Ok(_) => break,
            Err(problem) => problem,
        };
        names.go_back(pretended);
        let key = culprit(&problem, entry);
        let follows = key.is_some_and(|key| said.iter().any(|said| is_within(key, said)));
        if !follows {
            report(entry, &problem, key, found);
        }
        let Some(key) = key else {
            break;
        };
        let changed = match &problem {
            Problem::NotDefined { kind, name, .. } => {
                let is_new = names.pretend(kind, name);
                pretended = names.mark();
                is_new
            }
            Problem::Missing { .. } if stood_in.iter().any(|stood| stood == key) => false,
            Problem::Missing { .. } => {
                stood_in.push(key.to_owned());
                stand_in(&mut object, key)
            }
            _ => remove(&mut object, key),
        };
        // Without a change the next time would be the same.
        if !changed {
            break;
        }
        said.push(key.to_owned());
    }
    names.go_back(begin);
    define(entry, names);
    None
}

/// Puts something that is a name and a path where a value is missing.
fn stand_in(object: &mut Object, path: &str) -> bool {
    let Some((group, rest)) = path.split_once('.') else {
        let absent = object.get(path).is_none();
        if absent {
            object.push(path.to_owned(), Value::Text("stand-in".to_owned()));
        }
        return absent;
    };
    if object.get(group).is_none() {
        object.push(group.to_owned(), Value::Object(Object::default()));
    }
    match object.get_mut(group) {
        Some(Value::Object(inside)) => stand_in(inside, rest),
        _ => false,
    }
}

/// The key that a problem is about, if the entry has it or lacks it.
fn culprit<'p>(problem: &'p Problem, entry: &Entry) -> Option<&'p str> {
    let Entry::File(section) = entry else {
        return None;
    };
    let named = problem.keys();
    let has = named.iter().find(|key| section.has(key));
    has.or(named.first()).copied()
}

/// Whether `key` is `group` or inside of it.
fn is_within(key: &str, group: &str) -> bool {
    key.strip_prefix(group)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Takes a key out; with a member of a list the list, since the others would change their numbers. The name in
/// the header cannot go.
fn remove(object: &mut Object, path: &str) -> bool {
    let position = object.entries.iter().position(|(key, _)| key == path);
    if let Some(position) = position {
        object.entries.remove(position);
        return true;
    }
    let Some((group, rest)) = path.split_once('.') else {
        return false;
    };
    match object.get_mut(group) {
        Some(Value::Object(inside)) => remove(inside, rest),
        Some(Value::List(_)) => remove(object, group),
        _ => false,
    }
}

/// Its names are given even if it cannot be read: whoever refers to them makes no mistake.
fn define(entry: &Entry, names: &mut Names) {
    let (kind, name_key) = match entry.kind() {
        Kind::Object => ("iothread", "id"),
        Kind::Chardev => ("chardev", "id"),
        Kind::Blockdev => {
            for name in order::given(entry.object()) {
                names.pretend("node", name);
            }
            return;
        }
        Kind::Monitor | Kind::Export => return,
    };
    if let Some(Value::Text(name) | Value::String(name)) = entry.object().get(name_key) {
        names.pretend(kind, name);
    }
}

fn report(entry: &Entry, problem: &Problem, culprit: Option<&str>, found: &mut Vec<Found>) {
    let message = match problem {
        Problem::NotDefined {
            key,
            kind,
            name,
            known,
        } => not_defined(key, kind, name, known),
        other => other.to_string(),
    };
    found.push(match entry {
        Entry::File(_) => Found {
            at: entry.place(problem, culprit),
            message,
        },
        Entry::Option(written) => Found {
            at: None,
            message: format!("{}: {message}", written.place),
        },
    });
}

fn not_defined(key: &str, kind: &str, name: &str, known: &[String]) -> String {
    let question = match suggest::closest(name, known.iter().map(String::as_str)) {
        Some(known) => format!("; did you mean '{known}'?"),
        None => ".".to_owned(),
    };
    let known = match known {
        [] => format!("There is no {kind}"),
        known => format!("Defined: {}", known.join(", ")),
    };
    format!(
        "'{key}' names the {kind} '{name}', which neither the file nor the command line defines{question} {known}"
    )
}

impl From<Fault> for Found {
    fn from(fault: Fault) -> Self {
        Self {
            at: Some(fault.at),
            message: fault.message,
        }
    }
}
