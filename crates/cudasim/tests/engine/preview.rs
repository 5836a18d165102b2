//! The launch that `explain` describes, beside the launch that runs.

use windrow::engine::RunOptions;
use windrow::explain::Explain;
use windrow::plan::{Leaf, Target};
use windrow::{
    Collate, DType, Engine, Layout, Mask, Pad, Plan, Ragged, SampleList, SampleView, Transform,
};

use crate::rig::{engine, on_gpu, Buffer, Pinned, Rows, HERE};

/// Samples in one buffer, `step` bytes apart, from byte `first` on.
fn samples(
    buffer: &Buffer<'_>,
    dtype: DType,
    shapes: &[&[i64]],
    first: u64,
    step: u64,
) -> SampleList<'static> {
    let views = shapes.iter().zip(0..).map(|(shape, index)| {
        let layout = Layout::compact(dtype, shape).unwrap();
        let data = (buffer.address + first + step * index) as *const u8;
        // SAFETY: the buffer is larger, and outlives the batch.
        unsafe { SampleView::from_raw_parts(data, dtype, HERE, layout) }
    });
    views.collect()
}

/// The explanation of a call that has run: launches and bytes that crossed are as many as it says.
fn run(engine: &Engine, plan: Plan<'_>) -> Explain {
    let (explain, before) = (plan.explain(), engine.stats());
    engine.run_with(plan, RunOptions::default()).unwrap();
    let after = engine.stats();
    assert_eq!(after.launches - before.launches, explain.launches as u64, "{explain}");
    assert_eq!(
        after.bytes_to_device - before.bytes_to_device,
        explain.bytes_to_device,
        "{explain}"
    );
    assert_eq!(after.bytes_to_host - before.bytes_to_host, explain.bytes_to_host, "{explain}");
    assert_eq!(explain.launches, usize::from(explain.launch.is_some()));
    explain
}

/// The output, family and sources of each segment.
type Said = Vec<(&'static str, &'static str, Option<&'static str>)>;

fn said(explain: &Explain) -> Said {
    let launch = explain.launch.as_ref().unwrap();
    let items: u64 = launch.parts.iter().map(|part| part.items).sum();
    assert_eq!(items, launch.items, "{explain}");
    let parts = launch.parts.iter().map(|part| (part.output, part.family, part.sources));
    parts.collect()
}

#[test]
fn families_are_those_of_the_table() {
    on_gpu(|gpu| {
        let (engine, buffer) = (engine(), Buffer::poisoned(gpu, 8 << 20));
        let check = |list: &SampleList<'_>, collate: Collate, expected: Said| {
            let plan = Plan::new(list, &collate.device(HERE)).unwrap();
            assert_eq!(said(&run(&engine, plan)), expected);
        };
        let bytes = |size: i64, count, first, step| {
            samples(&buffer, DType::U8, &vec![&[size][..]; count], first, step)
        };
        let one = |family, sources| vec![("data", family, Some(sources))];
        let stack = Collate::stack;
        check(&bytes(512, 4, 0, 1024), stack(), one("rows", "addresses"));
        check(&bytes(512, 300, 0, 1024), stack(), one("rows", "ids"));
        check(&bytes(4096, 4, 0, 8192), stack(), one("aligned_copy", "addresses"));
        check(&bytes(77, 4, 1, 80), stack(), one("small_copy", "addresses"));
        check(&bytes(8, 4, 0, 80), stack(), one("scalar_fallback", "addresses"));
        check(&bytes(5000, 4, 1, 6000), stack(), one("contiguous_cast", "addresses"));
        let cast = stack().cast(DType::F16);
        check(&bytes(5000, 4, 1, 6000), cast, one("contiguous_cast", "addresses"));
        let images = samples(&buffer, DType::U8, &[&[20, 30, 3][..]; 2], 0, 4096);
        let planes = Transform::new().permute([2, 0, 1]);
        let normalised = planes.clone().scale(0.5);
        let collate = stack().cast(DType::F32).transform(normalised.clone());
        check(&images, collate, one("planar", "addresses"));
        let collate = stack().cast(DType::F64).transform(normalised);
        check(&images, collate, one("strided", "addresses"));
        let rows = samples(&buffer, DType::I32, &[&[300], &[400]], 0, 4096);
        let padded = Collate::pad(Pad::new().mask(Mask::Real)).cast(DType::I64);
        let parts = vec![
            ("data", "contiguous_cast", Some("addresses")),
            ("mask", "contiguous_cast", None),
            ("lengths", "metadata", None),
        ];
        check(&rows, padded, parts);
        let parts = vec![
            ("data", "contiguous_cast", Some("addresses")),
            ("lengths", "metadata", None),
            ("offsets", "metadata", None),
        ];
        check(&rows, Collate::ragged(Ragged::new()), parts);
    });
}

#[test]
fn tables_are_uploaded_as_explained() {
    on_gpu(|gpu| {
        let (engine, buffer) = (engine(), Buffer::poisoned(gpu, 8 << 20));
        // 4 bytes a sample, then 8: distances that have no common divisor are beyond 32 bits of it.
        for (count, uploaded) in [(300, false), (8000, false), (9000, true)] {
            let list = samples(&buffer, DType::U8, &vec![&[77][..]; count], 1, 80);
            let explain = run(&engine, Plan::new(&list, &Collate::stack().device(HERE)).unwrap());
            let launch = explain.launch.as_ref().unwrap();
            assert_eq!(launch.is_uploaded, uploaded, "{explain}");
            assert!((4 * count as u64..4 * count as u64 + 256).contains(&launch.table_bytes));
            assert_eq!(explain.bytes_to_device, if uploaded { launch.table_bytes } else { 0 });
            let way = if uploaded { "uploaded" } else { "in the parameters" };
            let text = explain.to_string();
            let line = format!("\nlaunch         {} items, table of ", launch.items);
            assert!(text.contains(&line) && text.contains(way), "{text}");
            let part = format!("\npart           data: small_copy, {count} samples by ids, ");
            assert!(text.contains(&part), "{text}");
        }
    });
}

/// Samples that move before the launch, outputs of the caller's, arenas, views.
#[test]
fn places_are_those_of_the_run() {
    on_gpu(|gpu| {
        let engine = engine();
        let rows = Rows::new(1, DType::U8, &[&[512], &[512]]);
        let (device, pinned): (Vec<Buffer<'_>>, Pinned<'_>) = (rows.upload(gpu), rows.pinned(gpu));
        let on_device = rows.at(device.iter().map(|buffer| buffer.address));
        let on_host = rows.on_host();
        let stack = Collate::stack().device(HERE);
        // Bytes that are copied into their places need no launch.
        assert_eq!(run(&engine, Plan::new(&on_host, &stack).unwrap()).launch, None);
        let cast = stack.clone().cast(DType::F16);
        let explain = run(&engine, Plan::new(&on_host, &cast).unwrap());
        assert_eq!(said(&explain), [("data", "contiguous_cast", Some("addresses"))]);
        let explain = run(
            &engine,
            Plan::new(&rows.on(windrow::Device::Pinned, &pinned.addresses), &stack).unwrap(),
        );
        assert_eq!(said(&explain), [("data", "rows", Some("addresses"))]);
        // An output at an odd address, where no vectors are stored.
        let odd = Buffer::poisoned(gpu, 1025);
        let layout = Layout::compact(DType::U8, &[2, 512]).unwrap();
        // SAFETY: the buffer outlives the run.
        let target = unsafe {
            Target::from_raw_parts((odd.address + 1) as *mut u8, DType::U8, HERE, layout)
        };
        let leaf = Leaf { samples: &on_device, collate: &stack, path: "", out: Some(&target) };
        let explain = run(&engine, Plan::for_leaves(&[leaf]).unwrap());
        assert_eq!(said(&explain), [("data", "contiguous_cast", Some("addresses"))]);
        // Back to the host.
        let back = Collate::stack().device(windrow::Device::Cpu);
        let explain = run(&engine, Plan::new(&on_device, &back).unwrap());
        assert_eq!(said(&explain), [("data", "rows", Some("addresses"))]);
        // Leaves that are views are not assembled; tensors of an arena have zeros between them.
        let leaf = Leaf { out: None, ..leaf };
        let plan = Plan::for_leaves(&[leaf, leaf]).unwrap();
        let explain = Engine::explain(&plan, &[true, false], |_| &engine);
        assert_eq!(explain.launch.as_ref().unwrap().parts.len(), 1);
        assert_eq!(explain.launch.as_ref().unwrap().parts[0].leaf, Some(1));
        assert_eq!(Engine::explain(&plan, &[true, true], |_| &engine).launch, None);
        let ragged = Collate::ragged(Ragged::new()).device(HERE);
        let leaves = [leaf, Leaf { collate: &ragged, ..leaf }];
        let explain = run(&engine, Plan::in_arena(&leaves).unwrap());
        let parts = ["data", "data", "lengths", "offsets", "gap"];
        assert_eq!(said(&explain).iter().map(|part| part.0).collect::<Vec<_>>(), parts);
    });
}
