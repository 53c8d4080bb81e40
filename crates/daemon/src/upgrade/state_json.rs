//! Converts state that a live upgrade hands over to and from JSON: connections, ring positions, socket addresses. A descriptor is
//! written as its index among those of the message.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use options::SocketAddr;
use serde_json::{Value, json};
use vhost_user::{ConnectionHandover, Message};

use super::channel::{UpgradeChannel, UpgradeMessage};

/// Descriptors to send with a message.
#[derive(Default)]
pub(crate) struct OutgoingFds(Vec<OwnedFd>);

impl OutgoingFds {
    /// Adds a descriptor and returns its index as JSON.
    pub fn add(&mut self, fd: OwnedFd) -> Value {
        self.0.push(fd);
        (self.0.len() - 1).into()
    }

    /// Sends a message with these descriptors.
    pub fn send(self, channel: &UpgradeChannel, message: &UpgradeMessage) -> io::Result<()> {
        let fds: Vec<BorrowedFd<'_>> = self.0.iter().map(AsFd::as_fd).collect();
        channel.send(message, &fds)
    }

    /// Converts a vhost-user connection, and adds its descriptors.
    pub fn connection_to_json(&mut self, connection: ConnectionHandover) -> Value {
        let stream = self.add(connection.stream);
        let messages = connection.replayed_messages.into_iter().map(|message| {
            let fds = message.fds.into_iter().map(|fd| self.add(fd));
            let fds: Vec<Value> = fds.collect();
            json!({"bytes": message.bytes, "fds": fds})
        });
        let messages: Vec<Value> = messages.collect();
        let queues = connection.running_queues.into_iter().map(|(queue, kick)| {
            let kick = kick.map(|kick| self.add(kick));
            json!({"queue": queue, "kick": kick})
        });
        let queues: Vec<Value> = queues.collect();
        json!({"stream": stream, "messages": messages, "queues": queues})
    }
}

/// Descriptors that were received with a message. Each can be taken once.
pub(crate) struct IncomingFds(Vec<Option<OwnedFd>>);

/// Error for state that cannot be read.
pub(crate) const INVALID_STATE: &str =
    "the other program sent its state in a form that this version does not support";

impl IncomingFds {
    pub fn new(fds: Vec<OwnedFd>) -> Self {
        IncomingFds(fds.into_iter().map(Some).collect())
    }

    /// Takes the descriptor with an index.
    pub fn take(&mut self, index: &Value) -> Result<OwnedFd, &'static str> {
        let index = index.as_u64().and_then(|index| usize::try_from(index).ok());
        let fd = index.and_then(|index| self.0.get_mut(index)?.take());
        fd.ok_or(INVALID_STATE)
    }

    /// Reads a vhost-user connection, and takes its descriptors.
    pub fn connection_from_json(
        &mut self,
        json: &Value,
    ) -> Result<ConnectionHandover, &'static str> {
        let mut messages = Vec::new();
        for message in read_list(&json["messages"])? {
            let bytes = read_list(&message["bytes"])?.iter().map(|byte| {
                let byte = byte.as_u64().and_then(|byte| u8::try_from(byte).ok());
                byte.ok_or(INVALID_STATE)
            });
            let bytes = bytes.collect::<Result<_, _>>()?;
            let fds = read_list(&message["fds"])?.iter().map(|fd| self.take(fd));
            let fds = fds.collect::<Result<_, _>>()?;
            messages.push(Message { bytes, fds });
        }
        let mut queues = Vec::new();
        for queue in read_list(&json["queues"])? {
            let kick = match &queue["kick"] {
                Value::Null => None,
                kick => Some(self.take(kick)?),
            };
            queues.push((read_number(&queue["queue"])?, kick));
        }
        Ok(ConnectionHandover {
            stream: self.take(&json["stream"])?,
            replayed_messages: messages,
            running_queues: queues,
        })
    }
}

/// Converts the ring positions (`VHOST_USER_GET_VRING_BASE`) of an export's queues.
pub(crate) fn ring_positions_to_json(bases: &[(u16, u32)]) -> Value {
    bases
        .iter()
        .map(|(queue, base)| json!({"queue": queue, "base": base}))
        .collect()
}

/// The inverse of [`ring_positions_to_json`].
pub(crate) fn ring_positions_from_json(json: &Value) -> Result<Vec<(u16, u32)>, &'static str> {
    let bases = read_list(json)?.iter();
    bases
        .map(|entry| Ok((read_number(&entry["queue"])?, read_number(&entry["base"])?)))
        .collect()
}

/// Converts the address of a socket; an error if its path is not UTF-8.
pub(crate) fn socket_addr_to_json(addr: &SocketAddr) -> Result<Value, String> {
    Ok(match addr {
        SocketAddr::Unix { path } => json!({"path": utf8_path(path)?}),
        SocketAddr::Fd { fd } => json!({"fd": fd}),
        SocketAddr::FdName { name } => json!({"name": name}),
    })
}

/// The inverse of [`socket_addr_to_json`].
pub(crate) fn socket_addr_from_json(json: &Value) -> Result<SocketAddr, &'static str> {
    match (json["path"].as_str(), json["name"].as_str()) {
        (Some(path), _) => Ok(SocketAddr::Unix { path: path.into() }),
        (None, Some(name)) => Ok(SocketAddr::FdName {
            name: name.to_owned(),
        }),
        (None, None) => Ok(SocketAddr::Fd {
            fd: read_number(&json["fd"])?,
        }),
    }
}

/// A path as UTF-8 text, since JSON has no byte strings.
pub(crate) fn utf8_path(path: &std::path::Path) -> Result<&str, String> {
    path.to_str().ok_or_else(|| {
        format!(
            "the path {} is not UTF-8 and cannot be handed over: restart instead",
            path.display()
        )
    })
}

/// The items of a list; an error if it is none.
pub(crate) fn read_list(json: &Value) -> Result<&Vec<Value>, &'static str> {
    json.as_array().ok_or(INVALID_STATE)
}

/// A number that fits its type; an error if it is none.
pub(crate) fn read_number<T: TryFrom<u64>>(json: &Value) -> Result<T, &'static str> {
    let number = json.as_u64().and_then(|number| T::try_from(number).ok());
    number.ok_or(INVALID_STATE)
}
