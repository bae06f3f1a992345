//! The catalogue: 28 workloads by name, about 100,000 events each, of all generators that imitate programs.
//!
//! The texts are those of the table in `docs/workloads.md`.

use super::event::Workload;
use super::generators;

/// A workload of the catalogue.
#[derive(Clone, Copy, Debug)]
pub struct NamedWorkload {
    /// Its name.
    pub name: &'static str,
    /// One sentence: what it is.
    pub says: &'static str,
    /// Its description, as for [`parse`](super::parse), without a seed.
    pub text: &'static str,
}

impl NamedWorkload {
    /// Makes the workload. The seed decides lengths, arrivals, orders and scratch memory; a workload without any
    /// of these is the same for every seed.
    ///
    /// # Panics
    /// Never for a workload of the [`CATALOGUE`]: a test makes each of them.
    #[must_use]
    pub fn make(&self, seed: u64) -> Workload {
        let (generator, own) = self.generator_and_options();
        let made = generators::make(generator, &[own, &format!("seed={seed}")]);
        let workload = made.and_then(Result::ok).expect("a test makes each entry");
        Workload { name: self.name.into(), says: self.says.into(), ..workload }
    }

    /// The two parts of its description.
    pub(super) fn generator_and_options(&self) -> (&'static str, &'static str) {
        self.text.split_once(':').unwrap_or((self.text, ""))
    }
}

/// The workload of this name.
#[must_use]
pub fn named(name: &str) -> Option<&'static NamedWorkload> {
    CATALOGUE.iter().find(|workload| workload.name == name)
}

/// An entry of the catalogue.
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
        "Graphs for 35 batch sizes, each in a pool of its own, in any order",
    ),
];
