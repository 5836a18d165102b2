//! Names the shared library as its packages do: programs that link it ask the loader for `libwindrow.so.0`.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let variable = |name| std::env::var(name).unwrap_or_default();
    if variable("CARGO_CFG_TARGET_OS") == "linux" {
        let major = variable("CARGO_PKG_VERSION_MAJOR");
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libwindrow.so.{major}");
    }
}
