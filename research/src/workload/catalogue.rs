//! Descriptions of workloads, such as `transformer:layers=24,hidden=1024,checkpointing=sqrt,steps=20`, and the catalogue: 28
//! workloads by name, about 100,000 events each, from all generators that imitate programs. The catalogue's descriptions are
//! those in the table in `docs/workloads.md`.
//!
//! A description is the name of a generator or of a workload of the [catalogue](CATALOGUE), a colon, and options as
//! `key=value` separated by commas. No key may occur twice; the order does not matter, except that `preset` comes first,
//! because it sets all other options. Options after a catalogue name change that workload. Every workload has the option
//! `prealloc`, the number of bytes that are requested and freed before the workload starts
//! ([`preallocate`](super::generators::preallocate)).

use super::Workload;
use super::generators::transformer::Transformer;
use super::generators::{self, WorkloadError};

/// Creates the workload for a description. Its name is the description, with characters that are not allowed in a name
/// replaced.
///
/// # Errors
/// Returns [`WorkloadError`], which names the error and what is allowed.
pub fn parse(text: &str) -> Result<Workload, WorkloadError> {
    let (name, options) = text.split_once(':').unwrap_or((text, ""));
    let made = match named(name) {
        Some(named) => {
            let (generator, own) = named.generator_and_options();
            generators::make(generator, &[own, options])
        }
        None => generators::make(name, &[options]),
    };
    let mut workload = made.unwrap_or_else(|| {
        let known = CATALOGUE.iter().map(|workload| workload.name).chain(generators::names());
        Err(WorkloadError::UnknownWorkload { name: name.into(), allowed: known.collect::<Vec<_>>().join(", ") })
    })?;
    let allowed = |c: char| if c.is_ascii_alphanumeric() || "-_.=".contains(c) { c } else { '.' };
    workload.name = text.chars().map(allowed).collect();
    Ok(workload)
}

/// Returns the transformer that a description trains, and the number of steps, or `None` if the description is not for a
/// `transformer`.
///
/// # Errors
/// Returns [`WorkloadError`], which names the wrong option and what is allowed.
#[must_use]
pub fn transformer(text: &str) -> Option<Result<(Transformer, u64), WorkloadError>> {
    let (name, options) = text.split_once(':').unwrap_or((text, ""));
    let (generator, own) = named(name).map_or((name, ""), |named| named.generator_and_options());
    (generator == generators::TRANSFORMER).then(|| generators::transformer_of(&[own, options]))
}

/// Returns the option keys for a generator or a catalogue workload, or `None` if nothing has this name.
#[must_use]
pub fn keys(name: &str) -> Option<Vec<&'static str>> {
    let generator = named(name).map_or(name, |named| named.generator_and_options().0);
    generators::keys(generator)
}

/// Returns the names of the generators.
pub fn generator_names() -> impl Iterator<Item = &'static str> {
    generators::names()
}

/// A workload in the catalogue.
#[derive(Clone, Copy, Debug)]
pub struct NamedWorkload {
    /// Its name.
    pub name: &'static str,
    /// One sentence that describes it.
    pub says: &'static str,
    /// Its description, as for [`parse`], without a seed.
    pub text: &'static str,
}

impl NamedWorkload {
    /// Creates the workload. The seed determines lengths, arrivals, orders and scratch memory; a workload without any of
    /// these is the same for every seed.
    ///
    /// # Panics
    /// Never panics for a workload in the [`CATALOGUE`], because a test creates each of them.
    #[must_use]
    pub fn make(&self, seed: u64) -> Workload {
        let (generator, own) = self.generator_and_options();
        let made = generators::make(generator, &[own, &format!("seed={seed}")]);
        let workload = made.and_then(Result::ok).expect("a test creates each entry");
        Workload { name: self.name.into(), says: self.says.into(), ..workload }
    }

    /// Returns the two parts of its description.
    fn generator_and_options(&self) -> (&'static str, &'static str) {
        self.text.split_once(':').unwrap_or((self.text, ""))
    }
}

/// Returns the workload with this name.
#[must_use]
pub fn named(name: &str) -> Option<&'static NamedWorkload> {
    CATALOGUE.iter().find(|workload| workload.name == name)
}

/// Returns an entry in the catalogue.
const fn entry(name: &'static str, text: &'static str, says: &'static str) -> NamedWorkload {
    NamedWorkload { name, says, text }
}

/// The workloads that studies use.
pub static CATALOGUE: [NamedWorkload; 28] = [
    entry("gpt2", "transformer:preset=gpt2,steps=100", "GPT-2 small, everything kept, no mixed lifetimes"),
    entry(
        "gpt2-mixed",
        "transformer:preset=gpt2,batch=16,mixed=on,steps=80",
        "GPT-2 small with scratch memory and early batches",
    ),
    entry(
        "gpt2-medium-sqrt",
        "transformer:preset=gpt2-medium,batch=16,checkpointing=sqrt,mixed=on,steps=32",
        "GPT-2 medium, recomputed in groups of sqrt(layers) layers",
    ),
    entry(
        "gpt2-medium-scores",
        "transformer:preset=gpt2-medium,attention=materialized,mixed=on,steps=40",
        "GPT-2 medium with attention scores in memory",
    ),
    entry(
        "gpt2-large-layer",
        "transformer:preset=gpt2-large,batch=16,checkpointing=layer,master_copy=on,mixed=on,steps=25",
        "GPT-2 large, each layer recomputed, with a master copy of the weights",
    ),
    entry(
        "gpt2-xl-pieces",
        "transformer:preset=gpt2-xl,batch=16,checkpointing=layer,chunks=4,mixed=on,steps=4",
        "GPT-2 XL, each layer recomputed in four pieces (nano-batching)",
    ),
    entry(
        "gpt2-xl-other",
        "transformer:preset=gpt2-xl,checkpointing=other,optimizer_copy=on,steps=15",
        "GPT-2 XL, every other layer recomputed, the states copied temporarily in each update",
    ),
    entry(
        "gpt2-fp32-momentum",
        "transformer:preset=gpt2-medium,precision=fp32,optimizer=momentum,checkpointing=4,mixed=on,steps=32",
        "GPT-2 medium in fp32, groups of four layers recomputed, momentum",
    ),
    entry(
        "3b-accumulation",
        "transformer:preset=3b,batch=8,accumulation=4,mixed=on,steps=8",
        "A 2.6B model with four micro-batches a step",
    ),
    entry(
        "7b-layer",
        "transformer:preset=7b,batch=4,checkpointing=layer,mixed=on,steps=24",
        "A 6.7B model, each layer recomputed",
    ),
    entry(
        "mlp-momentum",
        "mlp:batch=8192,optimizer=momentum,drops_gradients=on,steps=350",
        "A deep perceptron with large batches",
    ),
    entry(
        "resnet50-sweep",
        "cnn:preset=resnet50,repeats=10,mixed=on",
        "ResNet-50 over rising batch sizes, with empty_cache in between",
    ),
    entry(
        "resnet101-falling",
        "cnn:preset=resnet101,batches=96/64/48/32/24/16,repeats=6,optimizer=momentum,empties_cache=off,mixed=on",
        "ResNet-101 over falling batch sizes, with momentum",
    ),
    entry(
        "resnet152-adam",
        "cnn:preset=resnet152,batches=32/48/64/48,repeats=8,optimizer=adam,empties_cache=off",
        "ResNet-152 over several batch sizes with Adam, no mixed lifetimes",
    ),
    entry(
        "varlen-gpt2",
        "varlen:preset=gpt2,batch=16,lengths=lognormal/150/0.6,mixed=on,steps=80",
        "GPT-2 small on samples of log-normal lengths",
    ),
    entry(
        "varlen-medium-sqrt",
        "varlen:preset=gpt2-medium,batch=16,lengths=uniform/64/1024,multiple=1,checkpointing=sqrt,steps=45",
        "GPT-2 medium on samples of uniform lengths, recomputed in groups",
    ),
    entry(
        "varlen-xl-accumulation",
        "varlen:preset=gpt2-xl,batch=12,accumulation=4,lengths=exponential/300,multiple=16,mixed=on,steps=6",
        "GPT-2 XL with four micro-batches of exponential lengths",
    ),
    entry(
        "serving-blocks",
        "serving:growth=blocks/32,slots=48,rate=20,requests=650",
        "A 7B server whose caches are blocks of 32 tokens",
    ),
    entry(
        "serving-reallocate",
        "serving:growth=reallocate/16,slots=48,rate=20,requests=900",
        "A 7B server that reallocates a cache every 16 tokens",
    ),
    entry(
        "serving-double",
        "serving:growth=double,tensors=8,slots=64,rate=20,requests=900",
        "A 7B server that doubles a cache when it is full",
    ),
    entry(
        "serving-cat",
        "serving:growth=reallocate/1,tensors=1,slots=24,requests=150,answers=uniform/16/400",
        "A 7B server that reallocates a cache at every token",
    ),
    entry(
        "alternate",
        "alternate:layers=24,hidden=1536,heads=16,batch=8,samples=64,stride=64,rounds=11,mixed=on",
        "A model that alternates between generation and training",
    ),
    entry(
        "alternate-emptied",
        "alternate:layers=32,hidden=2560,heads=32,batch=4,samples=32,checkpointing=layer,stride=64,rounds=9,empties_cache=on",
        "A 2.6B model that alternates between generation and training, with empty_cache in between",
    ),
    entry(
        "prefetch",
        "prefetch:preset=resnet50,depth=3,optimizer=momentum,steps=90",
        "ResNet-50 with three batches copied ahead on another stream",
    ),
    entry(
        "prefetch-deep",
        "prefetch:preset=resnet101,depth=8,batches=uniform/8/96,synchronize_every=40,optimizer=adam,mixed=on,steps=38",
        "ResNet-101 with eight batches of very different sizes copied ahead",
    ),
    entry("graphs-descending", "graphs:order=descending,rounds=2", "Graphs for 35 batch sizes in one pool, the largest first"),
    entry("graphs-ascending", "graphs:order=ascending,rounds=2", "Graphs for 35 batch sizes in one pool, the smallest first"),
    entry(
        "graphs-own",
        "graphs:order=shuffled,shared=off,rounds=2",
        "Graphs for 35 batch sizes, each in its own pool, in any order",
    ),
];

/// Tests properties of every generated workload, and compares the tables of docs/workloads.md with tables made from the
/// generators.
#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::study::largest_batch::{CARDS, CONTEXT_BYTES};
    use crate::workload::Event;
    use crate::workload::generators::Optimizer;
    use crate::workload::generators::chain::{Chain, Keeping};
    use crate::workload::generators::transformer::{Attention, Checkpointing, Precision};

    #[test]
    fn the_catalogue_has_what_it_promises() {
        let mut names = std::collections::BTreeSet::new();
        for named in &CATALOGUE {
            assert!(names.insert(named.name), "{}: twice", named.name);
            let workload = named.make(1);
            assert_eq!((workload.name.as_str(), workload.says.as_str()), (named.name, named.says));
            assert_eq!(workload.check(), Ok(()), "{}", named.name);
            let events = workload.events.len();
            assert!((80_000..=130_000).contains(&events), "{}: {events} events", named.name);
            let load = workload.load_bytes(512);
            assert!((1 << 30..80 << 30).contains(&load), "{}: {load} bytes", named.name);
            let is_large = |event: &&Event| matches!(event, Event::Allocate { bytes, .. } if *bytes > 1 << 20);
            assert!(workload.events.iter().filter(is_large).count() > 5000, "{}: nearly only small requests", named.name);
        }
        let of = |name: &str| CATALOGUE.iter().filter(|named| named.text.split(':').next() == Some(name)).count();
        let missing: Vec<_> = generator_names().filter(|name| of(name) == 0).collect();
        let adversaries = ["robson", "comb", "fence", "stream-per-buffer"];
        assert_eq!(missing[0], "chain", "a chain has only one size of layer");
        assert_eq!(missing[1..], adversaries, "they are made to need much memory and say nothing about real programs");
        assert_eq!(named("gpt2").map(|named| named.name), Some("gpt2"));
        assert!(named("gpt3").is_none());
    }

    #[test]
    fn the_seed_decides_what_is_random_and_nothing_else() {
        for named in &CATALOGUE {
            let (first, again, other) = (named.make(1), named.make(1), named.make(2));
            assert!(first == again, "{}", named.name);
            let is_random = ["mixed=on", "lengths", "serving", "alternate", "prefetch", "shuffled"]
                .iter()
                .any(|word| named.text.contains(word));
            assert_eq!(first != other, is_random, "{}", named.name);
        }
    }

    #[test]
    fn a_description_is_a_generator_and_its_options() {
        let text = "transformer:layers=2,hidden=64,heads=2,sequence=32,checkpointing=sqrt,steps=3,vocabulary=50,seed=4";
        let workload = parse(text).unwrap();
        assert_eq!(workload.name, text.replace([':', ','], "."));
        let transformer = Transformer {
            layers: 2,
            hidden: 64,
            heads: 2,
            sequence: 32,
            vocabulary: 50,
            checkpointing: Checkpointing::Sqrt,
            ..Transformer::default()
        };
        assert_eq!(workload.events, transformer.workload(3).unwrap().events);
        assert_eq!(parse("chain").unwrap().load_bytes(1), (24 * 320) << 20);
        assert_eq!(parse("chain:layers=3,inner_bytes=1GiB,keeping=pieces/4,prealloc=9GiB").unwrap().load_bytes(1), 9 << 30);
        let of_root = |text: &str| parse(text).unwrap().events;
        assert_eq!(of_root("chain:keeping=sqrt,layers=9"), of_root("chain:layers=9,keeping=groups/3"), "in any order");
        assert_eq!(parse("gpt2:steps=2").unwrap().events, Transformer::default().workload(2).unwrap().events);
        assert!(keys("serving").unwrap().contains(&"growth") && keys("gpt2").unwrap().contains(&"checkpointing"));
        assert_eq!(keys("gpt3"), None);
    }

    #[test]
    fn what_is_wrong_with_a_description_is_named() {
        let said = |text: &str| parse(text).unwrap_err().to_string();
        assert!(said("transfomer:layers=3").starts_with("there is no workload \"transfomer\"; known: gpt2, "));
        assert!(said("").starts_with("there is no workload \"\""));
        assert!(said("transformer:layer=3").starts_with("transformer has no option layer; its options: preset, layers, "));
        assert_eq!(said("transformer:layers"), "\"layers\" is not of the form option=value");
        assert_eq!(said("transformer:layers=many"), "layers is many; allowed: a whole number");
        assert_eq!(said("transformer:layers=2,steps=3,layers=2"), "layers is given twice");
        assert_eq!(said("gpt2:prealloc=1GiB,prealloc=1GiB"), "prealloc is given twice");
        assert_eq!(said("transformer:hidden=64,heads=3"), "heads is 3; allowed: a divisor of hidden, which is 64");
        assert_eq!(said("alternate:heads=5"), "heads is 5; allowed: a divisor of hidden, which is 1536");
        assert_eq!(said("transformer:layers=0"), "layers is 0; allowed: 1 to 1048576");
        assert_eq!(said("transformer:precision=int8"), "precision is int8; allowed: fp32, bf16, fp16");
        assert_eq!(said("transformer:layers=3,preset=7b"), "preset is 7b; allowed: only as the first option");
        assert!(said("transformer:preset=8b").starts_with("preset is 8b; allowed: gpt2, "));
        assert!(said("serving:growth=quickly").ends_with("double, blocks/TOKENS or reallocate/TOKENS"));
        assert!(said("serving:rate=NaN").starts_with("rate is NaN"));
        assert!(said("varlen:lengths=lognormal/300").contains("lognormal/MEDIAN/SIGMA"));
        assert!(said("cnn:stages=1/2").contains("4 whole numbers"));
        assert!(said("chain:prealloc=99999999999GiB").starts_with("prealloc is 99999999999GiB; allowed: bytes, such as "));
        assert!(said("gpt2:steps=0").starts_with("steps is 0"));
    }

    /// Values for any option: valid ones, odd ones, and some that no option accepts.
    const VALUES: [&str; 33] = [
        "0",
        "1",
        "2",
        "3",
        "5",
        "8",
        "2",
        "3",
        "8589934592",
        "1152921504606846976",
        "18446744073709551615",
        "-1",
        "",
        "on",
        "off",
        "sgd",
        "adam",
        "sqrt",
        "layer",
        "other",
        "materialized",
        "double",
        "blocks/3",
        "reallocate/2",
        "uniform/1/9",
        "lognormal/4/0.5",
        "exponential/3",
        "2/4/1",
        "1/1/1/1",
        "shuffled",
        "groups/2",
        "pieces/2",
        "inf",
    ];

    /// A small workload from each generator, to be varied.
    const SMALL: [&str; 13] = [
        "transformer:layers=3,hidden=16,heads=2,sequence=16,batch=4,vocabulary=40,steps=2",
        "chain:layers=5",
        "cnn:stages=1/2/1/1,width=4,image=32,batches=2/3",
        "mlp:width=32,depth=3,steps=2",
        "varlen:layers=2,hidden=16,heads=2,sequence=16,batch=4,vocabulary=40,steps=3,lengths=exponential/5",
        "serving:layers=2,hidden=16,key_width=8,vocabulary=30,requests=9,weight_bytes=4KiB,longest=40,prompts=exponential/9,answers=exponential/9",
        "alternate:layers=2,hidden=16,heads=2,sequence=64,batch=2,vocabulary=40,rounds=2,prompt=4,answers=uniform/3/40,stride=8,samples=3",
        "prefetch:stages=1/1/1/1,width=4,image=32,steps=4,batches=uniform/1/5",
        "graphs:layers=2,hidden=16,heads=2,sequence=16,batch=2,vocabulary=40,batches=1/2/3,rounds=2",
        "robson:live_units=32,largest_units=8",
        "comb:teeth=5",
        "fence:cycles=4",
        "stream-per-buffer:calls=5,streams=3",
    ];

    proptest! {
        #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_options_make_a_well_formed_program_or_an_error(
            which in 0..SMALL.len(),
            changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<proptest::sample::Index>()), 0..4),
        ) {
            let name = SMALL[which].split(':').next().unwrap_or_default();
            let keys: Vec<&str> = keys(name).unwrap_or_default().into_iter().filter(|key| *key != "preset").collect();
            // Each key occurs once: a change replaces the workload's own value.
            let own = SMALL[which].split_once(':').map_or("", |(_, options)| options);
            let mut options: BTreeMap<&str, &str> = own.split(',').filter_map(|option| option.split_once('=')).collect();
            options.extend(changes.iter().map(|(key, value)| (*key.get(&keys), *value.get(&VALUES))));
            let options: Vec<String> = options.iter().map(|(key, value)| format!("{key}={value}")).collect();
            let text = format!("{name}:{}", options.join(","));
            if let Ok(workload) = parse(&text) {
                prop_assert_eq!(workload.check(), Ok(()), "{}", text);
                prop_assert!(parse(&text).as_ref() == Ok(&workload), "{} is not the same twice", text);
                prop_assert!(workload.load_bytes(1) <= generators::MAX_BYTES);
            }
        }
    }

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
        // The vocabulary is small because, with a large one, the logits would be the peak regardless of what the layers do.
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
        let row = |named: &NamedWorkload| {
            let workload = named.make(1);
            format!("| `{}` | {} | {} | {} |", named.name, named.says, workload.events.len(), gib(workload.load_bytes(512)))
        };
        is_on_the_page(&CATALOGUE.iter().map(row).collect::<Vec<_>>());
    }
}
