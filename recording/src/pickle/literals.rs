//! Decoding literals: the little-endian integers of protocol 2 and the text forms of protocols 0 and 1.
//!
//! Source: `load_int`, `load_long`, `load_string`, `load_unicode` of CPython's `Lib/pickle.py`.

use super::error::PickleProblem;
use super::objects::Objects;
use super::value::Value;

/// A little-endian two's complement integer of any length (LONG1, LONG4). The value of one over 128 bits is not kept.
pub(crate) fn integer_from_bytes(bytes: &[u8], objects: &mut Objects) -> Value {
    let negative = bytes.last().is_some_and(|&byte| byte >= 0x80);
    let fill: u8 = if negative { 0xff } else { 0 };
    let (low, high) = bytes.split_at(bytes.len().min(16));
    let mut wide = [fill; 16];
    wide[..low.len()].copy_from_slice(low);
    let value = i128::from_le_bytes(wide);
    if high.iter().all(|&byte| byte == fill) && (value < 0) == negative { objects.wide_int(value) } else { Value::HUGE_INT }
}

/// The line of INT (`42`, and `00` / `01` for booleans) or LONG (`42L`).
pub(crate) fn integer_from_line(line: &[u8], objects: &mut Objects) -> Result<Value, PickleProblem> {
    match line {
        b"00" => return Ok(Value::boolean(false)),
        b"01" => return Ok(Value::boolean(true)),
        _ => {}
    }
    let text = std::str::from_utf8(line).map_err(|_| PickleProblem::BadNumber)?.trim();
    let text = text.strip_suffix('L').unwrap_or(text);
    if let Ok(value) = text.parse::<i128>() {
        return Ok(objects.wide_int(value));
    }
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(Value::HUGE_INT);
    }
    Err(PickleProblem::BadNumber)
}

/// The line of FLOAT, in Python's notation.
pub(crate) fn float_from_line(line: &[u8], objects: &mut Objects) -> Result<Value, PickleProblem> {
    let text = std::str::from_utf8(line).map_err(|_| PickleProblem::BadNumber)?;
    text.trim().parse().map(|value| objects.float(value)).map_err(|_| PickleProblem::BadNumber)
}

/// The line of GET or PUT.
pub(crate) fn memo_index(line: &[u8]) -> Result<u64, PickleProblem> {
    let text = std::str::from_utf8(line).map_err(|_| PickleProblem::BadNumber)?;
    text.trim().parse().map_err(|_| PickleProblem::BadNumber)
}

/// The line of STRING: a quoted Python 2 string with backslash escapes.
pub(crate) fn quoted(line: &[u8]) -> Result<Vec<u8>, PickleProblem> {
    let line = line.trim_ascii();
    let inner = match line {
        [b'\'', inner @ .., b'\''] | [b'"', inner @ .., b'"'] => inner,
        _ => return Err(PickleProblem::BadText),
    };
    let mut text = Vec::with_capacity(inner.len());
    let mut rest = inner;
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first != b'\\' {
            text.push(*first);
            continue;
        }
        let [escape, tail @ ..] = rest else {
            return Err(PickleProblem::BadText);
        };
        rest = tail;
        match escape {
            b'n' => text.push(b'\n'),
            b't' => text.push(b'\t'),
            b'r' => text.push(b'\r'),
            b'\\' | b'\'' | b'"' => text.push(*escape),
            b'x' => text.push(hex(&mut rest, 2)? as u8),
            b'0'..=b'7' => text.push(octal(*escape, &mut rest)),
            other => text.extend_from_slice(&[b'\\', *other]),
        }
    }
    Ok(text)
}

/// The line of UNICODE: Python's "raw-unicode-escape", Latin-1 with `\uXXXX` and `\UXXXXXXXX`.
pub(crate) fn raw_unicode_escape(line: &[u8]) -> Result<Vec<u8>, PickleProblem> {
    let mut text = Vec::with_capacity(line.len());
    let mut rest = line;
    let mut buffer = [0; 4];
    while let [first, tail @ ..] = rest {
        rest = tail;
        let digits = match (*first, rest.first()) {
            (b'\\', Some(b'u')) => 4,
            (b'\\', Some(b'U')) => 8,
            _ => {
                text.extend_from_slice(char::from(*first).encode_utf8(&mut buffer).as_bytes());
                continue;
            }
        };
        rest = rest.get(1..).unwrap_or(&[]);
        // A lone surrogate (part of an undecodable file name) has no UTF-8; it becomes the replacement character.
        let code = hex(&mut rest, digits)?;
        let character = char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
        text.extend_from_slice(character.encode_utf8(&mut buffer).as_bytes());
    }
    Ok(text)
}

fn hex(rest: &mut &[u8], digits: usize) -> Result<u32, PickleProblem> {
    let (head, tail) = rest.split_at_checked(digits).ok_or(PickleProblem::BadText)?;
    *rest = tail;
    head.iter().try_fold(0, |code: u32, &byte| {
        let digit = char::from(byte).to_digit(16).ok_or(PickleProblem::BadText)?;
        Ok(code << 4 | digit)
    })
}

/// Up to three octal digits, of which the first was read already.
fn octal(first: u8, rest: &mut &[u8]) -> u8 {
    let mut code = u32::from(first - b'0');
    for _ in 0..2 {
        match rest {
            [digit @ b'0'..=b'7', tail @ ..] => {
                code = code << 3 | u32::from(digit - b'0');
                *rest = tail;
            }
            _ => break,
        }
    }
    code as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_of_every_width() {
        let mut objects = Objects::for_input(0);
        let mut decode = |bytes: &[u8]| {
            let value = integer_from_bytes(bytes, &mut objects);
            objects.as_int(value)
        };
        assert_eq!(decode(&[]), Some(0));
        assert_eq!(decode(&[0xff]), Some(-1));
        assert_eq!(decode(&[0xff, 0]), Some(255));
        assert_eq!(decode(&u64::MAX.to_le_bytes()), Some(-1));
        assert_eq!(decode(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0]), Some(i128::from(u64::MAX)));
        assert_eq!(decode(&i128::MIN.to_le_bytes()), Some(i128::MIN));
        assert_eq!(decode(&[0xff; 40]), Some(-1));
        assert_eq!(decode(&[1; 17]), None);
        let mut sixteen_ones_and_sign = [0xff; 17];
        sixteen_ones_and_sign[16] = 0;
        assert_eq!(decode(&sixteen_ones_and_sign), None);
    }

    #[test]
    fn text_forms() {
        let mut objects = Objects::for_input(0);
        let mut decode = |line: &[u8]| integer_from_line(line, &mut objects).map(|value| objects.as_int(value));
        assert_eq!(decode(b"-5"), Ok(Some(-5)));
        assert_eq!(decode(b"18446744073709551615L"), Ok(Some(i128::from(u64::MAX))));
        assert_eq!(decode(&[b'9'; 200]), Ok(None));
        assert_eq!(decode(b"5x"), Err(PickleProblem::BadNumber));
        assert_eq!(decode(b""), Err(PickleProblem::BadNumber));
        assert_eq!(quoted(br"'a\x41\n\'\101'"), Ok(b"aA\n'A".to_vec()));
        assert_eq!(quoted(b"'abc"), Err(PickleProblem::BadText));
        assert_eq!(quoted(b"'"), Err(PickleProblem::BadText));
        assert_eq!(quoted(br"'\x4'"), Err(PickleProblem::BadText));
        assert_eq!(raw_unicode_escape(b"a\\u20ac\xe9\\n"), Ok("a\u{20ac}\u{e9}\\n".into()));
        assert_eq!(raw_unicode_escape(b"\\u20"), Err(PickleProblem::BadText));
    }
}
