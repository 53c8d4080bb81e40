//! Reads and writes allocate nothing, from the first to the last.

use libc::iovec;
use scsi::{AdapterStep, Status};
use test_support::allocations;

use crate::rig::{LUN, Rig, cdb10, cdb16};

#[global_allocator]
static ALLOCATOR: allocations::Counting = allocations::Counting;

#[test]
fn reads_and_writes_allocate_nothing() {
    let mut rig = Rig::plain();
    let mut task = rig.task(0);
    let mut memory = [0; 1024];
    let mut run = |cdb: &[u8]| {
        task.receive(&mut rig.view, LUN, rig.nexus, cdb);
        let mut list = [iovec {
            iov_base: memory.as_mut_ptr().cast(),
            iov_len: memory.len(),
        }];
        // SAFETY: memory and list stay until the task is finished, below.
        let mut step = unsafe { task.run(list.as_mut_ptr(), 1, 1024) };
        while let AdapterStep::Submit(_) = step {
            step = task.on_step_completed(Ok(()));
        }
        assert_eq!(task.status(), Status::Good, "{cdb:x?}");
    };
    let before = allocations::of_this_thread();
    for _ in 0..10 {
        for opcode in [0x28, 0x2a] {
            run(&cdb10(opcode, 0x10, 5, 2));
        }
        for opcode in [0x08, 0x0a] {
            run(&[opcode, 0, 0, 5, 2, 0]);
        }
        for opcode in [0x88, 0x8a] {
            run(&cdb16(opcode, 0, 5, 2));
        }
        run(&cdb10(0x35, 0, 0, 0));
    }
    assert_eq!(allocations::of_this_thread() - before, 0);
    run(&[0x12, 0, 0, 0, 96, 0]);
    assert!(allocations::of_this_thread() > before, "they are counted");
}
