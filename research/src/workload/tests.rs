//! What is true of every generated workload.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

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
        let is_random =
            ["mixed=on", "lengths", "serving", "alternate", "prefetch", "shuffled"].iter().any(|word| named.text.contains(word));
        assert_eq!(first != other, is_random, "{}", named.name);
    }
}

#[test]
fn a_description_is_a_generator_and_its_options() {
    let text = "transformer:layers=2,hidden=64,heads=2,sequence=32,checkpointing=sqrt,steps=3,vocabulary=50,seed=4";
    let workload = parse(text).unwrap();
    assert_eq!(workload.name, text.replace([':', ','], "."));
    let transformer = generators::transformer::Transformer {
        layers: 2,
        hidden: 64,
        heads: 2,
        sequence: 32,
        vocabulary: 50,
        checkpointing: generators::transformer::Checkpointing::Sqrt,
        ..generators::transformer::Transformer::default()
    };
    assert_eq!(workload.events, transformer.workload(3).unwrap().events);
    assert_eq!(parse("chain").unwrap().load_bytes(1), (24 * 320) << 20);
    assert_eq!(parse("chain:layers=3,inner_bytes=1GiB,keeping=pieces/4,prealloc=9GiB").unwrap().load_bytes(1), 9 << 30);
    let of_root = |text: &str| parse(text).unwrap().events;
    assert_eq!(of_root("chain:keeping=sqrt,layers=9"), of_root("chain:layers=9,keeping=groups/3"), "in any order");
    assert_eq!(
        parse("gpt2:steps=2").unwrap().events,
        generators::transformer::Transformer::default().workload(2).unwrap().events
    );
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

/// Values for any option: good ones, odd ones, and some that no option allows.
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

/// A small workload of each generator, to be varied.
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
        // Each key once: a change replaces the workload's own value.
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

#[test]
fn the_load_is_the_most_bytes_live_at_once() {
    let allocate = |buffer, bytes| Event::Allocate { buffer, bytes, stream: 0 };
    let events =
        vec![allocate(0, 1000), allocate(1, 100), Event::Free { buffer: 0 }, allocate(2, 513), Event::Free { buffer: 1 }];
    let workload = Workload { name: "small".into(), says: "three buffers".into(), events, ..Workload::default() };
    assert_eq!(workload.load_bytes(1), 1100);
    assert_eq!(workload.load_bytes(512), 1536);
    assert_eq!(workload.buffers(), 3);
}
