//! cust_raw passes -lcuda to the linker. An empty archive of that name satisfies it; the symbols
//! themselves are defined in src/driver.rs.
use std::{env, fs, path::PathBuf};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let out_dir = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    fs::write(out_dir.join("libcuda.a"), b"!<arch>\n").expect("OUT_DIR takes a file");
    println!("cargo:rustc-link-search=native={}", out_dir.display());
}
