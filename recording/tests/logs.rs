//! Logs with messages that occur several times.

use parkade_recording::message::MessageLog;

/// A message that occurs again counts as one, with the first time that is known.
#[test]
fn a_repeated_message_has_its_first_time() {
    let message = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of \
                   which 1.30 GiB is free.";
    let time = |times: [&str; 3]| {
        let log = MessageLog::read(&times.map(|time| format!("{time} {message}\n")).concat());
        assert_eq!((log.messages.len(), log.messages[0].times), (1, 3), "{times:?}");
        log.messages[0].time.as_ref().map(|time| time.text.clone())
    };
    assert_eq!(time(["12:00:01", "12:00:05", "12:00:03"]).as_deref(), Some("12:00:01"));
    assert_eq!(time(["[worker]", "12:00:05", "12:00:03"]).as_deref(), Some("12:00:05"));
}
