//! Tests of both sides in one process.
#![allow(unsafe_code)] // Bytes of blocks.

use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, PoisonError};

use super::*;
use crate::tensor::{DType, Layout, Owner, Tensor};

const LIMIT: u64 = 8 << 20;

/// The pool is the process's: one test at a time.
fn with_pool(limit: u64, run: impl FnOnce()) {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    start(limit).unwrap();
    run();
    close(false);
    sweep();
}

fn bytes(count: i64) -> (DType, Layout) {
    (DType::U8, Layout::compact(DType::U8, &[count]).unwrap())
}

fn made(sizes: &[i64]) -> Vec<Tensor> {
    allocate(&sizes.iter().map(|&size| bytes(size)).collect::<Vec<_>>(), LIMIT).unwrap()
}

fn paint(tensor: &Tensor, value: u8) {
    // SAFETY: the tensor's own bytes, which this test alone has.
    unsafe { tensor.data_ptr().write_bytes(value, tensor.layout().numel() as usize) };
}

fn is_painted(tensor: &Tensor, value: u8) -> bool {
    tensor.as_slice::<u8>().unwrap().iter().all(|&byte| byte == value)
}

fn parcel_of(tensors: &[Tensor]) -> Parcel {
    let mut parcel = Parcel::default();
    for tensor in tensors {
        assert!(parcel.add(tensor.data_ptr(), tensor.dtype(), tensor.layout()));
    }
    parcel
}

fn message_of(tensors: &[Tensor]) -> Message {
    Message::decode(&parcel_of(tensors).send().unwrap().hand_over().unwrap()).unwrap()
}

fn received(message: &Message) -> std::result::Result<Vec<Tensor>, Unread> {
    receive(&mapped(&message.origin).unwrap(), message)
}

fn count(name: &str) -> u64 {
    stats().iter().find(|(known, _)| *known == name).unwrap().1
}

#[test]
fn blocks_are_used_again_when_the_last_tensor_has_died() {
    with_pool(LIMIT, || {
        let batches = count("batches");
        let sizes = [100_000, 10, 0, 20];
        let tensors = made(&sizes);
        tensors.iter().zip(1..).for_each(|(tensor, value)| paint(tensor, value));
        assert_eq!(
            tensors[1].data_ptr().wrapping_add(64),
            tensors[3].data_ptr(),
            "small ones share a block"
        );
        let first = tensors[0].data_ptr();
        let message = message_of(&[tensors[0].clone(), tensors[1].clone(), tensors[3].clone()]);
        assert_eq!((message.claims.len(), message.tensors.len()), (2, 3));
        drop(tensors);
        let arrived = received(&message).unwrap();
        assert!(arrived.iter().zip([1, 2, 4]).all(|(tensor, value)| is_painted(tensor, value)));
        let view = arrived[0].clone();
        drop(arrived);
        let others = made(&sizes);
        assert_ne!(others[0].data_ptr(), first, "a view is alive");
        others.iter().for_each(|tensor| paint(tensor, 9));
        assert!(is_painted(&view, 1));
        drop((others, view));
        assert!([made(&sizes), made(&sizes)].iter().any(|tensors| tensors[0].data_ptr() == first));
        assert_eq!(count("batches"), batches + 1);
    });
}

#[test]
fn a_message_is_read_once() {
    with_pool(LIMIT, || {
        let tensors = made(&[100_000, 5]);
        let message = message_of(&tensors);
        let arrived = received(&message).unwrap();
        assert_eq!(received(&message).unwrap_err(), Unread::Stale);
        drop((arrived, tensors));
        assert_eq!(received(&message).unwrap_err(), Unread::Stale, "its blocks are free");
        // A batch that was never sent does not count as a use of a block.
        let tensors = made(&[100_000]);
        let sent = parcel_of(&tensors).send().unwrap();
        let first = tensors[0].data_ptr();
        drop(tensors);
        assert_ne!(made(&[100_000])[0].data_ptr(), first);
        drop(sent);
        assert_eq!(made(&[100_000])[0].data_ptr(), first);
    });
}

#[test]
fn the_limit_is_one_of_bytes_in_use() {
    with_pool(LIMIT, || {
        let refused = count("refused");
        let half = || allocate(&[bytes(4 << 20)], LIMIT);
        let (one, two) = (half().unwrap(), half().unwrap());
        assert!(matches!(half(), Err(Refusal::Limit)));
        assert_eq!((count("refused"), count("pool_bytes")), (refused + 1, 8 << 20));
        drop(one);
        half().unwrap();
        // Free blocks of other sizes are given back for it.
        let small: Vec<_> = (0..4).map(|_| made(&[1 << 20])).collect();
        assert_eq!(count("pool_bytes"), 8 << 20, "one of 4 MiB for four");
        drop((two, small));
        assert!(matches!(allocate(&[bytes(9 << 20)], LIMIT), Err(Refusal::Limit)));
        assert!(matches!(allocate(&[bytes(i64::MAX)], LIMIT), Err(Refusal::Limit)));
        assert!(allocate(&[bytes(8 << 20)], LIMIT).is_ok());
    });
}

#[test]
fn a_closed_pool_keeps_what_a_reader_has() {
    with_pool(LIMIT, || {
        let tensors = made(&[100_000, 200_000, 300_000]);
        tensors.iter().for_each(|tensor| paint(tensor, 3));
        let (read, unread) = (message_of(&tensors[..1]), message_of(&tensors[1..]));
        let arrived = received(&read).unwrap();
        let pool = mapped(&read.origin).unwrap();
        drop(tensors);
        close(false);
        assert!(is_painted(&arrived[0], 3));
        assert_eq!(receive(&pool, &unread).unwrap_err(), Unread::Stale);
        sweep();
        assert!(mapped(&read.origin).is_none() && is_painted(&arrived[0], 3));
    });
}

#[test]
fn a_closed_pool_keeps_a_block_until_its_last_claim_has_ended() {
    with_pool(LIMIT, || {
        let tensors = made(&[100, 200]);
        tensors.iter().for_each(|tensor| paint(tensor, 4));
        let messages = [message_of(&tensors[..1]), message_of(&tensors[1..])];
        let [one, other] = messages.map(|message| received(&message).unwrap());
        assert_eq!(
            one[0].data_ptr().wrapping_add(128),
            other[0].data_ptr(),
            "one block, two claims"
        );
        drop(tensors);
        close(false);
        drop(one);
        assert!(is_painted(&other[0], 4));
    });
}

#[test]
fn a_closed_pool_keeps_what_threads_of_its_worker_have() {
    for is_left in [false, true] {
        with_pool(LIMIT, || {
            let tensors = made(&[100, 200_000]);
            tensors.iter().for_each(|tensor| paint(tensor, 6));
            let message = message_of(&tensors[..1]);
            let arrived = received(&message).unwrap();
            let memory = mapped(&message.origin).unwrap();
            close(is_left);
            sweep();
            assert!(pool::Pool::take_over(Arc::clone(&memory)).is_none(), "its worker lives");
            drop(arrived);
            assert!(tensors.iter().all(|tensor| is_painted(tensor, 6)));
            let data = tensors[1].data_ptr();
            drop(tensors);
            if !is_left {
                // SAFETY: in the mapping, which is kept here.
                assert_eq!(unsafe { data.read() }, 0, "the last one gives the pages back");
            }
            memory.pool().set(pool::this_process(word::GONE));
        });
    }
}

#[test]
fn a_pool_is_taken_over_with_its_blocks() {
    with_pool(LIMIT, || {
        let tensors = made(&[100_000, 200_000, 300_000]);
        tensors.iter().for_each(|tensor| paint(tensor, 5));
        let (read, unread) = (message_of(&tensors[..1]), message_of(&tensors[1..]));
        let arrived = received(&read).unwrap();
        let memory = mapped(&read.origin).unwrap();
        drop(tensors);
        assert!(pool::Pool::take_over(memory.clone()).is_none(), "its worker lives");
        close(true);
        let mut taken = pool::Pool::take_over(memory.clone()).unwrap();
        assert!(pool::Pool::take_over(memory.clone()).is_none(), "once");
        assert_eq!(receive(&memory, &unread).unwrap_err(), Unread::Stale);
        // Free blocks with their pages, and not the one that is in use.
        let allocations =
            [200_000, 300_000, 100_000].map(|size| taken.allocate(size, LIMIT).unwrap());
        assert_eq!(allocations.map(|allocation| allocation.is_new), [false, false, true]);
        assert!(is_painted(&arrived[0], 5));
        allocations.iter().for_each(|allocation| taken.discard(allocation));
        memory.pool().set(pool::this_process(word::GONE));
    });
}

#[test]
fn what_is_kept_of_a_block_goes_with_its_pages() {
    with_pool(LIMIT, || {
        let quarter = 2 << 20;
        let first = made(&[quarter]);
        paint(&first[0], 3);
        let block = block_at(first[0].data_ptr().wrapping_add(5), 10).unwrap();
        assert!(block.kept.is_none());
        let mapping = block.map_again().unwrap();
        let at = mapping.as_ptr().wrapping_add(block.offset_of(first[0].data_ptr()));
        // SAFETY: within the mapping.
        assert_eq!((unsafe { at.read() }, mapping.num_bytes()), (3, quarter as usize));
        assert_ne!(at, first[0].data_ptr());
        let token: Owner = Arc::new(());
        assert!(Arc::ptr_eq(&block.keep(token.clone()), &token));
        let later: Owner = Arc::new(());
        assert!(Arc::ptr_eq(&block.keep(later), &token), "the first one stays");
        drop((first, block));
        let again = made(&[quarter]);
        assert!(block_at(again[0].data_ptr(), 1).unwrap().kept.is_some(), "the same block");
        drop(again);
        // All blocks of its size go for one of four times the size.
        drop(made(&[quarter; 4]));
        let large = made(&[4 * quarter]);
        assert_eq!(Arc::strong_count(&token), 1);
        let end = large[0].data_ptr().wrapping_add(4 * quarter as usize - 1);
        assert!(block_at(end, 1).is_some() && block_at(end, 2).is_none());
        assert!(block_at(std::ptr::null(), 1).is_none());
        paint(&large[0], 4);
        block_at(end, 1).unwrap().keep(token.clone());
        let arrived = received(&message_of(&large)).unwrap();
        drop(large);
        close(false);
        sweep();
        assert!(Arc::strong_count(&token) == 1 && is_painted(&arrived[0], 4));
    });
}

#[test]
fn messages_that_no_worker_sent() {
    with_pool(LIMIT, || {
        let tensors = made(&[100_000, 8]);
        let flipped = Layout::try_new(DType::U8, &[2, 4], Some(&[1, 2])).unwrap();
        let mut parcel = parcel_of(&tensors);
        assert!(parcel.add(tensors[1].data_ptr(), DType::U8, &flipped));
        assert!(!parcel.add(std::ptr::null(), DType::U8, &flipped), "not of the pool");
        let bytes = parcel.send().unwrap().hand_over().unwrap();
        let message = Message::decode(&bytes).unwrap();
        assert_eq!((message.encode(), &message.tensors[2].layout), (bytes.clone(), &flipped));
        for end in 0..bytes.len() {
            assert!(Message::decode(&bytes[..end]).is_none(), "{end} bytes");
        }
        let mut changed = message.clone();
        changed.tensors[0].offset = 1 << 20;
        assert_eq!(received(&changed).unwrap_err(), Unread::Broken, "behind its block");
        changed.claims[0].0 = u32::MAX;
        assert_eq!(received(&changed).unwrap_err(), Unread::Broken, "no such claim");
        // Whatever the bytes are, they are refused or read, no more.
        for at in 16..bytes.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut bytes = bytes.clone();
                bytes[at] = value;
                if let Some(message) = Message::decode(&bytes) {
                    let _ = receive(&mapped(&message.origin).unwrap(), &message);
                }
            }
        }
    });
}

#[test]
fn a_pool_is_found_by_its_file() {
    with_pool(LIMIT, || {
        let tensors = made(&[100_000]);
        paint(&tensors[0], 6);
        let message = message_of(&tensors);
        let descriptor = file().unwrap().as_raw_fd();
        assert_eq!(message.origin.file, descriptor as u64);
        // Another process finds the pool in this way.
        let memory = open(&message.origin).unwrap();
        let arrived = receive(&memory, &message).unwrap();
        assert!(is_painted(&arrived[0], 6) && arrived[0].data_ptr() != tensors[0].data_ptr());
        assert!(file().is_none(), "nobody needs it any more");
        let other = Origin { inode: [1, 1], ..message.origin };
        assert!(
            open(&other).is_err()
                && map(&other, &std::fs::File::open("/dev/null").unwrap().into()).is_err()
        );
    });
}
