//! Tests the rules in which releases of PyTorch differ; the expected values come from each release's own binary.

use crate::device::PlainDevice;
use parkade::policy::PyTorch;
use parkade::profile::{Profile, RELEASES};
use parkade::settings::{ErrorKind, Settings};
use parkade::units::{Bytes, PoolId, StreamId};
use parkade::{AllocError, Allocation, Allocator, PoolFilter};

type Core = Allocator<PlainDevice, PyTorch, ()>;

/// An allocator on a device whose segments go one above the other.
fn core(profile: &'static Profile, total: Bytes, settings: &str) -> Core {
    let settings = Settings::from_environment_as(&profile.dialect, settings).expect("legal settings");
    Allocator::new(PlainDevice::new(total, 1 << 44), PyTorch::of(profile, settings), ())
}

fn allocate(core: &mut Core, mib: u64) -> Allocation {
    core.allocate(Bytes::mib(mib), StreamId::DEFAULT).expect("there is room")
}

/// Of three equal free blocks, the one with the lowest address is not the one that came into being first: a block
/// that is split stays behind the part that is handed out.
#[test]
fn releases_choose_between_equal_blocks() {
    for (profile, chosen) in [(&Profile::PYTORCH_2_10, 0), (&Profile::PYTORCH_2_12, 3), (&Profile::PYTORCH_2_13, 0)] {
        let mut core = core(profile, Bytes::mib(64), "");
        let parts: Vec<Allocation> = (0..4).map(|_| allocate(&mut core, 5)).collect();
        let addresses: Vec<_> = parts.iter().map(Allocation::address).collect();
        // The blocks at both ends become free, the last one being what is left of the whole.
        for (place, part) in parts.into_iter().enumerate() {
            if place == 0 || place == 3 {
                core.free(part).expect("ours");
            }
        }
        assert_eq!(allocate(&mut core, 5).address(), addresses[chosen], "{}", profile.name);
    }
}

/// Before 2.10 one parser reads all keys, checks the separators, and raises other errors.
#[test]
fn older_settings_strings() {
    let refused = |release: &str, text: &str| {
        let dialect = &Profile::of(release).expect("a release").dialect;
        let error = Settings::from_environment_as(dialect, text).expect_err(text);
        (error.kind(), error.message().to_owned())
    };
    for (release, text, kind, message) in [
        ("2.9", "max_split_size_mb:20", ErrorKind::Check, "CachingAllocator option max_split_size_mb too small, must be > 20"),
        ("2.9", "max_split_size_mb", ErrorKind::Check, "Error parsing CachingAllocator settings, expected :"),
        ("2.9", "max_split_size_mb:2147483648", ErrorKind::NumberOutOfRange, "stoi"),
        ("2.9", "max_split_size_mb:--40", ErrorKind::InvalidNumber, "stoi"),
        (
            "2.9",
            "per_process_memory_fraction:1",
            ErrorKind::Check,
            "Unrecognized CachingAllocator option: per_process_memory_fraction",
        ),
        ("2.8", "roundup_power2_divisions:3", ErrorKind::Check, "For roundups, the divisions has to be power of 2 "),
        ("2.3", "roundup_power2_divisions:[256:0]", ErrorKind::Check, "For roundups, the divisons has to be power of 2 "),
        (
            "2.1",
            "release_lock_on_cudamalloc:True",
            ErrorKind::Check,
            "Unrecognized CachingAllocator option: release_lock_on_cudamalloc",
        ),
    ] {
        assert_eq!(refused(release, text), (kind, message.to_owned()), "{release} {text}");
    }
    let slots = |release: &str| {
        let dialect = &Profile::of(release).expect("a release").dialect;
        Settings::from_environment_as(dialect, "roundup_power2_divisions:[256:4,>:2]").expect("legal").roundup_power2_divisions
    };
    let after_white_space = Settings::from_environment_as(&Profile::PYTORCH_2_9.dialect, "max_split_size_mb:\t40");
    assert_eq!(after_white_space.map(|settings| settings.max_split_bytes), Ok(40 << 20));
    // The slot of 256 MiB is 8: before 2.10 what is above takes it too.
    assert_eq!((slots("2.9")[8], slots("2.10")[8], slots("2.9")[9]), (2, 4, 2));
}

/// With a key for large segments every string resets the rounding; without it, nothing does.
#[test]
fn a_later_string_keeps_the_rounding_or_resets_it() {
    for release in RELEASES {
        let mut settings = Settings::default();
        let dialect = &release.profile.dialect;
        if settings.apply_as(dialect, "max_non_split_rounding_mb:50").is_err() {
            continue;
        }
        settings.apply_as(dialect, "").expect("legal");
        let resets = dialect.keys().any(|key| key == "large_segment_size_mb");
        assert_eq!(settings.max_non_split_rounding_bytes, if resets { 20 << 20 } else { 50 << 20 }, "{}", release.name);
    }
}

/// With one division between powers of two, releases before 2.4 do not round at all.
#[test]
fn one_division_rounds_or_leaves_sizes_alone() {
    for (profile, size) in [(&Profile::PYTORCH_2_3, 1_000_001), (&Profile::PYTORCH_2_4, 1_000_448)] {
        let mut core = core(profile, Bytes::mib(64), "roundup_power2_divisions:1");
        let _kept = core.allocate(Bytes(1_000_001), StreamId::DEFAULT).expect("there is room");
        assert_eq!(core.segments()[0].blocks[0].size, Bytes(size), "{}", profile.name);
    }
}

/// A fraction of 1 is a limit before 2.10, and none since.
#[test]
fn the_whole_memory_is_a_limit_or_none() {
    for release in RELEASES {
        let mut core = core(release.profile, Bytes::mib(64), "");
        core.set_memory_fraction(1.0).expect("legal");
        let is_older = Profile::of(release.name).is_ok_and(|profile| profile.limits_whole_memory);
        assert_eq!(core.heap().limit(), is_older.then_some(Bytes::mib(64)), "{}", release.name);
    }
    let invalid = |profile: &'static Profile| {
        core(profile, Bytes::mib(64), "").set_memory_fraction(2.0).expect_err("too much").message(profile)
    };
    assert_eq!(invalid(&Profile::PYTORCH_2_8), "invalid fraction:2. Please set within [0, 1].");
    assert!(invalid(&Profile::PYTORCH_2_7).ends_with(
        "CUDACachingAllocator.cpp\":3430, please report a bug to PyTorch. invalid fraction:2. Please set within (0, 1)."
    ));
}

/// While requests are routed to a pool, emptying the cache fails before 2.8.
#[test]
fn emptying_the_cache_fails_during_a_routing() {
    for (profile, fails) in [(&Profile::PYTORCH_2_7, true), (&Profile::PYTORCH_2_8, false)] {
        let mut core = core(profile, Bytes::mib(64), "");
        core.begin_pool(PoolId(1, 0), PoolFilter::All).expect("a new pool");
        let released = core.release_cached();
        assert_eq!(released == Err(AllocError::Capturing), fails, "{}", profile.name);
        core.end_pool(PoolId(1, 0)).expect("routed to");
        core.release_cached().expect("nothing is routed");
    }
}

/// While requests are routed to a pool or a graph is captured, emptying the cache of a different pool without uses fails
/// in every release, with the messages of the compiled allocators.
#[test]
fn emptying_the_cache_of_a_pool_fails_during_a_capture() {
    let (unused, routed) = (PoolId(0, 2), PoolId(1, 0));
    for (name, condition, line) in [
        ("2.8", "captures_underway.empty()", 3235),
        ("2.9", "captures_underway.empty()", 3475),
        ("2.10", "captures_underway.empty()", 3583),
        ("2.11", "captures_underway.empty()", 3662),
        ("2.12", "captures_underway.empty()", 3941),
        ("2.13", "!is_capture_context()", 4291),
        ("2.14", "!is_capture_context()", 4290),
        ("2.15", "!is_capture_context()", 4448),
    ] {
        let profile = Profile::of(name).expect("a known release");
        let mut core = core(profile, Bytes::mib(64), "");
        core.begin_pool(unused, PoolFilter::All).expect("a new pool");
        let block = core.allocate(Bytes::mib(3), StreamId::DEFAULT).expect("room");
        core.end_pool(unused).expect("routed to");
        core.free(block).expect("ours");
        core.release_pool(unused).expect("one use");
        core.begin_pool(routed, PoolFilter::Stream(StreamId::DEFAULT)).expect("a new pool");
        core.set_capturing(true);
        let waits = core.stats().num_sync_all_streams;
        let error = core.release_cached_pool(unused).expect_err("a capture cannot wait");
        assert_eq!(core.stats().num_sync_all_streams, waits + 1, "{name}: it counts as a wait");
        assert_eq!(core.heap().reserved(), Bytes::mib(20), "{name}: the memory stays");
        let message = error.message(profile);
        assert!(message.starts_with(condition) && message.contains(&format!(":{line}, please")), "{name}: {message}");
        core.release_cached_pool(routed).expect("nothing happens to a pool in use");
        core.set_capturing(false);
        core.end_pool(routed).expect("routed to");
        core.release_cached_pool(unused).expect("nothing is captured");
        assert_eq!(core.heap().reserved(), Bytes::ZERO, "{name}");
    }
}

/// With the setting for it, 2.9 serves nothing while requests are routed but the caller's stream is not captured.
#[test]
fn reuse_in_captures_needs_a_capture() {
    for (profile, fails) in [(&Profile::PYTORCH_2_9, true), (&Profile::PYTORCH_2_10, false)] {
        let mut core = core(profile, Bytes::mib(64), "graph_capture_record_stream_reuse:True");
        core.begin_pool(PoolId(1, 0), PoolFilter::All).expect("a new pool");
        let answer = core.allocate(Bytes(512), StreamId::DEFAULT);
        assert_eq!(answer.err() == Some(AllocError::NotCaptured), fails, "{}", profile.name);
        core.set_capturing(true);
        assert!(core.allocate(Bytes(512), StreamId::DEFAULT).is_ok(), "{}", profile.name);
    }
}
