//! Records of the clients of an image, each a value of its metadata: `blockplane.client.ADDRESS`.
//!
//! A client writes its own when it opens the image for writing, and removes those of clients that no longer watch it.

use std::ffi::CStr;

use engine::Errno;

use crate::client_record::ClientRecord;
use crate::header::Header;

/// Of the keys; the rest of each is the client's address.
const KEY_PREFIX: &CStr = c"blockplane.client.";

/// All records.
pub(crate) fn read(header: &Header) -> Result<Vec<ClientRecord>, Errno> {
    let values = header.values(KEY_PREFIX)?.into_iter();
    let records = values.filter_map(|(address, text)| ClientRecord::parse(&address, &text));
    Ok(records.collect())
}

/// Writes that of this process's client with this address.
pub(crate) fn write(header: &Header, address: &str) -> Result<(), Errno> {
    let record = ClientRecord::this_process(address.to_owned()).ok_or(Errno::NOENT)?;
    header.set(&key(address), &record.to_string())
}

/// Removes that of a client.
pub(crate) fn remove(header: &Header, record: &ClientRecord) -> Result<(), Errno> {
    header.remove(&key(&record.address))
}

fn key(address: &str) -> String {
    format!("{}{address}", KEY_PREFIX.to_string_lossy())
}
