//! The workloads that there are. Most come twice: scattered, and contiguous as the control.

use windrow::{Collate, DType, Mask, Pad, Ragged, Transform};

use super::workloads::Lie::{Contiguous, Misaligned, Pinned, Scattered};
use super::workloads::{Lie, Part, Random, Workload};

/// A workload that is not in memory yet, so that only one is at a time.
pub struct Entry {
    /// The series of a case: `size` and `count`; other names are those of the design.
    pub family: &'static str,
    pub title: String,
    pub lie: Lie,
    parts: Box<dyn Fn() -> Vec<Part>>,
}

impl Entry {
    pub fn new(
        family: &'static str,
        title: impl Into<String>,
        lie: Lie,
        parts: impl Fn() -> Vec<Part> + 'static,
    ) -> Entry {
        Entry { family, title: title.into(), lie, parts: Box::new(parts) }
    }

    pub fn name(&self) -> String {
        format!("{}, {}", self.title, self.lie.label())
    }

    pub fn make(&self) -> Workload {
        Workload::new((self.parts)(), self.lie)
    }
}

pub fn part(path: &'static str, dtype: DType, shapes: Vec<Vec<i64>>, collate: Collate) -> Part {
    Part { path, dtype, shapes, collate }
}

pub fn rows(count: usize, length: usize) -> Vec<Part> {
    vec![part("", DType::U8, vec![vec![length as i64]; count], Collate::stack())]
}

pub fn normalised() -> Transform {
    let (mean, std) = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]);
    Transform::new().scale(1.0 / 255.0).mean(mean).std(std).channel_dim(2).permute([2, 0, 1])
}

pub fn images(count: usize, side: i64, to: DType) -> Vec<Part> {
    let collate = Collate::stack().cast(to).transform(normalised());
    vec![part("", DType::U8, vec![vec![side, side, 3]; count], collate)]
}

/// Clips of 1 to 15 seconds at 16 kHz.
pub fn clips(count: usize, dtype: DType, collate: Collate) -> Vec<Part> {
    let mut random = Random(5);
    let shapes = (0..count).map(|_| vec![16_000 + random.below(224_001) as i64]).collect();
    vec![part("", dtype, shapes, collate)]
}

/// Token rows of 16 to 2048, padded to 2048.
pub fn tokens(count: usize, to: DType) -> Vec<Part> {
    let mut random = Random(7);
    let shapes = (0..count).map(|_| vec![16 + random.below(2033) as i64]).collect();
    let collate = Collate::pad(Pad::new().size(2048).mask(Mask::Real)).cast(to);
    vec![part("", DType::I32, shapes, collate)]
}

/// Fields of environments, 249 bytes of each.
pub fn environments(count: usize) -> Vec<Part> {
    let leaf = |path, dtype, shape: &[i64]| {
        part(path, dtype, vec![shape.to_vec(); count], Collate::stack())
    };
    vec![
        leaf("observation", DType::F32, &[24]),
        leaf("next_observation", DType::F32, &[24]),
        leaf("action", DType::F32, &[9]),
        leaf("reward", DType::F32, &[]),
        leaf("value", DType::F32, &[]),
        leaf("log_probability", DType::F32, &[]),
        leaf("step", DType::I64, &[]),
        leaf("done", DType::Bool, &[]),
    ]
}

/// Detection images, padded to one size.
pub fn detection(count: usize) -> Vec<Part> {
    let mut random = Random(11);
    let shape = |_| vec![736 + random.below(65) as i64, 800 + random.below(545) as i64, 3];
    let shapes = (0..count).map(shape).collect();
    let collate = Collate::pad(Pad::new().sizes([Some(800), Some(1344), None]).mask(Mask::Pad));
    vec![part("", DType::U8, shapes, collate.cast(DType::F16).transform(normalised()))]
}

/// Graphs of some 300 nodes and 600 edges. Numbers of edges' nodes stay as they are: windrow adds no
/// increments.
pub fn graphs(count: usize) -> Vec<Part> {
    let mut random = Random(13);
    let mut some = |about: u64| (about / 2 + random.below(about + 1)) as i64;
    let sizes: Vec<(i64, i64)> = (0..count).map(|_| (some(300), some(600))).collect();
    let nodes = sizes.iter().map(|(nodes, _)| vec![*nodes, 64]).collect();
    let edges = sizes.iter().map(|(_, edges)| vec![2, *edges]).collect();
    vec![
        part("x", DType::F32, nodes, Collate::ragged(Ragged::new().batch_index())),
        part("edge_index", DType::I64, edges, Collate::concat(1)),
    ]
}

/// All of them, by what their figures are worth: the workloads of the design, which most users have, then their controls, then
/// counts and sizes. `scale` divides the numbers of samples.
pub fn all(scale: usize) -> Vec<Entry> {
    let mut catalogue = Catalogue { scale, entries: Vec::new() };
    catalogue.images_and_rows();
    catalogue.pages_and_fields();
    catalogue.page_locked();
    catalogue.clips_and_detection();
    catalogue.graphs_and_odd_sizes();
    catalogue.series();
    let rank = |entry: &Entry| match entry.family.starts_with('W') {
        true => usize::from(entry.lie == Contiguous),
        false => 2,
    };
    catalogue.entries.sort_by_key(rank);
    catalogue.entries
}

const PAIR: [Lie; 2] = [Scattered, Contiguous];
const ODD: [Lie; 2] = [Misaligned, Contiguous];

struct Catalogue {
    scale: usize,
    entries: Vec<Entry>,
}

impl Catalogue {
    /// The same workload for each way that its samples may be.
    fn add(
        &mut self,
        family: &'static str,
        title: impl Into<String>,
        lies: &[Lie],
        parts: impl Fn() -> Vec<Part> + Clone + 'static,
    ) {
        let title = title.into();
        for &lie in lies {
            self.entries.push(Entry::new(family, title.clone(), lie, parts.clone()));
        }
    }

    /// Scales a number of samples.
    fn some(&self) -> impl Fn(usize) -> usize + Copy + 'static {
        let scale = self.scale;
        move |count| (count / scale).max(8)
    }

    /// Images, rows of one size, and of many.
    fn images_and_rows(&mut self) {
        let some = self.some();
        let title = "W1: 256 images 224 x 224 x 3, u8 HWC to f16 CHW, normalised";
        self.add("W1", title, &PAIR, move || images(some(256), 224, DType::F16));
        let title = "W3: 100 000 rows of 128 f32";
        self.add("W3", title, &PAIR, move || {
            vec![part("", DType::F32, vec![vec![128]; some(100_000)], Collate::stack())]
        });
        let title = "W2: 4096 rows of 16..2048, i32 padded to i64, mask, lengths";
        self.add("W2", title, &PAIR, move || tokens(some(4096), DType::I64));
        let title = "W2b: the same, padded as i32";
        self.add("W2b", title, &PAIR, move || tokens(some(4096), DType::I32));
    }

    /// Large rows, and fields of environments.
    fn pages_and_fields(&mut self) {
        let some = self.some();
        self.add("W6", "W6: 4096 pages of 32 KiB", &PAIR, move || rows(some(4096), 32 << 10));
        let title = "W5: 8 fields of 4096 environments, one call";
        self.add("W5", title, &PAIR, move || environments(some(4096)));
        let title = "W5b: 256 x 4 x 84 x 84, u8 to f16";
        self.add("W5b", title, &PAIR, move || {
            let collate = Collate::stack().cast(DType::F16);
            vec![part("", DType::U8, vec![vec![4, 84, 84]; some(256)], collate)]
        });
    }

    /// Samples in page-locked memory of the host.
    fn page_locked(&mut self) {
        let some = self.some();
        for kibibytes in [4, 16, 32, 128] {
            let count = some((32 << 10) / kibibytes);
            let title = format!("W8: 32 MiB of {kibibytes} KiB");
            self.add("W8", title, &[Pinned], move || rows(count, kibibytes << 10));
        }
        self.add("W8b", "W8b: W1 from the host", &[Pinned], move || {
            images(some(256), 224, DType::F16)
        });
    }

    /// Sound, and images of many sizes.
    fn clips_and_detection(&mut self) {
        let some = self.some();
        let title = "W4a: 512 clips of 1..15 s, f32 ragged";
        self.add("W4a", title, &PAIR, move || {
            clips(some(512), DType::F32, Collate::ragged(Ragged::new()))
        });
        let title = "W4b: the same, i16 to f32, ragged";
        self.add("W4b", title, &PAIR, move || {
            clips(some(512), DType::I16, Collate::ragged(Ragged::new()).cast(DType::F32))
        });
        let title = "W4c: the same, i16 to f32, padded to 15 s";
        self.add("W4c", title, &PAIR, move || {
            let collate = Collate::pad(Pad::new().size(240_000)).cast(DType::F32);
            clips(some(512), DType::I16, collate)
        });
        let title = "W7: 32 images of many sizes, u8 HWC to f16 [3, 800, 1344], mask";
        self.add("W7", title, &PAIR, move || detection(some(32)));
    }

    /// Graphs, and sizes that no vector divides.
    fn graphs_and_odd_sizes(&mut self) {
        let some = self.some();
        let title = "W9: 256 graphs, nodes f32 with their graph's number, edges i64";
        self.add("W9", title, &PAIR, move || graphs(some(256)));
        let title = "W10a: 100 000 rows of 77 B";
        self.add("W10a", title, &ODD, move || rows(some(100_000), 77));
        let title = "W10b: 256 images 225 x 225 x 3, u8 HWC to f16 CHW";
        self.add("W10b", title, &ODD, move || images(some(256), 225, DType::F16));
    }

    /// One range of bytes; a small batch; how many there are; many of one size.
    fn series(&mut self) {
        let (scale, some) = (self.scale, self.some());
        // The cost of a launch, and the speed of a plain copy.
        for mebibytes in [1, 8, 64, 512] {
            let title = format!("one tensor of {mebibytes} MiB");
            self.add("one", title, &[Contiguous], move || rows(1, (mebibytes << 20) / scale));
        }
        self.add("small", "small: 256 x 3 KiB", &PAIR, || rows(256, 3 << 10));
        for count in [500, 2000, 4000, 16_000] {
            let title = format!("{count} of 512 B");
            self.add("count", title, &PAIR, move || rows(some(count), 512));
        }
        for (length, label) in [
            (512, "512 B"),
            (4 << 10, "4 KiB"),
            (32 << 10, "32 KiB"),
            (150_528, "147 KiB"),
            (1 << 20, "1 MiB"),
        ] {
            let count = some((64_usize << 20).div_ceil(length));
            let title = format!("64 MiB of {label}");
            let lies = [Scattered, Misaligned, Contiguous];
            self.add("size", title, &lies, move || rows(count, length));
        }
    }
}

/// Trials of other numbers time these.
pub fn is_tried(entry: &Entry) -> bool {
    match entry.family {
        "size" => entry.lie != Lie::Contiguous && !entry.title.ends_with("147 KiB"),
        "one" => entry.title.ends_with(" 8 MiB") || entry.title.ends_with(" 64 MiB"),
        "W2b" | "W4c" | "W8" | "W8b" => false,
        _ => entry.lie != Lie::Contiguous,
    }
}
