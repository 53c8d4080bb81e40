//! A SCSI disk as a pure state machine: SPC-4, SBC-3 and SAM-5, for any transport.
//!
//! An adapter (a controller chip, virtio) has the initiators and their memory, this crate implements the commands, and a
//! node has the data. Nothing here makes a system call, opens a file or starts a thread.
//!
//! - [`Unit`]: a logical unit, shared by all threads. A read or write needs one word of it and its size; all other
//!   state is behind a lock.
//! - [`Target`]: units by number. Each thread has a [`TargetView`] of it.
//! - [`Task`]: one command. [`Task::receive`] parses it and returns the data phase; [`Task::run`] gets the initiator's buffers; the
//!   adapter executes each [`AdapterStep`] that is returned, and [`Task::on_step_completed`] returns the next, until the task is
//!   finished. Reads and writes use the initiator's own buffers, allocate nothing and take no lock.
//! - [`PlainTransfer`]: a plain read or write, for adapters that execute it without a task.
//! - [`TaskSet`]: the order of the tasks of a queue.
//!
//! Adapters implement task management, since they have the tasks: they [cancel](Task::cancel) them, wait for requests
//! in flight, and then report the event to the unit, which raises unit attentions: [`Unit::reset`] for LOGICAL UNIT
//! RESET (and for each unit after TARGET RESET or a reset of the bus), [`Unit::on_nexus_lost`] for I_T NEXUS RESET,
//! [`Unit::raise_commands_cleared_attention`] for CLEAR TASK SET, nothing for ABORT TASK and ABORT TASK SET.
//!
//! ```ignore
//! task.receive(view, 0, nexus, cdb);
//! let count = u32::try_from(iov.len()).expect("a list of segments");
//! // SAFETY: the segments are the initiator's memory, and stay.
//! let mut step = unsafe { task.run(iov.as_mut_ptr(), count, len) };
//! while let scsi::AdapterStep::Submit(request) = step {
//!     step = task.on_step_completed(submit(request)); // Later, in earnest.
//! }
//! println!("{:?}, {} bytes, {:x?}", task.status(), task.transferred_bytes(), task.sense());
//! ```

mod access_word;
mod buffer;
mod bytes;
mod capacity;
mod cdb;
mod commands;
mod errno;
mod identity;
mod inquiry;
mod locked_state;
mod mode_pages;
mod mode_select;
mod mode_sense;
mod nexus;
mod op_and_first_lba;
mod persistent_in;
mod persistent_out;
mod plain_transfer;
mod prepare;
mod receive;
mod refusal;
mod report;
mod reservation_store;
mod reservation_text;
mod reservations;
mod segments;
mod sense;
mod step;
mod steps;
mod target;
mod task;
mod task_mutex;
mod task_set;
mod unit;
mod unit_attention;
mod unit_state;
mod vpd;

pub use identity::{IdentityError, MAX_SERIAL_BYTES, UnitIdentity};
pub use nexus::{NexusNumber, NexusPorts, TransportId};
pub use op_and_first_lba::OpAndFirstLba;
pub use plain_transfer::{CdbWords, PlainTransfer};
pub use reservation_store::ReservationStore;
pub use reservation_text::{NO_RESERVATIONS, ReservationTextError};
pub use sense::{MAX_SENSE_BYTES, Sense, SenseData, SenseKey, SenseKeySpecific};
pub use step::{AdapterStep, DataPhase, Status};
pub use target::{AddUnitError, MAX_LUN, Target, TargetView, decode_lun, encode_lun};
pub use task::Task;
pub use task_mutex::{Resume, Waker};
pub use task_set::{StartOrWait, TaskAttribute, TaskSet};
pub use unit::{BusOrUnitReset, MAX_TRANSFER_BYTES, Unit, UnitError, UnitOptions};
pub use unit_state::UnitState;
