//! Reads the requests for a GPU's memory from a trace of PyTorch's profiler, which vLLM writes too: the events named `[memory]`
//! of its JSON, which `profile_memory=True` records (`MemoryUsageReporter` in c10/core/Allocator.h and `Result::name` in
//! torch/csrc/profiler/collection.cpp).
//!
//! The JSON is read as a stream; only the memory events are kept.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::Read;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::trace_error::TraceError;

/// The type of PyTorch's device `cpu` (`c10::DeviceType::CPU`).
const CPU: i64 = 0;

/// What the profiled program does. Requests are numbered, since addresses are used again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Request {
    Allocate { number: u64, bytes: u64 },
    Free { number: u64 },
}

/// Whether a file that begins with these bytes is a profiler's trace.
pub(super) fn is_profile(head: &[u8]) -> bool {
    let has = |key: &[u8]| head.windows(key.len()).any(|window| window == key);
    head.trim_ascii_start().starts_with(b"{") && (has(b"\"traceEvents\"") || has(b"\"schemaVersion\""))
}

/// Reads the requests of each device, by its number.
///
/// A buffer that is freed but was requested before the profile began is requested at its beginning. What else was allocated
/// then is one buffer that is never freed.
///
/// # Errors
/// The text is not JSON, a memory event lacks a field, or there is no memory event of a device.
pub(super) fn read(from: impl Read) -> Result<BTreeMap<i64, Vec<Request>>, TraceError> {
    let mut text = serde_json::Deserializer::from_reader(from);
    let read = text.deserialize_map(Profile).and_then(|changes| text.end().map(|()| changes));
    let changes = read.map_err(|error| {
        if error.is_io() {
            return TraceError::Io(error.into());
        }
        TraceError::Line { line: error.line(), problem: error.to_string() }
    })?;
    let mut devices: BTreeMap<(i64, i64), Vec<Change>> = BTreeMap::new();
    for change in changes.into_iter().filter(|change| change.device_type != CPU && change.bytes != 0) {
        devices.entry((change.device, change.device_type)).or_default().push(change);
    }
    if devices.is_empty() {
        return Err(TraceError::NoMemoryEvents);
    }
    Ok(devices.into_iter().map(|((device, _), changes)| (device, requests(changes))).collect())
}

/// A memory event: an allocation, or a free with a negative size.
#[derive(Clone, Copy, Debug)]
struct Change {
    us: f64,
    address: i64,
    bytes: i64,
    /// The bytes that are allocated after it.
    allocated: Option<i64>,
    device: i64,
    device_type: i64,
}

/// The requests of one device, in order.
fn requests(mut changes: Vec<Change>) -> Vec<Request> {
    // Threads write their events one after another; the order of the file decides between equal times.
    changes.sort_by(|a, b| a.us.total_cmp(&b.us));
    let earlier = earlier(&changes);
    let mut requests: Vec<Request> = Vec::new();
    let mut live: BTreeMap<i64, u64> = BTreeMap::new();
    let mut numbers = 0..;
    let mut allocate = |requests: &mut Vec<Request>, bytes: i64| {
        let number = numbers.next().unwrap_or(u64::MAX);
        requests.push(Request::Allocate { number, bytes: bytes.unsigned_abs() });
        number
    };
    for &(address, bytes) in &earlier {
        live.insert(address, allocate(&mut requests, bytes));
    }
    let begun = changes.first().and_then(|first| first.allocated?.checked_sub(first.bytes)).unwrap_or(0);
    let known = earlier.iter().fold(0i64, |sum, &(_, bytes)| sum.saturating_add(bytes));
    let unnamed = begun.saturating_sub(known);
    if unnamed > 0 {
        allocate(&mut requests, unnamed);
    }
    for change in &changes {
        // A request at an address in use shows that the profile lacks a free.
        if let Some(number) = live.remove(&change.address) {
            requests.push(Request::Free { number });
        }
        if change.bytes > 0 {
            live.insert(change.address, allocate(&mut requests, change.bytes));
        }
    }
    requests
}

/// The buffers that are freed although they were not requested, with their sizes: those from before the profile began.
fn earlier(changes: &[Change]) -> Vec<(i64, i64)> {
    let mut seen = BTreeSet::new();
    let first = changes.iter().filter(|change| seen.insert(change.address));
    first.filter(|change| change.bytes < 0).map(|change| (change.address, change.bytes.saturating_neg())).collect()
}

/// Reads the profile's object, of which only one key is needed.
struct Profile;

impl<'de> Visitor<'de> for Profile {
    type Value = Vec<Change>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a profiler's trace")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vec<Change>, A::Error> {
        let mut changes = Vec::new();
        while let Some(key) = map.next_key::<String>()? {
            if key == "traceEvents" {
                map.next_value_seed(Events(&mut changes))?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(changes)
    }
}

/// Reads the list of events and keeps those that concern memory.
struct Events<'a>(&'a mut Vec<Change>);

impl<'de> DeserializeSeed<'de> for Events<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Events<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of events")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut events: A) -> Result<(), A::Error> {
        while let Some(event) = events.next_element::<Event>()? {
            if event.name.as_deref() == Some("[memory]") {
                self.0.push(event.change().map_err(A::Error::custom)?);
            }
        }
        Ok(())
    }
}

/// An event of any kind.
#[derive(Deserialize)]
struct Event {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    ts: Option<Number>,
    #[serde(default)]
    args: Option<Arguments>,
}

/// The arguments of a memory event. Other events may have arguments of the same names.
#[derive(Default, Deserialize)]
struct Arguments {
    #[serde(rename = "Addr")]
    address: Option<Number>,
    #[serde(rename = "Bytes")]
    bytes: Option<Number>,
    #[serde(rename = "Total Allocated")]
    allocated: Option<Number>,
    #[serde(rename = "Device Id")]
    device: Option<Number>,
    #[serde(rename = "Device Type")]
    device_type: Option<Number>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(untagged)]
enum Number {
    Whole(i64),
    Real(f64),
    Other(IgnoredAny),
}

impl Event {
    fn change(&self) -> Result<Change, String> {
        let Arguments { address, bytes, allocated, device, device_type } = self.args.as_ref().unwrap_or(&NONE);
        let needs = |name: &str| format!("an event [memory] needs a number {name:?}");
        let whole = |number: &Option<Number>, name: &str| number.and_then(Number::whole).ok_or_else(|| needs(name));
        Ok(Change {
            us: self.ts.and_then(Number::real).ok_or_else(|| needs("ts"))?,
            address: whole(address, "Addr")?,
            bytes: whole(bytes, "Bytes")?,
            allocated: allocated.and_then(Number::whole),
            device: whole(device, "Device Id")?,
            device_type: whole(device_type, "Device Type")?,
        })
    }
}

const NONE: Arguments = Arguments { address: None, bytes: None, allocated: None, device: None, device_type: None };

impl Number {
    fn whole(self) -> Option<i64> {
        if let Number::Whole(number) = self { Some(number) } else { None }
    }

    fn real(self) -> Option<f64> {
        match self {
            Number::Whole(number) => Some(number as f64),
            Number::Real(number) => Some(number),
            Number::Other(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A memory event of device 0.
    fn event(us: f64, address: u64, bytes: i64, allocated: u64) -> String {
        format!(
            r#"{{"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 7, "tid": 9, "ts": {us}, "args":
                {{"Total Reserved": 4096, "Total Allocated": {allocated}, "Bytes": {bytes}, "Addr": {address}, "Device Id": 0,
                  "Device Type": 1, "Ev Idx": 3}}}}"#
        )
    }

    fn profile(events: &[String]) -> String {
        let other = r#"{"ph": "X", "name": "aten::add", "ts": 1, "dur": 2, "args": {"Bytes": "none", "Addr": [1, {"a": 2}]}}"#;
        let all: Vec<&str> = [other].into_iter().chain(events.iter().map(String::as_str)).collect();
        format!(
            "{{\n\"schemaVersion\": 1, \"deviceProperties\": [{{\"id\": 0}}], \"traceEvents\": [{}], \"x\": 1}}\n",
            all.join(",")
        )
    }

    fn of(text: &str) -> Result<BTreeMap<i64, Vec<Request>>, String> {
        read(text.as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn requests_come_in_the_order_of_their_times() {
        let cpu = event(0.0, 5, 64, 64).replace("\"Device Type\": 1", "\"Device Type\": 0").replace("Id\": 0", "Id\": -1");
        let text = profile(&[cpu, event(2.5, 8, 512, 1536), event(1.5, 4, 1024, 1024), event(3.5, 4, -1024, 512)]);
        let [first, second] = [(0, 1024), (1, 512)].map(|(number, bytes)| Request::Allocate { number, bytes });
        assert_eq!(of(&text), Ok(BTreeMap::from([(0, vec![first, second, Request::Free { number: 0 }])])));
        assert!(is_profile(text.as_bytes()) && !is_profile(b"{\"op\": \"allocate\", \"id\": 1, \"bytes\": 3}"));
    }

    #[test]
    fn buffers_from_before_the_profile_are_requested_at_its_beginning() {
        // 5,000 bytes are allocated before: 2,048 are freed later, and the address is used again.
        let text = profile(&[event(1.0, 4, 512, 5512), event(2.0, 8, -2048, 3464), event(3.0, 8, 1024, 4488)]);
        let found = of(&text).expect("a profile").remove(&0).expect("device 0");
        let [freed, rest, own, last] = [2048, 2952, 512, 1024];
        let bytes = |request: &Request| if let Request::Allocate { bytes, .. } = request { *bytes } else { 0 };
        assert_eq!(found.iter().map(bytes).collect::<Vec<_>>(), [freed, rest, own, 0, last]);
        assert_eq!(found[3], Request::Free { number: 0 });
    }

    #[test]
    fn a_free_that_the_profile_lacks_comes_before_the_next_request_at_its_address() {
        let text = profile(&[event(1.0, 4, 512, 512), event(2.0, 4, 1024, 1024), event(3.0, 4, -1024, 0), event(4.0, 4, -7, 0)]);
        let [first, second] = [(0, 512), (1, 1024)].map(|(number, bytes)| Request::Allocate { number, bytes });
        let expected = vec![first, Request::Free { number: 0 }, second, Request::Free { number: 1 }];
        assert_eq!(of(&text).map(|mut devices| devices.remove(&0)), Ok(Some(expected)));
    }

    #[test]
    fn each_device_has_its_own_requests() {
        let other = event(2.0, 4, 1024, 1024).replace("\"Device Id\": 0", "\"Device Id\": 3");
        let found = of(&profile(&[event(1.0, 4, 512, 512), other])).expect("a profile");
        let [first, second] = [512, 1024].map(|bytes| vec![Request::Allocate { number: 0, bytes }]);
        assert_eq!(found, BTreeMap::from([(0, first), (3, second)]));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let without = |field: &str| profile(&[event(1.0, 4, 512, 512).replace(&format!("{field:?}"), "\"other\"")]);
        for (text, says) in [
            (profile(&[]), "without requests for GPU memory: record it with profile_memory=True"),
            ("{\"traceEvents\": []}".to_owned(), "without requests for GPU memory"),
            (without("Addr"), "line 4: an event [memory] needs a number \"Addr\""),
            (without("ts"), "an event [memory] needs a number \"ts\""),
            (profile(&[event(1.0, 4, 512, 512).replace("4096", "NaN")]), "line 3: expected value"),
            ("{\"traceEvents\": 3}".to_owned(), "line 1: invalid type"),
            (profile(&[event(1.0, 4, 512, 512)])[..300].to_owned(), "EOF while parsing"),
            (profile(&[event(1.0, 4, 512, 512)]) + "{", "trailing characters"),
            ("[".repeat(100_000), "invalid type"),
            (format!("{{\"traceEvents\": {}", "[".repeat(100_000)), "line 1: "),
        ] {
            let found = of(&text).expect_err(says);
            assert!(found.contains(says), "{says}: {found}");
        }
        let extreme = profile(&[event(1.0, 4, i64::MIN, 0), event(2.0, 4, i64::MAX, 0), event(9e15, 5, i64::MAX, 0)]);
        assert_eq!(of(&extreme).expect("a profile")[&0].len(), 4);
    }
}
