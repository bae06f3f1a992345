//! Policies that wrap another policy and change some of its answers.
//!
//! The macro here declares the trait [`Policy`](super::Policy) itself, so that a wrapper forwards every method of it.

/// Declares the trait `Policy` and, from its methods, the trait `Wrapper` and `impl Policy` for every wrapper.
///
/// Methods take `&self` or `&mut self`. The methods under `not_forwarded` have defaults.
///
/// There is thus a single list of a policy's methods, for the trait and for everything that forwards them.
///
/// It is easy to forget a method with a default in a hand-written wrapper, in which case the default decides instead
/// of the inner policy. The trait is therefore written inside `with_wrapper!`, which declares it unchanged and
/// generates the rest from its signatures: a wrapper forwards every method that it does not override, including
/// methods that are added later.
macro_rules! with_wrapper {
    ($(#[$about:meta])* pub trait Policy { $($questions:tt)* } not_forwarded { $($left:tt)* }) => {
        $(#[$about])*
        pub trait Policy { $($questions)* $($left)* }
        with_wrapper! { @sort [] [] $($questions)* }
    };

    // Sorts the signatures by receiver and drops the default bodies.
    (@sort [$($shared:tt)*] [$($unique:tt)*]
     $(#[$doc:meta])* fn $name:ident(&self $(, $arg:ident: $of:ty)*) $(-> $answer:ty)?; $($rest:tt)*) => {
        with_wrapper! {
            @sort [$($shared)* fn $name($($arg: $of),*) $(-> $answer)?;] [$($unique)*] $($rest)*
        }
    };
    (@sort [$($shared:tt)*] [$($unique:tt)*]
     $(#[$doc:meta])* fn $name:ident(&self $(, $arg:ident: $of:ty)*) $(-> $answer:ty)? { $($default:tt)* } $($rest:tt)*) => {
        with_wrapper! {
            @sort [$($shared)* fn $name($($arg: $of),*) $(-> $answer)?;] [$($unique)*] $($rest)*
        }
    };
    (@sort [$($shared:tt)*] [$($unique:tt)*]
     $(#[$doc:meta])* fn $name:ident(&mut self $(, $arg:ident: $of:ty)*) $(-> $answer:ty)? { $($default:tt)* } $($rest:tt)*) => {
        with_wrapper! {
            @sort [$($shared)*] [$($unique)* fn $name($($arg: $of),*) $(-> $answer)?;] $($rest)*
        }
    };
    (@sort [$($shared:tt)*] [$($unique:tt)*]
     $(#[$doc:meta])* fn $name:ident(&mut self $(, $arg:ident: $of:ty)*) $(-> $answer:ty)?; $($rest:tt)*) => {
        with_wrapper! {
            @sort [$($shared)*] [$($unique)* fn $name($($arg: $of),*) $(-> $answer)?;] $($rest)*
        }
    };

    (@sort [$(fn $shared:ident($($arg:ident: $of:ty),*) $(-> $answer:ty)?;)*]
           [$(fn $unique:ident($($own_arg:ident: $own_of:ty),*) $(-> $own_answer:ty)?;)*]) => {
        /// A policy that wraps another policy. By default, it forwards every method to the inner policy. Override a
        /// method to change its answer.
        ///
        /// Every wrapper is a [`Policy`].
        pub trait Wrapper {
            /// The inner policy.
            type Inner: Policy + ?Sized;

            /// The inner policy.
            fn inner(&self) -> &Self::Inner;

            /// The inner policy, mutable, for the methods that may change its state.
            fn inner_mut(&mut self) -> &mut Self::Inner;

            $(
                #[doc = concat!("[`Policy::", stringify!($shared), "`].")]
                #[inline]
                fn $shared(&self $(, $arg: $of)*) $(-> $answer)? {
                    self.inner().$shared($($arg),*)
                }
            )*

            $(
                #[doc = concat!("[`Policy::", stringify!($unique), "`].")]
                #[inline]
                fn $unique(&mut self $(, $own_arg: $own_of)*) $(-> $own_answer)? {
                    self.inner_mut().$unique($($own_arg),*)
                }
            )*
        }

        impl<W: Wrapper> Policy for W {
            $(
                #[inline]
                fn $shared(&self $(, $arg: $of)*) $(-> $answer)? {
                    Wrapper::$shared(self $(, $arg)*)
                }
            )*

            $(
                #[inline]
                fn $unique(&mut self $(, $own_arg: $own_of)*) $(-> $own_answer)? {
                    Wrapper::$unique(self $(, $own_arg)*)
                }
            )*
        }
    };
}
