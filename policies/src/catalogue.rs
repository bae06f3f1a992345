//! All policies by name: the catalogue, and the parameters that may follow a name.
//!
//! A name has the form `NAME` or `NAME:key=value;key=value`. Brackets keep a value together (`settings=[a:1,b:2]`), so
//! names with parameters can be used in comma-separated lists.

use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use parkade::policy::{Policy, PyTorch};
use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade::units::Bytes;

use crate::{
    Bfc, BfcKind, Compaction, CudaAsync, Fit, GmLake, GrowingRegion, NEEDS_EXPANDABLE, Reach, Rescue, RmmPool, Stalloc,
    settings_to_rescue,
};

/// A policy by name.
#[derive(Clone, Debug)]
pub struct Named {
    /// The name with its parameters, in the order of [`PARAMETERS`] and without those that have no effect.
    pub name: Cow<'static, str>,
    /// A short description of the policy.
    pub says: Cow<'static, str>,
    /// The paper or code that defines its rules.
    pub source: &'static str,
    /// Whether the policy's rules forbid releasing memory before the device is out of memory.
    pub keeps_memory: bool,
    make: Make,
}

impl Named {
    /// Creates a policy without state.
    #[must_use]
    pub fn make(&self) -> Box<dyn Policy + Send> {
        match &self.make {
            Make::Plain(make) => make(),
            Make::Given(make) => make(),
        }
    }
}

/// How a policy is created: as a constant in the catalogue, or from parameters.
#[derive(Clone)]
enum Make {
    Plain(fn() -> Box<dyn Policy + Send>),
    Given(Arc<dyn Fn() -> Box<dyn Policy + Send> + Send + Sync>),
}

impl Make {
    fn given(policy: impl Policy + Clone + Send + Sync + 'static) -> Make {
        Make::Given(Arc::new(move || Box::new(policy.clone())))
    }
}

impl fmt::Debug for Make {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Make")
    }
}

/// All policies, PyTorch's first.
pub const CATALOGUE: &[Named] = &[
    Named {
        name: Cow::Borrowed("pytorch"),
        says: Cow::Borrowed("PyTorch 2.11's default settings"),
        source: "c10/cuda/CUDACachingAllocator.cpp of PyTorch 2.11",
        keeps_memory: false,
        make: Make::Plain(|| Box::new(PyTorch::new(Settings::default()))),
    },
    Named {
        name: Cow::Borrowed("pytorch-expandable"),
        says: Cow::Borrowed("PyTorch 2.11 with expandable_segments:True"),
        source: "c10/cuda/CUDACachingAllocator.cpp of PyTorch 2.11",
        keeps_memory: false,
        make: Make::Plain(|| Box::new(PyTorch::new(expandable()))),
    },
    Named {
        name: Cow::Borrowed("pytorch:release=2.15"),
        says: Cow::Borrowed("PyTorch 2.15's default settings"),
        source: "c10/cuda/CUDACachingAllocator.cpp of PyTorch 2.15",
        keeps_memory: false,
        make: Make::Plain(|| Box::new(PyTorch::of(&Profile::PYTORCH_2_15, Settings::default()))),
    },
    Named {
        name: Cow::Borrowed("pytorch:release=2.15;settings=[expandable_segments:True]"),
        says: Cow::Borrowed("PyTorch 2.15 with expandable_segments:True"),
        source: "c10/cuda/CUDACachingAllocator.cpp of PyTorch 2.15",
        keeps_memory: false,
        make: Make::Plain(|| Box::new(PyTorch::of(&Profile::PYTORCH_2_15, expandable()))),
    },
    Named {
        name: Cow::Borrowed("best-fit-remap:fit=first"),
        says: Cow::Borrowed("the lowest free block that is large enough; a growing region of remappable pages per stream"),
        source: "Knuth, The Art of Computer Programming, 2.5, algorithm A",
        keeps_memory: false,
        make: Make::Plain(|| Box::new(GrowingRegion::new(Fit::First))),
    },
    Named {
        name: Cow::Borrowed("best-fit-remap:fit=next"),
        says: Cow::Borrowed("first fit starting where the last search ended; a growing region of remappable pages per stream"),
        source: "Knuth, The Art of Computer Programming, 2.5, exercise 6",
        keeps_memory: false,
        make: Make::Plain(|| Box::new(GrowingRegion::new(Fit::Next))),
    },
    Named {
        name: Cow::Borrowed("best-fit-remap"),
        says: Cow::Borrowed("the smallest free block that is large enough; a growing region of remappable pages per stream"),
        source: "Knuth, The Art of Computer Programming, 2.5",
        keeps_memory: false,
        make: Make::Plain(|| Box::new(GrowingRegion::new(Fit::Best))),
    },
    Named {
        name: Cow::Borrowed("best-fit-remap:fit=worst"),
        says: Cow::Borrowed("the largest free block; a growing region of remappable pages per stream"),
        source: "Wilson and others, Dynamic Storage Allocation, IWMM 1995",
        keeps_memory: false,
        make: Make::Plain(|| Box::new(GrowingRegion::new(Fit::Worst))),
    },
    Named {
        name: Cow::Borrowed("bfc"),
        says: Cow::Borrowed("TensorFlow's best fit with coalescing; each new region is twice as large as the last"),
        source: "openxla/xla, xla/tsl/framework/bfc_allocator.cc",
        keeps_memory: false,
        make: Make::Plain(|| Box::new(Bfc::new(BfcKind::Growth))),
    },
    Named {
        name: Cow::Borrowed("bfc:kind=one-region"),
        says: Cow::Borrowed("bfc without allow_growth: a single region that takes the entire limit"),
        source: "openxla/xla, xla/tsl/framework/bfc_allocator.cc",
        keeps_memory: true,
        make: Make::Plain(|| Box::new(Bfc::new(BfcKind::OneRegion))),
    },
    Named {
        name: Cow::Borrowed("bfc:kind=xla"),
        says: Cow::Borrowed("bfc as configured by XLA and, by default, JAX: a single region with 75 % of the device's memory"),
        source: "openxla/xla, xla/tsl/framework/bfc_allocator.cc; xla/pjrt/gpu/gpu_helpers.cc",
        keeps_memory: true,
        make: Make::Plain(|| Box::new(Bfc::new(BfcKind::Xla))),
    },
    Named {
        name: Cow::Borrowed("bfc:kind=xla-growth"),
        says: Cow::Borrowed(
            "bfc as in XLA without preallocation: growing regions, up to 75 % of the device; never releases memory",
        ),
        source: "openxla/xla, xla/tsl/framework/bfc_allocator.cc; xla/pjrt/gpu/gpu_helpers.cc",
        keeps_memory: true,
        make: Make::Plain(|| Box::new(Bfc::new(BfcKind::XlaGrowth))),
    },
    Named {
        name: Cow::Borrowed("stalloc"),
        says: Cow::Borrowed(
            "STAlloc: in studies, the program's first step is planned in advance; PyTorch's policy serves everything else",
        ),
        source: "STAlloc, arXiv 2507.16274; infinigence/STAlloc",
        keeps_memory: false,
        make: Make::Plain(|| Box::new(Stalloc::new())),
    },
    Named {
        name: Cow::Borrowed("rmm-pool"),
        says: Cow::Borrowed("RAPIDS' pool: best fit per stream, then other streams' blocks; releases memory only under a limit"),
        source: "rapidsai/rmm, pool_memory_resource, stream_ordered_memory_resource.hpp",
        keeps_memory: true,
        make: Make::Plain(|| Box::new(RmmPool::new())),
    },
    Named {
        name: Cow::Borrowed("cuda-async"),
        says: Cow::Borrowed("a model of cudaMallocAsync's pool as PyTorch configures it: freed memory stays in the pool"),
        source: "CUDA Programming Guide, Stream-Ordered Memory Allocator; cudaMemPoolAttr",
        keeps_memory: false,
        make: Make::Plain(|| Box::new(CudaAsync::new(Bytes::MAX))),
    },
    Named {
        name: Cow::Borrowed("gmlake-like"),
        says: Cow::Borrowed("similar to GMLake: maps the pages of several free blocks together to serve a large request"),
        source: "GMLake, ASPLOS 2024; intelligent-machine-learning/glake",
        keeps_memory: false,
        make: Make::Plain(|| Box::new(GmLake::default())),
    },
];

/// Policies that every command accepts by name, but that are neither part of `all` nor in the tables of
/// `docs/numbers.md`.
pub const BESIDE: &[Named] = &[
    Named {
        name: Cow::Borrowed("pytorch-rescue"),
        says: Cow::Borrowed(
            "pytorch-expandable until a request would fail; then handles that are partly in use are broken to serve the request",
        ),
        source: "our own",
        keeps_memory: false,
        make: Make::Plain(|| Box::new(rescue(PyTorch::new(expandable()), Reach::Breaks))),
    },
    Named {
        name: Cow::Borrowed("pytorch-rescue:reach=free"),
        says: Cow::Borrowed(
            "pytorch-expandable until a request would fail; then memory that is entirely free moves to where it is needed",
        ),
        source: "our own",
        keeps_memory: false,
        make: Make::Plain(|| Box::new(rescue(PyTorch::new(expandable()), Reach::Free))),
    },
    Named {
        name: Cow::Borrowed("compaction"),
        says: Cow::Borrowed(
            "best fit on a few large handles; when memory is short, those that are partly in use are broken and their contents copied",
        ),
        source: "our own",
        keeps_memory: false,
        make: Make::Plain(|| Box::new(Compaction::default())),
    },
];

fn rescue(rules: PyTorch, reach: Reach) -> Rescue {
    Rescue::new(rules, Some(reach))
}

fn expandable() -> Settings {
    Settings { expandable_segments: true, ..Settings::default() }
}

/// The possible sizes of driver handles. A handle is created, mapped and released as a whole, so small handles need
/// less memory and large ones need fewer driver calls. 2 MiB is the smallest size that the driver can map; PyTorch's
/// expandable segments use 20 MiB for large requests.
const HANDLES: &[&str] = &["2MiB", "4MiB", "8MiB", "16MiB", "20MiB", "32MiB", "64MiB", "128MiB", "256MiB", "512MiB", "1GiB"];

/// A parameter of a policy's name.
#[derive(Clone, Copy, Debug)]
pub struct Parameter {
    /// The policy that accepts it.
    pub policy: &'static str,
    /// The key before the `=`.
    pub key: &'static str,
    /// A description of the parameter.
    pub says: &'static str,
    /// The default value, which the name omits; empty if there is none.
    pub usual: &'static str,
    /// The accepted values; empty if there are too many to list.
    pub values: &'static [&'static str],
}

/// All parameters. The parameters of each policy are in the order in which they appear in its name.
pub const PARAMETERS: &[Parameter] = &[
    Parameter {
        policy: "pytorch",
        key: "release",
        says: "the release with these rules: 2.15, 2.11.0",
        usual: "2.11",
        values: &[],
    },
    Parameter {
        policy: "pytorch",
        key: "settings",
        says: "PYTORCH_CUDA_ALLOC_CONF in brackets: [expandable_segments:True]",
        usual: "",
        values: &[],
    },
    Parameter {
        policy: "pytorch-rescue",
        key: "release",
        says: "the release with these rules: 2.15, 2.11.0",
        usual: "2.11",
        values: &[],
    },
    Parameter {
        policy: "pytorch-rescue",
        key: "settings",
        says: "PYTORCH_CUDA_ALLOC_CONF in brackets; segments are expandable",
        usual: "",
        values: &[],
    },
    Parameter {
        policy: "pytorch-rescue",
        key: "reach",
        says: "whether handles in use are broken, or only free memory moves",
        usual: "breaks",
        values: &["breaks", "free"],
    },
    Parameter {
        policy: "best-fit-remap",
        key: "fit",
        says: "which free block is taken",
        usual: "best",
        values: &["best", "first", "next", "worst"],
    },
    Parameter {
        policy: "best-fit-remap",
        key: "handle",
        says: "the size of the driver's handles",
        usual: "2MiB",
        values: HANDLES,
    },
    Parameter {
        policy: "bfc",
        key: "kind",
        says: "the allocator whose rules apply, and whether regions grow",
        usual: "growth",
        values: &["growth", "one-region", "xla", "xla-growth"],
    },
];

/// The base name of a policy, which determines its parameters: the part before the colon.
#[must_use]
pub fn base(name: &str) -> &str {
    name.split_once(':').map_or(name, |(base, _)| base)
}

/// Whether a private pool is a separate allocator under the policy with this name, and therefore releases its memory
/// when the program drops it ([`release_cached_pool`](parkade::Allocator::release_cached_pool)). The originals of
/// these policies have no private pools, so a program would create a second allocator instead.
#[must_use]
pub fn pools_are_allocators(name: &str) -> bool {
    matches!(base(name), "bfc" | "rmm-pool")
}

/// Whether the policy with this name needs serial work, because it breaks handles
/// ([`Relief::Break`](parkade::policy::Relief::Break)): while the allocator serves a call, no other thread may submit
/// work that uses its memory. On a device that cannot break handles
/// ([`DeviceBackend::breaks_handles`](parkade::device::DeviceBackend::breaks_handles)), the policy still serves
/// requests, but needs more memory.
#[must_use]
pub fn needs_serial_work(name: &str) -> bool {
    let moves_only_free = || cut(name, ':').nth(1).is_some_and(|text| cut(text, ';').any(|part| part.trim() == "reach=free"));
    match base(name) {
        "compaction" => true,
        "pytorch-rescue" => !moves_only_free(),
        _ => false,
    }
}

/// The items of a comma-separated list, without surrounding spaces and without empty items. A comma inside brackets does
/// not separate items.
///
/// ```
/// let list = "bfc, pytorch:settings=[max_split_size_mb:20,expandable_segments:True]";
/// let items: Vec<&str> = parkade_policies::items(list).collect();
/// assert_eq!(items, ["bfc", "pytorch:settings=[max_split_size_mb:20,expandable_segments:True]"]);
/// ```
pub fn items(list: &str) -> impl Iterator<Item = &str> {
    cut(list, ',').map(str::trim).filter(|item| !item.is_empty())
}

/// Splits a text at the separators that are outside brackets.
fn cut(text: &str, separator: char) -> impl Iterator<Item = &str> {
    let mut depth = 0_usize;
    text.split(move |letter| {
        match letter {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && letter == separator
    })
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

/// The policy with this name, which may have parameters (`best-fit-remap:fit=first;handle=20MiB`).
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
    let name = name.trim();
    if let Some(known) = known(name) {
        return Ok(known.clone());
    }
    let (base, text) = name.split_once(':').map_or((name, ""), |(base, text)| (base, text));
    if let Some((_, now)) = RENAMED.iter().find(|(before, _)| *before == base) {
        let joint = if now.contains(':') { ";" } else { ":" };
        let joined = format!("{now}{joint}{text}");
        // The parameters that the old name implies may contradict those after it.
        return Err(Unknown::Renamed(if !text.is_empty() && named(&joined).is_ok() { joined } else { (*now).to_string() }));
    }
    if let Some((_, instead)) = REMOVED.iter().find(|(before, _)| *before == base) {
        return Err(Unknown::Removed(instead));
    }
    let Some(known) = known(base) else {
        let is_setting = name.contains(':') && Settings::from_environment(name).is_ok();
        let hint = "it is a setting; write settings in brackets: pytorch:settings=[expandable_segments:True]";
        return Err(if is_setting { Unknown::Parameter(hint.to_string()) } else { Unknown::Name });
    };
    let given = Given::parse(base, text)?;
    let name = given.name();
    if let Some(known) = self::known(&name) {
        return Ok(known.clone());
    }
    Ok(Named {
        says: Cow::Owned(given.says()),
        source: known.source,
        keeps_memory: known.keeps_memory,
        make: given.make()?,
        name: Cow::Owned(name),
    })
}

fn known(name: &str) -> Option<&'static Named> {
    CATALOGUE.iter().chain(BESIDE).find(|policy| policy.name == name)
}

/// The parameters of a name that have an effect, in the order of [`PARAMETERS`].
struct Given<'a> {
    base: &'static str,
    values: Vec<(&'static str, &'a str)>,
}

impl<'a> Given<'a> {
    fn parse(base: &str, text: &'a str) -> Result<Given<'a>, Unknown> {
        let taken: Vec<&'static Parameter> = PARAMETERS.iter().filter(|parameter| parameter.policy == base).collect();
        let Some(first) = taken.first() else {
            return Err(Unknown::Parameter(format!("{base} has no parameters")));
        };
        let mut values: Vec<Option<&str>> = taken.iter().map(|_| None).collect();
        if !closes_brackets(text) {
            return Err(Unknown::Parameter("its brackets do not match: settings=[key:value,key:value]".to_string()));
        }
        for part in cut(text, ';').filter(|part| !part.trim().is_empty()) {
            let (key, value) = part.split_once('=').map_or((part.trim(), None), |(key, value)| (key.trim(), Some(value)));
            let Some(place) = taken.iter().position(|parameter| parameter.key == key) else {
                let keys: Vec<&str> = taken.iter().map(|parameter| parameter.key).collect();
                let text = format!("{base} has no parameter {key:?}; it has {}", keys.join(", "));
                return Err(Unknown::Parameter(text));
            };
            if values[place].is_some() {
                return Err(Unknown::Parameter(format!("the parameter {key} is given twice")));
            }
            values[place] = Some(taken[place].checked(value.unwrap_or_default().trim())?);
        }
        // The order of `PARAMETERS`.
        match base {
            "pytorch" => {
                values[0] = values[0].map(release_in_one_form).transpose()?;
                values[1] = settings_in_one_form(values[0], values[1])?;
            }
            "pytorch-rescue" => {
                values[0] = values[0].map(release_in_one_form).transpose()?;
                rules_to_rescue(values[0], values[1])?;
                values[1] = settings_in_one_form(values[0], values[1])?.filter(|text| *text != "expandable_segments:True");
            }
            _ => {}
        }
        let unusual = |(parameter, value): (&&'static Parameter, Option<&'a str>)| {
            value.filter(|value| *value != parameter.usual).map(|value| (parameter.key, value))
        };
        let values = taken.iter().zip(values).filter_map(unusual).collect();
        Ok(Given { base: first.policy, values })
    }

    fn value(&self, key: &str) -> Option<&'a str> {
        self.values.iter().find(|(known, _)| *known == key).map(|(_, value)| *value)
    }

    fn name(&self) -> String {
        let values: Vec<String> = self.values.iter().map(|(key, value)| format!("{key}={}", in_brackets(key, value))).collect();
        if values == ["settings=[expandable_segments:True]"] {
            return "pytorch-expandable".to_string();
        }
        if values.is_empty() { self.base.to_string() } else { format!("{}:{}", self.base, values.join(";")) }
    }

    fn says(&self) -> String {
        let values: Vec<String> = self.values.iter().map(|(key, value)| format!("{key} {}", in_brackets(key, value))).collect();
        format!("as {}, with {}", self.base, values.join(" and "))
    }

    fn make(&self) -> Result<Make, Unknown> {
        Ok(match self.base {
            "pytorch" => {
                let (profile, settings) = profile_and_settings(self.value("release"), self.value("settings"))?;
                Make::given(PyTorch::of(profile, settings))
            }
            "pytorch-rescue" => {
                let rules = rules_to_rescue(self.value("release"), self.value("settings"))?;
                Make::given(rescue(rules, if self.value("reach") == Some("free") { Reach::Free } else { Reach::Breaks }))
            }
            // Every kind of `bfc` is in the catalogue, so this is `best-fit-remap`.
            _ => {
                let region = GrowingRegion::new(match self.value("fit") {
                    Some("first") => Fit::First,
                    Some("next") => Fit::Next,
                    Some("worst") => Fit::Worst,
                    _ => Fit::Best,
                });
                let page = self.value("handle").and_then(bytes);
                Make::given(page.map_or_else(|| region.clone(), |page| region.clone().with_page(page)))
            }
        })
    }
}

/// The rules of a release (2.11 if none is given), and the settings as its parser reads them.
fn profile_and_settings(release: Option<&str>, settings: Option<&str>) -> Result<(&'static Profile, Settings), Unknown> {
    let profile =
        release.map_or(Ok(&Profile::PYTORCH_2_11), Profile::of).map_err(|error| Unknown::Parameter(error.to_string()))?;
    let settings = Settings::from_environment_as(&profile.dialect, settings.unwrap_or_default())
        .map_err(|error| Unknown::Parameter(format!("PyTorch refuses these settings: {error}")))?;
    Ok((profile, settings))
}

/// PyTorch's rules with a rescue.
fn rules_to_rescue(release: Option<&str>, text: Option<&str>) -> Result<PyTorch, Unknown> {
    // The text is checked without the prefix, so that the error quotes exactly what the user wrote.
    let (profile, _) = profile_and_settings(release, text)?;
    match settings_to_rescue(profile, text.unwrap_or_default()) {
        Ok(Some(settings)) => Ok(PyTorch::of(profile, settings)),
        _ => Err(Unknown::Parameter(NEEDS_EXPANDABLE.to_string())),
    }
}

/// A release without its build suffix, shortened to a series if the entire series has the same rules.
fn release_in_one_form(release: &str) -> Result<&str, Unknown> {
    let (profile, _) = profile_and_settings(Some(release), None)?;
    let public = release.split_once('+').map_or(release, |(public, _)| public);
    let series = public.rsplit_once('.').map_or(public, |(series, _)| series);
    let is_same = Profile::of(series).is_ok_and(|of_series| of_series == profile);
    Ok(if is_same { series } else { public })
}

/// The settings if they change the policy; `None` if they equal PyTorch's defaults.
fn settings_in_one_form<'a>(release: Option<&str>, text: Option<&'a str>) -> Result<Option<&'a str>, Unknown> {
    let (_, settings) = profile_and_settings(release, text)?;
    if settings.per_process_memory_fraction < 1.0 {
        let wrong = "per_process_memory_fraction is a limit, not a rule of the policy; leave it out and give the command a limit";
        return Err(Unknown::Parameter(wrong.to_string()));
    }
    if settings.backend != Settings::default().backend {
        let wrong = format!("backend:{} is a different allocator; cuda-async is a model of it", settings.backend.name());
        return Err(Unknown::Parameter(wrong));
    }
    let rules = Settings { text: String::new(), ..settings };
    Ok(match text {
        _ if rules == Settings::default() => None,
        _ if rules == expandable() => Some("expandable_segments:True"),
        text => text,
    })
}

/// Whether every opening bracket has a closing one, and vice versa.
fn closes_brackets(text: &str) -> bool {
    let mut depth = 0_i64;
    let is_open = text.chars().all(|letter| {
        depth += i64::from(letter == '[') - i64::from(letter == ']');
        depth >= 0
    });
    is_open && depth == 0
}

impl Parameter {
    fn checked<'a>(&self, value: &'a str) -> Result<&'a str, Unknown> {
        let value = value.strip_prefix('[').and_then(|value| value.strip_suffix(']')).unwrap_or(value).trim();
        if self.values.is_empty() || self.values.contains(&value) {
            return Ok(value);
        }
        let is =
            if value.is_empty() { format!("{} has no value", self.key) } else { format!("{}={value} is not possible", self.key) };
        let wrong = format!("{is}; {} is one of {}", self.key, self.values.join(", "));
        Err(Unknown::Parameter(wrong))
    }
}

fn in_brackets(key: &str, value: &str) -> String {
    if key == "settings" { format!("[{value}]") } else { value.to_string() }
}

/// The bytes of a size in `HANDLES`.
fn bytes(size: &str) -> Option<Bytes> {
    let (number, unit) = size.split_at_checked(size.len().checked_sub(3)?)?;
    let number: u64 = number.parse().ok()?;
    Some(Bytes::mib(if unit == "GiB" { number * 1024 } else { number }))
}

#[cfg(test)]
mod tests {
    use parkade::PoolSlot;
    use parkade::units::PoolClass;

    use super::*;

    fn why(name: &str) -> String {
        named(name).expect_err(name).to_string()
    }

    #[test]
    fn each_fit_takes_each_size_of_handles() {
        let large = PoolSlot::default_pool(PoolClass::Large);
        for fit in ["best", "first", "next", "worst"] {
            let page = |size| named(&format!("best-fit-remap:fit={fit};handle={size}")).expect(size).make().page(large);
            let mib: Vec<u64> = HANDLES.iter().map(|size| page(size).0 >> 20).collect();
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
            ("rmm-pool:handle=4MiB", "rmm-pool has no parameters"),
            ("bfc:handle=4MiB", "bfc has no parameter \"handle\"; it has kind"),
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
    fn whoever_was_renamed_or_removed_leads_to_a_policy() {
        for (before, now) in RENAMED.iter().chain(REMOVED) {
            assert!(named(before).is_err() && named(now).is_ok(), "{before}");
        }
    }
}
