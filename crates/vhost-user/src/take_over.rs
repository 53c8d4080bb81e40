//! A front-end whose connection another process has begun.
//!
//! The wire library's state is private and comes from messages, so messages bring it back: each is sent over a pair of
//! sockets of our own, and when all is as it was the front-end's socket takes their place.

use std::io;
use std::mem::ManuallyDrop;
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use rustix::io::DupFlags;
use vhost::vhost_user::BackendReqHandler;

use crate::backend_channel::BackendChannel;
use crate::connection::Connection;
use crate::hand_over::HandedOver;
use crate::message::{Message, Request};
use crate::server::{Server, Shared, lock};

/// A front-end with its library.
pub(crate) type Messages = BackendReqHandler<Mutex<Connection>>;

/// A connection that is about to be taken over: nothing is taken from its queues yet.
pub struct TakenOver {
    shared: Arc<Shared>,
    session: Arc<Mutex<Connection>>,
    messages: Messages,
    front_end: UnixStream,
    /// What the queues are kicked with.
    queues: Vec<(u16, Option<OwnedFd>)>,
}

impl Server {
    /// Brings a connection into the state that it had. The server is parked.
    ///
    /// # Errors
    /// What of it is refused here.
    pub fn take_over(&self, handed: HandedOver) -> io::Result<TakenOver> {
        let session = Arc::new(Mutex::new(Connection::new(self.target.clone())));
        for vring in &mut lock(&session).vrings {
            vring.hold();
        }
        let (_, nowhere) = UnixStream::pair()?;
        let mut taken = TakenOver {
            shared: self.shared.clone(),
            messages: Messages::from_stream(nowhere, session.clone()),
            session,
            front_end: handed.stream.into(),
            queues: handed.queues,
        };
        for message in &handed.messages {
            taken.replay(message)?;
        }
        Ok(taken)
    }

    /// Serves: whoever was taken over, and whoever comes.
    pub fn go_on(&self) {
        self.shared.go_on();
    }
}

impl TakenOver {
    /// The library reads and answers there from now on.
    fn connect(&self, socket: &UnixStream) -> io::Result<()> {
        let fd = self.messages.as_raw_fd();
        // SAFETY: the library keeps it open as long as it lives, which is longer than this; it is not closed here.
        let mut place = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(fd) });
        Ok(rustix::io::dup3(socket, &mut place, DupFlags::CLOEXEC)?)
    }

    fn replay(&mut self, message: &Message) -> io::Result<()> {
        let (ours, library) = UnixStream::pair()?;
        message.send(&ours)?;
        // The library waits for what is missing, also where descriptors found no room: here nothing ever comes.
        ours.shutdown(Shutdown::Write)?;
        self.connect(&library)?;
        let channel = BackendChannel::ahead(&library);
        lock(&self.session).look_ahead(channel);
        // What it answers nobody has asked.
        let handled = self.messages.handle_request();
        handled.map_err(|error| io::Error::other(format!("its state is refused: {error}")))
    }

    /// Starts the queues where they stand. They take nothing yet.
    ///
    /// # Errors
    /// What is refused.
    pub fn start(&mut self, bases: &[(u16, u32)]) -> io::Result<()> {
        for (index, kick) in std::mem::take(&mut self.queues) {
            let found = bases.iter().find(|(found, _)| *found == index);
            let Some((_, base)) = found else {
                return Err(io::Error::other(format!(
                    "queue {index}: nobody says where it stands"
                )));
            };
            self.replay(&Message::vring(Request::SetVringBase, index, *base)?)?;
            let kick = kick.as_ref().map(AsFd::as_fd);
            self.replay(&Message::vring_fd(Request::SetVringKick, index, kick)?)?;
        }
        Ok(())
    }

    /// From now on it is this process's: the queues go on, and the server has the connection.
    ///
    /// # Errors
    /// Too many files are open.
    pub fn go_on(self) -> io::Result<()> {
        self.connect(&self.front_end)?;
        for vring in &mut lock(&self.session).vrings {
            vring.release();
        }
        let mut state = self.shared.state();
        state.connection = Some(Arc::new(self.front_end));
        state.session = Some(self.session);
        state.taken_over = Some(self.messages);
        Ok(())
    }
}
