//! All combinations that are searched.

use parkade_policies::Named;
use rayon::prelude::*;

use super::case::{Case, Training};
use super::point::Point;
use super::search;
use crate::workload::generators::WorkloadError;

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
    /// The trainings.
    pub trainings: Vec<Training>,
    /// The memory of each device, in bytes.
    pub devices_bytes: Vec<u64>,
    /// What the driver's context takes of each device, in bytes.
    pub context_bytes: u64,
    /// The policies.
    pub policies: Vec<&'static Named>,
    /// The largest batch that is tried.
    pub most_batch: u64,
}

/// Why a grid cannot be searched.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum GridError {
    /// A model cannot be trained this way.
    #[error("{training}: {error}")]
    Workload {
        /// The training's name.
        training: String,
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
    /// The largest batch is beyond [`MOST_BATCH`], or smaller than the smallest that can be trained.
    #[error(
        "batches up to {most_batch} cannot be searched: choose at most {MOST_BATCH}, and at least a sample for each micro-batch and each of its pieces"
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
    /// [`GridError`], before anything is searched.
    pub fn walk(&self, progress: &(dyn Fn() + Sync)) -> Result<Vec<Point>, GridError> {
        let cases = self.cases()?;
        let of_case = |case: &Case| {
            let bound = search::bound(case, self.most_batch);
            let points = self.policies.par_iter().map(|policy| {
                let point = search::point(case, policy, &bound, self.most_batch);
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
        [self.trainings.len(), self.devices_bytes.len(), self.policies.len()].into_iter().fold(1, usize::saturating_mul)
    }

    fn check(&self) -> Result<(), GridError> {
        let lists =
            [("trainings", self.trainings.len()), ("devices", self.devices_bytes.len()), ("policies", self.policies.len())];
        if let Some(&(list, _)) = lists.iter().find(|(_, length)| *length == 0) {
            return Err(GridError::Empty { list });
        }
        let points = self.points();
        if points > MOST_POINTS {
            return Err(GridError::TooMany { points });
        }
        let least = self.trainings.iter().map(Training::least_batch).max().unwrap_or(1);
        if self.most_batch > MOST_BATCH || self.most_batch < least {
            return Err(GridError::Batch { most_batch: self.most_batch });
        }
        let context_bytes = self.context_bytes;
        match self.devices_bytes.iter().find(|&&device_bytes| device_bytes <= context_bytes) {
            Some(&device_bytes) => Err(GridError::NoMemory { device_bytes, context_bytes }),
            None => Ok(()),
        }
    }

    fn cases(&self) -> Result<Vec<Case>, GridError> {
        self.check()?;
        let mut cases = Vec::new();
        for training in &self.trainings {
            // Whether the workload can be generated does not depend on the device.
            let smallest = training.with_batch(training.least_batch()).workload(training.steps);
            smallest.map_err(|error| GridError::Workload { training: training.name.clone(), error })?;
            cases.extend(self.devices_bytes.iter().map(|&device_bytes| Case {
                training: training.clone(),
                device_bytes,
                usable_bytes: device_bytes - self.context_bytes,
            }));
        }
        Ok(cases)
    }
}
