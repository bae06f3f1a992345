//! Logs of any size, in pieces of any size: nothing is lost at a border, and every message costs the same.

use std::fs;
use std::io::{self, ErrorKind, Read};
use std::time::Instant;

use proptest::prelude::*;

use super::super::foreign::Framework;
use super::super::lines::PIECE;
use super::super::log::*;
use super::*;

/// A message of its own for each number.
fn message(number: usize) -> String {
    format!(
        "CUDA out of memory. Tried to allocate {}.{:02} GiB. GPU 0 has a total capacity of 24.00 GiB of which 1.00 GiB is free. Of the \
         allocated memory 19.00 GiB is allocated by PyTorch, and 3.50 GiB is reserved by PyTorch but unallocated.",
        number / 100,
        number % 100
    )
}

/// Words of no message, so many bytes of them.
fn words(bytes: usize) -> String {
    "epoch 7, loss 0.25 ".repeat(bytes / 19 + 1)[..bytes].to_owned()
}

/// Gives so many bytes at once, the lengths in turn, and is interrupted before each.
struct Pieces<'a> {
    rest: &'a [u8],
    lengths: &'a [usize],
    turn: usize,
}

impl Read for Pieces<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.turn += 1;
        if self.turn % 2 == 1 {
            return Err(ErrorKind::Interrupted.into());
        }
        let most = self.lengths[self.turn / 2 % self.lengths.len()].min(buffer.len());
        self.rest.read(&mut buffer[..most])
    }
}

fn in_pieces(bytes: &[u8], lengths: &[usize]) -> MessageLog {
    MessageLog::read_from(Pieces { rest: bytes, lengths, turn: 0 }).expect("it can be read")
}

/// Wherever a message is in a log, in a line or across lines, the log says what the message alone says.
#[test]
fn a_message_is_found_across_every_border() {
    let alone = MessageLog::read(&message(7)).messages.remove(0).message;
    for border in [PART, 2 * PART] {
        for before in (0..message(7).len() + 40).step_by(29).map(|place| border - place) {
            let rank = "step rank=3 ";
            let line = format!("{rank}{} {}", words(before - rank.len()), message(7));
            for log in [line.clone() + &words(100), line.replace(", ", ",\n  ") + "\n"] {
                let found = MessageLog::read(&log).messages;
                assert!(matches!(&found[..], [one] if one.message == alone && one.times == 1), "{before}: {found:?}");
                assert!(log.contains('\n') || (found[0].rank, found[0].line) == (Some(3), 1), "{before}: {found:?}");
            }
        }
    }
}

#[test]
fn a_line_without_an_end_is_read_to_its_end() {
    let alone = MessageLog::read(&message(7)).messages;
    let fillers = ["x", "\0", "\u{1b}[", "\u{1b}[3", "\u{1b}[31m", "é", "\u{3000}", " ", "\r", "[rank3]: ", "2024-05-01 "];
    for filler in fillers {
        let text = filler.repeat((1 << 18) / filler.len());
        for log in [format!("{text} {}", message(7)), format!("[rank1]: {} {text}", message(7))] {
            let mut reader = LogReader::default();
            reader.read(log.as_bytes());
            let kept = reader.lines.view();
            assert!(kept.text.len() <= 4 * PART && kept.lines.len() <= 1, "{filler:?}: {} bytes", kept.text.len());
            let found = reader.end().messages;
            assert!(found.len() == 1 && found[0].message == alone[0].message, "{filler:?}: {found:?}");
        }
    }
    let bytes = [&[0xff, 0xe2].repeat(1 << 16), message(7).as_bytes()].concat();
    assert_eq!(in_pieces(&bytes, &[1 << 14]).messages, alone);
}

/// Logs whose line breaks are blanks: the messages are those of the lines, and the rank that the line names is that of all behind it.
#[test]
fn the_messages_of_one_line_are_all_read() {
    let log: Vec<String> = (0..500).map(message).collect();
    let of_lines = MessageLog::read(&log.join("\n"));
    let mut of_line = MessageLog::read(&format!("{} rank=5 {}", log[..250].join(" "), log[250..].join(" ")));
    assert_eq!((of_lines.messages.len(), of_lines.left_out), (500, 0));
    // Of one line, those of ranks come first.
    of_line.messages.rotate_left(250);
    for (number, (one, other)) in of_line.messages.iter().zip(&of_lines.messages).enumerate() {
        assert_eq!((one.rank, one.line, &one.message), ((number >= 250).then_some(5), 1, &other.message));
        assert_eq!(other.line, number + 1);
    }
    // A message that is cut does not take the figures of the next one.
    let cut = MessageLog::read(&format!("[rank3]: {} {}", &message(1)[..60], message(2)));
    assert!(matches!(&cut.messages[1].message, ReadMessage::Partial(one) if one.free.is_none()), "{cut:?}");
}

/// What stands for other frameworks and for torchrun is found after so many words that nothing else is looked at.
#[test]
fn other_messages_are_found_at_the_end_of_a_log() {
    let signs = [
        ("OOM when allocating tensor with shape[2]", Framework::TensorFlow),
        ("tf.errors.ResourceExhaustedError", Framework::TensorFlow),
        ("cupy.cuda.memory.OutOfMemoryError", Framework::CuPy),
        ("RESOURCE_EXHAUSTED: no", Framework::Jax),
        ("XlaRuntimeError: INTERNAL: Ran out of memory", Framework::Jax),
        ("Allocator (GPU_0_bfc) ran out of memory", Framework::Bfc),
        ("RMM failure at", Framework::Rmm),
        ("std::bad_alloc: out_of_memory", Framework::Rmm),
        ("MPS backend out of memory (", Framework::Mps),
        ("DefaultCPUAllocator: can't", Framework::MainMemory),
        ("oom-kill:constraint", Framework::System),
        ("Out of memory: Killed process 7", Framework::System),
        ("CUBLAS_STATUS_ALLOC_FAILED", Framework::Cuda),
        ("cudaErrorMemoryAllocation", Framework::Cuda),
        ("HIPBLAS_STATUS_ALLOC_FAILED", Framework::Hip),
        ("hipErrorOutOfMemory", Framework::Hip),
        ("rocblas_status_memory_error", Framework::Hip),
        ("out of GPU memory", Framework::Plain),
    ];
    let before = words(PART + 2 * AROUND);
    for (sign, framework) in signs {
        for blank in ["\n", " "] {
            let log = MessageLog::read(&format!("{before}{blank}{sign}"));
            assert_eq!(log.foreign.map(|found| found.framework), Some(framework), "{sign}");
        }
    }
    let report = "Root Cause (first observed failure): [0]: time : 2024-05-01_12:00:02 host : a rank : 1 (";
    let log = MessageLog::read(&format!("{}\n{before}\n{report}", message(1)));
    assert_eq!(log.first.map(|first| (first.rank, first.told_by)), Some((Some(1), ToldBy::Launcher)));
    let log = MessageLog::read(&format!("{before}\nAllocation on device 5 would exceed allowed memory. (out of memory)"));
    assert_eq!(log.cuda_malloc_async.map(|found| found.device), Some(5));
    let log = MessageLog::read(&format!("{before}\nTried to allocate 2.00 GiB (GPU 1; 24.00 GiB total capacity;"));
    assert!(matches!(&log.messages[..], [one] if one.line == 2), "{log:?}");
}

#[test]
fn a_source_that_fails_is_no_log_without_messages() {
    struct Failing;
    impl Read for Failing {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(ErrorKind::TimedOut.into())
        }
    }
    let source = words(1000);
    assert!(MessageLog::read_from(source.as_bytes().chain(Failing)).is_err());
}

/// What a thread has used of its processor; other programs count less in it than in the time.
fn nanoseconds(since: Instant) -> u64 {
    let used = fs::read_to_string("/proc/thread-self/schedstat").ok();
    let used = used.and_then(|text| text.split(' ').next()?.parse().ok());
    used.unwrap_or_else(|| since.elapsed().as_nanos() as u64)
}

/// Twice as many messages take at most 2.3 times as long, however they stand.
#[test]
fn the_time_grows_with_the_number_of_messages() {
    let whole = |separator: &str, number| (0..number).map(message).collect::<Vec<_>>().join(separator);
    let cut = |separator: &str, number| (0..number).map(|one| message(one)[..80].to_owned()).collect::<Vec<_>>().join(separator);
    let jax = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8589934592 bytes.";
    let kinds: [(&str, &dyn Fn(usize) -> String); 6] = [
        ("on lines", &|number| whole("\n", number)),
        ("on one line", &|number| whole(" ", number)),
        ("of a rank on one line", &|number| "[rank3]: ".to_owned() + &whole(" ", number)),
        ("cut on lines", &|number| cut("\n", number / 2)),
        ("cut, of a rank on one line", &|number| "[rank3]: ".to_owned() + &cut(" ", number / 2)),
        ("of another framework on one line", &|number| format!("{} {}", message(1), vec![jax; 4 * number].join(" "))),
    ];
    let start = Instant::now();
    for (name, log) in kinds {
        let logs = [log(400), log(800)];
        let mut least = [u64::MAX; 2];
        // More rounds only where others disturb the measurement.
        for round in 0..20 {
            for (log, least) in logs.iter().zip(&mut least) {
                let before = nanoseconds(start);
                let read = MessageLog::read(log);
                *least = (*least).min(nanoseconds(start) - before);
                assert!(!read.messages.is_empty(), "{name}");
            }
            if round >= 2 && least[1] * 10 <= least[0] * 23 {
                break;
            }
        }
        assert!(least[1] * 10 <= least[0] * 23, "{name}: {least:?} ns");
    }
}

fn part_of_a_log() -> impl Strategy<Value = Vec<u8>> {
    let texts = [
        "\n",
        "\r\n",
        " ",
        "\0",
        "\u{1b}[31m",
        "\u{1b}[",
        "[rank3]: ",
        "2: ",
        "rank=1 ",
        "2024-05-01 12:00:01 ",
        "é",
        "\u{2028}",
    ];
    prop_oneof![
        4 => proptest::sample::select(texts.to_vec()).prop_map(|text| text.as_bytes().to_vec()),
        3 => (0..3_usize, 0..300_usize).prop_map(|(number, end)| message(number).as_bytes()[..end.min(message(0).len())].to_vec()),
        1 => (0..3_usize).prop_map(|number| message(number).replace(' ', "\n  ").into_bytes()),
        1 => Just(b"RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8 bytes".to_vec()),
        1 => proptest::collection::vec(any::<u8>(), 0..6),
        1 => (PIECE - 100..PIECE + 100).prop_map(|length| words(length).replace(' ', "_").into_bytes()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    /// Splitting a log changes nothing, wherever it is split, within a character too.
    #[test]
    fn a_log_in_pieces_says_what_it_says_whole(
        parts in proptest::collection::vec(part_of_a_log(), 0..8),
        lengths in proptest::collection::vec(prop_oneof![1..4_usize, 1..400_usize, 1..70_000_usize], 1..4),
    ) {
        let log = parts.concat();
        prop_assert_eq!(in_pieces(&log, &lengths), MessageLog::read(&String::from_utf8_lossy(&log)));
    }
}
