//! The policies that have names in this library: those of the catalogue, and those that a library with policies of its
//! own declares.

use std::sync::OnceLock;

use parkade_policies::{BESIDE, CATALOGUE, Entry, Named, Policies};

use crate::failure::Failure;
use crate::types::parkade_status::PARKADE_INVALID_ARGUMENT;

static KNOWN: OnceLock<Policies> = OnceLock::new();

/// Makes a library (`crate-type = ["cdylib"]`) of this interface with the policies that these [`Entry`]s declare.
///
/// The library has every function of the header, and `parkade_status parkade_declare_policies(void)`. A program calls
/// that one first; `parkade.enable(library=...)` does. From then on, the names of these policies, with their
/// parameters, are known wherever the interface takes the name of a policy.
///
/// ```
/// use parkade::policy::PyTorch;
/// use parkade::settings::Settings;
/// use parkade_policies::Entry;
///
/// const MINE: Entry = Entry::new("mine", "PyTorch's policy with expandable segments", "our own", |_| {
///     Box::new(PyTorch::new(Settings { expandable_segments: true, ..Settings::default() }))
/// });
///
/// parkade_capi::policies!(MINE);
/// # assert_eq!(parkade_declare_policies(), parkade_capi::parkade_status::PARKADE_OK);
/// ```
#[macro_export]
macro_rules! policies {
    ($($entry:expr),+ $(,)?) => {
        /// Declares this library's own policies. Call it before any other function; a repeated call does nothing.
        #[unsafe(no_mangle)]
        pub extern "C" fn parkade_declare_policies() -> $crate::parkade_status {
            const OWN: &[$crate::Entry] = &[$($entry),+];
            $crate::declare(OWN)
        }
    };
}

/// Declares a library's own policies.
///
/// # Errors
/// A declaration is wrong, its name is taken, or a policy was looked up before.
pub(crate) fn declared(own: &'static [Entry]) -> Result<(), Failure> {
    let refused = |why| Failure::new(PARKADE_INVALID_ARGUMENT, why);
    let declared = Policies::with(own).map_err(refused)?;
    let known = KNOWN.get_or_init(|| declared);
    if known.own().map(|policy| policy.entry.name).eq(own.iter().map(|entry| entry.name)) {
        return Ok(());
    }
    let why = "the library's policies are declared too late, because a policy was looked up before: call \
               parkade_declare_policies() before any other function";
    Err(refused(why.to_owned()))
}

/// Returns the policies that have names.
pub(crate) fn policies() -> Policies {
    *KNOWN.get_or_init(Policies::default)
}

/// Returns the policies that a program can list: PyTorch's first, and the library's own ones last.
pub(crate) fn listed() -> impl Iterator<Item = Named> {
    CATALOGUE.iter().chain(BESIDE).cloned().chain(policies().own())
}
