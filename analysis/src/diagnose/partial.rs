//! What a message says of which a part is missing.
//!
//! A verdict is reached only if no missing figure could change it; each of them may have any value that the rest allows.

use parkade_recording::message::{PartialMessage, Size};

use super::message::{Certainty, MessageVerdict, exceeds, smallest_block};

/// What the parts of a message say.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PartialDiagnosis {
    /// The parts.
    pub message: PartialMessage,
    /// Live bytes: what the message calls allocated, less the free bytes of private pools; `None` if either may be missing.
    pub live: Option<Size>,
    /// Why the request failed; [`MessageVerdict::Undecided`] if what is missing may decide.
    pub verdict: MessageVerdict,
    /// Whether the device had more free than was tried, so that it was a limit or something else that refused.
    pub device_had_room: bool,
}

/// Diagnoses an out-of-memory error from what is left of its message.
#[must_use]
pub fn diagnose_partial(message: PartialMessage) -> PartialDiagnosis {
    let PartialMessage { tried, total, free, limit, allocated, reserved, unallocated, private_pools, .. } = message;
    let private = private_pools.unwrap_or(Size { bytes: 0, within: 0 });
    let live = allocated.filter(|_| message.is_private_known()).map(|allocated| allocated.minus(private));
    let compare = |left: Option<Size>, right: Option<Size>| Some(Certainty::at_least(left?, right?));
    let is_enough = |left, right| compare(left, right) == Some(Certainty::Yes);
    let sum = |left: Option<Size>, right: Option<Size>| Some(left?.plus(right?));

    let device_had_room = is_enough(free, tried);
    let limit_had_room = limit.is_none() || is_enough(limit.zip(reserved).map(|(limit, reserved)| limit.minus(reserved)), tried);
    // What the process could have, if all that it depends on is there.
    let reachable = sum(reserved, free).filter(|_| message.is_limit_known());
    let available = reachable.map(|reachable| limit.filter(|limit| limit.bytes < reachable.bytes).unwrap_or(reachable));
    // Each of these is at least what it could have.
    let bounds = [total, limit, available];
    let least = |tried| Size { bytes: smallest_block(tried), within: 0 };
    let live_least = live.unwrap_or(Size { bytes: 0, within: 0 });
    let is_beyond = |request| exceeds(bounds, live_least, request);

    let verdict = if device_had_room && message.is_limit_known() && limit_had_room {
        MessageVerdict::DeviceHadRoom
    } else if tried.is_some_and(|tried| is_beyond(tried) && is_beyond(least(tried))) {
        MessageVerdict::Capacity
    } else if free.is_none() || (device_had_room && !message.is_limit_known()) {
        MessageVerdict::Undecided
    } else if is_enough(unallocated, tried) || is_enough(available, sum(allocated, tried)) {
        MessageVerdict::Fragmentation
    } else if is_enough(available, sum(live, tried)) {
        MessageVerdict::PrivatePools
    } else {
        MessageVerdict::Undecided
    };
    PartialDiagnosis { live, verdict, device_had_room, message }
}

#[cfg(test)]
mod tests {
    use parkade_recording::message::{MessageLog, ReadMessage};
    use proptest::prelude::*;

    use super::super::message::diagnose_message;
    use super::*;

    fn verdict(text: &str) -> Option<MessageVerdict> {
        let log = MessageLog::read(text);
        match log.messages.first()?.message.clone() {
            ReadMessage::Complete(message) => Some(diagnose_message(message).verdict),
            ReadMessage::Partial(message) => Some(diagnose_partial(message).verdict),
        }
    }

    #[test]
    fn a_verdict_is_reached_as_soon_as_nothing_can_change_it() {
        let new =
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 24.00 GiB of which 1.00 GiB is free. ";
        assert_eq!(verdict(new), Some(MessageVerdict::Undecided));
        assert_eq!(verdict(&new.replace("2.00 GiB", "25.00 GiB")), Some(MessageVerdict::Capacity), "no device has that");
        let old =
            "CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 24.00 GiB total capacity; 20.00 GiB already allocated; ";
        assert_eq!(verdict(old), Some(MessageVerdict::Undecided));
        assert_eq!(verdict(&old.replace("20.00", "22.50")), Some(MessageVerdict::Capacity));
        // The message may name a limit in the part that is missing.
        let room = diagnose_partial(match &MessageLog::read(&new.replace("1.00 GiB", "9.00 GiB")).messages[0].message {
            ReadMessage::Partial(message) => message.clone(),
            ReadMessage::Complete(_) => panic!("it is cut"),
        });
        assert_eq!((room.verdict, room.device_had_room), (MessageVerdict::Undecided, true));
    }

    /// Sizes in hundredths of a GiB: tried, total, allocated, private, unallocated, free and limit.
    fn figures() -> impl Strategy<Value = ([u64; 6], Option<u64>)> {
        let most = || 1..3000_u64;
        ((most(), most(), most(), most(), most(), most()), proptest::option::of(most())).prop_map(
            |((tried, allocated, private, unallocated, free, others), limit)| {
                let private = private.min(allocated) * (tried % 2);
                let limit = limit.map(|more| allocated + unallocated + more);
                ([tried, allocated + unallocated + free + others, allocated, private, unallocated, free], limit)
            },
        )
    }

    fn texts([tried, total, allocated, private, unallocated, free]: [u64; 6], limit: Option<u64>) -> [String; 2] {
        let gib = |hundredths: u64| format!("{}.{:02} GiB", hundredths / 100, hundredths % 100);
        let allowed = limit.map_or(String::new(), |limit| format!("{} allowed; ", gib(limit)));
        let pools = if private == 0 {
            String::new()
        } else {
            format!("with {} allocated in private pools (e.g., CUDA Graphs), ", gib(private))
        };
        let (reserved, [tried, total, allocated, unallocated, free]) =
            (gib(allocated + unallocated), [tried, total, allocated, unallocated, free].map(gib));
        [
            format!(
                "CUDA out of memory. Tried to allocate {tried}. GPU 0 has a total capacity of {total} of which {free} is free. Process 7 \
                 has 1.00 GiB memory in use. {allowed}Of the allocated memory {allocated} is allocated by PyTorch, {pools}and \
                 {unallocated} is reserved by PyTorch but unallocated."
            ),
            format!(
                "CUDA out of memory. Tried to allocate {tried} (GPU 0; {total} total capacity; {allocated} already allocated; {free} free; \
                 {allowed}{reserved} reserved in total by PyTorch)"
            ),
        ]
    }

    #[test]
    fn more_than_the_device_has_is_more_whatever_the_rounded_rest_says() {
        // Live bytes are 2.73 GiB less 2.73 GiB, each rounded: what is free and reserved decides only up to the last digit.
        let [whole, _] = texts([1273, 1271, 273, 273, 880, 117], None);
        let part = &whole[..whole.find(" of which").expect("the free bytes")];
        assert_eq!([verdict(&whole), verdict(part)], [Some(MessageVerdict::Capacity); 2]);
    }

    proptest! {
        /// Wherever a message is cut, what is left leads to the whole message's verdict or to none.
        #[test]
        fn a_cut_message_never_contradicts_the_whole((sizes, limit) in figures(), places in proptest::collection::vec(0..400_usize, 8)) {
            for text in texts(sizes, limit) {
                let whole = verdict(&text).expect("a message");
                for cut in places.iter().map(|place| place % text.len()) {
                    for part in [&text[..cut], &text[cut..]] {
                        let found = verdict(part);
                        let is_right = found.is_none_or(|found| found == whole || found == MessageVerdict::Undecided);
                        prop_assert!(is_right, "{:?} is not {:?}: {:?}", found, whole, part);
                    }
                }
            }
        }
    }
}
