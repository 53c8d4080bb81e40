//! Metrics as a scraper gets them, read by the parser of Prometheus' client library.

use std::fs;
use std::io::{Read, Seek, Write};
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::process::Process;
use crate::sockets::{connect, read_to_end};

/// The format of OpenMetrics.
pub const OPENMETRICS: &str = "application/openmetrics-text";
/// The plain format of Prometheus.
pub const PLAIN: &str = "text/plain";

/// The one that Debian's packages belong to.
const PYTHON: &str = "/usr/bin/python3";

/// Prometheus' own client library, from the Debian package python3-prometheus-client.
const PARSER: &str = "
import json, sys
import prometheus_client.openmetrics.parser as openmetrics, prometheus_client.parser as plain
parser = openmetrics if sys.argv[1] == 'application/openmetrics-text' else plain
families = parser.text_string_to_metric_families(sys.stdin.read())
print(json.dumps([[s.name, s.labels, s.value] for f in families for s in f.samples]))
";

/// Whether the parser is installed; reports that the calling test does not run if it is not.
pub fn has_parser() -> bool {
    let mut python = Command::new(PYTHON);
    python.args(["-c", "import prometheus_client.openmetrics.parser"]);
    let is_there = python.output().is_ok_and(|output| output.status.success());
    if !is_there {
        crate::report::not_run("no python3-prometheus-client");
    }
    is_there
}

/// Names and labels of the samples in the table of docs/metrics.md, sorted.
pub fn documented_samples() -> Vec<(String, Vec<String>)> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../");
    let text = fs::read_to_string(format!("{root}docs/metrics.md")).unwrap();
    let rows = text
        .lines()
        .filter_map(|line| line.strip_prefix("| `blockplane_"));
    let in_quotes = |cell: &str| -> Vec<String> {
        let words = cell.split('`').skip(1).step_by(2);
        words.map(str::to_owned).collect()
    };
    let mut documented = Vec::new();
    for row in rows {
        let cells: Vec<&str> = row.split('|').collect();
        let name = format!("blockplane_{}", cells[0].trim().trim_end_matches('`'));
        let mut labels = in_quotes(cells[2]);
        labels.sort();
        match cells[1].trim() {
            "histogram" => documented.extend(
                ["_bucket", "_count", "_sum"]
                    .map(|suffix| (format!("{name}{suffix}"), labels.clone())),
            ),
            _ => documented.push((name, labels)),
        }
    }
    documented.sort();
    documented
}

/// An answer of HTTP.
#[derive(Debug)]
pub struct Answer {
    /// The status line and the headers.
    pub head: String,
    /// Its body.
    pub body: String,
}

/// What is at `path`, for who accepts that.
pub fn get(socket: &Path, path: &str, accept: &str) -> Answer {
    let stream = connect(socket);
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: h\r\nAccept: {accept}\r\nConnection: close\r\n\r\n");
    ask(stream, &request)
}

/// The answer to a request that ends the connection.
pub fn ask(mut stream: impl Read + Write, request: &str) -> Answer {
    stream.write_all(request.as_bytes()).unwrap();
    let text = read_to_end("the end of an answer", stream);
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let length = format!("\r\nContent-Length: {}\r\n", body.len());
    assert!(head.contains(&length), "{head}");
    Answer {
        head: head.to_owned(),
        body: body.to_owned(),
    }
}

/// All samples of a moment.
#[derive(Debug)]
pub struct Figures(Vec<(String, Value, f64)>);

impl Figures {
    /// Asks for them in one of the formats, and parses them with the client library.
    pub fn scrape(socket: &Path, format: &str) -> Self {
        let Answer { head, body } = get(socket, "/metrics", format);
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        let content_type = format!("Content-Type: {format}; version=");
        assert!(head.contains(&content_type), "{head}");
        let mut input = tempfile::tempfile().unwrap();
        input.write_all(body.as_bytes()).unwrap();
        input.rewind().unwrap();
        let mut parser = Command::new(PYTHON);
        parser.args(["-c", PARSER, format]).stdin(input);
        let parsed = Process::spawn(parser).ended();
        let refusal = &parsed.stderr;
        assert_eq!(
            parsed.code,
            Some(0),
            "the parser refuses: {body}: {refusal}"
        );
        Figures(serde_json::from_str(&parsed.stdout).unwrap())
    }

    /// Names of samples with the names of their labels, each once, sorted.
    pub fn names(&self) -> Vec<(String, Vec<String>)> {
        let mut names: Vec<_> = self
            .0
            .iter()
            .map(|(name, labels, _)| {
                let labels = labels.as_object().unwrap().keys();
                let mut labels: Vec<String> =
                    labels.filter(|label| *label != "le").cloned().collect();
                labels.sort();
                (name.clone(), labels)
            })
            .collect();
        names.sort();
        names.dedup();
        names
    }

    /// The samples of a name that have these labels among theirs.
    pub fn all(&self, name: &str, labels: &Value) -> Vec<f64> {
        let wanted = labels.as_object().unwrap();
        let fits = |found: &Value| wanted.iter().all(|(key, value)| found[key] == *value);
        let samples = self.0.iter();
        samples
            .filter(|(found, labels, _)| found == name && fits(labels))
            .map(|(_, _, value)| *value)
            .collect()
    }

    /// The only such sample.
    #[track_caller]
    pub fn one(&self, name: &str, labels: Value) -> f64 {
        let found = self.all(name, &labels);
        assert_eq!(found.len(), 1, "{name} {labels}: {found:?}");
        found[0]
    }

    /// The only sample with a name and labels that are written `queue_errors_total{queue=0,kind=invalid}`, without the program's
    /// prefix.
    #[track_caller]
    pub fn sample(&self, text: &str) -> f64 {
        let (name, labels) = text.split_once('{').expect(text);
        let labels = labels.trim_end_matches('}').split(',');
        let labels = labels.map(|label| label.split_once('=').expect(text));
        self.one(&format!("blockplane_{name}"), labels.collect())
    }

    /// What stands still while nothing happens, sorted: not CPU time, and no ticks that become seconds by a scale
    /// that is measured for a second yet.
    pub fn still(&self) -> Vec<String> {
        let moves = ["cpu_seconds", "_sum", "_bucket"];
        let samples = self.0.iter();
        let mut samples: Vec<String> = samples
            .filter(|(name, ..)| !moves.iter().any(|part| name.contains(part)))
            .map(|sample| json!(sample).to_string())
            .collect();
        samples.sort();
        samples
    }
}
