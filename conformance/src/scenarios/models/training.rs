//! E5, E6 and E8: what training a transformer takes, and what the cures do to it.

use crate::backend::AnyBackend;
use crate::suite::{Entry, Evidence, Trouble, Verdict};
use parkade::policy::PyTorch;
use parkade::settings::Settings;
use parkade_policies::named;
use parkade_research::study::largest_batch::{CARDS, CONTEXT_BYTES, Grid, Point, Training};
use parkade_research::study::{RunOptions, run};
use parkade_research::workload::generators::transformer::{Attention, Checkpointing, Precision, Transformer};

use crate::scenarios::story::{claim, failed, format_bytes, scenario};

pub(super) fn entries() -> Vec<Entry> {
    vec![
        scenario("E5", "each cure lowers the peak and raises the largest batch that fits", |_: &AnyBackend| cures()),
        scenario(
            "E6",
            "training 7 billion parameters with Adam takes 4 times their bytes, and 8 with a master copy",
            |_: &AnyBackend| seven_billion(),
        ),
        scenario(
            "E8",
            "the optimizer's second copy of its states is there for a moment, and can be the peak",
            |_: &AnyBackend| second_copy(),
        ),
    ]
}

/// What the cures are tried on: GPT-2 with attention scores in memory and four-byte numbers.
fn base() -> Transformer {
    Transformer {
        precision: Precision::Fp32,
        attention: Attention::Materialized,
        vocabulary: 4096,
        batch: 8,
        ..Transformer::default()
    }
}

/// The device of the largest batch, in bytes.
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
    let (plain, plain_batch) = (peak(&base())?, largest_batch(&base())?);
    for (name, transformer) in all {
        let (found, batch) = (peak(&transformer)?, largest_batch(&transformer)?);
        claim(name == "none" || found < plain, || format!("{name}: {found} bytes, {plain} without"))?;
        // A smaller batch is a way to fit, and does not make a larger one fit.
        let is_batch = transformer.batch != base().batch;
        claim(name == "none" || is_batch || batch > plain_batch, || {
            format!("{name}: a batch of {batch}, {plain_batch} without")
        })?;
        let again = transformer.work().map_err(failed)?.overhead() * 100.0;
        let (part, peak) = (found as f64 / plain as f64 * 100.0, format_bytes(found));
        text += &format!("{name:<30} {peak:>10} {part:>4.0} % {again:>10.1} % {batch:>14}\n");
    }
    Ok(Evidence::text(text))
}

fn peak(transformer: &Transformer) -> Result<u64, Trouble> {
    Ok(transformer.workload(2).map_err(failed)?.load_bytes(512))
}

/// The largest batch that PyTorch's policy trains in the device's memory.
fn largest_batch(transformer: &Transformer) -> Result<u64, Trouble> {
    let points = walk(&grid(transformer.clone(), vec![DEVICE_BYTES])?)?;
    Ok(points.first().map_or(0, |point| point.batch))
}

fn grid(transformer: Transformer, devices_bytes: Vec<u64>) -> Result<Grid, Trouble> {
    Ok(Grid {
        trainings: vec![Training { name: "model".to_owned(), transformer, steps: 2 }],
        devices_bytes,
        context_bytes: CONTEXT_BYTES,
        policies: vec![named("pytorch").ok_or_else(|| failed("there is no policy pytorch"))?],
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
    // So few tokens that the update is the peak.
    let plain =
        Transformer { layers: 6, hidden: 256, heads: 4, sequence: 1, batch: 1, vocabulary: 1000, ..Transformer::default() };
    let copying = Transformer { optimizer_copy: true, ..plain.clone() };
    let weights = 2 * plain.parameters();
    let mut text = format!("weights {weights} B; beside them as much of gradients and twice as much of Adam's states\n");
    let mut peaks = Vec::new();
    for (name, transformer) in [("in place", &plain), ("with a second copy", &copying)] {
        let workload = transformer.workload(2).map_err(failed)?;
        let outcome = run(&workload, Box::new(PyTorch::new(Settings::default())), &RunOptions::new(1 << 34));
        let (peak, end) = (workload.load_bytes(1), workload.curve().last().copied().unwrap_or(0));
        claim(outcome.fits() && end == 3 * weights, || format!("{name}: {end} bytes live at the end, {:?}", outcome.ending))?;
        text += &format!(
            "{name:<20} at most {peak:>9} B, {:.2} times the weights; PyTorch reserves {}\n{}",
            peak as f64 / weights as f64,
            format_bytes(outcome.peak_reserved_bytes),
            workload.drawn(100, 8)
        );
        peaks.push(peak);
    }
    claim(peaks[1] == 6 * weights && peaks[0] < peaks[1], || format!("{peaks:?} bytes at most"))?;
    Ok(Evidence::text(text))
}
