//! Summary of what a configuration creates (objects, nodes, exports, monitors), as tables for people and as
//! JSON for scripts.

use std::collections::HashSet;
use std::fmt;

use options::{
    AuthzListOptions, AuthzPolicy, BlockdevOptions, Directive, Driver, ExportKind, ExportOptions,
    IothreadOptions, MetricsAddr, NbdServerAddr, NbdServerOptions, NodeRef, ObjectOptions,
    SecretFormat, SecretOptions, SocketAddr, ThrottleGroupOptions, TlsCredsOptions, TlsEndpoint,
};
use serde_json::{Map, Value, json};

/// A table of the summary.
struct SummaryTable {
    /// The table's key in JSON.
    name: &'static str,
    columns: &'static [&'static str],
    rows: Vec<Vec<Value>>,
}

/// All tables.
pub(crate) struct ConfigSummary(Vec<SummaryTable>);

impl ConfigSummary {
    /// The summary of directives; `metrics` is the address of the metrics endpoint.
    pub fn of_directives(directives: &[Directive], metrics: Option<&MetricsAddr>) -> Self {
        let mut iothreads = SummaryTable::new(
            "iothreads",
            &["iothread", "poll-max-ns", "aio-max-batch", "cpu-affinity"],
        );
        let mut secrets = SummaryTable::new("secrets", &["secret", "format", "storage"]);
        let mut groups = SummaryTable::new("throttle-groups", &["throttle-group", "limits"]);
        let mut tls_creds = SummaryTable::new(
            "tls-creds",
            &["tls-creds-x509", "endpoint", "verify-peer", "dir"],
        );
        let mut authz_lists = SummaryTable::new("authz-lists", &["authz-list", "policy", "rules"]);
        let mut nodes = SummaryTable::new(
            "nodes",
            &["node-name", "driver", "access", "page-cache", "storage"],
        );
        let mut exports = SummaryTable::new(
            "exports",
            &[
                "export",
                "node-name",
                "access",
                "num-queues",
                "iothreads",
                "socket",
            ],
        );
        let mut nbd_server = SummaryTable::new("nbd-server", &["nbd-server", "max-connections"]);
        let mut monitors = SummaryTable::new("monitors", &["monitor", "wait", "socket"]);
        let mut unused_chardevs =
            SummaryTable::new("unused-chardevs", &["chardev", "wait", "socket"]);
        let monitored_chardevs: HashSet<&str> = directives
            .iter()
            .filter_map(|directive| match directive {
                Directive::Monitor(options) => Some(options.chardev.as_str()),
                _ => None,
            })
            .collect();
        for directive in directives {
            match directive {
                Directive::Object(ObjectOptions::Iothread(options)) => {
                    iothreads.rows.push(iothread_row(options));
                }
                Directive::Object(ObjectOptions::Secret(options)) => {
                    secrets.rows.push(secret_row(options));
                }
                Directive::Object(ObjectOptions::ThrottleGroup(options)) => {
                    groups.rows.push(throttle_group_row(options));
                }
                Directive::Object(ObjectOptions::TlsCreds(options)) => {
                    tls_creds.rows.push(tls_creds_row(options));
                }
                Directive::Object(ObjectOptions::AuthzList(options)) => {
                    authz_lists.rows.push(authz_list_row(options));
                }
                Directive::Blockdev(options) => append_node_rows(options, &mut nodes.rows),
                Directive::Export(options) => exports.rows.push(export_row(options)),
                Directive::Chardev(options) => {
                    let table = match monitored_chardevs.contains(options.settings.id.as_str()) {
                        true => &mut monitors,
                        false => &mut unused_chardevs,
                    };
                    table.rows.push(vec![
                        json!(options.settings.id),
                        json!(options.waits_for_client()),
                        json!(socket_text(&options.addr)),
                    ]);
                }
                Directive::NbdServer(options) => nbd_server.rows.push(nbd_server_row(options)),
                // It is in the row of its chardev.
                Directive::Monitor(_) => {}
            }
        }
        let mut metrics_endpoint = SummaryTable::new("metrics", &["metrics"]);
        metrics_endpoint
            .rows
            .extend(metrics.map(|addr| vec![json!(addr.to_string())]));
        ConfigSummary(vec![
            iothreads,
            secrets,
            groups,
            tls_creds,
            authz_lists,
            nodes,
            exports,
            nbd_server,
            monitors,
            unused_chardevs,
            metrics_endpoint,
        ])
    }

    /// The tables by name, each as a list of objects with the columns as keys.
    pub fn to_json(&self) -> Map<String, Value> {
        let row_to_json = |table: &SummaryTable, cells: &[Value]| {
            let columns = table.columns.iter().map(|column| (*column).to_owned());
            Value::Object(columns.zip(cells.iter().cloned()).collect())
        };
        let rows_to_json = |table: &SummaryTable| {
            table
                .rows
                .iter()
                .map(|cells| row_to_json(table, cells))
                .collect()
        };
        let tables = self.0.iter();
        tables
            .map(|table| (table.name.to_owned(), rows_to_json(table)))
            .collect()
    }
}

impl SummaryTable {
    /// A table without rows.
    fn new(name: &'static str, columns: &'static [&'static str]) -> Self {
        SummaryTable {
            name,
            columns,
            rows: Vec::new(),
        }
    }
}

impl fmt::Display for ConfigSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for table in self.0.iter().filter(|table| !table.rows.is_empty()) {
            let head = table.columns.iter().map(|column| (*column).to_owned());
            let mut lines: Vec<Vec<String>> = vec![head.collect()];
            lines.extend(
                table
                    .rows
                    .iter()
                    .map(|row| row.iter().map(cell_text).collect()),
            );
            let width = |column: usize| {
                let cells = lines
                    .iter()
                    .map(|line: &Vec<String>| line[column].chars().count());
                cells.max().unwrap_or(0)
            };
            let widths: Vec<usize> = (0..table.columns.len()).map(width).collect();
            writeln!(f)?;
            for line in &lines {
                let cells = line.iter().zip(&widths);
                let line: String = cells
                    .map(|(cell, width)| format!("{cell:<width$}  "))
                    .collect();
                writeln!(f, "  {}", line.trim_end())?;
            }
        }
        Ok(())
    }
}

/// A cell as text for people.
fn cell_text(cell: &Value) -> String {
    match cell {
        Value::String(text) => text.clone(),
        Value::Bool(value) => if *value { "yes" } else { "no" }.to_owned(),
        Value::Null => "-".to_owned(),
        Value::Array(items) if items.is_empty() => "-".to_owned(),
        Value::Array(items) => items.iter().map(cell_text).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}

/// The row of an iothread.
fn iothread_row(options: &IothreadOptions) -> Vec<Value> {
    vec![
        json!(options.id),
        json!(options.poll_max_ns),
        match options.aio_max_batch {
            0 => json!("auto"),
            limit => json!(limit),
        },
        json!(options.cpu_affinity),
    ]
}

/// The row of certificates.
fn tls_creds_row(options: &TlsCredsOptions) -> Vec<Value> {
    let endpoint = match options.endpoint {
        TlsEndpoint::Client => "client",
        TlsEndpoint::Server => "server",
    };
    vec![
        json!(options.id),
        json!(endpoint),
        json!(options.verify_peer),
        json!(options.dir.display().to_string()),
    ]
}

/// The row of a list of clients.
fn authz_list_row(options: &AuthzListOptions) -> Vec<Value> {
    let policy = match options.policy {
        AuthzPolicy::Allow => "allow",
        AuthzPolicy::Deny => "deny",
    };
    vec![json!(options.id), json!(policy), json!(options.rules.len())]
}

/// The row of a secret, without its content.
fn secret_row(options: &SecretOptions) -> Vec<Value> {
    let format = match options.format {
        SecretFormat::Raw => "raw",
        SecretFormat::Base64 => "base64",
    };
    let storage = match &options.file {
        Some(file) => json!(file.display().to_string()),
        None => json!("in the options"),
    };
    vec![json!(options.id), json!(format), storage]
}

/// The row of a throttle group, with the limits that it has.
fn throttle_group_row(options: &ThrottleGroupOptions) -> Vec<Value> {
    let limits = options.limits().into_iter().filter(|limit| limit.rate > 0);
    let limits = limits.map(|limit| format!("{}={}", limit.name, limit.rate));
    vec![json!(options.id), limits.collect()]
}

/// Appends a row for the node, after the rows of the nodes that are defined inside of it.
fn append_node_rows(options: &BlockdevOptions, rows: &mut Vec<Vec<Value>>) {
    let child = options.driver.child_with_key().map(|(_, child)| child);
    if let Some(NodeRef::Inline(inside)) = child {
        append_node_rows(inside, rows);
    }
    let file = options.driver.file_options();
    let storage = match (&options.driver, file, child) {
        (_, Some(file), _) => json!(file.filename.display().to_string()),
        (_, _, Some(below)) => json!(format!("node {}", below.node_name())),
        (Driver::Rbd(rbd), ..) => json!(format!("rbd:{}", rbd.image_spec())),
        (Driver::Nbd(nbd), ..) => json!(nbd.uri()),
        (Driver::NullCo(null), ..) => json!(format!("none, {} bytes", null.size)),
        _ => Value::Null,
    };
    let page_cache = match (file, options.settings.cache_direct) {
        (Some(_), Some(direct)) => json!(!direct),
        (Some(_), None) => json!("if needed"),
        (None, _) => Value::Null,
    };
    rows.push(vec![
        json!(options.node_name),
        json!(options.driver.name()),
        access_cell(!options.settings.read_only),
        page_cache,
        storage,
    ]);
}

/// The row of an export.
fn export_row(options: &ExportOptions) -> Vec<Value> {
    let queues = match &options.kind {
        ExportKind::VhostUserBlk { disk, .. } => json!(disk.num_queues),
        ExportKind::VhostUserScsi { queues, .. } => json!(queues.num_queues),
        ExportKind::VfioUserLsi53c895a { .. } | ExportKind::Nbd(_) => Value::Null,
    };
    let node = match options.node_names().as_slice() {
        [one] => json!(one),
        several => json!(several),
    };
    vec![
        json!(options.id),
        node,
        access_cell(options.settings.writable),
        queues,
        json!(options.iothreads),
        match options.kind.socket() {
            Some(addr) => json!(socket_text(addr)),
            None => json!("of the NBD server"),
        },
    ]
}

/// The row of the NBD server.
fn nbd_server_row(options: &NbdServerOptions) -> Vec<Value> {
    let addr = match &options.addr {
        NbdServerAddr::Socket(addr) => socket_text(addr),
        NbdServerAddr::Inet { host, port, .. } => format!("{host}, port {port}"),
    };
    vec![json!(addr), json!(options.settings.max_connections)]
}

/// The cell that says whether something is writable.
fn access_cell(writable: bool) -> Value {
    json!(if writable { "read-write" } else { "read-only" })
}

/// The socket of an address: a path, or what identifies a descriptor.
fn socket_text(addr: &SocketAddr) -> String {
    match addr {
        SocketAddr::Unix { path } => path.display().to_string(),
        SocketAddr::Fd { fd } => format!("descriptor {fd}"),
        SocketAddr::FdName { name } => format!("descriptor '{name}'"),
    }
}
