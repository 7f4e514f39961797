// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The instruction set of compute programs (manual section 9).
//!
//! A program is a run of 64-bit little-endian instructions; control flow names them by index. Every
//! thread has [`REGISTERS`] registers of 32 bits, which start as zero. A 64-bit value or a global
//! address is a *pair*: an even register with the low half and the next one with the high half.
//!
//! An instruction has four fields: opcode in bits 7:0, `rd` in 15:8, `ra` in 23:16, `rb` in 31:24,
//! `imm` in 63:32. Where an operand is called *B*, `rb` below 64 names a register and [`IMMEDIATE`]
//! says that `imm` is the operand. A third source register, *C*, is in bits 7:0 of `imm`. Fields
//! that an instruction does not use are zero.
//!
//! The table below is the whole set; [`Op::form`] gives each one's operands, and the manual what it
//! computes.
//!
//! # Examples
//!
//! ```
//! use skua_spec::isa::{Form, Instruction, Op, IMMEDIATE};
//!
//! // r1 = r2 + 5
//! let add = Instruction { op: Op::Add, rd: 1, ra: 2, rb: IMMEDIATE, imm: 5 };
//! assert_eq!(add.encode(), 0x0000_0005_ff02_0110);
//! assert_eq!(Instruction::decode(add.encode()), Some(add));
//! assert_eq!(Op::Add.form(), Form::Binary);
//! // There are 64 registers.
//! assert_eq!(Instruction::decode(Instruction { rd: 64, ..add }.encode()), None);
//! ```

/// Registers of a thread.
pub const REGISTERS: u8 = 64;
/// Value of `rb` that makes `imm` the operand B.
pub const IMMEDIATE: u8 = 0xff;
/// Bytes of an instruction.
pub const INSTRUCTION_SIZE: u32 = 8;

/// Operands of an instruction: which fields it uses, and what for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// No operand.
    Bare,
    /// `imm`: a code.
    Code,
    /// `rd`, `imm`: a number of a special register or argument.
    Index,
    /// `rd`, B: one source.
    Unary,
    /// `rd`, `ra`, B.
    Binary,
    /// `rd` pair, B pair (an immediate is sign extended).
    UnaryPair,
    /// `rd` pair, `ra` pair, B pair (an immediate is sign extended).
    BinaryPair,
    /// `rd` pair, `ra`, B.
    Widen,
    /// `rd` pair, `ra` pair, `rb` register, `imm`: shift 0 to 4.
    Scale,
    /// `rd`, `ra`, `rb` register, C.
    Ternary,
    /// `imm`: an instruction's index.
    Jump,
    /// `ra`, `imm`: an instruction's index.
    Branch,
    /// `ra`, `rb` register, `imm`: an instruction's index.
    CompareBranch,
    /// `rd`, `ra` pair, `imm`: signed byte offset. Global memory.
    Load,
    /// As [`Form::Load`] with `rd` a pair.
    LoadPair,
    /// `rd` (the source), `ra` pair, `imm`: signed byte offset. Global memory.
    Store,
    /// As [`Form::Store`] with `rd` a pair.
    StorePair,
    /// `rd`, `ra`, `imm`: byte offset, added modulo 2^32. Shared memory.
    LoadShared,
    /// As [`Form::LoadShared`] with `rd` a pair.
    LoadSharedPair,
    /// `rd` (the source), `ra`, `imm`: byte offset, added modulo 2^32. Shared memory.
    StoreShared,
    /// As [`Form::StoreShared`] with `rd` a pair.
    StoreSharedPair,
    /// `rd` (old value), `ra` pair, `rb` register. Global memory.
    Atomic,
    /// As [`Form::Atomic`] with `rd` and `rb` pairs.
    AtomicPair,
    /// `rd` (old value), `ra` pair, `rb` register (new value), C (value compared). Global memory.
    CompareSwap,
    /// As [`Form::CompareSwap`] with `rd`, `rb` and C pairs.
    CompareSwapPair,
    /// `rd` (old value), `ra` byte offset, `rb` register. Shared memory.
    AtomicShared,
    /// `rd` (old value), `ra` byte offset, `rb` register (new value), C (value compared). Shared
    /// memory.
    CompareSwapShared,
}

macro_rules! ops {
    ($( $(#[$doc:meta])* $name:ident = $code:literal, $text:literal, $form:ident; )*) => {
        /// An opcode; its name in assembly is in [`Op::ALL`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Op { $( $(#[$doc])* $name = $code, )* }

        impl Op {
            /// All operations with their mnemonics.
            pub const ALL: &'static [(Self, &'static str)] = &[ $( (Self::$name, $text), )* ];

            /// The operation with this number.
            pub const fn from_u8(value: u8) -> Option<Self> {
                match value {
                    $( $code => Some(Self::$name), )*
                    _ => None,
                }
            }

            /// The mnemonic that the assembler reads.
            pub const fn mnemonic(self) -> &'static str {
                match self { $( Self::$name => $text, )* }
            }

            /// The operands that it takes, and in which fields of the word they are.
            #[inline]
            pub const fn form(self) -> Form {
                match self { $( Self::$name => Form::$form, )* }
            }
        }
    };
}

ops! {
    /// Nothing.
    Nop = 0x00, "nop", Bare;
    /// `rd = B`.
    Mov = 0x01, "mov", Unary;
    /// `rd =` special register, see [`Special`].
    Sr = 0x02, "sr", Index;
    /// `rd =` argument of the dispatch.
    Arg = 0x03, "arg", Index;
    /// The thread ends.
    Exit = 0x04, "exit", Bare;
    /// Waits until every thread of the group that has not ended waits here or at another barrier.
    Bar = 0x05, "bar", Bare;
    /// Faults with a code.
    Trap = 0x06, "trap", Code;

    /// `rd = ra + B` modulo 2^32.
    Add = 0x10, "add", Binary;
    /// `rd = ra - B` modulo 2^32.
    Sub = 0x11, "sub", Binary;
    /// `rd = ra * B` modulo 2^32.
    Mul = 0x12, "mul", Binary;
    /// High half of the unsigned product.
    MulHu = 0x13, "mulhu", Binary;
    /// High half of the signed product.
    MulHs = 0x14, "mulhs", Binary;
    /// Unsigned quotient; all ones where B is 0.
    DivU = 0x15, "divu", Binary;
    /// Signed quotient, towards zero; all ones where B is 0; wraps for the least value by -1.
    DivS = 0x16, "divs", Binary;
    /// Unsigned remainder; `ra` where B is 0.
    RemU = 0x17, "remu", Binary;
    /// Signed remainder, of `ra`'s sign; `ra` where B is 0; 0 for the least value by -1.
    RemS = 0x18, "rems", Binary;
    /// Bitwise and.
    And = 0x19, "and", Binary;
    /// Bitwise or.
    Or = 0x1a, "or", Binary;
    /// Bitwise exclusive or.
    Xor = 0x1b, "xor", Binary;
    /// Left shift by the low five bits of B.
    Shl = 0x1c, "shl", Binary;
    /// Logical right shift by the low five bits of B.
    Shr = 0x1d, "shr", Binary;
    /// Arithmetic right shift by the low five bits of B.
    Sar = 0x1e, "sar", Binary;
    /// Lesser, unsigned.
    MinU = 0x1f, "minu", Binary;
    /// Greater, unsigned.
    MaxU = 0x20, "maxu", Binary;
    /// Lesser, signed.
    MinS = 0x21, "mins", Binary;
    /// Greater, signed.
    MaxS = 0x22, "maxs", Binary;
    /// Leading zero bits of B, 0 to 32.
    Clz = 0x23, "clz", Unary;
    /// Bits set in B.
    Popc = 0x24, "popc", Unary;
    /// Pair `rd = ra + B` modulo 2^64.
    Add64 = 0x28, "add64", BinaryPair;
    /// Pair `rd = ra - B` modulo 2^64.
    Sub64 = 0x29, "sub64", BinaryPair;
    /// Pair `rd = ra * B`, unsigned, whole product.
    MulWu = 0x2a, "mulwu", Widen;
    /// Pair `rd = ra + (zero extended rb << imm)` modulo 2^64.
    Lea = 0x2b, "lea", Scale;
    /// Pair `rd = B`.
    Mov64 = 0x2c, "mov64", UnaryPair;

    /// `rd = ra + B`.
    FAdd = 0x30, "fadd", Binary;
    /// `rd = ra - B`.
    FSub = 0x31, "fsub", Binary;
    /// `rd = ra * B`.
    FMul = 0x32, "fmul", Binary;
    /// `rd = ra / B`.
    FDiv = 0x33, "fdiv", Binary;
    /// Lesser; the other one where one is not a number; -0 is below +0.
    FMin = 0x34, "fmin", Binary;
    /// Greater; the other one where one is not a number; -0 is below +0.
    FMax = 0x35, "fmax", Binary;
    /// Square root of B.
    FSqrt = 0x36, "fsqrt", Unary;
    /// B rounded towards minus infinity.
    FFloor = 0x37, "ffloor", Unary;
    /// `rd = ra * rb + C`, rounded once.
    FMa = 0x38, "fma", Ternary;
    /// B without its sign.
    FAbs = 0x39, "fabs", Unary;
    /// B with the other sign.
    FNeg = 0x3a, "fneg", Unary;
    /// Signed integer B as a float, to nearest even.
    CvtFS = 0x3c, "i2f", Unary;
    /// Unsigned integer B as a float, to nearest even.
    CvtFU = 0x3d, "u2f", Unary;
    /// Float B as a signed integer, towards zero, held to the range; 0 where it is not a number.
    CvtSF = 0x3e, "f2i", Unary;
    /// Float B as an unsigned integer, towards zero, held to the range; 0 where it is not a number.
    CvtUF = 0x3f, "f2u", Unary;

    /// `rd = ra == B`, as 1 or 0.
    SetEq = 0x40, "seq", Binary;
    /// `rd = ra != B`.
    SetNe = 0x41, "sne", Binary;
    /// `rd = ra < B`, unsigned.
    SetLtU = 0x42, "sltu", Binary;
    /// `rd = ra <= B`, unsigned.
    SetLeU = 0x43, "sleu", Binary;
    /// `rd = ra < B`, signed.
    SetLtS = 0x44, "slts", Binary;
    /// `rd = ra <= B`, signed.
    SetLeS = 0x45, "sles", Binary;
    /// `rd = ra == B`, as floats; 0 where one is not a number.
    FSetEq = 0x48, "fseq", Binary;
    /// `rd = ra != B`, as floats; 1 where one is not a number.
    FSetNe = 0x49, "fsne", Binary;
    /// `rd = ra < B`, as floats.
    FSetLt = 0x4a, "fslt", Binary;
    /// `rd = ra <= B`, as floats.
    FSetLe = 0x4b, "fsle", Binary;
    /// `rd = rb` if `ra` is not 0, else C.
    Sel = 0x4c, "sel", Ternary;

    /// Goes to an instruction.
    Bra = 0x50, "bra", Jump;
    /// Goes there if `ra` is not 0.
    Bnz = 0x51, "bnz", Branch;
    /// Goes there if `ra` is 0.
    Bz = 0x52, "bz", Branch;
    /// Goes there if `ra == rb`.
    Beq = 0x53, "beq", CompareBranch;
    /// Goes there if `ra != rb`.
    Bne = 0x54, "bne", CompareBranch;
    /// Goes there if `ra < rb`, unsigned.
    BltU = 0x55, "bltu", CompareBranch;
    /// Goes there if `ra >= rb`, unsigned.
    BgeU = 0x56, "bgeu", CompareBranch;
    /// Goes there if `ra < rb`, signed.
    BltS = 0x57, "blts", CompareBranch;
    /// Goes there if `ra >= rb`, signed.
    BgeS = 0x58, "bges", CompareBranch;

    /// Loads a byte, zero extended.
    LdU8 = 0x60, "ld.u8", Load;
    /// Loads a byte, sign extended.
    LdS8 = 0x61, "ld.s8", Load;
    /// Loads 16 bits, zero extended.
    LdU16 = 0x62, "ld.u16", Load;
    /// Loads 16 bits, sign extended.
    LdS16 = 0x63, "ld.s16", Load;
    /// Loads 32 bits.
    Ld32 = 0x64, "ld.32", Load;
    /// Loads 64 bits.
    Ld64 = 0x65, "ld.64", LoadPair;
    /// Stores the low byte.
    St8 = 0x68, "st.8", Store;
    /// Stores the low 16 bits.
    St16 = 0x69, "st.16", Store;
    /// Stores 32 bits.
    St32 = 0x6a, "st.32", Store;
    /// Stores 64 bits.
    St64 = 0x6b, "st.64", StorePair;
    /// Loads a byte from shared memory, zero extended.
    LdsU8 = 0x70, "lds.u8", LoadShared;
    /// Loads a byte from shared memory, sign extended.
    LdsS8 = 0x71, "lds.s8", LoadShared;
    /// Loads 16 bits from shared memory, zero extended.
    LdsU16 = 0x72, "lds.u16", LoadShared;
    /// Loads 16 bits from shared memory, sign extended.
    LdsS16 = 0x73, "lds.s16", LoadShared;
    /// Loads 32 bits from shared memory.
    Lds32 = 0x74, "lds.32", LoadShared;
    /// Loads 64 bits from shared memory.
    Lds64 = 0x75, "lds.64", LoadSharedPair;
    /// Stores the low byte to shared memory.
    Sts8 = 0x78, "sts.8", StoreShared;
    /// Stores the low 16 bits to shared memory.
    Sts16 = 0x79, "sts.16", StoreShared;
    /// Stores 32 bits to shared memory.
    Sts32 = 0x7a, "sts.32", StoreShared;
    /// Stores 64 bits to shared memory.
    Sts64 = 0x7b, "sts.64", StoreSharedPair;

    /// 32-bit atomic addition.
    AtomAdd = 0x80, "atom.add", Atomic;
    /// 32-bit atomic unsigned minimum.
    AtomMinU = 0x81, "atom.minu", Atomic;
    /// 32-bit atomic unsigned maximum.
    AtomMaxU = 0x82, "atom.maxu", Atomic;
    /// 32-bit atomic and.
    AtomAnd = 0x83, "atom.and", Atomic;
    /// 32-bit atomic or.
    AtomOr = 0x84, "atom.or", Atomic;
    /// 32-bit atomic exclusive or.
    AtomXor = 0x85, "atom.xor", Atomic;
    /// 32-bit atomic exchange.
    AtomXchg = 0x86, "atom.xchg", Atomic;
    /// 32-bit atomic compare and swap.
    AtomCas = 0x87, "atom.cas", CompareSwap;
    /// 64-bit atomic addition.
    AtomAdd64 = 0x88, "atom.add.64", AtomicPair;
    /// 64-bit atomic unsigned minimum.
    AtomMinU64 = 0x89, "atom.minu.64", AtomicPair;
    /// 64-bit atomic unsigned maximum.
    AtomMaxU64 = 0x8a, "atom.maxu.64", AtomicPair;
    /// 64-bit atomic and.
    AtomAnd64 = 0x8b, "atom.and.64", AtomicPair;
    /// 64-bit atomic or.
    AtomOr64 = 0x8c, "atom.or.64", AtomicPair;
    /// 64-bit atomic exclusive or.
    AtomXor64 = 0x8d, "atom.xor.64", AtomicPair;
    /// 64-bit atomic exchange.
    AtomXchg64 = 0x8e, "atom.xchg.64", AtomicPair;
    /// 64-bit atomic compare and swap.
    AtomCas64 = 0x8f, "atom.cas.64", CompareSwapPair;
    /// Atomic addition in shared memory.
    AtomsAdd = 0x90, "atoms.add", AtomicShared;
    /// Atomic unsigned minimum in shared memory.
    AtomsMinU = 0x91, "atoms.minu", AtomicShared;
    /// Atomic unsigned maximum in shared memory.
    AtomsMaxU = 0x92, "atoms.maxu", AtomicShared;
    /// Atomic and in shared memory.
    AtomsAnd = 0x93, "atoms.and", AtomicShared;
    /// Atomic or in shared memory.
    AtomsOr = 0x94, "atoms.or", AtomicShared;
    /// Atomic exclusive or in shared memory.
    AtomsXor = 0x95, "atoms.xor", AtomicShared;
    /// Atomic exchange in shared memory.
    AtomsXchg = 0x96, "atoms.xchg", AtomicShared;
    /// Atomic compare and swap in shared memory.
    AtomsCas = 0x97, "atoms.cas", CompareSwapShared;
}

/// Special registers, read by [`Op::Sr`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Special {
    /// Thread in its group, x.
    TidX = 0,
    /// Thread in its group, y.
    TidY = 1,
    /// Thread in its group, z.
    TidZ = 2,
    /// Group in the dispatch, x.
    GidX = 3,
    /// Group in the dispatch, y.
    GidY = 4,
    /// Group in the dispatch, z.
    GidZ = 5,
    /// Threads of a group, x.
    NtidX = 6,
    /// Threads of a group, y.
    NtidY = 7,
    /// Threads of a group, z.
    NtidZ = 8,
    /// Groups of the dispatch, x.
    NgidX = 9,
    /// Groups of the dispatch, y.
    NgidY = 10,
    /// Groups of the dispatch, z.
    NgidZ = 11,
    /// Thread in its group, counted x first, then y, then z.
    Flat = 12,
    /// Thread in its wave: the flat number modulo 32.
    Lane = 13,
}

impl Special {
    /// All special registers with the names that the assembler reads.
    pub const ALL: [(Self, &'static str); 14] = [
        (Self::TidX, "tid.x"),
        (Self::TidY, "tid.y"),
        (Self::TidZ, "tid.z"),
        (Self::GidX, "gid.x"),
        (Self::GidY, "gid.y"),
        (Self::GidZ, "gid.z"),
        (Self::NtidX, "ntid.x"),
        (Self::NtidY, "ntid.y"),
        (Self::NtidZ, "ntid.z"),
        (Self::NgidX, "ngid.x"),
        (Self::NgidY, "ngid.y"),
        (Self::NgidZ, "ngid.z"),
        (Self::Flat, "flat"),
        (Self::Lane, "lane"),
    ];

    /// The special register with this number.
    pub fn from_u32(value: u32) -> Option<Self> {
        Self::ALL
            .into_iter()
            .map(|(s, _)| s)
            .find(|s| *s as u32 == value)
    }
}

/// An instruction, field by field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Instruction {
    /// What the instruction does, bits 7:0.
    pub op: Op,
    /// First register field, bits 15:8.
    pub rd: u8,
    /// Second register field, bits 23:16.
    pub ra: u8,
    /// Third register field, bits 31:24, or [`IMMEDIATE`].
    pub rb: u8,
    /// Immediate field, bits 63:32.
    pub imm: u32,
}

/// What a field of a form is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Field {
    /// Unused: zero.
    None,
    /// A register.
    Reg,
    /// A pair: an even register.
    Pair,
}

impl Instruction {
    /// The instruction of these fields, sense or not.
    pub const fn new(op: Op, rd: u8, ra: u8, rb: u8, imm: u32) -> Self {
        Self {
            op,
            rd,
            ra,
            rb,
            imm,
        }
    }

    /// The instruction as it stands in memory. It is not checked.
    pub const fn encode(self) -> u64 {
        self.op as u64
            | ((self.rd as u64) << 8)
            | ((self.ra as u64) << 16)
            | ((self.rb as u64) << 24)
            | ((self.imm as u64) << 32)
    }

    /// The instruction in `bits`, or `None` where section 9 does not define it: an unknown opcode,
    /// a register out of range, an odd pair, or a field that is not used and not zero. Whether a
    /// jump stays in the program is found when it is taken.
    pub fn decode(bits: u64) -> Option<Self> {
        // CAST: fields of the word.
        let instruction = Self {
            op: Op::from_u8(bits as u8)?,
            rd: (bits >> 8) as u8,
            ra: (bits >> 16) as u8,
            rb: (bits >> 24) as u8,
            imm: (bits >> 32) as u32,
        };
        instruction.is_valid().then_some(instruction)
    }

    /// What the fields rd, ra and rb are, and C where there is one.
    fn fields(&self) -> (Field, Field, Field, Field) {
        use Field::{None as Unused, Pair, Reg};
        match self.op.form() {
            Form::Bare | Form::Code | Form::Jump => (Unused, Unused, Unused, Unused),
            Form::Index => (Reg, Unused, Unused, Unused),
            Form::Unary => (Reg, Unused, Reg, Unused),
            Form::Binary => (Reg, Reg, Reg, Unused),
            Form::UnaryPair => (Pair, Unused, Pair, Unused),
            Form::BinaryPair => (Pair, Pair, Pair, Unused),
            Form::Widen => (Pair, Reg, Reg, Unused),
            Form::Scale => (Pair, Pair, Reg, Unused),
            Form::Ternary => (Reg, Reg, Reg, Reg),
            Form::Branch => (Unused, Reg, Unused, Unused),
            Form::CompareBranch => (Unused, Reg, Reg, Unused),
            Form::Load | Form::Store => (Reg, Pair, Unused, Unused),
            Form::LoadPair | Form::StorePair => (Pair, Pair, Unused, Unused),
            Form::LoadShared | Form::StoreShared => (Reg, Reg, Unused, Unused),
            Form::LoadSharedPair | Form::StoreSharedPair => (Pair, Reg, Unused, Unused),
            Form::Atomic => (Reg, Pair, Reg, Unused),
            Form::AtomicPair => (Pair, Pair, Pair, Unused),
            Form::CompareSwap => (Reg, Pair, Reg, Reg),
            Form::CompareSwapPair => (Pair, Pair, Pair, Pair),
            Form::AtomicShared => (Reg, Reg, Reg, Unused),
            Form::CompareSwapShared => (Reg, Reg, Reg, Reg),
        }
    }

    /// Whether section 9 defines the instruction.
    pub fn is_valid(&self) -> bool {
        let form = self.op.form();
        let (rd, ra, rb, c) = self.fields();
        // A B that is an immediate names no register; with one, `imm` is not used.
        let b_immediate = matches!(
            form,
            Form::Unary | Form::Binary | Form::UnaryPair | Form::BinaryPair | Form::Widen
        );
        let b = (b_immediate && self.rb == IMMEDIATE)
            || (Self::is(self.rb, rb) && (!b_immediate || self.imm == 0));
        let imm = match form {
            Form::Bare | Form::Atomic | Form::AtomicPair | Form::AtomicShared => self.imm == 0,
            Form::Index => self.index_is_valid(),
            Form::Scale => self.imm <= 4,
            _ => c == Field::None || u8::try_from(self.imm).is_ok_and(|r| Self::is(r, c)),
        };
        Self::is(self.rd, rd) && Self::is(self.ra, ra) && b && imm
    }

    /// The registers that the instruction reads, and those that it writes, by bit.
    pub fn registers(&self) -> (u64, u64) {
        let bits = |register: u8, field| match field {
            _ if register >= REGISTERS => 0,
            Field::None => 0,
            Field::Reg => 1 << register,
            Field::Pair => 3 << register,
        };
        // CAST: decoding has checked that C is a register where there is one.
        let c = self.imm as u8;
        let (rd, ra, rb, third) = self.fields();
        let first: u64 = bits(self.rd, rd);
        let others = bits(self.ra, ra) | bits(self.rb, rb) | bits(c, third);
        match self.op.form() {
            Form::Store | Form::StorePair | Form::StoreShared | Form::StoreSharedPair => {
                (first | others, 0)
            }
            _ => (others, first),
        }
    }

    fn is(register: u8, field: Field) -> bool {
        match field {
            Field::None => register == 0,
            Field::Reg => register < REGISTERS,
            Field::Pair => register < REGISTERS && register % 2 == 0,
        }
    }

    fn index_is_valid(&self) -> bool {
        match self.op {
            Op::Sr => Special::from_u32(self.imm).is_some(),
            _ => (self.imm as usize) < super::command::MAX_ARGUMENTS,
        }
    }
}
