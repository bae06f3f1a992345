//! JSON views: structs that declare each key with its meaning, type and value.
//!
//! docs/json.md and the types of the Python package are generated from these declarations: the doc comment on a field is the description
//! of its key for users.

use std::marker::PhantomData;

use parkade_recording::Named;
use serde::{Serialize, Serializer};

/// Declares a serialisable struct and its constructor `of`, with fields `key: type = value`; without values, only the struct.
macro_rules! view {
    ($(#[$($meta:tt)*])* $vis:vis struct $name:ident $(<$life:lifetime>)? ($($arg:ident: $type:ty),* $(,)?)
     { $($(#[$($field_meta:tt)*])* $field_vis:vis $field:ident: $field_type:ty = $value:expr),* $(,)? }) => {
        $crate::terminal::json_struct::view! {
            $(#[$($meta)*])* $vis struct $name $(<$life>)? { $($(#[$($field_meta)*])* $field_vis $field: $field_type),* }
        }

        impl $(<$life>)? $name $(<$life>)? {
            /// Its values.
            $vis fn of($($arg: $type),*) -> Self {
                $name { $($field: $value),* }
            }
        }
    };
    ($(#[$($meta:tt)*])* $vis:vis struct $name:ident $(<$life:lifetime>)?
     { $($(#[$($field_meta:tt)*])* $field_vis:vis $field:ident: $field_type:ty),* $(,)? }) => {
        $(#[$($meta)*])*
        #[derive(serde::Serialize)]
        $vis struct $name $(<$life>)? { $($(#[$($field_meta)*])* $field_vis $field: $field_type),* }

        #[cfg(all(test, feature = "suite"))]
        impl $(<$life>)? $crate::terminal::shape::Shaped for $name $(<$life>)? {
            fn shape() -> $crate::terminal::shape::Shape {
                $crate::terminal::shape::Shape::Object($crate::terminal::shape::Object {
                    module: module_path!(),
                    name: stringify!($name),
                    attributes: &[$($crate::terminal::shape::attribute!($($meta)*)),*],
                    members: || vec![$($crate::terminal::shape::Member {
                        key: stringify!($field),
                        shape: <$field_type as $crate::terminal::shape::Shaped>::shape(),
                        attributes: &[$($crate::terminal::shape::attribute!($($field_meta)*)),*],
                    }),*],
                })
            }
        }
    };
}
pub(crate) use view;

/// Declares an enum that is serialised as the object of its variant.
#[cfg(feature = "native")]
macro_rules! one_of {
    ($(#[$meta:meta])* $vis:vis enum $name:ident { $($variant:ident($type:ty)),* $(,)? }) => {
        $(#[$meta])*
        #[derive(serde::Serialize)]
        #[serde(untagged)]
        $vis enum $name { $($variant($type)),* }

        #[cfg(all(test, feature = "suite"))]
        impl $crate::terminal::shape::Shaped for $name {
            fn shape() -> $crate::terminal::shape::Shape {
                $crate::terminal::shape::Shape::OneOf(vec![$(<$type as $crate::terminal::shape::Shaped>::shape()),*])
            }
        }
    };
}
#[cfg(feature = "native")]
pub(crate) use one_of;

/// Lists the objects that a command prints, by their headings in docs/json.md. If a heading has several objects, the command prints one.
macro_rules! sections {
    ($($heading:literal: $($type:ty),+;)*) => {
        /// The objects that are printed, by their headings in docs/json.md.
        #[cfg(all(test, feature = "suite"))]
        pub(crate) const SECTIONS: $crate::terminal::json_struct::Sections = &[$(($heading, || {
            $crate::terminal::shape::one_of(vec![$(<$type as $crate::terminal::shape::Shaped>::shape()),+])
        })),*];
    };
}
pub(crate) use sections;

/// See [`sections`].
#[cfg(all(test, feature = "suite"))]
pub(crate) type Sections = &'static [(&'static str, fn() -> super::shape::Shape)];

/// The name of a variant as a string: one of those that the enum lists.
pub struct Word<E>(&'static str, PhantomData<E>);

impl<E: Named> Word<E> {
    /// Returns the name of this variant.
    pub fn of(variant: &E) -> Word<E> {
        Word(variant.name(), PhantomData)
    }
}

impl<E> Serialize for Word<E> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0)
    }
}

#[cfg(all(test, feature = "suite"))]
impl<E: Named> super::shape::Shaped for Word<E> {
    fn shape() -> super::shape::Shape {
        super::shape::Shape::Words(E::NAMES)
    }
}

/// Returns a view of each item.
pub fn all<T, V>(items: impl IntoIterator<Item = T>, view: impl FnMut(T) -> V) -> Vec<V> {
    items.into_iter().map(view).collect()
}
