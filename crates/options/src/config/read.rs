//! Reads a configuration file together with the options beside it: merges them, sorts them by their references, and
//! reports all problems at once.
//!
//! The readers of options stop at the first problem. Here the offending key is removed from the table and the table is read again,
//! so that all problems of a file are reported at once.

use std::{collections::BTreeSet, ops::Range};

use crate::{
    ConfigProblem, Directive, MetricsAddr, Problem,
    config::{
        document::{self, Document, DocumentError, Section},
        location::Lines,
        order,
    },
    directive::{DirectiveKind, RawDirective},
    names::DefinedNames,
    object, suggest,
    tree::{Object, Value},
};

/// A directive, from the file or from an option.
enum FileOrOptionEntry {
    File(Section),
    Option(RawDirective),
}

impl FileOrOptionEntry {
    fn kind(&self) -> DirectiveKind {
        match self {
            Self::File(section) => section.kind,
            Self::Option(option) => option.kind,
        }
    }

    /// The keys and values.
    fn object(&self) -> &Object {
        match self {
            Self::File(section) => &section.object,
            Self::Option(option) => &option.object,
        }
    }

    /// The location of a problem. `None`: in an option.
    fn range_of_problem(
        &self,
        problem: &Problem,
        offending_key: Option<&str>,
    ) -> Option<Range<usize>> {
        let Self::File(section) = self else {
            return None;
        };
        let key_only = match problem {
            Problem::Unsupported { what, .. } => !what.contains('='),
            Problem::UnknownKey { .. } | Problem::Missing { .. } | Problem::Conflict { .. } => true,
            _ => false,
        };
        Some(section.range_of_key_or_value(offending_key.unwrap_or_default(), key_only))
    }
}

/// A problem in the file, with its location, or in an option.
struct ProblemWithRange {
    range: Option<Range<usize>>,
    message: String,
}

/// All directives in the order in which they are created, and the address of metrics.
type DirectivesAndMetrics = (Vec<Directive>, Option<MetricsAddr>);

/// Most problems that are searched for in one table. For each the table is read again.
const MAX_PROBLEMS_PER_TABLE: usize = 100;

/// Reads the file and the options; returns what to run, or all problems. `metrics` replaces that of the file.
pub(super) fn parse_text_with_options(
    text: &str,
    options: Vec<RawDirective>,
    metrics: Option<MetricsAddr>,
) -> Result<DirectivesAndMetrics, Vec<ConfigProblem>> {
    let Document {
        mut sections,
        metrics: metrics_of_file,
        errors,
    } = document::parse_document(text);
    let metrics = metrics.or(metrics_of_file);
    let mut problems: Vec<ProblemWithRange> =
        errors.into_iter().map(ProblemWithRange::from).collect();
    let replaced: BTreeSet<(DirectiveKind, &str)> = options
        .iter()
        .filter_map(|option| Some((option.kind, option.object_name()?)))
        .collect();
    sections.retain(|section| !replaced.contains(&(section.kind, section.name.as_str())));
    let file = sections.into_iter().map(FileOrOptionEntry::File);
    let entries: Vec<FileOrOptionEntry> = file
        .chain(options.into_iter().map(FileOrOptionEntry::Option))
        .collect();

    let mut names = DefinedNames::default();
    if let Some(MetricsAddr::Socket(addr)) = &metrics {
        // It is the first socket, so there is no conflict yet.
        let _ = names.add_metrics_socket(addr);
    }
    let entries = sort_entries_and_report_circles(entries, &mut names, &mut problems);
    let mut directives = Vec::with_capacity(entries.len());
    for entry in &entries {
        directives.extend(read_entry_and_report_problems(
            entry,
            &mut names,
            &mut problems,
        ));
    }
    if problems.is_empty() {
        return Ok((directives, metrics));
    }
    problems.sort_by_key(|problem| problem.range.as_ref().map_or(usize::MAX, |at| at.start));
    let lines = Lines::of(text);
    let finding = |problem: ProblemWithRange| ConfigProblem {
        location: problem.range.map(|at| lines.location_of_range(&at)),
        message: problem.message,
    };
    Err(problems.into_iter().map(finding).collect())
}

/// Sorts entries by their references. Nodes of a circle are left out.
fn sort_entries_and_report_circles(
    mut entries: Vec<FileOrOptionEntry>,
    names: &mut DefinedNames,
    problems: &mut Vec<ProblemWithRange>,
) -> Vec<FileOrOptionEntry> {
    entries.sort_by_key(FileOrOptionEntry::kind);
    let is_node = |entry: &FileOrOptionEntry| entry.kind() == DirectiveKind::Blockdev;
    let first_node = entries.partition_point(|entry| entry.kind() < DirectiveKind::Blockdev);
    let node_count = entries[first_node..]
        .iter()
        .take_while(|e| is_node(e))
        .count();
    let nodes: Vec<&Object> = entries[first_node..first_node + node_count]
        .iter()
        .map(FileOrOptionEntry::object)
        .collect();
    let (sorted, circle) = order::sort_indices_and_find_circles(&nodes);
    for node in circle {
        let entry = &entries[first_node + node];
        let children = ["file", "image"];
        let mut children = children
            .into_iter()
            .filter(|child| entry.object().get(child).is_some());
        let child = children.next().unwrap_or("file");
        let reason = format!("nodes are below each other in a circle: '{child}' leads back here");
        push_problem(entry, &Problem::Conflict { reason }, Some(child), problems);
        assume_names_defined(entry, names);
    }
    let mut rank = vec![None; entries.len()];
    for (position, node) in sorted.into_iter().enumerate() {
        rank[first_node + node] = Some(first_node + position);
    }
    let mut ranked: Vec<(usize, FileOrOptionEntry)> = Vec::with_capacity(entries.len());
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

/// Reads one entry, and reports all its problems.
fn read_entry_and_report_problems(
    entry: &FileOrOptionEntry,
    names: &mut DefinedNames,
    problems: &mut Vec<ProblemWithRange>,
) -> Option<Directive> {
    let mut object = entry.object().clone();
    let begin = names.checkpoint();
    // Missing objects are assumed to be defined once they are reported, for this entry only.
    let mut with_assumed_names = begin;
    let mut reported: Vec<String> = Vec::new();
    let mut placeholders: Vec<String> = Vec::new();
    let mut assumed_names: Vec<String> = Vec::new();
    while reported.len() < MAX_PROBLEMS_PER_TABLE {
        let mut problem = match entry.kind().read_and_register(object.clone(), names) {
            Ok(directive) if reported.is_empty() => return Some(directive),
            Ok(_) => break,
            Err(problem) => problem,
        };
        names.roll_back(with_assumed_names);
        if let Problem::NotDefined { known, .. } = &mut problem {
            known.retain(|name| !assumed_names.contains(name));
        }
        let key = offending_key_of_file_entry(&problem, entry);
        let is_consequence =
            key.is_some_and(|key| reported.iter().any(|reported| is_key_within(key, reported)));
        if !is_consequence {
            push_problem(entry, &problem, key, problems);
        }
        let Some(key) = key else {
            break;
        };
        let changed = match &problem {
            Problem::NotDefined { kind, name, .. } => {
                let is_new = names.assume_defined(kind, name);
                with_assumed_names = names.checkpoint();
                assumed_names.push(name.clone());
                is_new
            }
            Problem::Missing { .. } if placeholders.iter().any(|known| known == key) => false,
            Problem::Missing { .. } => {
                placeholders.push(key.to_owned());
                insert_placeholder_if_absent(&mut object, key)
            }
            _ => remove_key_or_its_list(&mut object, key),
        };
        // Without a change the same problem would be found again.
        if !changed {
            break;
        }
        reported.push(key.to_owned());
    }
    names.roll_back(begin);
    assume_names_defined(entry, names);
    None
}

/// Inserts a value for a missing key that is valid as a name and as a path, so that the search for problems can go on.
fn insert_placeholder_if_absent(object: &mut Object, path: &str) -> bool {
    let Some((group, rest)) = path.split_once('.') else {
        let absent = object.get(path).is_none();
        if absent {
            object.push(path.to_owned(), Value::Text("placeholder".to_owned()));
        }
        return absent;
    };
    if object.get(group).is_none() {
        object.push(group.to_owned(), Value::Object(Object::default()));
    }
    match object.get_mut(group) {
        Some(Value::Object(inside)) => insert_placeholder_if_absent(inside, rest),
        _ => false,
    }
}

/// The key that a problem is about.
fn offending_key_of_file_entry<'p>(
    problem: &'p Problem,
    entry: &FileOrOptionEntry,
) -> Option<&'p str> {
    let FileOrOptionEntry::File(section) = entry else {
        return None;
    };
    let problem_keys = problem.offending_keys();
    let key_in_file = problem_keys.iter().find(|key| section.has_key(key));
    key_in_file.or(problem_keys.first()).copied()
}

/// Whether `key` is `group` or in it.
fn is_key_within(key: &str, group: &str) -> bool {
    key.strip_prefix(group)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Removes a key. For a member of a list the whole list is removed, since the other members would be renumbered. The name in the
/// header is not removed.
fn remove_key_or_its_list(object: &mut Object, path: &str) -> bool {
    let position = object.entries.iter().position(|(key, _)| key == path);
    if let Some(position) = position {
        object.entries.remove(position);
        return true;
    }
    let Some((group, rest)) = path.split_once('.') else {
        return false;
    };
    match object.get_mut(group) {
        Some(Value::Object(inside)) => remove_key_or_its_list(inside, rest),
        Some(Value::List(_)) => remove_key_or_its_list(object, group),
        _ => false,
    }
}

/// Assumes that the names of an invalid entry are defined, so that references to them are not reported.
fn assume_names_defined(entry: &FileOrOptionEntry, names: &mut DefinedNames) {
    let (kind, name_key) = match entry.kind() {
        DirectiveKind::Object => {
            let name = match entry.object().get("qom-type") {
                Some(Value::Text(name) | Value::String(name)) => name.as_str(),
                _ => "",
            };
            let mut types = object::TYPES.iter().map(|(name, _)| *name);
            let Some(r#type) = types.find(|found| *found == name) else {
                return;
            };
            (r#type, "id")
        }
        DirectiveKind::Chardev => ("chardev", "id"),
        DirectiveKind::Blockdev => {
            for name in order::defined_node_names(entry.object()) {
                names.assume_defined("node", name);
            }
            return;
        }
        DirectiveKind::NbdServer => return names.assume_nbd_server(),
        DirectiveKind::Monitor | DirectiveKind::Export => return,
    };
    if let Some(Value::Text(name) | Value::String(name)) = entry.object().get(name_key) {
        names.assume_defined(kind, name);
    }
}

/// Adds a problem to those found: with its location if it is in the file, else with the name of the option.
fn push_problem(
    entry: &FileOrOptionEntry,
    problem: &Problem,
    offending_key: Option<&str>,
    problems: &mut Vec<ProblemWithRange>,
) {
    let message = match problem {
        Problem::NotDefined {
            key,
            kind,
            name,
            known,
        } => not_defined_message(key, kind, name, known),
        other => other.to_string(),
    };
    problems.push(match entry {
        FileOrOptionEntry::File(_) => ProblemWithRange {
            range: entry.range_of_problem(problem, offending_key),
            message,
        },
        FileOrOptionEntry::Option(directive) => ProblemWithRange {
            range: None,
            message: format!("{}: {message}", directive.option),
        },
    });
}

/// The message for a reference to an unknown name. It may be in the file or in an option, in any order.
fn not_defined_message(key: &str, kind: &str, name: &str, known: &[String]) -> String {
    let question = match suggest::closest_if_similar(name, known.iter().map(String::as_str)) {
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

impl From<DocumentError> for ProblemWithRange {
    fn from(error: DocumentError) -> Self {
        Self {
            range: Some(error.range),
            message: error.message,
        }
    }
}
