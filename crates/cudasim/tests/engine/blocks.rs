//! Blocks of worker processes on their way to a device: each is page-locked once, and not written to while it is copied. What is page-locked
//! is known to the process, so that each case has one of its own, which is worker and reader.

use std::env;
use std::process::Command;

use windrow::bindings::{
    hold_until_done, lock_refusal, lock_stats, page_locked, reap_copies, try_lock,
};
use windrow::workers::{allocate, close, mapped, receive, start as start_pool, sweep};
use windrow::workers::{Message, Parcel};
use windrow::{DType, Device, Layout, Tensor};

use crate::gpu::Gpu;
use crate::page_locked::elsewhere;
use crate::rig::{start, Buffer, ForeignStream};

const CASE: &str = "CUDASIM_TEST_BLOCKS";
const LIMIT: u64 = 8 << 20;
const BYTES: i64 = 100_000;
const NOT_SUPPORTED: &str = "CUDA_ERROR_NOT_SUPPORTED";

type Case = (&'static str, fn(&Gpu));

const CASES: [Case; 9] = [
    ("once", each_block_is_locked_once),
    ("copied", a_block_is_not_written_while_it_is_copied),
    ("pageable", what_others_copy_has_been_read),
    ("removed", pages_that_are_given_back_are_unlocked),
    ("ended", pages_are_unlocked_with_the_end_of_their_worker),
    ("refused", a_refusal_is_said_and_not_tried_again),
    ("captured", a_capture_goes_on),
    ("devices", a_block_is_locked_for_all_devices),
    ("forked", a_child_locks_nothing),
];

#[test]
fn cases() {
    for (name, _) in CASES {
        let mut child = Command::new(env::current_exe().unwrap());
        child.args(["--exact", "blocks::child", "--nocapture"]);
        let output = child.env(CASE, name).env("CUDASIM_DEVICES", "2").output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}: {}\n{text}", output.status);
    }
}

/// The child: does nothing unless told to.
#[test]
fn child() {
    let Ok(name) = env::var(CASE) else { return };
    let (_, case) = CASES.iter().find(|(known, _)| *known == name).unwrap();
    let gpu = start();
    start_pool(LIMIT).unwrap();
    case(&gpu);
    close(false);
    sweep();
    reap_copies();
    assert_eq!((gpu.sim.live().registered, lock_stats().1), (0, 0), "all is unlocked");
    gpu.sim.check_memory();
    assert_eq!(gpu.sim.take_errors(), [""; 0]);
}

fn layout(bytes: i64) -> (DType, Layout) {
    (DType::U8, Layout::compact(DType::U8, &[bytes]).unwrap())
}

/// A batch of the worker, in a block that is full of a value, as its reader gets it.
fn batch(bytes: i64, value: u8) -> Tensor {
    let made = allocate(&[layout(bytes)], LIMIT).unwrap();
    // SAFETY: new bytes of a block.
    unsafe { made[0].data_ptr().write_bytes(value, bytes as usize) };
    let mut parcel = Parcel::default();
    assert!(parcel.add(made[0].data_ptr(), DType::U8, made[0].layout()));
    let bytes = parcel.send().unwrap().hand_over().unwrap();
    drop(made);
    let message = Message::decode(&bytes).unwrap();
    receive(&mapped(&message.origin).unwrap(), &message).unwrap().remove(0)
}

fn is_full_of(tensor: &Tensor, value: u8) -> bool {
    tensor.as_slice::<u8>().unwrap().iter().all(|&byte| byte == value)
}

fn copy(gpu: &Gpu, to: &Buffer<'_>, from: &Tensor, lane: &ForeignStream<'_>) {
    let from = from.data_ptr().cast_const().cast();
    assert_eq!(gpu.cuMemcpyHtoDAsync_v2(to.address, from, BYTES as usize, lane.handle), 0);
}

/// Batches that are written into whatever is free.
fn overwrite() {
    let others: Vec<_> = (0..4).map(|_| batch(BYTES, 9)).collect();
    assert!(others.iter().all(|other| is_full_of(other, 9)));
}

fn each_block_is_locked_once(gpu: &Gpu) {
    let lane = ForeignStream::new(gpu);
    let to = Buffer::poisoned(gpu, BYTES as usize);
    for value in 0..50 {
        let arrived = batch(BYTES, value);
        let first = arrived.data_ptr();
        let locked = page_locked(&arrived, 0).unwrap();
        assert!(is_full_of(&locked, value) && locked.data_ptr() != first);
        let place =
            |tensor: &Tensor| windrow::device::device_of(tensor.data_ptr() as usize).unwrap();
        assert_eq!((place(&arrived), place(&locked)), (Device::Cpu, Device::Pinned));
        copy(gpu, &to, &locked, &lane);
        hold_until_done(vec![locked.owner().clone()], 0, lane.stream()).unwrap();
        drop((arrived, locked));
        assert_eq!(to.read(), [value; BYTES as usize]);
    }
    let blocks = lock_stats().0;
    assert!(blocks <= 2 && gpu.sim.live().registered == blocks, "{blocks} for 50 batches");
    // A part of a tensor is where the tensor is.
    let arrived = batch(BYTES, 7);
    let part = {
        let layout = Layout::try_new(DType::U8, &[10], Some(&[-3])).unwrap();
        let data = arrived.data_ptr().wrapping_add(500);
        // SAFETY: elements of the tensor, which is kept.
        unsafe {
            data.sub(27).write(8);
            Tensor::new_unchecked(arrived.owner().clone(), data, DType::U8, HERE, layout, false)
        }
    };
    let locked = page_locked(&part, 0).unwrap();
    assert_eq!(locked.layout(), part.layout());
    // SAFETY: the last element of the part.
    assert_eq!(unsafe { locked.data_ptr().sub(27).read() }, 8);
    assert!(page_locked(&layout_outside(), 0).is_none());
}

const HERE: Device = Device::Cpu;

/// A tensor that is in no block.
fn layout_outside() -> Tensor {
    Tensor::from_vec(vec![0u8; BYTES as usize], &[BYTES]).unwrap()
}

/// A copy that stands still, of a batch that has died; other batches come meanwhile.
fn copied(gpu: &Gpu, is_held: bool) -> Vec<u8> {
    let lane = ForeignStream::new(gpu);
    let to = Buffer::poisoned(gpu, BYTES as usize);
    let paused = lane.pause();
    let arrived = batch(BYTES, 1);
    let locked = page_locked(&arrived, 0).unwrap();
    copy(gpu, &to, &locked, &lane);
    if is_held {
        hold_until_done(vec![locked.owner().clone()], 0, lane.stream()).unwrap();
    }
    drop((arrived, locked));
    overwrite();
    reap_copies();
    overwrite();
    drop(paused);
    to.read()
}

fn a_block_is_not_written_while_it_is_copied(gpu: &Gpu) {
    for _ in 0..3 {
        assert_eq!(copied(gpu, true), [1; BYTES as usize]);
        reap_copies();
        // The copy is torn without the wait.
        assert_eq!(copied(gpu, false), [9; BYTES as usize]);
    }
    // The block is free again afterwards.
    assert!(lock_stats().0 <= 5, "{}", lock_stats().0);
}

fn what_others_copy_has_been_read(gpu: &Gpu) {
    let lane = ForeignStream::new(gpu);
    let to = Buffer::poisoned(gpu, BYTES as usize);
    // The block is page-locked, and the tensor is not.
    drop(page_locked(&batch(BYTES, 0), 0).unwrap());
    let paused = lane.pause();
    let arrived = batch(BYTES, 1);
    copy(gpu, &to, &arrived, &lane);
    drop(arrived);
    overwrite();
    drop(paused);
    assert_eq!(to.read(), [1; BYTES as usize]);
    assert_eq!(lock_stats().0, 1);
}

fn pages_that_are_given_back_are_unlocked(gpu: &Gpu) {
    let quarter = 2 << 20;
    let first = batch(quarter, 1);
    let at = first.data_ptr();
    drop(page_locked(&first, 0).unwrap());
    drop(first);
    // Four of its size and none in use: all go for one of four times the size, which begins where the first one did.
    drop([2, 3, 3, 3].map(|value| batch(quarter, value)));
    let large = batch(4 * quarter, 4);
    assert_eq!((large.data_ptr(), gpu.sim.live().registered), (at, 0));
    let locked = page_locked(&large, 0).unwrap();
    assert!(is_full_of(&locked, 4));
    drop((large, locked));
    // The new batch has the offset and size of the earlier one, with other pages.
    let again = batch(quarter, 5);
    assert_eq!((again.data_ptr(), gpu.sim.live().registered), (at, 0));
    assert!(is_full_of(&page_locked(&again, 0).unwrap(), 5));
    assert_eq!((lock_stats(), gpu.sim.live().registered), ((3, quarter as u64), 1));
}

fn pages_are_unlocked_with_the_end_of_their_worker(gpu: &Gpu) {
    let lane = ForeignStream::new(gpu);
    let to = Buffer::poisoned(gpu, BYTES as usize);
    let arrived = batch(BYTES, 2);
    let locked = page_locked(&arrived, 0).unwrap();
    {
        let _paused = lane.pause();
        copy(gpu, &to, &locked, &lane);
        hold_until_done(vec![locked.owner().clone()], 0, lane.stream()).unwrap();
        drop((arrived, locked));
        close(false);
        sweep();
        assert_eq!(gpu.sim.live().registered, 1, "it is being copied");
    }
    assert_eq!(to.read(), [2; BYTES as usize]);
    reap_copies();
    assert_eq!(gpu.sim.live().registered, 0);
    // A tensor that stays needs no more than its pages.
    start_pool(LIMIT).unwrap();
    let kept = batch(BYTES, 1);
    drop(page_locked(&kept, 0).unwrap());
    close(false);
    sweep();
    assert_eq!(gpu.sim.live().registered, 0);
    assert!(is_full_of(&kept, 1) && page_locked(&kept, 0).is_none());
    start_pool(LIMIT).unwrap();
}

fn a_refusal_is_said_and_not_tried_again(gpu: &Gpu) {
    gpu.sim.set_confidential(true);
    let arrived = batch(BYTES, 1);
    assert!(lock_refusal().is_none());
    assert!(page_locked(&arrived, 0).is_none());
    let text = lock_refusal().unwrap();
    assert!(text.contains("cuMemHostRegister") && text.contains(NOT_SUPPORTED), "{text}");
    let calls = gpu.sim.calls();
    assert!(page_locked(&arrived, 0).is_none() && gpu.sim.calls() == calls);
    assert!(try_lock(0).unwrap_err().to_string().contains(NOT_SUPPORTED));
    gpu.sim.set_confidential(false);
    try_lock(0).unwrap();
}

fn a_capture_goes_on(gpu: &Gpu) {
    let (captured, lane) = (ForeignStream::new(gpu), ForeignStream::new(gpu));
    let to = Buffer::poisoned(gpu, BYTES as usize);
    // The capture is like torch's: calls of any thread that might wait for the device end it.
    assert_eq!(gpu.cuStreamBeginCapture_v2(captured.handle, 0), 0);
    let (arrived, other) = (batch(BYTES, 1), batch(BYTES, 2));
    drop(page_locked(&other, 0).unwrap());
    let locked = page_locked(&arrived, 0).unwrap();
    copy(gpu, &to, &locked, &lane);
    hold_until_done(vec![locked.owner().clone()], 0, lane.stream()).unwrap();
    drop((arrived, other, locked));
    reap_copies();
    // Unlocks.
    close(false);
    sweep();
    let mut graph = 0;
    assert_eq!(gpu.cuStreamEndCapture(captured.handle, &mut graph), 0, "it is whole");
    assert_eq!(gpu.cuGraphDestroy(graph), 0);
    assert_eq!(to.read(), [1; BYTES as usize]);
    start_pool(LIMIT).unwrap();
}

fn a_block_is_locked_for_all_devices(gpu: &Gpu) {
    let arrived = batch(BYTES, 1);
    let locked = page_locked(&arrived, 0).unwrap();
    let (lane, to) = elsewhere_of(gpu);
    let paused = lane.pause();
    let there = page_locked(&arrived, 1).unwrap();
    assert_eq!((there.data_ptr(), lock_stats().0), (locked.data_ptr(), 1));
    copy(gpu, &to, &there, &lane);
    hold_until_done(vec![there.owner().clone()], 1, lane.stream()).unwrap();
    drop((arrived, locked, there));
    overwrite();
    drop(paused);
    assert_eq!(to.read(), [1; BYTES as usize]);
    drop((lane, to));
    assert_eq!(gpu.cuCtxSetCurrent(gpu.context), 0);
}

fn elsewhere_of(gpu: &Gpu) -> (ForeignStream<'_>, Buffer<'_>) {
    let (lane, small) = elsewhere(gpu, 1);
    drop(small);
    (lane, Buffer::poisoned(gpu, BYTES as usize))
}

fn a_child_locks_nothing(gpu: &Gpu) {
    let (arrived, other) = (batch(BYTES, 1), batch(2 * BYTES, 2));
    let locked = page_locked(&arrived, 0).unwrap();
    let calls = gpu.sim.calls();
    // SAFETY: the child takes no lock that another thread may hold, and ends by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut ok = page_locked(&other, 0).is_none() && page_locked(&arrived, 0).is_none();
        ok &= lock_refusal().is_none() && try_lock(0).is_err() && is_full_of(&locked, 1);
        reap_copies();
        drop((arrived, other, locked));
        sweep();
        ok &= gpu.sim.calls() == calls;
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!ok)) };
    }
    let mut status = -1;
    // SAFETY: a child of ours, and a live integer.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    assert!(is_full_of(&locked, 1) && page_locked(&other, 0).is_some());
}
