//! Description of the running daemon as its command line: each option in JSON, with all that was changed since.

use options::{
    AioMode, BlockdevOptions, ChardevOptions, Discard, Driver, ExportKind, ExportOptions,
    FileOptions, IothreadOptions, Locking, LunDevice, LunOptions, MonitorOptions, NodeRef, OnError,
    ScsiOptions, SocketAddr, VhostUserBlkOptions, VhostUserScsiOptions,
};
use serde_json::{Value, json};

use super::state::text;
use crate::objects::{Objects, OpenNode};

/// All options, in an order in which they can be carried out.
pub(super) fn options(
    objects: &Objects,
    chardevs: &[&ChardevOptions],
    monitors: &[MonitorOptions],
) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut say = |option: &str, json: Value| words.extend([option.to_owned(), json.to_string()]);
    for made in &objects.iothreads {
        say("--object", iothread(&made.options));
    }
    for open in objects.nodes.iter().filter(|open| open.parent.is_none()) {
        say("--blockdev", node(&open.options, &objects.nodes)?);
    }
    for shown in &objects.exports {
        say("--export", export(&shown.options)?);
    }
    for options in chardevs {
        say("--chardev", chardev(options)?);
    }
    for options in monitors {
        say("--monitor", describe_monitor(options));
    }
    Ok(words)
}

fn iothread(options: &IothreadOptions) -> Value {
    let IothreadOptions {
        id,
        poll_max_ns,
        poll_grow,
        poll_shrink,
        poll_cpu_max,
        aio_max_batch,
        aio_max_events,
        thread_pool_min,
        thread_pool_max,
        cpu_affinity,
    } = options;
    let mut json = json!({
        "qom-type": "iothread",
        "id": id,
        "poll-max-ns": poll_max_ns,
        "poll-grow": poll_grow,
        "poll-shrink": poll_shrink,
        "poll-cpu-max": poll_cpu_max,
        "aio-max-batch": aio_max_batch,
        "aio-max-events": aio_max_events,
        "thread-pool-min": thread_pool_min,
        "thread-pool-max": thread_pool_max,
    });
    if !cpu_affinity.is_empty() {
        let cpus = cpu_affinity.iter().map(u16::to_string);
        json["cpu-affinity"] = cpus.collect();
    }
    json
}

/// A node, with those that were written into it as they are now.
fn node(options: &BlockdevOptions, nodes: &[OpenNode]) -> Result<Value, String> {
    let mut json = json!({
        "driver": options.driver.name(),
        "node-name": options.node_name,
        "read-only": options.read_only,
        "auto-read-only": options.auto_read_only,
        "discard": match options.discard {
            Discard::Ignore => "ignore",
            Discard::Unmap => "unmap",
        },
        "cache": {"no-flush": options.cache_no_flush},
        "active": options.active,
    });
    if let Some(direct) = options.cache_direct {
        json["cache"]["direct"] = direct.into();
    }
    match &options.driver {
        Driver::File(file) | Driver::HostDevice(file) => describe_file(file, &mut json)?,
        Driver::NullCo(null) => {
            json["size"] = null.size.into();
            json["read-zeroes"] = null.read_zeroes.into();
            json["latency-ns"] = null.latency_ns.into();
        }
        Driver::Raw(raw) => {
            json["file"] = match &raw.file {
                NodeRef::Name(name) => name.clone().into(),
                NodeRef::Inline(inside) => {
                    let mut now = nodes.iter().map(|open| &open.options);
                    let now = now.find(|now| now.node_name == inside.node_name);
                    node(now.unwrap_or(inside), nodes)?
                }
            };
            json["offset"] = raw.offset.into();
            if let Some(size) = raw.size {
                json["size"] = size.into();
            }
        }
        Driver::Blkdebug(_) => {
            return Err(format!(
                "node '{}' is a blkdebug filter, and what it has done so far cannot be handed over: restart instead",
                options.node_name
            ));
        }
    }
    Ok(json)
}

fn describe_file(file: &FileOptions, json: &mut Value) -> Result<(), String> {
    json["filename"] = text(&file.filename)?.into();
    if let Some(aio) = file.aio {
        json["aio"] = match aio {
            AioMode::Threads => "threads",
            AioMode::Native => "native",
            AioMode::IoUring => "io_uring",
        }
        .into();
    }
    json["locking"] = match file.locking {
        Locking::Auto => "auto",
        Locking::On => "on",
        Locking::Off => "off",
    }
    .into();
    json["aio-max-batch"] = file.aio_max_batch.into();
    Ok(())
}

fn export(options: &ExportOptions) -> Result<Value, String> {
    let mut json = match &options.kind {
        ExportKind::VhostUserBlk(disk) => {
            let mut json = blk(disk);
            json["node-name"] = options.node_name.clone().into();
            json
        }
        ExportKind::VhostUserScsi(controller) => {
            let VhostUserScsiOptions {
                scsi,
                num_queues,
                queue_size,
                packed,
            } = controller;
            let mut json = luns(scsi)?;
            json["num-queues"] = (*num_queues).into();
            json["queue-size"] = (*queue_size).into();
            json["packed"] = (*packed).into();
            json
        }
        ExportKind::VfioUserLsi53c895a(scsi) => luns(scsi)?,
    };
    json["type"] = options.kind.name().into();
    json["addr"] = match options.kind.addr() {
        SocketAddr::Unix { path } => json!({"type": "unix", "path": text(path)?}),
        SocketAddr::Fd { fd } => json!({"type": "fd", "str": fd.to_string()}),
        SocketAddr::FdName { name } => json!({"type": "fd", "str": name}),
    };
    json["id"] = options.id.clone().into();
    json["writable"] = options.writable.into();
    json["writethrough"] = options.writethrough.into();
    json["fixed-iothread"] = options.fixed_iothread.into();
    describe_iothreads(&options.iothreads, &mut json);
    Ok(json)
}

/// Queue *i* runs on number *i* modulo their count. A list that names one twice comes from a mapping of each queue.
fn describe_iothreads(iothreads: &[String], json: &mut Value) {
    let mut distinct: Vec<&String> = Vec::new();
    for id in iothreads {
        if !distinct.contains(&id) {
            distinct.push(id);
        }
    }
    if distinct.len() == iothreads.len() {
        if !iothreads.is_empty() {
            json["iothread"] = json!(iothreads);
        }
        return;
    }
    let entries = distinct.iter().map(|id| {
        let queues = iothreads.iter().enumerate();
        let queues = queues.filter(|(_, found)| found == id);
        let queues: Vec<usize> = queues.map(|(queue, _)| queue).collect();
        json!({"iothread": id, "vqs": queues})
    });
    json["iothread-vq-mapping"] = entries.collect();
}

/// The disks of a controller, which may have none.
fn luns(scsi: &ScsiOptions) -> Result<Value, String> {
    let luns: Vec<Value> = scsi.luns.iter().map(lun).collect::<Result<_, _>>()?;
    Ok(match luns.is_empty() {
        true => json!({}),
        false => json!({"luns": luns}),
    })
}

fn lun(options: &LunOptions) -> Result<Value, String> {
    let LunOptions {
        node_name,
        target,
        lun,
        serial,
        device,
        logical_block_size,
        writable,
    } = options;
    let LunDevice {
        vendor,
        product,
        version,
        wwn,
        device_id,
        rotation_rate,
        pr_file,
    } = device;
    let mut json = json!({
        "node-name": node_name,
        "target": target,
        "lun": lun,
        "logical-block-size": logical_block_size,
        "writable": writable,
        "rotation-rate": rotation_rate,
    });
    for (key, said) in [
        ("serial", serial),
        ("vendor", vendor),
        ("product", product),
        ("ver", version),
        ("device-id", device_id),
    ] {
        if let Some(said) = said {
            json[key] = said.clone().into();
        }
    }
    if let Some(wwn) = wwn {
        json["wwn"] = (*wwn).into();
    }
    if let Some(path) = pr_file {
        json["pr-file"] = text(path)?.into();
    }
    Ok(json)
}

fn blk(disk: &VhostUserBlkOptions) -> Value {
    let VhostUserBlkOptions {
        addr: _,
        num_queues,
        queue_size,
        logical_block_size,
        serial,
        request_merging,
        max_merge_requests,
        max_merge_bytes,
        packed,
        rerror,
        werror,
        request_timeout,
        fixed_buffers,
    } = disk;
    let on_error = |what: &OnError| match what {
        OnError::Report => "report",
        OnError::Ignore => "ignore",
        OnError::NoSpace => "enospc",
        OnError::Stop => "stop",
    };
    let mut json = json!({
        "num-queues": num_queues,
        "queue-size": queue_size,
        "logical-block-size": logical_block_size,
        "request-merging": request_merging,
        "max-merge-requests": max_merge_requests,
        "max-merge-bytes": max_merge_bytes,
        "packed": packed,
        "rerror": on_error(rerror),
        "werror": on_error(werror),
        "request-timeout": request_timeout,
        "fixed-buffers": fixed_buffers,
    });
    if let Some(serial) = serial {
        json["serial"] = serial.clone().into();
    }
    json
}

fn chardev(options: &ChardevOptions) -> Result<Value, String> {
    let ChardevOptions {
        id,
        addr,
        server,
        users,
        wait: _,
    } = options;
    let mut json = json!({"backend": "socket", "id": id, "server": server});
    match addr {
        SocketAddr::Unix { path } => json["path"] = text(path)?.into(),
        SocketAddr::Fd { fd } => json["fd"] = fd.to_string().into(),
        SocketAddr::FdName { name } => json["fd"] = name.clone().into(),
    }
    if *server {
        // Whoever was waited for has come.
        json["wait"] = false.into();
    }
    if let Some(users) = users {
        let users: Vec<String> = users.iter().map(u32::to_string).collect();
        json["users"] = users.join(":").into();
    }
    Ok(json)
}

fn describe_monitor(options: &MonitorOptions) -> Value {
    let MonitorOptions { chardev, pretty } = options;
    json!({"chardev": chardev, "pretty": pretty})
}

#[cfg(test)]
#[path = "describe_tests.rs"]
#[allow(clippy::unwrap_used)] // a test that cannot go on fails where it is
mod tests;
