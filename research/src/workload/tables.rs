//! The tables of docs/workloads.md: made from the generators and compared with the page.

use super::CATALOGUE;
use super::generators::Optimizer;
use super::generators::chain::{Chain, Keeping};
use super::generators::transformer::{Attention, Checkpointing, Precision, Transformer};
use crate::study::largest_batch::{CARDS, CONTEXT_BYTES};

const PAGE: &str = include_str!("../../../docs/workloads.md");

fn gib(bytes: u64) -> String {
    format!("{:.2}", bytes as f64 / (1_u64 << 30) as f64)
}

fn mb(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / 1e6)
}

fn is_on_the_page(rows: &[String]) {
    let missing: Vec<&str> = rows.iter().map(String::as_str).filter(|row| !PAGE.contains(row)).collect();
    assert!(missing.is_empty(), "docs/workloads.md lacks these rows:\n{}", missing.join("\n"));
}

#[test]
fn e1_to_e3_closed_forms() {
    let x = 8 * 2048 * 1024 * 4;
    let mut rows = Vec::new();
    for (inner_bytes, keeping, formula) in [
        (0, Keeping::All, "L B S H 4 (E1)"),
        (0, Keeping::Groups(5), "groups of round(sqrt L) = 5"),
        (4 * x, Keeping::All, "(X + Y) N (E2)"),
        (4 * x, Keeping::Groups(1), "X N + Y"),
        (4 * x, Keeping::Groups(4), "X N / M + X (M - 1) + Y M, M = 4"),
        (4 * x, Keeping::Groups(6), "the same, M = 6"),
        (4 * x, Keeping::Pieces(4), "X N + Y / 4 (E3)"),
        (4 * x, Keeping::Nothing, "X + Y, forward only (E9)"),
    ] {
        let chain = Chain { layers: 24, checkpoint_bytes: x, inner_bytes, fixed_bytes: 0, keeping };
        let (peak, work) = (chain.workload().unwrap().load_bytes(1), chain.work().unwrap());
        assert_eq!(peak, if inner_bytes == 0 && keeping == Keeping::Nothing { x } else { chain.peak_bytes() });
        rows.push(format!("| {formula} | {} x X | {} | {:.0} % |", inner_bytes / x, mb(peak), 100.0 * work.overhead()));
    }
    is_on_the_page(&rows);
}

fn peak(transformer: &Transformer) -> u64 {
    transformer.workload(2).unwrap().load_bytes(1)
}

#[test]
fn e5_options() {
    // With a small vocabulary: otherwise the logits would be the peak, whatever the layers do.
    let base = Transformer { batch: 16, vocabulary: 4096, ..Transformer::preset("gpt2-medium").unwrap() };
    let layer = Transformer { checkpointing: Checkpointing::EveryLayer, ..base.clone() };
    let mut rows = Vec::new();
    for (name, changed) in [
        ("none", base.clone()),
        ("`batch=8`", Transformer { batch: 8, ..base.clone() }),
        ("`accumulation=4`", Transformer { accumulation: 4, ..base.clone() }),
        ("`precision=fp32`", Transformer { precision: Precision::Fp32, ..base.clone() }),
        ("`master_copy=on`", Transformer { master_copy: true, ..base.clone() }),
        ("`attention=materialized`", Transformer { attention: Attention::Materialized, ..base.clone() }),
        ("`optimizer=sgd`", Transformer { optimizer: Optimizer::Sgd, ..base.clone() }),
        ("`checkpointing=other`", Transformer { checkpointing: Checkpointing::EveryOther, ..base.clone() }),
        ("`checkpointing=sqrt`", Transformer { checkpointing: Checkpointing::Sqrt, ..base.clone() }),
        ("`checkpointing=layer`", layer.clone()),
        ("`checkpointing=layer,chunks=4`", Transformer { chunks: 4, ..layer }),
        ("`mixed=on`", Transformer { mixed: true, ..base.clone() }),
    ] {
        let overhead = 100.0 * changed.work().unwrap().overhead();
        let share = 100.0 * peak(&changed) as f64 / peak(&base) as f64;
        rows.push(format!("| {name} | {} | {share:.0} % | {overhead:.1} % |", gib(peak(&changed))));
    }
    is_on_the_page(&rows);
}

#[test]
fn e6_a_7b_model_on_devices() {
    let base = Transformer::preset("7b").unwrap();
    let half = 2 * base.parameters();
    let mut rows = Vec::new();
    for (name, changed) in [
        ("`optimizer=sgd`", Transformer { optimizer: Optimizer::Sgd, ..base.clone() }),
        ("none", base.clone()),
        ("`checkpointing=layer`", Transformer { checkpointing: Checkpointing::EveryLayer, ..base.clone() }),
        ("`optimizer_copy=on`", Transformer { optimizer_copy: true, ..base.clone() }),
        ("`batch=4`", Transformer { batch: 4, ..base.clone() }),
        ("`batch=8,checkpointing=layer`", Transformer { batch: 8, checkpointing: Checkpointing::EveryLayer, ..base.clone() }),
        ("`master_copy=on`", Transformer { master_copy: true, ..base.clone() }),
        ("`precision=fp32`", Transformer { precision: Precision::Fp32, ..base }),
    ] {
        let peak = peak(&changed);
        let [a100, h100, h200] = CARDS.map(|card| if peak <= card.total_bytes - CONTEXT_BYTES { "yes" } else { "no" });
        let ratio = peak as f64 / half as f64;
        rows.push(format!("| {name} | {} | {ratio:.1} | {a100} | {h100} | {h200} |", gib(peak)));
    }
    rows.push(CARDS.map(|card| card.name).join(" | "));
    is_on_the_page(&rows);
}

#[test]
fn e8_the_optimizers_copy_in_the_timeline() {
    let small =
        Transformer { layers: 6, hidden: 256, heads: 4, sequence: 256, batch: 8, vocabulary: 1000, ..Transformer::default() };
    let drawn = Transformer { optimizer_copy: true, ..small }.workload(1).unwrap().drawn(100, 10);
    is_on_the_page(&[drawn]);
}

#[test]
fn the_catalogue() {
    let row = |named: &super::NamedWorkload| {
        let workload = named.make(1);
        format!("| `{}` | {} | {} | {} |", named.name, named.says, workload.events.len(), gib(workload.load_bytes(512)))
    };
    is_on_the_page(&CATALOGUE.iter().map(row).collect::<Vec<_>>());
}
