//! Stream order under random delays.

use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use windrow::{Collate, DType, SampleView};

use crate::rig::{consume, engine, on_gpu, Lane, Rows};
use crate::scenarios::{misuse, ALL};

const SEEDS: u64 = 200;

#[test]
fn scenarios_give_the_right_bytes_whatever_the_delays() {
    for scenario in ALL {
        let begin = Instant::now();
        on_gpu(|gpu| {
            gpu.sim.set_delay_us(300);
            for seed in 0..SEEDS {
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
