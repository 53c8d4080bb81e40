//! The ELF note of a probe: a `nop`, its address and where its arguments are, for tools to find.
//!
//! The format is SystemTap's, version 3: a note of type 3 named `stapsdt` in a section `.note.stapsdt`, which is not
//! loaded, with the addresses of the `nop`, of a byte in `.stapsdt.base` (by which a tool sees that the file was moved
//! since it was linked), and of the semaphore; then provider, name and arguments as strings. An argument is
//! its size, negative if signed, and the register that holds it at the `nop`, in the assembler's AT&T spelling.
//!
//! That byte lies among the instructions, so that both move alike (`perf` takes it for granted), and linkers have to keep
//! it. `bpftrace` knows six arguments at most.
//!
//! Each probe is one function that is never inlined, so that there is one note and one `nop`. Strings are addresses of bytes
//! that end with a zero.

use std::sync::atomic::AtomicU16;

/// The number of attached tracers. The kernel writes to it.
#[repr(transparent)]
pub(crate) struct Semaphore {
    #[allow(dead_code, reason = "read by the instruction in `is_raised!`")]
    tracers: AtomicU16,
}

impl Semaphore {
    pub(crate) const fn new() -> Self {
        Semaphore {
            tracers: AtomicU16::new(0),
        }
    }
}

/// Whether a tracer is attached, in two instructions: a load of an atomic would take three.
macro_rules! is_raised {
    ($semaphore:ident) => {{
        // SAFETY: it compares an aligned static with zero, and goes on at one of two places.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            std::arch::asm!(
                "cmpw $0, {semaphore}(%rip)",
                "jne {raised}",
                semaphore = sym $semaphore,
                raised = label { return true },
                options(att_syntax, readonly, nostack),
            );
        }
        false
    }};
}

/// A module for each probe, with `enabled` and `fire`.
macro_rules! probes {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $kind:tt),+);)+) => {
        $(
            $(#[$doc])*
            pub mod $name {
                #[unsafe(link_section = ".probes")]
                static SEMAPHORE: $crate::tracepoints::elf_note::Semaphore = $crate::tracepoints::elf_note::Semaphore::new();

                /// Whether a tracer is attached.
                #[inline(always)]
                #[must_use]
                pub fn enabled() -> bool {
                    $crate::tracepoints::elf_note::is_raised!(SEMAPHORE)
                }

                /// Fires the probe. To be called if it is enabled.
                #[cold]
                #[inline(never)]
                #[allow(clippy::too_many_arguments, reason = "each is the probe's own")]
                pub fn fire($($arg: $crate::tracepoints::elf_note::argument!(type $kind)),+) {
                    $crate::tracepoints::elf_note::nop!($name, SEMAPHORE, $($arg: $kind),+);
                }
            }
        )+
    };
}

/// The type of an argument in Rust, and its description for tools.
macro_rules! argument {
    (type str) => {
        &std::ffi::CStr
    };
    (type $kind:tt) => {
        $kind
    };
    (value $arg:ident str) => {
        $arg.as_ptr()
    };
    (value $arg:ident $kind:tt) => {
        $arg
    };
    (note $arg:ident i64) => {
        concat!("-8@{", stringify!($arg), "}")
    };
    (note $arg:ident $kind:tt) => {
        concat!("8@{", stringify!($arg), "}")
    };
}

/// The `nop` and its note.
macro_rules! nop {
    ($name:ident, $semaphore:ident, $first:ident: $first_kind:tt $(, $arg:ident: $kind:tt)*) => {
        #[cfg(not(target_arch = "x86_64"))]
        let _ = ($first $(, $arg)*);
        // SAFETY: the one instruction does nothing; all else goes to other sections. Registers are only
        // read.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            std::arch::asm!(
                "990: nop",
                ".pushsection .note.stapsdt, \"\", \"note\"",
                ".balign 4",
                ".4byte 992f - 991f, 994f - 993f, 3",
                "991: .asciz \"stapsdt\"",
                "992: .balign 4",
                "993: .8byte 990b",
                ".8byte _.stapsdt.base",
                ".8byte {semaphore}",
                ".asciz \"blockplane\"",
                concat!(".asciz \"", stringify!($name), "\""),
                concat!(
                    ".asciz \"",
                    $crate::tracepoints::elf_note::argument!(note $first $first_kind),
                    $(" ", $crate::tracepoints::elf_note::argument!(note $arg $kind),)*
                    "\""
                ),
                "994: .balign 4",
                ".popsection",
                ".ifndef _.stapsdt.base",
                ".pushsection .stapsdt.base, \"axGR\", \"progbits\", .stapsdt.base, comdat",
                ".weak _.stapsdt.base",
                ".hidden _.stapsdt.base",
                "_.stapsdt.base: .space 1",
                ".size _.stapsdt.base, 1",
                ".popsection",
                ".endif",
                semaphore = sym $semaphore,
                $first = in(reg) $crate::tracepoints::elf_note::argument!(value $first $first_kind),
                $($arg = in(reg) $crate::tracepoints::elf_note::argument!(value $arg $kind),)*
                options(att_syntax, readonly, nostack, preserves_flags),
            )
        }
    };
}

pub(crate) use {argument, is_raised, nop, probes};
