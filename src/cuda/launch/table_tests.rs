//! The table of a launch, decoded again.

#![allow(unsafe_code)] // Samples at made-up addresses.

use bytemuck::{cast_slice, pod_read_unaligned};

use super::*;
use crate::collate::{Collate, Mask, Pad, Quantize, Ragged, Side, Transform};
use crate::cuda::launch::family::Family;
use crate::cuda::launch::host_metadata::host_metadata;
use crate::cuda::launch::kernel_abi;
use crate::cuda::launch::output_desc::{flags, varies, Head, Metadata, Nest, Work};
use crate::plan::Role;
use crate::samples::{SampleList, SampleView};
use crate::tensor::{DType, Device, Dims, Layout};

const HERE: Device = Device::Cuda(0);
/// The address of an output, a multiple of 16.
const OUT: u64 = 0x10_0000;
const HEADER_BYTES: usize = size_of::<Header>();

/// Samples on the device that nothing reads, `gap` bytes apart.
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

/// Samples of one dim and these lengths.
fn rows(dtype: DType, lengths: &[i64]) -> SampleList<'static> {
    let shapes: Vec<[i64; 1]> = lengths.iter().map(|&length| [length]).collect();
    samples(dtype, &shapes.iter().map(|shape| &shape[..]).collect::<Vec<_>>(), 2 * 256)
}

fn policy() -> Policy {
    Policy::from_env().unwrap()
}

/// Numbers that a launch writes to this address.
fn numbers(out: u64, dtype: DType, numbers: &[i64]) -> MetadataSegment {
    let (shape, numbers) = (Dims::from_slice(&[numbers.len() as i64]), numbers.to_vec());
    let field = Some((0, Role::Lengths));
    MetadataSegment { field, dtype, shape, numbers, is_selected: false, out }
}

/// The table of a plan whose outputs are written to these places.
fn table_of(
    plan: &Plan<'_>,
    places: &[Option<u64>],
    values: &[MetadataSegment],
    num_sms: u32,
    policy: &Policy,
) -> Result<Table> {
    let outputs = plan.outputs().iter().zip(places);
    let outputs = outputs.filter_map(|(output, place)| Some((output, (*place)?)));
    Table::new(&segments(plan, outputs), values, num_sms, policy)
}

fn table(samples: &SampleList<'_>, collate: &Collate, out: u64) -> Table {
    let plan = Plan::new(samples, &collate.clone().device(HERE)).unwrap();
    table_of(&plan, &vec![Some(out); plan.outputs().len()], &[], 132, &policy()).unwrap()
}

impl Table {
    fn desc(&self, index: usize) -> OutputDesc {
        self.descs().nth(index).unwrap()
    }

    fn head(&self, index: usize) -> Head {
        self.desc(index).head
    }

    fn nest(&self, index: usize) -> Nest {
        *self.desc(index).nest().unwrap()
    }

    fn metadata(&self, index: usize) -> Metadata {
        match self.desc(index).work {
            Work::Metadata(metadata) => metadata,
            other => panic!("{other:?}"),
        }
    }

    /// Values at a position.
    fn values_at<T: Pod>(&self, position: u64, count: usize) -> Vec<T> {
        let bytes = &self.as_bytes()[position as usize * 8..][..count * size_of::<T>()];
        bytes.chunks_exact(size_of::<T>()).map(pod_read_unaligned).collect()
    }

    fn families(&self) -> Vec<Family> {
        self.descs().map(|desc| desc.family()).collect()
    }
}

#[test]
fn parameters_have_one_of_two_sizes_and_nothing_is_lost_at_their_ends() {
    // One descriptor, and 8 bytes for each sample.
    let fixed = HEADER_BYTES + 8 * DESC_WORDS;
    let policy = Policy { min_ids: u64::MAX, ..policy() };
    // One pool serves one launch after the other.
    let pool = ArgumentPool::default();
    for (limit, larger) in
        [(kernel_abi::SMALL_BYTES, Some(kernel_abi::LARGE_BYTES)), (kernel_abi::LARGE_BYTES, None)]
    {
        let most = (limit - fixed) / 8;
        assert_eq!(fixed + 8 * most, limit, "a table may fill the parameters");
        for count in [most - 1, most, most + 1] {
            let list = samples(DType::U8, &vec![&[24][..]; count], 3);
            let plan = Plan::new(&list, &Collate::stack().device(HERE)).unwrap();
            let table = table_of(&plan, &[Some(OUT)], &[], 132, &policy).unwrap();
            assert_eq!(HEADER_BYTES + table.as_bytes().len(), fixed + 8 * count);
            assert_eq!(table.is_inline(&policy), count <= most || larger.is_some());
            let Some(bytes) = [Some(limit), larger][usize::from(count > most)] else {
                let arguments = table.arguments(Some(0x77), &pool, &policy);
                let words = arguments.words();
                assert_eq!((words.len() * 8, words[0]), (kernel_abi::SMALL_BYTES, 0x77));
                continue;
            };
            let arguments = table.arguments(None, &pool, &policy);
            let words = arguments.words();
            assert_eq!((words.len() * 8, words[0]), (bytes, 0));
            let inside: &[u8] = &cast_slice(words)[HEADER_BYTES..];
            assert_eq!(&inside[..table.as_bytes().len()], table.as_bytes());
            let addresses = table.values_at::<u64>(table.head(0).data.into(), count);
            assert!(addresses.iter().zip(0..).all(|(&at, i)| at == 0x1000_0000 + 27 * i));
        }
    }
}

#[test]
fn every_family_has_its_batches() {
    use Family::{
        AlignedCopy, ContiguousCast, ContiguousGeneric, Planar, Rows, ScalarFallback, SmallCopy,
        Strided,
    };
    let images = |dtype| samples(dtype, &[&[20, 30, 3], &[20, 30, 3]], 0);
    let planes = Transform::new().permute([2, 0, 1]);
    let scaled = planes.clone().scale(0.5);
    let family =
        |list: &SampleList<'_>, collate: &Collate, out| table(list, collate, out).families();
    let is = |found: Vec<Family>, expected: Family| assert_eq!(found, [expected], "{expected:?}");
    let stack = Collate::stack();
    let two = |length| rows(DType::U8, &[length, length]);
    is(family(&two(512), &stack, OUT), Rows);
    is(family(&two(512), &stack, OUT + 1), ContiguousCast);
    is(family(&two(4096), &stack, OUT), AlignedCopy);
    is(family(&two(77), &stack, OUT), SmallCopy);
    is(family(&two(8), &stack, OUT), ScalarFallback);
    is(family(&two(8), &stack, OUT + 1), ScalarFallback);
    is(family(&two(8), &stack.clone().cast(DType::F16), OUT), ScalarFallback);
    is(family(&two(8), &stack.clone().cast(DType::F16), OUT + 1), Strided);
    is(family(&two(5000), &stack, OUT), ContiguousCast);
    is(family(&two(5000), &Collate::ragged(Ragged::new()), OUT), ContiguousCast);
    is(family(&two(5000), &stack.clone().cast(DType::F16), OUT), ContiguousCast);
    is(family(&two(5000), &stack.clone().cast(DType::U64), OUT), ContiguousGeneric);
    for to in [DType::F16, DType::BF16, DType::F32] {
        is(
            family(&images(DType::U8), &stack.clone().transform(scaled.clone()).cast(to), OUT),
            Planar,
        );
    }
    is(family(&images(DType::U8), &stack.clone().transform(planes.clone()), OUT), Planar);
    for other in [
        family(&images(DType::I16), &stack.clone().transform(scaled.clone()).cast(DType::F32), OUT),
        family(&images(DType::U8), &stack.clone().transform(scaled.clone()).cast(DType::F64), OUT),
        family(&images(DType::U8), &stack.transform(scaled).cast(DType::U8), OUT),
    ] {
        is(other, Strided);
    }
}

/// Numbers that are moved in words as large as their addresses allow, or cast.
#[test]
fn scalars_are_written_element_by_element() {
    let scalars = |gap| samples(DType::I64, &vec![&[][..]; 5000], gap);
    for (to, gap, out, sizes, each) in [
        (DType::I64, 8, OUT, [8, 8], 1),
        (DType::I64, 8, OUT + 4, [4, 4], 2),
        (DType::I64, 2, OUT, [2, 2], 4),
        (DType::I64, 1, OUT, [1, 1], 8),
        (DType::F32, 8, OUT, [8, 4], 1),
    ] {
        let table = table(&scalars(gap), &Collate::stack().cast(to), out);
        let desc = table.desc(0);
        let Work::ScalarFallback(scalars) = desc.work else { panic!("{desc:?}") };
        assert_eq!(([desc.head.from_size, desc.head.to_size], scalars.elems), (sizes, each));
        assert_eq!(table.num_items(), (5000 * each).div_ceil(scalars.piece));
        assert_eq!(table.kernels(), [TableKernel::Common]);
    }
    // An address that is no multiple of an element is a matter of the strided family.
    let odd = table(&scalars(1), &Collate::stack().cast(DType::F32), OUT);
    assert_eq!(odd.families(), [Family::Strided]);
}

#[test]
fn batches_take_the_kernel_of_common_families_if_they_have_no_other() {
    let matrices = samples(DType::F32, &[&[64, 64], &[64, 64]], 0);
    let transposed = Collate::stack().transform(Transform::new().permute([1, 0]));
    let cast = Collate::stack().cast(DType::I8);
    let quantised = Collate::stack().transform(Quantize::new(DType::F8E4M3FN));
    let [moved, boxes, cast, quantised] = [Collate::stack(), transposed, cast, quantised]
        .map(|collate| Plan::new(&matrices, &collate.device(HERE)).unwrap());
    let kernels = |plans: &[&Plan<'_>], policy: &Policy| {
        let outputs = |plan| segments(plan, plan.outputs().iter().map(|output| (output, OUT)));
        let all: Vec<_> = plans.iter().flat_map(|plan| outputs(plan)).collect();
        Table::new(&all, &[], 132, policy).unwrap().kernels().to_vec()
    };
    let policy = policy();
    use TableKernel::{Any, Common, Quantise};
    assert_eq!(kernels(&[&moved], &policy), [Common]);
    assert_eq!(kernels(&[&moved, &moved], &policy), [Common]);
    // One rare output is enough: all outputs but the quantised have one launch.
    for rare in [&boxes, &cast] {
        assert_eq!(kernels(&[rare], &policy), [Any]);
        assert_eq!(kernels(&[rare, &moved], &policy), [Any]);
        assert_eq!(kernels(&[&moved, rare], &policy), [Any]);
        assert_eq!(kernels(&[&quantised, rare], &policy), [Quantise, Any]);
    }
    // Quantised has a launch of its own, in which nothing else is written.
    assert_eq!(kernels(&[&quantised], &policy), [Quantise]);
    assert_eq!(kernels(&[&quantised, &moved], &policy), [Quantise, Common]);
    let many = [&quantised].repeat(200);
    assert_eq!(kernels(&many, &policy), [Quantise]);
    assert_eq!(kernels(&[&many[..], &[&moved]].concat(), &policy), [Quantise, Any]);
    let always_any = Policy { always_any: 1, ..policy };
    assert_eq!(kernels(&[&moved], &always_any), [Any]);
    assert_eq!(kernels(&[&quantised], &always_any), [Quantise]);
}

#[test]
fn lengths_are_columns_and_written_once() {
    let lengths: Vec<i64> = (0..4096).map(|i| 16 + i * 37 % 2033).collect();
    let list = rows(DType::I32, &lengths);
    let collate =
        Collate::pad(Pad::new().size(2048).mask(Mask::Real)).cast(DType::I64).device(HERE);
    let plan = Plan::new(&list, &collate).unwrap();
    let values = [numbers(0x40, DType::I64, &lengths)];
    let table = table_of(&plan, &[Some(OUT), Some(2 * OUT)], &values, 132, &policy()).unwrap();
    let ([data, mask], numbers) = ([0, 1].map(|index| table.nest(index)), table.head(2));
    let families = [Family::ContiguousCast, Family::ContiguousCast, Family::Metadata];
    assert_eq!(table.families(), families);
    assert_eq!([data.cols.varies, mask.cols.varies], [varies::NARROW_HI; 2]);
    assert_eq!([data.cols.hi, mask.cols.hi], [u64::from(numbers.data); 2]);
    let column = table.values_at::<u16>(data.cols.hi, lengths.len());
    assert!(column.iter().zip(&lengths).all(|(&a, &b)| i64::from(a) == b));
    // An id and a length for each row; 322 KB with a class for each length.
    let descs = HEADER_BYTES + 3 * 8 * DESC_WORDS;
    assert_eq!(table.bytes() as usize, descs + (4 + 2) * lengths.len());
    assert!(table.is_inline(&policy()));
    // A row, and four of the mask.
    assert_eq!([data.items, table.head(1).first_item, u32::from(table.nest(1).rows)], [1, 4096, 4]);
}

/// Columns of lengths, offsets and paddings in front have 16 bits where all of their numbers have, each column for itself.
#[test]
fn columns_are_narrow_if_all_of_their_numbers_fit() {
    let pad = |side| Collate::pad(Pad::new().size(65_536).side(side)).device(HERE);
    let below = |narrow_below| Policy { narrow_below, ..policy() };
    for (longest, policy, is_narrow) in [
        (65_535, policy(), true),
        (65_536, policy(), false),
        (65_535, below(65_535), false),
        (65_534, below(65_535), true),
        (0, below(0), false),
    ] {
        let lengths = [1, longest, 300, 0];
        let list = rows(DType::U8, &lengths);
        for side in [Side::Right, Side::Left] {
            let plan = Plan::new(&list, &pad(side)).unwrap();
            let numbers = [numbers(0x40, DType::I64, &lengths)];
            let table = table_of(&plan, &[Some(OUT)], &numbers, 132, &policy).unwrap();
            let (data, values) = (table.nest(0), table.head(1));
            let read = |position, is_narrow| match is_narrow {
                true => table.values_at::<u16>(position, 4).into_iter().map(i64::from).collect(),
                false => table.values_at::<u32>(position, 4).into_iter().map(i64::from).collect(),
            };
            let read: &dyn Fn(u64, bool) -> Vec<i64> = &read;
            assert_eq!(values.from_size, if is_narrow { 2 } else { 4 }, "{longest}");
            assert_eq!(read(values.data.into(), is_narrow), lengths, "{longest}");
            if side == Side::Right {
                assert_eq!(data.cols.hi, u64::from(values.data));
                let bit = if is_narrow { varies::NARROW_HI } else { varies::HI };
                assert_eq!(data.cols.varies, bit, "{longest}");
            } else {
                // In front of the row without elements is no padding: all of it is behind.
                let front = lengths.map(|length| if length == 0 { 0 } else { 65_536 - length });
                let is_narrow = policy.narrow_below > 65_535;
                let bit = if is_narrow { varies::NARROW_LO } else { varies::LO };
                assert_eq!(data.cols.varies & (varies::NARROW_LO | varies::LO), bit, "{longest}");
                assert_eq!(read(data.cols.lo, is_narrow), front, "{longest}");
            }
        }
    }
}

/// The most rows whose table goes with the parameters, which it fills, and one less and one more. tests/sizes.rs has batches of as many.
#[test]
fn tables_of_lengths_fill_the_parameters() {
    let pad = Collate::pad(Pad::new().size(192).mask(Mask::Real));
    let forms = [
        (pad, 5344),
        (Collate::ragged(Ragged::new().batch_index()), 3183),
        (Collate::concat(0), 3205),
    ];
    for (collate, most) in forms {
        let collate = collate.cast(DType::I64).device(HERE);
        let bytes = |count: usize| {
            let lengths: Vec<i64> = (0..count as i64).map(|i| 30 + i % 32).collect();
            let list = rows(DType::I32, &lengths);
            let plan = Plan::new(&list, &collate).unwrap();
            let values = host_metadata(&plan).unwrap();
            let places = vec![Some(OUT); plan.outputs().len()];
            let table = table_of(&plan, &places, &values, 132, &policy()).unwrap();
            assert_eq!(table.is_inline(&policy()), table.bytes() <= kernel_abi::LARGE_BYTES as u64);
            table.bytes() as usize
        };
        let [less, full, more] = [most - 1, most, most + 1].map(bytes);
        assert!(less <= full && full < more, "{collate:?}");
        assert_eq!(full, kernel_abi::LARGE_BYTES, "{collate:?}");
    }
}

/// Rows that share a warp go through one loop: that of aligned ones if they are all known to be.
#[test]
fn short_rows_are_mixed_unless_all_are_aligned() {
    let pad = Collate::pad(Pad::new().size(256));
    let left = Collate::pad(Pad::new().size(256).side(Side::Left));
    let (even, odd) = (rows(DType::I64, &[64, 130, 256]), rows(DType::I64, &[63, 130, 256]));
    for (list, collate, out, is_mixed) in [
        (&even, &pad, OUT, false),
        (&even, &pad, OUT + 8, true),
        (&odd, &pad, OUT, true),
        (&even, &left, OUT, true),
        (&even, &Collate::ragged(Ragged::new()), OUT, true),
    ] {
        let table = table(list, collate, out);
        assert_eq!((table.families(), table.nest(0).rows), (vec![Family::ContiguousCast], 4));
        let has_mixed = table.head(0).flags & flags::MIXED != 0;
        assert_eq!(has_mixed, is_mixed, "{collate:?} to {out:#x}");
    }
}

#[test]
fn one_long_row_among_short_ones_is_cut_into_pieces() {
    let most = i64::try_from(policy().max_team_bytes * policy().max_team_skew).unwrap();
    for (longest, rows_of_warp) in [(most, 4), (most + 1, 0), (1 << 31, 0)] {
        // Enough others that a row is short on average.
        let mut lengths = vec![8; usize::try_from(longest / 1000).unwrap()];
        lengths[3] = longest;
        let table = table(&rows(DType::U8, &lengths), &Collate::ragged(Ragged::new()), OUT);
        assert_eq!(table.families(), [Family::ContiguousCast]);
        assert_eq!(table.nest(0).rows, rows_of_warp, "{longest}");
        assert_eq!(table.nest(0).piece == u32::MAX, rows_of_warp == 4);
    }
}

#[test]
fn ragged_samples_are_found_by_hints() {
    let lengths: Vec<i64> = (0..512).map(|i| [0, 1, 90_000, 0, 9000, 33][i % 6]).collect();
    let list = rows(DType::I16, &lengths);
    for (collate, out) in [
        (Collate::ragged(Ragged::new()), OUT),
        (Collate::ragged(Ragged::new()), OUT + 6),
        (Collate::ragged(Ragged::new()).cast(DType::F32), OUT),
    ] {
        let plan = Plan::new(&list, &collate.clone().device(HERE)).unwrap();
        let offsets: Vec<i64> = lengths.iter().fold(vec![0], |mut all, length| {
            all.push(all[all.len() - 1] + length);
            all
        });
        let values = [numbers(0x40, DType::I64, &offsets)];
        let table = table_of(&plan, &[Some(out)], &values, 132, &policy()).unwrap();
        assert!(table.bytes() < 12_000, "{} bytes", table.bytes());
        let nest = table.nest(0);
        assert_eq!(table.head(1).data, nest.offsets);
        let count = table.head(0).num_samples as usize;
        let first = table.values_at::<u32>(nest.first.into(), count);
        let items = table.head(1).first_item;
        let num_hints = ((items - 1) >> nest.hint_shift) as usize + 2;
        let hints = table.values_at::<u32>(nest.hints.into(), num_hints);
        for item in 0..items {
            let owner = first.partition_point(|&first| first <= item) - 1;
            let hint = (item >> nest.hint_shift) as usize;
            assert!((hints[hint]..=hints[hint + 1]).contains(&(owner as u32)), "{item}");
        }
    }
}

#[test]
fn padded_images_share_their_loops_whatever_their_sizes() {
    // The third is as wide as the batch, so that its rows follow each other; the last is empty.
    let list = samples(DType::U8, &[&[20, 30, 3], &[17, 25, 3], &[9, 30, 3], &[0, 5, 3]], 1);
    let pad = Pad::new().sizes([Some(20), Some(30), None]).mask(Mask::Pad);
    for side in [Side::Right, Side::Left] {
        let collate = Collate::pad(pad.clone().side(side));
        let collate =
            collate.cast(DType::F16).transform(Transform::new().scale(0.5).permute([2, 0, 1]));
        let table = table(&list, &collate, OUT);
        assert_eq!(table.families(), [Family::Planar, Family::Strided]);
        let Work::Planar(planar) = table.desc(0).work else { panic!("{:?}", table.desc(0)) };
        let nest = planar.nest;
        assert_eq!((table.head(0).num_samples, nest.num_outer, planar.planes), (4, 1, 3));
        let outer = table.values_at::<Loop>(nest.outer.into(), 1)[0];
        assert_eq!((outer.extent, nest.cols.extent), (20, 30));
        let column = |position| table.values_at::<u16>(position, 3);
        let (heights, widths) = ([20, 17, 9], [30, 25, 30]);
        if side == Side::Right {
            assert_eq!((column(outer.hi), column(nest.cols.hi)), (heights.into(), widths.into()));
        } else {
            let less = |most: u16, all: [u16; 3]| all.map(|one| most - one).to_vec();
            assert_eq!(column(outer.lo), less(20, heights));
            assert_eq!(column(nest.cols.lo), less(30, widths));
        }
    }
}

#[test]
fn ids_take_the_place_of_addresses_that_they_reach() {
    let list = samples(DType::U8, &vec![&[512][..]; 1000], 512);
    let table = table(&list, &Collate::stack(), OUT);
    let head = table.head(0);
    let by_id = head.flags & flags::BY_ID != 0;
    assert_eq!((by_id, head.base, head.stride), (true, 0x1000_0000, 1024));
    let ids = table.values_at::<u32>(head.data.into(), 1000);
    assert!(ids.iter().zip(0..).all(|(&id, i)| id == i));
    assert_eq!(table.bytes() as usize, HEADER_BYTES + 8 * DESC_WORDS + 4000);
    // Vectors of rows are counted in 32 bits, which those of aligned_copy are not.
    for (length, by_id) in [(512, false), (4096, true)] {
        let far = samples(DType::U8, &vec![&[length][..]; 1000], 1 << 26);
        let head = self::table(&far, &Collate::stack(), OUT).head(0);
        assert_eq!(head.flags & flags::BY_ID != 0, by_id, "{length}");
    }
}

#[test]
fn samples_of_several_dtypes_are_parts_of_one_tensor() {
    let view = |at: usize, dtype| {
        let layout = Layout::compact(dtype, &[1000]).unwrap();
        // SAFETY: nothing is read.
        unsafe { SampleView::from_raw_parts((0x1000 * (at + 1)) as *const u8, dtype, HERE, layout) }
    };
    let dtypes = [DType::F32, DType::F32, DType::I16, DType::I16];
    let list: SampleList<'_> =
        dtypes.iter().enumerate().map(|(at, &dtype)| view(at, dtype)).collect();
    let table = table(&list, &Collate::stack().cast(DType::F32), OUT);
    let places = [0, 1].map(|index| table.values_at::<u32>(table.nest(index).places.into(), 2));
    assert_eq!(places, [vec![0, 1], vec![2, 3]]);
}

#[test]
fn fields_without_elements_are_left_out() {
    let list = samples(DType::F32, &[&[0, 3], &[0, 3]], 0);
    let table = table(&list, &Collate::stack(), OUT);
    assert_eq!((table.num_items(), table.as_bytes().len()), (0, 0));
}

#[test]
fn fields_go_with_the_parameters_wherever_the_table_is() {
    let (pool, policy) = (ArgumentPool::default(), policy());
    let sevens = [0x0707_0707_0707_0707; 512];
    // Descriptors as many as small and as large parameters have room for, and one more.
    for (num_descs, is_large, has_any) in
        [(18, false, false), (19, true, false), (146, true, false), (147, true, true)]
    {
        let value = |at| numbers(16 * at, DType::I64, &sevens);
        let values: Vec<MetadataSegment> = (0..num_descs).map(value).collect();
        let table = Table::new(&[], &values, 1, &policy).unwrap();
        let arguments = table.arguments(Some(0x77), &pool, &policy);
        let said = (arguments.is_large, table.kernels() == [TableKernel::Any]);
        assert_eq!(said, (is_large, has_any), "{num_descs}");
        let words = arguments.words();
        assert_eq!((words[0], words[1] >> 32), (0x77, num_descs - 1));
        let descs = num_descs.min(146) as usize * 8 * DESC_WORDS;
        let inside: &[u8] = &cast_slice(words)[HEADER_BYTES..];
        assert_eq!(inside[..descs], table.as_bytes()[..descs]);
    }
}

#[test]
fn values_stand_in_the_table_itself() {
    let list = samples(DType::U8, &[&[5], &[6]], 1);
    let plan = Plan::new(&list, &Collate::ragged(Ragged::new()).device(HERE)).unwrap();
    let values = [numbers(0x40, DType::I32, &[70_000, 1, 2, 3, 4]), numbers(0x80, DType::I64, &[])];
    let table = table_of(&plan, &[Some(OUT)], &values, 1, &policy()).unwrap();
    assert_eq!(table.header.last_desc, 1);
    assert_eq!((table.head(1).out, table.metadata(1).count), (0x40, 5));
    assert_eq!(table.values_at::<u32>(table.head(1).data.into(), 5), [70_000, 1, 2, 3, 4]);
}

#[test]
fn what_does_not_fit_a_launch_is_an_error() {
    // Boxes of one element each, as their strides have 32 bits.
    let gap = 1i64 << 33;
    let layout = Layout::try_new(DType::U8, &[1 << 16, 1 << 16], Some(&[gap, gap])).unwrap();
    // SAFETY: nothing is read.
    let far = unsafe { SampleView::from_raw_parts(0x1000 as *const u8, DType::U8, HERE, layout) };
    let list: SampleList<'_> = [far].into_iter().collect();
    let plan = Plan::new(&list, &Collate::stack().device(HERE)).unwrap();
    let error = table_of(&plan, &[Some(OUT)], &[], 132, &policy()).unwrap_err();
    assert!(matches!(error, crate::Error::TooLarge(_)), "{error}");
}
