//! Images, launches and the execution of kernels.

use std::ffi::c_void;
use std::process::Command;

use crate::gpu::{image, Gpu, INVALID_VALUE};

fn address<T>(value: &mut T) -> *mut c_void {
    (value as *mut T).cast()
}

#[test]
fn images_and_names_are_checked() {
    let gpu = Gpu::new();
    let (mut module, mut function) = (0, 0);
    assert_eq!(gpu.cuModuleLoadData(&mut module, c"no image at all".as_ptr().cast()), 200);
    assert_eq!(gpu.cuModuleLoadData(&mut module, std::ptr::null()), INVALID_VALUE);
    assert_eq!(gpu.cuModuleLoadData(&mut module, image("sim_fill unknown").as_ptr()), 0);
    let mut find = |name: &std::ffi::CStr| {
        gpu.cuModuleGetFunction(&mut function, module, name.as_ptr().cast())
    };
    assert_eq!(find(c"sim_fill"), 0);
    assert_eq!(find(c"unknown"), 500); // not compiled for the host
    assert_eq!(find(c"sim_gather"), 500); // not in the image
    assert_eq!(gpu.cuModuleUnload(module), 0);
    assert_eq!(gpu.launch(function, 1, 1, 0, &[]), 400);
    assert_eq!(gpu.cuModuleUnload(module), 400);
    assert_eq!(gpu.sim.take_errors().len(), 2);
}

#[test]
fn an_image_without_code_for_the_device_is_refused() {
    let gpu = Gpu::new();
    // kind (machine code is 2), version; header size, size of the part; then at 28 the architecture.
    let with_arch = |kind: u8, arch: u8| {
        let mut image = image("sim_fill");
        let mut part = [0; 64];
        (part[0], part[4], part[28]) = (kind, 64, arch);
        image.splice(16..16, part);
        image[8..16].copy_from_slice(&72_u64.to_le_bytes());
        gpu.cuModuleLoadData(&mut 0, image.as_ptr())
    };
    assert_eq!(with_arch(2, 90), 0);
    assert_eq!(with_arch(2, 80), 209);
    assert_eq!(with_arch(1, 80), 0); // PTX of an older one
    assert_eq!(with_arch(1, 120), 209);
}

#[test]
fn arguments_are_copied_at_the_launch() {
    let gpu = Gpu::new();
    let (stream, a) = (gpu.stream(), gpu.alloc(100));
    let kernel = gpu.kernel("sim_fill");
    let (mut dst, mut count, mut value) = (a, 100_u64, 5_u32);
    let params = [address(&mut dst), address(&mut count), address(&mut value)];
    gpu.sim.hold();
    assert_eq!(gpu.launch(kernel, 4, 32, stream, &params), 0);
    (dst, count, value) = (0, 0, 0);
    assert_eq!((dst, count, value), (0, 0, 0));
    gpu.sim.release();
    gpu.cuStreamSynchronize(stream);
    assert_eq!(gpu.read(a, 100), (5..105).collect::<Vec<_>>());
}

#[test]
fn a_launch_may_have_32_kilobytes_of_parameters() {
    #[repr(C)]
    struct Large {
        dst: u64,
        words: [u32; 8188],
    }
    let gpu = Gpu::new();
    let a = gpu.alloc(8188);
    let mut params = Large { dst: a, words: std::array::from_fn(|i| i as u32) };
    assert_eq!(gpu.launch(gpu.kernel("sim_large"), 32, 256, 0, &[address(&mut params)]), 0);
    assert_eq!(gpu.read(a, 8188), params.words);
}

#[test]
fn limits_of_a_launch() {
    let gpu = Gpu::new();
    let kernel = gpu.kernel("sim_fill");
    let launch = |grid: [u32; 3], block: [u32; 3], shared| {
        let mut zeros = [0_u64; 3];
        let params = zeros.each_mut().map(address);
        let ([x, y, z], [bx, by, bz], null) = (grid, block, std::ptr::null());
        gpu.cuLaunchKernel(kernel, x, y, z, bx, by, bz, shared, 0, params.as_ptr(), null)
    };
    assert_eq!(launch([1, 1, 1], [1024, 1, 1], 48 << 10), 0);
    for (grid, block, shared) in [
        ([0, 1, 1], [1, 1, 1], 0),
        ([1 << 31, 1, 1], [1, 1, 1], 0),
        ([1, 65536, 1], [1, 1, 1], 0),
        ([1, 1, 1], [1025, 1, 1], 0),
        ([1, 1, 1], [32, 33, 1], 0),
        ([1, 1, 1], [1, 1, 65], 0),
        ([1, 1, 1], [1, 1, 0], 0),
        ([1, 1, 1], [1, 1, 1], 49 << 10),
    ] {
        assert_eq!(launch(grid, block, shared), INVALID_VALUE, "{grid:?} {block:?} {shared}");
    }
    assert_eq!(gpu.launch(0, 1, 1, 0, &[]), 400);
}

#[test]
fn barriers_and_shuffles() {
    let gpu = Gpu::new();
    let (rows, columns) = (37_usize, 300_usize);
    let (mut x, mut out) = (gpu.alloc(rows * columns), gpu.alloc(rows));
    let values: Vec<u32> = (0..rows * columns).map(|i| ((i % 251) as f32).to_bits()).collect();
    gpu.write(x, &values);
    let mut num_columns = columns as i32;
    let params = [address(&mut x), address(&mut out), address(&mut num_columns)];
    assert_eq!(gpu.launch(gpu.kernel("sim_row_sum"), rows as u32, 256, 0, &params), 0);
    let sums: Vec<u32> = gpu.read(out, rows);
    for (row, sum) in sums.into_iter().enumerate() {
        let expected: usize = (0..columns).map(|c| (row * columns + c) % 251).sum();
        assert_eq!(f32::from_bits(sum), expected as f32, "row {row}");
    }
}

#[test]
fn half_precision() {
    let gpu = Gpu::new();
    let (mut src, mut dst, mut count) = (gpu.alloc(1), gpu.alloc(2), 4_u64);
    gpu.write(src, &[u32::from_le_bytes([0, 1, 2, 255])]);
    let params = [address(&mut src), address(&mut dst), address(&mut count)];
    assert_eq!(gpu.launch(gpu.kernel("sim_halve"), 1, 4, 0, &params), 0);
    assert_eq!(gpu.read(dst, 2), [0x3800_0000, 0x57F8_3C00]); // 0, 0.5, 1, 127.5
}

/// Runs in a process of its own, which it ends: started by the test below with its name.
#[test]
#[ignore = "aborts"]
fn wrong_kernel() {
    let gpu = Gpu::new();
    let kernel = gpu.kernel(&std::env::var("CUDASIM_WRONG_KERNEL").unwrap());
    assert_eq!(gpu.launch(kernel, 1, 64, 0, &[address(&mut 0_i32)]), 0);
    gpu.cuCtxSynchronize();
}

#[test]
fn barriers_that_a_gpu_would_hang_at_abort() {
    for (kernel, message) in [
        ("sim_diverge", "barrier divergence (deadlock on a GPU)"),
        ("sim_unmarked", "a kernel that is not marked `cudasim: fibers` uses a barrier"),
    ] {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "kernels::wrong_kernel", "--nocapture"])
            .env("CUDASIM_WRONG_KERNEL", kernel)
            .output()
            .unwrap();
        assert!(!output.status.success());
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains(message), "{text}");
    }
}

#[test]
fn a_kernel_of_an_unloaded_module_is_misuse_when_it_runs() {
    let gpu = Gpu::new();
    let (stream, a) = (gpu.stream(), gpu.alloc(4));
    let (mut module, mut fill) = (0, 0);
    assert_eq!(gpu.cuModuleLoadData(&mut module, image("sim_fill").as_ptr()), 0);
    assert_eq!(gpu.cuModuleGetFunction(&mut fill, module, c"sim_fill".as_ptr().cast()), 0);
    gpu.sim.pause(stream);
    let (mut to, mut count, mut value) = (a, 4u64, 7u32);
    let params = [(&raw mut to).cast(), (&raw mut count).cast(), (&raw mut value).cast()];
    assert_eq!(gpu.launch(fill, 1, 32, stream, &params), 0);
    assert_eq!(gpu.cuModuleUnload(module), 0);
    gpu.sim.resume(stream);
    assert_eq!(gpu.cuStreamSynchronize(stream), 0);
    assert_eq!(gpu.sim.take_errors(), ["a kernel of an unloaded module ran"]);
}

#[test]
fn each_life_of_a_context_has_a_number() {
    let gpu = Gpu::new();
    let (mut first, mut again) = (0, 0);
    assert_eq!(gpu.cuCtxGetId(gpu.context, &mut first), 0);
    assert_eq!(gpu.cuCtxGetId(gpu.context, &mut again), 0);
    assert!(first != 0 && first == again);
}
