//! Finds nvcc, for the build scripts of this repository.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A CUDA compiler that has been run and answered.
// No build script needs all of it.
#[allow(dead_code)]
#[derive(Debug)]
pub struct Nvcc {
    /// The program.
    pub path: PathBuf,
    /// The toolkit's version, as in `13.0.88`.
    pub version: String,
    /// The directory of cuda.h.
    pub include: PathBuf,
    /// The virtual architectures it knows: 80 for `compute_80`.
    pub arches: Vec<u32>,
}

/// A place to look for a compiler, or the reason why there is none.
type Place = fn() -> Result<PathBuf, String>;

/// `$NVCC` if set, else the first that works of `$CUDA_HOME/bin`, `PATH` and the PyPI packages of
/// `$PYO3_PYTHON`, or of `python3`. Tells cargo which variables it read, whose changes build everything anew: `PATH`, which
/// every shell has another of, only if it has to be read.
///
/// # Errors
/// A text with every place tried and three cures.
pub fn find() -> Result<Nvcc, String> {
    let read = |variable| println!("cargo:rerun-if-env-changed={variable}");
    read("NVCC");
    // One that was asked for by name is the one to use, or to complain about.
    if let Some(path) = env::var_os("NVCC") {
        return Nvcc::ask(Path::new(&path)).map_err(|reason| format!("$NVCC: {reason}"));
    }
    let mut tried = String::from("\n  - $NVCC: not set");
    let places: [(&str, Place); 3] =
        [("CUDA_HOME", in_cuda_home), ("PATH", on_path), ("PYO3_PYTHON", in_python)];
    for (variable, place) in places {
        // Cargo watches the variable only if it is read: maturin sets the last one for each interpreter, and the
        // kernels stay the same.
        read(variable);
        match place().and_then(|path| Nvcc::ask(&path)) {
            Ok(nvcc) => return Ok(nvcc),
            Err(reason) => tried += &format!("\n  - {reason}"),
        }
    }
    Err(format!(
        "nvcc was not found. Tried:{tried}\n\
         One of these cures it:\n  \
         - install a CUDA toolkit and set CUDA_HOME to it, or NVCC to its compiler\n  \
         - pip install nvidia-cuda-nvcc nvidia-nvvm nvidia-cuda-crt nvidia-cuda-runtime \
         nvidia-cuda-cccl, and set PYO3_PYTHON to that interpreter\n  \
         - build without the feature `cuda`: the host executor needs none of this"
    ))
}

fn on_path() -> Result<PathBuf, String> {
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&path).map(|folder| folder.join("nvcc")).find(|p| p.is_file());
    found.ok_or_else(|| "PATH: no nvcc in it".into())
}

fn in_cuda_home() -> Result<PathBuf, String> {
    let home = env::var_os("CUDA_HOME").ok_or("$CUDA_HOME/bin: CUDA_HOME is not set")?;
    Ok(Path::new(&home).join("bin/nvcc"))
}

/// The packages of PyPI share the folder nvidia/cu13, which is a toolkit but for `lib64`.
fn in_python() -> Result<PathBuf, String> {
    let python = env::var_os("PYO3_PYTHON").unwrap_or_else(|| "python3".into());
    let place = format!("nvidia/cu13 of {}", Path::new(&python).display());
    let code = "import nvidia; print(*nvidia.__path__, sep='\\n')";
    let folders = output(Command::new(&python).args(["-c", code]))
        .map_err(|_| format!("{place}: it has no package nvidia"))?;
    let mut compilers = folders.lines().map(|folder| Path::new(folder).join("cu13/bin/nvcc"));
    compilers.find(|path| path.is_file()).ok_or_else(|| format!("{place}: no bin/nvcc in it"))
}

impl Nvcc {
    /// Runs a compiler; refuses one that fails, or does not tell its version and include directory.
    fn ask(path: &Path) -> Result<Nvcc, String> {
        let ask = |arguments: &[&str]| {
            output(Command::new(path).args(arguments))
                .map_err(|error| format!("{}: {error}", path.display()))
        };
        let answer = |text: Option<String>, what: &str| {
            text.ok_or_else(|| format!("{}: did not tell its {what}", path.display()))
        };
        let release = ask(&["--version"])?;
        let version = release.rsplit_once(", V").map(|(_, rest)| first_word(rest));
        // The commands it would run name its include directory, whatever the toolkit's layout.
        let commands = ask(&["--dryrun", "-E", "-x", "cu", "/dev/null"])?;
        let include = commands
            .split_once("INCLUDES=\"-I")
            .and_then(|(_, rest)| rest.split_once('"'))
            .map(|(folder, _)| folder.to_owned());
        let arches = ask(&["--list-gpu-arch"])?
            .lines()
            .filter_map(|line| line.trim().strip_prefix("compute_")?.parse().ok())
            .collect();
        Ok(Nvcc {
            path: path.to_owned(),
            version: answer(version, "version")?,
            include: answer(include, "include directory")?.into(),
            arches,
        })
    }
}

impl Nvcc {
    /// The flag for the smallest image that every driver of this toolkit reads. Releases before 13 also know
    /// `-compress-mode=size`, but their images have to load on drivers older than that format.
    // Only the build script that makes the image calls this.
    #[allow(dead_code)]
    pub fn compression(&self) -> &'static str {
        let major = self.version.split('.').next().and_then(|major| major.parse().ok());
        match major {
            Some(13u32..) => "-compress-mode=size",
            _ => "-Xfatbin=-compress-all",
        }
    }
}

fn first_word(text: &str) -> String {
    text.split_whitespace().next().unwrap_or_default().to_owned()
}

/// The output of a command on both channels; nvcc uses either. The error of one that fails has it too.
fn output(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| error.to_string())?;
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text += &String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("{}: {}", output.status, text.trim()));
    }
    Ok(text)
}
