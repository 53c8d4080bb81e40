//! Requests of async tasks to backends: a table of those in flight, and an outbox of those that no backend has taken yet.
//!
//! Each request has an entry in a table until its result is taken. Backends get a token with the index of the entry in the
//! lower half, and [`token::TASKS`] in the upper one, which no source has.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use engine::uring::File;
use engine::{Completion, Errno, Request};

use crate::disk_file::DiskFile;
use crate::disk_file::clone::CloneRange;
use crate::lease::Lease;
use crate::network::NetworkTarget;
use crate::route::mark::PendingMark;
use crate::route::{Carrier, FileTarget};
use crate::token;

/// A request of an async task to a backend.
pub(crate) enum BackendRequest {
    /// A request to a node's part of a file, for the backend that carries the file.
    Request(FileTarget, Request),
    /// A request without data, for the ring.
    Ring(RingRequest),
    /// A request to a node's part of a disk behind a network, and the index of the task's source.
    Network(NetworkTarget, Request, u32),
    /// A request at its offset in a file, for a worker.
    Worker(Arc<DiskFile>, Request),
    /// A range to clone, for a worker, and the token of its completion.
    Clone(CloneRange, u64),
}

/// A request without data, at its offset in a file, that the kernel passes to its own worker threads.
pub(crate) struct RingRequest {
    pub request: Request,
    /// The ring's name for the file.
    pub name: File,
    /// The file's number: files share those threads.
    pub file_index: usize,
}

impl BackendRequest {
    /// The only backend of files that may have no room for it; `None`: it is for an image.
    pub fn carrier(&self) -> Option<Carrier> {
        match self {
            BackendRequest::Request(target, _) => Some(target.carrier),
            BackendRequest::Ring(request) => Some(Carrier::Ring(request.name)),
            BackendRequest::Network(..) => None,
            BackendRequest::Worker(..) | BackendRequest::Clone(..) => Some(Carrier::Workers),
        }
    }
}

/// The state of an entry.
enum IoEntryState {
    Free,
    /// In flight; the waker of the task that waits.
    InFlight(Option<Waker>),
    Done(Result<(), Errno>),
    /// In flight, and its future was dropped.
    Abandoned,
}

/// An entry of the table: one request of an async task to a backend.
struct IoEntry {
    state: IoEntryState,
    task: u32,
    /// What the request occupies, and the index of its file.
    occupied: Option<(SharedResource, usize)>,
    /// A copy of the request's segments. A backend changes the list after a short transfer; the request's own list stays
    /// whole, since the task may submit the request again.
    segments: Vec<libc::iovec>,
    /// A lease on the place of the request, until it is done.
    lease: Option<Lease>,
}

/// What the files of an iothread share, and a request of a task occupies until it has completed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SharedResource {
    /// Places in Linux AIO or the ring.
    Places,
    /// Worker threads of the kernel.
    KernelThreads,
}

/// The I/O of one async task: the number of its requests in flight, and its marks.
#[derive(Default)]
struct TaskIo {
    /// Its requests in flight.
    in_flight: u32,
    /// Marks that are set when the task is complete.
    marks: Vec<PendingMark>,
}

/// The requests to backends, in flight and not yet taken, of an iothread's async tasks.
#[derive(Default)]
pub(super) struct IoTable {
    entries: Vec<IoEntry>,
    free: Vec<u32>,
    /// Requests in flight, of all tasks.
    in_flight: usize,
    tasks: Vec<TaskIo>,
    /// By [`SharedResource`] and the file's index: how many requests occupy one.
    occupied: [Vec<usize>; 2],
    /// Requests that no backend has taken yet, in order.
    pub outbox: VecDeque<BackendRequest>,
}

impl IoTable {
    /// Puts a request of a task into the outbox, and returns the index of its entry. `outgoing` makes a backend request of it, with a token
    /// and segments of its own: those of `request` are not used after this.
    ///
    /// # Safety
    /// The list of segments has `iov_count` entries.
    pub unsafe fn queue_request(
        &mut self,
        task: u32,
        request: Request,
        lease: Option<Lease>,
        outgoing: impl FnOnce(Request) -> BackendRequest,
    ) -> u32 {
        let index = self.allocate_in_flight_entry(task);
        // The list keeps its address until the entry is used again, even if the table grows.
        let entry = &mut self.entries[index as usize];
        entry.lease = lease;
        let segments = &mut entry.segments;
        segments.clear();
        if request.iov_count > 0 {
            let count = request.iov_count as usize;
            // SAFETY: our caller's promise.
            segments.extend_from_slice(unsafe { std::slice::from_raw_parts(request.iov, count) });
        }
        let outgoing = outgoing(Request {
            iov: segments.as_mut_ptr(),
            token: token::new(token::TASKS, index),
            ..request
        });
        self.outbox.push_back(outgoing);
        index
    }

    /// Ready with the result of a request, or else leaves the waker of its task in its entry.
    pub fn poll_result(&mut self, index: u32, cx: &mut Context<'_>) -> Poll<Result<(), Errno>> {
        match &mut self.entries[index as usize].state {
            IoEntryState::Done(result) => Poll::Ready(*result),
            IoEntryState::InFlight(waker) => {
                match waker {
                    Some(waker) => waker.clone_from(cx.waker()),
                    None => *waker = Some(cx.waker().clone()),
                }
                Poll::Pending
            }
            IoEntryState::Free | IoEntryState::Abandoned => {
                unreachable!("released by `free_or_abandon` only")
            }
        }
    }

    /// Frees an entry, now or when its request completes.
    pub fn free_or_abandon(&mut self, index: u32) {
        let entry = &mut self.entries[index as usize];
        match entry.state {
            IoEntryState::InFlight(_) => entry.state = IoEntryState::Abandoned,
            IoEntryState::Done(_) => self.free_entry(index),
            IoEntryState::Free | IoEntryState::Abandoned => unreachable!("released here only"),
        }
    }

    /// Takes an entry for a request of this task, and returns its index.
    fn allocate_in_flight_entry(&mut self, task: u32) -> u32 {
        self.in_flight += 1;
        self.get_or_add_task_io(task).in_flight += 1;
        if let Some(index) = self.free.pop() {
            let entry = &mut self.entries[index as usize];
            entry.state = IoEntryState::InFlight(None);
            entry.task = task;
            return index;
        }
        self.entries.push(IoEntry {
            state: IoEntryState::InFlight(None),
            task,
            occupied: None,
            segments: Vec::new(),
            lease: None,
        });
        u32::try_from(self.entries.len() - 1).unwrap_or_else(|_| unreachable!("memory ends before"))
    }

    /// Frees an entry, whose result was taken or is not wanted any more.
    fn free_entry(&mut self, index: u32) {
        self.entries[index as usize].state = IoEntryState::Free;
        self.free.push(index);
    }

    /// Whether any request is in flight.
    pub fn has_in_flight(&self) -> bool {
        self.in_flight > 0
    }

    /// Number of a task's requests in flight.
    pub fn in_flight_count_of_task(&self, task: u32) -> u32 {
        self.tasks
            .get(task as usize)
            .map_or(0, |task| task.in_flight)
    }

    /// The I/O of a task, made if it had none before.
    fn get_or_add_task_io(&mut self, task: u32) -> &mut TaskIo {
        let index = task as usize;
        if self.tasks.len() <= index {
            self.tasks.resize_with(index + 1, TaskIo::default);
        }
        &mut self.tasks[index]
    }

    /// Adds a mark, which is set when the task is complete.
    pub fn add_pending_mark(&mut self, task: u32, mark: PendingMark) {
        self.get_or_add_task_io(task).marks.push(mark);
    }

    /// Sets the marks of a task that is complete.
    pub fn report_task_marks(&mut self, task: u32) {
        if let Some(task) = self.tasks.get_mut(task as usize) {
            task.marks.clear();
        }
    }

    /// How much of a resource the requests of a file occupy.
    pub fn occupied_count(&self, resource: SharedResource, file_index: usize) -> usize {
        let files = &self.occupied[resource as usize];
        files.get(file_index).copied().unwrap_or(0)
    }

    /// Counts that a request, which a backend has taken, occupies a resource.
    pub fn count_occupied(&mut self, resource: SharedResource, file_index: usize, token: u64) {
        let entry = token::request_number(token) as usize;
        self.entries[entry].occupied = Some((resource, file_index));
        let files = &mut self.occupied[resource as usize];
        if files.len() <= file_index {
            files.resize(file_index + 1, 0);
        }
        files[file_index] += 1;
    }

    /// Records the completion of a task's request, and returns the task and its waker. `None`: it is no task's request.
    pub fn record_io_completion_and_take_waker(
        &mut self,
        completion: Completion,
    ) -> Option<(u32, Option<Waker>)> {
        let Completion { token, result } = completion;
        let index =
            (token::source_index(token) == token::TASKS).then(|| token::request_number(token))?;
        let entry = self.entries.get_mut(index as usize)?;
        self.in_flight -= 1;
        entry.lease = None;
        if let Some((resource, file_index)) = entry.occupied.take() {
            self.occupied[resource as usize][file_index] -= 1;
        }
        let task = entry.task;
        self.tasks[task as usize].in_flight -= 1;
        let waker = match std::mem::replace(&mut entry.state, IoEntryState::Done(result)) {
            IoEntryState::InFlight(waker) => waker,
            IoEntryState::Abandoned => {
                self.free_entry(index);
                None
            }
            IoEntryState::Free | IoEntryState::Done(_) => {
                debug_assert!(false, "a completion of no request");
                None
            }
        };
        Some((task, waker))
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;
    use crate::route::task::{LocalFuture, TaskContext, TaskNode};
    use crate::route::{OpHandler, Route};
    use crate::{Aio, Op, SECTOR_BYTES, testing};

    const LEN: usize = 8192;

    /// Reads from one node, then from another.
    struct ReadTwice {
        first: Route,
        second: Route,
    }

    impl TaskNode for ReadTwice {
        fn run(
            self: Rc<Self>,
            cx: TaskContext,
            request: Request,
        ) -> LocalFuture<Result<(), Errno>> {
            Box::pin(async move {
                cx.run_on_route(&self.first, request).await?;
                cx.run_on_route(&self.second, request).await
            })
        }
    }

    /// The first read is short, since the file has shrunk, and its backend changes the list of segments.
    #[test]
    fn a_task_can_submit_a_request_again_after_a_short_transfer() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("short");
        let short = testing::file(&path, &[1; LEN], Aio::IoUring);
        let whole = testing::file(&folder.path().join("whole"), &[2; LEN], Aio::IoUring);
        let file = std::fs::File::options().write(true).open(path);
        file.unwrap().set_len(5 * SECTOR_BYTES).unwrap();
        let mut io = testing::io();
        let [first, second, mut disk] =
            [&short, &whole, &whole].map(|node| testing::attach(&mut io, node));
        let (first, second) = (first.route, second.route);
        disk.route.read = OpHandler::Task(Rc::new(ReadTwice { first, second }));
        let mut memory = [0xee_u8; LEN];
        let (head, tail) = memory.split_at_mut(1000);
        let mut segments = [head, tail].map(|part| libc::iovec {
            iov_base: part.as_mut_ptr().cast(),
            iov_len: part.len(),
        });
        let request = Request {
            iov: segments.as_mut_ptr(),
            iov_count: 2,
            ..Request::without_data(Op::Read, 0, LEN as u64, 5)
        };
        // SAFETY: the loop below waits for its end; list, memory and nodes are kept beyond it.
        unsafe { io.submit(&disk, request) }.unwrap();
        let done = testing::run_until_completed(&mut io, 1);
        assert_eq!(done[0].result, Ok(()));
        assert!(
            memory.iter().all(|byte| *byte == 2),
            "the second read filled all of it"
        );
    }
}
