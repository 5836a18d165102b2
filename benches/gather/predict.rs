//! What each workload should take on an H200, written down before it is measured: a table for
//! docs/gpu-performance.md, which says where the numbers below come from.
//!
//! Launches and bytes of tables are those of a run, on the simulated driver too (whose memory has to
//! be large enough: `CUDASIM_MEMORY`); the rest is arithmetic.

use windrow::Engine;

use super::catalogue::Entry;
use super::contenders;
use super::gpu::{Gpu, Outcome};
use super::workloads::{Lie, Workload};

/// An H200: multiprocessors, clocks in a microsecond.
const NUM_SMS: u64 = 132;
const CLOCKS: f64 = 1755.0;
/// Assumed until they are measured. Bytes in a microsecond: read and written by a copy, across the bus
/// by a copy and by a kernel.
const ROOF: f64 = 4.3e6;
const BUS: f64 = 52e3;
const BUS_READS: f64 = 35e3;
/// Microseconds until a launch has begun and ended, and until an upload has.
const LAUNCH_US: f64 = 2.5;
const UPLOAD_US: f64 = 2.0;
/// Instructions of warps that a multiprocessor issues in a clock, of 4 at most.
const ISSUED: f64 = 2.0;

/// The largest table in parameters: kernels/params.h.
const INLINE: u64 = 32_752 - 16;

/// The counts of machine code: scripts/device_counts.
const COUNTS: &str = include_str!("../device-instructions.json");

/// Instructions of a thread for 16 bytes of output: those counted of the workload, or of the one that is most like it.
fn instructions(entry: &Entry) -> f64 {
    let is_misaligned = entry.lie == Lie::Misaligned;
    counted(match entry.family {
        "size" if entry.title.ends_with(" 512 B") && is_misaligned => "512 B misaligned",
        "size" if is_misaligned => "32 KiB misaligned",
        "size" if entry.title.ends_with(" 512 B") => "W3 address",
        "count" | "small" | "W3" | "W5" => "W3 address",
        "one" => "one tensor",
        "W1" | "W8b" => "W1 f16",
        "W9" => "W4a",
        family @ ("W2" | "W2b" | "W4a" | "W4b" | "W4c" | "W5b" | "W7" | "W10a" | "W10b") => family,
        _ => "W6",
    })
}

fn counted(workload: &str) -> f64 {
    let row = format!("\"workload\": \"{workload}\", \"arch\": 90,");
    let line = COUNTS.lines().find(|line| line.contains(&row)).expect("make device-counts");
    let (_, number) = line.split_once("\"instructions_per_16_bytes\": ").expect("a count");
    let (number, _) = number.split_once(',').expect("more behind it");
    number.parse().expect("a number")
}

/// Lets the engine upload the table of every launch, so that its bytes are counted. Before an engine
/// is made.
pub fn upload_all_tables() {
    std::env::set_var("WINDROW_CUDA_POLICY", "inline_bytes=0");
}

pub fn print(engine: &Engine, entries: impl Iterator<Item = Entry>) -> Outcome {
    let gpu = Gpu::new()?;
    println!(
        "| workload | samples | MB read + written | floor us | launches | table KB \
         | instructions | us | of roof | limit | host us |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|---:|---|---:|");
    let is_control = |entry: &Entry| entry.lie == Lie::Contiguous && entry.family != "one";
    for entry in entries.filter(|entry| !is_control(entry)) {
        let workload = entry.make();
        let set = workload.set(false)?;
        let before = engine.stats();
        contenders::windrow(&gpu, engine, &workload, &set, &set.samples)?;
        gpu.synchronize()?;
        let after = engine.stats();
        let uploaded = after.bytes_to_device - before.bytes_to_device;
        println!("{}", line(&entry, &workload, after.launches - before.launches, uploaded));
    }
    Ok(())
}

fn line(entry: &Entry, workload: &Workload, launches: u64, uploaded: u64) -> String {
    let (read, written) = (workload.bytes_read, workload.bytes_written);
    let source = workload.source_bytes();
    // Large page-locked samples are copied to the device first.
    let is_copied = workload.is_pinned() && uploaded >= source;
    let table = uploaded - if is_copied { source } else { 0 };

    let table_us = if table <= INLINE { 0.0 } else { UPLOAD_US + table as f64 / BUS };
    let vectors = written as f64 / 16.0;
    let issue_us = vectors * instructions(entry) / 32.0 / (NUM_SMS as f64 * CLOCKS * ISSUED);
    let device_us = (read + written) as f64 / ROOF;
    let (floor_us, bus_us) = match workload.is_pinned() {
        true => (source as f64 / BUS, source as f64 / if is_copied { BUS } else { BUS_READS }),
        false => (device_us, 0.0),
    };
    // Reads over the bus and the rest go on together, a copy ends before the kernel begins.
    let kernel_us = device_us.max(issue_us);
    let us =
        LAUNCH_US + table_us + if is_copied { bus_us + kernel_us } else { bus_us.max(kernel_us) };
    let memory = if workload.is_pinned() { ("bus", bus_us) } else { ("memory", device_us) };
    let parts = [("table", table_us), ("instructions", issue_us), memory, ("launch", LAUNCH_US)];
    let longest = parts.iter().map(|(_, us)| *us).fold(0.0, f64::max);
    let limits: Vec<&str> =
        parts.iter().filter(|(_, us)| *us >= 0.75 * longest).map(|(name, _)| *name).collect();
    format!(
        "| {} | {} | {:.1} + {:.1} | {floor_us:.1} | {launches} | {:.1}{} | {:.0} | {us:.1} | {:.2} | {} | {:.0} |",
        entry.name(),
        workload.num_samples(),
        read as f64 / 1e6,
        written as f64 / 1e6,
        table as f64 / 1e3,
        if table <= INLINE { "" } else { ", uploaded" },
        instructions(entry),
        // A copy has to be launched too.
        (floor_us + LAUNCH_US) / us,
        limits.join(", "),
        10.0 + 0.02 * workload.num_samples() as f64,
    )
}
