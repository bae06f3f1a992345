//! How surely a program uses something.

/// How surely a program uses a feature.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Evidence {
    /// It does not: the recording would show it.
    NotShown,
    /// The recording cannot show it, or has lost the part that would.
    Unknown,
    /// The recording shows it.
    Shown,
}

impl Evidence {
    /// Its name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Evidence::NotShown => "not shown",
            Evidence::Unknown => "unknown",
            Evidence::Shown => "shown",
        }
    }
}
