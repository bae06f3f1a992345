//! The options of a network, and its presets.

use crate::workload::Workload;
use crate::workload::generators::checks::within;
use crate::workload::generators::generator::{Done, Generator, Key};
use crate::workload::generators::models::training::{Optimizer, optimizer};
use crate::workload::generators::{WorkloadError, values};

/// A network and its batch sizes. The default is the recorded program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cnn {
    /// The number of blocks in each of the four stages.
    pub stages: [u64; 4],
    /// The number of channels after the stem.
    pub width: u64,
    /// The height and width of an image.
    pub image: u64,
    /// The number of classes.
    pub classes: u64,
    /// The batch sizes, in order.
    pub batches: Vec<u64>,
    /// Steps per batch size.
    pub repeats: u64,
    /// The cache is emptied before each batch size.
    pub empties_cache: bool,
    /// What updates the weights. With an optimizer that keeps states, gradients are freed after each step.
    pub optimizer: Optimizer,
    /// Mixed lifetimes: convolutions need scratch memory, and batches arrive early.
    pub mixed: bool,
    /// The seed of the sizes of scratch memory.
    pub seed: u64,
}

impl Default for Cnn {
    fn default() -> Cnn {
        Cnn {
            stages: [3, 4, 6, 3],
            width: 64,
            image: 224,
            classes: 1000,
            batches: vec![1, 2, 4, 8, 16, 32, 64],
            repeats: 1,
            empties_cache: true,
            optimizer: Optimizer::Sgd,
            mixed: false,
            seed: 0,
        }
    }
}

impl Cnn {
    /// `resnet50`, `resnet101` or `resnet152` (He et al. 2015, table 1); `None` for any other name.
    #[must_use]
    pub fn preset(name: &str) -> Option<Cnn> {
        let stages = match name {
            "resnet50" => [3, 4, 6, 3],
            "resnet101" => [3, 4, 23, 3],
            "resnet152" => [3, 8, 36, 3],
            _ => return None,
        };
        Some(Cnn { stages, ..Cnn::default() })
    }

    /// Checks every option.
    pub(super) fn check(&self) -> Result<(), WorkloadError> {
        self.stages.iter().try_for_each(|&blocks| within("stages", blocks, 1, 1 << 10))?;
        within("width", self.width, 1, 1 << 16)?;
        within("image", self.image, 32, 1 << 16)?;
        within("classes", self.classes, 1, 1 << 32)?;
        within("batches", self.batches.len() as u64, 1, 1 << 20)?;
        self.batches.iter().try_for_each(|&batch| within("batches", batch, 1, 1 << 32))?;
        within("repeats", self.repeats, 1, 1_000_000)
    }
}

impl Generator for Cnn {
    fn keys(&self) -> Vec<Key> {
        vec!["preset", "stages", "width", "image", "classes", "batches", "repeats", "empties_cache", "optimizer", "mixed", "seed"]
    }

    fn set(&mut self, key: Key, value: &str) -> Done {
        match key {
            "preset" => {
                let refused = || values::refused(key, value, "resnet50, resnet101, resnet152");
                *self = Cnn::preset(value).map_or_else(refused, Ok)?;
            }
            "stages" => self.stages = values::numbers(key, value)?,
            "width" => self.width = values::number(key, value)?,
            "image" => self.image = values::number(key, value)?,
            "classes" => self.classes = values::number(key, value)?,
            "batches" => self.batches = values::list(key, value)?,
            "repeats" => self.repeats = values::number(key, value)?,
            "empties_cache" => self.empties_cache = values::switch(key, value)?,
            "optimizer" => self.optimizer = optimizer(key, value)?,
            "mixed" => self.mixed = values::switch(key, value)?,
            _ => self.seed = values::number(key, value)?,
        }
        Ok(())
    }

    fn make(&self) -> Result<Workload, WorkloadError> {
        self.workload()
    }
}
