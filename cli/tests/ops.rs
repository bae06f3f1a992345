//! `parkade ops` on scripts that are wrong, huge or absurd: every line is answered in JSON, nothing panics.

use crate::common::{Folder, Run, call, call_with};

/// Runs a script; every line of the answer is an object.
fn answers(script: &[u8], args: &[&str]) -> Vec<serde_json::Value> {
    let args: Vec<&str> = ["ops", "-"].iter().chain(args).copied().collect();
    let Run { code, out, err } = call_with(&args, script);
    assert_eq!((code, err.as_str()), (0, ""));
    out.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

fn refused(run: &Run, text: &str) {
    assert_eq!(run.code, 2, "{}", run.err);
    assert!(run.err.starts_with("parkade: ") && run.err.lines().count() == 1, "{}", run.err);
    assert!(run.err.contains(text), "{} lacks {text:?}", run.err);
}

#[test]
fn a_script_is_answered_line_by_line() {
    let lines = answers(b"# nothing\r\n\r\nalloc a 1000\r\nfree a  # done\r\nsnapshot\r\n", &[]);
    assert_eq!(lines.len(), 3);
    assert_eq!((&lines[0]["i"], &lines[0]["op"], &lines[0]["ok"]), (&0.into(), &"alloc a 1000".into(), &1.into()));
    assert_eq!(lines[2]["snapshot"]["segments"][0]["total"], 2_097_152);
    assert!(answers(b"", &[]).is_empty());
}

#[test]
fn a_digest_stands_for_each_answer() {
    let digests = |script: &[u8]| {
        let Run { code, out, err } = call_with(&["ops", "-", "--digests"], script);
        assert_eq!((code, err.as_str()), (0, ""));
        out.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let one = digests(b"alloc a 1000\n# nothing\nfree a\nsnapshot\n");
    assert_eq!(one.len(), 3);
    assert!(one.iter().all(|digest| digest.len() == 16 && digest.bytes().all(|byte| byte.is_ascii_hexdigit())), "{one:?}");
    let other = digests(b"alloc a 1000\nfree a\nempty_cache\n");
    assert_eq!(one[..2], other[..2]);
    assert_ne!(one[2], other[2]);
}

/// The answers are those of the real allocators of both versions.
#[test]
fn versions_choose_between_equal_blocks_each_in_its_way() {
    let script = b"alloc b 30000000\nalloc c 30000000\nfree b\nfree c\nalloc d 30000000\n";
    let last = |profile| answers(script, &["--addresses", "down", "--profile", profile])[4]["ptr"].clone();
    assert_eq!(last("2.11"), "c1+0", "the lowest address");
    assert_eq!(last("2.15"), "c0+0", "the oldest segment");
}

#[test]
fn newer_settings_belong_to_the_newer_version() {
    let settings = ["--settings", "throw_on_cudamalloc_oom:True", "--capacity", "64MiB", "--profile"];
    let with = |profile| [&settings[..], &[profile]].concat();
    refused(&call_with(&[&["ops", "-"], &with("2.11")[..]].concat(), b""), "Unrecognized key");
    let answer = &answers(b"alloc a 100000000\n", &with("2.15"))[0];
    assert_eq!((&answer["err"], &answer["st"]["num_oom_rejections"]), (&"oom".into(), &1.into()));
    assert!(answer["msg"].as_str().is_some_and(|text| text.ends_with("Requested size: 95.37 MiB")));
}

/// The limit is a fraction of no memory.
#[test]
fn a_fraction_that_is_no_number_is_json_too() {
    let script = b"set_fraction 0.5\nget_fraction\nset_fraction inf\nset_fraction nan\nget_fraction\nconf garbage_collection_threshold:nan\n\
                   snapshot\n";
    let lines = answers(script, &["--capacity", "0"]);
    assert_eq!((&lines[1]["ok"], &lines[1]["fraction"]), (&1.into(), &serde_json::Value::Null));
    assert_eq!((lines.len(), &answers(b"set_fraction 0.5\nget_fraction\n", &[])[1]["fraction"]), (7, &0.5.into()));
}

#[test]
fn garbage_is_answered_too() {
    let mut garbage: Vec<u8> = (0..60_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    garbage.extend(b"\nalloc a\0b 1000\nfree a\0b\n\0\nconf \xff\xfe\nrecord_stream nobody\nfree\nalloc\nalloc x\nalloc y z\n");
    assert!(answers(&garbage, &[]).len() > 8);
}

#[test]
fn absurd_sizes_never_overflow() {
    let sizes = [
        "0",
        "-1",
        "0x10",
        "1152921504606846975",
        "1152921504606846976",
        "4611686018427387904",
        "9223372036854775807",
        "9223372036854775808",
        "18446744073709551103",
        "18446744073709551104",
        "18446744073709551615",
        "18446744073709551616",
        "nonsense",
        "",
    ];
    let mut script = String::new();
    for (n, size) in sizes.iter().enumerate() {
        script += &format!("alloc a{n} {size}\nrawalloc b{n} {size}\nrawalloc c{n} {size} -1\n");
    }
    script += "stats\nsnapshot\nmeminfo\ncache_info\nfree_all\nempty_cache\nstats\n";
    let settings = ["", "roundup_power2_divisions:64,max_split_size_mb:64", "per_process_memory_fraction:0.5"];
    for capacity in ["0", "1B", "8GiB", "18446744073709551615"] {
        for settings in settings {
            for order in ["up", "down"] {
                let args = ["--capacity", capacity, "--settings", settings, "--addresses", order];
                assert_eq!(answers(script.as_bytes(), &args).len(), 3 * sizes.len() + 7);
            }
        }
    }
}

#[test]
fn every_allocation_may_fail() {
    let lines = answers("alloc a 1000\n".repeat(50).as_bytes(), &["--capacity", "0"]);
    assert!(lines.iter().all(|line| line["ok"] == 0 && line["err"] == "oom"));
    assert_eq!(lines[49]["st"]["num_ooms"], 50);
}

#[test]
fn odd_arguments_are_failures_of_their_line() {
    let script = "set_fraction nan\nset_fraction 2\nset_fraction\nhistory on 18446744073709551615\nalloc x 5\ntrace\n\
                  fail_next 18446744073709551615\nexternal 18446744073709551615\nmeminfo\ncapacity 0\nmeminfo\n\
                  conf max_split_size_mb:5\nconf\nbase nobody\nrawfree nobody\nenable 0\nalloc r -1\nenable 1\ncomplete -1\n";
    let lines = answers(script.as_bytes(), &[]);
    assert_eq!(lines.len(), 19);
    assert_eq!(lines[11]["msg"], "CachingAllocator option max_split_size_mb too small, must be >= 20");
}

#[test]
fn a_number_of_a_megabyte_does_not_take_minutes() {
    let script = format!("set_fraction {}{}\n", "1".repeat(500_000), "x".repeat(500_000));
    assert_eq!(answers(script.as_bytes(), &[])[0]["ok"], 0);
}

#[test]
fn what_is_no_script_is_refused() {
    let folder = Folder::new("ops-no-script");
    refused(&call(&["ops", &format!("{}/none", folder.path())]), "No such file or directory");
    refused(&call(&["ops", folder.path()]), "Is a directory");
    refused(&call_with(&["ops", "-"], &vec![b'x'; 10_000_000]), "line 1 of - is longer than 1048576 bytes");
}

#[test]
fn settings_are_refused_in_pytorchs_words() {
    let bogus = call_with(&["ops", "-", "--settings", "bogus:1"], b"alloc a 1\n");
    refused(&bogus, "Unrecognized key 'bogus' in CUDA allocator config.");
    refused(&call_with(&["ops", "-", "--settings", "bo\ngus\x1b:1"], b""), "Unrecognized key");
    let split = call_with(&["ops", "-", "--settings", "max_split_size_mb:5"], b"");
    refused(&split, "CachingAllocator option max_split_size_mb too small, must be >= 20");
    assert!(split.out.is_empty());
}

/// The cost of a line is bounded if pages are created one by one: by their number, not by the size of the request.
#[test]
fn an_absurd_request_for_expandable_memory_is_out_of_memory() {
    let script = b"alloc a 70368744177664\nalloc b 1048577\n";
    let lines = answers(script, &["--capacity", "1152921504606846976", "--settings", "expandable_segments:True"]);
    assert_eq!(lines[0]["err"], "oom");
    assert_eq!(lines[1]["ok"], 1);
}

#[test]
fn a_policy_decides_in_the_place_of_pytorch() {
    let script = b"alloc a 3000000\nalloc b 3000000\nfree a\nconf max_split_size_mb:64\nsnapshot\n";
    let (pytorch, bfc) = (answers(script, &[]), answers(script, &["--policy", "bfc"]));
    let taken = |answers: &[serde_json::Value]| answers[0]["drv"].as_array().expect("calls").last().expect("a call")[2].clone();
    assert_eq!((taken(&pytorch), pytorch[3]["ok"].as_u64()), (20_971_520.into(), Some(1)));
    assert_ne!(taken(&bfc), taken(&pytorch), "{}", bfc[0]);
    assert!(bfc[3]["msg"].as_str().is_some_and(|why| why.contains("which the policy bfc does not have")), "{}", bfc[3]);
    assert_eq!((&bfc[2]["ok"], &bfc[4]["ok"]), (&1.into(), &1.into()));
    let same = |settings: &str, policy: &str| {
        let script = b"alloc a 30000000\nfree a\nalloc b 3000000\nsnapshot\n";
        assert_eq!(answers(script, &["--settings", settings])[0]["ptr"], answers(script, &["--policy", policy])[0]["ptr"]);
    };
    same("max_split_size_mb:20", "pytorch:settings=[max_split_size_mb:20]");
    let run = call_with(&["ops", "-", "--policy", "bfc", "--settings", "max_split_size_mb:64"], b"");
    assert!(run.code == 2 && run.err.contains("--settings"), "{}", run.err);
    refused(&call_with(&["ops", "-", "--policy", "bfx"], b""), "there is no policy \"bfx\"");
}
