//! A policy chosen at run time is a policy too.

use alloc::boxed::Box;

use super::{Policy, Wrapper};

impl<P: Policy + ?Sized> Wrapper for Box<P> {
    type Inner = P;

    #[inline]
    fn inner(&self) -> &P {
        self
    }

    #[inline]
    fn inner_mut(&mut self) -> &mut P {
        self
    }
}
