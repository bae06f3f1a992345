//! The parameters of a policy: their declarations, and the values that a name gives them.
//!
//! A declaration is the only place that states what a parameter accepts. The parser, its error messages and the lists
//! that commands print all read it.

use alloc::borrow::Cow;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use parkade::units::Bytes;

/// A parameter of a policy.
#[derive(Clone, Copy, Debug)]
pub struct Parameter {
    /// The key before the `=`.
    pub key: &'static str,
    /// A description of the parameter.
    pub says: &'static str,
    /// The default value, which names omit; empty if the default is not a value that can be written.
    pub usual: &'static str,
    /// The values that it accepts.
    pub accepts: Accepts,
}

/// The values that a parameter accepts.
#[derive(Clone, Copy, Debug)]
pub enum Accepts {
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A whole number in a range.
    Number {
        /// The smallest number.
        least: u64,
        /// The largest number.
        most: u64,
    },
    /// A number of bytes in a range, written with its unit: 512B, 64KiB, 20MiB, 1GiB, 2TiB.
    Size {
        /// The smallest size.
        least: Bytes,
        /// The largest size.
        most: Bytes,
        /// The word for [`Bytes::MAX`], if there is one.
        unlimited: Option<&'static str>,
    },
    /// A text that the policy checks; this describes it. Texts in [brackets](Parameter::in_brackets) may contain commas.
    Text(&'static str),
}

impl fmt::Display for Accepts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Accepts::Choice(values) => write!(f, "one of {}", values.join(", ")),
            Accepts::Number { least, most } => write!(f, "a whole number from {least} to {most}"),
            Accepts::Size { least, most, unlimited } => {
                write!(f, "a size from {} to {} with its unit", size_text(*least), size_text(*most))?;
                unlimited.map_or(Ok(()), |word| write!(f, ", or {word}"))
            }
            Accepts::Text(form) => f.write_str(form),
        }
    }
}

impl Parameter {
    /// Declares a parameter that is one of several words.
    #[must_use]
    pub const fn choice(
        key: &'static str,
        says: &'static str,
        usual: &'static str,
        values: &'static [&'static str],
    ) -> Parameter {
        Parameter { key, says, usual, accepts: Accepts::Choice(values) }
    }

    /// Declares a parameter that is a whole number.
    #[must_use]
    pub const fn number(key: &'static str, says: &'static str, usual: &'static str, least: u64, most: u64) -> Parameter {
        Parameter { key, says, usual, accepts: Accepts::Number { least, most } }
    }

    /// Declares a parameter that is a number of bytes.
    #[must_use]
    pub const fn size(key: &'static str, says: &'static str, usual: &'static str, least: Bytes, most: Bytes) -> Parameter {
        Parameter { key, says, usual, accepts: Accepts::Size { least, most, unlimited: None } }
    }

    /// Declares a parameter that is a text; `form` describes the accepted texts, and [`Entry::checked_by`] checks them.
    ///
    /// [`Entry::checked_by`]: crate::Entry::checked_by
    #[must_use]
    pub const fn text(key: &'static str, says: &'static str, usual: &'static str, form: &'static str) -> Parameter {
        Parameter { key, says, usual, accepts: Accepts::Text(form) }
    }

    /// Returns the same declaration of a size, which also accepts this word for "no limit" ([`Bytes::MAX`]).
    #[must_use]
    pub const fn or_unlimited(self, word: &'static str) -> Parameter {
        match self.accepts {
            Accepts::Size { least, most, .. } => {
                Parameter { accepts: Accepts::Size { least, most, unlimited: Some(word) }, ..self }
            }
            _ => self,
        }
    }

    /// The values to choose from; empty if there are too many to list.
    #[must_use]
    pub const fn choices(&self) -> &'static [&'static str] {
        match self.accepts {
            Accepts::Choice(values) => values,
            _ => &[],
        }
    }

    /// The values at the borders of what it accepts: each word of a choice, the least and the greatest number or size, and the
    /// word for "no limit". Empty for a text.
    #[must_use]
    pub fn borders(&self) -> Vec<String> {
        match self.accepts {
            Accepts::Choice(values) => values.iter().map(ToString::to_string).collect(),
            Accepts::Number { least, most } => alloc::vec![least.to_string(), most.to_string()],
            Accepts::Size { least, most, unlimited } => {
                [least, most].map(size_text).into_iter().chain(unlimited.map(ToString::to_string)).collect()
            }
            Accepts::Text(_) => Vec::new(),
        }
    }

    /// Whether a name contains the value in brackets, because it is PyTorch's settings, which contain commas.
    #[must_use]
    pub fn in_brackets(&self) -> bool {
        self.key == "settings"
    }

    /// The value in the form that names use.
    ///
    /// # Errors
    /// The value is not accepted. The text names the parameter, the value and the accepted values.
    pub fn checked(&self, value: &str) -> Result<String, String> {
        let refused = |is: &str| format!("{is}; {} is {}", self.key, self.accepts);
        let is_missing = value.is_empty() && !matches!(self.accepts, Accepts::Text(_));
        let found = match self.accepts {
            _ if is_missing => return Err(refused(&format!("{} has no value", self.key))),
            Accepts::Choice(values) => values.contains(&value).then(|| value.to_string()),
            Accepts::Number { least, most } => {
                digits(value).filter(|number| (least..=most).contains(number)).map(|number| number.to_string())
            }
            Accepts::Size { unlimited: Some(word), .. } if value == word => Some(word.to_string()),
            Accepts::Size { least, most, .. } => size(value).filter(|bytes| (least..=most).contains(bytes)).map(size_text),
            Accepts::Text(_) => Some(value.to_string()),
        };
        found.ok_or_else(|| refused(&format!("{}={value} is not possible", self.key)))
    }

    /// The value as it stands in a name.
    #[must_use]
    pub fn written(&self, value: &str) -> String {
        if self.in_brackets() { format!("[{value}]") } else { value.to_string() }
    }
}

/// Units of sizes, the largest first.
const UNITS: [(&str, u32); 5] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10), ("B", 0)];

/// A size in the largest unit that divides it.
fn size_text(bytes: Bytes) -> String {
    let fits = |&&(_, shift): &&(&str, u32)| bytes.0 != 0 && bytes.0.trailing_zeros() >= shift;
    let (unit, shift) = UNITS.iter().find(fits).unwrap_or(&("B", 0));
    format!("{}{unit}", bytes.0 >> shift)
}

/// The bytes of a size, such as 20MiB.
fn size(text: &str) -> Option<Bytes> {
    let (unit, shift) = UNITS.iter().find(|(unit, _)| text.ends_with(unit))?;
    let number = digits(text.strip_suffix(unit)?)?;
    number.checked_mul(1 << shift).map(Bytes)
}

/// A number that consists of digits only.
fn digits(text: &str) -> Option<u64> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

/// The values of all parameters of a policy, including the defaults.
#[derive(Clone, Debug)]
pub struct Values {
    parameters: &'static [Parameter],
    /// The values that differ from the defaults, in the order of the declarations.
    given: Cow<'static, [Given]>,
}

/// A key and its value.
pub(crate) type Given = (&'static str, Cow<'static, str>);

impl Values {
    pub(crate) const fn new(parameters: &'static [Parameter], given: Cow<'static, [Given]>) -> Values {
        Values { parameters, given }
    }

    /// The value of a parameter.
    ///
    /// # Panics
    /// The policy does not declare a parameter with this key.
    #[must_use]
    pub fn text(&self, key: &str) -> &str {
        let usual = self.parameters.iter().find(|parameter| parameter.key == key).map(|parameter| parameter.usual);
        let given = self.given.iter().find(|(known, _)| *known == key).map(|(_, value)| &**value);
        given.or(usual).unwrap_or_else(|| panic!("the policy declares no parameter {key:?}"))
    }

    /// The value of a parameter that is a whole number.
    ///
    /// # Panics
    /// The policy does not declare a number with this key.
    #[must_use]
    pub fn number(&self, key: &str) -> u64 {
        digits(self.text(key)).unwrap_or_else(|| panic!("the policy's parameter {key:?} is not a number"))
    }

    /// The value of a parameter that is a number of bytes.
    ///
    /// # Panics
    /// The policy does not declare a size with this key.
    #[must_use]
    pub fn bytes(&self, key: &str) -> Bytes {
        let text = self.text(key);
        let is_unlimited = |parameter: &&Parameter| {
            parameter.key == key && matches!(parameter.accepts, Accepts::Size { unlimited: Some(word), .. } if word == text)
        };
        let unlimited = self.parameters.iter().find(is_unlimited).map(|_| Bytes::MAX);
        unlimited.or_else(|| size(text)).unwrap_or_else(|| panic!("the policy's parameter {key:?} is not a size"))
    }

    /// The values that differ from the defaults.
    #[must_use]
    pub fn given(&self) -> &[(&'static str, Cow<'static, str>)] {
        &self.given
    }

    /// Replaces a value; the default is left out.
    pub(crate) fn set(&mut self, key: &str, value: Option<String>) {
        let mut given = self.given.to_vec();
        given.retain(|(known, _)| *known != key);
        for parameter in self.parameters.iter().filter(|parameter| parameter.key == key) {
            given.extend(
                value.as_ref().filter(|value| *value != parameter.usual).map(|value| (parameter.key, Cow::Owned(value.clone()))),
            );
        }
        given.sort_by_key(|(key, _)| self.parameters.iter().position(|parameter| parameter.key == *key));
        self.given = Cow::Owned(given);
    }

    /// The values as in a name, each as `key` followed by `joint` and the value.
    pub(crate) fn written<'a>(&'a self, joint: &'a str) -> impl Iterator<Item = String> + 'a {
        let declared = |key: &str| self.parameters.iter().find(|parameter| parameter.key == key);
        self.given.iter().map(move |(key, value)| {
            let value = declared(key).map_or_else(|| value.to_string(), |parameter| parameter.written(value));
            format!("{key}{joint}{value}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WASTE: Parameter = Parameter::size("waste", "", "128MiB", Bytes(512), Bytes::mib(1024)).or_unlimited("all");
    const SHARE: Parameter = Parameter::number("share", "", "50", 0, 100);

    #[test]
    fn a_value_has_one_form() {
        for (written, value) in
            [("1024MiB", "1GiB"), ("64MiB", "64MiB"), ("1536KiB", "1536KiB"), ("512B", "512B"), ("all", "all"), ("03MiB", "3MiB")]
        {
            assert_eq!(WASTE.checked(written).as_deref(), Ok(value), "{written}");
        }
        assert_eq!(SHARE.checked("007").as_deref(), Ok("7"));
    }

    #[test]
    fn the_borders_of_a_parameter_are_values_that_it_accepts() {
        const WORD: Parameter = Parameter::choice("word", "", "a", &["a", "b", "c"]);
        const TEXT: Parameter = Parameter::text("text", "", "", "any text");
        let borders: [&[&str]; 4] = [&["512B", "1GiB", "all"], &["0", "100"], &["a", "b", "c"], &[]];
        for (parameter, expected) in [WASTE, SHARE, WORD, TEXT].iter().zip(borders) {
            assert_eq!(parameter.borders(), expected, "{}", parameter.key);
            assert!(expected.iter().all(|value| parameter.checked(value).as_deref() == Ok(*value)), "{}", parameter.key);
        }
    }

    #[test]
    fn a_refusal_names_the_parameter_the_value_and_the_range() {
        let waste = "waste is a size from 512B to 1GiB with its unit, or all";
        for text in ["511B", "2GiB", "64", "-1MiB", "MiB", "64mib", "+1MiB", "99999999999999999999MiB", "16777216TiB"] {
            assert_eq!(WASTE.checked(text), Err(format!("waste={text} is not possible; {waste}")));
        }
        assert_eq!(WASTE.checked(""), Err(format!("waste has no value; {waste}")));
        let share = "share=101 is not possible; share is a whole number from 0 to 100";
        assert_eq!(SHARE.checked("101").as_ref().map_err(String::as_str), Err(share));
        assert!(["-1", "1.5", "1e1", "", "50%"].iter().all(|text| SHARE.checked(text).is_err()));
    }

    #[test]
    fn values_are_the_given_ones_and_the_defaults() {
        const BOTH: &[Parameter] = &[WASTE, SHARE];
        let mut values = Values::new(BOTH, Cow::Borrowed(&[]));
        assert_eq!((values.bytes("waste"), values.number("share")), (Bytes::mib(128), 50));
        values.set("share", Some("7".to_string()));
        values.set("waste", Some("all".to_string()));
        assert_eq!((values.bytes("waste"), values.number("share")), (Bytes::MAX, 7));
        assert_eq!(values.written("=").collect::<Vec<_>>(), ["waste=all", "share=7"]);
        values.set("waste", Some("128MiB".to_string()));
        assert_eq!(values.given().len(), 1, "the default is not given");
    }
}
