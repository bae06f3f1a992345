//! Logs of several ranks: prefixes, repetitions, broken lines, cuts, times.

use parkade::texts::rejection_message;
use parkade::units::Bytes;
use proptest::prelude::*;

use super::{
    ForeignMessage, Framework, MessageError, MessageLog, OtherMessage, OutOfMemoryMessage, PartialMessage, ReadMessage, ToldBy,
};

/// A message of PyTorch since 2.1, with a size of its own.
fn new(device: u32, tried: &str) -> String {
    format!(
        "CUDA out of memory. Tried to allocate {tried}. GPU {device} has a total capacity of 24.00 GiB of which 1.00 GiB is free. Process \
         7 has 23.00 GiB memory in use. Of the allocated memory 19.00 GiB is allocated by PyTorch, and 3.50 GiB is reserved by PyTorch \
         but unallocated. If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."
    )
}

fn old(device: u32, tried: &str) -> String {
    format!(
        "CUDA out of memory. Tried to allocate {tried} (GPU {device}; 39.59 GiB total capacity; 28.60 GiB already allocated; 3.92 GiB \
         free; 33.95 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory"
    )
}

/// Rank, line, how often, and whether it is complete.
fn found(log: &MessageLog) -> Vec<(Option<u32>, usize, usize, bool)> {
    let is_complete = |message: &ReadMessage| matches!(message, ReadMessage::Complete(_));
    log.messages.iter().map(|one| (one.rank, one.line, one.times, is_complete(&one.message))).collect()
}

#[test]
fn the_messages_of_all_ranks_are_read_without_repetitions() {
    let text = format!(
        "step 1\n[rank3]: Traceback (most recent call last):\n[rank3]: torch.OutOfMemoryError: {three}\n[rank1]: {one}\n[rank3]: {three}\n\
         {one}\nsrun: error\n2: {three}\nERROR trainer rank=5: {three}\n{alone}\n{alone}\n",
        three = new(3, "2.00 GiB"),
        one = old(1, "20.00 MiB"),
        alone = new(0, "64.00 MiB"),
    );
    let log = MessageLog::read(&text);
    let expected =
        [(Some(3), 3, 2, true), (Some(1), 4, 2, true), (Some(2), 8, 1, true), (Some(5), 9, 1, true), (None, 10, 2, true)];
    assert_eq!(found(&log), expected);
    assert_eq!((log.first.clone(), log.explained()), (None, Some(0)), "no times");
}

/// On AMD's GPUs the same messages begin with HIP, and name another variable.
#[test]
fn messages_of_hip_are_read_as_those_of_cuda() {
    let whole = new(3, "2.00 GiB");
    for cuda in [format!("[rank3]: torch.OutOfMemoryError: {whole}"), old(0, "512.00 MiB"), whole[..whole.len() / 2].to_owned()] {
        let hip =
            cuda.replace("CUDA out of memory", "HIP out of memory").replace("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF");
        assert_ne!(hip, cuda);
        let [hip, cuda] = [hip, cuda].map(|text| MessageLog::read(&text));
        assert_eq!((found(&hip), &hip.messages[0].message), (found(&cuda), &cuda.messages[0].message));
    }
}

#[test]
fn a_message_may_be_broken_between_lines_of_other_ranks() {
    let lines = |rank: u32| {
        let words: Vec<String> = new(rank, "2.00 GiB").split(' ').map(str::to_owned).collect();
        words.chunks(7).map(|words| format!("[rank{rank}]: {}", words.join(" "))).collect::<Vec<_>>()
    };
    let (one, two) = (lines(1), lines(2));
    let mixed: Vec<String> = one.into_iter().zip(two).flat_map(|(one, two)| [one, two]).collect();
    let log = MessageLog::read(&mixed.join("\r\n"));
    assert_eq!(found(&log), [(Some(1), 1, 1, true), (Some(2), 2, 1, true)]);
    // Without prefixes, as a terminal breaks it.
    let log = MessageLog::read(&format!("RuntimeError: {}", new(0, "2.00 GiB").replace(' ', "\n  ")));
    assert_eq!(found(&log), [(None, 2, 1, true)]);
    let colours = format!("\u{1b}[31m[rank4]:\u{1b}[0m {}", new(0, "2.00 GiB"));
    assert_eq!(found(&MessageLog::read(&colours)), [(Some(4), 1, 1, true)]);
}

#[test]
fn times_tell_which_rank_failed_first() {
    let text = |first: &str, second: &str| {
        format!("{first} [rank3]: {}\n{second} [rank1]: {}\n", new(3, "2.00 GiB"), new(1, "2.00 GiB"))
    };
    let first = |text: &str| {
        let log = MessageLog::read(text);
        let explained = log.explained();
        log.first.map(|first| (first.rank, first.time, first.told_by, explained))
    };
    let told = |rank, time: &str, by, place| Some((Some(rank), time.to_owned(), by, Some(place)));
    let times = text("2024-05-01 12:00:01,500", "2024-05-01 12:00:01,499");
    assert_eq!(first(&times), told(1, "2024-05-01 12:00:01,499", ToldBy::Times, 1));
    // Equal times, times of different forms, and times around midnight tell nothing.
    assert_eq!(first(&text("12:00:01", "12:00:01")), None);
    assert_eq!(first(&text("12:00:01", "2024-05-01 12:00:00")), None);
    assert_eq!(first(&text("23:59:59", "00:00:01")), None);
    assert_eq!(first(&new(3, "2.00 GiB")), None);
    let summary = "Root Cause (first observed failure):\n[0]:\n  time      : 2024-05-01_12:00:02\n  host      : node0\n  rank      : 1 \
                   (local_rank: 1)\n  exitcode  : 1 (pid: 712)\n";
    let text = format!("[rank3]: {}\n[rank1]: {}\n{summary}", new(3, "2.00 GiB"), new(1, "2.00 GiB"));
    assert_eq!(first(&text), told(1, "2024-05-01_12:00:02", ToldBy::Launcher, 1));
}

#[test]
fn what_is_left_of_a_message_is_read() {
    let whole = new(2, "4.88 GiB");
    let cut = |text: &str| {
        let log = MessageLog::read(text);
        match log.messages.first().map(|one| one.message.clone()) {
            Some(ReadMessage::Partial(partial)) => Some((log.messages.len(), partial)),
            _ => None,
        }
    };
    let (count, end) = cut(&whole[..whole.find("Of the").expect("words")]).expect("a part");
    assert_eq!((count, end.missing()), (1, vec!["what PyTorch had allocated", "what PyTorch had reserved"]));
    let (_, beginning) = cut(&whole[whole.find("of which").expect("words")..]).expect("a part");
    assert_eq!(beginning.missing(), ["the size that was tried", "the device", "the device's memory"]);
    assert!(beginning.is_limit_known() && beginning.is_private_known());
    // Only the mark is cut.
    let log = MessageLog::read(whole.trim_start_matches("CUDA out of"));
    assert!(matches!(log.messages[0].message, ReadMessage::Complete(_)), "{log:?}");
    // A cut repetition of a whole message is no message of its own.
    let log = MessageLog::read(&format!("[rank2]: {whole}\n{}\n", &whole[..90]));
    assert_eq!(found(&log), [(Some(2), 1, 2, true)]);
    // Another rank's is.
    let log = MessageLog::read(&format!("[rank2]: {whole}\n[rank3]: {}\n", &whole[..90]));
    assert_eq!(found(&log), [(Some(2), 1, 1, true), (Some(3), 2, 1, false)]);
}

#[test]
fn without_a_message_the_error_says_what_there_is() {
    let log = MessageLog::read("WARNING: out of memory. Retrying");
    assert_eq!((log.messages.len(), log.error, log.foreign), (0, MessageError::NotFound, None));
    let log = MessageLog::read(&rejection_message(Bytes(5)));
    assert!(matches!(log.error, MessageError::NoFigures(_)), "{log:?}");
    let log = MessageLog::read("CUDA out of memory. Tried to allocate 4.8 cups");
    assert!(matches!(log.error, MessageError::Expected { .. }) && log.messages.is_empty(), "{log:?}");
    let log = MessageLog::read("RESOURCE_EXHAUSTED: Out of memory while trying to\nallocate 8589934592 bytes.");
    let foreign = log.foreign.expect("JAX");
    assert_eq!((foreign.framework, foreign.wanted_bytes), (Framework::Jax, Some(8 << 30)));
    assert_eq!(MessageLog::read("").error, MessageError::NotFound);
}

/// As many lines, ranks and beginnings of messages as a log may have are read in linear time.
#[test]
fn a_long_log_takes_linear_time() {
    let mut text = String::new();
    for rank in 0..10_000 {
        text.push_str(&format!("[rank{rank}]: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of\n"));
        text.push_str(&format!("[rank{}]: step\n", rank % 7));
    }
    let before = std::time::Instant::now();
    assert_eq!(MessageLog::read(&text).messages.len(), 10_000);
    assert!(before.elapsed().as_secs() < 60, "{:?}", before.elapsed());
}

proptest! {
    /// What a single message says does not depend on the log around it.
    #[test]
    fn a_message_alone_is_read_as_before(device in 0..9_u32, whole in 0..99_u32, cut in 0..400_usize, is_old in any::<bool>()) {
        let size = format!("{whole}.25 GiB");
        let text = if is_old { old(device, &size) } else { new(device, &size) };
        let part = &text[..cut.min(text.len())];
        let log = MessageLog::read(part);
        match OutOfMemoryMessage::parse(part) {
            Ok(message) => prop_assert_eq!(&log.messages[0].message, &ReadMessage::Complete(message)),
            Err(_) => {
                let is_partial = log.messages.iter().all(|one| matches!(one.message, ReadMessage::Partial(_)));
                prop_assert!(is_partial, "{:?}", log);
                prop_assert_eq!(log.messages.is_empty(), cut <= text.find("Tried").unwrap_or(0));
            }
        }
    }

    #[test]
    fn no_text_makes_it_panic(
        lines in proptest::collection::vec("(\\[rank[0-9]{1,12}\\]: |[0-9:. -]{0,24}|\u{1b}\\[3)?(CUDA )?(out of memory\\. )?(Tried to allocate )?[0-9.]{0,24} ?(GiB|MiB|bytes)?.{0,40}", 0..6),
    ) {
        let log = MessageLog::read(&lines.join("\n"));
        prop_assert!(log.explained().is_none_or(|place| place < log.messages.len()));
    }
}

#[test]
fn a_message_cut_before_its_first_figure_is_one_of_its_rank() {
    let cuts =
        ["Tried", "Tried to", "Tried to allocate", "Tried to allocate 2", "Tried to allocate 2.0", "Tried to allocate 2.00 Gi"];
    for cut in cuts {
        let alone = MessageLog::read(&format!("torch.OutOfMemoryError: CUDA out of memory. {cut}"));
        assert!(matches!(&alone.messages[..], [one] if one.message == ReadMessage::Partial(PartialMessage::default())), "{cut}");
        let log = MessageLog::read(&format!(
            "[rank3]: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.10 GiB\n[rank6]: CUDA out of \
             memory. {cut}\n[rank7]: NCCL timeout"
        ));
        assert_eq!(
            log.messages.iter().map(|one| (one.rank, one.line)).collect::<Vec<_>>(),
            [(Some(3), 1), (Some(6), 2)],
            "{cut}"
        );
    }
    for other in ["Tried to find more", "Tried to allocate more than 1EB memory.", "Tried to allocate 2.00 XB"] {
        let log = MessageLog::read(&format!("CUDA out of memory. {other}"));
        assert_eq!(log.messages, [], "{other}");
    }
}

#[test]
fn messages_of_other_frameworks_beside_those_of_pytorch_are_named() {
    let log = MessageLog::read(
        "[rank3]: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.10 GiB\n[rank9]: \
         jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.\n[rank9]: \
         RESOURCE_EXHAUSTED: Out of memory again",
    );
    let message = ForeignMessage { framework: Framework::Jax, wanted_bytes: Some(16 << 30) };
    assert_eq!(log.others, [OtherMessage { rank: Some(9), line: 2, message }]);
    assert_eq!((log.messages.len(), log.foreign), (1, None));
}
