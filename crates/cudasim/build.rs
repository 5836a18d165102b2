//! Builds `libcudasim.so`: the simulator and, for the host, the kernels of the repository.
//!
//! `WINDROW_SIM_ASAN=1` adds AddressSanitizer; what loads the library then needs libasan preloaded.
//! `CUDASIM_BUILD=0` builds nothing, for what only reads the Rust sources: clippy.

#[path = "../../build/nvcc.rs"]
mod nvcc;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::thread;

/// Marks, on a line right before it, a kernel that uses barriers or warp intrinsics.
const FIBERS: &str = "// cudasim: fibers";

/// The first word of a kernel once sim/cudasim.h has replaced `__global__`.
const KERNEL: &str = "CUDASIM_KERNEL";

/// A source file and the flags that it has beside those of all.
type Source = (PathBuf, Vec<String>);

/// Builds the library and gives this crate `CUDASIM_LIBRARY`: its path, or an empty one if nothing is built.
fn main() {
    let here = PathBuf::from(env::var("CARGO_MANIFEST_DIR").unwrap());
    let out = PathBuf::from(env::var("OUT_DIR").unwrap());
    for variable in ["CXX", "WINDROW_SIM_ASAN", "CUDASIM_BUILD"] {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    if env::var("CUDASIM_BUILD").is_ok_and(|value| value == "0") {
        println!("cargo:rustc-env=CUDASIM_LIBRARY=");
        return;
    }
    let flags = flags_of_all();
    let mut sources = simulator(&here, &out);
    let kernels = here.join("../../kernels");
    files(&kernels, "h");
    files(&kernels, "cuh");
    for folder in [here.join("kernels"), kernels] {
        sources.extend(kernels_for_the_host(&folder, &here, &flags, &out));
    }
    let objects = compile_all(&sources, &flags, &out);
    let library = out.join("libcudasim.so");
    let mut link = Command::new(compiler());
    link.args(&flags).arg("-shared").args(&objects).arg("-o").arg(&library);
    run(&mut link);
    println!("cargo:rustc-env=CUDASIM_LIBRARY={}", library.display());
}

/// The flags of every source and of the link. The build ends here if nvcc, whose headers they name, is not found.
fn flags_of_all() -> Vec<String> {
    let mut flags = strings(&[
        "-std=c++20",
        "-O2",
        "-g1",
        "-fPIC",
        "-fvisibility=hidden",
        "-pthread",
        "-U_FORTIFY_SOURCE",
        "-isystem",
        &utf8(&nvcc::find().unwrap_or_else(|text| panic!("{text}")).include),
    ]);
    if env::var("WINDROW_SIM_ASAN").is_ok_and(|value| value == "1") {
        flags.extend(strings(&["-fsanitize=address", "-fno-omit-frame-pointer"]));
    }
    flags
}

/// The sources of the simulator and of the emulator of machine code, one [`unit`] each. Tests spend most of their time in the
/// emulator, so its flags optimize more.
fn simulator(here: &Path, out: &Path) -> Vec<Source> {
    let warnings = strings(&["-Wall", "-Wextra"]);
    let mut fast = warnings.clone();
    fast.extend(strings(&["-O3", "-ffp-contract=off", "-fno-strict-aliasing"]));
    if cfg!(target_arch = "x86_64") {
        // The simulator runs on the machine that builds it.
        fast.push("-march=native".into());
    }
    [(unit(&here.join("sim"), out), warnings), (unit(&here.join("device_code"), out), fast)].into()
}

/// A source, written to `out`, that includes all .cpp of a folder: headers are most of what a compiler reads for each.
fn unit(folder: &Path, out: &Path) -> PathBuf {
    files(folder, "h");
    let sources = files(folder, "cpp");
    let includes = sources.iter().map(|source| format!("#include \"{}\"\n", source.display()));
    let unit = out.join(folder.file_name().unwrap()).with_extension("cpp");
    fs::write(&unit, includes.collect::<String>()).unwrap();
    unit
}

/// The kernels of a folder as g++ takes them, written to `out`.
fn kernels_for_the_host(folder: &Path, here: &Path, flags: &[String], out: &Path) -> Vec<Source> {
    let include = utf8(&here.join("sim/cudasim.h"));
    let kernel_flags = strings(&[
        "-include",
        &include,
        "-I",
        &utf8(folder),
        "-ffp-contract=off",
        // The table of a launch is read through casts, as nvcc allows it.
        "-fno-strict-aliasing",
        "-Wno-unknown-pragmas",
        "-Wno-attributes",
    ]);
    let as_host_source = |kernel: PathBuf| {
        let mut scan = Command::new(compiler());
        scan.args(flags).args(&kernel_flags).args(["-DCUDASIM_SCAN", "-E", "-P", "-x", "c++"]);
        let preprocessed = run(scan.arg(&kernel));
        let source = out.join(kernel.file_name().unwrap()).with_extension("cu.cpp");
        fs::write(&source, host_source(&kernel, &preprocessed)).unwrap();
        (source, kernel_flags.clone())
    };
    files(folder, "cu").into_iter().map(as_host_source).collect()
}

/// These flags, each in memory of its own.
fn strings(flags: &[&str]) -> Vec<String> {
    flags.iter().map(|&flag| flag.to_owned()).collect()
}

/// The C++ compiler: `CXX`, else g++.
fn compiler() -> String {
    env::var("CXX").unwrap_or_else(|_| "g++".into())
}

/// The files of a folder with this extension, in order; cargo watches them and the folder.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    println!("cargo:rerun-if-changed={}", folder.display());
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == extension))
        .collect();
    files.sort();
    files
}

/// A .cu file as g++ takes it, with its kernels, at least one, registered by name at its end.
///
/// Parameters by value may be 32 kB, and a loop over threads would copy them for each one: so
/// `const __grid_constant__ P p` becomes `const __grid_constant__ P& p`.
fn host_source(kernel: &Path, preprocessed: &str) -> String {
    let source = fs::read_to_string(kernel).unwrap();
    let mut registered = String::new();
    for (name, fibers) in kernels_of(&source, preprocessed) {
        registered += &format!("    cudasim::reg(\"{name}\", &{name}, {fibers}),\n");
    }
    assert!(!registered.is_empty(), "{} has no kernel", kernel.display());
    let mut parts = source.split("__grid_constant__ ");
    let mut host = format!("#line 1 \"{}\"\n{}", kernel.display(), parts.next().unwrap());
    for part in parts {
        let end = part.find(char::is_whitespace).expect("a type and a name");
        host += &format!("__grid_constant__ {}&{}", &part[..end], &part[end..]);
    }
    host + &format!("\nstatic const int registered[] = {{\n{registered}}};\n")
}

/// Names of the kernels in a .cu file, and whether they are marked as using barriers.
fn kernels_of(source: &str, preprocessed: &str) -> Vec<(String, bool)> {
    let name_of =
        |kernel: &str| kernel.split('(').next()?.split_whitespace().last().map(String::from);
    let names = preprocessed.split(KERNEL).skip(1).filter_map(name_of);
    let marked = |name: &str| {
        let (before, _) = source.split_once(&format!("{name}(")).unwrap_or_default();
        // The text before the kernel ends at the last blank line.
        let declaration = before.rfind("\n\n").map_or(before, |blank| &before[blank..]);
        declaration.lines().any(|line| line.trim() == FIBERS)
    };
    names.map(|name| (name.clone(), marked(&name))).collect()
}

/// Compiles two sources at a time; gives the object files, in `out`, in the order of the sources. The build ends here if one
/// fails.
fn compile_all(sources: &[Source], flags: &[String], out: &Path) -> Vec<PathBuf> {
    let object = |source: &Path| out.join(source.file_name().unwrap()).with_extension("o");
    let rest = Mutex::new(sources.iter());
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| loop {
                let next = rest.lock().unwrap().next();
                let Some((source, source_flags)) = next else { break };
                let mut compile = Command::new(compiler());
                compile.args(flags).args(source_flags).arg("-c").arg(source);
                run(compile.arg("-o").arg(object(source)));
            });
        }
    });
    sources.iter().map(|(source, _)| object(source)).collect()
}

/// Runs a compiler, passes its warnings on and gives its output; the build ends here if it fails.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| {
        panic!("the simulator needs a C++20 compiler, $CXX or g++: {error}");
    });
    let messages = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}\n{messages}");
    for line in messages.lines().filter(|line| line.contains("warning:")) {
        println!("cargo:warning={line}");
    }
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A path as an argument of the compiler; the build ends here if it is not UTF-8.
fn utf8(path: &Path) -> String {
    path.to_str().expect("a path in UTF-8").to_owned()
}
