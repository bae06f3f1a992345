//! JSON views: structs that declare each key with its type and value.

use parkade_replay::SettingsOrigin;

/// Declares a struct to serialise and its constructor `of`, with fields `key: type = value`.
macro_rules! view {
    ($(#[$meta:meta])* $vis:vis struct $name:ident $(<$life:lifetime>)? ($($arg:ident: $type:ty),* $(,)?)
     { $($(#[$field_meta:meta])* $field_vis:vis $field:ident: $field_type:ty = $value:expr),* $(,)? }) => {
        $(#[$meta])*
        #[derive(serde::Serialize)]
        $vis struct $name $(<$life>)? { $($(#[$field_meta])* $field_vis $field: $field_type),* }

        impl $(<$life>)? $name $(<$life>)? {
            /// Its values.
            $vis fn of($($arg: $type),*) -> Self {
                $name { $($field: $value),* }
            }
        }
    };
}
pub(crate) use view;

/// The origin of settings in JSON.
pub const fn origin(origin: SettingsOrigin) -> &'static str {
    match origin {
        SettingsOrigin::Recorded => "recorded",
        SettingsOrigin::RecordedValues => "recorded values",
        SettingsOrigin::Assumed => "assumed",
        SettingsOrigin::Given => "given",
    }
}

/// A view of each item.
pub fn all<T, V>(items: impl IntoIterator<Item = T>, view: impl FnMut(T) -> V) -> Vec<V> {
    items.into_iter().map(view).collect()
}
