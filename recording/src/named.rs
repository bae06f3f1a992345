//! Enums whose variants have names that programs read, in files and in the JSON that commands print.

/// An enum whose variants have names that programs read.
pub trait Named {
    /// All names.
    const NAMES: &'static [&'static str];

    /// Returns the variant's name.
    fn name(&self) -> &'static str;
}

/// Names each variant of an enum: its `name` and its [`Named`] come from a single list that cannot omit a variant.
#[macro_export]
macro_rules! names {
    ($enum:ident { $($variant:pat => $name:literal),* $(,)? }) => {
        impl $enum {
            /// Returns its name in JSON.
            #[must_use]
            #[allow(unreachable_pub, reason = "the enum may be private")]
            pub const fn name(&self) -> &'static str {
                match self { $($variant => $name),* }
            }
        }

        impl $crate::Named for $enum {
            const NAMES: &'static [&'static str] = &[$($name),*];

            fn name(&self) -> &'static str {
                $enum::name(self)
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::Named;

    enum Shown {
        Nothing,
        Some([u8; 0]),
    }

    names! {
        Shown {
            Shown::Nothing => "nothing",
            Shown::Some([]) => "some",
        }
    }

    #[test]
    fn every_variant_has_its_name() {
        assert_eq!(Shown::NAMES, ["nothing", "some"]);
        assert_eq!([Named::name(&Shown::Nothing), Shown::Some([]).name()], ["nothing", "some"]);
    }
}
