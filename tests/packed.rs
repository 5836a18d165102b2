//! `pack`: a tree in one buffer, byte by byte, on the host and on a device.

use crate::common::Random;
use windrow::{DType, Device, Engine, Error, SampleView};

/// Bytes of every kind of leaf.
fn leaves<'a>(
    bytes: &'a [u8],
    floats: &'a [f32],
    shorts: &'a [i16],
) -> Vec<(&'static str, SampleView<'a>)> {
    vec![
        ("bytes", SampleView::from_slice(bytes, &[3, 7]).unwrap()),
        ("model.weight", SampleView::with_strides(floats, &[4, 5], &[1, 4]).unwrap()),
        ("tied", SampleView::with_strides(floats, &[4, 5], &[1, 4]).unwrap()),
        ("turned", SampleView::from_slice(floats, &[5, 4]).unwrap()),
        ("none", SampleView::from_slice(&floats[..0], &[0, 2]).unwrap()),
        ("reversed", SampleView::with_strides(shorts, &[9], &[-1]).unwrap()),
        ("number", SampleView::from_slice(&shorts[..1], &[]).unwrap()),
    ]
}

#[test]
fn a_tree_in_one_buffer() {
    let mut random = Random::new(3);
    let bytes: Vec<u8> = (0..21).map(|_| random.next() as u8).collect();
    let floats: Vec<f32> = (0..20).map(|n| n as f32).collect();
    let shorts: Vec<i16> = (0..9).map(|n| n * 300).collect();
    let tree = leaves(&bytes, &floats, &shorts);
    for engine in [Engine::host(), Engine::reference()] {
        let packed = engine.pack(&tree).unwrap();
        assert_eq!(packed.offsets().collect::<Vec<_>>(), [0, 64, 64, 192, 320, 320, 384]);
        assert_eq!((packed.nbytes(), packed.buffer().dtype()), (386, DType::U8));
        let buffer = packed.buffer().as_slice::<u8>().unwrap();
        let mut expected = vec![0; 386];
        expected[..21].copy_from_slice(&bytes);
        for (at, from) in (0..4).flat_map(|i| (0..5).map(move |j| (5 * i + j, i + 4 * j))) {
            let place = 64 + 4 * at;
            expected[place..place + 4].copy_from_slice(&floats[from].to_ne_bytes());
        }
        for (at, float) in floats.iter().enumerate() {
            expected[192 + 4 * at..196 + 4 * at].copy_from_slice(&float.to_ne_bytes());
        }
        for (at, short) in shorts.iter().rev().enumerate() {
            expected[320 + 2 * at..322 + 2 * at].copy_from_slice(&short.to_ne_bytes());
        }
        expected[384..].copy_from_slice(&shorts[0].to_ne_bytes());
        assert_eq!(buffer, expected);
        assert_eq!(packed.leaves().len(), tree.len());
        for ((name, view), (expected_name, leaf)) in packed.leaves().zip(&tree) {
            assert_eq!(
                (name, view.shape(), view.dtype()),
                (*expected_name, leaf.shape(), leaf.dtype())
            );
        }
        let number = packed.get("number").unwrap();
        assert_eq!(number.as_slice::<i16>().unwrap(), [0]);
        assert!(packed.get("another").is_none());
    }
    let none: [(&str, SampleView<'_>); 0] = [];
    assert_eq!(Engine::host().pack(&none).unwrap().nbytes(), 0);
}

#[test]
fn leaves_in_several_places_are_refused() {
    let floats = [1f32; 4];
    let elsewhere = SampleView::from_slice(&floats, &[4]).unwrap();
    let layout = windrow::Layout::compact(DType::F32, &[4]).unwrap();
    // SAFETY: host memory under another name, which is refused before it is read.
    #[allow(unsafe_code)]
    let pinned = unsafe {
        SampleView::from_raw_parts(floats.as_ptr().cast(), DType::F32, Device::Pinned, layout)
    };
    let error = Engine::host().pack(&[("a", elsewhere), ("b.c", pinned)]).unwrap_err();
    let Error::Device(found) = &error else { panic!("{error}") };
    assert_eq!(found.path, "b.c");
    assert!(error.to_string().contains("expected cpu, got pinned"), "{error}");
}

/// The same leaves on a device are the same bytes there, written by one launch.
#[cfg(feature = "cuda")]
#[test]
fn a_tree_on_a_device() {
    use crate::common::device;

    let Some(engine) = device::engine() else { return };
    let bytes: Vec<u8> = (0..21).collect();
    let floats: Vec<f32> = (0..20).map(|n| n as f32).collect();
    let shorts: Vec<i16> = (0..9).map(|n| n * 300).collect();
    let tree = leaves(&bytes, &floats, &shorts);
    let host = engine.pack(&tree).unwrap();
    let there: Vec<_> = tree
        .iter()
        .map(|(name, leaf)| {
            let collate = windrow::Collate::stack().device(Device::Cuda(0));
            let batch = engine.assemble(std::slice::from_ref(leaf), &collate).unwrap();
            (*name, batch.data().select(0).unwrap())
        })
        .collect();
    let views: Vec<_> = there.iter().map(|(name, leaf)| (*name, leaf.into())).collect();
    let before = engine.stats().launches;
    let packed = engine.pack(&views).unwrap();
    assert_eq!(engine.stats().launches - before, 1);
    assert_eq!(packed.buffer().device(), Device::Cuda(0));
    packed.buffer().synchronize().unwrap();
    let found = device::read(packed.buffer().data_ptr().addr() as u64, packed.nbytes());
    // The tied leaf was copied to a place of its own.
    let mut expected = host.buffer().as_slice::<u8>().unwrap()[..64 + 80].to_vec();
    expected.resize(192, 0);
    expected.extend_from_slice(&host.buffer().as_slice::<u8>().unwrap()[64..]);
    assert_eq!(found, expected);
}

#[test]
fn leaves_without_elements_may_be_anywhere() {
    let empty = |device: Device| {
        let layout = windrow::Layout::compact(DType::F32, &[0, 3]).unwrap();
        // SAFETY: no element is read.
        #[allow(unsafe_code)]
        unsafe {
            SampleView::from_raw_parts(std::ptr::null(), DType::F32, device, layout)
        }
    };
    let weight = [1f32, 2.0];
    let on_host = SampleView::from_slice(&weight, &[2]).unwrap();
    let tree = [("none", empty(Device::Cuda(1))), ("w", on_host), ("more", empty(Device::Cuda(0)))];
    let packed = Engine::host().pack(&tree).unwrap();
    assert_eq!(packed.buffer().device(), Device::Cpu);
    assert_eq!(packed.get("w").unwrap().as_slice::<f32>().unwrap(), weight);
    assert_eq!(packed.get("more").unwrap().shape(), [0, 3]);
}
