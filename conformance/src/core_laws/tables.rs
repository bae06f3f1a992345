//! Laws about numbers and texts that need no device: sizes of blocks and segments, the texts shown to users (including
//! errors), and the list of statistics.

use parkade::device::{BackendError, ProcessMemory};
use parkade::policy::{Policy, PolicyFault, PyTorch};
use parkade::profile::{Profile, RELEASES, Scope};
use parkade::settings::{Backend, ReserveSize, Settings};
use parkade::snapshot::BlockActivity;
use parkade::stats::{Family, Stat, StatSet, Stats, UnknownStatistic};
use parkade::texts::{Hint, OomWords, OutOfMemory, format_bytes, format_double, format_significant, invalid_fraction_message};
use parkade::trace::{Observer, TraceAction, TraceEntry, TraceRing};
use parkade::units::{Bytes, DeviceAddress, MIB, PoolClass, PoolId, StreamId};
use parkade::{AdoptError, AllocError, AnswerProblem, CheckpointError, FreeError, PoolError, PoolSlot, WrongAnswer};
use parkade_recording::memory_summary;
use parkade_sim::CallName;
use proptest::prelude::*;

use crate::core_laws::devices::{Paper, PaperCore};
use crate::drawn::one_of;
use crate::drawn::{Draws, Outcome, run_law};
use crate::law::{Broken, Law, ensure};
use crate::program::step::profiles;
use crate::reference_model::{Reference, ReleaseRules, texts};

/// The number of sizes in each drawn case.
const SIZES_PER_CASE: usize = 48;

/// Returns a size close to a power of two or halfway to the next one, or any size.
fn size() -> impl Strategy<Value = u64> {
    let near = (9_u32..64, prop::sample::select(vec![2_u128, 3, 5, 7, 9]), -513_i128..=513).prop_map(|(bits, part, offset)| {
        let size = (1_u128 << bits) * part / 2;
        u64::try_from(size.saturating_add_signed(offset).max(1)).unwrap_or(u64::MAX)
    });
    let borders =
        (prop::sample::select(vec![512, MIB, 10 * MIB, 2 * MIB, 32 << 30, 16 << 30, 1 << 60, u64::MAX - 600]), -1_i64..=1);
    let any = (0_u32..64, any::<u64>()).prop_map(|(bits, low)| (low >> bits).max(1));
    one_of![4 => near, 2 => borders.prop_map(|(size, offset)| size.saturating_add_signed(offset)), 2 => any]
}

fn settings() -> impl Strategy<Value = Settings> {
    let divisions = prop::collection::vec(prop::sample::select(vec![0_u64, 1, 2, 4, 8, 16, 64, 1 << 20, 1 << 55, 1 << 63]), 16);
    let large = prop::sample::select(vec![11, 12, 20, 26, 1000, (1 << 44) - 1]).prop_map(|mib: u64| mib * MIB);
    let extreme =
        vec![5e-324, 1e-18, 0.999_999_999_999, 1.124_999_999_999, 1.125, 17_179_869_183.5, 17_179_869_184.0, 1e300, f64::MAX];
    let reserve = one_of![
        Just(None),
        prop::sample::select(extreme.clone()).prop_map(|part| Some(ReserveSize::Fraction(part))),
        prop::sample::select(extreme).prop_map(|count| Some(ReserveSize::Gibibytes(count))),
        (1_u32..3000).prop_map(|part| Some(ReserveSize::Fraction(f64::from(part) / 1000.0))),
        (1_u32..3000).prop_map(|part| Some(ReserveSize::Gibibytes(f64::from(part) / 100.0))),
    ];
    let split = prop::sample::select(vec![20 * MIB, 1 << 40, 1 << 63, u64::MAX - MIB + 1, u64::MAX]);
    let rejects = (any::<bool>(), one_of![Just(1.0), Just(0.0), 0.0..1.0_f64]);
    (divisions, large, reserve, split, rejects).prop_map(|(divisions, large_segment_bytes, reserve, max_split_bytes, rejects)| {
        let (throw_on_cudamalloc_oom, per_process_memory_fraction) = rejects;
        let mut settings = Settings {
            large_segment_bytes,
            expandable_segments_reserve: reserve,
            max_split_bytes,
            throw_on_cudamalloc_oom,
            per_process_memory_fraction,
            ..Settings::default()
        };
        settings.roundup_power2_divisions.copy_from_slice(&divisions);
        settings
    })
}

/// Compares every two releases, for programs that use any of the features.
pub(crate) fn check_alike(_: &Draws) -> Outcome {
    let mut pairs = 0;
    for (a, b) in profiles().flat_map(|a| profiles().map(move |b| (a, b))) {
        for used in 0..16_u8 {
            let uses = |bit: u8| used >> bit & 1 == 1;
            let scope =
                Scope { expandable_segments: uses(0), private_pools: uses(1), checkpoints: uses(2), one_division: uses(3) };
            let (seen, expected) =
                (a.decides_like(b, scope), ReleaseRules::of(a.name).decide_alike(&ReleaseRules::of(b.name), scope));
            let problem = || format!("{} decides like {} for {scope:?}: {seen}, expected {expected}", a.name, b.name);
            ensure(Law::Reference, seen == expected, problem)?;
            pairs += 1;
        }
    }
    Ok(pairs)
}

pub(crate) fn check_sizes(draws: &Draws) -> Outcome {
    let strategy = (settings(), prop::collection::vec(size(), SIZES_PER_CASE));
    run_law(draws, 34, strategy, |(settings, sizes)| {
        sizes.iter().try_for_each(|&size| one_size(settings, size))?;
        Ok(sizes.len() as u64)
    })
}

fn one_size(settings: &Settings, size: u64) -> Result<(), Broken> {
    let policy = PyTorch::new(settings.clone());
    let reference = Reference::new(&Profile::PYTORCH_2_11, settings.clone(), size, 0);
    let (seen, expected) = (policy.round(Bytes(size)).map(Bytes::get), reference.rounded(size));
    ensure(Law::Reference, seen == expected, || format!("{size} bytes are rounded to {seen:?}, expected {expected:?}"))?;
    let (seen, expected) = (policy.segment_for(Bytes(size)).unwrap_or(Bytes::MAX).get(), reference.segment_for(size));
    ensure(Law::Reference, seen == expected, || {
        format!("a block of {size} bytes needs a segment of {seen} bytes, expected {expected}")
    })?;
    let class = policy.classify(Bytes(size));
    ensure(Law::Reference, (class == PoolClass::Large) == (size > MIB), || {
        format!("a block of {size} bytes is assigned to the wrong pool: {class:?}")
    })?;
    let (seen, expected) = (policy.reservation(Bytes(size)).get(), reference.reservation());
    ensure(Law::Reference, seen == expected, || {
        format!("on a device of {size} bytes, {seen} bytes of addresses are reserved, expected {expected}")
    })?;
    limits_of_size(settings, &policy, size)?;
    let pages = [PoolClass::Small, PoolClass::Large].map(|class| policy.page(PoolSlot::default_pool(class)).get());
    let expected = [2 * MIB, settings.large_segment_bytes];
    ensure(Law::Reference, pages == expected, || format!("pages have {pages:?} bytes, expected {expected:?}"))?;
    for fraction in [0.1, 0.25, 0.4, 0.5, 0.75, 0.999] {
        let exact = fraction * size as f64;
        let seen = [Profile::PYTORCH_2_11, Profile::PYTORCH_2_15].map(|profile| profile.limit_rounding.limit(fraction, size));
        let expected = [exact.floor() as u64, exact.round() as u64];
        ensure(Law::Limit, seen == expected, || format!("{fraction} of {size} bytes is {seen:?}, expected {expected:?}"))?;
    }
    let rounded = u128::from(size).div_ceil(512) * 512;
    let seen = Bytes(size).checked_round_up(Bytes(512)).map(Bytes::get);
    ensure(Law::Reference, seen == u64::try_from(rounded).ok(), || {
        format!("{size} bytes are rounded up to {seen:?}, not to the next multiple of 512")
    })
}

/// Checks which sizes are oversize, and which are refused without asking a device of `size` bytes.
fn limits_of_size(settings: &Settings, policy: &PyTorch, size: u64) -> Result<(), Broken> {
    let near = settings.max_split_bytes;
    for bytes in [size, near.saturating_sub(1), near, near.saturating_add(1)] {
        let seen = policy.is_oversize(Bytes(bytes));
        ensure(Law::Reference, seen == (bytes >= near), || {
            format!("whether {bytes} bytes are oversize is {seen}: {settings:?}")
        })?;
    }
    let most = (settings.per_process_memory_fraction * size as f64) as u64;
    for reserved in [0, 512, most / 2, most, most.saturating_add(1), u64::MAX] {
        let fits = most.saturating_sub(reserved);
        for wanted in [fits.saturating_sub(1), fits, fits.saturating_add(1), u64::MAX - reserved, u64::MAX] {
            let is_more = u128::from(reserved) + u128::from(wanted) > u128::from(most);
            let seen = policy.rejects(Bytes(reserved), Bytes(wanted), Bytes(size));
            let expected = settings.throw_on_cudamalloc_oom && is_more;
            ensure(Law::Limit, seen == expected, || {
                format!("with {reserved} of {size} bytes reserved, whether {wanted} more are refused is {seen}: {settings:?}")
            })?;
        }
    }
    Ok(())
}

/// Numbers with their C++ text.
const DOUBLES: [(f64, &str); 17] = [
    (f64::NAN, "nan"),
    (0.0, "0"),
    (-0.0, "-0"),
    (1.01, "1.01"),
    (-0.5, "-0.5"),
    (0.1, "0.1"),
    (2.0, "2"),
    (100_000.0, "100000"),
    (999_999.0, "999999"),
    (999_999.5, "1e+06"),
    (1_234_567.0, "1.23457e+06"),
    (0.000_1, "0.0001"),
    (0.000_012_345_67, "1.23457e-05"),
    (1e100, "1e+100"),
    (f64::INFINITY, "inf"),
    (f64::NEG_INFINITY, "-inf"),
    (1.000_000_5, "1"),
];

/// The same with different numbers of significant digits.
const SIGNIFICANT: [(f64, u8, &str); 7] = [
    (0.1, 17, "0.10000000000000001"),
    (1.5, 1, "2"),
    (2.5, 0, "2"),
    (123.0, 2, "1.2e+02"),
    (0.001_23, 3, "0.00123"),
    (1e-5, 17, "1.0000000000000001e-05"),
    (120.0, 3, "120"),
];

/// Statistics of all magnitudes.
fn statistics() -> impl Strategy<Value = Stats> {
    let number = (0_u32..63, any::<i64>()).prop_map(|(bits, number)| number >> bits);
    let near =
        (prop::sample::select(vec![750_000_i64, 750_000_000, 786_432, 805_306_368, 824_633_720_832, 1000, 1024]), -1_i64..=1);
    let number = one_of![2 => number, 1 => near.prop_map(|(number, offset)| number + offset)];
    prop::collection::vec(number, keys().len()).prop_map(|numbers| {
        let keys = keys();
        Stats::from_entries(keys.iter().map(String::as_str).zip(numbers)).expect("the keys are PyTorch's")
    })
}

/// The 122 keys in sorted order.
fn keys() -> Vec<String> {
    let mut keys = Vec::new();
    for family in [
        "allocation",
        "segment",
        "active",
        "inactive_split",
        "allocated_bytes",
        "reserved_bytes",
        "active_bytes",
        "inactive_split_bytes",
        "requested_bytes",
    ] {
        for level in ["all", "small_pool", "large_pool"] {
            keys.extend(["current", "peak", "allocated", "freed"].map(|value| format!("{family}.{level}.{value}")));
        }
    }
    for name in ["oversize_allocations", "oversize_segments"] {
        keys.extend(["current", "peak", "allocated", "freed"].map(|value| format!("{name}.{value}")));
    }
    let scalars =
        ["num_alloc_retries", "num_ooms", "max_split_size", "num_sync_all_streams", "num_device_alloc", "num_device_free"];
    keys.extend(scalars.map(str::to_owned));
    keys.sort();
    keys
}

pub(crate) fn check_texts(draws: &Draws) -> Outcome {
    fixed_texts()?;
    let strategy = (prop::collection::vec(size(), SIZES_PER_CASE), statistics(), 0_u32..200, any::<bool>());
    run_law(draws, 35, strategy, |(sizes, stats, device, is_abbreviated)| {
        drawn_texts(sizes, stats, *device, *is_abbreviated)?;
        Ok(sizes.len() as u64 + 2)
    })
}

fn fixed_texts() -> Result<(), Broken> {
    for (number, text) in DOUBLES {
        texts::check(&format_double(number), Some(text.to_owned()))?;
        let message = invalid_fraction_message(number);
        texts::check(&message, Some(format!("invalid fraction:{text}. Please set within [0, 1].")))?;
    }
    for (number, digits, text) in SIGNIFICANT {
        texts::check(&format_significant(number, digits), Some(text.to_owned()))?;
    }
    for key in ["allocation", "allocation.all", "allocation.all.peak.x", "num_ooms.all", "oversize_segments.all.peak", "x", ""] {
        let answer = Stats::from_entries([(key, 1)]);
        ensure(Law::Reference, answer.is_err(), || format!("a statistic called {key:?} was accepted"))?;
    }
    let repeated = Stats::from_entries([("num_ooms", 3), ("num_ooms", 4)]).map(|stats| stats.num_ooms);
    ensure(Law::Reference, repeated == Ok(4), || {
        format!(
            "the last value of a repeated key should count, but the value is \
                                                          {repeated:?}"
        )
    })?;
    let fault = PolicyFault { policy: "first-fit", problem: "names no block" };
    let driver = BackendError::Driver { call: "cudaMalloc", code: 2 };
    let none = BackendError::OutOfMemory { requested: Bytes(512) };
    texts::check(&fault.to_string(), Some("policy first-fit names no block".to_owned()))?;
    texts::check(&driver.to_string(), Some("cudaMalloc failed with driver code 2".to_owned()))?;
    texts::check(&none.to_string(), Some("the device has no room for 512 bytes".to_owned()))?;
    texts::check(&FreeError::Device(driver).to_string(), Some(format!("the block stays pending: {driver}")))?;
    texts::check(&format!("{:>6}|{:<6}|{}", Bytes(512), Bytes(512), Bytes(7)), Some("   512|512   |7".to_owned()))?;
    texts::check(&format!("{} {}", DeviceAddress(0xfe00), StreamId(0x1000)), Some("0xfe00 0x1000".to_owned()))?;
    rings()?;
    units_and_names()
}

/// Tests arithmetic on sizes, and the names that appear in files.
fn units_and_names() -> Result<(), Broken> {
    let numbers = [0, 1, 511, 512, 513, MIB, (1 << 63) - 1, 1 << 63, u64::MAX - 511, u64::MAX - 1, u64::MAX];
    for (a, b) in numbers.iter().flat_map(|&a| numbers.map(|b| (a, b))) {
        let sum = u64::try_from(u128::from(a) + u128::from(b)).ok();
        let multiple = if b == 0 { None } else { u64::try_from(u128::from(a).div_ceil(u128::from(b)) * u128::from(b)).ok() };
        let difference = u64::try_from(i128::from(a) - i128::from(b)).unwrap_or(0);
        let seen = (Bytes(a).checked_add(Bytes(b)), Bytes(a).checked_round_up(Bytes(b)), Bytes(a).saturating_sub(Bytes(b)));
        let expected = (sum.map(Bytes), multiple.map(Bytes), Bytes(difference));
        ensure(Law::Reference, seen == expected, || format!("{a} and {b} result in {seen:?}, expected {expected:?}"))?;
        if let Some(sum) = sum {
            let (mut bytes, all) = (Bytes(a), Bytes(a) + Bytes(b));
            bytes += Bytes(b);
            let there = bytes;
            bytes -= Bytes(a);
            let same = (there, all, bytes, all - Bytes(b)) == (Bytes(sum), Bytes(sum), Bytes(b), Bytes(a));
            ensure(Law::Reference, same, || format!("{a} plus {b} is {there}, and subtracting {a} leaves {bytes}"))?;
        }
    }
    use TraceAction::{Alloc, FreeCompleted, FreeRequested, Oom, SegmentAlloc, SegmentFree, SegmentMap, SegmentUnmap, Snapshot};
    let actions = [Alloc, FreeRequested, FreeCompleted, SegmentAlloc, SegmentFree, SegmentMap, SegmentUnmap, Oom, Snapshot];
    let seen: Vec<&str> = actions.into_iter().map(TraceAction::name).collect();
    let expected = "alloc free_requested free_completed segment_alloc segment_free segment_map segment_unmap oom snapshot";
    texts::check(&seen.join(" "), Some(expected.to_owned()))?;
    let states = [BlockActivity::Allocated, BlockActivity::PendingFree, BlockActivity::Inactive].map(BlockActivity::name);
    texts::check(&states.join(" "), Some("active_allocated active_pending_free inactive".to_owned()))?;
    let classes = [PoolClass::Small, PoolClass::Large].map(PoolClass::name);
    texts::check(&classes.join(" "), Some("small large".to_owned()))?;
    let backends = [Backend::Native, Backend::CudaMallocAsync].map(Backend::name);
    texts::check(&backends.join(" "), Some("native cudaMallocAsync".to_owned()))?;
    streams_of_other_devices()
}

/// Tests the ids of streams of other devices: a byte that is one more than the device's index, and a handle of seven bytes.
fn streams_of_other_devices() -> Result<(), Broken> {
    let powers = (0..64).map(|bits| 1_u64 << bits);
    let handles: Vec<u64> = [0, u64::MAX].into_iter().chain(powers.flat_map(|power| [power - 1, power, power + 1])).collect();
    for device in (0..=300).chain([u32::MAX / 2, u32::MAX - 1, u32::MAX]) {
        for &handle in &handles {
            let id = u64::try_from((u128::from(device) + 1) * (1 << 56) + u128::from(handle)).ok();
            let expected = id.filter(|_| handle < 1 << 56).map(|id| (StreamId(id), Some(device)));
            let seen = StreamId::elsewhere(device, handle).map(|id| (id, id.device_elsewhere()));
            ensure(Law::Reference, seen == expected, || {
                format!("the stream {handle:#x} of device {device} is {seen:x?}, expected {expected:x?}")
            })?;
        }
    }
    let own = handles.iter().find(|&&handle| handle < 1 << 56 && StreamId(handle).device_elsewhere().is_some());
    ensure(Law::Reference, own.is_none(), || format!("the allocator's own stream {own:x?} counts as a different device's"))
}

/// Returns whether a text is C's output for a number with at most `digits` significant digits: the right value in the
/// right form.
fn is_significant(number: f64, digits: u8, text: &str) -> bool {
    let digits = usize::from(digits.max(1));
    let rounded = format!("{number:.*e}", digits - 1);
    let exponent: i32 = rounded.split_once('e').and_then(|(_, exponent)| exponent.parse().ok()).unwrap_or(0);
    let is_long = exponent < -4 || exponent >= digits as i32;
    let (mantissa, power) = text.split_once('e').unwrap_or((text, ""));
    let is_power =
        power.strip_prefix(['+', '-']).is_some_and(|digits| digits.len() >= 2 && (digits.len() == 2 || !digits.starts_with('0')));
    let ends_well = !mantissa.contains('.') || !mantissa.ends_with(['.', '0']);
    text.parse::<f64>() == rounded.parse::<f64>() && is_long == text.contains('e') && (is_power || !is_long) && ends_well
}

/// Checks that a ring of trace entries keeps the newest ones, and at least one entry.
fn rings() -> Result<(), Broken> {
    for capacity in 0..4_usize {
        let mut ring = TraceRing::new(capacity);
        for address in 1..=6 {
            let entry = TraceEntry { action: TraceAction::Alloc, address, size: 512, stream: StreamId(0), pool: PoolId::DEFAULT };
            ring.observe(&entry);
            let kept: Vec<u64> = ring.entries().map(|entry| entry.address).collect();
            let first = address.saturating_sub(capacity.max(1) as u64) + 1;
            let expected: Vec<u64> = (first..=address).collect();
            ensure(Law::History, kept == expected, || {
                format!(
                    "a ring with capacity {capacity} keeps {kept:?}, expected \
                                                               {expected:?}"
                )
            })?;
        }
    }
    Ok(())
}

fn drawn_texts(sizes: &[u64], stats: &Stats, device: u32, is_abbreviated: bool) -> Result<(), Broken> {
    for &size in sizes {
        texts::check(&format_bytes(size), Some(texts::size(size)))?;
        // Numbers of every magnitude, including fractions.
        for number in [size as f64, -(size as f64) / 3.0, f64::from_bits(size), 1.0 / size as f64] {
            let digits = (size % 18) as u8;
            let (seen, plain) = (format_significant(number, digits), format_double(number));
            let same = !number.is_finite() || (is_significant(number, digits, &seen) && is_significant(number, 6, &plain));
            ensure(Law::Reference, same, || format!("{number:e} is written as {seen} with {digits} digits, and as {plain}"))?;
        }
    }
    texts::check(&memory_summary(device, stats, is_abbreviated), Some(texts::summary(device, stats, is_abbreviated)))?;
    let listed = stats.entries();
    let same = listed.iter().map(|(key, _)| key).eq(&keys());
    ensure(Law::Reference, same, || format!("the keys of the statistics are {listed:?}"))?;
    for (key, value) in &listed {
        let expected = looked_up(stats, key);
        ensure(Law::Reference, expected == Some(*value), || format!("{key} is {value}, expected {expected:?}"))?;
    }
    Ok(())
}

/// A statistic by its key.
fn looked_up(stats: &Stats, key: &str) -> Option<i64> {
    let words: Vec<&str> = key.split('.').collect();
    let of = |stat: &Stat, name: &str| match name {
        "current" => stat.current,
        "peak" => stat.peak,
        "allocated" => stat.allocated,
        _ => stat.freed,
    };
    match words[..] {
        ["num_alloc_retries"] => Some(stats.num_alloc_retries),
        ["num_ooms"] => Some(stats.num_ooms),
        ["max_split_size"] => Some(stats.max_split_size),
        ["num_sync_all_streams"] => Some(stats.num_sync_all_streams),
        ["num_device_alloc"] => Some(stats.num_device_alloc),
        ["num_device_free"] => Some(stats.num_device_free),
        ["oversize_allocations", value] => Some(of(&stats.oversize_allocations, value)),
        ["oversize_segments", value] => Some(of(&stats.oversize_segments, value)),
        [family, level, value] => {
            let family = Family::ALL.into_iter().find(|known| known.name() == family)?;
            let set = stats.family(family);
            Some(of(
                [&set.all, &set.small, &set.large][["all", "small_pool", "large_pool"].iter().position(|name| *name == level)?],
                value,
            ))
        }
        _ => None,
    }
}

/// Call names that are not CUDA's, and names of calls that no backend in this repository makes.
const OTHER_CALLS: [&str; 6] = ["virtual memory", "", "c", "hipMalloc", "cu", "cublasCreate"];

/// Tests error texts: those of every driver call with every code, and those with drawn numbers.
pub(crate) fn check_errors(draws: &Draws) -> Outcome {
    let calls = CallName::ALL.iter().map(|name| name.as_str()).chain(OTHER_CALLS);
    for call in calls {
        for code in (0..1100).chain([u32::MAX]) {
            driver_error(call, code)?;
        }
    }
    fixed_errors()?;
    let size = || one_of![(0_u32..64, any::<u64>()).prop_map(|(bits, low)| low >> bits), Just(0), Just(1024), Just(1025)];
    let signed = || size().prop_map(|size| size as i64);
    let process = (prop::option::of(any::<u32>()), size()).prop_map(|(pid, used)| ProcessMemory { pid, used: Bytes(used) });
    let hint = one_of![
        Just(Hint::ExpandableSegments),
        Just(Hint::Addresses),
        Just(Hint::None),
        size().prop_map(|size| Hint::LargerReserve(Bytes(size)))
    ];
    let report = (size(), 0..300_u32, size(), size(), prop::collection::vec(process, 0..4));
    let more = (prop::option::of(size()), signed(), signed(), one_of![2 => Just(0), 3 => size()], hint);
    run_law(
        draws,
        356,
        (report, more),
        |((segment, device, total, free, processes), (limit, allocated, reserved, private, hint))| {
            let report = OutOfMemory {
                segment_bytes: Bytes(*segment),
                device: *device,
                device_total: Bytes(*total),
                device_free: Bytes(*free),
                processes: processes.clone(),
                limit: limit.map(Bytes),
                allocated_bytes: *allocated,
                reserved_bytes: *reserved,
                private_cached_bytes: Bytes(*private),
                hint: *hint,
                words: &OomWords::PYTORCH_2_11,
                rescue: None,
            };
            let errors = [
                AllocError::OutOfMemory(Box::new(report)),
                AllocError::Rejected { requested: Bytes(*segment) },
                AllocError::TooLarge { requested: Bytes(*segment) },
            ];
            for error in errors {
                texts::check(&error.to_string(), texts::of_request(&error, &Profile::PYTORCH_2_11))?;
                for release in RELEASES {
                    texts::check(&said_by(release.profile, &error), texts::of_request(&error, release.profile))?;
                }
            }
            Ok(3)
        },
    )
}

/// Returns a release's own text for an error.
fn said_by(profile: &Profile, error: &AllocError) -> String {
    match error {
        AllocError::OutOfMemory(report) => OutOfMemory { words: profile.oom_words, ..(**report).clone() }.to_string(),
        error => error.message(profile),
    }
}

/// Returns the meaning of a CUDA code if the remedy does not depend on the call.
fn meaning(call: &str, code: u32) -> &'static str {
    if call.get(..2) != Some("cu") {
        return "";
    }
    match code {
        3 => {
            ": the driver is not initialised in this process; a forked child cannot use CUDA if its parent did: spawn the process instead"
        }
        709 => ": the context and all its memory were destroyed, for example by cudaDeviceReset: open the device again",
        _ => "",
    }
}

fn driver_error(call: &'static str, code: u32) -> Result<(), Broken> {
    let error = BackendError::Driver { call, code };
    let text = format!("{call} failed with driver code {code}{}", meaning(call, code));
    texts::check(&error.to_string(), Some(text.clone()))?;
    texts::check(&AllocError::Device(error).to_string(), Some(text.clone()))?;
    texts::check(&CheckpointError::Device(error).to_string(), Some(text.clone()))?;
    texts::check(&FreeError::Device(error).to_string(), Some(format!("the block stays pending: {text}")))
}

/// Tests parkade's own errors, and those about pools in every release.
fn fixed_errors() -> Result<(), Broken> {
    let says = |seen: String, expected: &str| texts::check(&seen, Some(expected.to_owned()));
    says(AllocError::ZeroSize.to_string(), "a request of 0 bytes has no block: use a null pointer for it")?;
    says(AllocError::TooManyStreams.to_string(), "more than 65535 streams: the heap numbers them with 16 bits")?;
    let foreign =
        PaperCore::new(Paper::new(1 << 30), PyTorch::new(Settings::default()), Vec::new()).allocate(Bytes(1), StreamId::DEFAULT);
    says(
        FreeError::NotAllocated(foreign.map_err(|error| Broken::new(Law::Answers, error))?).to_string(),
        "the allocation does not belong to this allocator, or no longer does: only the allocator that made it can free it",
    )?;
    for (error, text) in [
        (AdoptError::Empty, "the segment has no block, or a block of 0 bytes"),
        (AdoptError::TooLarge, "the segment extends beyond the 64-bit address space"),
        (AdoptError::NotCoalesced, "two neighbouring blocks of the segment are both free or both unmapped"),
        (AdoptError::NotWholePages, "memory of the segment begins or ends inside a page"),
        (AdoptError::UnknownPool, "the segment's pool has not been created"),
        (AdoptError::TooManyStreams, "more than 65535 streams"),
        (AdoptError::Misplaced, "the segment overlaps another segment, or its address is not a multiple of 512"),
        (AdoptError::TooMuch, "the segment would bring the total above 2^63 - 1 bytes"),
    ] {
        says(error.to_string(), text)?;
    }
    for (problem, text) in [
        (AnswerProblem::Null, "is the null pointer"),
        (AnswerProblem::Unaligned, "is not a multiple of 512"),
        (AnswerProblem::TooLong, "leaves no room for them below 2^64"),
        (AnswerProblem::Overlaps(DeviceAddress(0x5000), Bytes(700)), "overlaps the 700 bytes at 0x5000 that are still held"),
        (AnswerProblem::TooMuch, "would bring the total above 2^63 - 1 bytes"),
    ] {
        let wrong = WrongAnswer { call: "reserve", address: DeviceAddress(0xabc0), bytes: Bytes(512), problem };
        let text = format!("the device's answer cannot be used: reserve of 512 bytes returned 0xabc0, which {text}");
        says(wrong.to_string(), &text)?;
        says(AllocError::Answer(wrong).to_string(), &text)?;
    }
    let id = PoolId(3, 4);
    let errors = [
        PoolError::AlreadyRouted(id),
        PoolError::NotRouted(id),
        PoolError::Unknown(id),
        PoolError::Abandoned(id),
        PoolError::NotInUse(id),
        PoolError::Overreleased(id),
    ];
    for error in errors {
        for profile in RELEASES.iter().map(|release| release.profile) {
            texts::check(&error.message(profile), texts::of_pool(error, profile))?;
            texts::check(&AllocError::Pool(error).message(profile), texts::of_pool(error, profile))?;
        }
        texts::check(&error.to_string(), texts::of_pool(error, &Profile::PYTORCH_2_11))?;
        texts::check(&AllocError::Pool(error).to_string(), texts::of_pool(error, &Profile::PYTORCH_2_11))?;
    }
    says(PoolError::TooMany.to_string(), "more than 32767 private pools")?;
    let address = DeviceAddress(0x7f00);
    for error in [
        CheckpointError::UnknownPool(id),
        CheckpointError::LostPool(id),
        CheckpointError::Abandoned(id),
        CheckpointError::EventsPending(address),
        CheckpointError::SegmentMissing(address),
        CheckpointError::BlockPending(address),
        CheckpointError::SizeDiffers(address),
        CheckpointError::LengthDiffers(address),
        CheckpointError::TailInUse(address),
        CheckpointError::TailGrew(address),
        CheckpointError::TailMapped(address),
    ] {
        texts::check(&error.to_string(), texts::of_checkpoint(&error))?;
    }
    let parted = "a pool cannot be restored if adjacent free blocks cannot coalesce because they belong to different streams";
    says(CheckpointError::Parted.to_string(), parted)?;
    says(UnknownStatistic { key: "a\"b".to_owned() }.to_string(), r#"the allocator has no statistic called "a\"b""#)
}

/// Counters that are set to 0 when the sums are reset.
const COUNTERS: [&str; 5] = ["num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free"];

/// Tests statistics from a file: any values, including those that no run has, and the effects of resets on them.
pub(crate) fn check_statistics(draws: &Draws) -> Outcome {
    check_unknown()?;
    let count = Stats::default().entries().len();
    let value = one_of![-9..9_i64, -(1 << 61)..1_i64 << 61, Just(i64::MAX), Just(i64::MIN)];
    let strategy = (prop::collection::vec(value, count), prop::collection::vec(any::<bool>(), 1..4));
    run_law(&draws.each_for(4), 352, strategy, |(values, resets)| {
        read_and_reset(values, resets)?;
        check_stat(&values[..24])?;
        Ok(resets.len() as u64 + 1)
    })
}

fn read_and_reset(values: &[i64], resets: &[bool]) -> Result<(), Broken> {
    let keys = Stats::default().entries();
    let mut expected: Vec<(String, i64)> = keys.into_iter().map(|(key, _)| key).zip(values.iter().copied()).collect();
    let mut stats = Stats::from_entries(expected.iter().map(|(key, value)| (key.as_str(), *value)))
        .map_err(|error| Broken::new(Law::Counters, error))?;
    compare(&stats, &expected, "as they were read")?;
    for &of_peaks in resets {
        if of_peaks {
            stats.reset_peaks();
        } else {
            stats.reset_accumulated();
        }
        let before = expected.clone();
        for (key, value) in &mut expected {
            let current = key.strip_suffix(".peak").map(|family| format!("{family}.current"));
            if of_peaks && let Some(current) = current {
                *value = before.iter().find(|(key, _)| *key == current).map_or(0, |(_, value)| *value);
            }
            if !of_peaks && (key.ends_with(".allocated") || key.ends_with(".freed") || COUNTERS.contains(&key.as_str())) {
                *value = 0;
            }
        }
        compare(&stats, &expected, if of_peaks { "after the peaks are reset" } else { "after the sums are reset" })?;
    }
    Ok(())
}

/// Checks that keys with an extra word, a missing word or changed case are unknown, and that the error quotes them
/// unchanged.
fn check_unknown() -> Result<(), Broken> {
    for (key, _) in Stats::default().entries() {
        let shorter = key.rsplit_once('.').map_or("", |(begin, _)| begin).to_owned();
        let spoiled = [format!("{key}.x"), format!("{key}."), format!("x.{key}"), format!(" {key}"), key.to_uppercase(), shorter];
        for text in spoiled {
            let answer = Stats::from_entries([(text.as_str(), 1)]).map_err(|error| error.key);
            ensure(Law::Counters, answer == Err(text.clone()), || format!("{text:?} is read as {answer:?}"))?;
        }
        // Checks a single statistic: all others are 0, and only this one differs.
        let [one, two] = [1, 2].map(|value| Stats::from_entries([(key.as_str(), value)]));
        let differs = one.is_ok() && one != two && one == Stats::from_entries([(key.as_str(), 1)]);
        ensure(Law::Counters, differs, || format!("files with {key} = 1 and {key} = 2 are read as {one:?} and {two:?}"))?;
        let listed = one.map(|stats| stats.entries()).unwrap_or_default();
        let others = listed.iter().find(|(other, value)| (*other == key) != (*value == 1));
        ensure(Law::Counters, others.is_none(), || format!("only {key} is set, but so are {others:?}"))?;
    }
    let mut stats = Stats::default();
    stats.num_oom_rejections = 1;
    let mut differs = stats != Stats::default();
    stats = Stats::default();
    stats.reserved_by_pool.insert(PoolId(0, 1), StatSet::default());
    differs &= stats != Stats::default();
    ensure(Law::Counters, differs, || "statistics should not differ without a key".to_owned())
}

/// Checks that a single statistic behaves according to its four values.
fn check_stat(amounts: &[i64]) -> Result<(), Broken> {
    let (mut stat, mut expected) = (Stat::default(), [0_i64; 4]);
    for (place, &amount) in amounts.iter().enumerate() {
        let [current, peak, allocated, freed] = &mut expected;
        match place % 4 {
            0 | 2 => {
                stat.increase(amount);
                (*current, *allocated) = (current.wrapping_add(amount), allocated.wrapping_add(amount));
                *peak = (*peak).max(*current);
            }
            1 => {
                stat.decrease(amount);
                (*current, *freed) = (current.wrapping_sub(amount), freed.wrapping_add(amount));
            }
            _ if amount % 2 == 0 => {
                stat.reset_peak();
                *peak = *current;
            }
            _ => {
                stat.reset_accumulated();
                (*allocated, *freed) = (0, 0);
            }
        }
        ensure(Law::Counters, stat.values() == expected, || format!("{stat:?}, expected {expected:?}"))?;
    }
    Ok(())
}

fn compare(stats: &Stats, expected: &[(String, i64)], when: &str) -> Result<(), Broken> {
    let seen = stats.entries();
    let wrong = seen.iter().zip(expected).find(|(seen, expected)| seen != expected);
    ensure(Law::Counters, wrong.is_none() && seen.len() == expected.len(), || {
        format!("{when}, these statistics differ (found, expected): {wrong:?}")
    })
}
