//! src/symbols.rs against the source of the cust_raw in use.
use std::{collections::BTreeMap, env, fs, process::Command};

/// Name to kind, from the declarations: the number of parameters, or `tail`.
fn declared(source: &str) -> BTreeMap<String, String> {
    let mut functions = BTreeMap::new();
    for item in source.split("pub fn cu").skip(1) {
        let (name, rest) = item.split_once('(').unwrap();
        let (parameters, _) = rest.split_once("CUresult;").unwrap();
        let parameters = parameters.trim_end().trim_end_matches("->").trim_end();
        let parameters = parameters.strip_suffix(')').unwrap();
        let by_value = |s: &str| s.ends_with(": f32") || s.contains(": CUipc");
        let parameters: Vec<_> =
            parameters.split(',').map(str::trim).filter(|s| !s.is_empty()).collect();
        let kind = match parameters.iter().any(|s| by_value(s)) {
            true => "tail".to_string(),
            false => parameters.len().to_string(),
        };
        functions.insert(format!("cu{name}"), kind);
    }
    functions
}

fn listed() -> BTreeMap<String, String> {
    let lines = include_str!("../src/symbols.rs").lines();
    lines
        .filter_map(|line| line.trim().strip_suffix(';')?.split_once(' '))
        .filter(|(_, kind)| *kind != "newer")
        .map(|(name, kind)| (name.to_string(), kind.to_string()))
        .collect()
}

#[test]
fn the_list_mirrors_cust_raw() {
    let cargo = Command::new(env::var("CARGO").unwrap())
        .args(["metadata", "--format-version=1", "--offline"])
        .output()
        .unwrap();
    let metadata = String::from_utf8(cargo.stdout).unwrap();
    let end = metadata.find("cust_raw-0.11.3/Cargo.toml").unwrap();
    let start = metadata[..end].rfind('"').unwrap() + 1;
    let source = format!("{}cust_raw-0.11.3/src/cuda.rs", &metadata[start..end]);
    let declared = declared(&fs::read_to_string(source).unwrap());
    assert_eq!(declared.len(), 353);
    assert_eq!(listed(), declared);
}
