//! `parkade info`, without a driver and with the test's own.

mod common;
mod nvml;

use std::io::{BufRead, BufReader};
use std::process::{ExitCode, Stdio};

use common::call;
use common::documented::check_text;
use common::trials::{self, Needs};
use nvml::{call_fake, fake, with_fake};
use serde_json::Value;

const GIB: u64 = 1 << 30;

fn main() -> ExitCode {
    trials::run(&[
        ("without_a_driver_one_line_says_so", Needs::NoDriver, without_a_driver_one_line_says_so),
        ("the_error_is_an_object_too", Needs::Nothing, the_error_is_an_object_too),
        ("a_table_shows_what_the_driver_says", Needs::Compiler, a_table_shows_what_the_driver_says),
        ("lists_of_every_driver_are_read", Needs::Compiler, lists_of_every_driver_are_read),
        ("a_driver_that_refuses_is_told", Needs::Compiler, a_driver_that_refuses_is_told),
        ("what_is_no_nvml_is_told", Needs::Compiler, what_is_no_nvml_is_told),
        ("a_watch_goes_on_until_nobody_reads", Needs::Compiler, a_watch_goes_on_until_nobody_reads),
        ("bad_arguments_are_refused", Needs::Nothing, bad_arguments_are_refused),
    ])
}

fn without_a_driver_one_line_says_so() {
    for args in [&["info"][..], &["info", "--watch"], &["info", "--json"]] {
        let run = call(args);
        assert_eq!(run.code, 2);
        assert!(run.err.starts_with("parkade: no GPU found: no NVML (libnvidia-ml.so.1: cannot open"), "{}", run.err);
        assert!(
            run.err.ends_with("; no CUDA driver (its library was not found)\n") && run.err.lines().count() == 1,
            "{}",
            run.err
        );
        assert_eq!(run.out.is_empty(), !args.contains(&"--json"), "{}", run.out);
    }
}

fn the_error_is_an_object_too() {
    let run = call(&["info", "--json"]);
    let object: Value = serde_json::from_str(run.out.trim_end()).expect("one object");
    assert_eq!(object["error"].is_string(), run.code == 2);
}

fn a_table_shows_what_the_driver_says() {
    let folder = fake("info-table");
    let own = std::process::id().to_string();
    let run = call_fake(&folder, &["info"], &[("FAKE_NVML_PID", &own)]);
    assert_eq!((run.code, run.err.as_str()), (0, ""));
    let lines: Vec<&str> = run.out.lines().collect();
    assert_eq!(lines[0], "driver 580.95.05");
    assert_eq!(lines[1], "gpu  name         total      free      used  driver's own    listed  unlisted");
    assert_eq!(lines[2], "  0  Fake GPU  8.00 GiB  3.00 GiB  4.00 GiB      1.00 GiB  3.00 GiB  1.00 GiB");
    assert!(lines[3].starts_with(&format!("  pid {own:<8}     3.00 GiB  compute  ")), "{}", lines[3]);
    assert!(run.out.contains("includes each process's CUDA context (about 500 MiB)"), "{}", run.out);
}

/// Entries of all the widths that drivers have written, and a list that is longer than the room it is given first.
fn lists_of_every_driver_are_read() {
    let folder = fake("info-widths");
    let run = call_fake(&folder, &["info", "--json"], &[("FAKE_NVML_PID", "4000000000")]);
    check_text("info", &run.out);
    let own = std::process::id();
    for words in ["2", "3", "4"] {
        let run = call_fake(&folder, &["info", "--json"], &[("FAKE_NVML_PID", &own.to_string()), ("FAKE_NVML_WORDS", words)]);
        let object: Value = serde_json::from_str(run.out.trim_end()).expect("one object");
        let device = &object["devices"][0];
        assert_eq!((&device["name"], &device["uuid"]), (&"Fake GPU".into(), &"GPU-fake".into()));
        assert_eq!((&device["total_bytes"], &device["driver_reserved_bytes"]), (&(8 * GIB).into(), &GIB.into()));
        let processes = device["processes"].as_array().expect("a list");
        assert_eq!((processes.len(), &device["listed_bytes"]), (100, &(3 * GIB + 99).into()), "{words} words an entry");
        assert_eq!((&processes[0]["pid"], &processes[0]["used_bytes"]), (&own.into(), &(3 * GIB).into()));
    }
}

fn a_driver_that_refuses_is_told() {
    let folder = fake("info-refusals");
    let hidden = call_fake(&folder, &["info"], &[]);
    assert!(hidden.code == 0 && hidden.out.contains("no process is listed: in a container"), "{}", hidden.out);
    let silent = call_fake(&folder, &["info"], &[("FAKE_NVML_LIST", "4")]);
    assert_eq!(silent.code, 0);
    assert!(silent.out.contains("processes unknown: nvmlDeviceGetComputeRunningProcesses_v3: no permission"), "{}", silent.out);
    let unloaded = call_fake(&folder, &["info"], &[("FAKE_NVML_INIT", "9")]);
    // Then the CUDA driver is asked, and the fake library is not one.
    assert_eq!(unloaded.code, 2);
    assert!(unloaded.err.contains("nvmlInit_v2: the driver's kernel module is not loaded (NVML code 9)"), "{}", unloaded.err);
    assert!(unloaded.err.contains("; the CUDA driver lacks cuInit"), "{}", unloaded.err);
}

fn what_is_no_nvml_is_told() {
    let folder = common::Folder::new("info-damaged");
    folder.file("libnvidia-ml.so.1", b"not a library");
    let run = call_fake(&folder, &["info"], &[]);
    if run.code == 2 {
        assert!(run.err.contains("no NVML (") && run.err.contains("libnvidia-ml.so.1"), "{}", run.err);
    }
    assert!(run.code == 2 || run.out.contains("from the CUDA driver"), "{}", run.out);
}

fn a_watch_goes_on_until_nobody_reads() {
    let folder = fake("info-watch");
    let mut command = with_fake(&folder, &["info", "--watch", "0.01", "--json"], &[]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs");
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines().take(3);
    for line in lines {
        let object: Value = serde_json::from_str(&line.expect("a line")).expect("one object a line");
        assert_eq!(object["devices"][0]["free_bytes"], 6 * GIB);
    }
    // The reader is gone now, which is not an error.
    let output = child.wait_with_output().expect("it ends");
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
}

fn bad_arguments_are_refused() {
    for args in [&["info", "--watch", "0"][..], &["info", "--watch", "-1"], &["info", "--watch", "soon"], &["info", "GPU0"]] {
        assert_eq!(call(args).code, 2, "{args:?}");
    }
    assert!(call(&["info", "--watch", "0"]).err.contains("\"0\" is not a number of seconds from 0.01 to 86400"));
    let help = call(&["info", "--help"]);
    assert!(help.code == 0 && help.out.contains("Examples:\n  parkade info\n"), "{}", help.out);
}
