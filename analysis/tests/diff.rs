//! Tests comparisons of recordings of real runs, checked against what other parts of the crate find for the same runs, and
//! comparisons of small programs, each written for one question.

use std::path::Path;

use parkade_analysis::diff::{Comparison, Grouping, Origin, Part, Relation, Run, Side, diff, show};
use parkade_analysis::fragmentation::sample_recorded_run;
use parkade_recording::{Action, Annotation, Block, BlockState, DeviceRecording, Entry, Frame, Recording, Segment, StackId};
use parkade_replay::{ReplaySettings, VerifyOptions, verify_device};

const MIB: u64 = 1 << 20;
const BASE: u64 = 1 << 40;

fn shipped(name: &str) -> Recording {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../conformance/recordings");
    parkade_recording::read_file(folder.join(format!("{name}.pickle.xz"))).expect("a recording")
}

fn own(recording: &Recording) -> VerifyOptions {
    let settings = ReplaySettings::of_recording(recording.settings.as_ref()).expect("its settings");
    VerifyOptions { settings, limit_bytes: None, stats_file: None }
}

fn shown(recording: &Recording, part: Part) -> Run {
    show(Side { recording, device: &recording.devices[0], own: &own(recording), part }).expect("it replays")
}

fn compared(a: &Recording, b: &Recording) -> Comparison {
    let (own_a, own_b) = (own(a), own(b));
    let side = Side { recording: a, device: &a.devices[0], own: &own_a, part: Part::Whole };
    diff(side, Side { recording: b, device: &b.devices[0], own: &own_b, part: Part::Whole }).expect("both replay")
}

#[test]
fn peaks_and_heaps_are_those_of_the_replay() {
    for name in ["deep_mlp.default", "deep_mlp.expandable", "prefetch_streams.default", "resnet50_sweep.default"] {
        let recording = shipped(name);
        let run = shown(&recording, Part::Whole);
        let verdict = verify_device(&recording.devices[0], &own(&recording), &mut |_| ()).expect("it replays");
        assert_eq!(run.peak_allocated.bytes.cast_signed(), verdict.peak_allocated_bytes(), "{name}");
        assert_eq!(run.peak_reserved.bytes.cast_signed(), verdict.peak_reserved_bytes(), "{name}");
        assert_eq!((run.mismatches, run.ooms), (0, verdict.ooms), "{name}");
        let peaks = [&run.peak_allocated, &run.peak_reserved];
        for peak in peaks {
            let at = [peak.entry.expect("an entry")];
            let sampled = sample_recorded_run(&recording.devices[0], &own(&recording), &at).expect("it replays");
            assert_eq!(peak.heap, sampled.samples[0].fragmentation, "{name} at {at:?}");
        }
        assert_eq!(peaks[0].heap.allocated_bytes, peaks[0].bytes, "{name}");
        assert_eq!(peaks[1].heap.reserved_bytes, peaks[1].bytes, "{name}");
    }
}

#[test]
fn groups_and_phases_add_up_to_the_peak() {
    let comparison = compared(&shipped("prefetch_streams.default"), &shipped("prefetch_streams.limit6"));
    assert_eq!(comparison.likeness.relation, Relation::SameRequests);
    let sum = |of: fn(&parkade_analysis::diff::Growth) -> u64| comparison.growth.iter().map(of).sum::<u64>();
    let held = |of: fn(&parkade_analysis::diff::PhaseChange) -> u64| comparison.phases.iter().map(of).sum::<u64>();
    let peaks = (comparison.a.peak_allocated.bytes, comparison.b.peak_allocated.bytes);
    assert_eq!((sum(|group| group.a.bytes), sum(|group| group.b.bytes)), peaks);
    assert_eq!((held(|phase| phase.a.held_at_peak_bytes), held(|phase| phase.b.held_at_peak_bytes)), peaks);
    let steps = &comparison.steps;
    assert_eq!((steps.pairs.len(), steps.only_a, steps.only_b), (30, 0, 0));
    let highest = steps.pairs.iter().map(|pair| pair.b.peak_reserved_bytes).max();
    assert_eq!(highest, Some(comparison.b.peak_reserved.bytes));
}

#[test]
fn a_file_without_its_beginning_is_compared_over_the_steps_of_both() {
    let (whole, tail) = (shipped("gpt2_varlen.default"), shipped("gpt2_varlen.frames_tail20k"));
    let comparison = compared(&whole, &tail);
    assert_eq!(comparison.a.part, Part::Common { first: 18, last: 23 });
    assert_eq!(comparison.a.peak_allocated.bytes, comparison.b.peak_allocated.bytes);
    assert_eq!(comparison.a.peak_reserved.bytes, comparison.b.peak_reserved.bytes);
    assert_eq!(comparison.growth.iter().filter(|group| group.a != group.b).count(), 0);
    assert_eq!(comparison.grouping, Grouping::Sizes { a_has_stacks: false, b_has_stacks: true });
    // The run that died had begun its third step, so that step is compared too.
    let comparison = compared(&whole, &shipped("gpt2_varlen.limit12_oom"));
    assert_eq!(comparison.a.part, Part::Common { first: 0, last: 2 });
    assert_eq!((comparison.b.ooms, comparison.b.part_entries), (1, (0, comparison.b.entries)));
    assert!(comparison.a.part_entries.1 < comparison.a.entries);
    assert_eq!(comparison.a.whole_peak_reserved_bytes, 21_986_541_568);
}

#[test]
fn programs_with_nothing_in_common_are_told() {
    let comparison = compared(&shipped("gpt2_varlen.limit12_oom"), &shipped("resnet50_sweep.default"));
    assert_eq!((comparison.likeness.relation, comparison.a.part), (Relation::LittleInCommon, Part::Whole));
    let same = compared(&shipped("deep_mlp.default"), &shipped("deep_mlp.default"));
    assert_eq!(same.likeness.relation, Relation::SameRecording);
    assert!(same.growth.iter().all(|group| group.a == group.b));
}

/// Returns a program that holds blocks of these sizes in MiB, each allocated at its own line of one function; with `steps`, a
/// mark ends a step after each block.
fn program(blocks: &[(u64, u32)], steps: bool) -> Recording {
    let mut recording = Recording::default();
    let (mut trace, mut segments) = (Vec::new(), Vec::new());
    for (number, &(size, line)) in blocks.iter().enumerate() {
        let frame = Frame { filename: "/home/one/train.py".into(), line, name: "forward".into() };
        let frame = recording.stacks.intern_frame(frame);
        let stack = recording.stacks.intern_stack(&[frame]);
        let (address, bytes) = (BASE + number as u64 * 1024 * MIB, size * MIB);
        for action in [Action::SegmentAlloc, Action::Alloc] {
            let mut entry = Entry::new(action, address, bytes, 0);
            entry.stack = stack;
            entry.set_time(Some(100 + 10 * number as u64));
            trace.push(entry);
        }
        let block = Block { address, size: bytes, requested: Some(bytes), state: BlockState::ActiveAllocated, stack };
        segments.push(Segment::new(vec![block]));
        if steps {
            let end = 105 + 10 * number as i64;
            let mark = |stage: &str| Annotation {
                name: "Optimizer.step#SGD.step".into(),
                stage: stage.into(),
                device: Some(0),
                time_us: Some(end),
            };
            recording.annotations.extend([mark("START"), mark("END")]);
        }
    }
    recording.devices = vec![DeviceRecording { segments, trace, ..DeviceRecording::default() }];
    recording
}

/// Returns, for each stack that holds memory, its bytes in MiB on both sides and its lines.
fn lines(a: &Recording, b: &Recording) -> Vec<(u64, u64, Option<u32>, Option<u32>)> {
    let line = |recording: &Recording, stack: Option<StackId>| recording.stacks.frames(stack?).next().map(|frame| frame.line);
    let comparison = compared(a, b);
    assert_eq!(comparison.grouping, Grouping::Stacks);
    let groups = comparison.growth.iter().map(|group| match group.origin {
        Origin::Stack { a: of_a, b: of_b } => (group.a.bytes / MIB, group.b.bytes / MIB, line(a, of_a), line(b, of_b)),
        Origin::Sizes(_) => panic!("every block has a stack"),
    });
    groups.collect()
}

#[test]
fn stacks_are_paired_by_line_and_without_lines_where_lines_moved() {
    let before = program(&[(20, 10), (40, 11)], false);
    let grown = program(&[(24, 10), (60, 11)], false);
    assert_eq!(lines(&before, &grown), [(40, 60, Some(11), Some(11)), (20, 24, Some(10), Some(10))]);
    // A line was inserted above: what was line 10 is now line 11, and pairing it with the old line 11 would be wrong.
    let moved = program(&[(24, 11), (60, 12)], false);
    assert_eq!(lines(&before, &moved), [(60, 84, Some(11), Some(12))]);
}

#[test]
fn of_one_run_the_last_steps_are_compared() {
    let (early, late) = (program(&[(20, 10), (20, 11)], true), program(&[(20, 10), (20, 11), (40, 12)], true));
    let comparison = compared(&early, &late);
    assert_eq!(comparison.likeness.relation, Relation::SameRun);
    assert_eq!((comparison.a.part, comparison.b.part), (Part::Step(1), Part::Step(2)));
    assert_eq!((comparison.a.peak_reserved.bytes, comparison.b.peak_reserved.bytes), (40 * MIB, 80 * MIB));
}

#[test]
fn without_a_trace_the_ends_are_compared() {
    let (traced, mut bare) = (program(&[(20, 10), (40, 11)], false), program(&[(20, 10), (60, 11)], false));
    bare.devices[0].trace.clear();
    let comparison = compared(&traced, &bare);
    assert_eq!((comparison.a.part, comparison.b.part), (Part::End, Part::End));
    assert_eq!((comparison.a.peak_reserved.bytes, comparison.b.peak_reserved.bytes), (60 * MIB, 80 * MIB));
    assert_eq!((comparison.likeness.relation, comparison.likeness.requests_in_common), (Relation::Related, None));
    let neither = compared(&bare, &bare);
    assert_eq!((neither.a.part, neither.a.peak_allocated.bytes), (Part::End, 80 * MIB));
}

#[test]
fn a_step_that_is_not_there_is_refused() {
    let recording = program(&[(20, 10), (40, 11)], true);
    let asked = |recording: &Recording, step| {
        let side = Side { recording, device: &recording.devices[0], own: &own(recording), part: Part::Step(step) };
        show(side).map(|run| run.part_entries).map_err(|error| error.to_string())
    };
    assert_eq!(asked(&recording, 1), Ok((2, 4)));
    assert!(asked(&recording, 2).is_err_and(|error| error.contains("complete steps 0 to 1")));
    let unmarked = program(&[(20, 10)], false);
    assert!(asked(&unmarked, 0).is_err_and(|error| error.contains("no step annotations")));
}
