//! Starts QEMU, listens to the guest's console, and ends within a bounded time, whatever happens.
//!
//! The processor is emulated (`-accel tcg`), so this works in virtual machines and containers.
//! Guest memory is a shared memfd, as vhost-user wants. Networks and displays are left out.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::attach::Extras;
use crate::device::Chipset;
use crate::emulator::Emulator;
use crate::error::{Error, Result};
use crate::report::{Event, Report};
use crate::silence::SilenceLimit;

/// Guests at a time in one process: each keeps a core busy, and more of them only time out.
const MAX_GUESTS: usize = 2;
/// From the scenario's end to QEMU's: the guest has nothing left to do but to switch off.
const POWER_OFF_LIMIT: Duration = Duration::from_secs(30);

/// A machine to boot.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    pub(crate) emulator: Emulator,
    pub(crate) chipset: Chipset,
    /// QEMU's options for the disks, see [`attach`](crate::attach).
    pub(crate) disks: Vec<String>,
    /// What these options were made with.
    pub(crate) extras: Extras,
    /// QEMU's options for the firmware, if it is not its default.
    pub(crate) firmware: Vec<String>,
    pub(crate) start: Start,
    /// Virtual CPUs.
    pub(crate) cpus: u16,
    /// Where QEMU's monitor listens, if it is to have one; then also a slot that disks can be plugged into.
    pub(crate) monitor: Option<PathBuf>,
    /// Where the guest comes from, if it runs elsewhere.
    pub(crate) incoming: Option<PathBuf>,
    /// From start to the scenario's end.
    pub(crate) limit: Duration,
    /// The longest time without a line on the console, beside that for which QEMU had no processor.
    pub(crate) silence_limit: Duration,
}

/// What the guest runs.
#[derive(Clone, Debug)]
pub(crate) enum Start {
    /// A kernel that QEMU loads.
    Kernel {
        vmlinuz: PathBuf,
        initramfs: PathBuf,
        /// Appended to the kernel's command line.
        parameters: String,
    },
    /// What the firmware finds on the disk.
    Disk,
}

/// Errors are shown; everything else only makes an emulated serial line slow.
/// A panic ends QEMU at once, as it asks for a reboot. There are no secrets to mitigate for.
/// The kernel's check of its timer counts ticks against the emulated processor's speed, and panics
/// where a busy host makes that wait.
pub(crate) const KERNEL_PARAMETERS: &str =
    "console=ttyS0 loglevel=4 panic=-1 mitigations=off no_timer_check";
/// Memory of a guest; most of it holds the initramfs and its temporary files.
const MEMORY: &str = "512M";

/// What the reader threads send.
enum Input {
    Console(String),
    Stderr(String),
    /// That of QEMU number so many.
    ConsoleClosed(u32),
}

/// Boots the machine and follows it until it is off. `ask` answers the guest's questions.
pub(crate) fn run(
    machine: &Machine,
    mut ask: impl FnMut(&str, &mut Guest),
    mut step: impl FnMut(&str),
) -> Result<Report> {
    let _place = GuestPermit::wait();
    let (sender, inputs) = channel();
    let mut guest = Guest {
        qemu: Qemu::start(machine, 0, &sender)?,
        inputs,
        sender: Some(sender),
        report: Report::default(),
        stderr: String::new(),
    };
    guest.follow(machine, &mut ask, &mut step)?;
    Ok(std::mem::take(&mut guest.report))
}

/// The command line after the program.
fn arguments(machine: &Machine) -> Vec<String> {
    let path = |path: &PathBuf| path.display().to_string();
    let mut arguments = [
        "-machine",
        &format!("{},memory-backend=mem", machine.chipset.machine()),
        "-accel",
        "tcg,thread=multi",
        // With RDRAND: without it the kernel gathers randomness for 4 s before mkfs gets any. Tables of pages with five
        // levels cost an emulated processor a fifth of its time.
        "-cpu",
        "max,la57=off",
        "-object",
        &format!("memory-backend-memfd,id=mem,size={MEMORY},share=on"),
        "-m",
        MEMORY,
        "-smp",
        &machine.cpus.to_string(),
        "-nodefaults",
        "-no-user-config",
        "-no-reboot",
        "-display",
        "none",
        "-serial",
        "stdio",
    ]
    .map(str::to_owned)
    .to_vec();
    if let Start::Kernel {
        vmlinuz,
        initramfs,
        parameters,
    } = &machine.start
    {
        let append = format!("{KERNEL_PARAMETERS} {parameters}");
        let (vmlinuz, initramfs) = (path(vmlinuz), path(initramfs));
        arguments.extend(
            [
                "-kernel", &vmlinuz, "-initrd", &initramfs, "-append", &append,
            ]
            .map(str::to_owned),
        );
    }
    arguments.extend_from_slice(&machine.firmware);
    arguments.extend_from_slice(&machine.disks);
    if let Some(incoming) = &machine.incoming {
        arguments.extend(["-incoming".to_owned(), format!("unix:{}", path(incoming))]);
    }
    if let Some(monitor) = &machine.monitor {
        let monitor = path(monitor).replace(',', ",,");
        arguments.extend([
            "-qmp".to_owned(),
            format!("unix:{monitor},server=on,wait=off"),
        ]);
        arguments.extend(["-device", "pcie-root-port,id=slot0,chassis=1"].map(str::to_owned));
    }
    arguments
}

/// A running QEMU; killed when dropped.
pub(crate) struct Qemu {
    child: Child,
    keyboard: Option<ChildStdin>,
    number: u32,
}

impl Qemu {
    fn start(machine: &Machine, number: u32, sender: &Sender<Input>) -> Result<Self> {
        let mut command = machine.emulator.command();
        command
            .args(arguments(machine))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command
            .spawn()
            .map_err(Error::io("start qemu-system-x86_64"))?;
        if let Some(stdout) = child.stdout.take() {
            let last = Some(Input::ConsoleClosed(number));
            forward(stdout, sender.clone(), Input::Console, last);
        }
        if let Some(stderr) = child.stderr.take() {
            forward(stderr, sender.clone(), Input::Stderr, None);
        }
        let keyboard = child.stdin.take();
        Ok(Self {
            child,
            keyboard,
            number,
        })
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        // Both fail only if QEMU has ended already, which is what we want.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A guest, wherever it runs at the moment.
pub(crate) struct Guest {
    qemu: Qemu,
    inputs: Receiver<Input>,
    /// For the next QEMU; `None` once there will be none.
    sender: Option<Sender<Input>>,
    report: Report,
    stderr: String,
}

impl Guest {
    /// Returns when the scenario is complete and QEMU has ended with status 0.
    fn follow(
        &mut self,
        machine: &Machine,
        ask: &mut dyn FnMut(&str, &mut Guest),
        step: &mut dyn FnMut(&str),
    ) -> Result<()> {
        let mut deadline = Instant::now() + machine.limit;
        let mut silence = SilenceLimit::new(machine.silence_limit, self.qemu.child.id());
        let mut complete = false;
        loop {
            let until = deadline.min(silence.ends());
            let input = self
                .inputs
                .recv_timeout(until.saturating_duration_since(Instant::now()));
            if matches!(input, Ok(Input::Console(_))) {
                silence = SilenceLimit::new(machine.silence_limit, self.qemu.child.id());
            }
            match input {
                Ok(Input::Stderr(line)) => self.stderr.push_str(&(line + "\n")),
                Ok(Input::Console(line)) => match self.report.line(&line) {
                    Event::None => {}
                    Event::Step(name) => step(&name),
                    Event::Ask(question) => {
                        ask(&question, self);
                        self.answer()?;
                        // The guest was waiting for us.
                        silence = SilenceLimit::new(machine.silence_limit, self.qemu.child.id());
                    }
                    Event::Fail(step, reason) => {
                        return Err(Error::StepFailed {
                            step,
                            reason,
                            console: self.report.console_tail(),
                            daemon: String::new(),
                        });
                    }
                    Event::End => {
                        complete = true;
                        deadline = Instant::now() + POWER_OFF_LIMIT;
                    }
                },
                Err(RecvTimeoutError::Timeout)
                    if silence.ends() < deadline && silence.prolong() => {}
                Err(RecvTimeoutError::Timeout) if silence.ends() < deadline => {
                    return Err(Error::Silent {
                        limit: machine.silence_limit,
                        stderr: self.stderr.clone(),
                        console: self.report.console_tail(),
                        daemon: String::new(),
                    });
                }
                Err(RecvTimeoutError::Timeout) => {
                    return Err(Error::Timeout {
                        limit: machine.limit,
                        stderr: self.stderr.clone(),
                        console: self.report.console_tail(),
                        daemon: String::new(),
                    });
                }
                // The guest has left it.
                Ok(Input::ConsoleClosed(number)) if number != self.qemu.number => {}
                Ok(Input::ConsoleClosed(_)) | Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        let status = self.wait()?;
        self.sender = None;
        // What QEMU said last is on its way when the console closes.
        while let Ok(input) = self.inputs.recv_timeout(Duration::from_secs(1)) {
            if let Input::Stderr(line) = input {
                self.stderr.push_str(&(line + "\n"));
            }
        }
        if complete && status.success() {
            return Ok(());
        }
        Err(Error::GuestDied {
            status,
            stderr: self.stderr.clone(),
            console: self.report.console_tail(),
            daemon: String::new(),
        })
    }

    /// Lets the guest go on after a question.
    fn answer(&mut self) -> Result<()> {
        let Some(keyboard) = &mut self.qemu.keyboard else {
            return Ok(());
        };
        keyboard
            .write_all(b"\n")
            .and_then(|()| keyboard.flush())
            .map_err(Error::io("write to the guest's console"))
    }

    /// Starts the QEMU to which the guest is to move.
    pub(crate) fn start_next(&self, machine: &Machine) -> Result<Qemu> {
        let sender = self
            .sender
            .as_ref()
            .ok_or_else(|| Error::Migration("the guest is off".to_owned()))?;
        Qemu::start(machine, self.qemu.number + 1, sender)
    }

    /// It has: the one that it came from ends.
    pub(crate) fn go_on_in(&mut self, next: Qemu) {
        self.qemu = next;
    }

    fn wait(&mut self) -> Result<ExitStatus> {
        self.qemu.child.wait().map_err(Error::io("wait for QEMU"))
    }
}

/// Sends each line of `from` on a thread of its own, which ends with the stream.
fn forward(
    from: impl Read + Send + 'static,
    to: Sender<Input>,
    wrap: impl Fn(String) -> Input + Send + 'static,
    last: Option<Input>,
) {
    thread::spawn(move || {
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        // Bytes, not `lines()`: firmware and a panicking kernel may print what is not UTF-8.
        while matches!(from.read_until(b'\n', &mut line), Ok(count) if count > 0) {
            let text = String::from_utf8_lossy(&line)
                .trim_end_matches('\n')
                .to_owned();
            if to.send(wrap(text)).is_err() {
                return;
            }
            line.clear();
        }
        if let Some(last) = last {
            // The receiver may be gone; ignore the error.
            let _ = to.send(last);
        }
    });
}

static GUESTS: Mutex<usize> = Mutex::new(0);
static GUEST_ENDED: Condvar = Condvar::new();

/// A permit for a running guest; their number is limited.
struct GuestPermit;

impl GuestPermit {
    /// Waits for a permit.
    fn wait() -> Self {
        let guests = GUESTS.lock().unwrap_or_else(PoisonError::into_inner);
        let mut guests = GUEST_ENDED
            .wait_while(guests, |guests| *guests >= MAX_GUESTS)
            .unwrap_or_else(PoisonError::into_inner);
        *guests += 1;
        Self
    }
}

impl Drop for GuestPermit {
    fn drop(&mut self) {
        *GUESTS.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        GUEST_ENDED.notify_one();
    }
}
