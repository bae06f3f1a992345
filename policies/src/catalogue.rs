//! All policies by name: the catalogue, and policies that a program declares itself.
//!
//! A name has the form `NAME` or `NAME:key=value;key=value`. Brackets keep a value together (`settings=[a:1,b:2]`), so
//! names with parameters can be used in comma-separated lists. Each policy's declaration is in its own file.
//!
//! Nothing here determines how a policy decides, so an edit of this file leaves the rows of studies valid
//! (`research/build.rs`).

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use parkade::settings::Settings;

use crate::entry::{Entry, Named, base, cut};
use crate::parameter::Parameter;
use crate::{bfc, compaction, cuda_async, gmlake, growing_region, pytorch, rescue, rmm_pool, stalloc};

/// The declarations of all policies.
pub const ENTRIES: &[&Entry] = &[
    &pytorch::ENTRY,
    &growing_region::ENTRY,
    &bfc::ENTRY,
    &stalloc::ENTRY,
    &rmm_pool::ENTRY,
    &cuda_async::ENTRY,
    &gmlake::ENTRY,
    &rescue::ENTRY,
    &compaction::ENTRY,
];

/// All policies, PyTorch's first.
pub const CATALOGUE: &[Named] = &[
    Named::plain(&pytorch::ENTRY),
    pytorch::EXPANDABLE,
    pytorch::OF_2_15,
    pytorch::EXPANDABLE_OF_2_15,
    growing_region::FIRST_FIT,
    growing_region::NEXT_FIT,
    Named::plain(&growing_region::ENTRY),
    growing_region::WORST_FIT,
    Named::plain(&bfc::ENTRY),
    bfc::ONE_REGION,
    bfc::XLA,
    bfc::XLA_GROWTH,
    Named::plain(&stalloc::ENTRY),
    Named::plain(&rmm_pool::ENTRY),
    Named::plain(&cuda_async::ENTRY),
    Named::plain(&gmlake::ENTRY),
];

/// Policies that every command accepts by name, but that are neither part of `all` nor in the tables of
/// `docs/numbers.md`.
pub const BESIDE: &[Named] = &[Named::plain(&rescue::ENTRY), rescue::FREE_ONLY, Named::plain(&compaction::ENTRY)];

/// Whether the policy with this name needs serial work, because it breaks handles
/// ([`Relief::Break`](parkade::policy::Relief::Break)): while the allocator serves a call, no other thread may submit
/// work that uses its memory. On a device that cannot break handles
/// ([`DeviceBackend::breaks_handles`](parkade::device::DeviceBackend::breaks_handles)), the policy still serves
/// requests, but needs more memory. The name may be written in any form that [`named`] accepts; a name that leads to no
/// policy needs nothing.
#[must_use]
pub fn needs_serial_work(name: &str) -> bool {
    match base(name.trim()) {
        "compaction" => named(name).is_ok(),
        "pytorch-rescue" => named(name).is_ok_and(|policy| policy.values.text("reach") != "free"),
        _ => false,
    }
}

/// The reason why there is no policy with a given name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unknown {
    /// No policy has, or has ever had, this name.
    Name,
    /// The policy was renamed; this is its current name.
    Renamed(String),
    /// The policy was removed. This one replaces it: it needs a similar amount of memory or has the same original.
    Removed(&'static str),
    /// A parameter is wrong. The text states what is wrong and what is allowed.
    Parameter(String),
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unknown::Name => f.write_str("no policy has this name"),
            Unknown::Renamed(now) => write!(f, "it is called {now}"),
            Unknown::Removed(instead) => write!(f, "it was removed; use {instead}"),
            Unknown::Parameter(wrong) => f.write_str(wrong),
        }
    }
}

impl core::error::Error for Unknown {}

/// Former names of policies, and their current names.
const RENAMED: &[(&str, &str)] = &[
    ("first-fit", "best-fit-remap:fit=first"),
    ("next-fit", "best-fit-remap:fit=next"),
    ("best-fit", "best-fit-remap"),
    ("worst-fit", "best-fit-remap:fit=worst"),
    ("first-fit-remap", "best-fit-remap:fit=first"),
    ("next-fit-remap", "best-fit-remap:fit=next"),
    ("worst-fit-remap", "best-fit-remap:fit=worst"),
    ("bfc-one-region", "bfc:kind=one-region"),
    ("bfc-prealloc", "bfc:kind=xla"),
    ("bfc-xla", "bfc:kind=xla"),
    ("bfc-xla-growth", "bfc:kind=xla-growth"),
    ("breaking-handles", "compaction"),
    ("gmlake", "gmlake-like"),
    ("pytorch-2.15", "pytorch:release=2.15"),
    ("pytorch-2.15-expandable", "pytorch:release=2.15;settings=[expandable_segments:True]"),
];

/// Policies that have been removed from parkade, and their replacements.
const REMOVED: &[(&str, &str)] = &[
    ("buddy", "best-fit-remap"),
    ("floating-handles", "pytorch-rescue:reach=free"),
    ("pytorch-expandable-reuse", "pytorch-expandable"),
    ("rmm-arena", "rmm-pool"),
    ("slab", "best-fit-remap"),
    ("tlsf", "bfc:kind=one-region"),
    ("tlsf-remap", "best-fit-remap"),
];

/// The policies that have names: those of the catalogue, and those that a program declares itself.
#[derive(Clone, Copy, Default, Debug)]
pub struct Policies {
    own: &'static [Entry],
}

impl Policies {
    /// The policies of the catalogue and these.
    ///
    /// # Errors
    /// A declaration is wrong, or its name is taken. The text says which and why.
    pub fn with(own: &'static [Entry]) -> Result<Policies, String> {
        for (place, entry) in own.iter().enumerate() {
            entry.check()?;
            let is_taken = own[..place].iter().any(|other| other.name == entry.name);
            if is_taken || named(entry.name).err() != Some(Unknown::Name) {
                return Err(format!("the name {:?} belongs to a different policy: choose another name", entry.name));
            }
        }
        Ok(Policies { own })
    }

    /// The program's own policies, each with its defaults.
    pub fn own(self) -> impl Iterator<Item = Named> {
        self.own.iter().map(Named::plain)
    }

    /// All declarations, the program's own ones last.
    pub fn entries(self) -> impl Iterator<Item = &'static Entry> {
        ENTRIES.iter().copied().chain(self.own)
    }

    /// The policy with this name, which may have parameters (`best-fit-remap:fit=first;handle=20MiB`).
    ///
    /// # Errors
    /// No policy has this name; the error states the reason.
    pub fn named(self, name: &str) -> Result<Named, Unknown> {
        let name = name.trim();
        if let Some(known) = listed().find(|policy| policy.name == name) {
            return Ok(known.clone());
        }
        let (base, text) = name.split_once(':').map_or((name, None), |(base, text)| (base, Some(text)));
        if let Some(unknown) = self.former(base, text.unwrap_or_default()) {
            return Err(unknown);
        }
        let Some(entry) = self.entries().find(|entry| entry.name == base) else {
            return Err(not_a_policy(name, base));
        };
        let Some(text) = text else { return Ok(Named::plain(entry)) };
        let found = Named::given(entry, entry.parse(text).map_err(Unknown::Parameter)?);
        let is_it = |known: &&Named| known.entry.name == entry.name && known.values.given() == found.values.given();
        Ok(listed().find(is_it).cloned().unwrap_or(found))
    }

    /// The policies of a grid, in which slashes separate the values of a parameter (`bfc:kind=growth/xla`): every
    /// combination, each policy once. A name without slashes is a grid of one policy.
    ///
    /// ```
    /// # use parkade_policies::Policies;
    /// let grid = Policies::default().grid("best-fit-remap:fit=best/first;handle=2MiB/20MiB")?;
    /// let names: Vec<&str> = grid.iter().map(|policy| &*policy.name).collect();
    /// let [best, first] = ["best-fit-remap:handle=20MiB", "best-fit-remap:fit=first;handle=20MiB"];
    /// assert_eq!(names, ["best-fit-remap", best, "best-fit-remap:fit=first", first]);
    /// # Ok::<(), parkade_policies::Unknown>(())
    /// ```
    ///
    /// # Errors
    /// As for [`Policies::named`], or there are too many combinations.
    pub fn grid(self, name: &str) -> Result<Vec<Named>, Unknown> {
        let split = name.trim().split_once(':').filter(|(_, text)| cut(text, '/').nth(1).is_some());
        let declared = split.and_then(|(base, text)| Some((self.entries().find(|entry| entry.name == base)?, text)));
        let Some((entry, text)) = declared else { return Ok(alloc::vec![self.named(name)?]) };
        let mut policies: Vec<Named> = Vec::new();
        for text in entry.combinations(text).map_err(Unknown::Parameter)? {
            let found = self.named(&format!("{}:{text}", entry.name))?;
            if policies.iter().all(|known| known.name != found.name) {
                policies.push(found);
            }
        }
        Ok(policies)
    }

    /// The same policy with each of its parameters at each [border](Parameter::borders) in turn, while the others keep their
    /// defaults. Empty if the name has parameters. Values that the policy refuses, and the defaults, are left out.
    ///
    /// ```
    /// # use parkade_policies::Policies;
    /// let borders = Policies::default().borders(&Policies::default().named("bfc")?);
    /// let names: Vec<&str> = borders.iter().map(|policy| &*policy.name).collect();
    /// assert_eq!(names, ["bfc:kind=one-region", "bfc:kind=xla", "bfc:kind=xla-growth", "bfc:waste=256B", "bfc:waste=16TiB"]);
    /// # Ok::<(), parkade_policies::Unknown>(())
    /// ```
    #[must_use]
    pub fn borders(self, policy: &Named) -> Vec<Named> {
        let values = |parameter: &'static Parameter| parameter.borders().into_iter().map(|value| (parameter.key, value));
        let texts = policy.own_parameters().iter().flat_map(values);
        let names = texts.map(|(key, value)| format!("{}:{key}={value}", policy.entry.name));
        names.filter_map(|name| self.named(&name).ok()).filter(|border| border.name != policy.name).collect()
    }

    /// The replacement of a policy that had this name.
    fn former(self, base: &str, text: &str) -> Option<Unknown> {
        if let Some((_, now)) = RENAMED.iter().find(|(before, _)| *before == base) {
            let joint = if now.contains(':') { ";" } else { ":" };
            let joined = format!("{now}{joint}{text}");
            // The parameters that the old name implies may contradict those after it.
            let is_valid = !text.is_empty() && self.named(&joined).is_ok();
            return Some(Unknown::Renamed(if is_valid { joined } else { (*now).to_string() }));
        }
        REMOVED.iter().find(|(before, _)| *before == base).map(|(_, instead)| Unknown::Removed(instead))
    }
}

/// The policies that the lists name.
fn listed() -> impl Iterator<Item = &'static Named> {
    CATALOGUE.iter().chain(BESIDE)
}

/// The reason why no policy has this name.
fn not_a_policy(name: &str, base: &str) -> Unknown {
    if let Some(known) = listed().find(|policy| policy.name == base) {
        return Unknown::Parameter(format!("{base} has no parameters; {} has", known.entry.name));
    }
    let is_setting = name.contains(':') && Settings::from_environment(name).is_ok();
    let hint = "it is a setting; write settings in brackets: pytorch:settings=[expandable_segments:True]";
    if is_setting { Unknown::Parameter(hint.to_string()) } else { Unknown::Name }
}

/// The policy of the catalogue with this name ([`Policies::named`]).
///
/// ```
/// use parkade_policies::named;
/// assert_eq!(named("best-fit-remap:handle=20MiB;fit=first")?.name, "best-fit-remap:fit=first;handle=20MiB");
/// assert_eq!(named("bfc-xla").unwrap_err().to_string(), "it is called bfc:kind=xla");
/// # Ok::<(), parkade_policies::Unknown>(())
/// ```
///
/// # Errors
/// No policy has this name; the error states the reason.
pub fn named(name: &str) -> Result<Named, Unknown> {
    Policies::default().named(name)
}

#[cfg(test)]
mod tests {
    use parkade::PoolSlot;
    use parkade::profile::Profile;
    use parkade::units::{Bytes, PoolClass};

    use super::*;

    fn why(name: &str) -> String {
        named(name).expect_err(name).to_string()
    }

    #[test]
    fn each_fit_takes_each_size_of_handles() {
        let large = PoolSlot::default_pool(PoolClass::Large);
        let handle = growing_region::ENTRY.parameters.iter().find(|parameter| parameter.key == "handle").expect("it is declared");
        for fit in ["best", "first", "next", "worst"] {
            let page = |size| named(&format!("best-fit-remap:fit={fit};handle={size}")).expect(size).make().page(large);
            let mib: Vec<u64> = handle.choices().iter().map(|size| page(size).0 >> 20).collect();
            assert_eq!(mib, [2, 4, 8, 16, 20, 32, 64, 128, 256, 512, 1024], "{fit}");
        }
    }

    #[test]
    fn a_name_has_one_form_however_its_parameters_are_written() {
        for (written, name) in [
            ("best-fit-remap:handle=20MiB;fit=first", "best-fit-remap:fit=first;handle=20MiB"),
            ("best-fit-remap:fit=best;handle=2MiB", "best-fit-remap"),
            ("bfc:kind=growth", "bfc"),
            ("pytorch:release=2.11", "pytorch"),
            (" pytorch:release=2.11.0+cu130 ", "pytorch"),
            ("pytorch:release=2.15.0;", "pytorch:release=2.15"),
            ("bfc:", "bfc"),
            ("pytorch:settings=[expandable_segments:False]", "pytorch"),
            ("pytorch:settings=[expandable_segments : True,]", "pytorch-expandable"),
            ("pytorch:settings=[]", "pytorch"),
            ("pytorch:settings=[expandable_segments:True]", "pytorch-expandable"),
            ("pytorch-rescue:reach=breaks;settings=[expandable_segments:True]", "pytorch-rescue"),
            ("pytorch-rescue:reach=free;release=2.11.0", "pytorch-rescue:reach=free"),
            ("pytorch:settings=max_split_size_mb:21", "pytorch:settings=[max_split_size_mb:21]"),
            (
                "pytorch:settings=[roundup_power2_divisions:[256:1,512:2],max_split_size_mb:21]; release=2.15",
                "pytorch:release=2.15;settings=[roundup_power2_divisions:[256:1,512:2],max_split_size_mb:21]",
            ),
        ] {
            assert_eq!(named(written).expect(written).name, name, "{written}");
            assert_eq!(named(name).expect(name).name, name);
        }
        for known in CATALOGUE.iter().chain(BESIDE) {
            assert_eq!(named(&known.name).expect("the policy is in the catalogue").name, known.name);
        }
    }

    #[test]
    fn a_release_and_settings_reach_the_policy() {
        let old = named("pytorch:release=2.1;settings=[expandable_segments:True]").expect("a policy").make();
        assert_eq!(old.profile(), Profile::of("2.1").expect("a release"));
        assert!(old.is_expandable(PoolSlot::default_pool(PoolClass::Large)));
        let last = named("pytorch:release=2.15.0").expect("a policy").make();
        assert_eq!(last.profile(), &Profile::PYTORCH_2_15);
        assert!(!last.is_expandable(PoolSlot::default_pool(PoolClass::Large)));
    }

    #[test]
    fn serial_work_is_needed_however_the_name_is_written() {
        for name in [" compaction", "compaction:first=8MiB", "\tpytorch-rescue", "pytorch-rescue:", "pytorch-rescue:reach=breaks"]
        {
            assert!(named(name).is_ok() && needs_serial_work(name), "{name:?}");
        }
        for name in [
            "pytorch-rescue:reach = free",
            " pytorch-rescue:settings=max_split_size_mb:20;reach=[free]",
            "pytorch",
            "bfc:kind=xla",
        ] {
            assert!(named(name).is_ok() && !needs_serial_work(name), "{name:?}");
        }
    }

    #[test]
    fn a_wrong_name_says_what_is_right() {
        let sizes = "one of 2MiB, 4MiB, 8MiB, 16MiB, 20MiB, 32MiB, 64MiB, 128MiB, 256MiB, 512MiB, 1GiB";
        for (name, expected) in [
            ("first-fit", "it is called best-fit-remap:fit=first"),
            ("first-fit-remap:handle=4MiB", "it is called best-fit-remap:fit=first;handle=4MiB"),
            ("best-fit:handle=4MiB", "it is called best-fit-remap:handle=4MiB"),
            ("pytorch-2.15-expandable", "it is called pytorch:release=2.15;settings=[expandable_segments:True]"),
            ("bfc-xla-growth", "it is called bfc:kind=xla-growth"),
            ("breaking-handles", "it is called compaction"),
            ("breaking-handles:handle=32MiB", "it is called compaction"),
            ("buddy", "it was removed; use best-fit-remap"),
            ("tlsf-remap:handle=4MiB", "it was removed; use best-fit-remap"),
            ("floating-handles:handle=32MiB", "it was removed; use pytorch-rescue:reach=free"),
            ("stalloc:handle=4MiB", "stalloc has no parameters"),
            ("pytorch-expandable:release=2.15", "pytorch-expandable has no parameters; pytorch has"),
            ("bfc:handle=4MiB", "bfc has no parameter \"handle\"; it has kind, waste"),
            ("bfc:waste=1", "waste=1 is not possible; waste is a size from 256B to 16TiB with its unit"),
            (
                "bfc:kind=xla/growth",
                "kind=xla/growth is several values, which only parkade sweep -p and parkade conform --policy take",
            ),
            ("bfc:kind=xla;kind=xla", "the parameter kind is given twice"),
            ("bfc:kind", "kind has no value; kind is one of growth, one-region, xla, xla-growth"),
            ("first-fit:fit=next", "it is called best-fit-remap:fit=first"),
            ("pytorch:settings=[max_split_size_mb:20", "its brackets do not match: settings=[key:value,key:value]"),
            ("pytorch:settings=a]", "its brackets do not match: settings=[key:value,key:value]"),
            (
                "pytorch:settings=[backend:cudaMallocAsync]",
                "backend:cudaMallocAsync is a different allocator; cuda-async is a model of it",
            ),
            ("max_split_size_mb:20", "it is a setting; write settings in brackets: pytorch:settings=[expandable_segments:True]"),
            (
                "pytorch-rescue:settings=[expandable_segments:False]",
                "a rescue needs expandable segments: leave expandable_segments:False out of the settings",
            ),
            ("nothing", "no policy has this name"),
            ("nothing:handle=4MiB", "no policy has this name"),
        ] {
            assert_eq!(why(name), expected, "{name}");
        }
        assert_eq!(why("best-fit-remap:handle=3MiB"), format!("handle=3MiB is not possible; handle is {sizes}"));
        assert!(why("pytorch:release=1.13").contains("the known releases are"), "{}", why("pytorch:release=1.13"));
        assert!(why("pytorch:settings=[per_process_memory_fraction:0.5]").contains("give the command a limit"));
        assert!(why("pytorch:settings=[no_such:1]").contains("no_such"), "{}", why("pytorch:settings=[no_such:1]"));
    }

    #[test]
    fn a_grid_is_every_combination_once() {
        let names = |text: &str| -> Vec<String> {
            Policies::default().grid(text).expect(text).iter().map(|policy| policy.name.to_string()).collect()
        };
        assert_eq!(names("bfc"), ["bfc"]);
        assert_eq!(names("bfc:kind=growth/xla/growth"), ["bfc", "bfc:kind=xla"]);
        assert_eq!(
            names("pytorch:release=2.11/2.15;settings=[]/[expandable_segments:True,max_split_size_mb:20]"),
            [
                "pytorch",
                "pytorch:settings=[expandable_segments:True,max_split_size_mb:20]",
                "pytorch:release=2.15",
                "pytorch:release=2.15;settings=[expandable_segments:True,max_split_size_mb:20]"
            ]
        );
        assert_eq!(names("pytorch:settings=[]/[expandable_segments:True]"), ["pytorch", "pytorch-expandable"]);
        for (text, expected) in [
            ("bfc:kind=growth/", "kind has no value"),
            ("bfc:kind=growth/good", "kind=good is not possible"),
            ("first-fit:handle=2MiB/4MiB", "it is called best-fit-remap:fit=first"),
            ("buddy:handle=2MiB/4MiB", "it was removed"),
            ("nothing:a=1/2", "no policy has this name"),
            ("stalloc:a=1/2", "stalloc has no parameters"),
        ] {
            let error = Policies::default().grid(text).expect_err(text).to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let many = format!("rmm-pool:initial_percent={}", "1/".repeat(20_000) + "1");
        assert!(Policies::default().grid(&many).expect_err("too many").to_string().contains("more than 10000 combinations"));
    }

    #[test]
    fn a_slash_inside_brackets_is_part_of_the_value() {
        for text in ["pytorch:settings=[a/b:1]", "pytorch:release=2.11/2.15;settings=[a/b:1]"] {
            let error = Policies::default().grid(text).expect_err("no such setting").to_string();
            assert!(error.starts_with("PyTorch refuses these settings") && error.contains("a/b"), "{text}: {error}");
        }
    }

    #[test]
    fn the_declarations_are_valid_and_those_of_a_program_are_beside_them() {
        const WASTE: Parameter = Parameter::size("waste", "", "1MiB", Bytes(512), Bytes::mib(2));
        const WRONG: Parameter = Parameter::number("number", "", "7", 0, 3);
        const fn own(name: &'static str, parameters: &'static [Parameter]) -> Entry {
            Entry::new(name, "says", "our own", |_| panic!("it is not made")).with_parameters(parameters)
        }
        for entry in ENTRIES {
            assert_eq!(entry.check(), Ok(()), "{}", entry.name);
        }
        let known = Policies::with(&const { [own("mine", &[WASTE])] }).expect("valid");
        assert_eq!(known.named("mine:waste=1024KiB").expect("it is declared").name, "mine");
        assert_eq!(known.grid("mine:waste=1MiB/2MiB").expect("a grid").len(), 2);
        assert_eq!(known.named("bfc").expect("it is in the catalogue").name, "bfc");
        assert_eq!(known.own().map(|policy| policy.name).collect::<Vec<_>>(), ["mine"]);
        for (own, expected) in [
            (&const { [own("bfc", &[])] }, "belongs to a different policy"),
            (&const { [own("bfc-xla", &[])] }, "belongs to a different policy"),
            (&const { [own("pytorch-expandable", &[])] }, "belongs to a different policy"),
            (&const { [own("all", &[])] }, "needs a different name"),
            (&const { [own("Mine", &[])] }, "needs a different name"),
            (&const { [own("a:b", &[])] }, "needs a different name"),
            (&const { [own("mine", &[WRONG])] }, "is not a whole number from 0 to 3"),
            (&const { [own("mine", &[WASTE, WASTE])] }, "has two parameters"),
        ] {
            let error = Policies::with(own).expect_err(expected);
            assert!(error.contains(expected), "{error}");
        }
        let twice = Policies::with(&const { [own("mine", &[]), own("mine", &[])] });
        assert!(twice.expect_err("twice").contains("belongs to a different policy"));
    }

    #[test]
    fn whoever_was_renamed_or_removed_leads_to_a_policy() {
        for (before, now) in RENAMED.iter().chain(REMOVED) {
            assert!(named(before).is_err() && named(now).is_ok(), "{before}");
        }
    }
}
