//! All combinations that are searched.

use parkade_policies::Named;
use rayon::prelude::*;

use super::case::{Case, Numbers};
use super::point::Point;
use super::search;
use crate::workload::generators::transformer::{Checkpointing, Transformer};
use crate::workload::generators::{Optimizer, WorkloadError};

/// What the driver's context takes of a device before a program allocates anything: about 500 MiB (facts: Memory
/// of the device).
pub const CONTEXT_BYTES: u64 = 500 << 20;

/// The most points of a grid.
pub const MOST_POINTS: usize = 100_000;

/// The largest batch that a grid may search.
pub const MOST_BATCH: u64 = 1 << 20;

/// Lists; every combination of them is searched.
#[derive(Clone, Debug)]
pub struct Grid {
    /// Models by name. The lists below replace their batch, precision, optimizer, checkpointing and accumulation.
    pub models: Vec<(String, Transformer)>,
    /// How numbers are stored.
    pub numbers: Vec<Numbers>,
    /// What updates the weights.
    pub optimizers: Vec<Optimizer>,
    /// What is recomputed.
    pub checkpointings: Vec<Checkpointing>,
    /// Micro-batches per step.
    pub accumulations: Vec<u64>,
    /// Tokens per sample; if empty, each model's own.
    pub sequences: Vec<u64>,
    /// The memory of each device, in bytes.
    pub devices_bytes: Vec<u64>,
    /// What the driver's context takes of each device, in bytes.
    pub context_bytes: u64,
    /// The policies.
    pub policies: Vec<&'static Named>,
    /// The number of training steps. The second step is the first that starts with the optimizer's states.
    pub steps: u64,
    /// The largest batch that is tried.
    pub most_batch: u64,
}

/// Why a grid cannot be searched.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum FrontierError {
    /// A model cannot be trained this way.
    #[error("{model}: {error}")]
    Workload {
        /// The model's name.
        model: String,
        /// The reason.
        error: WorkloadError,
    },
    /// A list is empty.
    #[error("there is nothing to search: no {list}")]
    Empty {
        /// The list.
        list: &'static str,
    },
    /// There are more points than [`MOST_POINTS`].
    #[error("{points} combinations are more than {MOST_POINTS}: give shorter lists")]
    TooMany {
        /// The number of points.
        points: usize,
    },
    /// The driver's context takes all of a device's memory.
    #[error("a device of {device_bytes} bytes has no memory left beside a context of {context_bytes} bytes")]
    NoMemory {
        /// The device's memory, in bytes.
        device_bytes: u64,
        /// The context's memory, in bytes.
        context_bytes: u64,
    },
    /// The largest batch is beyond [`MOST_BATCH`], or smaller than the number of micro-batches.
    #[error(
        "batches up to {most_batch} cannot be searched: choose at most {MOST_BATCH}, and at least as many as a step has micro-batches"
    )]
    Batch {
        /// The largest batch to try.
        most_batch: u64,
    },
}

impl Grid {
    /// Searches every combination, in parallel, and returns the points in the order of the lists, policies last.
    /// `progress` is called after each point, from any thread.
    ///
    /// # Errors
    /// [`FrontierError`], before anything is searched.
    pub fn walk(&self, progress: &(dyn Fn() + Sync)) -> Result<Vec<Point>, FrontierError> {
        let cases = self.cases()?;
        let of_case = |case: &Case| {
            let bound = search::bound(case, self.steps, self.most_batch);
            let points = self.policies.par_iter().map(|policy| {
                let point = search::point(case, policy, &bound, self.steps, self.most_batch);
                progress();
                point
            });
            points.collect::<Vec<_>>()
        };
        Ok(cases.par_iter().map(of_case).collect::<Vec<_>>().concat())
    }

    /// The number of points.
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
                        // Whether the workload can be generated does not depend on the device.
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
