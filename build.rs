//! Compiles kernels/*.cu into one image for all GPUs with feature `cuda`; without it, only checks whether the compiler
//! knows AVX-512.

#[path = "build/nvcc.rs"]
mod nvcc;

use std::fmt::{self, Display};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{exit, Command};
use std::{env, fs};

use nvcc::Nvcc;

/// Machine code for these: no compilation at run time there, nor on later GPUs of the same major number, which execute it
/// too (sm_86 and sm_89 that of sm_80). Older toolkits lack the last two.
const SASS: [u32; 4] = [80, 90, 100, 120];
/// Intermediate code, compiled by the driver: for the majors in between, and for later ones.
const PTX: [u32; 2] = [80, 120];
/// The image that the library contains, in `OUT_DIR`: src/cuda/driver/module.rs.
const EMBEDDED: &str = "windrow.fatbin";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=build");
    println!("cargo:rustc-check-cfg=cfg(avx512)");
    let set = |variable| env::var(variable).unwrap_or_default();
    // Functions for AVX-512 came with Rust 1.89.
    if set("CARGO_CFG_TARGET_ARCH") == "x86_64" && rustc_minor().is_some_and(|minor| minor >= 89) {
        println!("cargo:rustc-cfg=avx512");
    }
    let target = (set("CARGO_CFG_TARGET_OS"), set("CARGO_CFG_TARGET_ARCH"));
    // Another target does not get as far as the kernels: src/lib.rs refuses it.
    let supported = target.0 == "linux" && ["x86_64", "aarch64"].contains(&target.1.as_str());
    if env::var_os("CARGO_FEATURE_CUDA").is_none() || !supported {
        return;
    }
    if let Err(text) = build() {
        eprintln!("\nwindrow, feature `cuda`: {text}\n");
        exit(1);
    }
}

/// False with `WINDROW_CUDA_EMBED=0`: many programs in one folder then share one image, which each reads from the file
/// that `$WINDROW_CUDA_IMAGE` names when it runs.
fn embeds() -> bool {
    println!("cargo:rerun-if-env-changed=WINDROW_CUDA_EMBED");
    env::var_os("WINDROW_CUDA_EMBED").is_none_or(|value| value != "0")
}

/// The minor version of `$RUSTC`; `None` if it cannot be asked or understood.
fn rustc_minor() -> Option<u32> {
    let output = Command::new(env::var_os("RUSTC")?).arg("--version").output().ok()?;
    String::from_utf8(output.stdout).ok()?.split('.').nth(1)?.parse().ok()
}

/// Writes the image and `casts.rs` to `OUT_DIR`; without `embeds` an empty image, and `separate.fatbin`.
fn build() -> Result<(), String> {
    let kernels =
        Path::new(&env::var("CARGO_MANIFEST_DIR").map_err(|e| e.to_string())?).join("kernels");
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    println!("cargo:rerun-if-changed={}", kernels.display());
    fs::write(out.join("casts.rs"), casts(&kernels)?).map_err(|e| format!("casts.rs: {e}"))?;
    if env::var_os("DOCS_RS").is_some() {
        return without_kernels(&out);
    }
    let nvcc = nvcc::find()?;
    let targets = targets(&nvcc)?;

    let unit = out.join("windrow.cu");
    fs::write(&unit, one_unit(&kernels)?).map_err(|e| format!("{}: {e}", unit.display()))?;
    let mut command = Command::new(&nvcc.path);
    command.args(["-fatbin", "-O3", "-std=c++17", "--threads", "0"]);
    // A tenth of the bytes; every wheel and every test program has the image in it.
    command.arg(nvcc.compression());
    command.args(targets.iter().map(|t| format!("-gencode=arch=compute_{},code={t}", t.arch)));
    // For a profiler, and for the tests of machine code, which count by line: the instructions are the same.
    println!("cargo:rerun-if-env-changed=WINDROW_CUDA_LINES");
    if env::var_os("WINDROW_CUDA_LINES").is_some_and(|value| value == "1") {
        command.arg("-lineinfo");
    }
    let image = out.join(if embeds() { EMBEDDED } else { "separate.fatbin" });
    let kept = kept_image(&kernels, &nvcc, &command)?;
    if let Some(kept) = kept.as_ref().filter(|kept| kept.is_file()) {
        fs::copy(kept, &image).map_err(|e| format!("{}: {e}", kept.display()))?;
    } else {
        command.arg("-o").arg(&image).arg(&unit);
        compile(&mut command, &nvcc)?;
        if let Some(kept) = kept {
            keep(&image, &kept).map_err(|e| format!("{}: {e}", kept.display()))?;
        }
    }
    if !embeds() {
        fs::write(out.join(EMBEDDED), []).map_err(|e| format!("{EMBEDDED}: {e}"))?;
    }

    let targets: Vec<String> = targets.iter().map(ToString::to_string).collect();
    println!("nvcc {} at {}: {}", nvcc.version, nvcc.path.display(), targets.join(" "));
    println!("cargo:rustc-env=WINDROW_NVCC_VERSION={}", nvcc.version);
    println!("cargo:rustc-env=WINDROW_CUDA_TARGETS={}", targets.join(" "));
    Ok(())
}

/// Runs nvcc; its warnings become cargo's.
fn compile(command: &mut Command, nvcc: &Nvcc) -> Result<(), String> {
    let output = command.output().map_err(|e| format!("{}: {e}", nvcc.path.display()))?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned()
        + &String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        return Err(format!("nvcc failed: {command:?}\n{said}"));
    }
    for line in said.lines().filter(|line| !line.trim().is_empty()) {
        println!("cargo:warning={line}");
    }
    Ok(())
}

/// The path of the image of these sources, compiler and flags in the folder `$WINDROW_KERNEL_CACHE`; `None` if that is
/// not set. Profiles, features and packages each run this script, and the kernels take minutes.
fn kept_image(kernels: &Path, nvcc: &Nvcc, command: &Command) -> Result<Option<PathBuf>, String> {
    println!("cargo:rerun-if-env-changed=WINDROW_KERNEL_CACHE");
    let folder = env::var_os("WINDROW_KERNEL_CACHE").filter(|folder| !folder.is_empty());
    let Some(folder) = folder else { return Ok(None) };
    let mut key = DefaultHasher::new();
    (&nvcc.version, format!("{:?}", command.get_args())).hash(&mut key);
    let mut sources: Vec<PathBuf> = fs::read_dir(kernels)
        .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect())
        .map_err(|e| format!("{}: {e}", kernels.display()))?;
    sources.sort();
    let is_source =
        |source: &&PathBuf| source.extension().is_some_and(|extension| extension != "md");
    for source in sources.iter().filter(is_source) {
        let text = fs::read(source).map_err(|e| format!("{}: {e}", source.display()))?;
        (source.file_name(), text).hash(&mut key);
    }
    Ok(Some(Path::new(&folder).join(format!("{:016x}.fatbin", key.finish()))))
}

/// Copies an image to its place, whose folder is made; it appears whole, since another build may look for it.
fn keep(image: &Path, kept: &Path) -> std::io::Result<()> {
    let part = kept.with_extension(std::process::id().to_string());
    fs::create_dir_all(kept.parent().unwrap_or(Path::new("")))?;
    fs::copy(image, &part)?;
    fs::rename(part, kept)
}

/// `CASTS` of src/cuda/launch/kernel_abi.rs, from the list that the kernels include.
fn casts(kernels: &Path) -> Result<String, String> {
    let list = kernels.join("cast_table.h");
    let text = fs::read_to_string(&list).map_err(|e| format!("{}: {e}", list.display()))?;
    let casts = text.lines().filter_map(|line| line.strip_prefix("WINDROW_CAST(")).map(|line| {
        let words: Vec<&str> = line.trim_end_matches(')').split(", ").collect();
        let [_, from, to, has_map] = words[..] else { return Err(format!("a cast: {line}")) };
        let dtype = |code: &str| format!("DType::{}", code.trim_start_matches('k'));
        Ok(format!("({}, {}, {has_map}),\n", dtype(from), dtype(to)))
    });
    Ok(format!("&[\n{}]\n", casts.collect::<Result<String, String>>()?))
}

/// Writes an empty image: docs.rs has no nvcc, and only reads what is public.
fn without_kernels(out: &Path) -> Result<(), String> {
    fs::write(out.join(EMBEDDED), []).map_err(|e| e.to_string())?;
    println!("cargo:rustc-env=WINDROW_NVCC_VERSION=none");
    println!("cargo:rustc-env=WINDROW_CUDA_TARGETS=none");
    Ok(())
}

/// One unit that includes every kernels/*.cu, at least one: one image, one module to load.
fn one_unit(kernels: &Path) -> Result<String, String> {
    let entries = fs::read_dir(kernels).map_err(|e| format!("{}: {e}", kernels.display()))?;
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.ends_with(".cu"))
        .collect();
    if names.is_empty() {
        return Err(format!("{}: no .cu file there", kernels.display()));
    }
    names.sort();
    // The full path is needed: the name alone might be that of the unit itself.
    let include = |name: &String| format!("#include \"{}\"\n", kernels.join(name).display());
    Ok(names.iter().map(include).collect())
}

struct Target {
    arch: u32,
    sass: bool,
}

impl Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}_{}", if self.sass { "sm" } else { "compute" }, self.arch)
    }
}

/// `$WINDROW_CUDA_ARCHS` (a list such as `80,90`), all of which this nvcc has to know, for a quick build of one's own; else those
/// of [`SASS`] and [`PTX`] that it knows.
fn targets(nvcc: &Nvcc) -> Result<Vec<Target>, String> {
    println!("cargo:rerun-if-env-changed=WINDROW_CUDA_ARCHS");
    let known = |arch: &u32| nvcc.arches.contains(arch);
    let Ok(list) = env::var("WINDROW_CUDA_ARCHS") else {
        let sass = SASS.into_iter().filter(known).map(|arch| Target { arch, sass: true });
        let ptx = PTX.into_iter().filter(known).map(|arch| Target { arch, sass: false });
        return Ok(sass.chain(ptx).collect());
    };
    list.split(',')
        .map(|arch| match arch.trim().parse() {
            Ok(arch) if known(&arch) => Ok(Target { arch, sass: true }),
            _ => Err(format!(
                "WINDROW_CUDA_ARCHS={list}: nvcc {} compiles for {:?}",
                nvcc.version, nvcc.arches
            )),
        })
        .collect()
}
