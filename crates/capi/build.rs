//! Names the shared library as its packages do: programs that link it ask the loader for `libwindrow.so.0.1`,
//! and from 1.0 on for the major version alone: before it, a minor version may change structs.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let variable = |name| std::env::var(name).unwrap_or_default();
    if variable("CARGO_CFG_TARGET_OS") == "linux" {
        let major = variable("CARGO_PKG_VERSION_MAJOR");
        let minor = variable("CARGO_PKG_VERSION_MINOR");
        let interface = if major == "0" { format!("0.{minor}") } else { major };
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libwindrow.so.{interface}");
    }
}
