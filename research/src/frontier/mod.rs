//! The out-of-memory frontier of training a transformer: the largest batch that fits, for each policy, device and way of training.
//!
//! A [`Grid`] is every combination of its lists; [`Grid::walk`] gives one [`Point`] for each. Beside what a policy reaches stands what
//! the load allows: the largest batch whose live bytes fit into the device at all, which no policy can exceed. [`search`] says how
//! batches are searched. All is arithmetic on devices made afresh for each run; the same grid gives the same points on any number of
//! threads.

mod cards;
mod search;
#[cfg(test)]
mod tests;

use parkade_policies::Named;
use rayon::prelude::*;

use crate::workload::generators::transformer::{Checkpointing, Precision, Transformer};
use crate::workload::generators::{Optimizer, WorkloadError};

pub use cards::{CARDS, Card, card};
pub use search::{Why, bound};

/// What the driver's context takes of each device before the program begins (facts: about 500 MiB).
pub const CONTEXT_BYTES: u64 = 500 << 20;

/// More points than this are refused.
pub const MOST_POINTS: usize = 100_000;

/// The largest batch that may be asked for.
pub const MOST_BATCH: u64 = 1 << 20;

/// Lists of which every combination is searched.
#[derive(Clone, Debug)]
pub struct Grid {
    /// Models by name; their own batch, sequence, precision, optimizer, checkpointing and accumulation do not count.
    pub models: Vec<(String, Transformer)>,
    /// How numbers are kept.
    pub numbers: Vec<Numbers>,
    /// What updates the weights.
    pub optimizers: Vec<Optimizer>,
    /// What is computed again.
    pub checkpointings: Vec<Checkpointing>,
    /// Micro-batches of a step.
    pub accumulations: Vec<u64>,
    /// Tokens of a sample; each model's own if there are none.
    pub sequences: Vec<u64>,
    /// Memory of devices, in bytes.
    pub devices_bytes: Vec<u64>,
    /// What the driver's context takes of each, in bytes.
    pub context_bytes: u64,
    /// Policies.
    pub policies: Vec<&'static Named>,
    /// How many steps are trained. The second is the first that has the optimizer's states from its beginning.
    pub steps: u64,
    /// Batches beyond this are not tried.
    pub most_batch: u64,
}

/// How weights, gradients and activations are kept, and what the optimizer keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Numbers {
    /// Two bytes everywhere.
    Half,
    /// Two bytes, and a second copy of the weights and all states of four bytes.
    HalfWithMaster,
    /// Four bytes everywhere.
    Fp32,
}

impl Numbers {
    /// All of them.
    pub const ALL: [Numbers; 3] = [Numbers::Half, Numbers::HalfWithMaster, Numbers::Fp32];

    /// Its name: lower case, words joined by hyphens.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Numbers::Half => "half",
            Numbers::HalfWithMaster => "half-master",
            Numbers::Fp32 => "fp32",
        }
    }

    const fn precision(self) -> Precision {
        match self {
            Numbers::Half | Numbers::HalfWithMaster => Precision::Half,
            Numbers::Fp32 => Precision::Fp32,
        }
    }
}

/// One way of training on one device: all of a point but the policy.
#[derive(Clone, PartialEq, Debug)]
pub struct Case {
    /// The model's name.
    pub model: String,
    /// The model, with a batch of 1 for each micro-batch.
    pub transformer: Transformer,
    /// How numbers are kept.
    pub numbers: Numbers,
    /// The device's memory, in bytes.
    pub device_bytes: u64,
    /// The same without the context.
    pub usable_bytes: u64,
}

impl Case {
    /// The model with this batch.
    #[must_use]
    pub fn with_batch(&self, batch: u64) -> Transformer {
        Transformer { batch, ..self.transformer.clone() }
    }

    /// Bytes of the parameters.
    #[must_use]
    pub fn parameter_bytes(&self) -> u64 {
        self.transformer.parameters().saturating_mul(self.transformer.precision.bytes())
    }

    /// Bytes of parameters, gradients and the optimizer's states together, the second copy included: what training needs whatever the
    /// batch.
    #[must_use]
    pub fn state_bytes(&self) -> u64 {
        let states = self.transformer.optimizer.states() as u64;
        let element = self.transformer.precision.bytes();
        let each = match self.numbers {
            Numbers::Half | Numbers::Fp32 => element * (2 + states),
            Numbers::HalfWithMaster => 2 * element + 4 * (1 + states),
        };
        self.transformer.parameters().saturating_mul(each)
    }
}

/// What fits for one case.
#[derive(Clone, PartialEq, Debug)]
pub struct Bound {
    /// The largest batch whose load fits; 0 if none does.
    pub batch: u64,
    /// The load of that batch, in bytes; of the smallest one if none fits.
    pub load_bytes: u64,
}

/// What fits for one case under one policy.
#[derive(Clone, PartialEq, Debug)]
pub struct Point {
    /// The way of training, and the device.
    pub case: Case,
    /// The policy's name.
    pub policy: &'static str,
    /// The largest batch that fits and that was found; 0 if none.
    pub batch: u64,
    /// The most bytes that were reserved with it, and its load; 0 without one.
    pub reserved_bytes: u64,
    /// The most bytes that lived at once with it, in blocks of 512 bytes; 0 without one.
    pub load_bytes: u64,
    /// The largest batch below it that was tried and does not fit, if any: fitting is not monotone.
    pub fails_below_batch: Option<u64>,
    /// What the load allows, whatever the policy.
    pub bound: Bound,
    /// Why the next batch does not fit.
    pub why: Why,
    /// How many runs it took.
    pub runs: u32,
}

/// Why there is no frontier.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum FrontierError {
    /// A model cannot be trained so.
    #[error("{model}: {error}")]
    Workload {
        /// Its name.
        model: String,
        /// Why.
        error: WorkloadError,
    },
    /// A list has nothing in it.
    #[error("there is nothing to search: no {list}")]
    Empty {
        /// Which.
        list: &'static str,
    },
    /// More than [`MOST_POINTS`].
    #[error("this would be {points} combinations, more than {MOST_POINTS}: give shorter lists")]
    TooMany {
        /// How many.
        points: usize,
    },
    /// The context takes all of a device.
    #[error("a device of {device_bytes} bytes has nothing left beside a context of {context_bytes} bytes")]
    NoMemory {
        /// Its memory.
        device_bytes: u64,
        /// The context's.
        context_bytes: u64,
    },
    /// A batch that may not be asked for.
    #[error("batches up to {most_batch} cannot be searched: the most is {MOST_BATCH}, the least the micro-batches of a step")]
    Batch {
        /// What was asked for.
        most_batch: u64,
    },
}

impl Grid {
    /// Searches every combination, in parallel, and returns the points in the order of the lists, the policies last. `progress` is told
    /// after each point, from any thread.
    ///
    /// # Errors
    /// [`FrontierError`], before anything is searched.
    pub fn walk(&self, progress: &(dyn Fn() + Sync)) -> Result<Vec<Point>, FrontierError> {
        let cases = self.cases()?;
        let of_case = |case: &Case| {
            let bound = bound(case, self.steps, self.most_batch);
            let points = self.policies.par_iter().map(|policy| {
                let point = search::point(case, policy, &bound, self.steps, self.most_batch);
                progress();
                point
            });
            points.collect::<Vec<_>>()
        };
        Ok(cases.par_iter().map(of_case).collect::<Vec<_>>().concat())
    }

    /// How many points there will be.
    #[must_use]
    pub fn points(&self) -> usize {
        let own =
            [self.models.len(), self.numbers.len(), self.optimizers.len(), self.checkpointings.len(), self.accumulations.len()];
        let rest = [self.sequences.len().max(1), self.devices_bytes.len(), self.policies.len()];
        own.into_iter().chain(rest).fold(1, usize::saturating_mul)
    }

    fn check(&self) -> Result<(), FrontierError> {
        let lists = [
            ("models", self.models.len()),
            ("precisions", self.numbers.len()),
            ("optimizers", self.optimizers.len()),
            ("checkpointings", self.checkpointings.len()),
            ("accumulations", self.accumulations.len()),
            ("devices", self.devices_bytes.len()),
            ("policies", self.policies.len()),
        ];
        if let Some(&(list, _)) = lists.iter().find(|(_, length)| *length == 0) {
            return Err(FrontierError::Empty { list });
        }
        let points = self.points();
        if points > MOST_POINTS {
            return Err(FrontierError::TooMany { points });
        }
        let most_accumulation = self.accumulations.iter().copied().max().unwrap_or(0);
        if self.most_batch > MOST_BATCH || self.most_batch < most_accumulation.max(1) {
            return Err(FrontierError::Batch { most_batch: self.most_batch });
        }
        let context_bytes = self.context_bytes;
        match self.devices_bytes.iter().find(|&&device_bytes| device_bytes <= context_bytes) {
            Some(&device_bytes) => Err(FrontierError::NoMemory { device_bytes, context_bytes }),
            None => Ok(()),
        }
    }

    fn cases(&self) -> Result<Vec<Case>, FrontierError> {
        self.check()?;
        let mut cases = Vec::new();
        for (model, transformer) in &self.models {
            let own = [transformer.sequence];
            let sequences = if self.sequences.is_empty() { &own } else { &self.sequences[..] };
            for (&numbers, &optimizer) in self.numbers.iter().flat_map(|n| self.optimizers.iter().map(move |o| (n, o))) {
                for (&checkpointing, &accumulation) in
                    self.checkpointings.iter().flat_map(|c| self.accumulations.iter().map(move |a| (c, a)))
                {
                    for &sequence in sequences {
                        let transformer = Transformer {
                            precision: numbers.precision(),
                            master_copy: numbers == Numbers::HalfWithMaster,
                            optimizer,
                            checkpointing,
                            accumulation,
                            batch: accumulation.max(1),
                            sequence,
                            ..transformer.clone()
                        };
                        // Whether it can be generated at all is the same for every device.
                        let refused = |error| FrontierError::Workload { model: model.clone(), error };
                        transformer.workload(self.steps).map_err(refused)?;
                        cases.extend(self.devices_bytes.iter().map(|&device_bytes| Case {
                            model: model.clone(),
                            transformer: transformer.clone(),
                            numbers,
                            device_bytes,
                            usable_bytes: device_bytes - self.context_bytes,
                        }));
                    }
                }
            }
        }
        Ok(cases)
    }
}
