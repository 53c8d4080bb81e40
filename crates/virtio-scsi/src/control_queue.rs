//! The control queue: executes task management functions, and answers requests about asynchronous events, of which there are
//! none (VIRTIO 1.3, section 5.6.6.2).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use scsi::BusOrUnitReset;
use telemetry::queue::AdmissionEnd;
use virtqueue::{Chain, ChainId, GuestMemory};

use crate::address::Address;
use crate::device::{Device, NEXUS};
use crate::error::{AdmitError, RequestError};
use crate::guest_bytes::{copy_from_guest, copy_to_guest};
use crate::messages::{MessagePort, TmfOutcome, TmfScope, TmfSharedByQueues};
use crate::wire::{
    CONTROL_QUERY_EVENTS, CONTROL_SUBSCRIBE_EVENTS, CONTROL_TMF, EVENTS_ANSWER_BYTES,
    EVENTS_REQUEST_BYTES, Response, TMF_ABORT_TASK, TMF_ABORT_TASK_SET, TMF_BYTES,
    TMF_CLEAR_TASK_SET, TMF_I_T_NEXUS_RESET, TMF_LOGICAL_UNIT_RESET, TMF_QUERY_TASK,
    TMF_QUERY_TASK_SET,
};

/// A task management function that request queues are working on.
struct PendingTmf {
    function: u64,
    subtype: u32,
    address: Address,
    id: ChainId,
    /// Address of the response byte, in this memory.
    response_byte: *mut u8,
    _memory: Arc<GuestMemory>,
}

/// The control queue.
pub struct ControlQueue {
    device: Arc<Device>,
    port: Arc<dyn MessagePort>,
    size: u16,
    pending: Vec<PendingTmf>,
    functions_begun: u64,
    has_unpublished: bool,
}

// SAFETY: the addresses are of memory that is held beside them, and used by the thread that has the queue.
unsafe impl Send for ControlQueue {}

/// Length of a response about events, as a used entry has it.
#[allow(clippy::cast_possible_truncation, reason = "five")]
const ANSWER_LEN: u32 = EVENTS_ANSWER_BYTES as u32;

/// A task management function.
#[derive(Clone, Copy)]
struct TaskManagementFunction {
    subtype: u32,
    lun: [u8; 8],
    tag: u64,
}

impl TaskManagementFunction {
    /// Decodes a request for a function.
    fn from_bytes(bytes: [u8; TMF_BYTES]) -> Self {
        let (_, rest) = split_off_u32(&bytes);
        let (subtype, rest) = split_off_u32(rest);
        let (lun, rest) = split_off_u64(rest);
        let (tag, _) = split_off_u64(rest);
        TaskManagementFunction {
            subtype,
            lun: lun.to_le_bytes(),
            tag,
        }
    }
}

/// Splits off a little-endian number; 0 if there are too few bytes.
fn split_off_u32(bytes: &[u8]) -> (u32, &[u8]) {
    match bytes.split_first_chunk() {
        Some((value, rest)) => (u32::from_le_bytes(*value), rest),
        None => (0, &[]),
    }
}

/// The same with 64 bits.
fn split_off_u64(bytes: &[u8]) -> (u64, &[u8]) {
    match bytes.split_first_chunk() {
        Some((value, rest)) => (u64::from_le_bytes(*value), rest),
        None => (0, &[]),
    }
}

impl ControlQueue {
    /// For a ring of `size` entries; `port` leads to it.
    #[must_use]
    pub fn new(device: Arc<Device>, size: u16, port: Arc<dyn MessagePort>) -> Self {
        ControlQueue {
            device,
            port,
            size,
            pending: Vec::new(),
            functions_begun: 0,
            has_unpublished: false,
        }
    }

    /// Pops and processes up to `budget` requests.
    ///
    /// # Errors
    /// When the guest broke the queue.
    pub fn pop_and_process_requests(
        &mut self,
        ring: &mut virtqueue::Queue,
        memory: &Arc<GuestMemory>,
        chain: &mut Chain,
        budget: usize,
    ) -> Result<AdmissionEnd, AdmitError> {
        for _ in 0..budget {
            let Some(id) = ring.pop(memory, chain)? else {
                return Ok(AdmissionEnd::Drained);
            };
            self.process_request(ring, id, memory, chain)?;
        }
        Ok(AdmissionEnd::Budget)
    }

    /// Answers a request about events; begins, or rejects, a task management function.
    fn process_request(
        &mut self,
        ring: &mut virtqueue::Queue,
        id: ChainId,
        memory: &Arc<GuestMemory>,
        chain: &Chain,
    ) -> Result<(), RequestError> {
        let (readable, writable) = (chain.readable_len(), chain.writable_len());
        let short = RequestError::ShortControl { readable, writable };
        let mut bytes = [0; TMF_BYTES];
        // SAFETY: the chain was popped with the memory, which is held.
        let found = unsafe { copy_from_guest(chain.readable(), &mut bytes) };
        let (kind, _) = split_off_u32(&bytes[..found]);
        match kind {
            _ if found < 4 => Err(short),
            CONTROL_TMF => {
                let Some(first) = chain.writable().first() else {
                    return Err(short);
                };
                if found < TMF_BYTES {
                    return Err(short);
                }
                if self.pending.len() >= usize::from(self.size) {
                    return Err(RequestError::TooMany(self.size));
                }
                self.begin_or_reject_tmf(
                    ring,
                    id,
                    memory,
                    first.iov_base.cast(),
                    TaskManagementFunction::from_bytes(bytes),
                );
                Ok(())
            }
            CONTROL_QUERY_EVENTS | CONTROL_SUBSCRIBE_EVENTS => {
                if found < EVENTS_REQUEST_BYTES || writable < EVENTS_ANSWER_BYTES as u64 {
                    return Err(short);
                }
                let (lun, _) = split_off_u64(&bytes[4..]);
                let response = match self.decode_existing_target(lun.to_le_bytes()) {
                    Ok(_) => Response::Ok,
                    Err(response) => response,
                };
                // There are no such events.
                let answer = [0, 0, 0, 0, response as u8];
                // SAFETY: as above.
                unsafe { copy_to_guest(chain.writable(), &answer) };
                self.push_used(ring, id, ANSWER_LEN);
                Ok(())
            }
            unknown => Err(RequestError::UnknownControl(unknown)),
        }
    }

    /// Pushes the chain of an answered request.
    fn push_used(&mut self, ring: &mut virtqueue::Queue, id: ChainId, written: u32) {
        ring.push(id, written);
        self.has_unpublished = true;
    }

    /// Decodes the address in a request, whose target must exist; its unit may be absent.
    fn decode_existing_target(&self, lun: [u8; 8]) -> Result<Address, Response> {
        let address = Address::decode(lun).ok_or(Response::BadTarget)?;
        match self.device.target(address.target) {
            None => Err(Response::BadTarget),
            Some(_) => Ok(address),
        }
    }

    /// Begins a task management function: the request queues end, or search, its commands.
    fn begin_or_reject_tmf(
        &mut self,
        ring: &mut virtqueue::Queue,
        id: ChainId,
        memory: &Arc<GuestMemory>,
        response_byte: *mut u8,
        function: TaskManagementFunction,
    ) {
        let (address, scope, answer_to_commands) =
            match self.tmf_scope_and_command_response(function) {
                Ok(scope) => scope,
                Err(response) => {
                    // SAFETY: the first writable byte of the chain, which was popped with the memory.
                    unsafe { response_byte.write_volatile(response as u8) };
                    self.push_used(ring, id, 1);
                    return;
                }
            };
        self.functions_begun += 1;
        self.device
            .unanswered_functions
            .fetch_add(1, Ordering::Release);
        self.pending.push(PendingTmf {
            function: self.functions_begun,
            subtype: function.subtype,
            address,
            id,
            response_byte,
            _memory: memory.clone(),
        });
        let tmf = TmfSharedByQueues::new(
            scope,
            answer_to_commands,
            self.functions_begun,
            self.port.clone(),
        );
        self.device.send_tmf_to_request_queues(&tmf);
    }

    /// The address of a function, the commands that it concerns, and the response to them. `Err`: the
    /// response to the function.
    fn tmf_scope_and_command_response(
        &self,
        function: TaskManagementFunction,
    ) -> Result<(Address, TmfScope, Option<Response>), Response> {
        let address = self.decode_existing_target(function.lun)?;
        if function.subtype == TMF_I_T_NEXUS_RESET {
            let scope = TmfScope::Target(address.target);
            return Ok((address, scope, Some(Response::Reset)));
        }
        if self.device.unit(address).is_none() {
            return Err(Response::IncorrectLun);
        }
        let task = TmfScope::Task(address, function.tag);
        let unit = TmfScope::Unit(address);
        let (scope, answer) = match function.subtype {
            TMF_ABORT_TASK => (task, Some(Response::Aborted)),
            TMF_ABORT_TASK_SET | TMF_CLEAR_TASK_SET => (unit, Some(Response::Aborted)),
            TMF_LOGICAL_UNIT_RESET => (unit, Some(Response::Reset)),
            TMF_QUERY_TASK => (task, None),
            TMF_QUERY_TASK_SET => (unit, None),
            // CLEAR ACA among them: there is no such condition.
            _ => return Err(Response::FunctionRejected),
        };
        Ok((address, scope, answer))
    }

    /// Completes a function: no queue has commands of it any more.
    pub fn apply_resets_and_answer_tmf(
        &mut self,
        ring: &mut virtqueue::Queue,
        outcome: &TmfOutcome,
    ) {
        let found = |pending: &PendingTmf| pending.function == outcome.function;
        let Some(at) = self.pending.iter().position(found) else {
            return;
        };
        let pending = self.pending.swap_remove(at);
        let response = match pending.subtype {
            TMF_LOGICAL_UNIT_RESET => {
                if let Some(unit) = self.device.unit(pending.address) {
                    unit.reset(BusOrUnitReset::Unit);
                }
                Response::Ok
            }
            TMF_I_T_NEXUS_RESET => {
                if let Some(target) = self.device.target(pending.address.target) {
                    for (_, unit) in target.units() {
                        unit.on_nexus_lost(NEXUS);
                    }
                }
                Response::Ok
            }
            TMF_QUERY_TASK | TMF_QUERY_TASK_SET if outcome.found => Response::FunctionSucceeded,
            _ => Response::Ok,
        };
        self.answer_tmf(ring, &pending, response);
    }

    /// Writes the response to a function and pushes its chain.
    fn answer_tmf(
        &mut self,
        ring: &mut virtqueue::Queue,
        pending: &PendingTmf,
        response: Response,
    ) {
        // SAFETY: a writable byte of a chain whose memory is held beside it.
        unsafe { pending.response_byte.write_volatile(response as u8) };
        self.push_used(ring, pending.id, 1);
        self.device
            .unanswered_functions
            .fetch_sub(1, Ordering::Release);
    }

    /// Answers pending functions as failed when the queue stops, and the driver escalates. (Waiting for the request queues
    /// might never end: they may be stopped already.)
    pub fn fail_pending_tmfs(&mut self, ring: &mut virtqueue::Queue) {
        for pending in std::mem::take(&mut self.pending) {
            self.answer_tmf(ring, &pending, Response::Failure);
        }
    }

    /// Whether there are used entries to publish.
    pub fn take_has_unpublished(&mut self) -> bool {
        std::mem::take(&mut self.has_unpublished)
    }
}

impl Drop for ControlQueue {
    fn drop(&mut self) {
        // Of a queue that broke.
        let left = self.pending.len();
        self.device
            .unanswered_functions
            .fetch_sub(left, Ordering::Release);
    }
}
