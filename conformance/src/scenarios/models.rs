//! Scenarios E: how much memory models take, according to formulas and generated programs.

use parkade::policy::PyTorch;
use parkade::settings::Settings;
use parkade_policies::named;
use parkade_research::study::largest_batch::{CARDS, CONTEXT_BYTES, Grid, Point, Training};
use parkade_research::study::{RunOptions, run};
use parkade_research::workload::generators::autograd::{Backward, Block, Operation};
use parkade_research::workload::generators::chain::{Chain, Keeping};
use parkade_research::workload::generators::transformer::{Attention, Checkpointing, Precision, Transformer};
use parkade_research::workload::{Event, Workload};

use crate::backend::AnyBackend;
use crate::scenarios::story::{Finding, Row, claim, failed, format_bytes, scenario};
use crate::suite::{Entry, Evidence, Trouble, Verdict};

pub(crate) const ROWS: &[Row] = &[
    Row {
        id: "E1",
        claim: "Activations take L B S H 4 bytes: about 1.5 GB for 24 x 8 x 2048 x 1024; with checkpointing every sqrt(L) \
                layers, about 310 MB.",
        finding: Finding::Different,
        found: "The first figure is exact: 1,610,612,736 bytes, which is 1.5 GiB. The second covers only the checkpoints (335.5 \
                MB with whole layers); the peak also includes a group that is being recomputed: 536.9 MB.",
    },
    Row {
        id: "E2",
        claim: "With N layers, the peak is (X + Y) N without checkpointing, X N + Y if every layer is recomputed, and X N / M + \
                X (M - 1) + Y M with a checkpoint every M layers.",
        finding: Finding::Reproduced,
        found: "The generated peak equals the formula in all 660 programs on a grid.",
    },
    Row {
        id: "E3",
        claim: "With nano-batching, the peak is N X + Y / chunks.",
        finding: Finding::Reproduced,
        found: "The generated peak equals the formula in all 480 programs on a grid.",
    },
    Row {
        id: "E4",
        claim: "Toy programs: 940.07 and 688.08 MB; 1516.14, 880.14 and 748.14 MB; 4.11, 15.83 and 8.24 GB.",
        finding: Finding::Reproduced,
        found: "The notes do not state the sizes. With sizes fitted to all figures except 748.14 MB, every generated peak is \
                within 0.1 % of the figure in the notes, including the one that was left out (generated: 747.64 MB).",
    },
    Row {
        id: "E5",
        claim: "Smaller batches, gradient accumulation, mixed precision, memory-efficient attention and selective \
                checkpointing help against running out of memory.",
        finding: Finding::Reproduced,
        found: "Each remedy lowers GPT-2's peak to between 35 % and 59 % of its original value. All except the \
                smaller batch raise the largest batch \
                that fits, from 18 to between 31 and 72.",
    },
    Row {
        id: "E6",
        claim: "Training a 7B model with Adam takes more than 4 to 6 times the memory of its parameters.",
        finding: Finding::Reproduced,
        found: "Before activations it is 4 times in half precision and 8 times with a master copy: 49.55 GiB, too much for a \
                40 GB card, and 99.09 GiB, which needs a 141 GB card.",
    },
    Row {
        id: "E7",
        claim: "Checkpointing costs about 33 % more compute.",
        finding: Finding::Reproduced,
        found: "It costs a third (33.3 %) for the layers that are recomputed. For all of GPT-2 it is 24.3 %, because the head \
                is not recomputed.",
    },
    Row {
        id: "E8",
        claim: "The optimizer step briefly holds a second copy of its states.",
        finding: Finding::Reproduced,
        found: "With this copy, a small model's peak is 6.00 times its weights instead of 4.05. The copy is an option in the \
                generator, because not every optimizer makes one.",
    },
    Row {
        id: "E9",
        claim: "Lifetimes in autograd: saved tensors live until their operation's backward pass; softmax saves its output; \
                detach allocates nothing; gradients are assigned at first, then added in place; a forward-only run holds two \
activations.",
        finding: Finding::Reproduced,
        found: "Each rule is shown by the requests of a few operations, in order; in a forward-only run, at most 2 \
                activations are live. The output draws the patterns in the notes.",
    },
];

/// None of these entries uses a device.
pub(crate) fn entries(backend: &AnyBackend) -> Vec<Entry> {
    if !backend.is_simulated() {
        return Vec::new();
    }
    [activations(), training(), lifetimes()].into_iter().flatten().collect()
}

/// E1 to E4 and E7: closed forms for the activations' peak, compared with the peaks of generated programs.
fn activations() -> Vec<Entry> {
    vec![
        scenario(
            "E1",
            "L B S H 4 bytes is the exact peak; sqrt(L) B S H 4 bytes is roughly the size of the checkpoints, not the peak",
            |_: &AnyBackend| formula(),
        ),
        scenario(
            "E2",
            "on a grid, the peaks without checkpointing, with every layer checkpointed and with every M layers checkpointed \
             equal the formulas",
            |_: &AnyBackend| checkpointing(),
        ),
        scenario("E3", "on a grid, the peak with nano-batching equals N X + Y / chunks", |_: &AnyBackend| nano_batching()),
        scenario("E4", "one set of fitted sizes reproduces the peaks of each toy program", |_: &AnyBackend| toys()),
        scenario("E7", "checkpointing adds one forward pass, a third more work", |_: &AnyBackend| work()),
    ]
}

fn chain(layers: u64, checkpoint_bytes: u64, inner_bytes: u64, keeping: Keeping) -> Chain {
    Chain { layers, checkpoint_bytes, inner_bytes, fixed_bytes: 0, keeping }
}

/// Returns the peak of live bytes in the generated program.
fn peak(chain: &Chain) -> Result<u64, Trouble> {
    let workload = chain.workload().map_err(failed)?;
    workload.check().map_err(|problem| failed(format!("{chain:?}: {problem:?}")))?;
    Ok(workload.load_bytes(1))
}

fn formula() -> Verdict {
    let (layers, batch, sequence, hidden) = (24_u64, 8, 2048, 1024);
    let activation = batch * sequence * hidden * 4;
    let all = peak(&chain(layers, activation, 0, Keeping::All))?;
    claim(all == layers * activation && all == 1_610_612_736, || format!("without checkpointing {all}"))?;
    let root = ((layers as f64).sqrt() * activation as f64).round();
    let groups = chain(layers, activation, 0, Chain::sqrt(layers));
    let workload = groups.workload().map_err(failed)?;
    // The memory left between forward and backward, when the last group is about to be recomputed.
    let kept = layers.div_ceil(5) * activation;
    let recomputing = peak(&groups)?;
    claim(groups.keeping == Keeping::Groups(5) && kept == 335_544_320 && recomputing == 8 * activation, || {
        format!("{:?}: {kept} bytes of checkpoints, a peak of {recomputing} bytes", groups.keeping)
    })?;
    claim(workload.curve().contains(&kept), || format!("there is no point at which {kept} bytes are live"))?;
    let line = |what: &str, bytes: f64| format!("{what:<52} {bytes:>13.0} B {:>8.1} MB\n", bytes / 1e6);
    Ok(Evidence::text(
        [
            format!("L {layers}, B {batch}, S {sequence}, H {hidden}\n"),
            line("L B S H 4, and the generated peak", all as f64),
            line("sqrt(L) B S H 4", root),
            line("kept by 5 groups of 5 layers (the last has 4)", kept as f64),
            line("their generated peak, including a recomputed group", recomputing as f64),
        ]
        .concat(),
    ))
}

/// Layers, and the sizes of a checkpoint and of a layer's inner memory.
const MOST_LAYERS: u64 = 24;
const SIZES: [(u64, u64); 5] = [(1, 1), (10, 3), (3, 100), (7, 0), (1000, 1001)];

fn chain_shapes() -> impl Iterator<Item = (u64, u64, u64)> {
    (1..=MOST_LAYERS).flat_map(|layers| SIZES.map(|(outer, inner)| (layers, outer, inner)))
}

/// Checks that the generated peak equals the formula's, and counts the checks.
fn check(chain: &Chain, formula: u64, checked: &mut u64) -> Result<(), Trouble> {
    let found = peak(chain)?;
    *checked += 1;
    claim(found == formula, || format!("{chain:?}: the formula predicts {formula}, the program has {found}"))
}

fn checkpointing() -> Verdict {
    let mut checked = [0; 3];
    for (n, x, y) in chain_shapes() {
        check(&chain(n, x, y, Keeping::All), (x + y) * n, &mut checked[0])?;
        check(&chain(n, x, y, Keeping::Groups(1)), x * n + y, &mut checked[1])?;
        for m in (1..=n).filter(|m| n.is_multiple_of(*m)) {
            check(&chain(n, x, y, Keeping::Groups(m)), x * (n / m) + x * (m - 1) + y * m, &mut checked[2])?;
        }
    }
    let [all, every, groups] = checked;
    Ok(Evidence::text(format!(
        "N from 1 to {MOST_LAYERS}, {} pairs of X and Y: the generated peak equals the formula in all {} programs\n\
         (X + Y) N                     {all:>4} programs\n\
         X N + Y                       {every:>4} programs\n\
         X N / M + X (M - 1) + Y M     {groups:>4} programs, every M that divides N\n",
        SIZES.len(),
        all + every + groups
    )))
}

fn nano_batching() -> Verdict {
    let mut checked = 0;
    for (n, x, y) in chain_shapes() {
        for pieces in (1..=y).filter(|pieces| y.is_multiple_of(*pieces)) {
            check(&chain(n, x, y, Keeping::Pieces(pieces)), x * n + y / pieces, &mut checked)?;
        }
    }
    Ok(Evidence::text(format!(
        "N from 1 to {MOST_LAYERS}, {} pairs of X and Y: the generated peak equals the formula\n\
         N X + Y / chunks              {checked:>4} programs, every number of chunks that divides Y\n",
        SIZES.len()
    )))
}

/// A toy program from the notes: sizes fitted to its numbers, and the measurement for each way of running it.
struct Toy {
    name: &'static str,
    /// The unit of the measurements.
    unit: &'static str,
    /// The fitted sizes are stated in this fraction of the unit.
    parts: f64,
    chain: Chain,
    measured: &'static [(&'static str, Keeping, f64)],
}

const fn fitted(layers: u64, checkpoint_bytes: u64, inner_bytes: u64, fixed_bytes: u64) -> Chain {
    Chain { layers, checkpoint_bytes, inner_bytes, fixed_bytes, keeping: Keeping::All }
}

const TOYS: [Toy; 3] = [
    Toy {
        name: "checkpointing",
        unit: "MB",
        parts: 1e2,
        chain: fitted(5, 12_500, 6_300, 7),
        measured: &[("everything kept", Keeping::All, 940.07), ("every layer recomputed", Keeping::Groups(1), 688.08)],
    },
    Toy {
        name: "nano-batching",
        unit: "MB",
        parts: 1e2,
        chain: fitted(5, 14_420, 15_900, 14),
        measured: &[
            ("everything kept", Keeping::All, 1516.14),
            ("every layer recomputed", Keeping::Groups(1), 880.14),
            ("in 6 chunks", Keeping::Pieces(6), 748.14),
        ],
    },
    Toy {
        name: "memory usage",
        unit: "GB",
        parts: 1e4,
        chain: fitted(4, 13_767, 25_300, 2_033),
        measured: &[
            ("forward only", Keeping::Nothing, 4.11),
            ("forward and backward", Keeping::All, 15.83),
            ("every layer recomputed", Keeping::Groups(1), 8.24),
        ],
    },
];

fn toys() -> Verdict {
    let mut text = String::new();
    for Toy { name, unit, parts, chain, measured } in TOYS {
        let size = |bytes: u64| bytes as f64 / parts;
        let Chain { layers, checkpoint_bytes, inner_bytes, fixed_bytes, .. } = chain;
        text += &format!(
            "{name}: N {layers}, X {:.3}, Y {:.3}, always live {:.3} {unit}\n",
            size(checkpoint_bytes),
            size(inner_bytes),
            size(fixed_bytes)
        );
        for &(how, keeping, expected) in measured {
            let found = size(peak(&Chain { keeping, ..chain })?);
            claim((found / expected - 1.0).abs() < 0.001, || format!("{name}, {how}: measured {expected}, generated {found}"))?;
            text += &format!("  {how:<24} measured {expected:>8.2}  generated {found:>8.2} {unit}\n");
        }
    }
    text += "every generated peak is within 0.1 % of the measured one\n";
    Ok(Evidence::text(text))
}

fn work() -> Verdict {
    let mut text = String::from("forward passes of a chain of 12 layers, counted in layers\n");
    for (how, keeping) in [
        ("everything kept", Keeping::All),
        ("every layer recomputed", Keeping::Groups(1)),
        ("groups of 4 recomputed", Keeping::Groups(4)),
        ("in 3 chunks", Keeping::Pieces(3)),
    ] {
        let work = chain(12, 10, 30, keeping).work().map_err(failed)?;
        let expected = if keeping == Keeping::All { 0.0 } else { 1.0 / 3.0 };
        claim((work.overhead() - expected).abs() < 1e-12, || format!("{how}: {work:?}"))?;
        text += &format!(
            "{how:<24} forward {:>2}, backward {:>2}, again {:>2}: {:>4.1} % more\n",
            work.forward,
            work.backward,
            work.recomputed,
            work.overhead() * 100.0
        );
    }
    text += "GPT-2, floating-point operations of one step\n";
    for (how, checkpointing) in
        [("every layer recomputed", Checkpointing::EveryLayer), ("every other layer recomputed", Checkpointing::EveryOther)]
    {
        let work = Transformer { checkpointing, ..Transformer::default() }.work().map_err(failed)?;
        claim(work.overhead() < 1.0 / 3.0, || format!("{how}: {work:?}"))?;
        text += &format!("{how:<28} {:>4.1} % more: the head is not recomputed\n", work.overhead() * 100.0);
    }
    Ok(Evidence::text(text))
}

/// E5, E6 and E8: how much memory training a transformer takes, and the effect of the remedies.
fn training() -> Vec<Entry> {
    vec![
        scenario(
            "E5",
            "each remedy lowers the peak, and all except the smaller batch raise the largest batch that fits",
            |_: &AnyBackend| cures(),
        ),
        scenario(
            "E6",
            "training 7 billion parameters with Adam takes 4 times their bytes, and 8 times with a master copy",
            |_: &AnyBackend| seven_billion(),
        ),
        scenario(
            "E8",
            "the optimizer's second copy of its states exists only briefly, but can set the peak",
            |_: &AnyBackend| second_copy(),
        ),
    ]
}

/// The model on which the remedies are tried: GPT-2 with attention scores in memory and four-byte numbers.
fn base() -> Transformer {
    Transformer {
        precision: Precision::Fp32,
        attention: Attention::Materialized,
        vocabulary: 4096,
        batch: 8,
        ..Transformer::default()
    }
}

/// The memory of the device for the largest batch, in bytes.
const DEVICE_BYTES: u64 = 24 << 30;

fn cures() -> Verdict {
    let all: [(&str, Transformer); 6] = [
        ("none", base()),
        ("half the batch", Transformer { batch: 4, ..base() }),
        ("gradient accumulation, 4", Transformer { accumulation: 4, ..base() }),
        ("half precision", Transformer { precision: Precision::Half, ..base() }),
        ("memory-efficient attention", Transformer { attention: Attention::Fused, ..base() }),
        ("every other layer recomputed", Transformer { checkpointing: Checkpointing::EveryOther, ..base() }),
    ];
    let mut text = format!(
        "GPT-2, {} words, {} x {} tokens, Adam; the largest batch on a device of {}\n{:<30} {:>10} {:>6} {:>12} {:>14}\n",
        base().vocabulary,
        base().batch,
        base().sequence,
        format_bytes(DEVICE_BYTES),
        "cure",
        "peak",
        "",
        "work again",
        "largest batch"
    );
    let (plain, plain_batch) = (training_peak(&base())?, largest_batch(&base())?);
    for (name, transformer) in all {
        let (found, batch) = (training_peak(&transformer)?, largest_batch(&transformer)?);
        claim(name == "none" || found < plain, || format!("{name}: the peak is {found} bytes with it and {plain} without it"))?;
        // A smaller batch is one way to fit; it does not make a larger one fit.
        let is_batch = transformer.batch != base().batch;
        claim(name == "none" || is_batch || batch > plain_batch, || {
            format!("{name}: a batch of {batch} fits with it, {plain_batch} without it")
        })?;
        let again = transformer.work().map_err(failed)?.overhead() * 100.0;
        let (part, peak) = (found as f64 / plain as f64 * 100.0, format_bytes(found));
        text += &format!("{name:<30} {peak:>10} {part:>4.0} % {again:>10.1} % {batch:>14}\n");
    }
    Ok(Evidence::text(text))
}

fn training_peak(transformer: &Transformer) -> Result<u64, Trouble> {
    Ok(transformer.workload(2).map_err(failed)?.load_bytes(512))
}

/// Returns the largest batch that PyTorch's policy can train in the device's memory.
fn largest_batch(transformer: &Transformer) -> Result<u64, Trouble> {
    let points = walk(&grid(transformer.clone(), vec![DEVICE_BYTES])?)?;
    Ok(points.first().map_or(0, |point| point.batch))
}

fn grid(transformer: Transformer, devices_bytes: Vec<u64>) -> Result<Grid, Trouble> {
    Ok(Grid {
        trainings: vec![Training { name: "model".to_owned(), transformer, steps: 2 }],
        devices_bytes,
        context_bytes: CONTEXT_BYTES,
        policies: vec![named("pytorch").map_err(|why| failed(format!("pytorch: {why}")))?],
        most_batch: 512,
    })
}

fn walk(grid: &Grid) -> Result<Vec<Point>, Trouble> {
    grid.walk(&|| ()).map_err(failed)
}

fn seven_billion() -> Verdict {
    let model = Transformer::preset("7b").ok_or_else(|| failed("there is no model 7b"))?;
    let mut text = format!(
        "{:.2} billion parameters; the largest batch of {} tokens on each card\n{:<34} {:>10} {:>8}",
        model.parameters() as f64 / 1e9,
        model.sequence,
        "",
        "states",
        "weights"
    );
    for card in CARDS {
        text += &format!(" {:>12}", card.name);
    }
    text.push('\n');
    let devices: Vec<u64> = CARDS.iter().map(|card| card.total_bytes).collect();
    for (name, master_copy, times, fits) in [
        ("two bytes, states of two", false, 4, [false, true, true]),
        ("two bytes, a master copy of four", true, 8, [false, false, true]),
    ] {
        let points = walk(&grid(Transformer { master_copy, ..model.clone() }, devices.clone())?)?;
        let training = points.first().map(|point| &point.case.training).ok_or_else(|| failed("nothing was searched"))?;
        let (states, weights) = (training.state_bytes(), training.parameter_bytes());
        claim(states == times * weights, || format!("{name}: {states} bytes of states for {weights} of weights"))?;
        let batches: Vec<u64> = points.iter().map(|point| point.batch).collect();
        claim(batches.iter().map(|&batch| batch > 0).eq(fits), || format!("{name}: {batches:?}"))?;
        text += &format!("{name:<34} {:>10} {:>8}", format_bytes(states), format!("x {times}"));
        for batch in batches {
            text += &format!(" {:>12}", if batch == 0 { "does not fit".to_owned() } else { batch.to_string() });
        }
        text.push('\n');
    }
    Ok(Evidence::text(text))
}

fn second_copy() -> Verdict {
    // The step has so few tokens that the peak is reached during the update.
    let plain =
        Transformer { layers: 6, hidden: 256, heads: 4, sequence: 1, batch: 1, vocabulary: 1000, ..Transformer::default() };
    let copying = Transformer { optimizer_copy: true, ..plain.clone() };
    let weights = 2 * plain.parameters();
    let mut text = format!("weights {weights} B; in addition, gradients of the same size and Adam's states of twice that size\n");
    let mut peaks = Vec::new();
    for (name, transformer) in [("in place", &plain), ("with a second copy", &copying)] {
        let workload = transformer.workload(2).map_err(failed)?;
        let outcome = run(&workload, Box::new(PyTorch::new(Settings::default())), &RunOptions::new(1 << 34));
        let (peak, end) = (workload.load_bytes(1), workload.curve().last().copied().unwrap_or(0));
        claim(outcome.fits() && end == 3 * weights, || format!("{name}: {end} bytes are live at the end, {:?}", outcome.ending))?;
        text += &format!(
            "{name:<20} at most {peak:>9} B, {:.2} times the weights; PyTorch reserves {}\n{}",
            peak as f64 / weights as f64,
            format_bytes(outcome.peak_reserved_bytes),
            workload.drawn(100, 8)
        );
        peaks.push(peak);
    }
    claim(peaks[1] == 6 * weights && peaks[0] < peaks[1], || format!("the peaks are {peaks:?} bytes"))?;
    Ok(Evidence::text(text))
}

/// E9: how long autograd keeps tensors. Each rule is tested on the requests that the generator makes for a few
/// operations.
fn lifetimes() -> Vec<Entry> {
    vec![
        scenario(
            "E9/rules",
            "the requests for saved tensors, softmax, detach and gradients are made in the expected order",
            |_: &AnyBackend| rules(),
        ),
        scenario(
            "E9/patterns",
            "the patterns in the notes are drawn: up up up, down down down; up and down; with checkpointing, up (up down)",
            |_: &AnyBackend| patterns(),
        ),
    ]
}

/// Returns the requests of a program, in order, as `+size` and `-size`. The sizes identify the
/// tensors.
fn requests(workload: &Workload) -> String {
    let mut sizes = Vec::new();
    let mut all = Vec::new();
    for event in &workload.events {
        match *event {
            Event::Allocate { bytes, .. } => {
                sizes.push(bytes);
                all.push(format!("+{bytes}"));
            }
            Event::Free { buffer } => all.push(format!("-{}", sizes.get(buffer as usize).copied().unwrap_or(0))),
            _ => {}
        }
    }
    all.join(" ")
}

/// Returns a program of operations in sequence, after an input of 1 byte.
fn block(operations: Vec<Operation>) -> Block {
    let mut block = Block::new(1);
    for operation in operations {
        block.push(operation);
    }
    block
}

/// A rule, the operations that show it, the number of forward and backward passes, and the requests that follow from the rule.
struct Rule {
    says: &'static str,
    operations: Vec<Operation>,
    passes: usize,
    forward: &'static str,
    backward: &'static str,
}

fn all_rules() -> Vec<Rule> {
    vec![
        Rule {
            says: "a tensor that an operation saves lives until the operation's backward pass has run (the first saves 1, the \
                   third 20)",
            operations: vec![
                Operation::new(&[0], 10).keeps_inputs(),
                Operation::new(&[1], 20),
                Operation::new(&[2], 30).keeps_inputs(),
            ],
            passes: 1,
            forward: "+1 +10 +20 -10 +30 -30",
            backward: "+30 +20 -30 -20 +10 -20 +1 -10 -1 -1",
        },
        Rule {
            says: "softmax (11) saves its output, not its input (10), which is freed as soon as the output exists",
            operations: vec![Operation::new(&[0], 10), Operation::new(&[1], 11).keeps_output(), Operation::new(&[2], 5)],
            passes: 1,
            forward: "+1 +10 -1 +11 -10 +5 -5",
            backward: "+5 +11 -5 +10 -11 -11 +1 -10 -1",
        },
        Rule {
            says: "detach, after the first operation, shares its memory: nothing is allocated, and no gradient passes beyond it",
            operations: vec![
                Operation::new(&[0], 10).keeps_inputs(),
                Operation::in_place(1).backward(Backward::Stops),
                Operation::new(&[2], 30).keeps_inputs(),
            ],
            passes: 1,
            forward: "+1 +10 +30 -30",
            backward: "+30 +10 -30 -10 -10 -1",
        },
        Rule {
            says: "the first gradient of a parameter (7) is assigned; the second is added in place and freed immediately",
            operations: vec![Operation::new(&[0], 10).keeps_inputs().parameters(&[7])],
            passes: 2,
            forward: "+1 +10 -10",
            backward: "+10 +1 +7 -10 -1 -1 +1 +10 -10 +10 +1 +7 -10 -1 -7 -1 -7",
        },
    ]
}

fn rules() -> Verdict {
    let mut text = String::new();
    for Rule { says, operations, passes, forward, backward } in all_rules() {
        let found = requests(&block(operations).trained(passes).map_err(failed)?);
        claim(found == format!("{forward} {backward}"), || {
            format!("{says}: expected the requests {forward} {backward}, found {found}")
        })?;
        text += &format!("{says}\n  forward   {forward}\n  backward  {backward}\n");
    }
    let forward_only = block(vec![Operation::new(&[0], 1).keeps_inputs().keeps_output()]).forward_only(10).map_err(failed)?;
    let most = forward_only.load_bytes(1);
    claim(most == 2 && forward_only.buffers() == 11, || format!("{most} bytes are live at once"))?;
    text +=
        &format!("forward only, 10 operations of 1 byte: at most 2 live activations\n  forward   {}\n", requests(&forward_only));
    Ok(Evidence::text(text))
}

fn patterns() -> Verdict {
    let chain = |layers, inner_bytes, keeping| Chain { layers, checkpoint_bytes: 10, inner_bytes, fixed_bytes: 0, keeping };
    let drawings = [
        (
            "forward up up up, backward down down down",
            chain(5, 0, Keeping::All),
            vec!["    #", "   ###", "  #####", " #######", "#########"],
        ),
        ("forward only: up and down", chain(5, 10, Keeping::Nothing), vec![" # # # # # # # # # #", "#####################"]),
        (
            "checkpointing: up (up down), then down (up down)",
            chain(4, 20, Keeping::Groups(1)),
            vec![
                "          # #",
                "       #  # #  #",
                "    #  # ##### #  #",
                " #  # ########### #  #",
                " # ################# #",
                "#######################",
            ],
        ),
    ];
    let mut text = String::new();
    for (says, chain, rows) in drawings {
        let workload = chain.workload().map_err(failed)?;
        let found = workload.drawn(100, rows.len());
        if found.lines().ne(rows.iter().copied()) {
            return Err(Trouble::fail(format!("{says}: expected {rows:#?}, found\n{found}")));
        }
        text += &format!("{says}\n{found}\n");
    }
    Ok(Evidence::text(text))
}
