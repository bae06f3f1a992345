//! A boxed policy is a policy, so that one can be chosen at run time.

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
