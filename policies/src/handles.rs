//! The size of the driver's handles as an option of the policies on remappable pages: `first-fit-remap:handle=20MiB`; and the
//! largest size as an option of `floating-handles`.
//!
//! A handle is created, mapped and released as a whole, so small ones need less memory and large ones fewer
//! driver calls. Without the option the handles have 2 MiB, the least that the driver maps; PyTorch's
//! expandable segments take 20 MiB for large requests.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use parkade::policy::Policy;
use parkade::units::Bytes;

use crate::best_fit::Best;
use crate::catalogue::{BESIDE, CATALOGUE, Named, removed, renamed};
use crate::first_fit::First;
use crate::floating_handles::FloatingHandles;
use crate::growing_region::{Fit, GrowingRegion};
use crate::next_fit::Next;
use crate::worst_fit::Worst;

/// What a name with this option has between policy and size.
const OPTION: &str = ":handle=";

fn with_handles<F: Fit + Default + Send + 'static, const MIB: u64>() -> Box<dyn Policy + Send> {
    Box::new(GrowingRegion::<F>::default().with_page(Bytes::mib(MIB)))
}

fn floating<const MIB: u64>() -> Box<dyn Policy + Send> {
    Box::new(FloatingHandles::with_handles(Bytes::mib(MIB)))
}

macro_rules! sized {
    ($($policy:literal $make:ident $($fit:ty)?, $says:literal;)*) => {
        &[$(
            sized!($policy, $make $($fit)?, $says, 4, "4MiB"), sized!($policy, $make $($fit)?, $says, 8, "8MiB"),
            sized!($policy, $make $($fit)?, $says, 16, "16MiB"), sized!($policy, $make $($fit)?, $says, 20, "20MiB"),
            sized!($policy, $make $($fit)?, $says, 32, "32MiB"), sized!($policy, $make $($fit)?, $says, 64, "64MiB"),
            sized!($policy, $make $($fit)?, $says, 128, "128MiB"), sized!($policy, $make $($fit)?, $says, 256, "256MiB"),
            sized!($policy, $make $($fit)?, $says, 512, "512MiB"), sized!($policy, $make $($fit)?, $says, 1024, "1GiB"),
        )*]
    };
    ($policy:literal, $make:ident $($fit:ty)?, $says:literal, $mib:literal, $size:literal) => {
        Named {
            name: concat!($policy, ":handle=", $size),
            says: concat!("as ", $policy, ", with handles of ", $says, $size),
            source: concat!("as ", $policy),
            keeps_memory: false,
            make: $make::<$($fit,)? $mib>,
        }
    };
}

/// The policies on remappable pages with each size of handles, besides those with 2 MiB, which are in the catalogue; and
/// `floating-handles` with each largest size.
const SIZED: &[Named] = sized! {
    "first-fit-remap" with_handles First, "";
    "next-fit-remap" with_handles Next, "";
    "best-fit-remap" with_handles Best, "";
    "worst-fit-remap" with_handles Worst, "";
    "floating-handles" floating, "at most ";
};

/// The policy with this name, which has the option; that of the catalogue if its handles have the usual size.
pub(crate) fn named(name: &str) -> Option<&'static Named> {
    let (policy, size) = name.split_once(OPTION)?;
    if size == "2MiB" && SIZED.iter().any(|sized| is_of(sized, policy)) {
        return CATALOGUE.iter().find(|known| known.name == policy);
    }
    SIZED.iter().find(|sized| sized.name == name)
}

/// Whether it is this policy with an option.
fn is_of(sized: &Named, policy: &str) -> bool {
    sized.name.split_once(OPTION).is_some_and(|(own, _)| own == policy)
}

/// Why there is no policy of this name, if more can be said than that: it was renamed or removed, or has no such option.
///
/// ```
/// use parkade_policies::why_unknown;
/// assert_eq!(why_unknown("gmlake").as_deref(), Some("it is called gmlake-like"));
/// assert_eq!(why_unknown("tlsf-remap").as_deref(), Some("it was removed; use best-fit-remap"));
/// assert_eq!(why_unknown("bfc:handle=20MiB").as_deref(), Some("bfc has no options"));
/// ```
#[must_use]
pub fn why_unknown(name: &str) -> Option<String> {
    if let Some(now) = renamed(name) {
        return Some(format!("it is called {now}"));
    }
    if let Some(instead) = removed(name) {
        return Some(format!("it was removed; use {instead}"));
    }
    let (policy, _) = name.split_once(':')?;
    if let Some(now) = renamed(policy) {
        return Some(format!("{policy} is called {now}"));
    }
    if let Some(instead) = removed(policy) {
        return Some(format!("{policy} was removed; use {instead}"));
    }
    let known = CATALOGUE.iter().chain(BESIDE).find(|known| known.name == policy)?;
    let sizes = SIZED.iter().filter(|sized| is_of(sized, known.name)).filter_map(|sized| sized.name.split_once(OPTION));
    // Those of the catalogue have 2 MiB without the option.
    let usual = named(&format!("{policy}{OPTION}2MiB")).map(|_| "2MiB");
    let sizes: Vec<&str> = usual.into_iter().chain(sizes.map(|(_, size)| size)).collect();
    let has_option = !sizes.is_empty();
    Some(if has_option {
        format!("the option is handle=SIZE, one of {}", sizes.join(", "))
    } else {
        format!("{policy} has no options")
    })
}

#[cfg(test)]
mod tests {
    use parkade::PoolSlot;
    use parkade::units::PoolClass;

    use super::*;

    #[test]
    fn each_size_is_a_policy_with_such_pages() {
        let large = PoolSlot::default_pool(PoolClass::Large);
        for policy in ["first-fit-remap", "next-fit-remap", "best-fit-remap", "worst-fit-remap"] {
            let pages: Vec<u64> =
                ["2MiB", "4MiB", "8MiB", "16MiB", "20MiB", "32MiB", "64MiB", "128MiB", "256MiB", "512MiB", "1GiB"]
                    .iter()
                    .map(|size| (crate::named(&format!("{policy}:handle={size}")).expect(size).make)().page(large).0 >> 20)
                    .collect();
            assert_eq!(pages, [2, 4, 8, 16, 20, 32, 64, 128, 256, 512, 1024], "{policy}");
        }
        assert_eq!(named("first-fit-remap:handle=2MiB").map(|known| known.name), Some("first-fit-remap"));
        assert!(
            SIZED
                .iter()
                .all(|sized| !sized.keeps_memory && crate::named(sized.name).is_some_and(|found| found.name == sized.name))
        );
    }

    #[test]
    fn other_names_are_unknown_and_it_is_said_why() {
        for name in [
            "first-fit-remap:handle=3MiB",
            "first-fit-remap:handle=",
            "first-fit-remap:",
            "bfc:handle=2MiB",
            "pytorch:handle=20MiB",
            "floating-handles:handle=2MiB",
        ] {
            assert!(crate::named(name).is_none(), "{name}");
            assert!(why_unknown(name).is_some(), "{name}");
        }
        let sizes =
            "the option is handle=SIZE, one of 2MiB, 4MiB, 8MiB, 16MiB, 20MiB, 32MiB, 64MiB, 128MiB, 256MiB, 512MiB, 1GiB";
        assert_eq!(why_unknown("first-fit-remap:handle=3MiB").as_deref(), Some(sizes));
        let largest = "the option is handle=SIZE, one of 4MiB, 8MiB, 16MiB, 20MiB, 32MiB, 64MiB, 128MiB, 256MiB, 512MiB, 1GiB";
        assert_eq!(why_unknown("floating-handles:handle=2MiB").as_deref(), Some(largest));
        assert_eq!(why_unknown("first-fit:handle=4MiB").as_deref(), Some("first-fit is called first-fit-remap"));
        assert_eq!(why_unknown("buddy").as_deref(), Some("it was removed; use best-fit-remap"));
        assert_eq!(why_unknown("tlsf-remap:handle=4MiB").as_deref(), Some("tlsf-remap was removed; use best-fit-remap"));
        assert_eq!(
            (why_unknown("first-fit-remap"), why_unknown("nothing"), why_unknown("nothing:handle=4MiB")),
            (None, None, None)
        );
    }
}
