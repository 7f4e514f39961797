// SPDX-License-Identifier: MIT

//! Characters to tokens, one line at a time.
//!
//! A comment starts with `;` or `//` and ends with the line. A word is letters, digits, `_` and
//! `.`, and starts with no digit; it may be a mnemonic, a directive (with a leading dot), a
//! register or a name. A number is decimal, `0x` or `0b`, with `_` between digits, or a float,
//! which always ends with `f`. A text stands between quotes, which it cannot contain.

use crate::error::{LineError, Span};

/// What a token is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Kind {
    /// A name, a register, an operation or a directive.
    Word(String),
    /// An integer without a sign.
    Integer(u64),
    /// A float without a sign.
    Float(f32),
    /// What stands between quotes.
    Text(String),
    /// A punctuation mark or operator: `, : [ ] ( ) + - * @ << >>`.
    Mark(&'static str),
}

/// A token and where it stands.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Token {
    /// What it is, with its text or value.
    pub(crate) kind: Kind,
    /// Where it stands in its line.
    pub(crate) span: Span,
}

/// All marks; the longer ones first.
const MARKS: [&str; 12] = ["<<", ">>", ",", ":", "[", "]", "(", ")", "+", "-", "*", "@"];

/// The tokens of a line.
///
/// # Errors
///
/// The first character that starts no token, or a number that is malformed or out of range.
pub(crate) fn tokens(line: &str) -> Result<Vec<Token>, LineError> {
    let chars: Vec<char> = line.chars().collect();
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(&c) = chars.get(at) {
        let start = at;
        let kind = if c.is_whitespace() {
            at += 1;
            continue;
        } else if c == ';' || (c == '/' && chars.get(at + 1) == Some(&'/')) {
            break;
        } else if c.is_ascii_digit() {
            at = number_end(&chars, at);
            let text: String = chars[start..at].iter().collect();
            number(&text, Span { start, end: at })?
        } else if c == '"' {
            at += 1;
            let Some(length) = chars[at..].iter().position(|c| *c == '"') else {
                let span = Span {
                    start,
                    end: chars.len(),
                };
                return Err(LineError::new(span, "the text has no end"));
            };
            let text = chars[at..at + length].iter().collect();
            at += length + 1;
            Kind::Text(text)
        } else if is_word(c) {
            at += chars[at..].iter().take_while(|c| is_word(**c)).count();
            Kind::Word(chars[start..at].iter().collect())
        } else if let Some(mark) = MARKS.into_iter().find(|m| starts_with(&chars[at..], m)) {
            at += mark.len();
            Kind::Mark(mark)
        } else {
            let span = Span {
                start,
                end: start + 1,
            };
            return Err(LineError::new(
                span,
                format!("the character {c:?} has no meaning here"),
            ));
        };
        tokens.push(Token {
            kind,
            span: Span { start, end: at },
        });
    }
    Ok(tokens)
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '.'
}

fn starts_with(chars: &[char], mark: &str) -> bool {
    mark.chars()
        .enumerate()
        .all(|(i, m)| chars.get(i) == Some(&m))
}

/// The end of the number that starts at `at`: all that a word may have, and the sign of a decimal
/// exponent.
fn number_end(chars: &[char], start: usize) -> usize {
    let prefixed = matches!(chars.get(start + 1), Some('x' | 'b'));
    let mut at = start;
    while let Some(&c) = chars.get(at) {
        let exponent_sign =
            !prefixed && at > start && matches!(chars[at - 1], 'e' | 'E') && matches!(c, '+' | '-');
        if !is_word(c) && !exponent_sign {
            break;
        }
        at += 1;
    }
    at
}

fn number(text: &str, span: Span) -> Result<Kind, LineError> {
    let plain = text.replace('_', "");
    let (digits, radix) = if let Some(hex) = plain.strip_prefix("0x") {
        (hex, 16)
    } else if let Some(binary) = plain.strip_prefix("0b") {
        (binary, 2)
    } else if let Some(float) = plain.strip_suffix('f') {
        return match float.parse::<f32>() {
            Ok(value) if value.is_finite() => Ok(Kind::Float(value)),
            Ok(_) => Err(LineError::new(
                span,
                format!("the float `{text}` is out of range"),
            )),
            Err(_) => Err(malformed(text, span)),
        };
    } else if plain.contains(['.', 'e', 'E']) && plain.parse::<f32>().is_ok() {
        return Err(
            LineError::new(span, format!("the float `{text}` lacks its `f`"))
                .help(format!("write `{text}f`")),
        );
    } else {
        (plain.as_str(), 10)
    };
    if digits.is_empty() || !digits.chars().all(|c| c.is_digit(radix)) {
        return Err(malformed(text, span));
    }
    u64::from_str_radix(digits, radix)
        .map(Kind::Integer)
        .map_err(|_| LineError::new(span, format!("the number `{text}` is out of range")))
}

fn malformed(text: &str, span: Span) -> LineError {
    LineError::new(span, format!("`{text}` is not a number"))
        .help("numbers are 10, 0x0a, 0b1010 or 1.5f")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(line: &str) -> Vec<Kind> {
        tokens(line)
            .expect("tokens")
            .into_iter()
            .map(|t| t.kind)
            .collect()
    }

    #[test]
    fn a_line() {
        assert_eq!(
            kinds("loop: ld.u8 r1, [r4+0x1_0] ; comment"),
            [
                Kind::Word("loop".into()),
                Kind::Mark(":"),
                Kind::Word("ld.u8".into()),
                Kind::Word("r1".into()),
                Kind::Mark(","),
                Kind::Mark("["),
                Kind::Word("r4".into()),
                Kind::Mark("+"),
                Kind::Integer(16),
                Kind::Mark("]"),
            ]
        );
        assert_eq!(kinds(" // all comment"), []);
        assert_eq!(
            kinds(".include \"a; b\" ; c"),
            [Kind::Word(".include".into()), Kind::Text("a; b".into())]
        );
        assert_eq!(
            kinds("1<<3"),
            [Kind::Integer(1), Kind::Mark("<<"), Kind::Integer(3)]
        );
    }

    #[test]
    fn numbers() {
        assert_eq!(kinds("0b101 0xff 12"), [5, 255, 12].map(Kind::Integer));
        assert_eq!(
            kinds("1f 0.5f 2.5e-3f 1e+2f"),
            [1.0, 0.5, 0.0025, 100.0].map(Kind::Float)
        );
        for bad in [
            "0x",
            "0xg",
            "12a",
            "1.5",
            "0b2",
            "1e99f",
            "99999999999999999999",
            "$",
        ] {
            assert!(tokens(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn columns_count_characters() {
        let t = tokens("\tä").expect_err("no token starts with it");
        assert_eq!(t.span, Span { start: 1, end: 2 });
    }
}
