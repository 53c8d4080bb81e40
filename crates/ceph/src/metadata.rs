//! Metadata of an image, written whether or not another client has its lock.
//!
//! `rbd_metadata_set` acquires the exclusive lock first, and waits for a dead owner. This calls the same method of the image's
//! header object (class `rbd`, method `metadata_set`), which needs no lock.

use std::ffi::{CStr, CString, c_char};
use std::ptr;

use engine::Errno;

use crate::errno::check;
use crate::ffi::{ImagePointer, PoolPointer};
use crate::library::Functions;

/// Bytes of the longest id of an image with its zero byte.
const ID_BYTES: usize = 256;

/// Sets one value. Waits for the cluster; the image is open for writing.
pub(crate) fn set(
    functions: &'static Functions,
    pool: PoolPointer,
    image: ImagePointer,
    key: &CStr,
    value: &str,
) -> Result<(), Errno> {
    let header = header_object(functions, image)?;
    let input = encode(key.to_bytes(), value.as_bytes())?;
    // SAFETY: the pool is open, the names are strings, the input is as long as named, and there is no output.
    check(unsafe {
        (functions.rados_exec)(
            pool.0,
            header.as_ptr(),
            c"rbd".as_ptr(),
            c"metadata_set".as_ptr(),
            input.as_ptr().cast(),
            input.len(),
            ptr::null_mut(),
            0,
        )
    })
}

/// The name of the object that has an image's metadata.
fn header_object(functions: &'static Functions, image: ImagePointer) -> Result<CString, Errno> {
    let mut id = [0_u8; ID_BYTES];
    // SAFETY: the image is open, and there is room for as many bytes as named.
    check(unsafe { (functions.rbd_get_id)(image.0, id.as_mut_ptr().cast::<c_char>(), id.len()) })?;
    let id = CStr::from_bytes_until_nul(&id).map_err(|_| Errno::IO)?;
    CString::new([b"rbd_header.", id.to_bytes()].concat()).map_err(|_| Errno::INVAL)
}

/// A map with one value, as the class takes it: the count, then key and value, each after its length.
fn encode(key: &[u8], value: &[u8]) -> Result<Vec<u8>, Errno> {
    let mut bytes = 1_u32.to_le_bytes().to_vec();
    for part in [key, value] {
        let len = u32::try_from(part.len()).map_err(|_| Errno::INVAL)?;
        bytes.extend(len.to_le_bytes());
        bytes.extend(part);
    }
    Ok(bytes)
}
