//! The daemon of the package, started as its units say, by a test in place of systemd.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::machine::{Machine, has_tools, output};

/// What has not happened after this time never will.
const STUCK_AFTER: Duration = Duration::from_secs(60);

/// A service that runs.
struct Service {
    child: Child,
    manager: UnixDatagram,
}

impl Service {
    /// Starts what a unit says, with a listening socket as descriptor 3 if there is one.
    fn start(machine: &Machine, unit: &str, instance: &str, socket: Option<UnixListener>) -> Self {
        let notify = machine.join("notify");
        let _ = fs::remove_file(&notify);
        let manager = UnixDatagram::bind(&notify).unwrap();
        manager.set_read_timeout(Some(STUCK_AFTER)).unwrap();
        let line = setting(machine, unit, "ExecStart").replace("%i", instance);
        let root = machine.root().display();
        let words = line.split(' ').map(|word| match word.strip_prefix('/') {
            Some(path) => format!("{root}/{path}"),
            None => word.to_owned(),
        });
        let mut command = Command::new("/bin/sh");
        // Only the process itself knows its number.
        command
            .args(["-c", r#"LISTEN_PID=$$ exec "$0" "$@" 3<&0 0</dev/null"#])
            .args(words)
            .env("NOTIFY_SOCKET", &notify)
            .stdin(Stdio::null());
        if let Some(socket) = socket {
            let name = setting(machine, "blockplane@.socket", "FileDescriptorName");
            command
                .envs([("LISTEN_FDS", "1"), ("LISTEN_FDNAMES", &name)])
                .stdin(OwnedFd::from(socket));
        }
        let child = command.spawn().unwrap();
        Service { child, manager }
    }

    /// The next notification to the service manager.
    fn tells(&self) -> String {
        let mut buffer = [0; 4096];
        let bytes = self.manager.recv(&mut buffer).expect("no notification");
        String::from_utf8(buffer[..bytes].to_vec()).unwrap()
    }

    /// Ends it as systemd does.
    fn stop(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        assert!(self.tells().starts_with("STOPPING=1"));
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // Has ended already, unless the test failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a unit of the package says.
fn setting(machine: &Machine, unit: &str, key: &str) -> String {
    let text = machine.text(&format!("usr/lib/systemd/system/{unit}"));
    let mut values = text
        .lines()
        .filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    let value = values
        .next()
        .unwrap_or_else(|| panic!("{unit} has no {key}="));
    assert_eq!(values.next(), None, "{unit}: {key}");
    value.to_owned()
}

/// Writes and reads through a socket, and compares.
fn use_disk(machine: &Machine, socket: &Path) {
    let program = machine.join("usr/bin/blockplane-bench");
    let line = "--pattern randrw --bs 4k --depth 4 --time 200ms --destroy-data --verify";
    let mut arguments = vec!["run".as_ref(), socket.as_os_str()];
    arguments.extend(line.split(' ').map(std::ffi::OsStr::new));
    let said = output(program.to_str().unwrap(), &arguments);
    assert!(said.contains("no difference was found"), "{said}");
}

#[test]
fn services_serve_what_their_configurations_say() {
    if !has_tools(&[]) {
        return;
    }
    let machine = Machine::installed();
    let service = Service::start(&machine, "blockplane.service", "", None);
    assert_eq!(service.tells(), "READY=1");
    assert!(service.tells().starts_with("STATUS=serving 0 exports"));
    service.stop();

    // The example of the documents, on a socket that systemd listens on.
    let image = machine.join("var/lib/blockplane/web.img");
    let made = File::create_new(&image).unwrap();
    made.set_len(16 << 20).unwrap();
    let documented = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/install.md"));
    let configuration = example(&documented.unwrap(), "[blockdev.disk]");
    let image = image.to_str().unwrap();
    let configuration = configuration.replace("/var/lib/blockplane/web.img", image);
    fs::write(machine.join("etc/blockplane/web.toml"), configuration).unwrap();
    let listens = setting(&machine, "blockplane@.socket", "ListenStream").replace("%i", "web");
    let socket = machine.join(&listens);
    let listener = UnixListener::bind(&socket).unwrap();
    let service = Service::start(&machine, "blockplane@.service", "web", Some(listener));
    assert_eq!(service.tells(), "READY=1");
    assert!(service.tells().starts_with("STATUS=serving 1 export"));
    use_disk(&machine, &socket);
    service.stop();
    assert!(socket.exists(), "it is systemd's");

    // All that the installed configuration has as comments.
    let text = machine.text("etc/blockplane/blockplane.toml");
    let comments = text.lines().filter_map(|line| line.strip_prefix('#'));
    let keys = comments.filter(|rest| !rest.is_empty() && !rest.starts_with(' '));
    let path = machine.join("etc/blockplane/all.toml");
    fs::write(&path, keys.collect::<Vec<_>>().join("\n")).unwrap();
    let program = machine.join("usr/bin/blockplane");
    let arguments = ["check".as_ref(), path.as_os_str()];
    let said = output(program.to_str().unwrap(), &arguments);
    assert!(said.contains("/run/blockplane/disk0.sock"), "{said}");
    assert!(said.contains("/run/blockplane/monitors/qmp.sock"), "{said}");
}

/// The indented text that begins with a line.
fn example(document: &str, first: &str) -> String {
    let lines = document.lines().skip_while(|line| line.trim() != first);
    let lines = lines.take_while(|line| line.is_empty() || line.starts_with("    "));
    lines.map(|line| format!("{}\n", line.trim())).collect()
}
