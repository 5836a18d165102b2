//! `include/windrow.h` is what cbindgen makes of the sources; `WINDROW_WRITE_HEADER=1` writes it.

#[test]
fn the_header_is_current() {
    let folder = env!("CARGO_MANIFEST_DIR");
    let config = cbindgen::Config::from_file(format!("{folder}/cbindgen.toml")).unwrap();
    let mut text = Vec::new();
    cbindgen::generate_with_config(folder, config).unwrap().write(&mut text);
    let path = format!("{folder}/include/windrow.h");
    if std::env::var_os("WINDROW_WRITE_HEADER").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let kept = std::fs::read(&path).unwrap_or_default();
    assert!(kept == text, "run WINDROW_WRITE_HEADER=1 cargo test -p windrow-capi");
}
