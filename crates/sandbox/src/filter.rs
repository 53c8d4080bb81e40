//! From a list of names to a filter in the kernel (seccomp(2)).

use std::collections::BTreeMap;
use std::io;
use std::str::FromStr;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};
use syscalls::Sysno;

use crate::Thread;
use crate::calls::{self, Call};

/// A filter, compiled.
pub(crate) struct Filter(BpfProgram);

/// Whether the kernel has filters, and seccompiler this machine.
pub(crate) fn available() -> bool {
    let action = libc::SECCOMP_RET_TRAP;
    // SAFETY: the call reads the action it is given, and nothing else.
    let has_trap = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_GET_ACTION_AVAIL,
            0,
            &raw const action,
        )
    } == 0;
    has_trap && TargetArch::try_from(std::env::consts::ARCH).is_ok()
}

impl Filter {
    /// What threads of this kind may do; anything else ends the process, by [`crate::violation`].
    pub fn of(thread: Thread) -> Self {
        let mut rules = BTreeMap::new();
        for Call { name, allowed_if } in calls::of(thread) {
            // Another machine has other calls, and not all.
            let Ok(number) = Sysno::from_str(name) else {
                continue;
            };
            let conditions = allowed_if
                .iter()
                .map(|condition| vec![condition.compile()])
                .map(|conditions| SeccompRule::new(conditions).expect("it has a condition"));
            rules.insert(i64::from(number.id()), conditions.collect());
        }
        let arch = TargetArch::try_from(std::env::consts::ARCH).expect("there are filters");
        let filter = SeccompFilter::new(rules, SeccompAction::Trap, SeccompAction::Allow, arch)
            .expect("the two actions differ");
        Filter(filter.try_into().expect("it is shorter than 4096 steps"))
    }

    /// For the calling thread, and those that it starts.
    pub fn install(&self) -> io::Result<()> {
        let program = libc::sock_fprog {
            // Shorter than 4096, which was looked at.
            len: u16::try_from(self.0.len()).unwrap_or(u16::MAX),
            filter: self.0.as_ptr().cast_mut().cast(),
        };
        // Kernels before 5.16 otherwise make the whole process slower against a leak between its own threads.
        let flags = libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
        // SAFETY: the program is read, and lives until the call is over; seccompiler's instructions are
        // laid out as the kernel's.
        let done = unsafe {
            libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                flags,
                &raw const program,
            )
        };
        if done == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }
}

/// A condition on one argument of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Condition {
    /// It is this.
    Is(u8, u64),
    /// It has none of these bits.
    HasNot(u8, u64),
}

impl Condition {
    fn compile(self) -> SeccompCondition {
        let (argument, operator, value) = match self {
            Condition::Is(argument, value) => (argument, SeccompCmpOp::Eq, value),
            Condition::HasNot(argument, bits) => (argument, SeccompCmpOp::MaskedEq(bits), 0),
        };
        SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)
            .expect("a call has at most six arguments")
    }
}
