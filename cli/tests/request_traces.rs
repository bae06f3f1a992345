//! Request traces of other programs ([docs/trace.md](../../docs/trace.md)): which files are read, by name or by beginning, and
//! that their requests, written as a trace, are the same program.

use std::fs;
use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::common::{Folder, call};

const RMM: &str = "Thread,Time,Action,Pointer,Size,Stream\n1,10:00,allocate,0x7f00,3000000,0\n1,10:01,allocate,0x8f00,700,0x30\n\
                   1,10:02,free,0x7f00,3000000,0\n1,10:03,allocate,0x7f00,5000000,0\n";
const MINIMALLOC: &str = "id,lower,upper,size\na,0,4,3000000\nb,2,9,700\nc,4,8,5000000\n";
const SIZES: &str = "BufferAssignment:\n\
    allocation 0: size 700, parameter 0, shape |f32[175]| at ShapeIndex {}:\n value: <0 p @0> (size=700,offset=0): f32[175]{0}\n\
    allocation 1: size 5000000, preallocated-temp:\n value: <1 a @0> (size=3000000,offset=0): f32[750000]{0}\n \
    value: <2 b @0> (size=5000000,offset=0): f32[1250000]{0}\n";
const RANGES: &str =
    "HloLiveRange (max 5):\n  InstructionSequence:\n    0:p\n  BufferLiveRange:\n    p{}:0-5\n    a{}:1-2\n    b{}:3-5\n";

/// A profile of these changes of memory: microsecond, address, bytes and the bytes that are allocated afterwards.
fn profile(changes: &[(u32, u32, i32, u32)]) -> String {
    let events = changes.iter().map(|(us, address, bytes, allocated)| {
        format!(
            "{{\"ph\": \"i\", \"cat\": \"cpu_instant_event\", \"s\": \"t\", \"name\": \"[memory]\", \"pid\": 1, \"tid\": 1, \"ts\": {us}.25, \
             \"args\": {{\"Total Reserved\": 20971520, \"Total Allocated\": {allocated}, \"Bytes\": {bytes}, \"Addr\": {address}, \
             \"Device Id\": 0, \"Device Type\": 1, \"Ev Idx\": 1}}}}"
        )
    });
    let events: Vec<String> = events.collect();
    format!("{{\n  \"schemaVersion\": 1,\n  \"deviceProperties\": [],\n  \"traceEvents\": [\n{}\n]}}\n", events.join(",\n"))
}

fn packed(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text.as_bytes()).expect("memory");
    encoder.finish().expect("memory")
}

/// The figures of a sweep of a program, which name it.
fn figures(folder: &Folder, file: &str) -> String {
    let csv = format!("{}/figures.csv", folder.path());
    let run = call(&["sweep", "-w", file, "-p", "pytorch,bfc,rmm-pool,best-fit-remap", "--csv", &csv, "--force"]);
    assert_eq!(run.code, 0, "{file}: {}", run.err);
    fs::read_to_string(csv).expect("figures")
}

#[test]
fn the_requests_of_what_other_programs_write_are_the_same_program() {
    let folder = Folder::new("request-traces");
    let vllm = profile(&[
        (1, 64, 3_000_320, 3_512_320),
        (2, 128, 1024, 3_513_344),
        (3, 32, -512, 3_512_832),
        (4, 64, -3_000_320, 512_512),
    ]);
    folder.file("step-live-range.txt", RANGES.as_bytes());
    let again = format!("{}/again", folder.path());
    fs::create_dir(&again).expect("a folder");
    for (name, ending, contents) in [
        ("rmm", ".csv", RMM.as_bytes()),
        ("minimalloc", ".csv", MINIMALLOC.as_bytes()),
        ("profile", ".json", vllm.as_bytes()),
        ("profiled.pt.trace", ".json.gz", &packed(&vllm)),
        ("step", "-buffer-assignment.txt", SIZES.as_bytes()),
    ] {
        let file = folder.file(&format!("{name}{ending}"), contents);
        let requests = format!("{again}/{name}.jsonl");
        let written = call(&["export", &file, "--format", "requests", "-o", &requests]);
        assert_eq!(written.code, 0, "{name}: {}", written.err);
        assert!(fs::read_to_string(&requests).expect("written").lines().count() > 3, "{name}");
        let expected = figures(&folder, &file);
        assert!(expected.lines().count() > 4, "{expected}");
        assert_eq!(figures(&folder, &requests), expected, "{name}");
    }
    let [sizes, ranges] = ["buffer-assignment", "live-range"].map(|end| format!("{}/step-{end}.txt", folder.path()));
    assert_eq!(figures(&folder, &sizes), figures(&folder, &ranges), "either of XLA's files stands for both");
}

#[test]
fn every_command_with_a_policy_reads_them() {
    let folder = Folder::new("request-traces-policy");
    let file = folder.file("serve.pt.trace.json", profile(&[(1, 64, 4096, 4096), (2, 64, -4096, 0)]).as_bytes());
    let page = format!("{}/page.html", folder.path());
    for command in [&["stats", &file, "--policy", "bfc"][..], &["report", &file, "--policy", "bfc", "-o", &page]] {
        let run = call(command);
        assert_eq!(run.code, 0, "{command:?}: {}", run.err);
    }
    let run = call(&["stats", &file]);
    assert!(run.code == 2 && run.err.contains("a request trace has no recorded run: --policy NAME"), "{}", run.err);
}

#[test]
fn forms_without_lifetimes_say_so_and_what_to_do() {
    let folder = Folder::new("request-traces-others");
    let without = profile(&[]);
    for (name, contents, says) in [
        (
            "vllm.log",
            "INFO 11-29 [kv_cache_utils.py:1] GPU KV cache size: 1,000 tokens\n",
            "is vLLM's log, which has totals but no buffers",
        ),
        (
            "events.jsonl",
            "{\"type\": \"BlockStored\", \"block_hashes\": [1]}\n",
            "vLLM's KV cache events, which have no sizes in bytes",
        ),
        ("m-memory-usage-report.txt", "Total bytes used: 9 (9B)\nAllocations sorted by size:\n", "pass *-buffer-assignment.txt"),
        ("n-buffer-assignment.txt", SIZES, "the file *-live-range.txt of the same program is needed too"),
        ("o.pt.trace.json", &without, "record it with profile_memory=True (vLLM: \"torch_profiler_with_memory\": true"),
        ("other.json", "{\"a\": 1}\n", "this is JSON, not a memory snapshot"),
    ] {
        let file = folder.file(name, contents.as_bytes());
        for command in [&["sweep", "-w", &file, "-p", "bfc"][..], &["stats", &file, "--policy", "bfc"]] {
            let run = call(command);
            assert!(run.code == 2 && run.err.contains(says) && run.err.lines().count() == 1, "{command:?}: {}", run.err);
        }
    }
    let other = format!("{}/n-live-range.txt", folder.path());
    fs::write(&other, RANGES.replace("a{}", "c{}")).expect("a file");
    let run = call(&["sweep", "-w", &other, "-p", "bfc"]);
    assert!(
        run.code == 2 && run.err.contains("line 5: a{} has no live range: both files must be of the same program"),
        "{}",
        run.err
    );
}
