//! One client: what it has sent, and what it has not read yet.
//!
//! It holds at most one request and one answer, and each has its time. So a client that is slow, or that sends
//! and never reads, costs a connection for a while and delays nobody.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};

use crate::openmetrics::http::{Request, What};
use crate::openmetrics::limits::{
    ANSWER_TIME, IDLE_TIME, LINGER_TIME, MAX_REQUEST_BYTES, REQUEST_TIME,
};
use crate::openmetrics::pages::Pages;

pub(crate) struct Client {
    socket: OwnedFd,
    state: State,
    input: Vec<u8>,
    /// When it is dropped.
    deadline: Instant,
    /// When it last got an answer, or came.
    since: Instant,
}

enum State {
    /// It is to send a request.
    Asking,
    /// It is to read this, of which so much is sent; then it is hung up on, or may ask again.
    Answered {
        answer: Vec<u8>,
        sent: usize,
        close: bool,
    },
    /// It was hung up on, and is to do the same: who closes first may take an answer away that is under way.
    HungUp,
    Gone,
}

impl Client {
    pub fn new(socket: OwnedFd, now: Instant) -> Self {
        Client {
            socket,
            state: State::Asking,
            input: Vec::new(),
            deadline: now + REQUEST_TIME,
            since: now,
        }
    }

    pub fn is_gone(&self, now: Instant) -> bool {
        matches!(self.state, State::Gone) || self.deadline <= now
    }

    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Who goes first when there are too many: those who are not reading an answer, the oldest first.
    pub fn rank(&self) -> (bool, Instant) {
        (matches!(self.state, State::Answered { .. }), self.since)
    }

    pub fn interest(&self) -> PollFlags {
        match self.state {
            State::Answered { .. } => PollFlags::OUT,
            _ => PollFlags::IN,
        }
    }

    /// The socket can be read or written: goes on, by one request at most.
    pub fn turn(&mut self, pages: &impl Pages, now: Instant) {
        let may_ask = match self.state {
            State::Asking => self.read(now),
            State::Answered { .. } => self.write(now),
            State::HungUp => {
                self.drain();
                false
            }
            State::Gone => false,
        };
        if may_ask && let Some(request) = Request::take(&mut self.input) {
            let answer = request.answer(|| match request.what {
                What::Figures(format) => pages.figures(format),
                What::Index | What::Refused(_) => pages.index(),
            });
            self.state = State::Answered {
                answer,
                sent: 0,
                close: request.close,
            };
            self.deadline = now + ANSWER_TIME;
        }
    }

    /// True when something has come.
    fn read(&mut self, now: Instant) -> bool {
        let had = self.input.len();
        self.input.resize(MAX_REQUEST_BYTES, 0);
        // What is left of a request has room, or it would have been refused.
        let got = recv(&self.socket, &mut self.input[had..], RecvFlags::empty());
        let got = got.map(|(_, got)| got);
        self.input.truncate(had + got.unwrap_or(0));
        match got {
            Ok(0) => self.state = State::Gone,
            Ok(_) if had == 0 => self.deadline = now + REQUEST_TIME,
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.state = State::Gone,
        }
        got.is_ok_and(|got| got > 0)
    }

    /// True when all is written and it may ask again, or has already.
    fn write(&mut self, now: Instant) -> bool {
        let State::Answered {
            answer,
            sent,
            close,
        } = &mut self.state
        else {
            return false;
        };
        match send(&self.socket, &answer[*sent..], SendFlags::NOSIGNAL) {
            Ok(len) => *sent += len,
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => {
                self.state = State::Gone;
                return false;
            }
        }
        if *sent < answer.len() {
            return false;
        }
        let close = *close;
        self.since = now;
        if close {
            // Fails only when it has gone.
            let _ = shutdown(&self.socket, Shutdown::Write);
            self.state = State::HungUp;
            self.deadline = now + LINGER_TIME;
            return false;
        }
        self.state = State::Asking;
        let wait = if self.input.is_empty() {
            IDLE_TIME
        } else {
            REQUEST_TIME
        };
        self.deadline = now + wait;
        !self.input.is_empty()
    }

    fn drain(&mut self) {
        let mut away = [0; MAX_REQUEST_BYTES];
        match recv(&self.socket, &mut away[..], RecvFlags::empty()) {
            Ok((_, got)) if got > 0 => {}
            Err(Errno::AGAIN | Errno::INTR) => {}
            _ => self.state = State::Gone,
        }
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
