//! Splits a settings string into tokens and reads values from them (spec 8.2).
//!
//! `,`, `:`, `[` and `]` are tokens. White space is dropped everywhere, even inside words. Like PyTorch,
//! nothing here checks which separator stands between two tokens, only that there is one.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::dialect::AssertLines;
use super::error::{ErrorKind, SettingsError};
use super::numbers::{self, NumberError};

/// The tokens of a settings string.
pub(super) struct Tokens {
    tokens: Vec<String>,
    pub(super) asserts: AssertLines,
}

impl Tokens {
    pub(super) fn new(text: &str, asserts: AssertLines) -> Tokens {
        // C's white space; other Unicode blanks are part of words.
        Tokens { tokens: split(text, |character| matches!(character, ' ' | '\t'..='\r')), asserts }
    }

    pub(super) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// The token, if there is one.
    pub(super) fn get(&self, index: usize) -> Option<&str> {
        self.tokens.get(index).map(String::as_str)
    }

    /// The token; an error if there is none.
    pub(super) fn checked(&self, index: usize) -> Result<&str, SettingsError> {
        self.get(index).ok_or_else(|| missing_token(self.asserts, self.asserts.checked_index))
    }

    /// As [`Tokens::checked`], with the source line of PyTorch's other such access in the message.
    pub(super) fn direct(&self, index: usize) -> Result<&str, SettingsError> {
        self.get(index).ok_or_else(|| missing_token(self.asserts, self.asserts.direct_index))
    }

    /// The index of the value of the key at `key_index`; an error if there is no separator before it.
    pub(super) fn value_index(&self, key_index: usize) -> Result<usize, SettingsError> {
        self.checked(key_index + 1)?;
        Ok(key_index + 2)
    }

    pub(super) fn unsigned(&self, index: usize) -> Result<u64, SettingsError> {
        numbers::unsigned(self.checked(index)?).map_err(|error| number_error(error, "stoull"))
    }

    pub(super) fn double(&self, index: usize) -> Result<f64, SettingsError> {
        numbers::double(self.checked(index)?).map_err(|error| number_error(error, "stod"))
    }

    pub(super) fn boolean(&self, index: usize) -> Result<bool, SettingsError> {
        match self.checked(index)? {
            "True" => Ok(true),
            "False" => Ok(false),
            other => Err(SettingsError::value(format!(
                "Expected 'True' or 'False' at index {index} in ConfigTokenizer but got '{other}'"
            ))),
        }
    }

    /// The index of the last token of the value of the key at `key_index`: one token, or a list up to its `]`.
    pub(super) fn skip_key(&self, key_index: usize) -> Result<usize, SettingsError> {
        let value = self.value_index(key_index)?;
        if self.checked(value)? != "[" {
            return Ok(value);
        }
        let rest = self.tokens.iter().skip(value + 1);
        match rest.into_iter().position(|token| token == "]") {
            Some(offset) => Ok(value + 1 + offset),
            None => Err(unclosed_list("config_.size()", "AllocatorConfig.h", self.asserts, self.asserts.skipped_list)),
        }
    }

    /// The index of the next key after a value that ends at `last`. Skips the separator between them,
    /// whichever it is.
    pub(super) fn next_key(&self, last: usize) -> usize {
        if last + 1 < self.len() { last + 2 } else { last + 1 }
    }
}

/// The tokens of a text: separators, and words without the blanks in them.
pub(super) fn split(text: &str, is_blank: impl Fn(char) -> bool) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut word = String::new();
    for character in text.chars() {
        match character {
            ',' | ':' | '[' | ']' => {
                if !word.is_empty() {
                    tokens.push(core::mem::take(&mut word));
                }
                tokens.push(String::from(character));
            }
            blank if is_blank(blank) => {}
            other => word.push(other),
        }
    }
    if !word.is_empty() {
        tokens.push(word);
    }
    tokens
}

pub(super) fn number_error(error: NumberError, function: &str) -> SettingsError {
    let kind = match error {
        NumberError::NotANumber => ErrorKind::InvalidNumber,
        NumberError::OutOfRange => ErrorKind::NumberOutOfRange,
    };
    SettingsError::new(kind, function)
}

fn missing_token(asserts: AssertLines, line: u32) -> SettingsError {
    internal_assert(asserts, "i < config_.size()", ("core/AllocatorConfig.h", line), "Index out of bounds in ConfigTokenizer")
}

/// A list without its `]`, found by the loop in `file`.
pub(super) fn unclosed_list(size: &str, file: &str, asserts: AssertLines, line: u32) -> SettingsError {
    let text = "Expected closing bracket ']' in ConfigTokenizer but reached end of config";
    internal_assert(asserts, &format!("i < {size}"), (&format!("core/{file}"), line), text)
}

/// The message of a failed internal assert.
pub(super) fn internal_assert(asserts: AssertLines, condition: &str, (file, line): (&str, u32), text: &str) -> SettingsError {
    SettingsError::internal(format!(
        "{condition} INTERNAL ASSERT FAILED at \"{}/c10/{file}\":{line}, please report a bug to PyTorch. {text}",
        asserts.root
    ))
}
