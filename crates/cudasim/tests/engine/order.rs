//! Stream order under random delays.

use std::env;
use std::ops::Range;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use windrow::{Collate, DType, SampleView};

use crate::rig::{consume, engine, on_gpu, Lane, Rows};
use crate::scenarios::{misuse, ALL};

/// `FIRST..END` in the environment takes other seeds: see docs/testing.md.
const SEEDS: &str = "CUDASIM_TEST_SEEDS";

fn seeds() -> Range<u64> {
    let Ok(seeds) = env::var(SEEDS) else { return 0..200 };
    let (first, end) = seeds.split_once("..").expect("FIRST..END");
    first.parse().unwrap()..end.parse().unwrap()
}

#[test]
fn scenarios_give_the_right_bytes_whatever_the_delays() {
    for scenario in ALL {
        let begin = Instant::now();
        on_gpu(|gpu| {
            gpu.sim.set_delay_us(300);
            for seed in seeds() {
                gpu.sim.set_seed(seed);
                let outcome = (scenario.run)(gpu, seed).and_then(|()| misuse(&gpu.sim));
                outcome.unwrap_or_else(|why| panic!("{}, seed {seed}: {why}", scenario.name));
            }
        });
        println!("{}: {:.1?}", scenario.name, begin.elapsed());
    }
}

#[test]
fn two_engines_and_four_threads() {
    on_gpu(|gpu| {
        gpu.sim.set_delay_us(200);
        let engines = [engine(), engine()];
        let (start, context) = (Barrier::new(4), gpu.context);
        thread::scope(|scope| {
            for number in 0..4_usize {
                let (engine, start) = (&engines[number % 2], &start);
                scope.spawn(move || {
                    assert_eq!(gpu.cuCtxSetCurrent(context), 0);
                    let consumer = Lane::new(gpu);
                    start.wait();
                    for seed in 0..50 {
                        let seed = 1000 * number as u64 + seed;
                        let rows = Rows::new(seed, DType::U16, &[&[90, 2], &[11, 2]]);
                        let batch = engine.assemble(&rows.on_host(), &Collate::ragged()).unwrap();
                        let again = [SampleView::from(batch.data())];
                        let again = engine.assemble(&again, &Collate::stack()).unwrap();
                        let got = consume(&consumer, &batch);
                        assert_eq!(got, rows.expected(&Collate::ragged()));
                        drop(batch);
                        assert_eq!(consume(&consumer, &again)[0], got[0]);
                        if seed % 16 == 0 {
                            engine.empty_cache();
                        }
                    }
                });
            }
        });
    });
}
