//! The header object of an image: its metadata and the owner of its lock.
//!
//! librbd's own functions for this are not used where they wait for a dead client: `rbd_metadata_set` acquires the exclusive lock
//! first, and `rbd_lock_break` adds the owner to the blocklist each time, once for each image of a connection. The methods of the
//! object need no lock.

use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr;

use engine::Errno;

use crate::errno::{check, value_of};
use crate::ffi::{ImagePointer, PoolPointer};
use crate::library::Functions;

/// Bytes of the longest id of an image with its zero byte.
const ID_BYTES: usize = 256;

/// Most values that are read at once.
const MOST_VALUES: u64 = 64;

/// Bytes of the keys, and of the values, for which there is room at first.
const FIRST_ROOM: usize = 16 << 10;

/// Bytes for each of a lock owner's strings, and the lock's tag.
const OWNER_BYTES: usize = 512;

/// The name of librbd's lock.
const LOCK_NAME: &CStr = c"rbd_lock";

/// The header object of an open image. Its methods wait for the cluster.
pub(crate) struct Header {
    functions: &'static Functions,
    pool: PoolPointer,
    image: ImagePointer,
    object: CString,
}

/// The client that has an image's lock.
pub(crate) struct LockOwner {
    /// As Ceph writes it.
    pub(crate) address: String,
    client: CString,
    cookie: CString,
}

impl LockOwner {
    /// The lock's id and its client if it is none of librbd's own, whose ids are `auto` and a number.
    pub(crate) fn manual_lock(&self) -> Option<(String, String)> {
        let id = self.cookie.to_string_lossy();
        (!id.starts_with("auto ")).then(|| {
            let client = self.client.to_string_lossy();
            (id.into_owned(), client.into_owned())
        })
    }
}

impl Header {
    /// That of an open image.
    pub(crate) fn new(
        functions: &'static Functions,
        pool: PoolPointer,
        image: ImagePointer,
    ) -> Result<Self, Errno> {
        let mut id = [0_u8; ID_BYTES];
        // SAFETY: the image is open, and there is room for as many bytes as named.
        check(unsafe {
            (functions.rbd_get_id)(image.0, id.as_mut_ptr().cast::<c_char>(), ID_BYTES)
        })?;
        let id = CStr::from_bytes_until_nul(&id).map_err(|_| Errno::IO)?;
        let object = [b"rbd_header.", id.to_bytes()].concat();
        Ok(Self {
            functions,
            pool,
            image,
            object: CString::new(object).map_err(|_| Errno::INVAL)?,
        })
    }

    /// Values of the metadata whose keys have this prefix, with the rest of their keys.
    pub(crate) fn values(&self, prefix: &CStr) -> Result<Vec<(String, String)>, Errno> {
        let (mut key_room, mut value_room) = (FIRST_ROOM, FIRST_ROOM);
        loop {
            let (mut keys, mut values) = (vec![0_u8; key_room], vec![0_u8; value_room]);
            // SAFETY: the image is open, the prefix a string, and there is room for as many bytes as named.
            let listed = check(unsafe {
                (self.functions.rbd_metadata_list)(
                    self.image.0,
                    prefix.as_ptr(),
                    MOST_VALUES,
                    keys.as_mut_ptr().cast(),
                    &raw mut key_room,
                    values.as_mut_ptr().cast(),
                    &raw mut value_room,
                )
            });
            match listed {
                // The rooms are those that are needed.
                Err(Errno::RANGE) if key_room > keys.len() || value_room > values.len() => {}
                Err(errno) => return Err(errno),
                Ok(()) => {
                    let prefix = prefix.to_string_lossy();
                    let keys = strings(&keys[..key_room]);
                    let values = strings(&values[..value_room]);
                    let of_prefix = keys.zip(values).filter_map(|(key, value)| {
                        Some((key.strip_prefix(&*prefix)?.to_owned(), value))
                    });
                    return Ok(of_prefix.collect());
                }
            }
        }
    }

    /// Sets one value of the metadata.
    pub(crate) fn set(&self, key: &str, value: &str) -> Result<(), Errno> {
        // A map with one value.
        let mut input = 1_u32.to_le_bytes().to_vec();
        encode(key, &mut input)?;
        encode(value, &mut input)?;
        self.execute(c"metadata_set", &input)
    }

    /// Removes one value of the metadata.
    pub(crate) fn remove(&self, key: &str) -> Result<(), Errno> {
        let mut input = Vec::new();
        encode(key, &mut input)?;
        self.execute(c"metadata_remove", &input)
    }

    /// Calls a method of the class `rbd`.
    fn execute(&self, method: &CStr, input: &[u8]) -> Result<(), Errno> {
        // SAFETY: the pool is open, the names are strings, the input is as long as named, and there is no output.
        check(unsafe {
            (self.functions.rados_exec)(
                self.pool.0,
                self.object.as_ptr(),
                c"rbd".as_ptr(),
                method.as_ptr(),
                input.as_ptr().cast(),
                input.len(),
                ptr::null_mut(),
                0,
            )
        })
    }

    /// The owner of the lock.
    pub(crate) fn lock_owner(&self) -> Result<Option<LockOwner>, Errno> {
        let mut is_exclusive: c_int = 0;
        let mut buffers = [[0_u8; OWNER_BYTES]; 4];
        let mut lens = [OWNER_BYTES; 4];
        let [tag, clients, cookies, addresses] = &mut buffers;
        let [tag_len, clients_len, cookies_len, addresses_len] = &mut lens;
        // SAFETY: the pool is open, the names are strings, and there is room for as many bytes as named.
        let listed = unsafe {
            (self.functions.rados_list_lockers)(
                self.pool.0,
                self.object.as_ptr(),
                LOCK_NAME.as_ptr(),
                &raw mut is_exclusive,
                tag.as_mut_ptr().cast(),
                tag_len,
                clients.as_mut_ptr().cast(),
                clients_len,
                cookies.as_mut_ptr().cast(),
                cookies_len,
                addresses.as_mut_ptr().cast(),
                addresses_len,
            )
        };
        if value_of(listed as i64)? == 0 {
            return Ok(None);
        }
        // An exclusive lock has one owner: the first of each list.
        let first = |list| CStr::from_bytes_until_nul(list).map_err(|_| Errno::IO);
        let address = first(addresses)?.to_string_lossy();
        // Elsewhere Ceph writes a client's address without its type.
        let address = ["v1:", "v2:", "any:"]
            .iter()
            .find_map(|kind| address.strip_prefix(kind))
            .unwrap_or(&address);
        Ok(Some(LockOwner {
            address: address.to_owned(),
            client: first(clients)?.to_owned(),
            cookie: first(cookies)?.to_owned(),
        }))
    }

    /// Breaks the lock of this owner, unless it has released it.
    pub(crate) fn break_lock(&self, owner: &LockOwner) -> Result<(), Errno> {
        // SAFETY: the pool is open, and the names are strings.
        let broken = check(unsafe {
            (self.functions.rados_break_lock)(
                self.pool.0,
                self.object.as_ptr(),
                LOCK_NAME.as_ptr(),
                owner.client.as_ptr(),
                owner.cookie.as_ptr(),
            )
        });
        match broken {
            Err(Errno::NOENT) => Ok(()),
            broken => broken,
        }
    }
}

/// Strings that follow each other, each with its zero byte.
fn strings(bytes: &[u8]) -> impl Iterator<Item = String> {
    let bytes = bytes.strip_suffix(&[0]).unwrap_or(bytes);
    bytes
        .split(|byte| *byte == 0)
        .map(|string| String::from_utf8_lossy(string).into_owned())
}

/// Appends a string as Ceph encodes it: its length before it.
fn encode(text: &str, bytes: &mut Vec<u8>) -> Result<(), Errno> {
    let len = u32::try_from(text.len()).map_err(|_| Errno::INVAL)?;
    bytes.extend(len.to_le_bytes());
    bytes.extend(text.as_bytes());
    Ok(())
}
