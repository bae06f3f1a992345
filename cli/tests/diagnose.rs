//! `parkade diagnose`: what people and programs read, messages, exit codes, bad input.

use crate::common::*;
use parkade_recording::{Action, DeviceRecording, Recording, Segment};
use serde_json::Value;

/// The log of the documents' scenario C4.
const LOG: &str = "step 7\nOutOfMemoryError: CUDA out of memory. Tried to allocate 4.88 GiB (GPU 2; 39.59\nGiB total capacity; \
                   28.60 GiB already allocated; 3.92 GiB free; 33.95 GiB\nreserved in total by PyTorch). If reserved";

/// 40 MiB in two halves with 4 MiB live in each; 30 MiB does not fit under a limit of 60 MiB.
fn failing() -> Recording {
    let (second, mib) = (BASE + (1 << 30), MIB);
    let mut trace = Vec::new();
    for base in [BASE, second] {
        trace.extend([
            entry(Action::SegmentAlloc, base, 20 * mib),
            entry(Action::Alloc, base, 8 * mib),
            entry(Action::Alloc, base + 8 * mib, 4 * mib),
            entry(Action::Alloc, base + 12 * mib, 8 * mib),
        ]);
    }
    for base in [BASE, second] {
        trace.extend(free(base, 8 * mib));
        trace.extend(free(base + 12 * mib, 8 * mib));
    }
    trace.push(entry(Action::Oom, 1 << 36, 30 * mib));
    let halves = [BASE, second]
        .map(|base| segment(vec![unused(base, 8 * mib), used(base + 8 * mib, 4 * mib), unused(base + 12 * mib, 8 * mib)]));
    recording(trace, halves.to_vec())
}

fn json(arguments: &[&str]) -> (i32, Value) {
    let run = call(&[&["diagnose", "--json"], arguments].concat());
    (run.code, serde_json::from_str(run.out.trim_end()).unwrap_or_else(|_| panic!("no JSON: {}{}", run.out, run.err)))
}

#[test]
fn a_person_reads_the_cause_first() {
    let folder = Folder::new("diagnose-person");
    let file = folder.recording("failing.pickle", &failing());
    let output = parkade(&["diagnose", &file, "--limit", "60MiB"]).env("COLUMNS", "90").output();
    let run = Run::from(output.expect("the binary runs"));
    assert_eq!((run.code, run.err.as_str()), (0, ""));
    let lines: Vec<&str> = run.out.lines().collect();
    assert_eq!(
        lines[..15],
        [
            "fragmentation: 30.00 MiB requested; 32.00 MiB reserved but free, the largest hole",
            "8.00 MiB, and 20.00 MiB more could be reserved",
            "failing.pickle: out of memory at entry 16 of 17",
            "",
            "  question                answer  because",
            "  too little capacity?    no      8.00 MiB live plus 30.00 MiB requested is 38.00 MiB; the",
            "                                  limit is 60.00 MiB, as given",
            "  fragmentation?          yes     40.00 MiB reserved - 8.00 MiB allocated = 32.00 MiB",
            "                                  (80.0 % of reserved) in 4 holes, enough in total; the",
            "                                  largest hole is 8.00 MiB; num_alloc_retries is 1",
            "  do settings help?       yes     to see which one, and what it costs, run the command",
            "                                  below",
            "  does empty_cache help?  no      no whole segment or page was free: the allocator tried",
            "                                  before giving up",
            "",
        ]
    );
    assert_eq!(lines.last(), Some(&format!("parkade advise {file} --limit 60MiB").as_str()));
    // What the error shows need not be given; if nothing failed, it must be.
    let last = |file: &str| call(&["diagnose", file]).out.lines().last().map(str::to_owned);
    assert_eq!(last(&file), Some(format!("parkade advise {file}")));
    let whole = folder.recording("whole.pickle", &good());
    assert_eq!(last(&whole), Some(format!("parkade advise {whole} --capacity SIZE")));
    for text in [
        "where the 40.00 MiB of reserved memory is (2 segments)\n   8.00 MiB  live, in 2 blocks\n",
        "  32.00 MiB  too small (4 holes, the largest 8.00 MiB)\n",
        "  4.00 MiB  alone pins a segment of 20.00 MiB; allocated at entry 2, 14 entries ago\n",
        "  at entry 11 (5 entries earlier): since then reserved - allocated has stayed at or above\n  16.00 MiB, half its",
        "  exact: all ",
    ] {
        assert!(run.out.contains(text), "{text:?} is not in\n{}", run.out);
    }
}

#[test]
fn a_program_reads_the_same() {
    let folder = Folder::new("diagnose-json");
    let file = folder.recording("failing.pickle", &failing());
    let (code, object) = json(&[&file, "--limit", "60MiB"]);
    let device = &object["devices"][0];
    assert_eq!((code, &device["verdict"], &device["entry"]), (0, &"fragmentation".into(), &16.into()));
    let heap = &device["heap"];
    let bytes = |key: &str| heap[key].as_u64().expect("a number");
    let stranded: u64 = heap["stranded"].as_array().expect("a list").iter().filter_map(|strand| strand["bytes"].as_u64()).sum();
    assert_eq!(bytes("requested_bytes") + bytes("rounding_bytes") + stranded, bytes("reserved_bytes"));
    assert_eq!((bytes("reserved_bytes"), stranded), (40 * MIB, 32 * MIB));
    let applies = |place: usize| device["steps"][place]["applies"].as_str().expect("a word");
    assert_eq!([0, 1, 2, 3].map(applies), ["no", "yes", "yes", "no"]);
    assert_eq!((&device["fences"][0]["entry"], &device["fences"][0]["age_entries"]), (&2.into(), &14.into()));
    assert_eq!((&device["onset"]["entry"], &device["exactness"]["mismatches"]), (&11.into(), &0.into()));
    // Without a limit: more than was reserved, less than that and the segment that was refused.
    let (_, inferred) = json(&[&file]);
    let limit = &inferred["devices"][0]["limit"];
    assert_eq!((&limit["at_least_bytes"], &limit["below_bytes"]), (&(40 * MIB).into(), &(70 * MIB).into()));
    let (_, tight) = json(&[&file, "--capacity", "37MiB"]);
    let limit = &tight["devices"][0]["limit"];
    assert_eq!((&limit["known"], &limit["contradicted_by"]), (&"given".into(), &"40.00 MiB was reserved at entry 5".into()));
    let (_, wide) = json(&[&file, "--limit", "70MiB"]);
    let objection = "a request refused at entry 16 would have brought reserved memory to 70.00 MiB";
    assert_eq!(wide["devices"][0]["limit"]["contradicted_by"], objection);
    let finding = wide["devices"][0]["steps"][0]["finding"].as_str().expect("a text");
    assert!(finding.ends_with(&format!("the limit is 70.00 MiB, as given; the file contradicts this: {objection}")), "{finding}");
    assert!(object["devices"][0]["limit"]["contradicted_by"].is_null(), "{object}");
}

#[test]
fn a_message_is_enough_for_a_first_answer() {
    for run in [call(&["diagnose", "--message", LOG]), call_with(&["diagnose", "--message", "-"], LOG.as_bytes())] {
        assert_eq!((run.code, run.err.as_str()), (0, ""));
        let first = "fragmentation: 5.35 GiB was reserved but unallocated, enough for the 4.88 GiB request, but no free block was \
                     large enough, or it belonged to other streams\nan out-of-memory message from device 2\n\n  \
                     question                answer  because\n  too little capacity?    no      28.60 GiB";
        assert!(run.out.starts_with(first), "{}", run.out);
        assert!(run.out.contains("33.95 GiB reserved - 28.60 GiB allocated = 5.35 GiB, enough for the request"), "{}", run.out);
        for call in ["_record_memory_history(", "_dump_snapshot("] {
            assert!(run.out.contains(call), "{call} is not in\n{}", run.out);
        }
        assert!(run.out.contains("reserved - allocated is known to within 10.24 MiB"), "{}", run.out);
        assert!(run.out.ends_with("\nexport PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n"), "{}", run.out);
    }
    let (code, object) = json(&["--message", LOG]);
    assert_eq!((code, &object["verdict"], &object["unallocated_suffices"]), (0, &"fragmentation".into(), &"yes".into()));
    // Others hold no more than the driver does.
    let edge = LOG.replace("28.60", "30.72").replace("33.95", "35.60");
    let (_, object) = json(&["--message", &edge.replace("4.88", "1.50")]);
    assert_eq!((&object["verdict"], &object["unallocated_suffices"]), (&"fragmentation".into(), &"yes".into()));
    let (code, object) = json(&["--message", &edge.replace("30.72", "34.30").replace("35.60", "39.18").replace("3.92", "0.00")]);
    assert_eq!((code, &object["verdict"], &object["unallocated_suffices"]), (3, &"undecided".into(), &"last_digit".into()));
    assert!(object["headline"].as_str().is_some_and(|text| text.contains("depends on the last digit")), "{object}");
}

/// A message of rank `rank`, with this many of 24 GiB allocated.
fn of_rank(rank: u32, allocated: &str) -> String {
    format!(
        "[rank{rank}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU {rank} has a total capacity of 24.00 \
         GiB of which 0.25 GiB is free. Of the allocated memory {allocated} GiB is allocated by PyTorch, and 0.75 GiB is reserved by \
         PyTorch but unallocated.\n"
    )
}

#[test]
fn the_messages_of_all_ranks_are_told_and_the_first_failure_is_explained() {
    let (three, one) = (of_rank(3, "22.00"), of_rank(1, "12.50"));
    let timed = format!("step 1\n2024-05-01 12:00:02 {three}2024-05-01 12:00:01 {one}2024-05-01 12:00:03 {three}");
    let run = call_with(&["diagnose", "--message", "-"], timed.as_bytes());
    assert!(run.code == 0 && run.out.starts_with("others hold it: about 10.01 GiB of "), "{}{}", run.out, run.err);
    let second = "\n2 different out-of-memory messages from 2 ranks; rank 1 failed first, at 2024-05-01 12:00:01, judging by \
                  the times of the lines\n\
                  explained: line 3 from device 1, rank 1\n\n";
    for text in ["3       3     2      2  2.00 GiB  22.00 GiB", second, "12.50 GiB allocated plus"] {
        assert!(run.out.contains(text), "{text:?} is not in\n{}", run.out);
    }
    let (code, object) = json(&["--message", &timed]);
    assert_eq!((code, &object["rank"], &object["device"], &object["line"]), (0, &1.into(), &1.into(), &3.into()));
    assert_eq!((&object["first_failure"]["rank"], &object["first_failure"]["told_by"]), (&1.into(), &"times".into()));
    let row = |place: usize| {
        let message = &object["messages"][place];
        ["rank", "line", "times", "explained", "verdict"].map(|key| message[key].clone())
    };
    let expected: [Value; 5] = [3.into(), 2.into(), 2.into(), false.into(), "capacity".into()];
    assert_eq!((row(0), object["messages"].as_array().map(Vec::len)), (expected, Some(2)));
    // Without times the first in the log is explained, and the text says that the order is not known.
    let text = format!("{three}{one}");
    let run = call(&["diagnose", "--message", &text]).out;
    assert!(run.contains("which came first is unknown") && run.contains("\nexplained: line 1 from device 3, rank 3\n"), "{run}");
    assert!(json(&["--message", &text]).1["first_failure"].is_null());
    let run = call(&["diagnose", "--message", &three]).out;
    assert!(run.starts_with("capacity: ") && run.contains("\nan out-of-memory message from device 3, rank 3\n"), "{run}");
}

/// A message cut before its first figure is PyTorch's all the same; one that names private pools without saying how large they are is
/// capacity only if these are small.
#[test]
fn what_a_cut_leaves_open_is_said() {
    for cut in ["Tried to", "Tried to allocate 2.0"] {
        let (code, object) = json(&["--message", &format!("torch.OutOfMemoryError: CUDA out of memory. {cut}")]);
        assert_eq!((code, &object["complete"], &object["verdict"]), (3, &false.into(), &"undecided".into()), "{object}");
    }
    let log = "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 24.00 GiB of \
               which 1.00 GiB is free. Process 7 has 23.00 GiB memory in use. Of the allocated memory 19.00 GiB is allocated by PyTorch, \
               and 3.50 GiB is reserved by PyTorch but unallocated.\n[rank6]: torch.OutOfMemoryError: CUDA out of memory. Tried to \
               allocate 2.0\n[rank8]: torch.OutOfMemoryError: CUDA out of memory. Tried to\n[rank9]: XlaRuntimeError: \
               RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.";
    let (code, object) = json(&["--message", log]);
    let ranks: Vec<_> = object["messages"].as_array().expect("messages").iter().map(|one| one["rank"].as_u64()).collect();
    assert_eq!((code, ranks), (0, vec![Some(3), Some(6), Some(8)]), "{object}");
    assert_eq!(object["other_frameworks"][0]["rank"], 9, "{object}");
    let run = call(&["diagnose", "--message", log]);
    assert!(
        run.out.contains("undecided (cut)") && run.out.contains("message from JAX (XLA), which parkade does not explain"),
        "{}",
        run.out
    );
    let pools = "CUDA out of memory. Tried to allocate 8.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 6.00 GiB is free. 72.00 \
                 GiB allowed; Of the allocated memory 70.00 GiB is allocated by PyTorch, with";
    let (code, object) = json(&["--message", pools]);
    let headline = object["headline"].as_str().expect("words");
    assert!(code == 3 && headline.starts_with("capacity, unless private pools keep at least 6.00 GiB"), "{headline}");
}

#[test]
fn of_a_message_that_is_cut_is_told_what_is_there_and_what_is_missing() {
    let cut = |words: &str| &LOG[..LOG.find(words).expect("words") + words.len()];
    let run = call(&["diagnose", "--message", cut("28.60 GiB")]);
    assert_eq!((run.code, run.err.as_str()), (3, ""));
    assert!(
        run.out.starts_with("fragmentation or capacity: ")
            && run.out.lines().nth(1) == Some("an out-of-memory message from device 2, which is cut"),
        "{}",
        run.out
    );
    for text in [
        "does not show which, but the device's free memory and PyTorch's reserved memory would\n",
        "28.60 GiB live plus 4.88 GiB requested is 33.48 GiB; the device has 39.59 GiB\n",
        "  missing: the device's free memory and PyTorch's reserved memory\n",
    ] {
        assert!(run.out.contains(text), "{text:?} is not in\n{}", run.out);
    }
    let (code, object) = json(&["--message", cut("28.60 GiB")]);
    assert_eq!((code, &object["verdict"], &object["complete"]), (3, &"undecided".into(), &false.into()));
    assert_eq!((&object["free"], &object["allocated"]["bytes"]), (&Value::Null, &30_709_016_166_u64.into()));
    assert_eq!(object["missing"], serde_json::json!(["the device's free memory", "PyTorch's reserved memory"]));
    // What is left is enough.
    let (code, object) = json(&["--message", &cut("28.60 GiB").replace("28.60", "38.60")]);
    assert_eq!((code, &object["verdict"], &object["missing"][1]), (0, &"capacity".into(), &"PyTorch's reserved memory".into()));
    // The beginning is missing.
    let (code, object) = json(&["--message", &LOG[LOG.find("capacity;").expect("words")..]]);
    assert_eq!((code, &object["device"], &object["unallocated"]["bytes"]), (3, &Value::Null, &5_744_518_759_u64.into()));
}

#[test]
fn a_message_of_private_pools_names_them() {
    let text = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 21.00 GiB of which 0 bytes is free. \
                Including non-PyTorch memory, this process has 21.00 GiB memory in use. Of the allocated memory 20.00 GiB is \
                allocated by PyTorch, with 15.00 GiB allocated in private pools (e.g., CUDA Graphs), and 500.00 MiB is reserved by \
                PyTorch but unallocated.";
    let (code, object) = json(&["--message", text]);
    assert_eq!((code, &object["verdict"], &object["live"]["bytes"]), (0, &"fragmentation".into(), &(5_u64 << 30).into()));
    let applies = |place: usize| object["steps"][place]["applies"].as_str().expect("a word");
    assert_eq!([0, 1, 2, 3].map(applies), ["no", "yes", "no", "no"]);
    let finding = |place: usize| object["steps"][place]["finding"].as_str().expect("a text");
    assert!(finding(0).starts_with(
        "5.00 GiB live (20.00 GiB allocated less 15.00 GiB in private pools) plus 2.00 GiB requested is \
                                7.00"
    ));
    assert!(finding(1).contains("= 15.49 GiB, of which private pools keep 15.00 GiB; the other 500.00 MiB is less"), "{object}");
    assert!(finding(3).contains("of the pools it may empty"), "{object}");
    let headline = call(&["diagnose", "--message", text]).out;
    assert!(headline.starts_with("private pools: 7.00 GiB needed at once, 20.49 GiB available, but 15.00 GiB"), "{headline}");
}

/// A message that says what this process uses leaves nothing of it to other processes.
#[test]
fn memory_of_this_process_is_not_attributed_to_others() {
    let message = |used: &str, free: &str| {
        format!(
            "CUDA out of memory. Tried to allocate 8.00 GiB. GPU 0 has a total capacity of 24.00 GiB of which {free} GiB is free. \
             Including non-PyTorch memory, this process has {used} GiB memory in use. Of the allocated memory 12.00 GiB is allocated \
             by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated."
        )
    };
    let alone = call(&["diagnose", "--message", &message("23.00", "1.00")]).out;
    assert!(
        alone.starts_with(
            "this process holds it outside PyTorch's allocator: 10.00 GiB of the device's 24.00 GiB; without that, the 8.00 GiB"
        ) && alone.contains(
            "of the device's 24.00 GiB, this process used 23.00 GiB: 13.00 GiB reserved by PyTorch's allocator, and 10.00 GiB"
        ) && alone.contains("; other processes used nothing, to within rounding\n"),
        "{alone}"
    );
    let shared = call(&["diagnose", "--message", &message("13.50", "1.00")]).out;
    assert!(shared.starts_with("others hold it: ") && shared.contains("; other processes used 9.50 GiB\n"), "{shared}");
    let of_no_one = call(&["diagnose", "--message", &of_rank(0, "12.00")]).out;
    assert!(of_no_one.contains("it was held by other processes, by this process outside the allocator"), "{of_no_one}");
}

#[test]
fn a_message_of_a_device_with_room_says_that_something_else_refused() {
    let text = "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 39.59 GiB total capacity; 19.90 GiB already allocated; \
                15.92 GiB free; 20.00 GiB reserved in total by PyTorch)";
    let (code, object) = json(&["--message", text]);
    assert_eq!((code, &object["verdict"], &object["device_had_room"]), (0, &"device_had_room".into(), &"yes".into()));
    let headline = object["headline"].as_str().expect("a text");
    assert!(
        headline.starts_with("the device had room: 15.92 GiB was free for the 20.00 MiB request, so something else"),
        "{headline}"
    );
    // No step contradicts the headline.
    let applies = [0, 1, 2].map(|place: usize| object["steps"][place]["applies"].clone());
    assert_eq!(applies, ["no", "no", "no"]);
}

#[test]
fn several_devices_and_files_without_a_trace_are_diagnosed() {
    let folder = Folder::new("diagnose-devices");
    let mut both = failing();
    both.devices.push(DeviceRecording { device: 3, trace: Vec::new(), ..good().devices[0].clone() });
    let file = folder.recording("both.pickle", &both);
    let (code, object) = json(&[&file]);
    let verdict = |place: usize| (object["devices"][place]["device"].clone(), object["devices"][place]["verdict"].clone());
    assert_eq!((code, verdict(0)), (0, (0.into(), "fragmentation".into())));
    assert_eq!(verdict(1), (3.into(), "no_failure".into()));
    let run = call(&["diagnose", &file, "--device", "3"]);
    assert!(
        run.out.lines().nth(1) == Some("both.pickle, device 3: the file has no history, only the heap at the end"),
        "{}",
        run.out
    );
    assert!(run.out.contains("17.00 MiB  holes beside blocks in use, in the large pool"), "{}", run.out);
    assert!(run.out.contains("not in the file: the history"), "{}", run.out);
}

/// PyTorch writes that a snapshot was taken into the trace of every device, even of those that the program did not use.
#[test]
fn devices_of_which_nothing_is_told_are_left_out() {
    let folder = Folder::new("diagnose-unused");
    let unused = |device| DeviceRecording { device, trace: vec![entry(Action::Snapshot, 0, 0)], ..DeviceRecording::default() };
    let mut recording = failing();
    recording.devices.extend([unused(1), unused(2)]);
    let file = folder.recording("unused.pickle", &recording);
    for command in ["diagnose", "report", "advise"] {
        let text = call(&[command, &file]).out;
        assert!(!text.is_empty() && !text.contains("device 1") && !text.contains("device 2"), "{command}: {text}");
    }
    let (_, object) = json(&[&file, "--entry", "10"]);
    assert_eq!(object["devices"].as_array().map(Vec::len), Some(1), "the entry is that of the only device: {object}");
    let nothing = folder.recording("nothing.pickle", &Recording { devices: vec![unused(0), unused(1)], ..failing() });
    let text = call(&["diagnose", &nothing]).out;
    assert!(text.contains("device 0") && text.contains("device 1"), "{text}");
}

/// If nothing failed, the question is why more is reserved than allocated; a request that is tiny in comparison does not
/// explain it.
#[test]
fn without_a_failure_the_question_is_why_reserved_is_above_allocated() {
    let folder = Folder::new("diagnose-tiny");
    let (large, second, asked) = (150 * MIB, BASE + (1 << 30), MIB / 4);
    let mut trace = vec![entry(Action::SegmentAlloc, BASE, large), entry(Action::Alloc, BASE, large)];
    trace.extend(free(BASE, large));
    trace.extend([entry(Action::SegmentAlloc, second, 2 * MIB), entry(Action::Alloc, second, asked)]);
    let segments =
        vec![segment(vec![unused(BASE, large)]), segment(vec![used(second, asked), unused(second + asked, 2 * MIB - asked)])];
    let file = folder.recording("tiny.pickle", &recording(trace, segments));
    let (code, object) = json(&[&file]);
    let device = &object["devices"][0];
    assert_eq!((code, &device["moment"], &device["entry"]), (0, &"peak_reserved".into(), &5.into()));
    assert_eq!((&device["question"], &device["verdict"]), (&"why_reserved_above_allocated".into(), &"no_failure".into()));
    assert_eq!((&device["heap_is_for_request"], &device["exactness"]["mismatches"]), (&false.into(), &0.into()));
    let (excess, peaks, hole) = (&device["excess"], &device["peaks"], 2 * MIB - asked);
    assert_eq!((&excess["bytes"], &device["heap"]["reserved_bytes"]), (&(large + hole).into(), &(large + 2 * MIB).into()));
    let part = |place: usize| (excess["parts"][place]["cause"].as_str(), excess["parts"][place]["bytes"].as_u64());
    assert_eq!([part(3), part(4)], [(Some("free_segment"), Some(large)), (Some("small_pool_hole"), Some(hole))]);
    let number = |key: &str| peaks[key].as_u64().expect("a number");
    assert_eq!(["allocated_bytes", "allocated_entry"].map(number), [large, 1]);
    assert_eq!(["reserved_bytes", "reserved_entry", "allocated_at_reserved_bytes"].map(number), [large + 2 * MIB, 5, asked]);
    let run = call(&["diagnose", &file]).out;
    for text in [
        "151.75 MiB of the 152.00 MiB reserved is not allocated: 150.00 MiB in whole free segments and 1.75 MiB in holes of the small \
         pool\ntiny.pickle: no failure is recorded; this is the state at entry 5 of 6, where reserved memory is at its peak and the most \
         of it is allocated\n",
        "reserved memory first reached its peak, 152.00 MiB, at entry 5; allocated memory peaked at 150.00 MiB, at entry 1, when 150.00 MiB",
        "where the 152.00 MiB of reserved memory is (2 segments)\n  256.00 KiB  live, in 1 block\n",
        "  150.00 MiB  whole free segments or pages: the cache, which empty_cache releases (1 piece)\n",
    ] {
        assert!(run.contains(text), "{text:?} is not in\n{run}");
    }
    assert!(!run.contains("other pool") && !run.contains("requested"), "{run}");
    // If the chosen entry took memory from the device, the question is why its request did not use what was free.
    let chosen = call(&["diagnose", &file, "--entry", "5"]).out;
    assert!(chosen.contains("before entry 5 of 6") && chosen.contains("150.00 MiB  in the other pool"), "{chosen}");
    assert_eq!(json(&[&file, "--entry", "5"]).1["devices"][0]["question"], "why_new_memory");
    // At any other entry the question is the first one, about the memory after it.
    let (_, freed) = json(&[&file, "--entry", "3"]);
    let device = &freed["devices"][0];
    assert_eq!((&device["question"], &device["heap"]["allocated_bytes"]), (&"why_reserved_above_allocated".into(), &0.into()));
    assert!(call(&["diagnose", &file, "--entry", "3"]).out.contains("\ntiny.pickle: after entry 3 of 6, where nothing failed\n"));
}

/// Settings do not affect what a private pool has cached, and the allocator may not release it.
#[test]
fn a_private_pool_s_whole_segments_are_told_from_those_that_could_go() {
    let folder = Folder::new("diagnose-private");
    let (third, size) = (BASE + (2 << 30), 40 * MIB);
    let mut private = failing();
    let device = &mut private.devices[0];
    let mut trace = vec![entry(Action::SegmentAlloc, third, size), entry(Action::Alloc, third, size)];
    trace.extend(free(third, size));
    trace.append(&mut device.trace);
    device.trace = trace;
    device.segments.push(Segment { pool: Some((0, 1)), ..segment(vec![unused(third, size)]) });
    let file = folder.recording("private.pickle", &private);
    let (code, object) = json(&[&file, "--limit", "100MiB"]);
    let device = &object["devices"][0];
    assert_eq!((code, &device["verdict"], &device["heap"]["kept_by_pools_bytes"]), (0, &"private_pools".into(), &size.into()));
    let step = |place: usize| {
        let step = &device["steps"][place];
        (step["applies"].as_str().expect("a word"), step["finding"].as_str().expect("a text"))
    };
    let (settings, empty_cache) = (step(2), step(3));
    assert!(settings.0 == "unknown" && settings.1.starts_with("not for what private pools have cached"), "{settings:?}");
    let told = "no whole segment or page was free in the pools it may empty";
    assert!(empty_cache.0 == "no" && empty_cache.1.starts_with(told) && empty_cache.1.contains("40.00 MiB"), "{empty_cache:?}");
}

#[test]
fn a_recording_that_is_not_exact_says_so_first() {
    let folder = Folder::new("diagnose-diverging");
    let run = call(&["diagnose", &folder.recording("diverging.pickle", &diverging())]);
    assert_eq!(run.code, 0);
    assert!(run.out.lines().nth(1).is_some_and(|line| line.starts_with("warning: ")), "{}", run.out);
}

/// A message from another source is explained, not refused: who wrote it, how much was requested, and what that means.
#[test]
fn messages_that_are_not_of_pytorch_s_allocator_are_explained() {
    let known = [
        (
            "CUDA out of memory. Tried to allocate 4.8 cups",
            3,
            "undecided",
            "the text says that memory ran out, but gives no figures",
        ),
        (
            "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8589934592 bytes.",
            0,
            "other_framework",
            "another framework: the message comes from JAX (XLA); 8.00 GiB was requested",
        ),
        (
            "OOM when allocating tensor with shape[64,1024,1024] and type float",
            0,
            "other_framework",
            "another framework: the message comes from TensorFlow; 256.00 MiB was requested",
        ),
        (
            "RuntimeError: CUDA error: out of memory",
            0,
            "outside_allocator",
            "outside PyTorch's allocator: the message comes from CUDA itself",
        ),
        ("Out of memory: Killed process 7 (python)", 0, "host_memory", "main memory, not the GPU's"),
        ("CUDA out of memory. Tried to allocate more than 1EB memory.", 0, "impossible_figures", "which no device has"),
    ];
    for (text, code, verdict, words) in known {
        let (found, object) = json(&["--message", text]);
        assert_eq!(
            (found, &object["verdict"], &object["messages"][0]["verdict"]),
            (code, &verdict.into(), &verdict.into()),
            "{text}"
        );
        assert!(object["headline"].as_str().is_some_and(|headline| headline.contains(words)), "{object}");
    }
}

#[test]
fn what_cannot_be_diagnosed_is_said_in_one_line() {
    let folder = Folder::new("diagnose-bad");
    let file = folder.recording("failing.pickle", &failing());
    let mut two = failing();
    two.devices.push(DeviceRecording { device: 3, ..good().devices[0].clone() });
    let two = folder.recording("two.pickle", &two);
    let empty = folder.recording("empty.pickle", &Recording::default());
    let nonsense = folder.file("nonsense.pickle", b"nonsense");
    let refused: [(&[&str], &str); 7] = [
        (&[&file, "--settings", "max_split:3"], "Unrecognized key 'max_split' in CUDA allocator config."),
        (&[&file, "--entry", "17"], "there is no entry 17: the trace has 17 entries, counted from 0"),
        (&[&file, "--device", "1"], "nothing about device 1, only about 0"),
        (&[&two, "--entry", "3"], "the file has 0, 3: choose one with --device"),
        (&[&empty], "neither trace entries nor segments"),
        (&[&nonsense], "nonsense.pickle"),
        (&["--message", "all is well"], "there is no out-of-memory message"),
    ];
    for (arguments, text) in refused {
        let run = call(&[&["diagnose"], arguments].concat());
        assert_eq!((run.code, run.out.as_str()), (2, ""), "{}", run.err);
        assert!(run.err.starts_with("parkade: ") && run.err.lines().count() == 1 && run.err.contains(text), "{}", run.err);
        let (code, object) = json(arguments);
        assert!(code == 2 && object["error"].is_string(), "{object}");
    }
    assert_eq!((call(&["diagnose"]).code, call(&["diagnose", &file, "--message", "x"]).code), (2, 2));
    let help = call(&["diagnose", "--help"]).out;
    assert!(help.contains("Examples:") && help.contains("Exit code: 0 diagnosed, 2 could not run, 3 not known"), "{help}");
}

/// A program that died on an H100 under PyTorch 2.11, recorded with `_record_memory_history()` as it comes, cut to its last 1500 entries.
const DEFAULT_STACKS: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../conformance/recordings/stacks/saved_hooks_packing.all_oom.pickle.xz");

#[test]
fn with_the_default_stacks_blocks_are_named_by_operators_and_the_program_s_lines() {
    let run = call(&["diagnose", "--all", DEFAULT_STACKS]);
    let text = run.out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        text.contains("requested by aten::mul in autograd LogsumexpBackward0, backward() from saved_hooks_packing <string>:66 "),
        "{text}"
    );
    let holders = text.split_once("stacks that hold the most live memory").expect("holders").1;
    for row in [
        "704.20 MiB in 219 blocks: aten::_to_copy from <lambda> <string>:60 ",
        "245.53 MiB in 73 blocks: aten::_to_copy from saved_hooks_packing <string>:59, in to transformers/modeling_utils.py:3706 ",
        "62.50 MiB in 1 block: aten::exp in autograd LogsumexpBackward0, backward() from saved_hooks_packing <string>:66 ",
    ] {
        assert!(holders.contains(row), "{row}: {holders}");
    }
    for machinery in ["gather_with_cpp", "unwind", "CachingAllocator", "_call_impl", "_PyEval"] {
        assert!(!text.contains(machinery), "{machinery}: {text}");
    }
    let (_, object) = json(&[DEFAULT_STACKS]);
    let first = object["devices"][0]["stacks"].as_array().expect("stacks").iter().find(|held| held["stack"][0].is_object());
    let first = first.expect("a stack");
    assert_eq!(first["operator"], "aten::_to_copy");
    let own: Vec<&Value> = first["stack"].as_array().expect("calls").iter().filter(|call| call["own"] == true).collect();
    assert_eq!((own.len(), &own[0]["name"], &own[0]["line"]), (1, &"<lambda>".into(), &60.into()));
}

/// A command about the file covers all of its devices, so it appears once, at the end.
#[test]
fn the_command_to_run_next_is_the_last_line_whatever_devices_there_are() {
    let folder = Folder::new("diagnose-command");
    let mut both = failing();
    both.devices.push(DeviceRecording { device: 3, ..failing().devices[0].clone() });
    let file = folder.recording("both.pickle", &both);
    let run = call(&["diagnose", &file, "--limit", "60MiB"]);
    assert!(run.out.starts_with("device 0: fragmentation: ") && run.out.contains("\ndevice 3: fragmentation: "), "{}", run.out);
    let command = format!("parkade advise {file} --limit 60MiB");
    assert_eq!((run.out.matches("\nparkade advise ").count(), run.out.lines().last()), (1, Some(&*command)), "{}", run.out);
}
