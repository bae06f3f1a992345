//! `parkade replay --policy`: the requests of a recording under one of parkade's policies, in the words and keys of a replay
//! under settings.

use crate::common::{BASE, Folder, MIB, OTHER, call, entry, free, good, pages::shipped, reuses_a_part, segment, unused, used};
use parkade_recording::{Action, DeviceRecording, Recording};
use serde_json::Value;

fn json(arguments: &[&str]) -> (i32, Value) {
    let run = call(&[&["replay", "--json"], arguments].concat());
    (run.code, serde_json::from_str(run.out.trim_end()).unwrap_or_else(|_| panic!("no JSON: {}{}", run.out, run.err)))
}

fn first_line(arguments: &[&str]) -> (i32, String) {
    let run = call(&[&["replay"], arguments].concat());
    (run.code, run.out.lines().next().unwrap_or(&run.err).to_owned())
}

/// Two independent ways to the same numbers: a prediction of PyTorch's allocator, and its policy in a study.
#[test]
fn the_policy_of_pytorch_comes_to_what_its_settings_come_to() {
    let keys = ["outcome", "endings", "fits", "ooms", "fails_at_entry", "peak_allocated_bytes", "peak_reserved_bytes", "retries"];
    let costs = ["driver_calls", "driver_ns", "empty_cache_calls", "recorded", "limit_bytes", "capacity_bytes", "made_by"];
    for (file, memory) in [
        ("deep_mlp.default", &[][..]),
        ("deep_mlp.default", &["--limit", "2650MiB"]),
        ("deep_mlp.default", &["--capacity", "80GiB"]),
        ("gpt2_varlen.limit12_oom", &["--limit", "12GiB"]),
    ] {
        for (policy, settings) in [("pytorch", ""), ("pytorch-expandable", "expandable_segments:True")] {
            if file.contains("oom") && policy != "pytorch" {
                continue;
            }
            let file = shipped(file);
            let (code, under_policy) = json(&[&[&*file, "--policy", policy], memory].concat());
            let (expected, under_settings) = json(&[&[&*file, "--settings", settings], memory].concat());
            assert_eq!(code, expected, "{file} {memory:?}");
            for key in keys.iter().chain(&costs) {
                assert_eq!(under_policy[key], under_settings[key], "{file} {policy} {memory:?} {key}");
            }
        }
    }
}

#[test]
fn a_policy_is_replayed_with_and_without_a_limit() {
    let folder = Folder::new("replay-policy");
    let file = folder.recording("program.pickle", &reuses_a_part());
    // 140 MiB is too little for PyTorch's defaults; the program holds 120 MiB.
    let asked = [&file[..], "--limit", "140MiB", "--policy", "pytorch-rescue:reach=free"];
    let (code, object) = json(&asked);
    assert_eq!((code, &object["outcome"], &object["fits"], &object["ooms"]), (0, &"fits".into(), &true.into(), &0.into()));
    assert_eq!((&object["policy"], &object["settings"]), (&"pytorch-rescue:reach=free".into(), &Value::Null));
    assert_eq!((&object["peak_allocated_bytes"], &object["limit_bytes"]), (&(120 * MIB).into(), &(140 * MIB).into()));
    assert!(object["driver_ns"].as_u64().is_some_and(|cost| cost > 0), "{object}");
    assert_eq!(first_line(&asked), (0, "it fits".to_owned()));
    let table = call(&[&["replay"], &asked[..]].concat()).out;
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(
        lines[..8],
        [
            "it fits",
            "program.pickle",
            "  policy          pytorch-rescue:reach=free",
            "  fits            yes",
            "  oom             0",
            "  peak allocated  120.00 MiB",
            "  peak reserved   120.00 MiB",
            "  retries         1",
        ]
    );
    assert!(lines[8].starts_with("  driver calls    ") && lines[9].starts_with("  driver time     0."), "{table}");
    let (code, said) = first_line(&[&file, "--policy", "best-fit-remap:handle=32MiB"]);
    assert!(code == 0 && said.ends_with("reserved; without --limit or --capacity nothing is refused"), "{code} {said}");
    for size in ["--limit", "--capacity"] {
        let short = [&file[..], "--policy", "pytorch-rescue:reach=free", size, "100MiB"];
        let (code, object) = json(&short);
        assert_eq!((code, &object["outcome"], &object["fails_at_entry"]), (1, &"does_not_fit".into(), &6.into()), "{object}");
        assert_eq!((&object["fits"], &object["ooms"], &object["limit_bytes"]), (&false.into(), &1.into(), &(100 * MIB).into()));
        assert_eq!(first_line(&short), (1, "it does not fit: it runs out of memory at entry 6".to_owned()));
    }
    let area = call(&["replay", &file, "--policy", "bfc:kind=one-region"]).out;
    assert!(area.contains("the policy reserves a share of all memory in advance"), "{area}");
    let breaking = call(&["replay", &file, "--policy", "compaction"]).out;
    assert!(breaking.contains("parkade.enable(policy=\"compaction\", serial=True) runs a program on this policy"), "{breaking}");
}

/// The request that failed is repeated too, and the rest of the run is unknown.
#[test]
fn a_run_that_died_gets_past_its_error_at_best() {
    let file = shipped("gpt2_varlen.limit12_oom");
    let past = "it gets past entry 7268, where the run died; the rest is not in the file, and parkade does not estimate it \
                under a policy";
    for memory in [&["--limit", "13GiB"][..], &["--capacity", "13GiB"], &[]] {
        let asked = [&[&*file, "--policy", "compaction"], memory].concat();
        let (code, object) = json(&asked);
        assert_eq!((code, &object["outcome"], &object["fits"]), (3, &"gets_past".into(), &false.into()), "{object}");
        let assumed = if memory.is_empty() { (12_u64 << 30).into() } else { Value::Null };
        assert_eq!((&object["endings"][0], &object["assumed_limit_bytes"]), (&"died".into(), &assumed));
        assert_eq!((first_line(&asked), object["ooms"].as_u64()), ((3, past.to_owned()), Some(0)));
    }
    // The tensors alone are more than that at the error, but fit before it: the error's own request is what is refused.
    let (code, object) = json(&[&file, "--policy", "compaction", "--limit", "10.5GiB"]);
    assert_eq!((code, &object["outcome"], &object["fails_at_entry"]), (1, &"does_not_fit".into(), &7268.into()), "{object}");
    // If the memory is only assumed, the assumed limit may be too small.
    let (code, said) = first_line(&[&file, "--policy", "pytorch"]);
    let unsure =
        "not known: in 12.00 GiB it runs out of memory at entry 7268, but the limit may have been higher (--limit sets it)";
    assert_eq!((code, said.as_str()), (3, unsure));
}

#[test]
fn a_run_that_lost_its_beginning_hides_what_came_before() {
    let folder = Folder::new("replay-policy-lost");
    let mut run = good();
    run.devices[0].trace = free(BASE, 11 * MIB).to_vec();
    run.devices[0].trace.push(entry(Action::Alloc, BASE, 11 * MIB));
    run.devices[0].segments = vec![segment(vec![used(BASE, 11 * MIB), used(BASE + 11 * MIB, 11 * MIB)])];
    let asked = |name: &str, run: &Recording| {
        let file = folder.recording(name, run);
        let asked = [&file[..], "--policy", "pytorch-rescue:reach=free", "--limit", "40MiB"];
        let (code, object) = json(&asked);
        assert_eq!((code, &object["recorded"]["lost_beginning"]["blocks"]), (first_line(&asked).0, &2.into()), "{object}");
        first_line(&asked)
    };
    assert_eq!(asked("run.pickle", &run), (0, "judging by what is in the file, it fits".to_owned()));
    run.devices[0].segments.push(segment(vec![unused(OTHER, 60 * MIB)]));
    let hidden = "not known: what is in the file fits, but what came before its first entry needed more than is available";
    assert_eq!(asked("more-before.pickle", &run), (3, hidden.to_owned()));
}

#[test]
fn devices_and_ranks_are_told_apart() {
    let folder = Folder::new("replay-policy-devices");
    let mut both = reuses_a_part();
    both.devices.push(DeviceRecording { device: 3, ..good().devices[0].clone() });
    let file = folder.recording("both.pickle", &both);
    let asked = [&file[..], "--policy", "compaction", "--limit", "100MiB"];
    let (code, object) = json(&asked);
    assert_eq!((code, &object["fits"], &object["fails_at_entry"]), (1, &false.into(), &6.into()), "{object}");
    assert_eq!((&object["devices"][0]["fits"], &object["devices"][1]["fits"]), (&false.into(), &true.into()));
    let run = call(&[&["replay"], &asked[..]].concat());
    assert!(run.out.contains("\n3       compaction   yes "), "{}", run.out);
    let verdict = "it does not fit: device 0 runs out of memory first, at entry 6\nboth.pickle\ndevice ";
    assert!(run.out.starts_with(verdict) && run.out.contains("\n0 "), "{}", run.out);
    let ranks = ["rank0.pickle", "rank1.pickle"].map(|name| folder.recording(name, &reuses_a_part()));
    let run = call(&["replay", "--json", &ranks[0], &ranks[1], "--policy", "compaction", "--limit", "100MiB"]);
    let lines: Vec<Value> = run.out.lines().map(|line| serde_json::from_str(line).expect("an object")).collect();
    let compared = lines.last().expect("a line");
    assert_eq!((run.code, lines.len(), &lines[1]["policy"]), (1, 3, &"compaction".into()), "{}", run.out);
    assert_eq!((&compared["ranks"][0]["fails_at_entry"], &compared["ranks"][1]["ooms"]), (&6.into(), &1.into()), "{compared}");
}

#[test]
fn what_a_policy_cannot_take_is_said_in_one_line() {
    let folder = Folder::new("replay-policy-bad");
    let file = folder.recording("program.pickle", &reuses_a_part());
    let similar = "there is no policy \"compation\": did you mean compaction";
    let option = "there is no policy \"best-fit-remap:handle=3MiB\": handle=3MiB is not possible; handle is one of 2MiB, ";
    let missing = "there is no policy \"zzz\"; parkade sweep --list lists all";
    let refused: [(&[&str], &str); 5] = [
        (&["--policy", "compation"], similar),
        (&["--policy", "best-fit-remap:handle=3MiB"], option),
        (&["--policy", "zzz"], missing),
        (&["--policy", "best-fit-remap", "--settings", ""], "--settings cannot be combined with the policy best-fit-remap"),
        (&["--policy", "best-fit-remap", "--profile", "2.11"], "--profile cannot be combined with the policy best-fit-remap"),
    ];
    for (arguments, text) in refused {
        let run = call(&[&["replay", &file], arguments].concat());
        assert_eq!((run.code, run.out.as_str()), (2, ""), "{}", run.err);
        assert!(run.err.starts_with("parkade: ") && run.err.lines().count() == 1 && run.err.contains(text), "{}", run.err);
        let (code, object) = json(&[&[&*file], arguments].concat());
        assert!(code == 2 && object["error"].is_string(), "{object}");
    }
    assert!(call(&["replay", "--help"]).out.contains("parkade replay snapshot.pickle --policy compaction --limit 16GiB"));
}
