//! A disk that is served and connected, with what most tests do to it.

use interop::chains::{self, ChainDisk, VERSION_1};
use interop::client::{Client, Disk};
use interop::image::Image;
use interop::model::{Extent, Model, stamp};
use interop::random::Random;
use interop::server::{Server, Setup};
use interop::workload::{self, Placement, SIZES};

/// A test disk.
pub const DISK: Extent = Extent {
    sector: 0,
    sectors: 64 << 11,
};
/// Its size in bytes.
pub const DISK_BYTES: u64 = DISK.sectors * 512;
/// Memory for a workload over 8 MiB with gaps.
pub const ARENA: usize = 24 << 20;

/// An image, its server and a client.
pub struct Rig {
    pub disk: Disk,
    pub server: Server,
    pub image: Image,
}

impl Rig {
    /// A disk of zeroes.
    pub fn new() -> Self {
        let image = Image::new(DISK_BYTES);
        let server = Setup::image(&image).start();
        let disk = connect(&server, Client::new(ARENA));
        assert_eq!(disk.sectors(), DISK.sectors);
        Rig {
            disk,
            server,
            image,
        }
    }

    /// The server ends, and the image is compared with the model.
    pub fn finish(self, model: &Model) {
        drop(self.disk);
        self.server.stop();
        self.image.assert_holds(model);
    }
}

/// Connects, or fails the test.
pub fn connect(server: &Server, client: Client) -> Disk {
    let disk = client.connect(&server.socket());
    disk.unwrap_or_else(|error| panic!("connecting: {error}"))
}

/// Writes and reads `part` in mixed sizes through queue 0.
pub fn exercise(disk: &mut Disk, part: Extent, seed: u64) -> Model {
    let mut random = Random::new(seed);
    let mut model = Model::zeroes(part);
    let place = Placement::page_aligned();
    let queue = disk.queue(0);
    let extents = workload::cut(part, &SIZES, &mut random);
    workload::write(queue, &mut model, &extents, seed, &place, &mut random);
    check_all(disk, &model);
    model
}

/// Reads all that the model describes.
pub fn check_all(disk: &mut Disk, model: &Model) {
    let mut random = Random::new(40);
    let extents = workload::cut(model.extent(), &SIZES, &mut random);
    let place = Placement::page_aligned();
    workload::read(disk.queue(0), model, &extents, &place, &mut random);
}

/// A client that decides each descriptor itself, with `features` and what every client of these tests has.
pub fn chain_disk(server: &Server, features: u64) -> ChainDisk {
    let features = features | chains::DEVICE_FEATURES | VERSION_1;
    let disk = ChainDisk::connect(&server.socket(), features, 64, 1 << 20);
    disk.unwrap_or_else(|error| panic!("connecting: {error}"))
}

/// What `seed` puts into `sectors` sectors from `sector` on.
pub fn stamped(sector: u64, sectors: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; sectors * 512];
    stamp(&mut bytes, sector, seed);
    bytes
}
