//! Serves the device of `vfio_user::testing` on a socket, to try a virtual machine monitor:
//!
//! ```sh
//! cargo run -p vfio-user --example scratch /tmp/scratch.sock
//! qemu-system-x86_64 -machine q35,memory-backend=ram -m 256 -object memory-backend-memfd,id=ram,size=256M,share=on \
//!   -device '{"driver":"vfio-user-pci","socket":{"type":"unix","path":"/tmp/scratch.sock"}}'
//! ```
//!
//! Each call of the device writes a line to standard output. The program ends when standard input does.

use std::io::Read;

use rustix::io::Errno;
use unix_socket::listener::Listener;
use vfio_user::testing::Scratch;
use vfio_user::{DmaId, PciDevice, PciHost, ServerThread};

/// A device that prints its calls.
#[derive(Default)]
struct Loud(Scratch);

#[expect(clippy::print_stdout, reason = "that is what it is for")]
impl PciDevice for Loud {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn region_bytes(&self, region: u32) -> u64 {
        self.0.region_bytes(region)
    }

    fn read_region(&mut self, host: &mut dyn PciHost, region: u32, offset: u64, data: &mut [u8]) {
        self.0.read_region(host, region, offset, data);
        println!("region {region}: read {offset:#x}: {data:02x?}");
    }

    fn write_region(&mut self, host: &mut dyn PciHost, region: u32, offset: u64, data: &[u8]) {
        println!("region {region}: write {offset:#x}: {data:02x?}");
        self.0.write_region(host, region, offset, data);
    }

    fn reset(&mut self, host: &mut dyn PciHost) {
        println!("reset");
        self.0.reset(host);
    }

    fn is_reset_done(&self) -> bool {
        self.0.is_reset_done()
    }

    fn on_memory_changed(&mut self, host: &mut dyn PciHost) {
        let regions = host.mapped_guest_memory().regions().iter();
        let regions: Vec<_> = regions
            .map(|region| format!("{:#x}+{:#x}", region.guest_addr, region.len))
            .collect();
        println!("memory: {}", regions.join(" "));
        self.0.on_memory_changed(host);
    }

    fn on_dma_done(&mut self, host: &mut dyn PciHost, id: DmaId, result: Result<Vec<u8>, Errno>) {
        println!("{id:?}: {result:02x?}");
        self.0.on_dma_done(host, id, result);
    }

    fn do_pending_work(&mut self, host: &mut dyn PciHost) -> bool {
        self.0.do_pending_work(host)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os().nth(1).ok_or("name a socket")?;
    let listener = Listener::bind(path.as_ref())?;
    let _driver = ServerThread::spawn(listener, Loud::default())?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
