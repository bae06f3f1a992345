//! The policies that have names in this program: those of the catalogue, and those that the program declares itself.
//!
//! Names also occur in descriptions of workloads, which an adversary is made against, so that all code must agree on them.

use std::sync::OnceLock;

use parkade_policies::{Entry, Policies};

static KNOWN: OnceLock<Policies> = OnceLock::new();

/// Declares the program's own policies. This is possible once, before the first policy is looked up.
///
/// # Errors
/// A declaration is wrong, or its name is taken, or policies have been declared or looked up before. The text says which.
pub fn declare(own: &'static [Entry]) -> Result<(), String> {
    let known = Policies::with(own)?;
    KNOWN.set(known).map_err(|_| "a program can declare its policies only once, before it looks one up".to_owned())
}

/// Returns the policies that have names.
#[must_use]
pub fn policies() -> Policies {
    *KNOWN.get_or_init(Policies::default)
}
