//! `parkade verify` on damaged, contradictory and absurd recordings: each is refused in one line that names the place.

use crate::common::*;
use parkade_recording::{Action, DeviceRecording, Entry, Recording, Style, write};

#[test]
fn contradictions_name_their_entry() {
    let folder = Folder::new("verify-contradictions");
    let refused_trace = |name: &str, change: &dyn Fn(&mut DeviceRecording), text: &str| {
        let mut recording = good();
        change(&mut recording.devices[0]);
        refused(&folder.recording(name, &recording), text);
    };
    refused_trace("twice", &|d| d.trace.insert(2, d.trace[1]), "entry 1: alloc at 0x7f0000000000, but nothing is in use there");
    refused_trace(
        "freed_twice",
        &|d| d.trace.extend(free(BASE, 5 * MIB)),
        "entry 4: free_completed at 0x7f0000000000, but a block",
    );
    refused_trace(
        "unknown",
        &|d| d.trace.extend(free(BASE + (1 << 30), 512)),
        "entry 5: free_requested at 0x7f0040000000, but nothing was allocated there",
    );
    refused_trace(
        "inside",
        &|d| d.trace.extend(free(BASE + 9 * MIB, 512)),
        "entry 5: free_requested at 0x7f0000900000, but nothing was allocated there",
    );
    refused_trace("reversed", &|d| d.trace.reverse(), "entry 3: alloc at 0x7f0000000000");
    refused_trace("outside", &|d| d.trace.push(entry(Action::Alloc, 512, 512)), "entry 5: alloc at 0x200");
    refused_trace(
        "live",
        &|d| d.trace.push(entry(Action::SegmentFree, BASE, 20 * MIB)),
        "entry 5: segment_free at 0x7f0000000000",
    );
    let cycle = |d: &mut DeviceRecording, inner: Vec<Entry>| {
        d.trace.push(entry(Action::SegmentAlloc, BASE + 64 * MIB, 20 * MIB));
        d.trace.extend(inner);
        d.trace.push(entry(Action::SegmentFree, BASE + 64 * MIB, 20 * MIB));
    };
    let alloc = |at: u64, size: u64| entry(Action::Alloc, at, size);
    refused_trace(
        "early",
        &|d| d.trace.splice(0..0, [alloc(BASE, 512)].into_iter().chain(free(BASE, 512))).for_each(drop),
        "entry 0: alloc at 0x7f0000000000, but no segment covers that address at that point",
    );
    refused_trace(
        "across",
        &|d| cycle(d, [alloc(BASE + 80 * MIB, 5 * MIB)].into_iter().chain(free(BASE + 80 * MIB, 5 * MIB)).collect()),
        "entry 6: alloc at 0x7f0005000000, but no segment covers that address at that point",
    );
    refused_trace(
        "still_live",
        &|d| {
            cycle(d, vec![alloc(BASE + 64 * MIB, 5 * MIB)]);
            d.trace.extend(free(BASE + 64 * MIB, 5 * MIB));
        },
        "entry 7: segment_free at 0x7f0004000000, but a block is still in use there",
    );
    refused_trace(
        "on_top",
        &|d| {
            let twice = entry(Action::SegmentAlloc, BASE + 70 * MIB, 20 * MIB);
            cycle(d, vec![twice, entry(Action::SegmentFree, BASE + 70 * MIB, 20 * MIB)]);
        },
        "entry 6: segment_alloc at 0x7f0004600000, but memory is already reserved there",
    );
    refused_trace("resized", &|d| d.trace[0].size = 4 * MIB, "entry 0: segment_alloc at 0x7f0000000000, but the segment there");
    refused_trace("absurd", &|d| d.trace[0].size = 1 << 63, "entry 0: segment_alloc at 0x7f0000000000, whose size no segment");
    refused_trace("beyond", &|d| d.trace[1].size = u64::MAX, "entry 1 of device 0: 18446744073709551615 bytes at address");
    refused_trace(
        "overlap",
        &|d| d.segments.push(segment(vec![unused(BASE + MIB, 20 * MIB)])),
        "segment 1: it overlaps segment 0",
    );
}

#[test]
fn absurd_sizes_never_overflow() {
    let folder = Folder::new("verify-absurd");
    for size in [1 << 60, 1 << 62, (1 << 63) - 512, 1 << 63, u64::MAX - (1 << 20)] {
        let blocks = 1..5_u64;
        let allocs = blocks.clone().map(|n| entry(Action::Alloc, n << 12, size));
        let frees = blocks.clone().flat_map(|n| free(n << 12, size));
        let trace = allocs.chain(frees).collect();
        refused(
            &folder.recording("blocks.pickle", &recording(trace, vec![])),
            "but no segment covers that address at that point",
        );
        let cycle = [entry(Action::SegmentAlloc, 0, size), entry(Action::Alloc, 0, size)];
        let end = [entry(Action::SegmentFree, 0, size)];
        let trace = (0..5).flat_map(|_| cycle.into_iter().chain(free(0, size)).chain(end)).collect();
        verify(&folder.recording("segments.pickle", &recording(trace, vec![])));
        verify(&folder.recording("oom.pickle", &recording(vec![entry(Action::Oom, 0, size)], vec![])));
    }
}

#[test]
fn what_is_no_recording_is_refused() {
    let folder = Folder::new("verify-no-recording");
    let bad = |name: &str, bytes: &[u8], text: &str| refused(&folder.file(name, bytes), text);
    bad("empty", b"", "the file is empty");
    bad("png", b"\x89PNG\r\n\x1a\n", "this is a PNG image");
    bad("zip", b"PK\x03\x04", "this is a zip archive");
    bad("object.json", b"{\"version\": 1}", "this is JSON, not a memory snapshot");
    bad("cut.json", b"{\"segments\": [", "the JSON is damaged or cut short");
    bad("page.html", b"<html>", "this is a web page, not a memory snapshot");
    bad("list.json", b"[1, 2]", "this is JSON");
    bad("call", b"cos\nsystem\n(S'echo'\ntR.", "pickle byte 0: opcode GLOBAL");
    bad("long", b"\x80\x04X\x00\x00\x00\x80abc.", "pickle byte 2: 2147483648 more bytes are needed, but only");
    bad("memo", b"\x80\x04j\xff\xff\xff\xff.", "pickle byte 2: memo slot 4294967295");
    bad(
        "deep",
        &[b"\x80\x04", &b"]".repeat(1_000_000)[..], &b"a".repeat(999_999), b"."].concat(),
        "it is a list whose first item is a list, not the dict with `segments` or `device_traces`",
    );
    bad("none", b"N.", "it is None, not the dict");
    bad("dict", b"}.", "it is an empty dict");
    refused(&folder.recording("nothing_in_it", &Recording::default()), "no trace entries");
    refused(&format!("{}/nothing", folder.path()), "nothing: cannot be read: No such file or directory");
    refused(Folder::new("verify-empty-folder").path(), "this folder contains no snapshots");
    #[cfg(target_os = "linux")]
    refused("/dev/zero", "pickle byte 0: 0x00 is not a pickle opcode");
    let whole = write(&good(), Style::Python);
    for tenth in 1..10 {
        bad("cut", &whole[..whole.len() * tenth / 10], "was cut short");
    }
    let packed = include_bytes!("../../recording/tests/data/snapshot.xz.bin");
    for tenth in 1..10 {
        bad("cut.xz", &packed[..packed.len() * tenth / 10], "cut short");
    }
}
