//! Tracer of the program's tracepoints: user probes of the kernel over tracefs, as `perf` and `bpftrace` use them.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::probes::{Note, notes, sections};
use crate::process::program;

const TRACEFS: &str = "/sys/kernel/tracing";

/// Attached until it is dropped, to all processes of this program.
#[derive(Debug)]
pub struct Tracer {
    group: String,
    instance: PathBuf,
}

/// A probe that has fired: its name, the export, and its other arguments.
#[derive(Debug, PartialEq, Eq)]
pub struct Hit {
    /// Its name.
    pub probe: String,
    /// The export, its first argument.
    pub export: String,
    /// Its other arguments.
    pub arguments: Vec<u64>,
}

impl Tracer {
    /// Attaches to these probes, each of which has the export for its first argument: one of these. `None`, and a line that says so:
    /// this system does not let us.
    pub fn attach(probes: &[&str], exports: &[&str]) -> Option<Self> {
        match Tracer::try_attach(probes, exports) {
            Ok(tracer) => Some(tracer),
            Err(error) => {
                crate::report::not_run(&format!(
                    "no user probes by {TRACEFS} ({error}); they need root, and CONFIG_UPROBE_EVENTS"
                ));
                None
            }
        }
    }

    fn try_attach(probes: &[&str], exports: &[&str]) -> io::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let group = format!("blockplane_{}_{number}", std::process::id());
        let instance = Path::new(TRACEFS).join("instances").join(&group);
        // A kernel without user probes has no such file.
        OpenOptions::new().append(true).open(events())?;
        fs::create_dir(&instance)?;
        let tracer = Tracer { group, instance };
        let program = program();
        let file = fs::read(program)?;
        let sections = sections(&file);
        for note in notes(sections[".note.stapsdt"].contents) {
            if !probes.contains(&note.name.as_str()) {
                continue;
            }
            let (text, semaphores) = (&sections[".text"], &sections[".probes"]);
            let (at, semaphore) = (text.place(note.address), semaphores.place(note.semaphore));
            let (group, name, arguments) = (&tracer.group, &note.name, fetched(&note));
            write_event(&format!(
                "p:{group}/{name} {}:{at:#x}({semaphore:#x}){arguments}",
                program.display()
            ))?;
        }
        // Daemons of other tests fire by the million, and would leave no room.
        let ours = exports.iter().map(|export| format!("a0 == \"{export}\""));
        let ours = ours.collect::<Vec<_>>().join(" || ");
        for probe in probes {
            fs::write(tracer.file(probe, "filter"), &ours)?;
            fs::write(tracer.file(probe, "enable"), "1")?;
        }
        Ok(tracer)
    }

    fn file(&self, probe: &str, name: &str) -> PathBuf {
        let events = self.instance.join("events").join(&self.group);
        events.join(probe).join(name)
    }

    /// The probes that have fired so far for this export, in order.
    pub fn hits(&self, export: &str) -> Vec<Hit> {
        let trace = fs::read_to_string(self.instance.join("trace")).unwrap();
        let lines = trace.lines().filter(|line| !line.starts_with('#'));
        lines.map(hit).filter(|hit| hit.export == export).collect()
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        // All of the group; those that are not there were not made.
        let events = self.instance.join("events").join(&self.group);
        let names: Vec<_> = fs::read_dir(&events)
            .into_iter()
            .flatten()
            .flatten()
            .filter(|entry| entry.path().is_dir())
            .map(|entry| entry.file_name())
            .collect();
        let _ = fs::write(events.join("enable"), "0");
        let _ = fs::remove_dir(&self.instance);
        for name in names {
            let _ = write_event(&format!("-:{}/{}", self.group, name.display()));
        }
    }
}

fn events() -> PathBuf {
    Path::new(TRACEFS).join("uprobe_events")
}

fn write_event(line: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().append(true).open(events())?;
    file.write_all(line.as_bytes())
}

/// How the kernel is to fetch a probe's arguments: registers, of which the first has a string's address.
fn fetched(note: &Note) -> String {
    let registers = note.arguments.split(' ').map(|argument| {
        let (_, register) = argument.split_once("@%r").unwrap();
        // It knows the first eight by their names of 16 bits, and the others as they are.
        match register.starts_with(|first: char| first.is_ascii_digit()) {
            true => format!("%r{register}"),
            false => format!("%{register}"),
        }
    });
    let fetch = registers.enumerate().map(|(index, register)| match index {
        0 => format!(" a{index}=+0({register}):string"),
        _ => format!(" a{index}={register}:u64"),
    });
    fetch.collect()
}

/// A line of the trace: `IO io-1234 [000] ... 5.678: probe: (0x123) a0="export" a1=7`.
fn hit(line: &str) -> Hit {
    let (before, after) = line.split_once(": (0x").expect(line);
    let mut words = after.split(' ').skip(1);
    let mut argument = || words.next()?.split_once('=').map(|(_, value)| value);
    Hit {
        probe: before.rsplit(' ').next().unwrap().to_owned(),
        export: argument().expect(line).trim_matches('"').to_owned(),
        arguments: std::iter::from_fn(argument)
            .map(|value| value.parse().expect(line))
            .collect(),
    }
}
