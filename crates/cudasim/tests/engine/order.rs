//! Stream order under random delays.

use std::env;
use std::ops::Range;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use windrow::{Collate, DType, Ragged, SampleView};

use crate::rig::{consume, engine, on_gpu, Buffer, ForeignStream, Rows};
use crate::scenarios::{misuse, ALL};

/// `FIRST..END` in the environment takes other seeds: see docs/testing.md. Without it there are twice as many as `make wait-mutants`
/// takes, whose mutants are all noticed.
const SEEDS: &str = "CUDASIM_TEST_SEEDS";

fn seeds() -> Range<u64> {
    let Ok(seeds) = env::var(SEEDS) else { return 0..50 };
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
                    let consumer = ForeignStream::new(gpu);
                    start.wait();
                    for seed in 0..50 {
                        let seed = 1000 * number as u64 + seed;
                        let rows = Rows::new(seed, DType::U16, &[&[90, 2], &[11, 2]]);
                        let batch = engine
                            .assemble(&rows.on_host(), &Collate::ragged(Ragged::new()))
                            .unwrap();
                        let again = [SampleView::from(batch.data())];
                        let again = engine.assemble(&again, &Collate::stack()).unwrap();
                        let got = consume(&consumer, &batch);
                        assert_eq!(got, rows.expected(&Collate::ragged(Ragged::new())));
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

/// A consumer on the stream of its own thread still reads the batch that another thread writes into.
#[test]
fn a_batch_on_the_stream_of_its_thread_may_be_written_on_another() {
    on_gpu(|gpu| {
        let engine = engine();
        let [old, new] = [3, 4].map(|seed| Rows::new(seed, DType::U8, &[&[400]]));
        let (old_memory, new_memory) = (old.upload(gpu), new.upload(gpu));
        let copy = Buffer::poisoned(gpu, 400);
        // SAFETY: each thread has such a stream.
        let thread_stream = unsafe { windrow::Stream::from_raw(2) };
        let mut batch =
            engine.assemble(&old.at([old_memory[0].address]), &Collate::stack()).unwrap();
        gpu.sim.set_delay_us(3000);
        ForeignStream::linger_on(gpu, 2);
        batch.data().ready_on(thread_stream).unwrap();
        let from = batch.data().data_ptr() as u64;
        assert_eq!(gpu.cuMemcpyDtoDAsync_v2(copy.address, from, 400, 2), 0);
        let address = new_memory[0].address;
        let write = || engine.assemble_into(&new.at([address]), &Collate::stack(), &mut batch);
        thread::scope(|scope| scope.spawn(write).join().unwrap()).unwrap();
        gpu.sim.synchronize_all();
        assert_eq!(copy.read(), old.bytes[0]);
        gpu.sim.set_delay_us(0);
    });
}
