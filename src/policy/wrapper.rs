//! One list of a policy's questions, for the trait and for everything that passes them on.
//!
//! A wrapper easily forgets a question that has a default answer, and then the default decides instead of the
//! policy inside. So the trait is written inside [`with_wrapper!`], which declares it unchanged and generates
//! the rest from its signatures: a wrapper passes every question on unless it overrides it, including
//! questions that are added later.

/// Declares the trait `Policy` and, from its methods, the trait `Wrapper` and `impl Policy` for every wrapper.
///
/// Methods take `&self` or `&mut self` and return a value. Only a method that takes `&self` may have a default.
/// Methods in the second pair of braces have defaults and are not passed on.
macro_rules! with_wrapper {
    ($(#[$about:meta])* pub trait Policy { $($questions:tt)* } own { $($own:tt)* }) => {
        $(#[$about])*
        pub trait Policy { $($questions)* $($own)* }
        $crate::policy::wrapper::with_wrapper! { @sort [] [] $($questions)* }
    };

    // Sorts the signatures by receiver and drops the default bodies.
    (@sort [$($shared:tt)*] [$($unique:tt)*]
     $(#[$doc:meta])* fn $name:ident(&self $(, $arg:ident: $of:ty)*) -> $answer:ty; $($rest:tt)*) => {
        $crate::policy::wrapper::with_wrapper! {
            @sort [$($shared)* fn $name($($arg: $of),*) -> $answer;] [$($unique)*] $($rest)*
        }
    };
    (@sort [$($shared:tt)*] [$($unique:tt)*]
     $(#[$doc:meta])* fn $name:ident(&self $(, $arg:ident: $of:ty)*) -> $answer:ty { $($default:tt)* } $($rest:tt)*) => {
        $crate::policy::wrapper::with_wrapper! {
            @sort [$($shared)* fn $name($($arg: $of),*) -> $answer;] [$($unique)*] $($rest)*
        }
    };
    (@sort [$($shared:tt)*] [$($unique:tt)*]
     $(#[$doc:meta])* fn $name:ident(&mut self $(, $arg:ident: $of:ty)*) -> $answer:ty; $($rest:tt)*) => {
        $crate::policy::wrapper::with_wrapper! {
            @sort [$($shared)*] [$($unique)* fn $name($($arg: $of),*) -> $answer;] $($rest)*
        }
    };

    (@sort [$(fn $shared:ident($($arg:ident: $of:ty),*) -> $answer:ty;)*]
           [$(fn $unique:ident($($own_arg:ident: $own_of:ty),*) -> $own_answer:ty;)*]) => {
        /// A policy around another one: by default every question goes to the inner policy. Override a method
        /// to answer it differently.
        ///
        /// Every wrapper is a [`Policy`].
        pub trait Wrapper {
            /// The inner policy.
            type Inner: Policy + ?Sized;

            /// The inner policy.
            fn inner(&self) -> &Self::Inner;

            /// The inner policy, for the questions that may change its state.
            fn inner_mut(&mut self) -> &mut Self::Inner;

            $(
                #[doc = concat!("[`Policy::", stringify!($shared), "`].")]
                #[inline]
                fn $shared(&self $(, $arg: $of)*) -> $answer {
                    self.inner().$shared($($arg),*)
                }
            )*

            $(
                #[doc = concat!("[`Policy::", stringify!($unique), "`].")]
                #[inline]
                fn $unique(&mut self $(, $own_arg: $own_of)*) -> $own_answer {
                    self.inner_mut().$unique($($own_arg),*)
                }
            )*
        }

        impl<W: Wrapper> Policy for W {
            $(
                #[inline]
                fn $shared(&self $(, $arg: $of)*) -> $answer {
                    Wrapper::$shared(self $(, $arg)*)
                }
            )*

            $(
                #[inline]
                fn $unique(&mut self $(, $own_arg: $own_of)*) -> $own_answer {
                    Wrapper::$unique(self $(, $own_arg)*)
                }
            )*
        }
    };
}

pub(super) use with_wrapper;
