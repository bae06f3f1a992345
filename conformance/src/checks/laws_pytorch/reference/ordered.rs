//! A policy with PyTorch's rules on a heap that keeps its free blocks in either order: the decisions must not differ.

use parkade::policy::{FreeOrder, PyTorch, Wrapper};

/// PyTorch's rules on a heap that keeps free blocks in either order.
#[derive(Clone, Debug)]
pub(super) struct Ordered {
    pub(super) rules: PyTorch,
    pub(super) order: FreeOrder,
}

impl Wrapper for Ordered {
    type Inner = PyTorch;

    fn inner(&self) -> &PyTorch {
        &self.rules
    }

    fn inner_mut(&mut self) -> &mut PyTorch {
        &mut self.rules
    }

    fn free_order(&self) -> FreeOrder {
        self.order
    }
}
