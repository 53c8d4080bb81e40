//! Disks that check their requests and complete them later.

use std::collections::BTreeSet;

use block::{DiskCall, DiskIo, Request};

use crate::disk::{Contents, check};

/// What a slot waits for.
pub enum Waits {
    Disk(usize, Request),
    Call(DiskCall),
}

pub struct Disks {
    pub contents: Vec<Contents>,
    pub waiting: Vec<(u64, Waits)>,
    pub tokens: BTreeSet<u64>,
    pub room: usize,
}

impl Disks {
    pub fn new(count: usize) -> Self {
        Disks {
            contents: (0..count).map(|_| Contents::new()).collect(),
            waiting: Vec::new(),
            tokens: BTreeSet::new(),
            room: 16,
        }
    }
}

impl DiskIo for Disks {
    fn room(&self, _: u32) -> usize {
        self.room.saturating_sub(self.waiting.len())
    }

    unsafe fn submit(&mut self, disk: u32, request: Request) {
        assert!(self.waiting.len() < self.room, "there is room");
        assert!(self.tokens.insert(request.token), "one request of a slot");
        check(&request);
        self.waiting
            .push((request.token, Waits::Disk(disk as usize, request)));
    }

    fn submit_blocking_call(&mut self, _: u32, call: DiskCall, number: u32) {
        let token = u64::from(number);
        assert!(self.tokens.insert(token), "one request of a slot");
        self.waiting.push((token, Waits::Call(call)));
    }
}
