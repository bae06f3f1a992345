//! The rules for prices and addresses alone, without a device: more and larger numbers than programs reach, and where NVIDIA's
//! driver placed the segments of real runs.
//!
//! `placements.txt` holds the segments of some of the recordings in `conformance/recordings`. A test compares it with them. A line
//! with the recording's name and the number that the documentation of `sim/src/address/observed_driver.rs` gives is followed by
//! the steps: the request's place in the trace, `+` for a cudaMalloc or `-` for a cudaFree, the address in hexadecimal and the
//! length, both in units of 2 MiB.

use parkade::units::MIB;
use parkade_sim::address::{ASCENDING_START, AddressModel, DESCENDING_END, LearnedAddressSpace, ObservedDriver, PlacementStep};
use parkade_sim::{CallName, CostModel, MeasuredH200, NoCost, PAGE_BYTES as PAGE};

use super::addresses::{Placer, Rule};
use super::draw::Pen;
use super::prices::Prices;
use super::setup::with_model;
use super::texts;
use crate::law::{Broken, Law, ensure};

/// Asks for prices of sizes around the measured ones, and of calls for several pieces.
pub(crate) fn prices(seed: u64) -> Result<u64, Broken> {
    let mut pen = Pen::new(seed);
    for call in CallName::ALL {
        // Only these calls can find nothing there.
        let least = if matches!(call, CallName::MemSetAccess | CallName::MemUnmap) { 0 } else { 1 };
        let sizes: Vec<(u64, u64)> = (0..least + pen.below(4)).map(|_| (pen.measured_bytes(), 1 + pen.below(4))).collect();
        let each: Vec<u64> = sizes.iter().flat_map(|&(bytes, count)| (0..count).map(move |_| bytes)).collect();
        let one = pen.measured_bytes();
        let name = call.as_str();
        ensure(Law::Device, name == texts::name(call), || format!("{call:?} has the name {name}"))?;
        let seen = (MeasuredH200.cost_ns(call, one), MeasuredH200.cost_of_handles_ns(call, &sizes));
        let expected = (Prices::Measured.of(call, one), Prices::Measured.of_pieces(call, &each));
        ensure(Law::Device, seen == expected, || {
            format!("{name} of {one} bytes and of {sizes:?} costs {seen:?}, expected {expected:?}")
        })?;
        let free = (NoCost.cost_ns(call, one), NoCost.cost_of_handles_ns(call, &sizes));
        ensure(Law::Device, free == (0, 0), || format!("{name} costs {free:?} where calls are free"))?;
    }
    Ok(CallName::COUNT as u64)
}

/// Places and frees ranges by one rule.
pub(crate) fn addresses(seed: u64) -> Result<u64, Broken> {
    let mut pen = Pen::new(seed);
    let is_reservation = pen.below(2) == 0;
    let rule = pen.rule(is_reservation);
    let mut model = with_model!(rule, |model| Box::new(model) as Box<dyn AddressModel>);
    let mut placer = Placer::new(&rule);
    let mut live: Vec<(u64, u64)> = Vec::new();
    let steps = 20 + pen.below(80);
    for step in 0..steps {
        if pen.below(5) < 2 && !live.is_empty() {
            let (address, bytes) = live.swap_remove(pen.below(live.len() as u64) as usize);
            model.release(address, bytes);
            placer.release(address, bytes);
            continue;
        }
        let bytes = pen.placed_bytes();
        let (seen, expected) = (model.place(bytes, bytes), placer.place(bytes, bytes));
        ensure(Law::Device, seen == expected, || {
            format!("under {rule:?}, with {live:x?}, step {step} places {bytes} bytes at {seen:x?}, expected {expected:x?}")
        })?;
        live.extend(seen.map(|address| (address, bytes)));
        if pen.below(20) == 0 {
            let clone = model.boxed_clone();
            let mut original = std::mem::replace(&mut model, clone);
            original.place(PAGE, PAGE);
        }
    }
    Ok(steps)
}

/// A process in which other code uses the address space too: the program's steps, and how many actions of the other code there
/// were.
fn process(pen: &mut Pen) -> (Vec<PlacementStep>, u64) {
    let rules = [
        Rule::Observed,
        Rule::Observed,
        Rule::Observed,
        Rule::Reuse(ASCENDING_START),
        Rule::Up(1 << 46, 0),
        Rule::Down(1 << 46, 0),
    ];
    let rule = &rules[pen.below(6) as usize];
    let mut placer = Placer::new(rule);
    let (mut own, mut other, mut steps) = (Vec::new(), Vec::new(), Vec::new());
    let mut actions = u64::from(*rule != Rule::Observed);
    let others = pen.below(3);
    for _ in 0..others * 4 {
        let bytes = pen.placed_bytes().min(512 * MIB);
        other.extend(placer.place(bytes, bytes).map(|address| (address, bytes)));
        actions += 1;
    }
    // A request frees ranges before it takes one.
    let mut moment = 0;
    for _ in 0..20 + pen.below(60) {
        if others > 0 && pen.below(12) == 0 {
            actions += 1;
            if !other.is_empty() && pen.below(3) > 0 {
                let (address, bytes) = other.swap_remove(pen.below(other.len() as u64) as usize);
                placer.release(address, bytes);
            } else {
                let bytes = pen.placed_bytes().min(512 * MIB);
                other.extend(placer.place(bytes, bytes).map(|address| (address, bytes)));
            }
        }
        if pen.below(3) == 0 && !own.is_empty() {
            let (address, bytes) = own.swap_remove(pen.below(own.len() as u64) as usize);
            placer.release(address, bytes);
            steps.push(PlacementStep { moment, taken: false, address, bytes });
        } else {
            let bytes = pen.placed_bytes().min(512 * MIB);
            let Some(address) = placer.place(bytes, bytes) else { continue };
            own.push((address, bytes));
            steps.push(PlacementStep { moment, taken: true, address, bytes });
            moment += 1;
        }
    }
    (steps, actions)
}

/// The number of processes from which one case learns, and how many of them must be explained entirely.
const PROCESSES: [usize; 2] = [4, 1];

/// Learns address spaces from processes and places their ranges again.
pub(crate) fn learned(seed: u64) -> Result<u64, Broken> {
    let mut pen = Pen::new(seed);
    let [count, least] = PROCESSES;
    let (mut explained, mut operations) = (0, 0);
    for _ in 0..count {
        let (steps, actions) = process(&mut pen);
        explained += usize::from(learn(&steps, actions)?);
        operations += steps.len() as u64;
    }
    ensure(Law::Device, explained >= least, || format!("of {count} processes, only {explained} are explained (draw {seed})"))?;
    Ok(operations)
}

/// Learns from fixed processes, some of whose requests take several ranges: the sums of the placements that follow the rules, of
/// those that nothing explains, and of those that the learned model repeats, all of them and without every seventh step.
const LEARNED: [[usize; 4]; 8] = [
    [296, 9, 258, 108],
    [188, 9, 195, 79],
    [336, 11, 296, 93],
    [192, 8, 195, 65],
    [200, 10, 197, 87],
    [373, 9, 378, 144],
    [314, 9, 305, 154],
    [199, 10, 224, 82],
];

/// Learns from the fixed processes.
fn fixed() -> Result<u64, Broken> {
    let mut operations = 0;
    let mut sums = [[0; 4]; 8];
    for (seed, sums) in (0..).zip(&mut sums) {
        let mut pen = Pen::new(seed);
        for _ in 0..12 {
            let steps = unusual(&mut pen);
            let learned = LearnedAddressSpace::from_steps(&steps);
            let others: Vec<PlacementStep> =
                steps.iter().enumerate().filter(|(place, _)| place % 7 != 6).map(|(_, step)| *step).collect();
            let [all, part] = [&steps, &others].map(|steps| repeated(&learned, steps));
            let counts = [learned.explained, learned.unexplained, all, part];
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
            operations += steps.len() as u64;
        }
    }
    ensure(Law::Device, sums == LEARNED, || format!("what is learned from fixed processes is {sums:?}, expected {LEARNED:?}"))?;
    Ok(operations)
}

/// Returns a process whose requests take up to three ranges, with a step that no recording should have.
fn unusual(pen: &mut Pen) -> Vec<PlacementStep> {
    let (mut steps, _) = process(pen);
    let together = 1 + pen.below(3);
    steps.iter_mut().for_each(|step| step.moment /= together);
    let (taken, address, bytes) = pen.pick(&[(true, 0, 1), (false, 1 << 40, 0), (true, 1 << 57, PAGE)]);
    let place = pen.below(steps.len() as u64) as usize;
    let moment = steps[place].moment;
    steps.insert(place, PlacementStep { moment, taken, address, bytes });
    steps
}

/// Returns how many ranges of a process the learned model places where they were.
fn repeated(learned: &LearnedAddressSpace, steps: &[PlacementStep]) -> usize {
    let mut model = ObservedDriver::learned(learned);
    let mut live = Vec::new();
    let mut count = 0;
    for step in steps {
        model.set_moment(step.moment);
        if step.taken {
            let address = model.place(step.bytes, step.bytes);
            count += usize::from(address == Some(step.address));
            live.extend(address.map(|address| (step.address, address, step.bytes)));
        } else if let Some(place) = live.iter().position(|&(own, _, _)| own == step.address) {
            let (_, address, bytes) = live.remove(place);
            model.release(address, bytes);
        }
    }
    count
}

/// Learns from a process in which other code acted so many times. Returns whether every placement is explained; if so, the
/// learned model must repeat it.
fn learn(steps: &[PlacementStep], actions: u64) -> Result<bool, Broken> {
    let learned = LearnedAddressSpace::from_steps(steps);
    let placements = steps.iter().filter(|step| step.taken).count();
    // Learning gives up if it would take too long.
    if learned.placements == 0 && actions > 0 {
        return Ok(false);
    }
    let (all, explained, unexplained) = (learned.placements, learned.explained, learned.unexplained);
    let is_possible = all == placements && explained + unexplained <= placements && (actions > 0 || unexplained == 0);
    ensure(Law::Device, is_possible, || {
        format!("of {placements} placements, {all} are known, {explained} follow the rules, {unexplained} do not: {steps:x?}")
    })?;
    // The first one shows where the address space ends.
    ensure(Law::Device, actions > 0 || explained + usize::from(placements > 0) == placements, || {
        format!("{explained} of {placements} placements follow the rules, expected all but the first: {steps:x?}")
    })?;
    if unexplained > 0 {
        return Ok(false);
    }
    repeats(&learned, steps)?;
    Ok(true)
}

/// Checks that the learned model places the ranges of a process where they were.
fn repeats(learned: &LearnedAddressSpace, steps: &[PlacementStep]) -> Result<(), Broken> {
    let mut model = ObservedDriver::learned(learned);
    for (number, step) in steps.iter().enumerate() {
        model.set_moment(step.moment);
        if !step.taken {
            model.release(step.address, step.bytes);
            continue;
        }
        let seen = model.place(step.bytes, step.bytes);
        ensure(Law::Device, seen == Some(step.address), || {
            format!("the learned model places step {number} at {seen:x?}, the process at {:x}: {steps:x?}", step.address)
        })?;
    }
    // Beyond what was learned, every address is free.
    let rest = model.place(DESCENDING_END / 4, PAGE);
    ensure(Law::Device, rest.is_some(), || "a run that needs more memory than the recorded one finds none".to_owned())
}

/// Learns from real runs and from fixed processes, which are the same whatever the seed.
pub(crate) fn recorded() -> Result<u64, Broken> {
    Ok(check_recorded()? + fixed()?)
}

const TEXT: &str = include_str!("placements.txt");

/// The placements of one recording.
struct Recorded {
    name: &'static str,
    explained: usize,
    steps: Vec<PlacementStep>,
}

fn recorded_step(word: &str) -> Option<PlacementStep> {
    let sign = word.find(['+', '-'])?;
    let (address, pages) = word[sign + 1..].split_once(',')?;
    Some(PlacementStep {
        moment: word[..sign].parse().ok()?,
        taken: &word[sign..=sign] == "+",
        address: u64::from_str_radix(address, 16).ok()? * PAGE,
        bytes: pages.parse::<u64>().ok()? * PAGE,
    })
}

fn read_recorded() -> Vec<Recorded> {
    let mut all: Vec<Recorded> = Vec::new();
    for line in TEXT.lines() {
        match (line.split_once(" explained "), all.last_mut()) {
            (Some((name, explained)), _) => {
                all.push(Recorded { name, explained: explained.parse().unwrap_or(0), steps: Vec::new() });
            }
            (None, Some(last)) => last.steps.extend(line.split(' ').filter_map(recorded_step)),
            (None, None) => {}
        }
    }
    all
}

/// Learns from each recording, and checks that the learned model repeats the steps.
fn check_recorded() -> Result<u64, Broken> {
    let mut operations = 0;
    for Recorded { name, explained, steps } in read_recorded() {
        let learned = LearnedAddressSpace::from_steps(&steps);
        let seen = (learned.placements, learned.explained, learned.unexplained);
        let expected = (steps.iter().filter(|step| step.taken).count(), explained, 0);
        ensure(Law::Device, seen == expected, || {
            format!("{name}: placements, explained and unexplained ones are {seen:?}, expected {expected:?}")
        })?;
        repeats(&learned, &steps).map_err(|broken| broken.during(name))?;
        operations += steps.len() as u64;
    }
    Ok(operations)
}
