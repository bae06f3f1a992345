//! What JSON is made of: structs that name their keys and types, each with where its fields come from.

use parkade_replay::SettingsOrigin;

/// Declares a struct that is serialised, and the function `of` that makes it: `key: type = value`.
macro_rules! view {
    ($(#[$meta:meta])* $vis:vis struct $name:ident $(<$life:lifetime>)? ($($arg:ident: $type:ty),* $(,)?)
     { $($(#[$field_meta:meta])* $field:ident: $field_type:ty = $value:expr),* $(,)? }) => {
        $(#[$meta])*
        #[derive(serde::Serialize)]
        $vis struct $name $(<$life>)? { $($(#[$field_meta])* $field: $field_type),* }

        impl $(<$life>)? $name $(<$life>)? {
            $vis fn of($($arg: $type),*) -> Self {
                $name { $($field: $value),* }
            }
        }
    };
}
pub(crate) use view;

/// Where settings come from, as JSON says it.
pub(crate) const fn origin(origin: SettingsOrigin) -> &'static str {
    match origin {
        SettingsOrigin::Recorded => "recorded",
        SettingsOrigin::RecordedValues => "recorded values",
        SettingsOrigin::Assumed => "assumed",
        SettingsOrigin::Given => "given",
    }
}

/// A view of each item.
pub(crate) fn all<T, V>(items: impl IntoIterator<Item = T>, view: impl FnMut(T) -> V) -> Vec<V> {
    items.into_iter().map(view).collect()
}
