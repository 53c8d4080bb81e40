//! Checks of the paths of `serve`: lengths of sockets, and no path for two purposes.

use std::{os::unix::ffi::OsStrExt, path::Path};

use crate::{
    MetricsAddr, ServeDisk, ServeSettings, SocketAddr, paths::without_redundant_components, socket,
};

/// Checks that paths of sockets are not too long, and that no two options name the same path.
pub(super) fn check_socket_paths_and_duplicates(serve: &ServeSettings) -> Result<(), String> {
    let socket = serve.socket_path_or_default();
    check_socket_path_format("--socket", &socket)?;
    if let Some(monitor) = &serve.monitor {
        check_socket_path_format("--monitor", monitor)?;
    }
    let mut named: Vec<(&str, &Path)> = Vec::new();
    for disk in &serve.disks {
        if let ServeDisk::Path(disk) = disk {
            named.push(("DISK", disk));
        }
    }
    named.push(match serve.socket {
        Some(_) => ("--socket", &socket),
        None => ("--socket (its default)", &socket),
    });
    named.extend(serve.monitor.as_deref().map(|path| ("--monitor", path)));
    if let Some(MetricsAddr::Socket(SocketAddr::Unix { path })) = &serve.metrics {
        named.push(("--metrics", path));
    }
    named.extend(serve.pidfile.as_deref().map(|path| ("--pidfile", path)));
    for (index, (option, path)) in named.iter().enumerate() {
        let mut before = named[..index].iter();
        if let Some((other, _)) = before.find(|(_, before)| {
            without_redundant_components(before) == without_redundant_components(path)
        }) {
            let path = path.display();
            return Err(format!(
                "{other} and {option} are the same path, '{path}': give each its own"
            ));
        }
    }
    Ok(())
}

/// Checks that the kernel accepts the path of a socket.
fn check_socket_path_format(option: &str, path: &Path) -> Result<(), String> {
    if socket::is_socket_path(path.as_os_str().as_bytes()) {
        return Ok(());
    }
    let path = path.display();
    Err(format!(
        "{option} '{path}': expected {}",
        socket::SOCKET_EXPECTED
    ))
}
