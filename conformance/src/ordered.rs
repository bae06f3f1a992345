//! A policy with PyTorch's rules on a heap that keeps its free blocks in either order. PyTorch's decisions must not
//! depend on the order, and the core laws use both orders.

use parkade::policy::{FreeOrder, PyTorch, Wrapper};

/// PyTorch's rules on a heap that keeps free blocks in either order.
#[derive(Clone, Debug)]
pub(crate) struct Ordered {
    pub(crate) rules: PyTorch,
    pub(crate) order: FreeOrder,
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
