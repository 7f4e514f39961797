// SPDX-License-Identifier: MIT

//! Lines to instructions and metadata, in two passes.
//!
//! The first pass reads each line, runs its directive or counts its instruction, and learns where
//! labels are; the second one reads the operands. Names (constants, register names and labels)
//! live in one space: a name is one thing, and defined once. Arguments have a space of their own,
//! because only the operation that reads an argument can name one. Instructions may use names that
//! are defined further down; directives only those above them.
//!
//! An error spoils its line only: the others are read on, so that one run tells all that is wrong.

use std::collections::HashMap;

use skua_spec::command::{MAX_ARGUMENTS, MAX_GROUP_THREADS, MAX_PROGRAM, MAX_SHARED};
use skua_spec::isa::{Form, Instruction, Op, Special, IMMEDIATE, INSTRUCTION_SIZE, REGISTERS};

use crate::error::{nearest, Error, LineError, Span};
use crate::expression::{expression, Cursor, Names};
use crate::program::{Argument, Program};
use crate::source::{Expansion, Line, INCLUDE};
use crate::token::{tokens, Kind, Token};

/// Most instructions of a program.
const MAX_INSTRUCTIONS: usize = (MAX_PROGRAM / INSTRUCTION_SIZE) as usize;

/// Every directive, by the name that the source has for it.
const DIRECTIVES: [&str; 7] = [
    ".arg", ".arg64", ".equ", INCLUDE, ".reg", ".shared", ".threads",
];

/// Assembles a program that includes nothing.
///
/// # Errors
///
/// All that is wrong, in the order of lines; at least one.
pub fn assemble(source: &str) -> Result<Program, Vec<Error>> {
    assemble_with(source, |_| None)
}

/// Assembles a program; `find` gives the text of an included file by its name.
///
/// # Errors
///
/// All that is wrong, in the order of lines; at least one.
pub fn assemble_with(
    source: &str,
    find: impl Fn(&str) -> Option<String>,
) -> Result<Program, Vec<Error>> {
    let Expansion { lines, errors, .. } = Expansion::new(source, find);
    let mut assembler = Assembler {
        errors,
        ..Assembler::default()
    };
    let mut pending = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        match tokens(&line.text).and_then(|t| assembler.line(number, &lines, t)) {
            Ok(Some(instruction)) => pending.push(instruction),
            Ok(None) => {}
            Err(error) => assembler.error(number, line, error),
        }
    }
    let mut instructions = Vec::new();
    let mut numbers = Vec::new();
    for statement in &pending {
        let line = &lines[statement.line];
        match assembler.instruction(statement, &line.text) {
            Ok(instruction) => {
                instructions.push(instruction);
                numbers.push(line.origin);
            }
            Err(error) => assembler.error(statement.line, line, error),
        }
    }
    if let (true, Some(over)) = (assembler.errors.is_empty(), pending.get(MAX_INSTRUCTIONS)) {
        let error = LineError::new(
            over.span,
            format!("a program has at most {MAX_INSTRUCTIONS} instructions"),
        );
        assembler.error(over.line, &lines[over.line], error);
    }
    if pending.is_empty() && assembler.errors.is_empty() {
        let span = Span { start: 0, end: 1 };
        let error = LineError::new(span, "the program has no instruction");
        let first = Line {
            file: None,
            number: 1,
            text: source.lines().next().unwrap_or("").to_owned(),
            origin: 1,
        };
        assembler.error(0, &first, error);
    }
    if !assembler.errors.is_empty() {
        assembler.errors.sort_by_key(|(line, e)| (*line, e.column));
        return Err(assembler.errors.into_iter().map(|(_, e)| e).collect());
    }
    Ok(Program {
        instructions,
        lines: numbers,
        threads: assembler.threads.unwrap_or([1; 3]),
        shared_bytes: assembler.shared_bytes.unwrap_or(0),
        arguments: assembler.arguments,
    })
}

/// What a name stands for.
#[derive(Clone, Copy, Debug)]
enum Meaning {
    Constant(i64),
    Register(u8),
    /// Index of the instruction behind the label.
    Label(usize),
}

#[derive(Debug)]
struct Name {
    /// What it is replaced by where it stands in an operand.
    meaning: Meaning,
    /// Where it is defined, as an error tells.
    place: String,
}

/// An instruction whose operands are still to be read.
struct Pending {
    /// Index in the expanded source.
    line: usize,
    /// What its mnemonic names; its form says which operands follow.
    op: Op,
    /// Of the name of the operation.
    span: Span,
    /// The tokens of the line behind the mnemonic.
    operands: Vec<Token>,
}

#[derive(Default)]
struct Assembler {
    /// Labels, constants and names of registers, which share one name space.
    names: HashMap<String, Name>,
    /// Instructions so far.
    count: usize,
    /// `.threads`; once at most.
    threads: Option<[u32; 3]>,
    /// `.shared`; once at most.
    shared_bytes: Option<u32>,
    /// In the order of their declarations.
    arguments: Vec<Argument>,
    /// With the index of the line behind or of each.
    errors: Vec<(usize, Error)>,
}

impl Assembler {
    fn error(&mut self, index: usize, line: &Line, error: LineError) {
        self.errors.push((index, error.at(line)));
    }

    /// First pass: labels, directives, and the mnemonic.
    fn line(
        &mut self,
        number: usize,
        lines: &[Line],
        tokens: Vec<Token>,
    ) -> Result<Option<Pending>, LineError> {
        let line = &lines[number];
        let mut cursor = Cursor::new(&tokens, &line.text);
        while let (Some(first), Some(Kind::Mark(":"))) =
            (cursor.peek(), cursor.peek_second().map(|t| &t.kind))
        {
            let (name, span) = cursor.word("a label's name")?;
            cursor.next();
            self.define(name, first.span.to(span), line, Meaning::Label(self.count))?;
        }
        let Some(first) = cursor.peek() else {
            return Ok(None);
        };
        let (word, span) = cursor.word("an instruction, a directive or a label")?;
        if word.starts_with('.') {
            self.directive(word, span, line, &mut cursor)?;
            cursor.finish()?;
            return Ok(None);
        }
        // A wrong mnemonic is counted too: labels behind it stay where they would be.
        self.count += 1;
        let op = Op::ALL
            .iter()
            .find(|(_, text)| *text == word)
            .map(|(op, _)| *op)
            .ok_or_else(|| unknown_instruction(word, span))?;
        let at = tokens
            .iter()
            .position(|t| t.span == first.span)
            .map_or(tokens.len(), |i| i + 1);
        Ok(Some(Pending {
            line: number,
            op,
            span,
            operands: tokens[at..].to_vec(),
        }))
    }

    fn define(
        &mut self,
        name: &str,
        span: Span,
        line: &Line,
        meaning: Meaning,
    ) -> Result<(), LineError> {
        undotted(name, span)?;
        if register_number(name).is_some() {
            return Err(LineError::new(
                span,
                format!("`{name}` cannot be a name: it is a register"),
            ));
        }
        if let Some(old) = self.names.get(name) {
            return Err(LineError::new(
                span,
                format!("`{name}` is defined already, in {}", old.place),
            ));
        }
        let place = line.place();
        self.names.insert(name.to_owned(), Name { meaning, place });
        Ok(())
    }

    fn directive(
        &mut self,
        word: &str,
        span: Span,
        line: &Line,
        cursor: &mut Cursor<'_>,
    ) -> Result<(), LineError> {
        match word {
            ".equ" => {
                let (name, name_span) = cursor.word("the constant's name")?;
                cursor.expect(",", "and the constant's value")?;
                let (value, _) = expression(cursor, self)?;
                self.define(name, name_span, line, Meaning::Constant(value))
            }
            ".reg" => {
                let (name, name_span) = cursor.word("the register's new name")?;
                cursor.expect(",", "and a register")?;
                let (register, _) = self.register(cursor, false)?;
                self.define(name, name_span, line, Meaning::Register(register))
            }
            ".arg" => self.argument(cursor, 1),
            ".arg64" => self.argument(cursor, 2),
            ".shared" => {
                let (value, value_span) = expression(cursor, self)?;
                once(self.shared_bytes.is_some(), word, span)?;
                self.shared_bytes = Some(ranged(value, value_span, 0, MAX_SHARED, "bytes")?);
                Ok(())
            }
            ".threads" => {
                let mut threads = [1; 3];
                let mut all = span;
                for (i, count) in threads.iter_mut().enumerate() {
                    if i > 0 && cursor.take(",").is_none() {
                        break;
                    }
                    let (value, value_span) = expression(cursor, self)?;
                    *count = ranged(value, value_span, 1, MAX_GROUP_THREADS, "threads")?;
                    all = if i == 0 {
                        value_span
                    } else {
                        all.to(value_span)
                    };
                }
                once(self.threads.is_some(), word, span)?;
                // At most 2^30: cannot overflow.
                let product: u32 = threads.iter().product();
                if product > MAX_GROUP_THREADS {
                    return Err(LineError::new(
                        all,
                        format!("a group of {product} threads is more than {MAX_GROUP_THREADS}"),
                    ));
                }
                self.threads = Some(threads);
                Ok(())
            }
            // Others were read before.
            INCLUDE => Err(LineError::new(span, "`.include` stands first in its line")),
            _ => {
                let error = LineError::new(span, format!("unknown directive `{word}`"));
                Err(suggest(error, nearest(word, DIRECTIVES)))
            }
        }
    }

    fn argument(&mut self, cursor: &mut Cursor<'_>, words: usize) -> Result<(), LineError> {
        let (name, span) = cursor.word("the argument's name")?;
        undotted(name, span)?;
        let index = self.arguments.last().map_or(0, |a| a.index + a.words);
        // A 64-bit argument starts at an even word, as a pair starts at an even register.
        let index = index.next_multiple_of(words);
        if index + words > MAX_ARGUMENTS {
            return Err(LineError::new(
                span,
                format!("a program has at most {MAX_ARGUMENTS} words of arguments"),
            ));
        }
        if name.ends_with(".hi") {
            return Err(LineError::new(
                span,
                format!("`{name}` cannot be an argument's name: it names a high half"),
            ));
        }
        if self.arguments.iter().any(|a| a.name == name) {
            return Err(LineError::new(
                span,
                format!("the argument `{name}` is declared already"),
            ));
        }
        self.arguments.push(Argument {
            name: name.to_owned(),
            index,
            words,
        });
        Ok(())
    }

    /// Second pass: the operands, as the operation's form wants them.
    fn instruction(&self, statement: &Pending, line: &str) -> Result<Instruction, LineError> {
        let mut cursor = Cursor::new(&statement.operands, line);
        if statement.operands.is_empty() {
            // What is missing is missing behind the mnemonic.
            cursor = Cursor::behind(statement.span);
        }
        let instruction = Operands {
            assembler: self,
            cursor: &mut cursor,
            first: true,
        }
        .read(statement.op)?;
        cursor.finish()?;
        // The forms above make valid instructions only; a form that did not would be caught here.
        if instruction.is_valid() {
            Ok(instruction)
        } else {
            Err(LineError::new(
                statement.span,
                "the instruction set does not define this combination of operands",
            ))
        }
    }

    /// A register, by number or name; with `pair`, an even one.
    fn register(&self, cursor: &mut Cursor<'_>, pair: bool) -> Result<(u8, Span), LineError> {
        let (word, span) = cursor.word(if pair {
            "a pair of registers"
        } else {
            "a register"
        })?;
        let register = match (register_number(word), self.names.get(word)) {
            (Some(Some(number)), _) => number,
            (Some(None), _) => {
                return Err(
                    LineError::new(span, format!("there is no register `{word}`"))
                        .help(format!("registers are r0 to r{}", REGISTERS - 1)),
                )
            }
            (
                None,
                Some(Name {
                    meaning: Meaning::Register(number),
                    ..
                }),
            ) => *number,
            (None, Some(Name { place, .. })) => {
                return Err(LineError::new(
                    span,
                    format!("`{word}`, defined in {place}, is not a register"),
                ))
            }
            (None, None) => {
                let error = LineError::new(span, format!("there is no register `{word}`"));
                return Err(suggest(error, self.nearest_name(word)));
            }
        };
        if pair && register % 2 != 0 {
            return Err(LineError::new(
                span,
                format!("r{register} is odd: a pair is named by its even register"),
            ));
        }
        Ok((register, span))
    }

    fn nearest_name(&self, word: &str) -> Option<&str> {
        nearest(word, self.names.keys().map(String::as_str))
    }
}

impl Names for Assembler {
    fn constant(&self, name: &str, span: Span) -> Result<i64, LineError> {
        match self.names.get(name) {
            Some(Name {
                meaning: Meaning::Constant(value),
                ..
            }) => Ok(*value),
            Some(Name { place, .. }) => Err(LineError::new(
                span,
                format!("`{name}`, defined in {place}, is not a constant"),
            )),
            None if register_number(name).is_some() => Err(LineError::new(
                span,
                format!("the register `{name}` cannot stand here: a constant is needed"),
            )),
            None => {
                let error = LineError::new(span, format!("the name `{name}` is not defined"));
                Err(suggest(error, self.nearest_name(name)))
            }
        }
    }
}

/// Reads the operands of one instruction, and the commas between them.
struct Operands<'a, 'b, 'c> {
    assembler: &'a Assembler,
    cursor: &'b mut Cursor<'c>,
    /// Whether none is read yet: a comma stands before each of the others.
    first: bool,
}

impl Operands<'_, '_, '_> {
    fn read(&mut self, op: Op) -> Result<Instruction, LineError> {
        let mut i = Instruction {
            op,
            rd: 0,
            ra: 0,
            rb: 0,
            imm: 0,
        };
        match op.form() {
            Form::Bare => {}
            Form::Code => i.imm = self.word()?,
            Form::Index => {
                i.rd = self.register(false)?;
                i.imm = self.index(op)?;
            }
            Form::Unary => {
                i.rd = self.register(false)?;
                (i.rb, i.imm) = self.operand_b()?;
            }
            Form::Binary => {
                i.rd = self.register(false)?;
                i.ra = self.register(false)?;
                (i.rb, i.imm) = self.operand_b()?;
            }
            Form::UnaryPair => {
                i.rd = self.register(true)?;
                (i.rb, i.imm) = self.operand_b_pair()?;
            }
            Form::BinaryPair => {
                i.rd = self.register(true)?;
                i.ra = self.register(true)?;
                (i.rb, i.imm) = self.operand_b_pair()?;
            }
            Form::Widen => {
                i.rd = self.register(true)?;
                i.ra = self.register(false)?;
                (i.rb, i.imm) = self.operand_b()?;
            }
            Form::Scale => {
                i.rd = self.register(true)?;
                i.ra = self.register(true)?;
                i.rb = self.register(false)?;
                i.imm = self.ranged(4, "a scale is 0 to 4, the log2 of the factor")?;
            }
            Form::Ternary => {
                i.rd = self.register(false)?;
                i.ra = self.register(false)?;
                i.rb = self.register(false)?;
                i.imm = self.register(false)?.into();
            }
            Form::Jump => i.imm = self.target()?,
            Form::Branch => {
                i.ra = self.register(false)?;
                i.imm = self.target()?;
            }
            Form::CompareBranch => {
                i.ra = self.register(false)?;
                i.rb = self.register(false)?;
                i.imm = self.target()?;
            }
            form @ (Form::Load | Form::LoadPair | Form::LoadShared | Form::LoadSharedPair) => {
                i.rd = self.register(matches!(form, Form::LoadPair | Form::LoadSharedPair))?;
                (i.ra, i.imm) = self.memory(matches!(form, Form::Load | Form::LoadPair))?;
            }
            form @ (Form::Store | Form::StorePair | Form::StoreShared | Form::StoreSharedPair) => {
                (i.ra, i.imm) = self.memory(matches!(form, Form::Store | Form::StorePair))?;
                i.rd = self.register(matches!(form, Form::StorePair | Form::StoreSharedPair))?;
            }
            form @ (Form::Atomic | Form::AtomicPair | Form::AtomicShared) => {
                let pair = form == Form::AtomicPair;
                i.rd = self.register(pair)?;
                i.ra = self.address(form != Form::AtomicShared)?;
                i.rb = self.register(pair)?;
            }
            form @ (Form::CompareSwap | Form::CompareSwapPair | Form::CompareSwapShared) => {
                let pair = form == Form::CompareSwapPair;
                i.rd = self.register(pair)?;
                i.ra = self.address(form != Form::CompareSwapShared)?;
                i.rb = self.register(pair)?;
                i.imm = self.register(pair)?.into();
            }
        }
        Ok(i)
    }

    fn comma(&mut self) -> Result<(), LineError> {
        if !std::mem::take(&mut self.first) {
            self.cursor.expect(",", "and another operand")?;
        }
        Ok(())
    }

    fn register(&mut self, pair: bool) -> Result<u8, LineError> {
        self.comma()?;
        Ok(self.assembler.register(self.cursor, pair)?.0)
    }

    /// Whether the next word is a register, or meant as one.
    fn register_is_next(&self) -> bool {
        match self.cursor.peek().map(|t| &t.kind) {
            Some(Kind::Word(word)) => {
                register_number(word).is_some()
                    || self
                        .assembler
                        .names
                        .get(word)
                        .is_some_and(|n| matches!(n.meaning, Meaning::Register(_)))
            }
            _ => false,
        }
    }

    /// Operand B: a register, an integer or a float.
    fn operand_b(&mut self) -> Result<(u8, u32), LineError> {
        self.comma()?;
        if self.register_is_next() {
            return Ok((self.assembler.register(self.cursor, false)?.0, 0));
        }
        if let Some(float) = self.float() {
            return Ok((IMMEDIATE, float));
        }
        Ok((IMMEDIATE, self.integer()?))
    }

    /// Operand B of 64 bits: a pair, or an integer that is sign extended.
    fn operand_b_pair(&mut self) -> Result<(u8, u32), LineError> {
        self.comma()?;
        if self.register_is_next() {
            return Ok((self.assembler.register(self.cursor, true)?.0, 0));
        }
        Ok((
            IMMEDIATE,
            self.signed("an immediate of 64-bit operations is sign extended")?,
        ))
    }

    /// The bits of a float with or without a sign, if that is next.
    fn float(&mut self) -> Option<u32> {
        let negative = match (self.cursor.peek(), self.cursor.peek_second()) {
            (
                Some(Token {
                    kind: Kind::Float(_),
                    ..
                }),
                _,
            ) => false,
            (
                Some(Token {
                    kind: Kind::Mark("-"),
                    ..
                }),
                Some(Token {
                    kind: Kind::Float(_),
                    ..
                }),
            ) => {
                self.cursor.next();
                true
            }
            _ => return None,
        };
        match self.cursor.next().map(|t| &t.kind) {
            Some(Kind::Float(value)) => Some(if negative { -value } else { *value }.to_bits()),
            _ => None,
        }
    }

    /// A 32-bit integer, signed or unsigned.
    fn integer(&mut self) -> Result<u32, LineError> {
        let (value, span) = expression(self.cursor, self.assembler)?;
        u32::try_from(value)
            .or_else(|_| i32::try_from(value).map(i32::cast_unsigned_bits))
            .map_err(|_| LineError::new(span, format!("{value} does not fit 32 bits")))
    }

    /// A signed 32-bit integer, as bits.
    fn signed(&mut self, why: &str) -> Result<u32, LineError> {
        let (value, span) = expression(self.cursor, self.assembler)?;
        i32::try_from(value)
            .map(i32::cast_unsigned_bits)
            .map_err(|_| {
                LineError::new(span, format!("{value} does not fit 32 bits with a sign")).help(why)
            })
    }

    fn word(&mut self) -> Result<u32, LineError> {
        self.comma()?;
        self.integer()
    }

    fn ranged(&mut self, max: u32, message: &str) -> Result<u32, LineError> {
        self.comma()?;
        let (value, span) = expression(self.cursor, self.assembler)?;
        u32::try_from(value)
            .ok()
            .filter(|v| *v <= max)
            .ok_or_else(|| LineError::new(span, message))
    }

    /// A special register's name, or an argument's number.
    fn index(&mut self, op: Op) -> Result<u32, LineError> {
        self.comma()?;
        if op != Op::Sr {
            if let Some(index) = self.declared_argument()? {
                return Ok(index);
            }
            let (value, span) = expression(self.cursor, self.assembler)?;
            return u32::try_from(value)
                .ok()
                // CAST: 32.
                .filter(|v| *v < MAX_ARGUMENTS as u32)
                .ok_or_else(|| {
                    LineError::new(
                        span,
                        format!("arguments are numbered from 0 to {}", MAX_ARGUMENTS - 1),
                    )
                });
        }
        let (word, span) = self.cursor.word("a special register")?;
        Special::ALL
            .into_iter()
            .find(|(_, name)| *name == word)
            // CAST: the number of the special register.
            .map(|(special, _)| special as u32)
            .ok_or_else(|| {
                let error = LineError::new(span, format!("there is no special register `{word}`"));
                suggest(
                    error,
                    nearest(word, Special::ALL.into_iter().map(|(_, name)| name)),
                )
            })
    }

    /// The number of a declared argument, or of the high half of a 64-bit one, if a name is next
    /// that is no constant's.
    fn declared_argument(&mut self) -> Result<Option<u32>, LineError> {
        let Some(Token {
            kind: Kind::Word(word),
            span,
        }) = self.cursor.peek()
        else {
            return Ok(None);
        };
        let declared = &self.assembler.arguments;
        let low = declared.iter().find(|a| a.name == *word).map(|a| a.index);
        let high = word.strip_suffix(".hi").and_then(|name| {
            let argument = declared.iter().find(|a| a.name == name && a.words == 2)?;
            Some(argument.index + 1)
        });
        match low.or(high).map(u32::try_from) {
            Some(Ok(index)) => {
                self.cursor.next();
                Ok(Some(index))
            }
            _ if self.assembler.names.contains_key(word) || register_number(word).is_some() => {
                Ok(None)
            }
            _ => {
                let error = LineError::new(*span, format!("there is no argument `{word}`"));
                let names = declared.iter().map(|a| a.name.as_str());
                Err(suggest(error, nearest(word, names)))
            }
        }
    }

    /// A label, or `@` and the number of an instruction.
    fn target(&mut self) -> Result<u32, LineError> {
        self.comma()?;
        if self.cursor.take("@").is_some() {
            return self.integer();
        }
        let (word, span) = self.cursor.word("a label")?;
        match self.assembler.names.get(word) {
            Some(Name {
                meaning: Meaning::Label(index),
                ..
            }) => {
                u32::try_from(*index).map_err(|_| LineError::new(span, "the label is too far down"))
            }
            Some(Name { place, .. }) => Err(LineError::new(
                span,
                format!("`{word}`, defined in {place}, is not a label"),
            )),
            None => {
                let error = LineError::new(span, format!("there is no label `{word}`"));
                Err(suggest(error, self.assembler.nearest_name(word)))
            }
        }
    }

    /// `[register]` or `[register + offset]`. A global address is in a pair, and its offset has a
    /// sign.
    fn memory(&mut self, global: bool) -> Result<(u8, u32), LineError> {
        self.comma()?;
        self.cursor.expect("[", "before the address")?;
        let (register, _) = self.assembler.register(self.cursor, global)?;
        let offset = match self.cursor.peek().map(|t| &t.kind) {
            Some(Kind::Mark("+" | "-")) => {
                // A minus belongs to the value, and a plus only stands before it.
                self.cursor.take("+");
                if global {
                    self.signed("an offset has a sign")?
                } else {
                    self.integer()?
                }
            }
            _ => 0,
        };
        self.cursor.expect("]", "behind the address")?;
        Ok((register, offset))
    }

    /// `[register]`, for operations without an offset.
    fn address(&mut self, global: bool) -> Result<u8, LineError> {
        self.comma()?;
        self.cursor.expect("[", "before the address")?;
        let (register, _) = self.assembler.register(self.cursor, global)?;
        if matches!(
            self.cursor.peek().map(|t| &t.kind),
            Some(Kind::Mark("+" | "-"))
        ) {
            return Err(LineError::new(
                self.cursor.span(),
                "the address of an atomic operation has no offset",
            ));
        }
        self.cursor.expect("]", "behind the address")?;
        Ok(register)
    }
}

/// `i32::cast_unsigned` is newer than the oldest compiler that builds this.
trait CastUnsigned {
    /// The same bits without a sign.
    fn cast_unsigned_bits(self) -> u32;
}

impl CastUnsigned for i32 {
    fn cast_unsigned_bits(self) -> u32 {
        u32::from_ne_bytes(self.to_ne_bytes())
    }
}

/// Whether `word` is `r` and digits; then its number, if there is such a register.
fn register_number(word: &str) -> Option<Option<u8>> {
    let digits = word.strip_prefix('r')?;
    if digits.is_empty() || !digits.chars().all(|c| c.is_ascii_digit()) {
        return None;
    }
    // One way to write each: r05 is none.
    let canonical = digits == "0" || !digits.starts_with('0');
    Some(
        digits
            .parse::<u8>()
            .ok()
            .filter(|n| *n < REGISTERS && canonical),
    )
}

fn unknown_instruction(word: &str, span: Span) -> LineError {
    let error = LineError::new(span, format!("unknown instruction `{word}`"));
    let names = Op::ALL.iter().map(|(_, text)| *text);
    // What has variants only: `ld` is `ld.32` and others.
    let prefix = format!("{word}.");
    let variants: Vec<&str> = names.clone().filter(|n| n.starts_with(&prefix)).collect();
    match variants.as_slice() {
        [] => suggest(error, nearest(word, names)),
        list => error.help(format!("write one of {}", list.join(", "))),
    }
}

fn suggest(error: LineError, candidate: Option<&str>) -> LineError {
    match candidate {
        Some(candidate) => error.help(format!("did you mean `{candidate}`?")),
        None => error,
    }
}

/// Refuses a name that could be taken for a directive, or for a part of a longer name.
fn undotted(name: &str, span: Span) -> Result<(), LineError> {
    if name.starts_with('.') || name.ends_with('.') {
        return Err(LineError::new(
            span,
            format!("`{name}` cannot be a name: it starts or ends with a dot"),
        ));
    }
    Ok(())
}

fn once(given: bool, word: &str, span: Span) -> Result<(), LineError> {
    if given {
        return Err(LineError::new(span, format!("`{word}` stands twice")));
    }
    Ok(())
}

fn ranged(value: i64, span: Span, min: u32, max: u32, what: &str) -> Result<u32, LineError> {
    u32::try_from(value)
        .ok()
        .filter(|v| (min..=max).contains(v))
        .ok_or_else(|| LineError::new(span, format!("{value} {what}: it must be {min} to {max}")))
}
