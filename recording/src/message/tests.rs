use parkade::device::ProcessMemory;
use parkade::texts::{Hint, MORE_THAN_ONE_EXABYTE, OomWords, OutOfMemory, rejection_message};
use parkade::units::Bytes;
use proptest::prelude::*;

use super::{MessageError, OutOfMemoryMessage, Size};

/// The message of the document, with its line breaks.
const DOCUMENT: &str = "OutOfMemoryError: CUDA out of memory. Tried to allocate 4.88 GiB (GPU 2; 39.59\nGiB total capacity; 28.60 GiB \
    already allocated; 3.92 GiB free; 33.95 GiB\nreserved in total by PyTorch). If reserved memory is substantially greater than \
    allocated memory, consider\nsetting max_split_size_mb to counteract fragmentation.";

fn gib(hundredths: u64) -> u64 {
    ((u128::from(hundredths) << 30) as f64 / 100.0).round() as u64
}

#[test]
fn the_old_form_is_read() {
    let message = OutOfMemoryMessage::parse(DOCUMENT).expect("a message");
    assert_eq!((message.tried.bytes, message.device, message.total.bytes), (gib(488), 2, gib(3959)));
    assert_eq!((message.allocated.bytes, message.free.bytes, message.reserved.bytes), (gib(2860), gib(392), gib(3395)));
    assert_eq!((message.limit, message.private_pools, message.processes.len()), (None, None, 0));
    assert_eq!(message.unallocated.to_string(), "5.35 GiB");
    assert!(message.is_fragmentation());
}

#[test]
fn the_oldest_form_gives_cached_instead_of_reserved_memory() {
    let text = "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 7.93 GiB total capacity; 6.41 GiB already \
        allocated; 12.44 MiB free; 100.00 MiB cached)";
    let message = OutOfMemoryMessage::parse(text).expect("a message");
    assert_eq!(message.unallocated.bytes, 100 << 20);
    assert_eq!(message.reserved.bytes, gib(641) + (100 << 20));
}

#[test]
fn the_old_form_with_a_limit_is_read() {
    let text = "HIP out of memory. Tried to allocate 512 bytes (GPU 0; 8.00 GiB total capacity; 1024 bytes already allocated; 7.00 GiB \
        free; 2.00 MiB allowed; 2.00 MiB reserved in total by PyTorch) If reserved";
    let message = OutOfMemoryMessage::parse(text).expect("a message");
    assert_eq!(message.limit, Some(Size { bytes: 2 << 20, within: 5244 }));
    assert_eq!(message.tried, Size { bytes: 512, within: 0 });
}

#[test]
fn version_2_1_misspelt_capacity() {
    let text = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacty of 22.17 GiB of which 1.94 GiB is free. Process \
        712 has 20.20 GiB memory in use. Of the allocated memory 19.00 GiB is allocated by PyTorch, and 816.00 MiB is reserved by \
        PyTorch but unallocated. If reserved";
    let message = OutOfMemoryMessage::parse(text).expect("a message");
    assert_eq!(message.total.bytes, gib(2217));
    assert_eq!((message.processes.len(), message.processes[0].pid), (1, Some(712)));
}

#[test]
fn what_is_no_message_is_an_error_that_says_where() {
    assert_eq!(OutOfMemoryMessage::parse(""), Err(MessageError::NotFound));
    assert_eq!(OutOfMemoryMessage::parse("CUDA out of memory."), Err(MessageError::NotFound));
    assert!(matches!(OutOfMemoryMessage::parse(MORE_THAN_ONE_EXABYTE), Err(MessageError::NoFigures(_))));
    assert!(matches!(OutOfMemoryMessage::parse(&rejection_message(Bytes(5))), Err(MessageError::NoFigures(_))));
    let cut = "CUDA out of memory. Tried to allocate 4.88 GiB (GPU 2; 39.59 GiB total capacity; 28.6";
    let error = OutOfMemoryMessage::parse(cut).expect_err("it is cut");
    assert_eq!(error.to_string(), "expected what is allocated at `28.6`; is the message complete?");
    let long = "CUDA out of memory. Tried to allocate 99999999999999999999999999.00 GiB. GPU 0";
    assert!(matches!(OutOfMemoryMessage::parse(long), Err(MessageError::Expected { .. })));
}

#[test]
fn what_comes_before_a_message_does_not_hide_it() {
    let retry = "WARNING: out of memory. Retrying with a smaller batch.\n";
    let cut = "CUDA out of memory. Tried to allocate 4.88 GiB (GPU 2; 39.59 GiB total capacity; 28.6\n";
    let rejected = rejection_message(Bytes(5));
    for before in [retry, cut, &format!("{rejected}\n"), &[retry, cut, MORE_THAN_ONE_EXABYTE, "\n"].concat()] {
        let message = OutOfMemoryMessage::parse(&format!("{before}{DOCUMENT}"));
        assert_eq!(message.map(|message| message.tried.bytes), Ok(gib(488)), "{before}");
    }
    // Of several complete messages the first counts; if none is complete, the error is about the first.
    let second = DOCUMENT.replace("4.88", "9.99");
    let message = OutOfMemoryMessage::parse(&format!("{retry}{DOCUMENT}\n{second}")).expect("a message");
    assert_eq!(message.tried.bytes, gib(488));
    assert_eq!(OutOfMemoryMessage::parse(retry), Err(MessageError::NotFound));
    let error = OutOfMemoryMessage::parse(&format!("{retry}{cut}{rejected}")).expect_err("none is complete");
    assert!(error.to_string().starts_with("expected what is allocated at `28.6"), "{error}");
}

/// A log may consist of beginnings of messages. Each is read only up to the next.
#[test]
fn many_beginnings_take_linear_time() {
    let beginning =
        "CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 8.00 GiB of which 1.00 GiB is free. ";
    let text = beginning.repeat(100_000) + DOCUMENT;
    let before = std::time::Instant::now();
    assert_eq!(OutOfMemoryMessage::parse(&text).map(|message| message.tried.bytes), Ok(gib(488)));
    assert!(before.elapsed().as_secs() < 30, "{:?}", before.elapsed());
}

#[test]
fn a_size_that_no_double_holds_is_within_what_is_said() {
    let told = 3_535_117_072_110_410_796;
    let text = parkade::texts::format_bytes(told);
    let message = format!(
        "CUDA out of memory. Tried to allocate {text}. GPU 0 has a total capacity of 1.00 GiB of which 1.00 GiB is free. Of the \
         allocated memory 0 bytes is allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated."
    );
    let message = OutOfMemoryMessage::parse(&message).expect("a message");
    assert!(is_close(message.tried, told), "{message:?}");
}

fn process() -> impl Strategy<Value = ProcessMemory> {
    (any::<Option<u32>>(), any::<u64>()).prop_map(|(pid, used)| ProcessMemory { pid, used: Bytes(used) })
}

/// Any size; most are in the range that devices have.
fn bytes() -> impl Strategy<Value = u64> {
    prop_oneof![0..1_u64 << 11, 0..1_u64 << 21, 0..1_u64 << 31, 0..1_u64 << 40, any::<u64>()]
}

fn report() -> impl Strategy<Value = OutOfMemory> {
    let figures = (bytes(), bytes(), bytes(), 0..1_u64 << 50, 0..1_u64 << 50, 0..1_u64 << 50);
    let hint = prop_oneof![
        Just(Hint::None),
        Just(Hint::ExpandableSegments),
        Just(Hint::Addresses),
        bytes().prop_map(|b| Hint::LargerReserve(Bytes(b)))
    ];
    let rest = (any::<u32>(), proptest::collection::vec(process(), 0..4), proptest::option::of(bytes()), hint, any::<bool>());
    (figures, rest).prop_map(
        |((segment, total, free, allocated, private, rest), (device, processes, limit, hint, has_private))| {
            let private = if has_private { private } else { 0 };
            OutOfMemory {
                segment_bytes: Bytes(segment),
                device,
                device_total: Bytes(total),
                device_free: Bytes(free),
                processes,
                limit: limit.map(Bytes),
                allocated_bytes: allocated as i64,
                reserved_bytes: (allocated + private + rest) as i64,
                private_cached_bytes: Bytes(private),
                hint,
                words: &OomWords::PYTORCH_2_11,
            }
        },
    )
}

fn is_close(read: Size, told: u64) -> bool {
    read.bytes.abs_diff(told) <= read.within
}

proptest! {
    #[test]
    fn what_the_core_prints_is_read_back(report in report()) {
        let text = report.to_string();
        let message = OutOfMemoryMessage::parse(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
        prop_assert!(is_close(message.tried, report.segment_bytes.get()), "{message:?}");
        prop_assert!(is_close(message.total, report.device_total.get()), "{message:?}");
        prop_assert!(is_close(message.free, report.device_free.get()), "{message:?}");
        prop_assert_eq!(message.device, report.device);
        prop_assert_eq!(message.processes.len(), report.processes.len());
        for (read, told) in message.processes.iter().zip(&report.processes) {
            prop_assert_eq!(read.pid, told.pid);
            prop_assert!(is_close(read.used, told.used.get()), "{message:?}");
        }
        prop_assert_eq!(message.limit.is_some(), report.limit.is_some());
        prop_assert!(message.limit.zip(report.limit).is_none_or(|(read, told)| is_close(read, told.get())), "{message:?}");
        let private = report.private_cached_bytes.get();
        let allocated = report.allocated_bytes as u64 + private;
        prop_assert!(is_close(message.allocated, allocated), "{message:?}");
        prop_assert!(is_close(message.reserved, report.reserved_bytes as u64), "{message:?}");
        prop_assert!(is_close(message.unallocated, report.reserved_bytes as u64 - allocated), "{message:?}");
        prop_assert_eq!(message.private_pools.is_some(), private > 0);
    }

    #[test]
    fn nothing_makes_it_panic(text in "(CUDA )?(out of memory\\. Tried to allocate )?[0-9.]{0,30} (GiB|MiB|bytes)?.{0,60}") {
        let _ = OutOfMemoryMessage::parse(&text);
    }

    #[test]
    fn a_message_cut_anywhere_is_an_error(report in report(), at in 0..200_usize) {
        let text = report.to_string();
        let cut: String = text.chars().take(at).collect();
        prop_assert!(OutOfMemoryMessage::parse(&cut).is_err());
    }
}
