//! Tests a C program with the header and the library, and compares the header with the code.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder that contains the library that cargo has built for this test.
fn built() -> PathBuf {
    let exe = std::env::current_exe().expect("a test has a path");
    exe.parent().expect("a folder").to_owned()
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{said}", output.status);
    said
}

/// Rust needs a C compiler to link, so this machine has one.
#[test]
fn a_c_program_finds_what_the_header_says() {
    let (here, library) = (Path::new(env!("CARGO_MANIFEST_DIR")), built());
    let program = std::env::temp_dir().join(format!("parkade-capi-{}", std::process::id()));
    run(Command::new("cc")
        .args(["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-pthread", "-I"])
        .arg(here.join("include"))
        .arg(here.join("tests/program.c"))
        .arg("-o")
        .arg(&program)
        .arg(library.join("libparkade_capi.so"))
        .arg(format!("-Wl,-rpath,{}", library.display())));
    let said = run(&mut Command::new(&program));
    std::fs::remove_file(&program).expect("the program was written");
    assert_eq!(said, "ok\n");
}

#[test]
fn the_header_is_made_from_the_code() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(here.join("cbindgen.toml")).expect("the configuration can be read");
    let mut made = Vec::new();
    let builder = cbindgen::Builder::new().with_config(config).with_crate(here);
    builder.generate().expect("the code can be read").write(&mut made);
    let header = here.join("include/parkade.h");
    if std::env::var_os("PARKADE_BLESS").is_some() {
        std::fs::write(&header, &made).expect("the header can be written");
    }
    let kept = std::fs::read_to_string(header).expect("the header exists");
    assert!(
        String::from_utf8_lossy(&made) == kept,
        "capi/include/parkade.h does not match the code: run PARKADE_BLESS=1 cargo test -p parkade-capi to update it"
    );
}
