//! Runs of contenders, one after the other.

use std::time::{Duration, Instant};

use super::contenders::Contender;
use super::gpu::Gpu;
use super::report::Series;
use super::workloads::{Set, Workload};

/// All sets of a workload together: several times any L2.
const COLD_BYTES: u64 = 300_000_000;

/// The work before anything is timed.
const WARM_UP_US: f64 = 200_000.0;

/// Enough copies that none is in the L2 when its turn comes again.
pub fn sets(workload: &Workload, quick: bool) -> Result<Vec<Set>, String> {
    let count = match quick {
        true => 2,
        false => COLD_BYTES.div_ceil(workload.set_bytes()).clamp(2, 512) as usize,
    };
    (0..count).map(|_| workload.set(true)).collect()
}

/// Times contenders in turn.
pub fn all(
    gpu: &Gpu,
    sets: &[Set],
    contenders: &[Contender<'_>],
    workload: &Workload,
    is_cold: bool,
    quick: bool,
) -> Result<Vec<Series>, String> {
    // Slow ones, such as a driver call for each of 100 000 samples, run less often.
    let (repeats, fewest, budget) = match quick {
        true => (2, 2, Duration::ZERO),
        false => (60, 3, Duration::from_millis(400)),
    };
    if !quick {
        // The clocks fell while the host made the workload.
        gpu.keep_busy(WARM_UP_US)?;
        gpu.synchronize()?;
    }
    let overlaps = !workload.is_pinned();
    let mut all = Vec::new();
    let mut turn = 0;
    for contender in contenders {
        let mut host_us = 0.0;
        for _ in 0..3 {
            host_us = gpu.timed(0.0, &|| (contender.run)(&sets[0]))?.host_us;
            if quick || host_us > 50_000.0 {
                break;
            }
        }
        all.push((Series::new(contender, is_cold), host_us, Duration::ZERO));
    }
    for repeat in 0..repeats {
        for (contender, (series, host_us, spent)) in contenders.iter().zip(&mut all) {
            if repeat >= fewest && *spent > budget {
                continue;
            }
            let begin = Instant::now();
            turn += 1;
            let set = if is_cold { &sets[turn % sets.len()] } else { &sets[0] };
            if !is_cold {
                (contender.run)(set)?;
                gpu.synchronize()?;
            }
            // Longer waits would hide nothing more: the stream's queue is full by then.
            let delay_us = if overlaps { (2.0 * *host_us + 30.0).min(20_000.0) } else { 0.0 };
            let timed = gpu.timed(delay_us, &|| (contender.run)(set))?;
            *host_us = host_us.max(timed.host_us.min(4.0 * *host_us));
            series.push(timed);
            *spent += begin.elapsed();
        }
    }
    Ok(all.into_iter().map(|(series, ..)| series).collect())
}
