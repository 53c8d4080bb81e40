//! Reads and writes allocate nothing, from the first to the last.

use std::sync::Arc;

use block::{DiscardLimits, Geometry};
use libc::iovec;
use scsi::{
    AdapterStep, NexusNumber, NexusPorts, Resume, Status, Target, TargetView, Task, TransportId,
    Unit, UnitOptions, Waker,
};

#[global_allocator]
static ALLOCATOR: test_support::allocations::Counting = test_support::allocations::Counting;

struct NeverResumed;

impl Resume for NeverResumed {
    fn schedule_resume(&self, _token: u64) {}
}

#[test]
fn reads_and_writes_allocate_nothing() {
    let geometry = Geometry {
        size: 1 << 20,
        logical_block_size: 512,
        physical_block_size: 512,
        min_io_size: 0,
        opt_io_size: 0,
        discard: DiscardLimits {
            granularity: 512,
            max_bytes: 1 << 20,
        },
    };
    let unit = Unit::new(UnitOptions::default(), geometry).unwrap();
    let target = Target::new();
    target
        .add_unit_and_raise_attentions(0, Arc::new(unit))
        .unwrap();
    let ports = NexusPorts {
        initiator: TransportId::Sas(1),
        target: 1,
    };
    target.attach_initiator_and_start_units(NexusNumber(0), &ports);
    let mut view = TargetView::new(target);
    let mut task = Task::new(Waker {
        resume: Arc::new(NeverResumed),
        token: 0,
    });
    let mut memory = [0; 1024];
    let mut run = |cdb: &[u8]| {
        task.receive(&mut view, 0, NexusNumber(0), cdb);
        let mut list = [iovec {
            iov_base: memory.as_mut_ptr().cast(),
            iov_len: memory.len(),
        }];
        // SAFETY: memory and list stay until the task is finished, below.
        let mut step = unsafe { task.run(list.as_mut_ptr(), 1, 1024) };
        while let AdapterStep::Submit(_) = step {
            step = task.on_step_completed(Ok(()));
        }
        task.status()
    };
    assert_eq!(run(&[0; 6]), Status::CheckCondition, "it was switched on");
    let before = test_support::allocations::of_this_thread();
    for _ in 0..10 {
        for opcode in [0x28, 0x2a] {
            let status = run(&[opcode, 0x10, 0, 0, 0, 5, 0, 0, 2, 0]);
            assert_eq!(status, Status::Good);
        }
        for opcode in [0x08, 0x0a] {
            assert_eq!(run(&[opcode, 0, 0, 5, 2, 0]), Status::Good);
        }
        for opcode in [0x88, 0x8a] {
            let status = run(&[opcode, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 2, 0, 0]);
            assert_eq!(status, Status::Good);
        }
        assert_eq!(run(&[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0]), Status::Good);
    }
    assert_eq!(test_support::allocations::of_this_thread() - before, 0);
    assert_eq!(run(&[0x12, 0, 0, 0, 96, 0]), Status::Good);
    assert!(
        test_support::allocations::of_this_thread() > before,
        "they are counted"
    );
}
