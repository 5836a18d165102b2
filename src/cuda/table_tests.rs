//! The table of a launch, decoded again.

#![allow(unsafe_code)] // Samples at made-up addresses.

use bytemuck::pod_read_unaligned;

use super::*;
use crate::collate::{Collate, Transform};
use crate::layout::Layout;
use crate::sample::{SampleList, SampleView};
use crate::tensor::Device;

const HERE: Device = Device::Cuda(0);
/// Where an output lies, at a multiple of 16.
const OUT: u64 = 0x10_0000;
const HEADER_BYTES: usize = size_of::<Header>();

/// Samples on the device that nobody reads, `gap` bytes apart.
fn samples(dtype: DType, shapes: &[&[i64]], gap: u64) -> SampleList<'static> {
    let mut address = 0x1000_0000;
    let views = shapes.iter().map(|shape| {
        let layout = Layout::compact(dtype, shape).unwrap();
        let data = address as *const u8;
        address += layout.numel() as u64 * dtype.size() as u64 + gap;
        // SAFETY: a plan does not read its samples, and none is run here.
        unsafe { SampleView::from_raw_parts(data, dtype, HERE, layout) }
    });
    views.collect()
}

fn policy() -> Policy {
    Policy::of((9, 0)).unwrap()
}

fn table(samples: &SampleList<'_>, collate: &Collate, out: u64) -> Table {
    let plan = Plan::new(samples, &collate.clone().device(HERE)).unwrap();
    Table::new(&plan, &vec![Some(out); plan.fields.len()], &[], 132, &policy()).unwrap()
}

impl Table {
    fn field(&self, index: usize) -> params::Field {
        pod_read_unaligned(&self.as_bytes()[index * size_of::<params::Field>()..][..112])
    }

    /// Values at a position.
    fn values_at<T: Pod>(&self, position: u32, count: usize) -> Vec<T> {
        let bytes = &self.as_bytes()[position as usize * 8..][..count * size_of::<T>()];
        bytes.chunks_exact(size_of::<T>()).map(pod_read_unaligned).collect()
    }
}

#[test]
fn parameters_have_one_of_two_sizes_and_nothing_is_lost_at_their_ends() {
    // One field, and 8 bytes for each sample.
    let fixed = HEADER_BYTES + size_of::<params::Field>();
    for (limit, larger) in
        [(params::SMALL_BYTES, Some(params::LARGE_BYTES)), (params::LARGE_BYTES, None)]
    {
        let most = (limit - fixed) / 8;
        assert_eq!(fixed + 8 * most, limit, "a table may fill the parameters");
        for count in [most - 1, most, most + 1] {
            let list = samples(DType::U8, &vec![&[24][..]; count], 3);
            let table = table(&list, &Collate::stack(), OUT);
            assert_eq!(HEADER_BYTES + table.as_bytes().len(), fixed + 8 * count);
            let is_inline = table.bytes() <= policy().inline_bytes;
            assert_eq!(is_inline, count <= most || larger.is_some());
            let Some(bytes) = [Some(limit), larger][usize::from(count > most)] else {
                let parameters = table.parameters(Some(0x77));
                assert_eq!((parameters.len() * 8, parameters[0]), (params::SMALL_BYTES, 0x77));
                continue;
            };
            let parameters = table.parameters(None);
            assert_eq!((parameters.len() * 8, parameters[0]), (bytes, 0));
            let inside: &[u8] = &cast_slice(&parameters)[HEADER_BYTES..];
            let (inside, rest) = inside.split_at(table.as_bytes().len());
            assert!(inside == table.as_bytes() && rest.iter().all(|&byte| byte == 0));
            let addresses = table.values_at::<u64>(table.field(0).data, count);
            assert!(addresses.iter().zip(0..).all(|(&at, i)| at == 0x1000_0000 + 27 * i));
        }
    }
}

#[test]
fn a_tile_begins_with_the_sample_that_its_first_element_is_of() {
    let lengths: Vec<i64> = (0..400).map(|i| [0, 1, 700, 0, 9000, 33][i % 6]).collect();
    let shapes: Vec<[i64; 1]> = lengths.iter().map(|&length| [length]).collect();
    let shapes: Vec<&[i64]> = shapes.iter().map(|shape| &shape[..]).collect();
    let list = samples(DType::U16, &shapes, 2);
    for (collate, out) in [
        (Collate::ragged(), OUT),
        (Collate::ragged(), OUT + 6),
        (Collate::ragged().cast(DType::F64), OUT),
    ] {
        let table = table(&list, &collate, out);
        let field = table.field(0);
        let elem_size = u64::from(field.elem_size);
        // Bytes that are moved are counted from a multiple of 16.
        let shift = if field.kind == Kind::Copy as u8 { out % 16 } else { 0 };
        let tile = u64::from(table.header.tile_bytes) / elem_size;
        let num_tiles = (field.numel + shift).div_ceil(tile);
        assert_eq!(table.num_tiles(), num_tiles);
        let count = field.num_samples as usize;
        let offsets = table.values_at::<i64>(field.offsets, count + 1);
        assert_eq!(offsets[count] as u64 * field.unit, field.numel);
        let firsts = table.values_at::<u32>(field.tile_samples, num_tiles as usize + 1);
        for (tile_index, &first) in firsts[..num_tiles as usize].iter().enumerate() {
            let elem = (tile_index as u64 * tile).saturating_sub(shift);
            let holds = |i: usize| {
                let [begin, end] = [offsets[i], offsets[i + 1]].map(|o| o as u64 * field.unit);
                (begin..end).contains(&elem)
            };
            // Samples without elements may come first.
            let found = (0..count).find(|&i| holds(i)).unwrap();
            assert!(first as usize <= found, "tile {tile_index}: {first}, {found}");
            let between = first as usize..found;
            assert!(between.clone().all(|i| offsets[i] == offsets[i + 1]), "{between:?}");
        }
        assert_eq!(firsts[num_tiles as usize] as usize, count - 1);
        assert_eq!(table.gathers, field.kind == Kind::Copy as u8);
    }
}

#[test]
fn planes_of_bytes_have_a_loop_of_their_own() {
    let images = |dtype| samples(dtype, &[&[20, 30, 3], &[20, 30, 3]], 0);
    let planes = Transform::new().permute([2, 0, 1]);
    let scaled = planes.clone().scale(0.5);
    let kind = |dtype, collate: &Collate| table(&images(dtype), collate, OUT).field(0).kind;
    let planar = Kind::Planar as u8;
    for to in [DType::F16, DType::BF16, DType::F32] {
        assert_eq!(kind(DType::U8, &Collate::stack().transform(scaled.clone()).cast(to)), planar);
    }
    assert_eq!(kind(DType::U8, &Collate::stack().transform(planes.clone())), planar);
    let others = [
        kind(DType::I16, &Collate::stack().transform(scaled.clone()).cast(DType::F32)),
        kind(DType::U8, &Collate::stack().transform(scaled.clone()).cast(DType::F64)),
        kind(DType::U8, &Collate::stack().transform(scaled).cast(DType::U8)),
        kind(DType::U8, &Collate::stack().cast(DType::F32)),
        // Padding has no fixed rows to count from.
        kind(DType::U8, &Collate::concat(0).transform(planes)),
    ];
    assert_eq!(others, [Kind::Walk as u8; 5]);
}

#[test]
fn fields_without_elements_are_left_out() {
    let list = samples(DType::F32, &[&[0, 3], &[0, 3]], 0);
    let table = table(&list, &Collate::stack(), OUT);
    assert_eq!((table.num_tiles(), table.as_bytes().len()), (0, 0));
}

#[test]
fn values_stand_in_the_table_itself() {
    let list = samples(DType::U8, &[&[5], &[6]], 1);
    let plan = Plan::new(&list, &Collate::ragged().device(HERE)).unwrap();
    let bytes: Vec<u8> = (0..20).collect();
    let values = [
        Values { out: 0x40, dtype: DType::I32, bytes: &bytes },
        Values { out: 0x80, dtype: DType::I64, bytes: &[] },
    ];
    let table = Table::new(&plan, &[Some(OUT)], &values, 1, &policy()).unwrap();
    assert_eq!(table.header.num_fields, 2);
    let field = table.field(1);
    assert_eq!((field.out, field.numel, field.kind), (0x40, 5, Kind::Table as u8));
    assert_eq!(field.first_tile, 1);
    assert_eq!(table.values_at::<u8>(field.data, 20), bytes);
}
