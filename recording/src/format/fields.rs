//! Looking up the keys of dicts: once for each shape that such dicts have, not once for each dict.

use std::collections::BTreeMap;

use super::error::FormatProblem;
use super::names;
use crate::dated_keys::{FileFields, Part};
use crate::pickle::{Dict, Loaded, Value};

/// The most keys that a dict in a snapshot may have; PyTorch 2.11 writes at most 12.
const MAX_KEYS: usize = 64;
/// The position of a key that a shape does not have.
const NOWHERE: u8 = u8::MAX;

/// The keys of one kind of dict, and their positions in each shape seen so far.
pub(crate) struct Fields<const N: usize> {
    /// The keys that are looked up.
    names: [&'static str; N],
    /// Keys that are known but not needed.
    ignored: &'static [&'static str],
    /// By the number of the shape.
    places: Vec<Option<Places<N>>>,
    /// Unknown keys of dicts without a shape.
    unknown: BTreeMap<String, u64>,
    /// The part of the snapshot that these dicts are, if it has keys that came and went with releases.
    part: Option<Part>,
    /// Which of those the dicts without a shape have.
    loose: FileFields,
}

/// The positions of the keys in dicts of one shape.
struct Places<const N: usize> {
    places: [u8; N],
    /// How many dicts had this shape.
    uses: u64,
    unknown: Vec<String>,
}

impl<const N: usize> Fields<N> {
    pub(crate) fn new(names: [&'static str; N], ignored: &'static [&'static str]) -> Self {
        Fields { names, ignored, places: Vec::new(), unknown: BTreeMap::new(), part: None, loose: FileFields::NONE }
    }

    /// The same for a part of the snapshot of which it is to be known which dated keys it has.
    pub(crate) fn of(part: Part, names: [&'static str; N], ignored: &'static [&'static str]) -> Self {
        Fields { part: Some(part), ..Fields::new(names, ignored) }
    }

    /// The values of the keys; [`Value::ABSENT`] for those that the dict does not have.
    ///
    /// # Errors
    /// If the value is not a dict, or has too many keys. `key` is the value's name in messages.
    #[inline]
    pub(crate) fn look_up(&mut self, loaded: &Loaded, dict: Value, key: &'static str) -> Result<[Value; N], FormatProblem> {
        match loaded.objects.as_dict(dict) {
            Some(Dict::Shaped { shape, values }) => {
                let places = self.places_of(loaded, shape)?;
                places.uses += 1;
                Ok(places.places.map(|place| values.get(usize::from(place)).copied().unwrap_or(Value::ABSENT)))
            }
            Some(Dict::Loose(pairs)) => self.look_up_loose(loaded, pairs),
            None => Err(FormatProblem::WrongType { key, expected: "dict", found: loaded.type_name(dict) }),
        }
    }

    #[inline]
    fn places_of(&mut self, loaded: &Loaded, shape: u32) -> Result<&mut Places<N>, FormatProblem> {
        let index = shape as usize;
        if !matches!(self.places.get(index), Some(Some(_))) {
            self.learn(loaded, shape)?;
        }
        match self.places.get_mut(index) {
            Some(Some(places)) => Ok(places),
            _ => Err(FormatProblem::TooManyKeys { limit: MAX_KEYS }),
        }
    }

    #[cold]
    fn learn(&mut self, loaded: &Loaded, shape: u32) -> Result<(), FormatProblem> {
        let keys = loaded.objects.shapes.keys(shape);
        if keys.len() > MAX_KEYS {
            return Err(FormatProblem::TooManyKeys { limit: MAX_KEYS });
        }
        let mut learned = Places { places: [NOWHERE; N], uses: 0, unknown: Vec::new() };
        for (place, &key) in keys.iter().enumerate() {
            let text = loaded.texts.get(key).unwrap_or(b"");
            match self.number(text) {
                Some(number) => learned.places[number] = place as u8,
                None if self.is_ignored(text) => {}
                None => learned.unknown.push(names::shown(text)),
            }
        }
        let index = shape as usize;
        if self.places.len() <= index {
            self.places.resize_with(index + 1, || None);
        }
        self.places[index] = Some(learned);
        Ok(())
    }

    fn look_up_loose(&mut self, loaded: &Loaded, pairs: &[(Value, Value)]) -> Result<[Value; N], FormatProblem> {
        if pairs.len() > MAX_KEYS {
            return Err(FormatProblem::TooManyKeys { limit: MAX_KEYS });
        }
        let mut found = [Value::ABSENT; N];
        for &(key, value) in pairs {
            let text = loaded.texts.get(key);
            if let (Some(part), Some(text)) = (self.part, text) {
                self.loose.note(part, text);
            }
            match text.and_then(|text| self.number(text)) {
                Some(number) => found[number] = value,
                None if text.is_some_and(|text| self.is_ignored(text)) => {}
                None => {
                    let name = text.map_or_else(|| loaded.type_name(key).to_owned(), names::shown);
                    names::count(&mut self.unknown, name, 1);
                }
            }
        }
        Ok(found)
    }

    /// Which dated keys the dicts had.
    pub(crate) fn dated(&self, loaded: &Loaded) -> FileFields {
        let mut dated = self.loose;
        let Some(part) = self.part else { return dated };
        for (shape, places) in self.places.iter().enumerate() {
            if places.as_ref().is_some_and(|places| places.uses > 0) {
                let keys = loaded.objects.shapes.keys(shape as u32);
                keys.iter().for_each(|&key| dated.note(part, loaded.texts.get(key).unwrap_or(b"")));
            }
        }
        dated
    }

    fn number(&self, text: &[u8]) -> Option<usize> {
        self.names.iter().position(|name| name.as_bytes() == text)
    }

    fn is_ignored(&self, text: &[u8]) -> bool {
        self.ignored.iter().any(|name| name.as_bytes() == text)
    }

    /// The unknown keys that were seen, and how often.
    pub(crate) fn into_unknown(self) -> BTreeMap<String, u64> {
        let mut unknown = self.unknown;
        for places in self.places.into_iter().flatten() {
            for name in places.unknown {
                names::count(&mut unknown, name, places.uses);
            }
        }
        unknown
    }
}
