//! Tests the digests of `parkade ops --digests`: they equal those of the real allocator's program, and differ as soon
//! as the answers differ.

use parkade::profile::Profile;
use parkade_replay::ops::{Addresses, OpsOptions, OpsRunner};

fn runner(profile: &'static Profile, settings: &str) -> OpsRunner {
    let options = OpsOptions { settings: settings.to_owned(), capacity_bytes: 1 << 30, addresses: Addresses::Up, profile };
    OpsRunner::new(&options).expect("legal settings")
}

/// The output of `oracle-2.15.0 --digests`.
#[test]
fn the_real_allocators_program_prints_the_same() {
    let mut ours = runner(&Profile::PYTORCH_2_15, "");
    let theirs = [
        ("alloc a 3000000", "a2c6c919e8630978"),
        ("alloc b 9999999999", "c3997cabd2551801"),
        ("free a", "c29f418ca39ef1df"),
        ("snapshot", "e775002b35733c5a"),
        ("stats", "c60ab81753551bc6"),
    ];
    for (line, digest) in theirs {
        assert_eq!(ours.run_line_to_digest(line).as_deref(), Some(digest), "{line}");
    }
    assert_eq!(ours.run_line_to_digest("# only a comment"), None);
}

/// A script in which blocks of many sizes are allocated and freed, with a pool.
fn script() -> Vec<String> {
    let mut lines = vec!["pool_create 0 1".to_owned(), "pool_begin 0 1 stream 1".to_owned()];
    for number in 0..400_u64 {
        let size = 1 + number * number * 7919 % 24_000_000;
        lines.push(format!("alloc x{number} {size} {}", number % 3));
        if number > 20 {
            lines.push(format!("free x{}", number * 31 % (number - 10)));
        }
    }
    lines.extend(["snapshot", "free_all", "empty_cache", "stats"].map(str::to_owned));
    lines
}

/// The first lines in which answers, and digests, differ.
fn first_differences(sides: [(&'static Profile, &str); 2]) -> [Option<usize>; 2] {
    let first = |run: fn(&mut OpsRunner, &str) -> Option<String>| {
        let [mut a, mut b] = sides.map(|(profile, settings)| runner(profile, settings));
        script().iter().position(|line| run(&mut a, line) != run(&mut b, line))
    };
    [first(OpsRunner::run_line), first(OpsRunner::run_line_to_digest)]
}

#[test]
fn digests_differ_where_answers_first_do() {
    let [plain, again] = [(&Profile::PYTORCH_2_15, ""); 2];
    assert_eq!(first_differences([plain, again]), [None, None]);
    for other in [
        (&Profile::PYTORCH_2_12, ""),
        (&Profile::PYTORCH_2_7, ""),
        (&Profile::PYTORCH_2_15, "max_split_size_mb:32"),
        (&Profile::PYTORCH_2_15, "roundup_power2_divisions:4"),
        (&Profile::PYTORCH_2_15, "expandable_segments:True"),
    ] {
        let [text, digest] = first_differences([plain, other]);
        assert!(text.is_some(), "{other:?}");
        assert_eq!(digest, text, "{other:?}");
    }
}
