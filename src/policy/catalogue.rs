//! The policies that can be chosen by name.

use alloc::boxed::Box;

use super::{Policy, PyTorch};
use crate::profile::Profile;
use crate::settings::Settings;

/// A policy by name.
#[derive(Clone, Copy, Debug)]
pub struct Named {
    /// The name: lower case, words joined by hyphens.
    pub name: &'static str,
    /// One sentence: what it does.
    pub says: &'static str,
    /// The paper or code that its rules come from.
    pub source: &'static str,
    /// Makes one.
    pub make: fn() -> Box<dyn Policy + Send>,
}

/// All of them, PyTorch's first.
pub const CATALOGUE: &[Named] = &[
    Named {
        name: "pytorch",
        says: "PyTorch 2.11's default settings",
        source: "c10/cuda/CUDACachingAllocator.cpp of PyTorch 2.11",
        make: || Box::new(PyTorch::new(Settings::default())),
    },
    Named {
        name: "pytorch-expandable",
        says: "PyTorch 2.11 with expandable_segments:True",
        source: "c10/cuda/CUDACachingAllocator.cpp of PyTorch 2.11",
        make: || Box::new(PyTorch::new(expandable())),
    },
    Named {
        name: "pytorch-2.15",
        says: "PyTorch 2.15's default settings",
        source: "c10/cuda/CUDACachingAllocator.cpp of PyTorch 2.15",
        make: || Box::new(PyTorch::of(&Profile::PYTORCH_2_15, Settings::default())),
    },
    Named {
        name: "pytorch-2.15-expandable",
        says: "PyTorch 2.15 with expandable_segments:True",
        source: "c10/cuda/CUDACachingAllocator.cpp of PyTorch 2.15",
        make: || Box::new(PyTorch::of(&Profile::PYTORCH_2_15, expandable())),
    },
];

fn expandable() -> Settings {
    Settings { expandable_segments: true, ..Settings::default() }
}

/// The policy of this name.
#[must_use]
pub fn named(name: &str) -> Option<&'static Named> {
    CATALOGUE.iter().find(|policy| policy.name == name)
}
