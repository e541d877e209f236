//! A directory like that of an import, without the samples.

use dlfs::buf::IoBuf;
use dlfs::directory::{Directory, DirectoryBuilder};
use dlfs::format::builder::ChunkLocation;
use dlfs::format::{ChunkBuilder, ChunkSpec, ImageLayout, Pack, Part, Placement, SampleMeta, Uuid};
use dlfs::units::{Generation, Slot};

/// A directory like that of an import: chunk headers through the builder.
pub fn directory_of(samples: u64) -> Directory {
    let layout = ImageLayout::new(Uuid([7; 16]), 64 << 10, Pack::Aligned, 1).expect("a layout");
    let part = Part { first: 0, count: samples, seed: 3, window: samples };
    let placement = Placement::new(part);
    let spec = ChunkSpec {
        layout,
        generation: Generation(1),
        part,
        fields: Vec::new(),
        field_types: Default::default(),
        columns: Vec::new(),
    };
    let mut builder = DirectoryBuilder::new(layout);
    let mut buf = IoBuf::zeroed(ChunkBuilder::buf_len_bytes(&layout));
    for (sequence, first) in (0..samples).step_by(SAMPLES_A_CHUNK).enumerate() {
        let mut chunk = ChunkBuilder::new(spec.clone(), Slot(first), buf).expect("no field names");
        for slot in first..samples.min(first + SAMPLES_A_CHUNK as u64) {
            let id = placement.id_at(Slot(slot));
            let name = name_of(id.0);
            let meta = SampleMeta {
                id,
                name: &name,
                label: Some((id.0 % CLASSES) as i64),
                values: Default::default(),
            };
            let len = 200 + (id.0.wrapping_mul(0x9e37_79b9) >> 16) as u32 % 400;
            chunk.add(&meta, len).expect("a valid name");
        }
        let sequence = sequence as u64;
        let cell = 16 * (sequence + 1);
        let finished = chunk.finish(ChunkLocation { sequence, time_ns: 1, namespace: 0, cell });
        builder.add_chunk(&finished.header).expect("chunks in their order");
        buf = finished.buf;
    }
    builder.finish(Generation(1), 1).expect("what the builder made")
}

/// Names in the order of ids, like those in class folders.
pub fn name_of(id: u64) -> Vec<u8> {
    let class = id / SAMPLES_A_CLASS;
    let within = id % SAMPLES_A_CLASS;
    format!("n{class:08}/n{class:08}_{within:05}.JPEG").into_bytes()
}

const SAMPLES_A_CHUNK: usize = 64;
const SAMPLES_A_CLASS: u64 = 1300;
const CLASSES: u64 = 1000;
