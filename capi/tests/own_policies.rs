//! A library with a policy of its own: its names, an allocator under it, and what it refuses.

use std::ffi::{CStr, CString};
use std::ptr;

use parkade::Heap;
use parkade::policy::{Placement, Policy, Request};
use parkade::units::{Bytes, PoolClass};
use parkade_capi::parkade_status::{self, PARKADE_INVALID_ARGUMENT, PARKADE_OK};
use parkade_capi::{
    parkade_allocate, parkade_allocator, parkade_create, parkade_destroy, parkade_error_text, parkade_options,
    parkade_policy_name, parkade_policy_says, parkade_read_stats, parkade_stats,
};
use parkade_policies::{Entry, Parameter};

/// Takes the first free block, and segments of a given size from the device.
struct Mine {
    segment: Bytes,
}

impl Policy for Mine {
    fn name(&self) -> &'static str {
        "mine"
    }

    fn round(&self, requested: Bytes) -> Option<Bytes> {
        requested.checked_round_up(Bytes(512))
    }

    fn classify(&self, _: Bytes) -> PoolClass {
        PoolClass::Large
    }

    fn place(&mut self, heap: &Heap, request: &Request) -> Placement {
        match heap.first_at_least(request.pool, request.stream, request.size) {
            Some(block) => Placement::Reuse(block.id),
            None => Placement::Segment(request.size.max(self.segment)),
        }
    }

    fn splits(&self, _: Bytes, _: &Request) -> bool {
        true
    }
}

const MINE: Entry =
    Entry::new("mine", "segments of a given size", "our own", |values| Box::new(Mine { segment: values.bytes("segment") }))
        .with_parameters(&[Parameter::size("segment", "the smallest segment", "32MiB", Bytes::mib(2), Bytes::mib(4096))]);

parkade_capi::policies!(MINE);

fn error_text() -> String {
    // SAFETY: the text is valid until the next failure.
    unsafe { CStr::from_ptr(parkade_error_text()) }.to_string_lossy().into_owned()
}

/// Creates an allocator on a simulated GPU.
fn create(policy: &str) -> Result<*mut parkade_allocator, (parkade_status, String)> {
    let policy = CString::new(policy).expect("a name");
    let options = parkade_options {
        size: size_of::<parkade_options>(),
        device: 0,
        flags: 0,
        simulated_bytes: 1 << 30,
        policy: policy.as_ptr(),
        settings: ptr::null(),
        release: ptr::null(),
        most_rescues: 0,
    };
    let mut allocator = ptr::null_mut();
    // SAFETY: both are valid for the call, and a simulated GPU has no streams.
    match unsafe { parkade_create(&raw const options, &raw mut allocator) } {
        PARKADE_OK => Ok(allocator),
        status => Err((status, error_text())),
    }
}

/// Returns the reserved bytes after a request of 1,000 bytes.
fn reserved_bytes(policy: &str) -> i64 {
    let allocator = create(policy).unwrap_or_else(|(_, text)| panic!("{text}"));
    let (mut memory, mut stats) = (ptr::null_mut(), std::mem::MaybeUninit::<parkade_stats>::zeroed());
    // SAFETY: the allocator is used by this thread only, and all pointers are valid.
    unsafe {
        assert_eq!(parkade_allocate(allocator, 1000, 0, &raw mut memory), PARKADE_OK, "{}", error_text());
        assert_eq!(parkade_read_stats(allocator, stats.as_mut_ptr()), PARKADE_OK);
        parkade_destroy(allocator);
        stats.assume_init().reserved_bytes.all.current
    }
}

/// A library declares its policies once in a process, so this is one test.
#[test]
fn a_library_has_its_own_policies_beside_the_catalogue() {
    const TAKEN: &[Entry] = &[Entry::new("bfc", "another", "our own", |_| panic!("it is not made"))];
    assert_eq!(parkade_capi::declare(TAKEN), PARKADE_INVALID_ARGUMENT);
    assert!(error_text().contains("the name \"bfc\" belongs to a different policy"), "{}", error_text());

    assert_eq!((parkade_declare_policies(), parkade_declare_policies()), (PARKADE_OK, PARKADE_OK));
    let named = |at| {
        let texts = (parkade_policy_name(at), parkade_policy_says(at));
        // SAFETY: null, or a text that is valid forever.
        (!texts.0.is_null()).then(|| unsafe { (CStr::from_ptr(texts.0), CStr::from_ptr(texts.1)) })
    };
    let names: Vec<_> = (0..).map_while(named).collect();
    assert_eq!((names[0].0, names.last()), (c"pytorch", Some(&(c"mine", c"segments of a given size"))));

    assert_eq!(reserved_bytes("mine"), 32 << 20);
    assert_eq!(reserved_bytes("mine:segment=8MiB"), 8 << 20);
    assert_eq!(reserved_bytes("pytorch"), 2 << 20);
    for (wrong, why) in [
        ("mine:segment=1MiB", "segment is a size from 2MiB to 4GiB"),
        ("mine:size=8MiB", "segment"),
        ("main", "the policies are pytorch,"),
    ] {
        let (status, text) = create(wrong).expect_err(wrong);
        assert!(status == PARKADE_INVALID_ARGUMENT && text.contains(why), "{text}");
    }
    let (_, text) = create("main").expect_err("no policy");
    assert!(text.ends_with(", mine"), "{text}");

    const OTHER: &[Entry] = &[Entry::new("other", "another", "our own", |_| panic!("it is not made"))];
    assert_eq!(parkade_capi::declare(OTHER), PARKADE_INVALID_ARGUMENT);
    assert!(error_text().contains("call parkade_declare_policies() before any other function"), "{}", error_text());
}
