//! Builds `libcudasim.so`: the simulator and, for the host, the kernels of the repository.
//!
//! `WINDROW_SIM_ASAN=1` adds AddressSanitizer; what loads the library then needs libasan preloaded.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

/// Marks, on the line before it, a kernel that uses barriers or warp intrinsics.
const FIBERS: &str = "// cudasim: fibers";

/// What a kernel begins with.
const KERNEL: &str = "extern \"C\" __global__";

fn main() {
    let here = PathBuf::from(env::var("CARGO_MANIFEST_DIR").unwrap());
    let out = PathBuf::from(env::var("OUT_DIR").unwrap());
    for variable in ["CXX", "WINDROW_SIM_ASAN"] {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    let sim = here.join("sim");
    let mut flags: Vec<String> = [
        "-std=c++20",
        "-O2",
        "-g",
        "-fPIC",
        "-fvisibility=hidden",
        "-pthread",
        "-U_FORTIFY_SOURCE",
    ]
    .map(String::from)
    .into();
    flags.extend(["-isystem".into(), text(&cuda_include_dir())]);
    if env::var("WINDROW_SIM_ASAN").is_ok_and(|value| value == "1") {
        flags.extend(["-fsanitize=address", "-fno-omit-frame-pointer"].map(String::from));
    }

    let mut sources = Vec::new();
    for source in files(&sim, "cpp") {
        sources.push((source, vec!["-Wall".to_owned(), "-Wextra".into()]));
    }
    files(&sim, "h");
    let mut folders = vec![here.join("kernels")];
    let kernels = here.join("../../kernels");
    if kernels.is_dir() {
        files(&kernels, "h");
        files(&kernels, "cuh");
        folders.push(kernels);
    }
    for folder in folders {
        for kernel in files(&folder, "cu") {
            let source = out.join(kernel.file_name().unwrap()).with_extension("cu.cpp");
            fs::write(&source, host_source(&kernel)).unwrap();
            let include = text(&sim.join("cudasim.h"));
            let own = ["-include", &include, "-I", &text(&folder), "-ffp-contract=off"];
            let own = own.into_iter().chain(["-Wno-unknown-pragmas", "-Wno-attributes"]);
            sources.push((source, own.map(String::from).collect()));
        }
    }

    let objects = compile_all(&sources, &flags, &out);
    let library = out.join("libcudasim.so");
    let mut link = Command::new(compiler());
    link.args(&flags).arg("-shared").args(&objects).arg("-o").arg(&library);
    run(&mut link);
    println!("cargo:rustc-env=CUDASIM_LIBRARY={}", library.display());
}

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

/// A .cu file as g++ takes it, with its kernels registered by name at its end.
///
/// Parameters by value may be 32 kB, and a loop over threads would copy them for each one: so
/// `const __grid_constant__ P p` becomes `const __grid_constant__ P& p`.
fn host_source(kernel: &Path) -> String {
    let source = fs::read_to_string(kernel).unwrap();
    let mut registered = String::new();
    for (name, fibers) in kernels_of(&source) {
        registered += &format!("    cudasim::reg(\"{name}\", &{name}, {fibers}),\n");
    }
    assert!(!registered.is_empty(), "{} has no extern \"C\" __global__ kernel", kernel.display());
    let mut parts = source.split("__grid_constant__ ");
    let mut host = format!("#line 1 \"{}\"\n{}", kernel.display(), parts.next().unwrap());
    for part in parts {
        let end = part.find(char::is_whitespace).expect("a type and a name");
        host += &format!("__grid_constant__ {}&{}", &part[..end], &part[end..]);
    }
    host + &format!("\nstatic const int registered[] = {{\n{registered}}};\n")
}

/// Names of the kernels in a .cu file, and whether they are marked as using barriers. A macro may
/// stand for the words before the name: `#define NAME extern "C" __global__ ...`.
fn kernels_of(source: &str) -> Vec<(String, bool)> {
    let mut openings = vec![KERNEL];
    for line in source.lines() {
        if let Some((name, _)) = line.strip_prefix("#define ").and_then(|l| l.split_once(KERNEL)) {
            openings.push(name.trim());
        }
    }
    let mut kernels = Vec::new();
    let mut before = "";
    for line in source.lines() {
        let line = line.trim_start();
        if openings.iter().any(|opening| line.starts_with(opening)) {
            let rest = &source[offset_of(source, line)..];
            kernels.push((kernel_name(rest, &openings), before == FIBERS));
        }
        before = line.trim_end();
    }
    kernels
}

fn offset_of(whole: &str, part: &str) -> usize {
    part.as_ptr() as usize - whole.as_ptr() as usize
}

/// The first word that is followed by a parenthesis and is no launch bound.
fn kernel_name(signature: &str, openings: &[&str]) -> String {
    let mut rest = signature;
    for opening in openings {
        rest = rest.strip_prefix(opening).unwrap_or(rest);
    }
    loop {
        let (head, tail) = rest.split_once('(').expect("the parameters of a kernel");
        let name = head.split_whitespace().last().unwrap_or_default();
        if name != "__launch_bounds__" {
            return name.to_owned();
        }
        rest = tail.split_once(')').expect("the end of the launch bounds").1;
    }
}

/// Two at a time; gives the object files.
fn compile_all(sources: &[(PathBuf, Vec<String>)], flags: &[String], out: &Path) -> Vec<PathBuf> {
    let object = |source: &Path| out.join(source.file_name().unwrap()).with_extension("o");
    let half = sources.len().div_ceil(2);
    thread::scope(|scope| {
        for part in sources.chunks(half) {
            scope.spawn(move || {
                for (source, own) in part {
                    let mut compile = Command::new(compiler());
                    compile.args(flags).args(own).arg("-c").arg(source);
                    run(compile.arg("-o").arg(object(source)));
                }
            });
        }
    });
    sources.iter().map(|(source, _)| object(source)).collect()
}

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| {
        panic!("the simulator needs a C++20 compiler, $CXX or g++: {error}");
    });
    let messages = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}\n{messages}");
    for line in messages.lines().filter(|line| line.contains("warning:")) {
        println!("cargo:warning={line}");
    }
}

fn text(path: &Path) -> String {
    path.to_str().expect("a path in UTF-8").to_owned()
}

/// Where cuda.h is: beside nvcc, which is `$NVCC`, on `PATH`, in `$CUDA_HOME/bin`, or in the PyPI
/// packages of `$PYO3_PYTHON` or python3.
fn cuda_include_dir() -> PathBuf {
    for variable in ["NVCC", "PATH", "CUDA_HOME", "PYO3_PYTHON"] {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    let mut programs: Vec<PathBuf> = env::var_os("NVCC").map(PathBuf::from).into_iter().collect();
    let path = env::var_os("PATH").unwrap_or_default();
    programs.extend(env::split_paths(&path).map(|folder| folder.join("nvcc")));
    programs.extend(env::var_os("CUDA_HOME").map(|home| Path::new(&home).join("bin/nvcc")));
    let python = env::var_os("PYO3_PYTHON").unwrap_or_else(|| "python3".into());
    let ask = ["-c", "import nvidia; print(*nvidia.__path__, sep='\\n')"];
    if let Ok(output) = Command::new(python).args(ask).output() {
        let folders = String::from_utf8_lossy(&output.stdout).into_owned();
        programs.extend(folders.lines().map(|folder| Path::new(folder).join("cu13/bin/nvcc")));
    }
    let include = |nvcc: &PathBuf| {
        let real = fs::canonicalize(nvcc).ok()?;
        let folder = real.parent()?.parent()?.join("include");
        folder.join("cuda.h").is_file().then_some(folder)
    };
    programs.iter().find_map(include).unwrap_or_else(|| {
        panic!(
            "the simulator needs the CUDA 13 headers: looked beside $NVCC, nvcc on PATH, \
             $CUDA_HOME/bin/nvcc, and nvidia/cu13/bin/nvcc of $PYO3_PYTHON or python3"
        )
    })
}
