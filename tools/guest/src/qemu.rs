//! Starts QEMU, listens to the guest's console, and ends within a bounded time, whatever happens.
//!
//! The processor is emulated (`-accel tcg`), so this works in virtual machines and containers.
//! Guest memory is a shared memfd, as vhost-user wants. Displays are left out.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::attach::{self, Extras};
use crate::emulator::Emulator;
use crate::error::{Error, Result};
use crate::monitor;
use crate::report::{Event, Report};
use crate::server::Server;

/// Guests at a time in one process: each keeps a core busy, and more of them only time out.
const MAX_GUESTS: usize = 2;
/// From the scenario's end to QEMU's: the guest has nothing left to do but to switch off.
const POWER_OFF_LIMIT: Duration = Duration::from_secs(30);
/// For a guest to move, with memory of half a GiB, most of it unused: only a migration that does not end takes it.
const MOVE_LIMIT: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A machine to boot.
#[derive(Debug)]
pub(crate) struct Machine {
    /// For those who wait.
    pub(crate) title: String,
    pub(crate) emulator: Emulator,
    /// With the PCI bus of the i440FX, or with PCI Express.
    pub(crate) is_pc: bool,
    /// QEMU's options for the disks, see [`attach`](crate::attach).
    pub(crate) disks: Vec<String>,
    /// What these options were made with.
    pub(crate) extras: Extras,
    /// QEMU's options for the firmware, if it is not its default.
    pub(crate) firmware: Vec<String>,
    /// A kernel that QEMU loads, or `None`: what the firmware finds on the disk.
    pub(crate) start: Option<Start>,
    /// Virtual CPUs.
    pub(crate) cpus: u16,
    /// From start to the scenario's end.
    pub(crate) limit: Duration,
}

/// A kernel that QEMU loads.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) vmlinux: PathBuf,
    pub(crate) initramfs: PathBuf,
    /// Appended to the kernel's command line.
    pub(crate) parameters: String,
}

/// Errors are shown; everything else only makes an emulated serial line slow.
/// A panic ends QEMU at once, as it asks for a reboot. There are no secrets to mitigate for.
/// The kernel's check of its timer counts ticks against the emulated processor's speed, and panics
/// where a busy host makes that wait.
pub(crate) const KERNEL_PARAMETERS: &str =
    "console=ttyS0 loglevel=4 panic=-1 mitigations=off no_timer_check";
/// Memory of a guest; most of it holds the initramfs and its temporary files.
const MEMORY: &str = "512M";

/// Boots the machine and follows it until it is off. `ask` answers the guest's questions.
pub(crate) fn run(
    machine: &Machine,
    ask: &mut dyn FnMut(&str, &mut RunningGuest),
) -> Result<Report> {
    let _permit = GuestPermit::wait();
    // Paths of sockets are short.
    let folder = tempfile::Builder::new()
        .prefix("blockplane-qemu-")
        .tempdir()
        .map_err(Error::io("create a folder for sockets"))?;
    let (sender, console) = channel();
    let stderr = tempfile::tempfile().map_err(Error::io("create a file for QEMU's messages"))?;
    let disks = &machine.disks;
    let mut guest = RunningGuest {
        qemu: Qemu::start(machine, disks, folder.path(), 0, false, &sender, &stderr)?,
        machine,
        folder,
        console,
        sender,
        stderr,
        report: Report::default(),
    };
    guest.follow(ask)?;
    Ok(std::mem::take(&mut guest.report))
}

/// The command line after the program.
fn arguments(machine: &Machine) -> Vec<String> {
    let chipset = if machine.is_pc { "pc" } else { "q35" };
    let mut arguments = [
        "-machine",
        &format!("{chipset},memory-backend=mem"),
        "-accel",
        // A thread for each processor takes half as much work again, and QEMU does not always survive that OVMF changes the map of
        // memory while other processors run (`iotlb_to_section: Assertion ... failed`; its issue 1921, and seen with 10.0).
        "tcg,thread=single",
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
    if let Some(start) = &machine.start {
        for (option, value) in [
            ("-kernel", start.vmlinux.display().to_string()),
            ("-initrd", start.initramfs.display().to_string()),
            (
                "-append",
                format!("{KERNEL_PARAMETERS} {}", start.parameters),
            ),
        ] {
            arguments.extend([option.to_owned(), value]);
        }
    }
    arguments.extend_from_slice(&machine.firmware);
    if !machine.is_pc {
        // For a disk that comes later.
        arguments.extend(["-device", "pcie-root-port,id=slot0,chassis=1"].map(str::to_owned));
    }
    arguments
}

/// A running QEMU; killed when dropped.
struct Qemu {
    child: Child,
    keyboard: Option<ChildStdin>,
    /// How often the guest was moved before.
    number: u32,
}

impl Qemu {
    /// Sends lines of the console with its number, and `None` at the end. An `incoming` one waits for a guest.
    fn start(
        machine: &Machine,
        disks: &[String],
        folder: &Path,
        number: u32,
        incoming: bool,
        console: &Sender<(u32, Option<String>)>,
        stderr: &File,
    ) -> Result<Self> {
        let mut command = machine.emulator.command();
        let monitor = monitor_socket(folder, number).display().to_string();
        command
            .args(arguments(machine))
            .args(disks)
            .arg("-qmp")
            .arg(format!("unix:{monitor},server=on,wait=off"));
        if incoming {
            command
                .arg("-incoming")
                .arg(format!("unix:{monitor}.incoming"));
        }
        let starting = || Error::io("start qemu-system-x86_64");
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(stderr.try_clone().map_err(starting())?)
            .spawn()
            .map_err(starting())?;
        if let Some(stdout) = child.stdout.take() {
            let console = console.clone();
            thread::spawn(move || forward(stdout, &console, number));
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
pub struct RunningGuest<'a> {
    machine: &'a Machine,
    /// Of the sockets.
    folder: tempfile::TempDir,
    qemu: Qemu,
    console: Receiver<(u32, Option<String>)>,
    sender: Sender<(u32, Option<String>)>,
    stderr: File,
    report: Report,
}

impl RunningGuest<'_> {
    /// Executes a command of QEMU's monitor.
    ///
    /// # Errors
    /// With the error that QEMU replies.
    pub fn qemu(&self, command: &str, arguments: &Value) -> Result<Value> {
        self.query(self.qemu.number, command, arguments)
    }

    /// Moves the guest to another QEMU whose disk is `server`'s, while its processes go on. The old QEMU has ended when this
    /// returns.
    ///
    /// # Errors
    /// What either QEMU says, or that it does not end.
    pub fn move_to(&mut self, server: &Server) -> Result<()> {
        let number = self.qemu.number + 1;
        let disks = attach::arguments(server, "disk", self.machine.extras);
        let folder = self.folder.path();
        let next = Qemu::start(
            self.machine,
            &disks,
            folder,
            number,
            true,
            &self.sender,
            &self.stderr,
        )?;
        // Socket files exist before QEMU listens on them; its monitor answers once all of them listen.
        wait_until("QEMU listens", || {
            Ok(self.query(number, "query-status", &json!({})).is_ok())
        })?;
        // As fast as it goes, and with a pause that an emulated processor on a busy host can keep.
        let parameters = json!({"max-bandwidth": 1 << 30, "downtime-limit": 1000});
        self.qemu("migrate-set-parameters", &parameters)?;
        let incoming = monitor_socket(folder, number).display().to_string() + ".incoming";
        self.qemu("migrate", &json!({"uri": format!("unix:{incoming}")}))?;
        wait_until("the guest has moved", || {
            let state = self.qemu("query-migrate", &json!({}))?;
            match state["status"] == "failed" {
                true => Err(Error::new(format!("the guest did not move: {state}"))),
                false => Ok(state["status"] == "completed"),
            }
        })?;
        wait_until("the guest runs", || {
            Ok(self.query(number, "query-status", &json!({}))?["running"] == true)
        })?;
        self.qemu = next;
        Ok(())
    }

    fn query(&self, number: u32, command: &str, arguments: &Value) -> Result<Value> {
        let socket = monitor_socket(self.folder.path(), number);
        monitor::query(&socket, command, arguments).map_err(Error::io("QEMU"))
    }

    /// Returns when the scenario is complete and QEMU has ended with status 0.
    fn follow(&mut self, ask: &mut dyn FnMut(&str, &mut Self)) -> Result<()> {
        let title = &self.machine.title;
        let started = Instant::now();
        let mut deadline = started + self.machine.limit;
        let mut complete = false;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok((number, line)) = self.console.recv_timeout(left) else {
                let limit = self.machine.limit;
                return Err(self.failed(&format!("the guest was not done after {limit:?}")));
            };
            let Some(line) = line else {
                if number == self.qemu.number {
                    break;
                }
                // The guest has left that one.
                continue;
            };
            match self.report.line(&line) {
                Event::None => {}
                Event::Step(name) => {
                    eprintln!("{title}: {name} ({} s)", started.elapsed().as_secs());
                }
                Event::Ask(question) => {
                    ask(&question, self);
                    self.answer()?;
                }
                Event::Fail(step, reason) => {
                    let what = format!("in the guest, step `{step}` failed: {reason}");
                    return Err(self.failed(&what));
                }
                Event::End => {
                    complete = true;
                    deadline = Instant::now() + POWER_OFF_LIMIT;
                }
            }
        }
        let status = self.qemu.child.wait().map_err(Error::io("wait for QEMU"))?;
        match complete && status.success() {
            true => Ok(()),
            false => Err(self.failed(&format!(
                "the guest ended before its scripts did (QEMU: {status})"
            ))),
        }
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

    fn failed(&self, what: &str) -> Error {
        let mut stderr = vec![0; 4096];
        let len = self.stderr.read_at(&mut stderr, 0).unwrap_or_default();
        Error::new(format!(
            "{what}\n--- QEMU's messages ---\n{}\n--- the guest's console ---\n{}",
            String::from_utf8_lossy(&stderr[..len]),
            self.report.console_tail()
        ))
    }
}

/// The socket of the monitor of the QEMU that the guest has moved to so often.
fn monitor_socket(folder: &Path, number: u32) -> PathBuf {
    folder.join(format!("qemu-{number}"))
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + MOVE_LIMIT;
    while !is_so()? {
        if Instant::now() >= deadline {
            return Err(Error::new(format!("not within {MOVE_LIMIT:?}: {what}")));
        }
        thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// Sends each line of a console until it ends, or until there is no receiver.
fn forward(from: ChildStdout, to: &Sender<(u32, Option<String>)>, number: u32) {
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    // Bytes, not `lines()`: firmware and a panicking kernel may print what is not UTF-8.
    while matches!(from.read_until(b'\n', &mut line), Ok(count) if count > 0) {
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end_matches('\n').to_owned();
        if to.send((number, Some(text))).is_err() {
            return;
        }
        line.clear();
    }
    // The receiver may be gone; ignore the error.
    let _ = to.send((number, None));
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
