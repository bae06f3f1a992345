//! A policy's declaration, a policy by name, and the parts of names and of lists of names.
//!
//! The catalogue has a declaration for each of its policies. A program that has policies of its own declares them in
//! the same way. In names, brackets keep their contents together.

use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use parkade::policy::Policy;

use crate::parameter::{Accepts, Given, Parameter, Values};

/// The declaration of a policy.
///
/// ```
/// use parkade::policy::PyTorch;
/// use parkade::settings::Settings;
/// use parkade_policies::{Entry, Parameter, Policies};
///
/// const MINE: Entry = Entry::new("mine", "PyTorch's policy with a larger split size", "our own", |values| {
///     let settings = Settings { max_split_bytes: values.bytes("split").get(), ..Settings::default() };
///     Box::new(PyTorch::new(settings))
/// })
/// .with_parameters(&[Parameter::size("split", "blocks above this size are not split", "1GiB", SMALLEST, LARGEST)]);
/// # use parkade::units::Bytes;
/// # const SMALLEST: Bytes = Bytes::mib(20);
/// # const LARGEST: Bytes = Bytes::mib(4096);
///
/// let known = Policies::with(&[MINE]).expect("valid declarations");
/// assert_eq!(known.named("mine:split=64MiB")?.name, "mine:split=64MiB");
/// # Ok::<(), parkade_policies::Unknown>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The policy's name.
    pub name: &'static str,
    /// A short description of the policy.
    pub says: &'static str,
    /// The paper or code that defines its rules.
    pub source: &'static str,
    /// The parameters, in the order in which they appear in names.
    pub parameters: &'static [Parameter],
    /// Whether the policy searches for a free block again after it has waited for events.
    pub looks_after_waiting: bool,
    make: fn(&Values) -> Box<dyn Policy + Send>,
    keeps_memory: fn(&Values) -> bool,
    check: fn(&mut Values) -> Result<(), String>,
}

impl Entry {
    /// Declares a policy without parameters. `make` creates a policy without state from the values of its parameters.
    #[must_use]
    pub const fn new(
        name: &'static str,
        says: &'static str,
        source: &'static str,
        make: fn(&Values) -> Box<dyn Policy + Send>,
    ) -> Entry {
        Entry { name, says, source, parameters: &[], looks_after_waiting: true, make, keeps_memory: |_| false, check: |_| Ok(()) }
    }

    /// Returns the same declaration with these parameters.
    #[must_use]
    pub const fn with_parameters(self, parameters: &'static [Parameter]) -> Entry {
        Entry { parameters, ..self }
    }

    /// Returns the same declaration, with the values for which the policy's rules forbid releasing memory before the
    /// device is out of memory.
    #[must_use]
    pub const fn keeping_memory_if(self, keeps_memory: fn(&Values) -> bool) -> Entry {
        Entry { keeps_memory, ..self }
    }

    /// Returns the same declaration of a policy that does not search for a free block again after waiting.
    #[must_use]
    pub const fn not_looking_after_waiting(self) -> Entry {
        Entry { looks_after_waiting: false, ..self }
    }

    /// Returns the same declaration with a check that concerns several values, or a text. An error says what is wrong
    /// and what is accepted.
    #[must_use]
    pub const fn checked_by(self, check: fn(&mut Values) -> Result<(), String>) -> Entry {
        Entry { check, ..self }
    }

    /// The values that a text (`key=value;key=value`) gives.
    pub(crate) fn parse(&'static self, text: &str) -> Result<Values, String> {
        let mut values = Values::new(self.parameters, Cow::Borrowed(&[]));
        let mut seen: Vec<&str> = Vec::new();
        for (key, value) in self.parts(text)? {
            let Some(parameter) = self.parameters.iter().find(|parameter| parameter.key == key) else {
                let keys: Vec<&str> = self.parameters.iter().map(|parameter| parameter.key).collect();
                return Err(format!("{} has no parameter {key:?}; it has {}", self.name, keys.join(", ")));
            };
            if seen.contains(&parameter.key) {
                return Err(format!("the parameter {key} is given twice"));
            }
            seen.push(parameter.key);
            if cut(value, '/').nth(1).is_some() {
                return Err(format!(
                    "{key}={value} is several values, which only parkade sweep -p and parkade conform --policy take"
                ));
            }
            values.set(parameter.key, Some(parameter.checked(without_brackets(value))?));
        }
        (self.check)(&mut values)?;
        Ok(values)
    }

    /// The keys and values in a text, as they are written.
    fn parts<'a>(&self, text: &'a str) -> Result<Vec<(&'a str, &'a str)>, String> {
        if self.parameters.is_empty() {
            return Err(format!("{} has no parameters", self.name));
        }
        if !closes_brackets(text) {
            return Err("its brackets do not match: settings=[key:value,key:value]".to_string());
        }
        let parts = cut(text, ';').map(str::trim).filter(|part| !part.is_empty());
        Ok(parts.map(|part| part.split_once('=').map_or((part, ""), |(key, value)| (key.trim(), value.trim()))).collect())
    }

    /// The texts of a grid: every combination of the values that slashes separate. The last parameter changes first.
    pub(crate) fn combinations(&self, text: &str) -> Result<Vec<String>, String> {
        let mut texts = alloc::vec![String::new()];
        for (key, value) in self.parts(text)? {
            let values: Vec<&str> = cut(value, '/').map(str::trim).collect();
            if texts.len() * values.len() > MOST_COMBINATIONS {
                return Err(format!("its values have more than {MOST_COMBINATIONS} combinations: use fewer values"));
            }
            let with = |text: &String| values.iter().map(|value| format!("{text}{key}={value};")).collect::<Vec<_>>();
            texts = texts.iter().flat_map(with).collect();
        }
        Ok(texts)
    }

    /// Checks a declaration, whose parameters must accept their defaults.
    pub(crate) fn check(&'static self) -> Result<(), String> {
        let refused = |why: &str| Err(format!("the policy {:?} {why}", self.name));
        if !is_word(self.name) || self.name == "all" {
            return refused("needs a different name: lower-case letters, digits and hyphens");
        }
        for (place, parameter) in self.parameters.iter().enumerate() {
            let Parameter { key, usual, .. } = *parameter;
            if !is_word(key) || self.parameters[..place].iter().any(|other| other.key == key) {
                return refused(&format!("has two parameters {key:?}, or this key is not of lower-case letters, digits and _"));
            }
            if !matches!(parameter.accepts, Accepts::Text(_)) && parameter.checked(usual).as_deref() != Ok(usual) {
                return refused(&format!("has a parameter {key} whose default {usual:?} is not {}", parameter.accepts));
            }
        }
        (self.check)(&mut Values::new(self.parameters, Cow::Borrowed(&[])))
            .or_else(|why| refused(&format!("has wrong defaults: {why}")))
    }
}

/// The maximum number of policies in a grid.
const MOST_COMBINATIONS: usize = 10_000;

/// Whether a text can be part of a policy's name.
fn is_word(text: &str) -> bool {
    let is_valid = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_.".contains(&byte);
    !text.is_empty() && text.bytes().all(is_valid)
}

/// A value without the brackets that keep it together.
fn without_brackets(value: &str) -> &str {
    value.strip_prefix('[').and_then(|value| value.strip_suffix(']')).unwrap_or(value).trim()
}

/// A policy by name.
///
/// ```
/// # use parkade_policies::named;
/// assert_eq!(named("bfc")?.own_parameters()[0].key, "kind");
/// assert!(named("bfc:kind=xla")?.own_parameters().is_empty());
/// # Ok::<(), parkade_policies::Unknown>(())
/// ```
#[derive(Clone, Debug)]
pub struct Named {
    /// The name with its parameters, in the order of their declarations and without those that have no effect.
    pub name: Cow<'static, str>,
    /// A short description of the policy.
    pub says: Cow<'static, str>,
    /// The paper or code that defines its rules.
    pub source: &'static str,
    /// The policy's declaration.
    pub entry: &'static Entry,
    /// The values of its parameters.
    pub values: Values,
}

impl Named {
    /// A policy with its defaults.
    pub(crate) const fn plain(entry: &'static Entry) -> Named {
        Named::listed(entry, entry.name, entry.says, entry.source, &[])
    }

    /// A policy with parameters that has its own description.
    pub(crate) const fn listed(
        entry: &'static Entry,
        name: &'static str,
        says: &'static str,
        source: &'static str,
        given: &'static [Given],
    ) -> Named {
        let values = Values::new(entry.parameters, Cow::Borrowed(given));
        Named { name: Cow::Borrowed(name), says: Cow::Borrowed(says), source, entry, values }
    }

    /// A policy with these values.
    pub(crate) fn given(entry: &'static Entry, values: Values) -> Named {
        if values.given().is_empty() {
            return Named::plain(entry);
        }
        let name = format!("{}:{}", entry.name, values.written("=").collect::<Vec<_>>().join(";"));
        let says = format!("as {}, with {}", entry.name, values.written(" ").collect::<Vec<_>>().join(" and "));
        Named { name: Cow::Owned(name), says: Cow::Owned(says), source: entry.source, entry, values }
    }

    /// The parameters that its name takes after a colon; empty if the name already has some.
    #[must_use]
    pub fn own_parameters(&self) -> &'static [Parameter] {
        if self.name == self.entry.name { self.entry.parameters } else { &[] }
    }

    /// Creates a policy without state.
    #[must_use]
    pub fn make(&self) -> Box<dyn Policy + Send> {
        (self.entry.make)(&self.values)
    }

    /// Whether the policy's rules forbid releasing memory before the device is out of memory.
    #[must_use]
    pub fn keeps_memory(&self) -> bool {
        (self.entry.keeps_memory)(&self.values)
    }
}

/// The items of a comma-separated list, without surrounding spaces and without empty items. A comma inside brackets does
/// not separate items.
///
/// ```
/// let list = "bfc, pytorch:settings=[max_split_size_mb:20,expandable_segments:True]";
/// let items: Vec<&str> = parkade_policies::items(list).collect();
/// assert_eq!(items, ["bfc", "pytorch:settings=[max_split_size_mb:20,expandable_segments:True]"]);
/// ```
pub fn items(list: &str) -> impl Iterator<Item = &str> {
    cut(list, ',').map(str::trim).filter(|item| !item.is_empty())
}

/// Splits a text at the separators that are outside brackets.
pub(crate) fn cut(text: &str, separator: char) -> impl Iterator<Item = &str> {
    let mut depth = 0_usize;
    text.split(move |letter| {
        match letter {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && letter == separator
    })
}

/// Whether every opening bracket has a closing one, and vice versa.
pub(crate) fn closes_brackets(text: &str) -> bool {
    let mut depth = 0_i64;
    let is_open = text.chars().all(|letter| {
        depth += i64::from(letter == '[') - i64::from(letter == ']');
        depth >= 0
    });
    is_open && depth == 0
}

/// The base name of a policy, which determines its parameters: the part before the colon.
#[must_use]
pub fn base(name: &str) -> &str {
    name.split_once(':').map_or(name, |(base, _)| base)
}
