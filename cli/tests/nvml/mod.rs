//! The tests' own driver library: it is loaded like the real one, so the calls through it are tested too.

use std::path::Path;
use std::process::Command;

use crate::common::{Folder, Run, parkade};

/// The library in a folder of the test called `name`, under the names of NVML and of CUDA. It needs a C compiler.
pub(crate) fn fake(name: &str) -> Folder {
    let folder = Folder::new(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../conformance/src/scenarios/tools/fake_nvml.c");
    let library = Path::new(folder.path()).join("libnvidia-ml.so.1");
    let output = Command::new("cc").args(["-shared", "-fPIC", "-w", "-o"]).args([&library, &source]).output().expect("cc runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // Under both names that are looked for, so that a real one is not found on a machine that has it.
    for name in ["libcuda.so", "libcuda.so.1"] {
        std::fs::copy(&library, Path::new(folder.path()).join(name)).expect("a copy");
    }
    folder
}

/// The binary with the fake library and these variables.
pub(crate) fn with_fake(folder: &Folder, args: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = parkade(args);
    command.env("LD_LIBRARY_PATH", folder.path()).envs(variables.iter().copied());
    command
}

/// Runs it.
pub(crate) fn call_fake(folder: &Folder, args: &[&str], variables: &[(&str, &str)]) -> Run {
    with_fake(folder, args, variables).output().expect("the binary runs").into()
}
