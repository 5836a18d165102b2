//! `include/windrow.h` is what cbindgen makes of the sources; `WINDROW_WRITE_HEADER=1` writes it.
#![allow(unsafe_code)] // A C interface.

use std::ffi::{c_char, CStr};

use windrow_capi::*;

/// The macros of the version that Cargo has, and of the options' size.
fn macros() -> String {
    let whole = concat!("\"", env!("CARGO_PKG_VERSION"), "\"");
    let mut lines =
        "\n// The version of this header; `windrow_version` has that of the library that runs.\n"
            .to_owned();
    for (name, value) in [
        ("WINDROW_VERSION", whole),
        ("WINDROW_VERSION_MAJOR", env!("CARGO_PKG_VERSION_MAJOR")),
        ("WINDROW_VERSION_MINOR", env!("CARGO_PKG_VERSION_MINOR")),
        ("WINDROW_VERSION_PATCH", env!("CARGO_PKG_VERSION_PATCH")),
    ] {
        lines += &format!("#define {name} {value}\n");
    }
    lines += "\n// Fills in the defaults of `windrow_options`: see `windrow_options_init_sized`.\n";
    lines + "#define windrow_options_init(options) windrow_options_init_sized((options), sizeof(windrow_options))\n"
}

#[test]
fn the_header_is_current() {
    let folder = env!("CARGO_MANIFEST_DIR");
    let mut config = cbindgen::Config::from_file(format!("{folder}/cbindgen.toml")).unwrap();
    config.after_includes = Some(macros() + &config.after_includes.unwrap_or_default());
    let mut text = Vec::new();
    cbindgen::generate_with_config(folder, config).unwrap().write(&mut text);
    let path = format!("{folder}/include/windrow.h");
    if std::env::var_os("WINDROW_WRITE_HEADER").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let kept = std::fs::read(&path).unwrap_or_default();
    assert!(kept == text, "run WINDROW_WRITE_HEADER=1 cargo test -p windrow-capi");
}

fn text_at(text: *const c_char) -> &'static str {
    // SAFETY: a string of the library that is valid forever.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap()
}

#[test]
fn versions_of_header_and_library_are_cargos() {
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(text_at(windrow_version()), version);
    let header = include_str!("../include/windrow.h");
    assert!(header.contains(&format!("#define WINDROW_VERSION \"{version}\"\n")));
}

#[test]
fn each_status_of_the_header_has_its_name() {
    let header = include_str!("../include/windrow.h");
    let constants = header.lines().filter_map(|line| {
        let (name, number) = line.trim().strip_suffix(',')?.split_once(" = ")?;
        name.starts_with("WINDROW_STATUS_").then(|| (name, number.parse::<i32>().unwrap()))
    });
    let constants: Vec<_> = constants.collect();
    assert_eq!(constants.len(), 11);
    for &(name, number) in &constants {
        assert_eq!(text_at(windrow_status_name(number)), name);
    }
    for unknown in [-1, 11, i32::MIN, i32::MAX] {
        assert_eq!(text_at(windrow_status_name(unknown)), "unknown status");
    }
}
