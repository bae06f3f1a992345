//! The rules on small examples, and learning from real and generated steps.

use super::layout::GRANULE_BYTES;
use super::*;
use crate::PAGE_BYTES;
use crate::address::{AddressModel, Ascending, DESCENDING_END, Descending, Reuse};

const MIB: u64 = 1 << 20;

fn replay(learned: &LearnedAddressSpace, steps: &[PlacementStep]) -> usize {
    let mut model = ObservedDriver::learned(learned);
    let mut reproduced = 0;
    for step in steps {
        model.set_moment(step.moment);
        if step.taken {
            reproduced += usize::from(model.place(step.bytes, step.bytes) == Some(step.address));
        } else {
            model.release(step.address, step.bytes);
        }
    }
    reproduced
}

/// From the start of gpt2_varlen.default: 36 MiB segments leave 28 MiB each, which later ones fill, the
/// newest chunk first.
#[test]
fn holes_in_chunks_are_filled_newest_first() {
    let mut model = ObservedDriver::new();
    let offset = |address: Option<u64>| (DESCENDING_END - address.unwrap()) / MIB;
    let placed: Vec<u64> = [36, 36, 20, 28, 2, 36, 2].map(|size| offset(model.place(size * MIB, 0))).to_vec();
    assert_eq!(placed, [64, 128, 92, 28, 72, 192, 156]);
}

#[test]
fn an_empty_chunk_is_returned_and_needs_slack_to_be_taken_again() {
    let mut model = ObservedDriver::new();
    let top = model.place(64 * MIB, 0).unwrap();
    let middle = model.place(64 * MIB, 0).unwrap();
    let low = model.place(64 * MIB, 0).unwrap();
    assert_eq!((top - middle, middle - low), (64 * MIB, 64 * MIB));
    model.release(middle, 64 * MIB);
    assert_eq!(model.place(64 * MIB, 0), Some(low - 64 * MIB), "the gap of 64 MiB is too short for a chunk of 64 MiB");
    assert_eq!(model.place(32 * MIB, 0), Some(middle + 32 * MIB), "and not for one of 32 MiB, which goes to its top");
}

#[test]
fn the_address_space_runs_out() {
    let mut model = ObservedDriver::new();
    assert_eq!(model.place(DESCENDING_END, 0), None);
    assert_eq!(model.place(u64::MAX - 5, 0), None);
    assert_eq!(model.place(DESCENDING_END - 3 * GRANULE_BYTES, 0), Some(3 * GRANULE_BYTES));
    assert_eq!(model.place(GRANULE_BYTES, 0), Some(2 * GRANULE_BYTES));
    assert_eq!(model.place(GRANULE_BYTES, 0), None);
    model.release(1 << 50, MIB);
}

/// The first 27 segments of llm_serving.default: moment, address in MiB above 0x7f3500000000, MiB.
const LLM_SERVING: [(u64, u64, u64); 27] = [
    (1, 5792, 64),
    (3, 6344, 20),
    (5, 6270, 2),
    (11, 6912, 20),
    (17, 6932, 2),
    (22, 6880, 20),
    (32, 6848, 20),
    (38, 6868, 2),
    (42, 6816, 20),
    (50, 6752, 64),
    (55, 6720, 20),
    (61, 6688, 20),
    (67, 6656, 20),
    (107, 5920, 32),
    (158, 6708, 2),
    (239, 5952, 20),
    (656, 5972, 54),
    (937, 6026, 20),
    (1358, 6046, 66),
    (2155, 6112, 40),
    (2551, 6718, 2),
    (2554, 6740, 2),
    (2679, 6742, 2),
    (3211, 6152, 20),
    (4204, 6172, 20),
    (5310, 6192, 20),
    (5606, 3296, 68),
];

fn llm_serving() -> Vec<PlacementStep> {
    let step = |&(moment, at, size): &(u64, u64, u64)| PlacementStep {
        moment,
        taken: true,
        address: 0x7f35_0000_0000 + at * MIB,
        bytes: size * MIB,
    };
    LLM_SERVING.iter().map(step).collect()
}

#[test]
fn learning_reproduces_a_real_process() {
    let steps = llm_serving();
    let learned = LearnedAddressSpace::from_steps(&steps);
    assert_eq!((learned.placements, learned.unexplained), (27, 0));
    assert!(learned.explained >= 17, "{learned:?}");
    assert_eq!(replay(&learned, &steps), 27);
}

/// The steps of a model under random requests and frees.
fn made_by(mut model: impl AddressModel, seed: u64) -> Vec<PlacementStep> {
    let (mut steps, mut live, mut state) = (Vec::new(), Vec::new(), seed);
    for moment in 0..200 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let draw = state >> 33;
        if draw.is_multiple_of(3) && !live.is_empty() {
            let (address, bytes) = live.swap_remove(draw as usize / 3 % live.len());
            model.release(address, bytes);
            steps.push(PlacementStep { moment, taken: false, address, bytes });
        } else {
            let bytes = [1, 10, 10, 14, 18, 32, 36, 74][draw as usize / 3 % 8] * PAGE_BYTES;
            let Some(address) = model.place(bytes, bytes) else { continue };
            live.push((address, bytes));
            steps.push(PlacementStep { moment, taken: true, address, bytes });
        }
    }
    steps
}

#[test]
fn steps_of_the_rules_need_no_assumption_but_the_first() {
    for seed in 0..50 {
        let steps = made_by(ObservedDriver::new(), seed);
        let learned = LearnedAddressSpace::from_steps(&steps);
        assert_eq!((learned.explained, learned.unexplained), (learned.placements - 1, 0), "seed {seed}");
        assert_eq!(replay(&learned, &steps), learned.placements, "seed {seed}");
    }
}

/// Whichever model placed the ranges: if all are explained, all are reproduced.
#[test]
fn learning_is_consistent_on_any_steps() {
    for seed in 0..30 {
        for steps in [made_by(Ascending::new(), seed), made_by(Descending::new(), seed), made_by(Reuse::new(), seed)] {
            let learned = LearnedAddressSpace::from_steps(&steps);
            if learned.unexplained == 0 {
                assert_eq!(replay(&learned, &steps), learned.placements, "seed {seed}");
            }
        }
    }
}

/// Ranges that lie one behind the other, now and then farther away, and some of which go.
fn rising(seed: u64) -> Vec<PlacementStep> {
    let (mut steps, mut live, mut state, mut next) = (Vec::new(), Vec::new(), seed, 1 << 46);
    for number in 0..150_u64 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let draw = state >> 33;
        // Several ranges may be taken for one request.
        let moment = number / (1 + seed % 3);
        if draw.is_multiple_of(2 + seed % 7) && !live.is_empty() {
            let (address, bytes) = live.swap_remove(draw as usize / 3 % live.len());
            steps.push(PlacementStep { moment, taken: false, address, bytes });
            continue;
        }
        let bytes = [1, 1, 1, 10, 8, 32, 36, 74][(draw / 7 % (1 + seed % 8)) as usize] * PAGE_BYTES;
        next += if (draw / 91).is_multiple_of(1 + seed % 13) { 0 } else { draw / 5 % 4 * (16 << 20) };
        live.push((next, bytes));
        steps.push(PlacementStep { moment, taken: true, address: next, bytes });
        next += bytes;
    }
    steps
}

#[test]
fn going_on_learns_what_starting_over_does() {
    let both = |steps: &[PlacementStep]| {
        let learned = format!("{:?}", LearnedAddressSpace::from_steps(steps));
        assert_eq!(learned, format!("{:?}", LearnedAddressSpace::starting_over(1 << 28, steps)));
    };
    both(&llm_serving());
    for seed in 0..60 {
        both(&rising(seed));
        both(&made_by(Ascending::new(), seed));
        both(&made_by(Descending::new(), seed));
    }
}

/// It need not start over for each chunk.
#[test]
fn ranges_one_behind_the_other_are_learned_in_passing() {
    let rising = |count: u64, pages: u64| -> Vec<PlacementStep> {
        let step = |n| PlacementStep {
            moment: n,
            taken: true,
            address: (1 << 46) + n * pages * PAGE_BYTES,
            bytes: pages.min(16) * PAGE_BYTES,
        };
        (0..count).map(step).collect()
    };
    // Side by side, in a chunk or in one each; so far from each other that none is in a chunk beside another's. Each step is charged for all
    // pieces that there are.
    for (pages, effort) in [(1, 1 << 15), (16, 1 << 15), (512, 1 << 24)] {
        let steps = rising(1_000, pages);
        assert_eq!(LearnedAddressSpace::within(effort, &steps).placements, 1_000, "{pages} pages");
        assert_eq!(LearnedAddressSpace::starting_over(effort, &steps).placements, 0, "{pages} pages");
    }
}

#[test]
fn invalid_steps_do_no_harm() {
    let step = |moment, taken, address, bytes| PlacementStep { moment, taken, address, bytes };
    let mut steps = vec![
        step(0, true, 0, 0),
        step(1, true, u64::MAX, u64::MAX),
        step(2, true, 5, 1),
        step(3, false, 77, 12),
        step(4, true, 1 << 40, 3),
        step(5, true, 1 << 40, 3),
        step(6, true, (1 << 40) + 1, 1 << 30),
        step(7, false, 1 << 40, u64::MAX),
        step(8, true, (1 << 55) + 512, (1 << 55) + 1),
    ];
    steps.extend(llm_serving());
    let learned = LearnedAddressSpace::from_steps(&steps);
    assert_eq!(learned.placements, 34);
    let _ = replay(&learned, &steps);
    assert_eq!(LearnedAddressSpace::from_steps(&[]).placements, 0);
}

/// Segments in random order: each needs assumptions, each of which needs all those before it.
#[test]
fn learning_gives_up_where_there_is_nothing_to_learn() {
    let place = |n: u64| (1 << 46) + n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (1 << 14) * (1 << 30);
    let steps: Vec<PlacementStep> =
        (0..3_000).map(|n| PlacementStep { moment: n, taken: true, address: place(n), bytes: 20 * MIB }).collect();
    let learned = LearnedAddressSpace::within(1 << 20, &steps);
    assert_eq!(learned.placements, 0, "as if there had been no steps");
    // A thousandth of the steps stays below the bound.
    assert_eq!(LearnedAddressSpace::within(1 << 20, &steps[..3]).placements, 3);
}
