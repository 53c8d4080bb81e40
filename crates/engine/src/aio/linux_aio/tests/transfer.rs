//! Tests of control blocks, and of short transfers: see `model_tests.rs` for their data.

use super::*;
use crate::aio::abi::{
    IOCB_CMD_FDSYNC, IOCB_CMD_PREAD, IOCB_CMD_PREADV, IOCB_CMD_PWRITE, IOCB_CMD_PWRITEV,
    IOCB_FLAG_RESFD, RWF_DSYNC,
};

#[test]
fn control_blocks_have_the_fields_that_the_kernel_expects() {
    let mut aio = engine(16, 0);
    let mut one = Buffers::sized(&[8], 0);
    let mut two = Buffers::sized(&[8, 4], 0);
    aio.put(one.io(Op::Read, 100, 0)).unwrap();
    aio.put(two.io(Op::Read, 100, 1)).unwrap();
    aio.put(one.io(WRITE, 100, 2)).unwrap();
    aio.put(two.durable(100, 3)).unwrap();
    // A flush must be clean whatever the submitter left in the other fields.
    aio.put(two.io(Op::Flush, 100, 4)).unwrap();
    aio.submit();
    let resfd = aio.event_fd.as_raw_fd().cast_unsigned();
    let got: Vec<_> = aio.kernel.held.iter().map(|h| h.iocb).collect();
    let fields = |i: &Iocb| (i.opcode, i.rw_flags, i.buf, i.nbytes, i.offset);
    let (single, array) = (one.memory[0].as_ptr() as u64, two.iov.as_ptr() as u64);
    assert_eq!(fields(&got[0]), (IOCB_CMD_PREAD, 0, single, 8, 100));
    assert_eq!(fields(&got[1]), (IOCB_CMD_PREADV, 0, array, 2, 100));
    assert_eq!(fields(&got[2]), (IOCB_CMD_PWRITE, 0, single, 8, 100));
    assert_eq!(
        fields(&got[3]),
        (IOCB_CMD_PWRITEV, RWF_DSYNC, array, 2, 100)
    );
    assert_eq!(fields(&got[4]), (IOCB_CMD_FDSYNC, 0, 0, 0, 0));
    assert!(
        got.iter()
            .all(|i| (i.fildes, i.flags, i.resfd) == (7, IOCB_FLAG_RESFD, resfd))
    );
    aio.kernel.complete_all();
    assert_eq!(aio.iterate().len(), 5);
}

/// Buffers with odd boundaries and an empty one inside.
const SIZES: [usize; 5] = [3, 0, 5, 1, 2];
const LEN: usize = 11;

#[test]
fn a_short_write_is_resumed_wherever_it_ended_with_its_flags() {
    for first in 1..LEN {
        let mut aio = engine(4, 0);
        let data: Vec<u8> = (200..211).collect();
        let mut rest = data.as_slice();
        let memory = SIZES.map(|len| rest.split_off(..len).unwrap().to_vec());
        let mut buffers = Buffers::new(memory.to_vec());
        aio.put(buffers.durable(20, 0)).unwrap();
        aio.submit();
        aio.kernel.complete(0, Outcome::Short(first));
        assert_eq!(aio.iterate(), []);
        assert_eq!(aio.kernel.held[0].iocb.rw_flags, RWF_DSYNC);
        aio.kernel.complete(0, Outcome::Whole);
        assert_eq!(aio.iterate(), [(0, Ok(()))]);
        assert_eq!(aio.kernel.disk[20..31], data);
        assert_eq!((aio.kernel.disk[19], aio.kernel.disk[31]), (19, 31));
        assert_eq!(aio.stats().resumed, 1);
    }
}

#[test]
fn resumed_requests_are_submitted_first_and_in_order() {
    let mut aio = engine(16, 4);
    let mut buffers: Vec<_> = (0..3).map(|_| Buffers::sized(&[4, 4], 0)).collect();
    for (token, buffers) in (0..).zip(&mut buffers) {
        aio.put(buffers.io(Op::Read, 0, token)).unwrap();
    }
    aio.submit();
    // Two flushes wait behind an EAGAIN when the short reads come back.
    aio.kernel.script.push_back(Err(Errno::AGAIN));
    aio.put_flush(3).unwrap();
    aio.put_flush(4).unwrap();
    aio.submit();
    aio.kernel.complete(2, Outcome::Short(1));
    aio.kernel.complete(0, Outcome::Short(5));
    assert_eq!(aio.iterate(), []);
    assert_eq!(aio.held(), [1, 2, 0, 3, 4]);
    aio.kernel.complete_all();
    assert_eq!(aio.iterate().len(), 5);
}

#[test]
fn requests_without_bytes_succeed() {
    let mut aio = engine(4, 0);
    let (mut none, mut empty) = (Buffers::sized(&[], 0), Buffers::sized(&[0, 0], 0));
    aio.put(none.io(Op::Read, 0, 0)).unwrap();
    aio.put(none.io(WRITE, 0, 1)).unwrap();
    aio.put(empty.io(Op::Read, 0, 2)).unwrap();
    aio.put(empty.io(WRITE, 0, 3)).unwrap();
    aio.kernel.complete_all();
    assert_eq!(aio.iterate(), [0, 1, 2, 3].map(|token| (token, Ok(()))));
}
