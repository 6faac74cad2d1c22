//! The C header of the contract is checked in, equals the Rust types, and compiles as C and C++.
//!
//! `HOTSEAM_BLESS=1 cargo test --release -p hotseam-abi --test header` writes it after a change of the contract.

#[path = "header/emit.rs"]
mod emit;
#[path = "header/layouts.rs"]
mod layouts;
#[path = "header/parse.rs"]
mod parse;

use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCES: &[(&str, &str)] = &[
    ("tensor.h", concat!(include_str!("../src/lib.rs"), "\n", include_str!("../src/tensor.rs"))),
    ("args.h", include_str!("../src/args.rs")),
    ("plugin.h", include_str!("../src/plugin.rs")),
];

fn include_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("include")
}

/// File name and text of every header.
fn generated() -> Vec<(&'static str, String)> {
    let parsed: Vec<_> = SOURCES.iter().map(|(file, source)| (*file, parse::items(source))).collect();
    let mut headers = emit::headers(&parsed);
    headers.push(("layout.h", emit::layout(&layouts::all())));
    headers
}

#[test]
fn the_header_is_the_contract() {
    let dir = include_dir().join("hotseam");
    for (file, text) in generated() {
        let path = dir.join(file);
        if std::env::var_os("HOTSEAM_BLESS").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        let differs = text.lines().zip(found.lines()).position(|(a, b)| a != b);
        assert!(
            text == found,
            "include/hotseam/{file} is not what the contract gives (first difference in line {}): raise CONTRACT if a \
             layout changed, then write the header with HOTSEAM_BLESS=1",
            differs.unwrap_or_else(|| text.lines().count().min(found.lines().count())) + 1
        );
    }
}

#[test]
fn no_struct_and_no_field_is_left_out() {
    let parsed = SOURCES.iter().flat_map(|(_, source)| parse::items(source));
    let mut structs: Vec<(String, Vec<String>)> = parsed
        .filter_map(|item| match item {
            parse::Item::Struct { name, fields, .. } => {
                Some((name, fields.into_iter().map(|field| field.name).collect()))
            }
            _ => None,
        })
        .collect();
    let mut listed: Vec<(String, Vec<String>)> = layouts::all()
        .into_iter()
        .map(|l| (l.name.to_owned(), l.fields.iter().map(|(field, _)| (*field).to_owned()).collect()))
        .collect();
    structs.sort();
    listed.sort();
    assert_eq!(structs, listed);
    assert!(structs.len() > 20);
}

/// The assertions of `layout.h` hold for this machine's compilers, in both languages.
#[test]
fn it_compiles_as_c_and_as_cpp() {
    for (compiler, flags) in [("cc", ["-x", "c", "-std=c11"]), ("c++", ["-x", "c++", "-std=c++11"])] {
        let out = Command::new(compiler)
            .args(flags)
            .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-I"])
            .arg(include_dir())
            .arg(include_dir().join("hotseam/plugin.h"))
            .output()
            .unwrap_or_else(|e| {
                panic!("{compiler}: {e}; the tests of the contract need a C and a C++ compiler")
            });
        let errors = String::from_utf8_lossy(&out.stderr);
        // `plugin.h` is the main file here, which only this test does.
        let errors: Vec<_> = errors.lines().filter(|line| line.contains("error")).collect();
        assert!(out.status.success(), "{compiler}: {errors:#?}");
    }
}

/// A header whose layout is off does not compile, so the assertions are alive.
#[test]
fn a_wrong_layout_does_not_compile() {
    let mut child = Command::new("cc")
        .args(["-x", "c", "-std=c11", "-fsyntax-only", "-fpack-struct=1", "-I"])
        .arg(include_dir())
        .arg("-")
        .stdin(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"#include <hotseam/plugin.h>\n").unwrap();
    let out = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success() && errors.contains("HotseamInfoV1"), "{errors}");
}
