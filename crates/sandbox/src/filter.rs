//! Compiles seccomp filters (seccomp(2)) from the lists of allowed system calls, and installs them.

use std::collections::BTreeMap;
use std::io;
use std::str::FromStr;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};
use syscalls::Sysno;

use crate::ThreadKind;
use crate::calls::{self, AllowedCall, ArgumentCondition};

/// A compiled seccomp filter of one kind of thread.
pub(crate) struct ThreadFilter(BpfProgram);

/// Whether the kernel has filters, and seccompiler knows this architecture.
pub(crate) fn is_seccomp_available() -> bool {
    let action = libc::SECCOMP_RET_TRAP;
    // SAFETY: the call reads the action only.
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

impl ThreadFilter {
    /// The filter for threads of a kind; any call that is not allowed ends the process, by [`crate::violation`].
    pub fn compile(kind: ThreadKind) -> Self {
        let mut rules = BTreeMap::new();
        for AllowedCall { name, allowed_if } in calls::allowed_calls(kind) {
            // This architecture does not have the call.
            let Ok(number) = Sysno::from_str(name) else {
                continue;
            };
            let conditions = allowed_if
                .iter()
                .map(|condition| vec![compile_argument_condition(*condition)])
                .map(|conditions| SeccompRule::new(conditions).expect("it has a condition"));
            rules.insert(i64::from(number.id()), conditions.collect());
        }
        let arch = TargetArch::try_from(std::env::consts::ARCH).expect("there are filters");
        let filter = SeccompFilter::new(rules, SeccompAction::Trap, SeccompAction::Allow, arch)
            .expect("the two actions differ");
        ThreadFilter(filter.try_into().expect("it is shorter than 4096 steps"))
    }

    /// Installs the filter for the calling thread and the threads that it starts.
    pub fn install(&self) -> io::Result<()> {
        let program = libc::sock_fprog {
            // Shorter than 4096, as `compile` has checked.
            len: u16::try_from(self.0.len()).unwrap_or(u16::MAX),
            filter: self.0.as_ptr().cast_mut().cast(),
        };
        // Without this, kernels before 5.16 slow the process down by mitigations of speculative execution.
        let flags = libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
        // SAFETY: the program is only read, and outlives the call; seccompiler's instructions have the
        // kernel's layout.
        let result = unsafe {
            libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                flags,
                &raw const program,
            )
        };
        if result == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }
}

/// The condition on an argument, as seccompiler has it.
fn compile_argument_condition(condition: ArgumentCondition) -> SeccompCondition {
    let (argument, operator, value) = match condition {
        ArgumentCondition::Equals(argument, value) => (argument, SeccompCmpOp::Eq, value),
        ArgumentCondition::HasNoBitOf(argument, bits) => {
            (argument, SeccompCmpOp::MaskedEq(bits), 0)
        }
    };
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)
        .expect("a call has at most six arguments")
}
