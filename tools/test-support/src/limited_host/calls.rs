//! System calls that the kernel refuses (seccomp(2)).
//!
//! A filter holds for the calling thread and for all threads that it starts afterwards, and for ever. It does not hold
//! for what the kernel does by itself: requests of a ring, and of Linux AIO.

use std::collections::BTreeMap;
use std::io;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

/// A system call, always or with certain arguments.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// Its number.
    pub number: libc::c_long,
    /// Only if this argument (from 0) has all of these bits.
    pub with_bits: Option<(u8, u64)>,
}

impl Call {
    /// Whatever its arguments are.
    #[must_use]
    pub fn any(number: libc::c_long) -> Self {
        Call {
            number,
            with_bits: None,
        }
    }
}

/// Refuses these calls of the calling thread, and of those that it starts, with this error.
///
/// # Errors
/// The kernel has no filters, or allows no more.
///
/// # Panics
/// If seccompiler does not know this machine.
pub fn refuse(calls: &[Call], errno: libc::c_int) -> io::Result<()> {
    let mut rules = BTreeMap::<i64, Vec<SeccompRule>>::new();
    for call in calls {
        let conditions = rules.entry(call.number).or_default();
        if let Some((argument, bits)) = call.with_bits {
            let operator = SeccompCmpOp::MaskedEq(bits);
            let condition =
                SeccompCondition::new(argument, SeccompCmpArgLen::Qword, operator, bits)
                    .expect("a call has at most six arguments");
            conditions.push(SeccompRule::new(vec![condition]).expect("it has a condition"));
        }
    }
    let refuses = SeccompAction::Errno(errno.unsigned_abs());
    let arch = TargetArch::try_from(std::env::consts::ARCH).expect("a known machine");
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuses, arch);
    let program: BpfProgram = filter
        .and_then(TryInto::try_into)
        .expect("a short filter of two actions");
    install(&program)
}

/// Without a look at what the thread may do already: in the sandbox it may not ask.
fn install(program: &BpfProgram) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: u16::try_from(program.len()).expect("a short filter"),
        filter: program.as_ptr().cast_mut().cast(),
    };
    let (mode, flags) = (
        libc::SECCOMP_SET_MODE_FILTER,
        libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW,
    );
    // SAFETY: the program is read, and lives until the call is over; seccompiler's instructions are laid out as the kernel's.
    let set = || unsafe { libc::syscall(libc::SYS_seccomp, mode, flags, &raw const program) };
    if set() == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() != Some(libc::EACCES) {
        return Err(error);
    }
    // SAFETY: a call without memory.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } == 0 && set() == 0 {
        return Ok(());
    }
    Err(io::Error::last_os_error())
}

/// Runs `what` on a thread of its own, where these calls fail with `errno`. `None`: this machine has no filters, which is
/// [reported](crate::report).
///
/// # Panics
/// If `what` does.
pub fn with_errno<R: Send>(
    calls: &[Call],
    errno: libc::c_int,
    what: impl FnOnce() -> R + Send,
) -> Option<R> {
    // The report is to have the test's name.
    let name = std::thread::current().name().unwrap_or("test").to_owned();
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name(name)
            .spawn_scoped(scope, || match refuse(calls, errno) {
                Ok(()) => Some(what()),
                Err(error) => {
                    crate::report::not_run(&format!("no filters of system calls: {error}"));
                    None
                }
            });
        match thread.expect("a thread").join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing() -> io::Result<()> {
        // SAFETY: a call without memory, of a descriptor that is none.
        match unsafe { libc::fallocate(-1, libc::FALLOC_FL_PUNCH_HOLE, 0, 1) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    #[test]
    fn a_refused_call_fails_on_that_thread_and_on_those_that_it_starts() {
        let call = Call {
            number: libc::SYS_fallocate,
            with_bits: Some((1, 2)),
        };
        let errno = || nothing().unwrap_err().raw_os_error();
        let refused = with_errno(&[call], libc::EDOM, || {
            let inherited = std::thread::scope(|scope| scope.spawn(errno).join());
            (errno(), inherited.expect("no panic"))
        });
        if let Some(refused) = refused {
            assert_eq!(refused, (Some(libc::EDOM), Some(libc::EDOM)));
        }
        assert_eq!(errno(), Some(libc::EBADF));
    }

    #[test]
    fn calls_with_other_arguments_are_not_refused() {
        let call = Call {
            number: libc::SYS_fallocate,
            with_bits: Some((1, 0x10)),
        };
        let errno = with_errno(&[call], libc::EDOM, || {
            nothing().unwrap_err().raw_os_error()
        });
        assert!(matches!(errno, None | Some(Some(libc::EBADF))));
    }
}
