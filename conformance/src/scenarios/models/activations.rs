//! E1 to E4 and E7: closed forms for the peak of activations, against the peak of generated programs.

use crate::backend::AnyBackend;
use crate::suite::{Entry, Evidence, Trouble, Verdict};
use parkade_research::workload::generators::chain::{Chain, Keeping};
use parkade_research::workload::generators::transformer::{Checkpointing, Transformer};

use crate::scenarios::story::{claim, failed, scenario};

pub(super) fn entries() -> Vec<Entry> {
    vec![
        scenario(
            "E1",
            "L B S H 4 bytes are the exact peak; sqrt(L) B S H 4 are about what checkpointing keeps, not its peak",
            |_: &AnyBackend| formula(),
        ),
        scenario(
            "E2",
            "the peaks without checkpointing, with every layer and with every M layers equal the formulas, over a grid",
            |_: &AnyBackend| checkpointing(),
        ),
        scenario("E3", "the peak of nano-batching equals N X + Y / chunks, over a grid", |_: &AnyBackend| nano_batching()),
        scenario("E4", "the toy programs' peaks come out from sizes that are fitted once", |_: &AnyBackend| toys()),
        scenario("E7", "checkpointing does a third more work: one more forward pass", |_: &AnyBackend| work()),
    ]
}

fn chain(layers: u64, checkpoint_bytes: u64, inner_bytes: u64, keeping: Keeping) -> Chain {
    Chain { layers, checkpoint_bytes, inner_bytes, fixed_bytes: 0, keeping }
}

/// The most bytes that live at once in the generated program.
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
    // What is left between forward and backward, when the last group is about to be recomputed.
    let kept = layers.div_ceil(5) * activation;
    let recomputing = peak(&groups)?;
    claim(groups.keeping == Keeping::Groups(5) && kept == 335_544_320 && recomputing == 8 * activation, || {
        format!("{:?}: {kept} kept, {recomputing} at most", groups.keeping)
    })?;
    claim(workload.curve().contains(&kept), || format!("{kept} bytes never live"))?;
    let line = |what: &str, bytes: f64| format!("{what:<52} {bytes:>13.0} B {:>8.1} MB\n", bytes / 1e6);
    Ok(Evidence::text(
        [
            format!("L {layers}, B {batch}, S {sequence}, H {hidden}\n"),
            line("L B S H 4, and the generated peak", all as f64),
            line("sqrt(L) B S H 4", root),
            line("kept by 5 groups of 5 layers (the last has 4)", kept as f64),
            line("their generated peak, with a recomputed group", recomputing as f64),
        ]
        .concat(),
    ))
}

/// Layers, and sizes of a checkpoint and of what is inside a layer.
const MOST_LAYERS: u64 = 24;
const SIZES: [(u64, u64); 5] = [(1, 1), (10, 3), (3, 100), (7, 0), (1000, 1001)];

fn grid() -> impl Iterator<Item = (u64, u64, u64)> {
    (1..=MOST_LAYERS).flat_map(|layers| SIZES.map(|(outer, inner)| (layers, outer, inner)))
}

/// The generated peak must be the formula's. Counts what was checked.
fn check(chain: &Chain, formula: u64, checked: &mut u64) -> Result<(), Trouble> {
    let found = peak(chain)?;
    *checked += 1;
    claim(found == formula, || format!("{chain:?}: the formula gives {formula}, the program {found}"))
}

fn checkpointing() -> Verdict {
    let mut checked = [0; 3];
    for (n, x, y) in grid() {
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
    for (n, x, y) in grid() {
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

/// A toy program of the notes: sizes fitted to its numbers, and what was measured for each way of running it.
struct Toy {
    name: &'static str,
    /// What was measured is in these.
    unit: &'static str,
    /// The fitted sizes are in so small parts of it.
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
            "{name}: N {layers}, X {:.3}, Y {:.3}, always there {:.3} {unit}\n",
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
    let mut text = String::from("forward passes of a chain of 12 layers, a layer being 1\n");
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
