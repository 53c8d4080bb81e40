//! Clients that watch an image: each that has it open for writing.

use std::ptr;

use engine::Errno;

use crate::errno::check;
use crate::ffi::{ImagePointer, text_of};
use crate::library::{Functions, Watcher};

/// Number of watchers for which there is room at first.
const FIRST_ROOM: usize = 16;

/// A client that watches an image.
pub(crate) struct WatchingClient {
    /// The number that the cluster gave it.
    pub(crate) id: u64,
    /// As Ceph writes it.
    pub(crate) address: String,
}

/// The addresses of all watchers, as Ceph writes them. Waits for the cluster; the image is open.
pub(crate) fn addresses(
    functions: &'static Functions,
    image: ImagePointer,
) -> Result<Vec<String>, Errno> {
    let clients = list(functions, image)?.into_iter();
    Ok(clients.map(|client| client.address).collect())
}

/// All watchers. Waits for the cluster; the image is open.
pub(crate) fn list(
    functions: &'static Functions,
    image: ImagePointer,
) -> Result<Vec<WatchingClient>, Errno> {
    let mut room = FIRST_ROOM;
    loop {
        let none = Watcher {
            address: ptr::null_mut(),
            id: 0,
            cookie: 0,
        };
        let mut watchers = vec![none; room];
        let mut count = room;
        // SAFETY: the image is open, and there is room for as many as named.
        let listed = check(unsafe {
            (functions.rbd_watchers_list)(image.0, watchers.as_mut_ptr(), &raw mut count)
        });
        match listed {
            // `count` is the room that is needed.
            Err(Errno::RANGE) if count > room => room = count,
            Err(errno) => return Err(errno),
            Ok(()) => {
                watchers.truncate(count);
                let clients = watchers.iter().map(|watcher| WatchingClient {
                    id: watcher.id.cast_unsigned(),
                    // SAFETY: librbd has written the addresses, and they are freed below.
                    address: unsafe { text_of(watcher.address) },
                });
                let clients = clients.collect();
                // SAFETY: all were written by librbd.
                unsafe {
                    (functions.rbd_watchers_list_cleanup)(watchers.as_mut_ptr(), watchers.len());
                }
                return Ok(clients);
            }
        }
    }
}
