//! Rows arrive from several threads; one thread pads whatever waits to a batch, and gives each sender its answer.

use std::sync::mpsc::{channel, sync_channel, Receiver, Sender};
use std::thread;
use windrow::{Collate, DType, Engine, Mask, Pad, Result};

struct Request {
    ids: Vec<i32>,
    answer: Sender<std::result::Result<i64, String>>,
}

const LIMIT: usize = 32;

fn serve(engine: &Engine, requests: &Receiver<Request>) -> Result<()> {
    let collate =
        Collate::pad(Pad::new().value(-1).multiple_of(8).mask(Mask::Real)).cast(DType::I64);
    while let Ok(first) = requests.recv() {
        // Requests that already wait join the batch; without any, the request goes alone.
        let waiting: Vec<Request> =
            std::iter::once(first).chain(requests.try_iter().take(LIMIT - 1)).collect();
        let (rows, answers): (Vec<_>, Vec<_>) =
            waiting.into_iter().map(|request| (request.ids, request.answer)).unzip();
        let batch = match engine.assemble(&rows, &collate) {
            Ok(batch) => batch,
            Err(error) => {
                answers.iter().for_each(|answer| drop(answer.send(Err(error.to_string()))));
                continue;
            }
        };
        let width = batch.data().shape()[1] as usize; // a shape has i64, as lengths have
        let ids = batch.data().as_slice::<i64>()?;
        let lengths = batch.lengths().expect("a padded batch has lengths").as_slice::<i64>()?;
        let mask = batch.mask().expect("the options ask for a mask").as_slice::<bool>()?;
        for (n, answer) in answers.iter().enumerate() {
            let row = n * width..(n + 1) * width;
            // Stands for a model that reads the padded batch and its mask.
            let sum = ids[row.clone()]
                .iter()
                .zip(&mask[row])
                .filter(|(_, real)| **real)
                .map(|(id, _)| id)
                .sum::<i64>();
            let _ = answer.send(Ok(sum / lengths[n].max(1))); // its sender may be gone
        }
    }
    Ok(())
}

fn main() -> Result<()> {
    let engine = Engine::builder().threads(1).build()?; // the other cores belong to the model
    let (sender, requests) = sync_channel(4 * LIMIT);
    let senders: Vec<_> = (0..4)
        .map(|k| {
            let sender = sender.clone();
            thread::spawn(move || {
                for n in 0..64 {
                    let (answer, reply) = channel();
                    let ids = vec![n; (n * 7 + k) as usize % 50 + 1];
                    sender.send(Request { ids, answer }).expect("the service runs");
                    assert_eq!(reply.recv().expect("the service answers"), Ok(i64::from(n)));
                }
            })
        })
        .collect();
    drop(sender); // the service ends when the last sender does
    serve(&engine, &requests)?;
    senders.into_iter().for_each(|sender| sender.join().expect("all answers are right"));
    println!("{} batches of {} requests", engine.stats().batches, engine.stats().samples);
    Ok(())
}

#[test]
fn every_request_is_answered() {
    main().unwrap();
}
