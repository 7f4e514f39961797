// SPDX-License-Identifier: MIT

//! Integer constant expressions: `+ - * << >>`, unary minus and parentheses over numbers and names.
//!
//! Values are 64-bit signed while they are computed, and every step is checked. Shifts bind
//! weakest, then sums, then products, as in C.

use crate::error::{LineError, Span};
use crate::token::{Kind, Token};

/// The tokens of a line that are still to be read.
pub(crate) struct Cursor<'a> {
    /// The next one first.
    tokens: &'a [Token],
    /// Where the line ends, for errors about what is missing.
    end: Span,
    /// Signs and parentheses that are open.
    depth: u32,
}

impl<'a> Cursor<'a> {
    /// All of `tokens`, which are those of `line`.
    pub(crate) fn new(tokens: &'a [Token], line: &str) -> Self {
        let end = tokens.last().map_or(line.chars().count(), |t| t.span.end);
        Self {
            tokens,
            end: Span {
                start: end,
                end: end + 1,
            },
            depth: 0,
        }
    }

    /// No tokens, behind what stands at `span`.
    pub(crate) fn behind(span: Span) -> Self {
        Self {
            tokens: &[],
            end: Span {
                start: span.end,
                end: span.end + 1,
            },
            depth: 0,
        }
    }

    /// The next token, which stays.
    pub(crate) fn peek(&self) -> Option<&'a Token> {
        self.tokens.first()
    }

    /// The token behind the next one, which stays.
    pub(crate) fn peek_second(&self) -> Option<&'a Token> {
        self.tokens.get(1)
    }

    /// Takes the next token.
    pub(crate) fn next(&mut self) -> Option<&'a Token> {
        let (first, rest) = self.tokens.split_first()?;
        self.tokens = rest;
        Some(first)
    }

    /// Where the next token stands, or the end of the line.
    pub(crate) fn span(&self) -> Span {
        self.peek().map_or(self.end, |t| t.span)
    }

    /// Takes the next token if it is this mark.
    pub(crate) fn take(&mut self, mark: &str) -> Option<Span> {
        match self.peek() {
            Some(t) if t.kind == Kind::Mark(lookup(mark)) => {
                self.next();
                Some(t.span)
            }
            _ => None,
        }
    }

    /// Takes this mark.
    pub(crate) fn expect(&mut self, mark: &str, place: &str) -> Result<Span, LineError> {
        self.take(mark)
            .ok_or_else(|| LineError::new(self.span(), format!("expected `{mark}` {place}")))
    }

    /// Takes a word; `what` says what it would be.
    pub(crate) fn word(&mut self, what: &str) -> Result<(&'a str, Span), LineError> {
        match self.peek() {
            Some(Token {
                kind: Kind::Word(word),
                span,
            }) => {
                self.next();
                Ok((word, *span))
            }
            _ => Err(LineError::new(self.span(), format!("expected {what}"))),
        }
    }

    /// The line must end here.
    pub(crate) fn finish(&self) -> Result<(), LineError> {
        match (self.tokens.first(), self.tokens.last()) {
            (Some(first), Some(last)) => Err(LineError::new(
                first.span.to(last.span),
                "the instruction or directive ends before this",
            )),
            _ => Ok(()),
        }
    }
}

/// `mark` with the lifetime that [`Kind::Mark`] has.
fn lookup(mark: &str) -> &'static str {
    match mark {
        "," => ",",
        ":" => ":",
        "[" => "[",
        "]" => "]",
        "(" => "(",
        ")" => ")",
        "+" => "+",
        "-" => "-",
        "*" => "*",
        "@" => "@",
        "<<" => "<<",
        ">>" => ">>",
        _ => "",
    }
}

/// What a name stands for in an expression.
pub(crate) trait Names {
    /// The value of a constant.
    ///
    /// # Errors
    ///
    /// Where the name is not one of a constant.
    fn constant(&self, name: &str, span: Span) -> Result<i64, LineError>;
}

/// An expression's value and where it stands.
pub(crate) fn expression(
    cursor: &mut Cursor<'_>,
    names: &dyn Names,
) -> Result<(i64, Span), LineError> {
    shift(cursor, names)
}

fn shift(cursor: &mut Cursor<'_>, names: &dyn Names) -> Result<(i64, Span), LineError> {
    let (mut value, mut span) = sum(cursor, names)?;
    loop {
        let left = if cursor.take("<<").is_some() {
            true
        } else if cursor.take(">>").is_some() {
            false
        } else {
            return Ok((value, span));
        };
        let (by, by_span) = sum(cursor, names)?;
        span = span.to(by_span);
        let by = u32::try_from(by)
            .ok()
            .filter(|by| *by < 64)
            .ok_or_else(|| LineError::new(by_span, "a shift is by 0 to 63"))?;
        value = if left {
            // Left shift is a product that must not overflow.
            1i64.checked_shl(by)
                .filter(|factor| *factor > 0)
                .and_then(|factor| value.checked_mul(factor))
                .ok_or_else(|| overflow(span))?
        } else {
            value >> by
        };
    }
}

fn sum(cursor: &mut Cursor<'_>, names: &dyn Names) -> Result<(i64, Span), LineError> {
    let (mut value, mut span) = product(cursor, names)?;
    loop {
        let add = if cursor.take("+").is_some() {
            true
        } else if cursor.take("-").is_some() {
            false
        } else {
            return Ok((value, span));
        };
        let (other, other_span) = product(cursor, names)?;
        span = span.to(other_span);
        value = if add {
            value.checked_add(other)
        } else {
            value.checked_sub(other)
        }
        .ok_or_else(|| overflow(span))?;
    }
}

fn product(cursor: &mut Cursor<'_>, names: &dyn Names) -> Result<(i64, Span), LineError> {
    let (mut value, mut span) = unary(cursor, names)?;
    while cursor.take("*").is_some() {
        let (other, other_span) = unary(cursor, names)?;
        span = span.to(other_span);
        value = value.checked_mul(other).ok_or_else(|| overflow(span))?;
    }
    Ok((value, span))
}

/// Nested signs and parentheses that are read; more would be recursion that a source controls.
const MAX_DEPTH: u32 = 32;

fn unary(cursor: &mut Cursor<'_>, names: &dyn Names) -> Result<(i64, Span), LineError> {
    let span = cursor.span();
    if cursor.depth == MAX_DEPTH {
        return Err(LineError::new(span, "too many signs and parentheses"));
    }
    cursor.depth += 1;
    let operand = operand(cursor, names, span);
    cursor.depth -= 1;
    operand
}

fn operand(
    cursor: &mut Cursor<'_>,
    names: &dyn Names,
    span: Span,
) -> Result<(i64, Span), LineError> {
    if cursor.take("-").is_some() {
        let (value, last) = unary(cursor, names)?;
        let span = span.to(last);
        return Ok((value.checked_neg().ok_or_else(|| overflow(span))?, span));
    }
    if cursor.take("(").is_some() {
        let (value, _) = shift(cursor, names)?;
        let last = cursor.expect(")", "to close the parenthesis")?;
        return Ok((value, span.to(last)));
    }
    match cursor.peek().map(|t| &t.kind) {
        Some(Kind::Integer(value)) => {
            let value = i64::try_from(*value).map_err(|_| overflow(span))?;
            cursor.next();
            Ok((value, span))
        }
        Some(Kind::Word(name)) => {
            let value = names.constant(name, span)?;
            cursor.next();
            Ok((value, span))
        }
        Some(Kind::Float(_)) => Err(LineError::new(span, "a float cannot stand here")),
        _ => Err(LineError::new(span, "expected a number or a constant")),
    }
}

fn overflow(span: Span) -> LineError {
    LineError::new(span, "the value does not fit 64 bits")
}
