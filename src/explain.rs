//! [`Explain`]: the account of a plan, with the [`Launch`] that a device would get.

use std::collections::BTreeSet;
use std::fmt;

use crate::cuda;
use crate::host::{StreamingStores, Tiling};
use crate::observe::share;
pub use crate::plan::launch::{Launch, SegmentReport};
use crate::plan::{num_ranges, saturating_sum, Arena, OutputPlan, Path, Plan, Role};
use crate::tensor::{DType, Device, Tuple};

/// The account of a plan, before it is run.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Explain {
    /// How the data moves: `"view"` (it does not), `"memcpy"` (one range), `"gather"` (ranges of bytes), `"strided"`,
    /// `"swap"` (of foreign byte order), `"cast"`, `"transform"`, `"quantize"`, `"dequantize"`, or `"mixed"` where leaves
    /// differ. From host to device: `"upload"` (copies alone make the batch), `"staged"` (samples are copied, then assembled
    /// there), `"copied pinned"` (the same for page-locked samples) and
    /// `"direct pinned"` (the kernel reads page-locked samples over the bus). From device to host: `"download"`.
    pub path: &'static str,
    /// Number of samples of the first leaf.
    pub samples: usize,
    /// Number of leaves.
    pub leaves: usize,
    /// Bytes read of samples.
    pub bytes_read: u64,
    /// Bytes written: data, scales, masks, indices. Not lengths and offsets, which [`Stats`](crate::Stats) counts.
    pub bytes_written: u64,
    /// Bytes written that are padding.
    pub padding_bytes: u64,
    /// `padding_bytes` as a share of the data, 0 to 1.
    pub padding_waste: f64,
    /// Copies left after neighbours were merged; 0 where bytes are not just moved.
    pub ranges: usize,
    /// Tiles that threads take.
    pub tiles: usize,
    /// Kernel launches; 0 on the host.
    pub launches: usize,
    /// The parts of the kernel launch; `None` without one, and for the launches of several devices.
    pub launch: Option<Launch>,
    /// Bytes that cross from the host to a device, those of the launch's table included if it is uploaded.
    pub bytes_to_device: u64,
    /// Bytes that cross from a device to the host, which the call waits for.
    pub bytes_to_host: u64,
    /// Bytes of the one allocation of all leaves; 0 without one.
    pub arena_bytes: u64,
    /// The part of `arena_bytes` that aligns tensors.
    pub arena_gap_bytes: u64,
    /// Shape and dtype of each leaf's data.
    pub outputs: Vec<(Vec<i64>, DType)>,
    /// How the data of each leaf moves.
    pub paths: Vec<&'static str>,
    /// Whether the data of each leaf is written around the caches, if its memory was written to before: see
    /// [`StreamingStores`].
    pub around_caches: Vec<bool>,
    /// The path of each leaf in its tree, if the caller named them: see [`Explain::named`].
    pub names: Vec<String>,
    /// The policy of `around_caches` of each leaf, and who says so.
    pub(crate) stores: Vec<String>,
}

impl Explain {
    /// The sums of several calls; a launch is described if it is the only one. `padding_waste` is 0, and leaves have no names.
    #[cfg(feature = "unstable-bindings")]
    pub(crate) fn for_calls(calls: Vec<Explain>) -> Explain {
        let mut launches = calls.iter().filter_map(|call| call.launch.as_ref());
        let launch = launches.next().filter(|_| launches.next().is_none()).cloned();
        let sum = |of: fn(&Explain) -> u64| saturating_sum(calls.iter().map(of));
        let count = |of: fn(&Explain) -> usize| calls.iter().map(of).sum();
        let paths: Vec<_> = calls.iter().flat_map(|call| call.paths.iter().copied()).collect();
        Explain {
            path: one_path(&paths),
            samples: count(|call| call.samples),
            leaves: count(|call| call.leaves),
            bytes_read: sum(|call| call.bytes_read),
            bytes_written: sum(|call| call.bytes_written),
            padding_bytes: sum(|call| call.padding_bytes),
            padding_waste: 0.0,
            ranges: count(|call| call.ranges),
            tiles: count(|call| call.tiles),
            launches: count(|call| call.launches),
            launch,
            bytes_to_device: sum(|call| call.bytes_to_device),
            bytes_to_host: sum(|call| call.bytes_to_host),
            arena_bytes: sum(|call| call.arena_bytes),
            arena_gap_bytes: sum(|call| call.arena_gap_bytes),
            outputs: calls.iter().flat_map(|call| call.outputs.iter().cloned()).collect(),
            paths,
            around_caches: calls.iter().flat_map(|call| call.around_caches.clone()).collect(),
            names: Vec::new(),
            stores: calls.iter().flat_map(|call| call.stores.clone()).collect(),
        }
    }

    /// The account of a plan. `views`: whether each leaf is returned as a view, which is not written; leaves behind the
    /// end of the slice are not. `stores`: those of the engine of a leaf, if it has some of its own.
    pub(crate) fn new(
        plan: &Plan<'_>,
        views: &[bool],
        stores: impl Fn(usize) -> Option<StreamingStores>,
    ) -> Explain {
        let stores: Vec<_> = (0..plan.batch_shapes().len()).map(stores).collect();
        let is_view = |leaf: usize| views.get(leaf) == Some(&true);
        let outputs = || plan.outputs().iter().filter(|output| !is_view(output.leaf));
        let data = || outputs().filter(|output| output.role == Role::Data);
        let launch = launch_of(plan, is_view);
        let uploaded = launch.iter().filter(|launch| launch.is_uploaded);
        let table_bytes = saturating_sum(uploaded.map(|launch| launch.table_bytes));
        let paths: Vec<&'static str> = plan
            .paths()
            .enumerate()
            .map(|(leaf, path)| if is_view(leaf) { Path::View } else { path }.name())
            .collect();
        let path = one_path(&paths);
        let written = saturating_sum(data().map(OutputPlan::bytes));
        let padding_bytes = plan.padding_bytes();
        Explain {
            path,
            samples: plan.batch_shapes().first().map_or(0, |batch_shape| batch_shape.num_samples),
            leaves: plan.batch_shapes().len(),
            bytes_read: saturating_sum(outputs().map(OutputPlan::bytes_read)),
            bytes_written: saturating_sum(outputs().map(OutputPlan::bytes)),
            padding_bytes,
            padding_waste: share(padding_bytes, written),
            ranges: data().map(num_ranges).sum(),
            tiles: Tiling::new(plan, |output| !is_view(plan.outputs()[output].leaf)).count(),
            // One more makes the table of samples that the device selects.
            launches: launch.as_ref().map_or(0, |launch| launch.num_kernels)
                + usize::from(plan.selection().is_some()),
            launch,
            bytes_to_device: plan.bytes_to_device().saturating_add(table_bytes),
            bytes_to_host: plan.bytes_to_host(),
            arena_bytes: plan.arena_bytes(),
            arena_gap_bytes: plan.arena.as_ref().map_or(0, Arena::gap_bytes),
            outputs: plan
                .batch_shapes()
                .iter()
                .map(|batch_shape| (batch_shape.shape.to_vec(), batch_shape.dtype))
                .collect(),
            paths,
            around_caches: around_caches(plan, is_view, &stores),
            names: Vec::new(),
            stores: stores.into_iter().map(said).collect(),
        }
    }

    /// Writes the lines of a launch.
    fn write_launch(&self, f: &mut fmt::Formatter<'_>, launch: &Launch) -> fmt::Result {
        let Launch { items, num_kernels: _, table_bytes, is_uploaded, parts } = launch;
        let way = if *is_uploaded { "uploaded" } else { "in the parameters" };
        write!(f, "\nlaunch         {items} items, table of {table_bytes} bytes {way}")?;
        for part in parts {
            let name = part.leaf.and_then(|leaf| self.names.get(leaf)).map_or("", String::as_str);
            let space = if name.is_empty() { "" } else { " " };
            write!(f, "\npart           {name}{space}{}: {}", part.output, part.family)?;
            if part.samples > 0 {
                write!(f, ", {} samples", part.samples)?;
            }
            if let Some(sources) = part.sources {
                write!(f, " by {sources}")?;
            }
            write!(f, ", {} items", part.items)?;
        }
        Ok(())
    }

    /// Adds the names of the leaves, in the order in which they were planned.
    #[must_use]
    pub fn named(self, names: impl IntoIterator<Item = String>) -> Explain {
        Explain { names: names.into_iter().collect(), ..self }
    }
}

/// The path that all leaves have; `"mixed"` if they differ, `"gather"` without leaves.
fn one_path(paths: &[&'static str]) -> &'static str {
    match paths.split_first() {
        Some((first, rest)) if rest.iter().any(|path| path != first) => "mixed",
        Some((first, _)) => first,
        None => Path::Gather.name(),
    }
}

/// Whether the data of each leaf is written around the caches: false for views and for leaves on a device, which has its own
/// caches.
fn around_caches(
    plan: &Plan<'_>,
    is_view: impl Fn(usize) -> bool,
    stores: &[Option<StreamingStores>],
) -> Vec<bool> {
    let stores = |leaf: usize| stores[leaf].unwrap_or(StreamingStores::chosen().stores);
    let data = plan.outputs().iter().filter(|output| output.role == Role::Data);
    let shapes = plan.batch_shapes();
    let is_on_host =
        |leaf: usize| shapes[leaf].device == Device::Cpu && shapes[leaf].source == Device::Cpu;
    data.map(|output| {
        let leaf = output.leaf;
        is_on_host(leaf) && !is_view(leaf) && stores(leaf).are_for(output)
    })
    .collect()
}

/// The policy of an engine, and who says so.
fn said(stores: Option<StreamingStores>) -> String {
    let chosen = StreamingStores::chosen();
    match stores {
        Some(stores) => format!("{stores} (engine)"),
        None => format!("{} ({})", chosen.stores, chosen.source),
    }
}

/// The launch of the leaves that are not returned as views. `None` on the host, and if the run would be refused.
fn launch_of(plan: &Plan<'_>, is_view: impl Fn(usize) -> bool) -> Option<Launch> {
    cuda::launch_of(plan, is_view).unwrap_or_default()
}

impl Plan<'_> {
    /// A readable account of the plan: path, bytes, tiles, padding.
    pub fn explain(&self) -> Explain {
        Explain::new(self, &[], |_| None)
    }
}

impl fmt::Display for Explain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "path           {}", self.path)?;
        writeln!(f, "samples        {}", self.samples)?;
        for (leaf, (shape, dtype)) in self.outputs.iter().enumerate() {
            let name = self.names.get(leaf).map_or("", String::as_str);
            let space = if name.is_empty() { "" } else { " " };
            write!(f, "output         {name}{space}{} {dtype}", Tuple(shape))?;
            match self.path {
                "mixed" => writeln!(f, ", {}", self.paths[leaf])?,
                _ => writeln!(f)?,
            }
        }
        writeln!(f, "bytes read     {}", self.bytes_read)?;
        writeln!(f, "bytes written  {}", self.bytes_written)?;
        writeln!(
            f,
            "padding        {} bytes, {:.1} %",
            self.padding_bytes,
            self.padding_waste * 100.0
        )?;
        writeln!(f, "ranges         {}", self.ranges)?;
        writeln!(f, "tiles          {}", self.tiles)?;
        write!(f, "launches       {}", self.launches)?;
        if let Some(launch) = &self.launch {
            self.write_launch(f, launch)?;
        }
        if self.around_caches.contains(&true) {
            let around = self.around_caches.iter().zip(&self.stores);
            let stores = around.filter(|(is_around, _)| **is_around).map(|(_, stores)| stores);
            for stores in stores.collect::<BTreeSet<_>>() {
                write!(f, "\nstores         around the caches: {stores}")?;
            }
        }
        let crossing =
            [("to the device", self.bytes_to_device), ("to the host", self.bytes_to_host)];
        for (way, bytes) in crossing.into_iter().filter(|(_, bytes)| *bytes > 0) {
            write!(f, "\n{way:<14} {bytes} bytes")?;
        }
        if self.arena_bytes > 0 {
            let (all, gaps) = (self.arena_bytes, self.arena_gap_bytes);
            write!(f, "\narena          {all} bytes, {gaps} of them between tensors")?;
        }
        Ok(())
    }
}
