//! Snapshots as JSON: `json.dumps(torch.cuda.memory._snapshot())`, which has the same dicts and lists as a pickle.
//!
//! The values are stored in the same tables as a pickle's values, so all later steps are the same. Memory is bounded in the
//! same way as for a pickle, and the parser limits the nesting depth.

use std::collections::HashMap;
use std::fmt;

use serde::de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};

use crate::pickle::{Loaded, Objects, Texts, Value, memory_bound};

/// The error for JSON that is damaged or cut short. Displayed as one line.
#[derive(Debug, thiserror::Error)]
#[error("the JSON is damaged or cut short: {cause}")]
pub struct JsonError {
    /// The parser's error, with the line and the column; part of the message.
    pub(crate) cause: serde_json::Error,
}

impl JsonError {
    /// Returns whether the JSON is valid up to its end but ends too early.
    pub(crate) fn is_cut_short(&self) -> bool {
        self.cause.is_eof()
    }
}

/// The protocol of Python's own pickles of snapshots, to which the JSON corresponds.
const PROTOCOL: u8 = 4;

/// Reads JSON.
///
/// # Errors
/// Returns [`JsonError`] if the bytes are not JSON, are nested too deeply, or would take too much memory.
pub(crate) fn load(bytes: &[u8]) -> Result<Loaded, JsonError> {
    let mut tables = Tables {
        objects: Objects::for_input(0),
        texts: Texts::default(),
        known: HashMap::new(),
        limit: memory_bound(bytes.len()),
    };
    let mut parser = serde_json::Deserializer::from_slice(bytes);
    let root = Node(&mut tables).deserialize(&mut parser).and_then(|root| parser.end().map(|()| root));
    let root = root.map_err(|cause| JsonError { cause })?;
    let Tables { objects, texts, .. } = tables;
    Ok(Loaded { root, objects, texts, length: bytes.len() as u64, protocol: PROTOCOL, earlier: 0 })
}

/// The maximum length, in bytes, of strings that are stored only once however often they occur, and the maximum number of
/// those strings.
const LONGEST_KNOWN: usize = 256;
const MOST_KNOWN: usize = 1 << 16;

/// The values read so far.
struct Tables {
    objects: Objects,
    texts: Texts,
    /// The strings that have occurred so far; keys and names can occur a million times.
    known: HashMap<Box<str>, Value>,
    /// The maximum memory that may be in use, in bytes.
    limit: u64,
}

impl Tables {
    fn text(&mut self, text: &str) -> Value {
        if let Some(&value) = self.known.get(text) {
            return value;
        }
        let value = self.texts.copy(text.as_bytes());
        if text.len() <= LONGEST_KNOWN && self.known.len() < MOST_KNOWN {
            self.known.insert(text.into(), value);
        }
        value
    }

    fn check<E: serde::de::Error>(&self) -> Result<(), E> {
        let held = (self.objects.held() + self.texts.held()) as u64;
        if held > self.limit || self.objects.full() { Err(E::custom("it would take too much memory")) } else { Ok(()) }
    }
}

/// The next value to read.
struct Node<'t>(&'t mut Tables);

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Value;

    fn deserialize<D: serde::Deserializer<'de>>(self, parser: D) -> Result<Value, D::Error> {
        parser.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::NONE)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::boolean(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(self.0.objects.wide_int(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(self.0.objects.wide_int(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(self.0.objects.float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(self.0.text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut all = Vec::new();
        while let Some(item) = items.next_element_seed(Node(&mut *self.0))? {
            all.push(item);
        }
        let list = self.0.objects.new_list();
        self.0.objects.extend_list(list, &all);
        self.0.check()?;
        Ok(list)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut pairs: A) -> Result<Value, A::Error> {
        let mut all = Vec::new();
        while let Some(key) = pairs.next_key_seed(Node(&mut *self.0))? {
            all.extend([key, pairs.next_value_seed(Node(&mut *self.0))?]);
        }
        let dict = self.0.objects.new_dict();
        if !self.0.objects.extend_dict(dict, &all, &self.0.texts) {
            return Err(A::Error::custom("it has too many keys"));
        }
        self.0.check()?;
        Ok(dict)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pickle::Dict;

    #[test]
    fn values_are_what_python_would_have_pickled() {
        let loaded = load(br#"{"a": [18446744073709551615, -3, 0.5, true, null], "b": "a"}"#).expect("JSON");
        let Some(Dict::Shaped { shape, values }) = loaded.objects.as_dict(loaded.root) else { panic!("a dict") };
        let keys: Vec<_> = loaded.objects.shapes.keys(shape).into_iter().map(|key| loaded.texts.get(key)).collect();
        assert_eq!(keys, [Some(b"a".as_slice()), Some(b"b".as_slice())]);
        let items = loaded.objects.as_items(values[0]).expect("a list");
        let numbers: Vec<_> = items.iter().map(|&item| loaded.objects.as_int(item)).collect();
        assert_eq!(numbers, [Some(i128::from(u64::MAX)), Some(-3), None, None, None]);
        assert_eq!(loaded.objects.as_float(items[2]), Some(0.5));
        assert_eq!(items[3..], [Value::boolean(true), Value::NONE]);
        assert_eq!(loaded.texts.get(values[1]), Some(b"a".as_slice()));
    }

    #[test]
    fn bad_json_is_an_error() {
        for bad in ["", "{", "[1, 2", "{\"a\"}", "[1] 2", "\"\u{0}\"", &"[".repeat(100_000)] {
            let line = load(bad.as_bytes()).err().expect("an error").to_string();
            assert!(!line.contains('\n') && line.starts_with("the JSON is damaged"), "{line}");
        }
        // Many small lists take more memory than their text does, but within bounds.
        let many = format!("[{}[]]", "[],".repeat(3_600_000));
        assert!(load(many.as_bytes()).err().expect("an error").to_string().contains("too much memory"));
    }
}
