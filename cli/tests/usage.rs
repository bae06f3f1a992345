//! Arguments that cannot be understood: exit code 2, and with `--json` an object on standard output as for any other failure.

use crate::common::{Run, call};

fn error(run: &Run) -> String {
    let object: serde_json::Value =
        serde_json::from_str(run.out.trim_end()).unwrap_or_else(|error| panic!("{error}: {}", run.out));
    object["error"].as_str().expect("a line").to_owned()
}

#[test]
fn usage_errors_are_json_where_it_is_asked_for() {
    for subcommand in ["verify", "replay", "advise", "diagnose", "stats", "export", "pack", "sweep", "merge", "info"] {
        let plain = call(&[subcommand, "--no-such-option"]);
        assert_eq!((plain.code, plain.out.as_str()), (2, ""), "{subcommand}");
        let run = call(&[subcommand, "--json", "--no-such-option"]);
        assert_eq!((run.code, run.err.lines().next()), (2, plain.err.lines().next()), "{subcommand}: the same for people");
        let said = error(&run);
        assert!(
            said.starts_with("unexpected argument '--no-such-option' found") && !said.contains("Usage"),
            "{subcommand}: {said}"
        );
    }
    assert!(error(&call(&["verify", "--json"])).starts_with("the following required arguments were not provided"));
    assert!(error(&call(&["nosuch", "--json"])).starts_with("unrecognized subcommand 'nosuch'"));
}

#[test]
fn json_is_asked_for_with_a_value_too_which_is_a_mistake_of_its_own() {
    for spelling in ["--json=true", "--json=1", "--json="] {
        let run = call(&["sweep", spelling]);
        assert_eq!((run.code, run.err.lines().count() > 0), (2, true), "{spelling}");
        assert!(error(&run).starts_with("unexpected value '"), "{spelling}: {}", run.out);
    }
    assert!(error(&call(&["sweep", "--json", "--json"])).contains("cannot be used multiple times"));
    assert!(error(&call(&["--json", "sweep"])).starts_with("unexpected argument '--json' found"));
    assert_eq!(call(&["sweep", "--json=false"]).out, "", "which is none");
    // An option's value, and a different option that begins in the same way.
    assert_eq!(call(&["sweep", "--context", "--json"]).out, "");
    assert_eq!(call(&["sweep", "--jsonl"]).out, "");
}

#[test]
fn help_is_no_error_and_who_has_no_json_prints_none() {
    let help = call(&["verify", "--json", "--help"]);
    assert!(help.code == 0 && help.err.is_empty() && help.out.contains("Usage:"), "{}", help.err);
    // A shell evaluates what this command prints.
    let run = call(&["enable", "expandable_segments", "--json"]);
    assert_eq!((run.code, run.out.as_str()), (2, ""));
    assert_eq!(call(&["verify", "--", "--json"]).out, "", "the name of a file");
}

#[test]
fn no_memory_is_refused_wherever_it_is_a_limit() {
    for command in ["verify", "replay", "advise", "diagnose", "report", "stats", "export"] {
        for (size, more) in [("0", &[][..]), ("0GiB", &[]), ("0.0", &["--json"])] {
            let run = call(&[&[command, "file", "--limit", size], more].concat());
            let first = run.err.lines().next().unwrap_or_default();
            let said = format!("{size} leaves no memory to allocate: for no limit, leave the option out");
            assert!(run.code == 2 && first.contains("--limit") && first.contains(&said), "{command} {size}: {first}");
        }
    }
    // A peak of nothing; no growth is 0%.
    let run = call(&["diff", "file", "other", "--fail-above", "0"]);
    assert!(run.code == 2 && run.err.contains("or a percentage (2%)"), "{}", run.err);
    for arguments in [
        &["replay", "file", "--capacity", "0"][..],
        &["advise", "file", "--capacity", "0B"],
        &["replay", "file", "--recorded-limit", "0"],
        &["pack", "file", "--recorded-limit", "0"],
        &["sweep", "--largest-batch", "-c", "0GiB"],
        &["sweep", "-c", "0GiB"],
    ] {
        let run = call(arguments);
        assert!(run.code == 2 && run.err.contains("no memory"), "{arguments:?}: {}", run.err);
    }
}

/// With thousands of threads on a few processors advise did not end within minutes.
#[test]
fn threads_are_no_more_than_processors() {
    let folder = crate::common::Folder::new("usage-threads");
    let file = folder.recording("run.pickle", &crate::common::good());
    let lines: [&[&str]; 5] = [
        &["advise", &file],
        &["diff", &file, &file],
        &["report", &file, "-o", "-"],
        &["conform", "--filter", "contract/events", "--cases", "1", "--list"],
        &["sweep", "-w", &file, "-p", "pytorch", "-c", "1.0", "--bounds", "0", "--threads", "60000"],
    ];
    for line in lines {
        let as_ever = call(line);
        for threads in ["100000", "18446744073709551615", "99999999999999999999", "0", "-1", "many", ""] {
            let begin = std::time::Instant::now();
            let run: Run =
                crate::common::parkade(line).env("RAYON_NUM_THREADS", threads).output().expect("the binary runs").into();
            assert_eq!((run.code, &run.out), (as_ever.code, &as_ever.out), "{line:?} {threads}: {}", run.err);
            assert!(begin.elapsed().as_secs() < 30, "{line:?} {threads}");
        }
    }
}

#[test]
fn a_size_without_its_unit_is_refused_wherever_it_is_memory() {
    for arguments in [
        &["verify", "file", "--limit"][..],
        &["replay", "file", "--limit"],
        &["replay", "file", "--capacity"],
        &["advise", "file", "--limit"],
        &["advise", "file", "--capacity"],
        &["diagnose", "file", "--limit"],
        &["report", "file", "--limit"],
        &["stats", "file", "--limit"],
        &["export", "file", "-o", "out", "--limit"],
        &["ops", "-", "--capacity"],
        &["sweep", "--largest-batch", "--capacities"],
        &["sweep", "--largest-batch", "--context"],
    ] {
        let run = call(&[arguments, &["16"]].concat());
        let option = arguments.last().expect("an option");
        let first = run.err.lines().next().unwrap_or_default();
        assert_eq!((run.code, run.out.as_str()), (2, ""), "{arguments:?}");
        assert!(first.contains(option) && first.contains("16 is 16 bytes"), "{arguments:?}: {first}");
        assert!(first.contains("did you mean 16GiB?"), "{arguments:?}: {first}");
    }
    let json = call(&["advise", "file", "--json", "--limit", "7.5"]);
    assert!(error(&json).ends_with("at least 2 MiB at a time: did you mean 7.5GiB?"), "{}", json.out);
}

#[test]
fn less_than_a_page_is_refused_wherever_it_is_a_limit() {
    for arguments in [
        &["verify", "file", "--limit"][..],
        &["replay", "file", "--limit"],
        &["replay", "file", "--capacity"],
        &["replay", "file", "--recorded-limit"],
        &["pack", "file", "--recorded-limit"],
        &["advise", "file", "--limit"],
        &["advise", "file", "--capacity"],
        &["diagnose", "file", "--limit"],
        &["diagnose", "file", "--capacity"],
        &["report", "file", "--limit"],
        &["report", "file", "--capacity"],
        &["stats", "file", "--limit"],
        &["export", "file", "-o", "out", "--limit"],
        &["diff", "file", "--fail-above"],
        &["sweep", "--largest-batch", "-c"],
        &["sweep", "-w", "all", "-c"],
    ] {
        for (size, meant) in [("1B", "1GiB"), ("700KiB", "700MiB"), ("1M", "1GiB")] {
            let run = call(&[arguments, &[size]].concat());
            let first = run.err.lines().next().unwrap_or_default();
            let said = format!("PyTorch reserves at least 2 MiB at a time: did you mean {meant}");
            assert!(run.code == 2 && first.contains(size) && first.contains(&said), "{arguments:?} {size}: {first}");
        }
    }
}

/// If memory cannot be allocated, the runtime reports that in one line and aborts.
#[test]
#[cfg(target_os = "linux")]
fn an_abort_is_a_command_that_could_not_run() {
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    // It waits for its script.
    let mut waiting = Command::new(env!("CARGO_BIN_EXE_parkade"));
    let mut waiting = waiting.args(["ops", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("it starts");
    let status = format!("/proc/{}/status", waiting.id());
    let catches_aborts = || {
        let status = std::fs::read_to_string(&status).expect("it runs");
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).expect("Linux says it").trim();
        // SIGABRT is the sixth.
        u64::from_str_radix(caught, 16).expect("a mask") & (1 << 5) != 0
    };
    let since = Instant::now();
    while !catches_aborts() {
        assert!(since.elapsed() < Duration::from_secs(30), "SIGABRT is not caught");
        std::thread::sleep(Duration::from_millis(5));
    }
    let sent = Command::new("kill").args(["-ABRT", &waiting.id().to_string()]).status().expect("there is kill");
    assert!(sent.success());
    assert_eq!(waiting.wait().expect("it ends").code(), Some(2));
}

/// What people type who know the size of their card.
#[test]
fn a_guess_at_the_memory_of_a_gpu_names_the_right_option() {
    let guesses = ["--card", "--memory", "--gpu", "--vram", "--size", "--gpu-memory"];
    for command in ["advise", "diagnose", "report", "replay", "stats", "export"] {
        for guess in guesses {
            let run = call(&[command, "file", guess, "24GiB"]);
            assert_eq!((run.code, run.out.as_str()), (2, ""), "{command} {guess}");
            let said = format!("unexpected argument '{guess}' found");
            assert!(run.err.contains(&said) && run.err.contains("use --capacity 24076MiB for a GPU with 24GiB: "), "{}", run.err);
            assert!(!run.err.contains("--markdown") && !run.err.contains(&format!("-- {guess}")), "{}", run.err);
        }
    }
    let verify = call(&["verify", "file", "--vram", "24GiB"]).err;
    assert!(verify.contains("use --limit 24076MiB for a GPU with 24GiB: "), "{verify}");
    assert!(call(&["sweep", "--card", "24GiB"]).err.contains("use --capacities 24GiB: "));
    assert!(call(&["diff", "file", "--memory", "24GiB"]).err.contains("use --fail-above 24076MiB: "));
    let json = call(&["advise", "file", "--json", "--card", "24GiB"]);
    assert!(error(&json).contains("use --capacity 24076MiB"), "{}", json.out);
}

#[test]
fn the_help_says_what_takes_the_ranks_of_a_job() {
    let help = call(&["--help"]).out.split_whitespace().collect::<Vec<_>>().join(" ");
    let line = help.split(" Ranks: ").nth(1).and_then(|rest| rest.split(". ").next()).unwrap_or_else(|| panic!("{help}"));
    for command in ["advise", "diagnose", "report", "stats", "replay", "verify", "diff"] {
        assert!(line.contains(command), "{line}");
    }
}
