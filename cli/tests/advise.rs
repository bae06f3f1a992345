//! `parkade advise`: the answer as table and JSON, and files and arguments that it cannot use.

use crate::common::{Folder, MIB, call, good, reuses_a_part};
use parkade_recording::{DeviceRecording, Recording};

fn json(arguments: &[&str]) -> (i32, serde_json::Value) {
    let run = call(&[&["advise", "--all", "--json"], arguments].concat());
    (run.code, serde_json::from_str(run.out.trim_end()).unwrap_or_else(|_| panic!("one JSON object: {}{}", run.out, run.err)))
}

#[test]
fn the_cure_is_the_last_line() {
    let folder = Folder::new("advise-cure");
    let file = folder.recording("program.pickle", &reuses_a_part());
    let run = call(&["advise", "--all", &file, "--capacity", "140MiB"]);
    assert_eq!((run.code, run.err.as_str()), (0, ""), "{}", run.out);
    let last = run.out.lines().last().expect("a line");
    assert!(run.out.contains("fragmentation: at entry 6, 60.00 MiB is requested"), "{}", run.out);
    let (code, object) = json(&[&file, "--capacity", "140MiB"]);
    assert_eq!((code, &object["verified"], &object["verdict"]), (0, &true.into(), &"fragmentation".into()));
    assert_eq!((&object["capacity_bytes"], &object["options"][0]["fails_at_entry"]), (&(140 * MIB).into(), &6.into()));
    assert_eq!(object["recommendation"]["line"], last);
    let cure = object["recommendation"]["settings"].as_str().expect("settings");
    assert_eq!(last, format!("export PYTORCH_CUDA_ALLOC_CONF={cure}"));
    let replayed = call(&["replay", &file, "--settings", cure, "--limit", "140MiB"]);
    assert_eq!(replayed.code, 0, "{cure} fits: {}", replayed.out);
    let keys = ["settings", "fits", "fails_at_entry", "peak_reserved_bytes", "smallest_capacity_bytes", "retries", "driver_us"];
    assert!(object["options"].as_array().is_some_and(
        |options| options.len() >= 60 && options.iter().all(|option| keys.iter().all(|key| option.get(key).is_some()))
    ));
    let roomy = call(&["advise", "--all", &file, "--capacity", "1GiB"]);
    assert!(roomy.out.ends_with("\nkeep the settings as they are (default settings)\n"), "{}", roomy.out);
}

#[test]
fn what_no_setting_cures_is_said_with_what_is_missing() {
    let folder = Folder::new("advise-short");
    let file = folder.recording("program.pickle", &reuses_a_part());
    let run = call(&["advise", "--all", &file, "--limit", "110MiB"]);
    assert_eq!(run.code, 1, "{}", run.err);
    let first =
        "Capacity: the program holds 120.00 MiB at once, and 110.00 MiB is available, 10.00 MiB too little; no setting helps";
    assert!(run.out.starts_with(first), "{}", run.out);
    assert_eq!(json(&[&file, "--limit", "110MiB"]).1["verdict"], "capacity");
}

/// The answer can be read at a glance: for every recording it has twelve lines of 80 columns and ends with the line to paste.
#[test]
fn the_answer_has_twelve_lines_and_the_line_to_paste_last() {
    let shipped = concat!(env!("CARGO_MANIFEST_DIR"), "/../conformance/recordings");
    for name in ["gpt2_varlen.limit16_gc", "gpt2_varlen.limit12_oom", "resnet50_sweep.limit5_oom", "deep_mlp.default"] {
        let file = format!("{shipped}/{name}.pickle.xz");
        for limit in [&[][..], &["--limit", "12GiB"], &["--limit", "1GiB"]] {
            let run = crate::common::call_at_80_columns(&[&["advise", &file], limit].concat());
            let lines: Vec<&str> = run.out.lines().collect();
            let (last, others) = lines.split_last().expect("lines");
            assert!(lines.len() <= 12 && others.iter().all(|line| line.chars().count() <= 80), "{name}: {}", run.out);
            let (_, object) = json(&[&[&file[..]], limit].concat());
            let recommended = object["recommendation"]["line"].as_str();
            assert!(
                recommended.is_none_or(|line| last == &line || last.starts_with("keep ") || last.starts_with("parkade.enable("))
            );
        }
    }
}

/// A reader of the first lines changes no setting without a reason.
#[test]
fn a_run_in_which_nothing_failed_needs_no_other_setting() {
    let folder = Folder::new("advise-at-ease");
    let file = folder.recording("program.pickle", &reuses_a_part());
    let run = crate::common::call_at_80_columns(&["advise", &file]);
    let lines: Vec<&str> = run.out.lines().collect();
    assert!(
        lines[0].starts_with("Nothing failed, so no setting has to change: the run needs at least 160.00 MiB"),
        "{}",
        run.out
    );
    assert!(lines.iter().any(|line| line.starts_with("less   ")) && lines.len() <= 12, "{}", run.out);
    let before_last = lines[lines.len() - 3..lines.len() - 1].join(" ");
    assert!(before_last.contains("set this only if the run must fit in less than 160.00 MiB"), "{}", run.out);
    // With a limit, the verdict repeats it.
    let run = call(&["advise", &file, "--limit", "1GiB"]);
    assert!(run.out.starts_with("It fits in 1.00 GiB as it is: it needs at least 160.00 MiB"), "{}", run.out);
    let shipped = concat!(env!("CARGO_MANIFEST_DIR"), "/../conformance/recordings/gpt2_varlen.default.pickle.xz");
    let run = call(&["advise", shipped, "--limit", "24GiB"]);
    let said = "It fits in 24.00 GiB as it is: it needs at least 17.04 GiB, and reserved 20.48 GiB because memory was cached\n";
    assert!(run.out.starts_with(said), "{}", run.out);
}

const DIED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../conformance/recordings/stacks/saved_hooks_packing.all_oom.pickle.xz");

#[test]
fn a_run_that_died_has_remedies_with_how_likely_each_is() {
    let (code, object) = json(&[DIED]);
    assert_eq!(code, 3);
    let remedies = object["remedies"].as_array().expect("remedies");
    let kinds: Vec<&str> = remedies.iter().filter_map(|remedy| remedy["kind"].as_str()).collect();
    assert_eq!(kinds, ["policy", "settings", "program"]);
    let likely = |place: usize| remedies[place]["completes_probability"].as_f64().expect("a probability");
    assert!(likely(0) > likely(1) + 0.1 && likely(0) < 1.0 && likely(1) > 0.0, "{} and {}", likely(0), likely(1));
    for remedy in &remedies[..2] {
        let base = |key: &str| remedy["completes_base"][key].as_u64().expect("a number");
        assert!(base("completed") <= base("runs") && base("runs") >= 10, "{remedy}");
    }
    assert_eq!(remedies[0]["line"], "parkade.enable(rescue=True, serial=True)");
    assert_eq!(
        (&remedies[1]["line"], &remedies[1]["completes_base"]["runs"].is_u64()),
        (&object["recommendation"]["line"], &true)
    );
    assert!(remedies[2]["less_bytes"].as_u64().is_some_and(|bytes| bytes > 0) && remedies[2]["completes_base"].is_null());
    assert!(
        remedies[2]["asks"].as_array().is_some_and(|asks| asks.iter().any(|ask| ask.to_string().contains("activations hold")))
    );
    let text = call(&["advise", "--all", DIED]).out;
    assert!(text.lines().last() == remedies[0]["line"].as_str(), "{text}");
    assert!(!text.contains("NCCL"), "the process sees one GPU");
}

#[test]
fn a_file_that_has_errors_alone_is_a_state_alone() {
    let folder = Folder::new("advise-errors-alone");
    let mut recording = reuses_a_part();
    let error = parkade_recording::Entry::new(parkade_recording::Action::Oom, 0, 60 * MIB, 0);
    for device in &mut recording.devices {
        device.trace = vec![error; 2];
    }
    let (_, object) = json(&[&folder.recording("errors.pickle", &recording)]);
    assert_eq!((&object["not_in_file"], &object["recommendation"]), (&"the trace".into(), &serde_json::Value::Null));
}

#[test]
fn a_run_that_fits_needs_no_remedy_and_only_what_is_asked_for_is_tried() {
    let folder = Folder::new("advise-remedies");
    let file = folder.recording("program.pickle", &reuses_a_part());
    assert_eq!(json(&[&file, "--capacity", "1GiB"]).1["remedies"], serde_json::json!([]));
    let of = |line: &[&str]| {
        let (_, object) = json(line);
        let all = object["remedies"].as_array().expect("remedies").clone();
        all.iter().map(|remedy| remedy["kind"].as_str().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(of(&[&file, "--capacity", "140MiB"])[..2], ["settings", "policy"]);
    assert!(!of(&[&file, "--capacity", "140MiB", "--settings", "", "--only"]).contains(&"policy".to_owned()));
}

#[test]
fn only_the_settings_asked_for_and_those_of_the_run() {
    let folder = Folder::new("advise-only");
    let file = folder.recording("program.pickle", &reuses_a_part());
    let (_, object) = json(&[&file, "--settings", "max_split_size_mb:50", "--settings", "", "--only"]);
    let named: Vec<_> = object["options"].as_array().expect("options").iter().map(|option| option["settings"].clone()).collect();
    assert_eq!(named, ["", "max_split_size_mb:50"]);
    assert_eq!(object["capacity_bytes"], serde_json::Value::Null);
}

#[test]
fn a_policy_of_parkade_is_an_option_of_its_own() {
    let folder = Folder::new("advise-policy");
    let file = folder.recording("program.pickle", &reuses_a_part());
    // 140 MiB is too little for PyTorch's defaults; the program holds 120 MiB.
    let asked = [&file[..], "--capacity", "140MiB", "--policy", "pytorch-rescue:reach=free", "--policy", "best-fit-remap"];
    let (code, object) = json(&asked);
    assert_eq!(code, 0);
    let policies = object["policies"].as_array().expect("policies");
    let names: Vec<_> = policies.iter().map(|needs| needs["policy"].clone()).collect();
    assert_eq!(names, ["pytorch-rescue:reach=free", "best-fit-remap"]);
    let smallest = policies[0]["smallest_capacity_bytes"].as_u64().expect("a size");
    assert!((120 * MIB..=128 * MIB).contains(&smallest), "{smallest}");
    assert_eq!(policies[0]["fits"], true);
    let (_, short) = json(&[&file, "--capacity", "100MiB", "--policy", "pytorch-rescue:reach=free"]);
    assert_eq!(
        (&short["policies"][0]["fits"], &short["policies"][0]["smallest_capacity_bytes"]),
        (&false.into(), &smallest.into())
    );
    let shown = call(&[&["advise", "--all"][..], &asked].concat()).out;
    for enabled in ["rescue=\"free\"", "policy=\"best-fit-remap\""] {
        assert!(shown.contains(&format!("with parkade.enable({enabled}) instead of settings: it fits, ")), "{shown}");
    }
    let breaking = call(&["advise", "--all", &file, "--capacity", "140MiB", "--policy", "compaction"]).out;
    assert!(breaking.contains("with parkade.enable(policy=\"compaction\", serial=True) instead of settings"), "{breaking}");
    let unknown = call(&["advise", "--all", &file, "--policy", "compactio"]);
    assert_eq!(unknown.code, 2);
    let similar = "there is no policy \"compactio\": did you mean compaction?";
    assert!(unknown.err.contains(similar), "{}", unknown.err);
}

/// `rmm-pool` serves the requests of this recording in 562 MiB, but not in 574 MiB.
#[test]
fn a_policy_that_fails_in_the_given_memory_does_not_fit_although_less_is_enough() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../conformance/recordings/pools/empties.default.11.pickle.xz");
    let asked = [file, "--capacity", "601882624", "--policy", "rmm-pool"];
    let (_, object) = json(&asked);
    let needs = &object["policies"][0];
    assert_eq!((&needs["fits"], &needs["smallest_capacity_bytes"]), (&false.into(), &(562 * MIB).into()));
    let shown = call(&[&["advise", "--all"][..], &asked].concat()).out;
    assert!(
        shown.contains("instead of settings: it does not fit, although it fits in less memory, needs at least 562.00 MiB"),
        "{shown}"
    );
    let unknown = call(&["advise", "--all", file, "--capacity", "1GiB", "--policy", "zzz"]);
    assert!(unknown.err.contains("there is no policy \"zzz\"; parkade sweep --list lists all"), "{}", unknown.err);
}

#[test]
fn several_devices_get_one_answer_or_one_is_chosen() {
    let folder = Folder::new("advise-devices");
    let mut both = reuses_a_part();
    both.devices.push(DeviceRecording { device: 3, ..good().devices[0].clone() });
    let file = folder.recording("both.pickle", &both);
    let (_, object) = json(&[&file, "--capacity", "140MiB"]);
    assert_eq!(object["options"][0]["devices"].as_array().map(Vec::len), Some(2));
    assert_eq!((&object["verdict"], &object["cause"]["device"]), (&"fragmentation".into(), &0.into()));
    let (_, object) = json(&[&file, "--capacity", "140MiB", "--device", "3"]);
    assert_eq!(object["verdict"], "fits");
    let run = call(&["advise", "--all", &file, "--device", "7"]);
    assert!(run.code == 2 && run.err.contains("nothing about device 7, only about 0, 3"), "{}", run.err);
}

#[test]
fn a_file_without_trace_says_what_was_held() {
    let folder = Folder::new("advise-segments");
    let mut segments = reuses_a_part();
    segments.devices[0].trace.clear();
    let file = folder.recording("segments.pickle", &segments);
    let run = call(&["advise", "--all", &file, "--capacity", "140MiB"]);
    assert_eq!((run.code, json(&[&file, "--capacity", "140MiB"]).1["outcome"].as_str()), (3, Some("unknown")), "{}", run.err);
    assert!(run.out.contains("120.00 MiB in use") && run.out.contains("20.00 MiB of the cache would not"), "{}", run.out);
    let (code, object) = json(&[&file, "--capacity", "100MiB"]);
    assert_eq!(object["outcome"], "does_not_fit");
    assert_eq!((code, &object["verdict"], &object["held"][0]["live_bytes"]), (1, &"capacity".into(), &(120 * MIB).into()));
}

#[test]
fn what_cannot_be_advised_on_is_said_in_one_line() {
    let folder = Folder::new("advise-bad");
    let file = folder.recording("program.pickle", &reuses_a_part());
    let empty = folder.recording("empty.pickle", &Recording::default());
    let nonsense = folder.file("nonsense.pickle", b"nonsense");
    let refused: [(&[&str], &str); 4] = [
        (&[&file, "--settings", "max_split:3"], "Unrecognized key 'max_split' in CUDA allocator config."),
        (&[&empty], "no trace entries and no segments"),
        (&[&nonsense], "nonsense.pickle"),
        (&["missing.pickle"], "cannot be read"),
    ];
    for (arguments, text) in refused {
        let run = call(&[&["advise", "--all"], arguments].concat());
        assert_eq!((run.code, run.out.as_str()), (2, ""), "{}", run.err);
        assert!(run.err.starts_with("parkade: ") && run.err.lines().count() == 1 && run.err.contains(text), "{}", run.err);
        let (code, object) = json(arguments);
        assert!(code == 2 && object["error"].is_string(), "{object}");
    }
    assert_eq!(call(&["advise", "--all", &file, "--limit", "many"]).code, 2);
    let tiny = call(&["advise", "--all", &file, "--capacity", "2MiB", "--settings", "", "--only"]);
    assert!(
        tiny.code == 1 && tiny.out.starts_with("Capacity: ") && tiny.out.contains("; no setting helps"),
        "{}{}",
        tiny.out,
        tiny.err
    );
}

#[test]
fn the_page_gives_the_advice_that_advise_gives() {
    let folder = Folder::new("advise-page");
    let file = format!("{}/../conformance/recordings/gpt2_varlen.limit12_oom.pickle.xz", env!("CARGO_MANIFEST_DIR"));
    let target = format!("{}/page.html", folder.path());
    assert_eq!(call(&["report", &file, "--limit", "12GiB", "-o", &target]).code, 0);
    let page = std::fs::read_to_string(&target).expect("a page");
    let advised = call(&["advise", "--all", &file, "--limit", "12GiB", "--recorded-limit", "12GiB", "--json"]);
    let advised: serde_json::Value = serde_json::from_str(&advised.out).expect("JSON");
    let line = advised["recommendation"]["line"].as_str().expect("a line to paste");
    assert!(page.contains(&format!("<pre>{line}</pre>")), "{line}");
}

/// The range is that of `parkade replay`, and a setting with which a likely run does not fit is a close call.
#[test]
fn what_is_likely_of_a_program_on_several_streams_makes_an_answer_close() {
    let file = format!("{}/../conformance/recordings/prefetch_streams.default.pickle.xz", env!("CARGO_MANIFEST_DIR"));
    let object = |args: &[&str]| -> serde_json::Value {
        let run = call(&[args, &["--json"]].concat());
        serde_json::from_str(&run.out).unwrap_or_else(|error| panic!("{error}: {}", run.err))
    };
    let expandable = "expandable_segments:True";
    for (settings, limit, is_close) in [(expandable, "8GiB", false), (expandable, "5.3GiB", false), ("", "5.3GiB", true)] {
        let asked = ["--settings", settings, "--limit", limit];
        let advised = object(&[&["advise", &file, "--only"], &asked[..]].concat());
        let replayed = object(&[&["replay", &file], &asked[..]].concat());
        let options = advised["options"].as_array().expect("a list");
        let option = options.iter().find(|option| option["settings"] == settings).expect("it was tried");
        let likely = &option["likely"];
        assert_eq!(
            (&likely["least_peak_reserved_bytes"], &likely["most_peak_reserved_bytes"]),
            (&replayed["peak_reserved_bytes_least"], &replayed["peak_reserved_bytes_most"]),
            "{limit}: {option}"
        );
        assert!(replayed["peak_reserved_bytes_are_likely"] == true && option["fits"] == true, "{limit}: {option}");
        assert_eq!(likely["fit"].as_u64() < likely["of"].as_u64(), is_close, "{limit}: {option}");
        assert_eq!(option["close"], is_close, "{limit}: {option}");
    }
}

#[test]
fn a_limit_that_the_recorded_run_exceeded_is_refused() {
    let file = format!("{}/../conformance/recordings/gpt2_varlen.default.pickle.xz", env!("CARGO_MANIFEST_DIR"));
    let run = call(&["advise", &file, "--recorded-limit", "1GiB"]);
    assert_eq!((run.code, run.out.as_str()), (2, ""), "{}", run.err);
    let said = "--recorded-limit 1.00 GiB contradicts the recording, because the run reserved 20.48 GiB";
    assert!(run.err.contains(said), "{}", run.err);
}

/// The verdict is the same sentence in the short answer and in the full one, and comes first.
#[test]
fn the_full_answer_begins_with_the_verdict_too() {
    let folder = Folder::new("advise-verdict");
    let file = folder.recording("program.pickle", &reuses_a_part());
    for limit in ["110MiB", "140MiB", "1GiB"] {
        let first = |all: &[&str]| {
            let run = call(&[&["advise", &file, "--limit", limit], all].concat());
            run.out.lines().next().unwrap_or_default().to_owned()
        };
        assert_eq!(first(&["--all"]), first(&[]), "{limit}");
    }
}

/// With `--only`, the answer names the requested settings and mentions no others.
#[test]
fn an_answer_about_some_settings_speaks_of_no_others() {
    let file = format!("{}/../conformance/recordings/gpt2_varlen.limit12_oom.pickle.xz", env!("CARGO_MANIFEST_DIR"));
    for limit in [&[][..], &["--limit", "14GiB"], &["--limit", "15GiB"]] {
        let settings = call(&[&["advise", &file, "--settings", "max_split_size_mb:32", "--only"], limit].concat()).out;
        let verdict = settings.lines().next().unwrap_or_default();
        assert!(verdict.contains("with max_split_size_mb:32") && !settings.contains("other"), "{settings}");
        let policy = call(&[&["advise", &file, "--policy", "compaction", "--only"], limit].concat()).out;
        assert!(policy.contains("compaction") && !policy.contains("expandable_segments"), "{policy}");
    }
}

/// Settings that fit are replaced only because of a risk: the answer says so, and what to do if the risk does not apply to the
/// program.
#[test]
fn settings_that_are_given_up_for_a_risk_may_be_kept() {
    let file = format!("{}/../conformance/recordings/pools/graph_reset.expandable.1.pickle.xz", env!("CARGO_MANIFEST_DIR"));
    let text = call(&["advise", &file]).out;
    assert!(text.contains("the run's own settings fit too and are replaced only because of a risk: "), "{text}");
    assert!(text.contains("If that cannot happen in this program, keep them\n"), "{text}");
}
