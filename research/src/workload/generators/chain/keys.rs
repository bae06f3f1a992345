//! The options of a chain.

use super::{Chain, Keeping};
use crate::workload::Workload;
use crate::workload::generators::generator::{Done, Generator, Key};
use crate::workload::generators::{WorkloadError, values};

/// A chain as an option list describes it: `keeping=sqrt` may come before the number of layers that decides it.
pub(in crate::workload::generators) struct DescribedChain {
    chain: Chain,
    is_sqrt: bool,
}

impl Default for DescribedChain {
    fn default() -> DescribedChain {
        let chain = Chain { layers: 24, checkpoint_bytes: 64 << 20, inner_bytes: 256 << 20, ..Chain::default() };
        DescribedChain { chain, is_sqrt: false }
    }
}

impl Generator for DescribedChain {
    fn keys(&self) -> Vec<Key> {
        vec!["layers", "checkpoint_bytes", "inner_bytes", "fixed_bytes", "keeping", "seed"]
    }

    fn set(&mut self, key: Key, value: &str) -> Done {
        match key {
            "layers" => self.chain.layers = values::number(key, value)?,
            "checkpoint_bytes" => self.chain.checkpoint_bytes = values::bytes(key, value)?,
            "inner_bytes" => self.chain.inner_bytes = values::bytes(key, value)?,
            "fixed_bytes" => self.chain.fixed_bytes = values::bytes(key, value)?,
            "keeping" => match keeping(key, value)? {
                Some(keeping) => (self.chain.keeping, self.is_sqrt) = (keeping, false),
                None => self.is_sqrt = true,
            },
            _ => values::unused_seed(key, value)?,
        }
        Ok(())
    }

    fn make(&self) -> Result<Workload, WorkloadError> {
        let keeping = if self.is_sqrt { Chain::sqrt(self.chain.layers) } else { self.chain.keeping };
        Chain { keeping, ..self.chain }.workload()
    }
}

/// What is kept; `None` stands for groups of the square root of the layers.
fn keeping(option: Key, value: &str) -> Result<Option<Keeping>, WorkloadError> {
    match (value.split_once('/'), value) {
        (None, "all") => Ok(Some(Keeping::All)),
        (None, "nothing") => Ok(Some(Keeping::Nothing)),
        (None, "sqrt") => Ok(None),
        (Some(("groups", count)), _) => Ok(Some(Keeping::Groups(values::number(option, count)?))),
        (Some(("pieces", count)), _) => Ok(Some(Keeping::Pieces(values::number(option, count)?))),
        _ => values::refused(option, value, "all, nothing, sqrt, groups/LAYERS or pieces/PIECES"),
    }
}
