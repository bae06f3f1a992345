//! Snapshots of programs that ran on parkade under a policy of its own: their requests are read, and decisions that PyTorch did
//! not make are not attributed to PyTorch. The two files are from an H100; their stacks were taken out.

use crate::common::{Folder, Run, call, pages::shipped};

const POLICY: &str = "the trace maps memory although expandable_segments is off: the settings changed, or a different \
                      allocator made the decisions, such as a parkade policy";

fn files() -> [String; 2] {
    ["streams", "compile_reduce_overhead"].map(|name| shipped(&format!("policies/{name}.compaction")))
}

fn words(run: &Run) -> String {
    format!("{}{}", run.out, run.err).split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Memory that is mapped in one go later belongs to two streams, or partly to a private pool; the trace does not show which.
#[test]
fn memory_that_changed_hands_is_read_and_another_allocator_named_as_a_cause() {
    let folder = Folder::new("memory-that-changed-hands");
    for file in files() {
        // The figures of stats would be PyTorch's: it says so, and ends with 1.
        for (command, code) in [("verify", 1), ("stats", 1), ("diagnose", 0), ("advise", 0)] {
            let run = call(&[command, &file]);
            assert!(run.code == code && words(&run).contains(POLICY), "{command} {file}: {} {}", run.code, words(&run));
        }
        let run = call(&["report", &file, "-o", &format!("{}/page.html", folder.path()), "--force"]);
        assert_eq!(run.code, 0, "report {file}: {}{}", run.out, run.err);
    }
}

/// What the core decides and the recording does not have was compared too.
#[test]
fn no_more_decisions_differ_than_were_compared() {
    for file in files() {
        for command in ["verify", "advise"] {
            let run = call(&[command, "--json", &file]);
            let object: serde_json::Value = serde_json::from_str(&run.out).unwrap_or_else(|error| panic!("{error}: {}", run.err));
            let of = |key: &str| {
                let sum = |devices: &Vec<serde_json::Value>| devices.iter().filter_map(|device| device[key].as_u64()).sum();
                object[key].as_u64().or_else(|| object["devices"].as_array().map(sum)).expect("a number")
            };
            let (differ, compared) = (of("mismatches"), of("decisions"));
            assert!(0 < differ && differ <= compared, "{command} {file}: {differ} of {compared}");
        }
    }
}

/// The program's captures empty the cache (`torch.cuda.graph` does); what they release is not attributed to the requests.
#[test]
fn the_load_with_pools_of_a_program_under_a_policy_is_found() {
    let [_, file] = files();
    let run = call(&["sweep", "--all", "-w", &file, "-p", "pytorch-expandable,compaction"]);
    assert!(run.code == 0 && words(&run).contains("compile_reduce_overhead.compaction 1.125 1.094 1.069"), "{}", words(&run));
}

/// Nor is it said if the caller's settings are wrong.
#[test]
fn pytorch_is_not_taken_for_another_allocator() {
    let expandable = shipped("deep_mlp.expandable");
    for arguments in [&["verify", &expandable][..], &["verify", "--settings", "", &expandable]] {
        let run = call(arguments);
        assert_eq!(run.code, i32::from(arguments.len() > 2), "{arguments:?}: {}", words(&run));
        assert!(!words(&run).contains("another allocator"), "{arguments:?}: {}", words(&run));
    }
}

/// A name of a policy means the same wherever one is given, and a wrong one has the same answer.
#[test]
fn every_command_that_takes_a_policy_suggests_a_similar_one() {
    let [_, file] = files();
    let wrong: [(&str, &str); 6] = [
        ("compation", ": did you mean compaction?"),
        ("pytorch-recsue:reach=free", ": did you mean pytorch-rescue or pytorch or pytorch-expandable?"),
        ("compaction:handle=32MiB", ": compaction has no parameter \"handle\"; it has first, most"),
        ("breaking-handles", ": it is called compaction"),
        ("first-fit", ": it is called best-fit-remap:fit=first"),
        ("zzz", "; parkade sweep --list lists all"),
    ];
    let commands: [&[&str]; 5] = [
        &["advise", &file, "--policy"],
        &["replay", &file, "--policy"],
        &["sweep", "--policies"],
        &["sweep", "--largest-batch", "--policies"],
        &["conform", "--policy"],
    ];
    for command in commands {
        for (name, answer) in wrong {
            let run = call(&[command, &[name]].concat());
            let whole = format!("there is no policy {name:?}{answer}\n");
            assert!(
                run.code == 2 && run.out.is_empty() && run.err.contains(&whole),
                "{command:?} {name}: {} {}",
                run.code,
                run.err
            );
        }
        let help = words(&call(&[command[0], "--help"]));
        let is_named = |name: &str| help.contains(parkade_policies::base(name));
        // `advise` names one as an example.
        assert!(parkade_policies::BESIDE.iter().all(|policy| is_named(&policy.name)) || command[0] == "advise", "{help}");
    }
}
