//! A session with a stream that blocks, as a stream of data.

use std::io::{self, IoSlice, Read, Write};

use crate::session::Session;

/// A session with a stream that blocks.
pub struct Stream<'a, S> {
    /// The session.
    pub session: &'a mut Session,
    /// The stream.
    pub stream: S,
}

impl<S: Read + Write> Read for Stream<'_, S> {
    fn read(&mut self, data: &mut [u8]) -> io::Result<usize> {
        // The peer may wait for it.
        self.session.send_unsent(&mut self.stream)?;
        self.session.begin_turn();
        self.session.read(&mut self.stream, data)
    }
}

impl<S: Read + Write> Write for Stream<'_, S> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let written = self.session.write(&mut self.stream, &[IoSlice::new(data)]);
        if written.is_err()
            && let Err(error) = self.session.read(&mut self.stream, &mut [0])
            && error.kind() == io::ErrorKind::InvalidData
        {
            // The peer has said why before it closed the stream.
            return Err(error);
        }
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        self.session.send_unsent(&mut self.stream)
    }
}
