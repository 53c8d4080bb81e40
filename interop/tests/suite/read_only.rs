//! A disk that guests may not write.

use blkio::Errno;
use interop::chains::{self, ChainDisk, OK, Piece, VERSION_1, kind, range_payload};
use interop::client::{Client, Request};
use interop::image::{Backing, Image};
use interop::memory::Span;
use interop::model::{Extent, Model};
use interop::random::Random;
use interop::server::{Server, Setup};
use interop::suite::Test;
use interop::workload::{self, Placement, SIZES};

use crate::patterns::{ARENA, DISK, DISK_BYTES, connect};

pub const TESTS: &[Test] = &[
    Test::on_each_backing("read_only::reads_are_fine", reads_are_fine),
    Test::on_each_backing("read_only::writes_are_refused", writes_are_refused),
];

fn written_image(backing: Backing) -> (Image, Model) {
    let mut model = Model::zeroes(Extent::new(0, 8192));
    model.set(Extent::new(5, 7000), 50);
    (Image::holding(backing, DISK_BYTES, &model), model)
}

fn start(image: &Image) -> Server {
    Setup::image(image).read_only().start()
}

fn reads_are_fine(backing: Backing) {
    let (image, model) = written_image(backing);
    let server = start(&image);
    let refused = Client::new(ARENA).connect(server.socket()).err();
    let refused = refused.expect("blkio writes to no read-only disk").errno();
    assert_eq!(refused, Errno::ROFS, "the disk says that it is read-only");

    let mut disk = connect(&server, Client::new(ARENA).read_only());
    assert_eq!(disk.sectors(), DISK.sectors);
    let mut random = Random::new(50);
    let extents = workload::cut(model.extent(), &SIZES, &mut random);
    let place = Placement::page_aligned();
    workload::read(disk.queue(0), &model, &extents, &place, &mut random);
    assert_eq!(disk.queue(0).run_one(Request::Flush), 0);
}

fn writes_are_refused(backing: Backing) {
    let (image, model) = written_image(backing);
    let server = start(&image);
    let features = chains::DEVICE_FEATURES | VERSION_1;
    let disk = ChainDisk::connect(server.socket(), features, 64, 1 << 20);
    let mut disk = disk.expect("a connection");
    assert_eq!(disk.features() & chains::READ_ONLY, chains::READ_ONLY);
    let span = Span::new(0, 4096);
    for sector in [0, 16, DISK.sectors - 8] {
        let status = disk.request(kind::OUT, sector, &[Piece::Out(span)]);
        assert_ne!(status, OK, "a write at {sector}");
    }
    let payload = range_payload(0, 64, 0);
    assert_ne!(disk.range_request(kind::DISCARD, payload), OK);
    assert_ne!(disk.range_request(kind::WRITE_ZEROES, payload), OK);
    let unmap = range_payload(0, 64, 1);
    assert_ne!(disk.range_request(kind::WRITE_ZEROES, unmap), OK);
    // the queue goes on
    assert_eq!(disk.request(kind::IN, 8, &[Piece::In(span)]), OK);
    if let Err(mismatch) = model.check(8, disk.arena().bytes(span)) {
        panic!("{mismatch}");
    }
    drop(disk);
    server.stop();
    image.assert_holds(&model);
}
