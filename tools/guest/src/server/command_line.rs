//! Command lines of servers.

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::{ServerOptions, monitor_socket};
use crate::device::Device;
use crate::error::{Error, Result};

/// Size of the slow disk: on a larger one a kernel reads many blocks to find partitions.
const SLOW_DISK_BYTES: u64 = 4096;

/// `blockplane serve`.
pub(super) fn serve_command(program: &Path, options: &ServerOptions, socket: &Path) -> Command {
    let mut command = Command::new(program);
    command.arg("serve");
    match &options.rbd {
        Some(image) => {
            let conf = image.conf.display();
            command.arg(format!("rbd:rbd/{}:conf={conf}", image.name))
        }
        None => command.arg(&options.disk),
    };
    command.arg("--socket").arg(socket);
    match options.device {
        Device::VirtioBlk => {
            command.args(["--num-queues", &options.num_queues.to_string()]);
        }
        Device::Controller { .. } => {
            command.args(["--device", "virtio-scsi"]);
            command.args(["--num-queues", &options.num_queues.to_string()]);
        }
        Device::HostAdapter { .. } => {
            command.args(["--device", "lsi53c895a"]);
        }
    }
    command.args(["--serial", &options.serial]);
    if options.packed {
        command.arg("--packed");
    }
    if options.read_only {
        // A read-only image must exist, so it needs no size.
        command.arg("--read-only");
    } else if options.rbd.is_none() {
        command.args(["--size", &options.size_bytes.to_string()]);
    }
    command
}

/// The command line of `blockplane` or qemu-storage-daemon, in options that both have; the latter has no serial number.
/// Creates the file of the disk, because neither does.
pub(super) fn daemon_command(
    program: &Path,
    options: &ServerOptions,
    socket: &Path,
    serial: Option<&str>,
) -> Result<Command> {
    let mut command = Command::new(program);
    command.arg("--blockdev").arg(disk_node(options)?);
    if options.faults {
        let mut filter = "driver=blkdebug,node-name=b,image=d".to_owned();
        if options.starts_inactive {
            filter.push_str(",active=off");
        }
        command.arg("--blockdev").arg(filter);
    }
    if options.monitor {
        // Before the export: once the export listens, the monitor does too.
        let path = literal(&monitor_socket(socket).display().to_string());
        command
            .arg("--chardev")
            .arg(format!("socket,id=m,path={path},server=on,wait=off"))
            .args(["--monitor", "chardev=m"]);
    }
    let mut export = format!(
        "id=e,addr.type=unix,addr.path={},writable={}",
        literal(&socket.display().to_string()),
        on_off(!options.read_only),
    );
    match options.device {
        Device::VirtioBlk => {
            let disk = match options.faults {
                true => "type=vhost-user-blk,node-name=b,rerror=stop,werror=stop,",
                false => "type=vhost-user-blk,node-name=d,",
            };
            export.insert_str(0, disk);
            export.push_str(&format!(",num-queues={}", options.num_queues));
            if let Some(serial) = serial {
                export.push_str(&format!(",serial={serial}"));
            }
            if options.packed {
                export.push_str(",packed=on");
            }
            if options.waits_for_space {
                export.push_str(",werror=enospc");
            }
        }
        Device::Controller { slow } => {
            export.insert_str(0, "type=vhost-user-scsi,luns.0.node-name=d,");
            export.push_str(&format!(
                ",num-queues={},iothread.0=t0,iothread.1=t1,luns.0.serial={},luns.1.node-name=null,\
                 luns.2.node-name=third,luns.2.target=2,luns.2.lun=5",
                options.num_queues, options.serial
            ));
            further_disks(&mut command, options)?;
            if let Some(latency) = slow {
                export.push_str(",luns.3.node-name=slow,luns.3.target=1");
                slow_disk(&mut command, latency);
            }
        }
        Device::HostAdapter { slow } => {
            export.insert_str(0, "type=vfio-user-lsi53c895a,luns.0.node-name=d,");
            export.push_str(&format!(",luns.0.serial={}", options.serial));
            if let Some(latency) = slow {
                export.push_str(",luns.1.node-name=slow,luns.1.target=1");
                slow_disk(&mut command, latency);
            }
        }
    }
    if options.starts_inactive {
        export.push_str(",allow-inactive=on");
    }
    command.arg("--export").arg(export);
    if let Some(port) = options.nbd_port {
        let server = format!("addr.type=inet,addr.host=127.0.0.1,addr.port={port}");
        command.arg("--nbd-server").arg(server);
        command.args(["--export", "type=nbd,id=n,node-name=d,writable=on"]);
    }
    Ok(command)
}

/// The options of the disk's node; creates its file.
fn disk_node(options: &ServerOptions) -> Result<String> {
    if options.null {
        let size = options.size_bytes;
        return Ok(format!("driver=null-co,node-name=d,size={size}"));
    }
    let place = match &options.rbd {
        Some(image) => format!(
            "driver=rbd,pool=rbd,image={},conf={}",
            image.name,
            literal(&image.conf.display().to_string())
        ),
        None => {
            let image = options.disk.display().to_string();
            File::options()
                .write(true)
                .create(true)
                .truncate(false)
                .open(&options.disk)
                .and_then(|file| file.set_len(options.size_bytes))
                .map_err(Error::io(format!("create {image}")))?;
            format!(
                "driver=file,filename={},cache.direct=on,aio=native",
                literal(&image)
            )
        }
    };
    let inactive = if options.starts_inactive {
        ",active=off"
    } else {
        ""
    };
    Ok(format!(
        "{place},node-name=d,discard=unmap,read-only={},locking={}{inactive}",
        on_off(options.read_only),
        options.locking.unwrap_or("auto"),
    ))
}

/// In QEMU's option lists a comma ends a value; a doubled one is a literal comma.
fn literal(text: &str) -> String {
    text.replace(',', ",,")
}

const fn on_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

/// Adds a node `slow` each of whose requests takes `latency`.
fn slow_disk(command: &mut Command, latency: Duration) {
    command.arg("--blockdev").arg(format!(
        "driver=null-co,node-name=slow,size={SLOW_DISK_BYTES},read-zeroes=on,latency-ns={}",
        latency.as_nanos()
    ));
}

/// The further disks and iothreads of a controller.
fn further_disks(command: &mut Command, options: &ServerOptions) -> Result<()> {
    for name in ["third", "spare"] {
        let image = options.disk.with_extension(name);
        File::create(&image)
            .and_then(|file| file.set_len(options.size_bytes))
            .map_err(Error::io(format!("create {}", image.display())))?;
        command.arg("--blockdev").arg(format!(
            "driver=file,node-name={name},filename={},cache.direct=on,discard=unmap",
            image.display().to_string().replace(',', ",,")
        ));
    }
    command
        .args(["--blockdev", "driver=null-co,node-name=null,size=64M"])
        .args(["--object", "iothread,id=t0", "--object", "iothread,id=t1"]);
    Ok(())
}
