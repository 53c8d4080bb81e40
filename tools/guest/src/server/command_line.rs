//! Command lines of servers.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use super::{Device, ServerOptions, monitor_socket};
use crate::error::{Error, Result};

/// The nodes of the disk whose requests can be held. On a larger one a kernel reads many blocks to find partitions.
const HELD_DISK: [&str; 2] = [
    "driver=null-co,node-name=zeroes,size=4096,read-zeroes=on",
    "driver=blkdebug,node-name=held,image=zeroes",
];

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
        Device::VirtioBlk => {}
        Device::Controller => {
            command.args(["--device", "virtio-scsi"]);
        }
        Device::HostAdapter => {
            command.args(["--device", "lsi53c895a"]);
        }
    }
    if !matches!(options.device, Device::HostAdapter) {
        command.args(["--num-queues", &options.num_queues.to_string()]);
    }
    command.args(["--serial", options.serial]);
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

/// `blockplane` with a monitor. Creates the files of the disks, because it does not.
pub(super) fn daemon_command(
    program: &Path,
    options: &ServerOptions,
    socket: &Path,
) -> Result<Command> {
    let mut command = Command::new(program);
    let mut blockdev = |node: String| {
        command.arg("--blockdev").arg(node);
    };
    blockdev(disk_node(options)?);
    let inactive = match options.starts_inactive {
        true => ",active=off",
        false => "",
    };
    if options.faults {
        blockdev(format!("driver=blkdebug,node-name=b,image=d{inactive}"));
    }
    if options.has_held_disk {
        HELD_DISK
            .map(str::to_owned)
            .into_iter()
            .for_each(&mut blockdev);
    }
    let held_disk_as = |lun: u32| match options.has_held_disk {
        true => format!(",luns.{lun}.node-name=held,luns.{lun}.target=1"),
        false => String::new(),
    };
    let device = match options.device {
        Device::VirtioBlk => {
            let mut device = match options.faults {
                true => "type=vhost-user-blk,node-name=b,rerror=stop,werror=stop".to_owned(),
                false => "type=vhost-user-blk,node-name=d".to_owned(),
            };
            let packed = if options.packed { ",packed=on" } else { "" };
            let space = match options.waits_for_space {
                true => ",werror=enospc",
                false => "",
            };
            device += &format!(
                ",num-queues={},serial={}{packed}{space}",
                options.num_queues, options.serial
            );
            device
        }
        Device::Controller => {
            for name in ["third", "spare"] {
                let image = options.disk.with_extension(name);
                create(&image, options.size_bytes)?;
                let image = literal(&image);
                blockdev(format!(
                    "driver=file,node-name={name},filename={image},cache.direct=on,discard=unmap"
                ));
            }
            blockdev("driver=null-co,node-name=null,size=64M".to_owned());
            format!(
                "type=vhost-user-scsi,luns.0.node-name=d,luns.0.serial={},luns.1.node-name=null,luns.2.node-name=third,\
                 luns.2.target=2,luns.2.lun=5{},num-queues={},iothread.0=t0,iothread.1=t1",
                options.serial,
                held_disk_as(3),
                options.num_queues,
            )
        }
        Device::HostAdapter => {
            format!(
                "type=vfio-user-lsi53c895a,luns.0.node-name=d,luns.0.serial={}{}",
                options.serial,
                held_disk_as(1),
            )
        }
    };
    if matches!(options.device, Device::Controller) {
        command.args(["--object", "iothread,id=t0", "--object", "iothread,id=t1"]);
    }
    // Before the export: once the export listens, the monitor does too.
    let monitor = literal(&monitor_socket(socket));
    command
        .arg("--chardev")
        .arg(format!("socket,id=m,path={monitor},server=on,wait=off"))
        .args(["--monitor", "chardev=m"]);
    let writable = on_off(!options.read_only);
    let socket = literal(socket);
    let mut export = format!("{device},id=e,addr.type=unix,addr.path={socket},writable={writable}");
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
    let place = match &options.rbd {
        Some(image) => {
            let conf = literal(&image.conf);
            format!("driver=rbd,pool=rbd,image={},conf={conf}", image.name)
        }
        None => {
            create(&options.disk, options.size_bytes)?;
            let image = literal(&options.disk);
            format!("driver=file,filename={image},cache.direct=on,aio=native")
        }
    };
    let inactive = match options.starts_inactive {
        true => ",active=off",
        false => "",
    };
    Ok(format!(
        "{place},node-name=d,discard=unmap,read-only={},locking={}{inactive}",
        on_off(options.read_only),
        options.locking.unwrap_or("auto"),
    ))
}

/// A file of this size, with what is in it if it exists.
fn create(image: &Path, size_bytes: u64) -> Result<()> {
    File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .open(image)
        .and_then(|file| file.set_len(size_bytes))
        .map_err(Error::io(format!("create {}", image.display())))
}

/// In QEMU's option lists a comma ends a value; a doubled one is a literal comma.
fn literal(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

const fn on_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}
