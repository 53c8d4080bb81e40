//! Writes and reads over many extents at once, checked against the model.
//!
//! Extents of one call never overlap, so every order of completion is right and the model knows
//! each sector. Buffers lie in the arena with gaps between them; the gaps hold a canary, so that
//! a server that writes past a segment is found out.

use std::ops::Range;

use blkio::ReqFlags;

use crate::SECTOR_BYTES;
use crate::client::{Queue, Request, gather, scatter};
use crate::memory::Span;
use crate::model::{Extent, Model, stamp};
use crate::random::Random;

/// What the gaps between buffers hold.
const CANARY: u8 = 0xa5;

/// Request sizes in sectors: 512 bytes to 1 MiB, and odd multiples of 512 bytes between.
pub const SIZES: [u64; 12] = [1, 2, 3, 5, 8, 13, 32, 65, 128, 257, 512, 2048];

/// How a request's buffer lies in memory.
#[derive(Debug, Clone)]
#[must_use]
pub struct Placement {
    alignment: usize,
    skew: usize,
    segments: Range<usize>,
    segment_unit: usize,
}

impl Placement {
    /// One segment at a page boundary.
    pub fn page_aligned() -> Self {
        Self {
            alignment: 4096,
            skew: 0,
            segments: 1..2,
            segment_unit: 1,
        }
    }

    /// One segment `skew` bytes behind a page boundary.
    pub fn skewed(skew: usize) -> Self {
        Self {
            skew,
            ..Self::page_aligned()
        }
    }

    /// Segments, as many as `count` says, each a multiple of 512 bytes and aligned to 512.
    pub fn sector_segments(count: Range<usize>) -> Self {
        Self {
            alignment: SECTOR_BYTES,
            skew: 0,
            segments: count,
            segment_unit: SECTOR_BYTES,
        }
    }

    /// Segments, as many as `count` says, of any length at any address.
    pub fn odd_segments(count: Range<usize>) -> Self {
        Self {
            alignment: 1,
            skew: 1,
            segments: count,
            segment_unit: 1,
        }
    }
}

/// `extent` cut into pieces of the given sizes (in sectors, used in random order), in random
/// order.
pub fn cut(extent: Extent, sizes: &[u64], random: &mut Random) -> Vec<Extent> {
    let mut pieces = Vec::new();
    let mut sector = extent.sector;
    while sector < extent.end() {
        let sectors = sizes[random.below(sizes.len())].min(extent.end() - sector);
        pieces.push(Extent::new(sector, sectors));
        sector += sectors;
    }
    random.shuffle(&mut pieces);
    pieces
}

/// Buffers for `extents`: for each its spans in the order of the disk, scattered over memory.
///
/// # Panics
/// When the arena is too small.
pub fn place(
    extents: &[Extent],
    placement: &Placement,
    arena_bytes: usize,
    random: &mut Random,
) -> Vec<Vec<Span>> {
    let mut buffers: Vec<Vec<Span>> = extents
        .iter()
        .map(|extent| segment_lengths(extent.bytes(), placement, random))
        .map(|lengths| lengths.iter().map(|&len| Span::new(0, len)).collect())
        .collect();
    let mut spans: Vec<&mut Span> = buffers.iter_mut().flatten().collect();
    random.shuffle(&mut spans);
    let mut end = 0_usize;
    for span in spans {
        span.offset = end.next_multiple_of(placement.alignment) + placement.skew;
        end = span.offset + span.len;
    }
    assert!(end <= arena_bytes, "{end} bytes of memory are needed");
    buffers
}

fn segment_lengths(bytes: usize, placement: &Placement, random: &mut Random) -> Vec<usize> {
    let units = bytes / placement.segment_unit;
    let wanted = placement.segments.start + random.below(placement.segments.len());
    let mut cuts = vec![0, units];
    while cuts.len() <= wanted.min(units) {
        let at = random.below(units);
        if let Err(place) = cuts.binary_search(&at) {
            cuts.insert(place, at);
        }
    }
    let lengths = cuts.windows(2).map(|pair| pair[1] - pair[0]);
    lengths.map(|len| len * placement.segment_unit).collect()
}

/// Writes `extents` with `seed`, all submitted at once.
///
/// # Panics
/// When a write fails.
pub fn write(
    queue: &mut Queue,
    model: &mut Model,
    extents: &[Extent],
    seed: u64,
    placement: &Placement,
    random: &mut Random,
) {
    let buffers = place(extents, placement, queue.arena().len(), random);
    let requests = write_requests(queue, extents, &buffers, seed);
    for (answer, extent) in queue.run(&requests).into_iter().zip(extents) {
        assert_eq!(answer, 0, "writing {extent:?}");
        model.set(*extent, seed);
    }
}

/// Fills the buffers of `extents` and returns the requests that write them.
pub fn write_requests(
    queue: &mut Queue,
    extents: &[Extent],
    buffers: &[Vec<Span>],
    seed: u64,
) -> Vec<Request> {
    let mut bytes = Vec::new();
    let pairs = extents.iter().zip(buffers);
    let requests = pairs.map(|(extent, spans)| {
        bytes.resize(extent.bytes(), 0);
        stamp(&mut bytes, extent.sector, seed);
        scatter(queue.arena(), spans, &bytes);
        Request::Write(extent.sector, spans.clone(), ReqFlags::empty())
    });
    requests.collect()
}

/// Reads `extents`, all submitted at once, and compares them with the model.
///
/// # Panics
/// When a read fails, brings other bytes, or changes memory that is not its own.
pub fn read(
    queue: &mut Queue,
    model: &Model,
    extents: &[Extent],
    placement: &Placement,
    random: &mut Random,
) {
    let buffers = place(extents, placement, queue.arena().len(), random);
    queue.arena().all_mut().fill(CANARY);
    let pairs = extents.iter().zip(&buffers);
    let requests: Vec<_> = pairs
        .map(|(extent, spans)| Request::Read(extent.sector, spans.clone()))
        .collect();
    let answers = queue.run(&requests);
    for ((answer, extent), spans) in answers.into_iter().zip(extents).zip(&buffers) {
        assert_eq!(answer, 0, "reading {extent:?}");
        if let Err(mismatch) = model.check(extent.sector, &gather(queue.arena(), spans)) {
            panic!("reading {extent:?}, {} segments: {mismatch}", spans.len());
        }
    }
    assert_gaps_untouched(queue, &buffers);
}

fn assert_gaps_untouched(queue: &mut Queue, buffers: &[Vec<Span>]) {
    let mut spans: Vec<Span> = buffers.iter().flatten().copied().collect();
    spans.sort_by_key(|span| span.offset);
    let arena = queue.arena();
    let mut end = 0;
    let last = Span::new(arena.len(), 0);
    for span in spans.into_iter().chain([last]) {
        let gap = arena.bytes(Span::new(end, span.offset - end));
        if let Some(at) = gap.iter().position(|&byte| byte != CANARY) {
            panic!("byte {} of memory between requests has changed", end + at);
        }
        end = span.offset + span.len;
    }
}

/// Reads one half of `extents` while the other half is written with `seed`; then all of it.
///
/// # Panics
/// When a request fails or brings other bytes.
pub fn read_and_write(
    queue: &mut Queue,
    model: &mut Model,
    extents: &[Extent],
    seed: u64,
    placement: &Placement,
    random: &mut Random,
) {
    let buffers = place(extents, placement, queue.arena().len(), random);
    let mut requests = write_requests(queue, extents, &buffers, seed);
    for i in (0..requests.len()).step_by(2) {
        for &span in &buffers[i] {
            queue.arena().bytes_mut(span).fill(CANARY);
        }
        requests[i] = Request::Read(extents[i].sector, buffers[i].clone());
    }
    let answers = queue.run(&requests);
    for (i, (answer, extent)) in answers.into_iter().zip(extents).enumerate() {
        assert_eq!(answer, 0, "{extent:?}");
        if i % 2 == 0 {
            let found = gather(queue.arena(), &buffers[i]);
            if let Err(mismatch) = model.check(extent.sector, &found) {
                panic!("reading {extent:?} among writes: {mismatch}");
            }
        } else {
            model.set(*extent, seed);
        }
    }
    read(queue, model, extents, placement, random);
}

/// Which of `seeds` each sector of `extent` holds; every sector must hold one of them whole.
///
/// # Panics
/// When a read fails or a sector holds something else.
pub fn settle(queue: &mut Queue, extent: Extent, seeds: &[u64]) -> Model {
    let buffer = Span::new(0, extent.bytes());
    let answer = queue.run_one(Request::Read(extent.sector, vec![buffer]));
    assert_eq!(answer, 0, "reading {extent:?}");
    let bytes = queue.arena().bytes(buffer).to_vec();
    let mut model = Model::zeroes(extent);
    for (sector, found) in (extent.sector..).zip(bytes.chunks(SECTOR_BYTES)) {
        let fits = seeds.iter().any(|&seed| {
            model.set(Extent::new(sector, 1), seed);
            model.check(sector, found).is_ok()
        });
        assert!(
            fits,
            "neither of the seeds {seeds:?}: {:?}",
            model.check(sector, found)
        );
    }
    model
}
