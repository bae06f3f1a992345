//! One list of a policy's questions, for the trait and for whoever passes them on.
//!
//! A question with a default answer is easily forgotten by a wrapper, and then the default decides instead of the policy inside. So the
//! trait is written inside [`with_wrapper!`], which declares it as it stands and makes the rest from its signatures: a wrapper passes every
//! question on unless it answers that one itself, also a question that is added later.

/// Declares the trait `Policy` and, from its methods, the trait `Wrapper` and the policy that every wrapper is.
///
/// Every method takes `&self` or `&mut self` and returns something.
macro_rules! with_wrapper {
    ($(#[$about:meta])* pub trait Policy { $($questions:tt)* }) => {
        $(#[$about])*
        pub trait Policy { $($questions)* }
        $crate::policy::wrapper::with_wrapper! { @sort [] [] $($questions)* }
    };

    // Sorts the signatures by what they borrow; the default answers are left out.
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
        /// A policy around another one. It passes every question on to that one, except those that it answers itself.
        ///
        /// Every wrapper is a [`Policy`]. All methods but the first two have the question passed on as their default.
        pub trait Wrapper {
            /// The policy inside.
            type Inner: Policy + ?Sized;

            /// The policy inside.
            fn inner(&self) -> &Self::Inner;

            /// The policy inside, for the questions that may change it.
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
