//! Which globals a compiled script uses, and where: read from its bytecode.
//!
//! The compiler has no other answer to that: the linter is not part of what is linked here. The
//! format is Luau's `lvmload.cpp`. Bytecode of a version that is not known here has no answer, and
//! a test holds that the linked compiler's is known.

use std::collections::BTreeSet;

/// Versions of the format that are read.
const VERSIONS: std::ops::RangeInclusive<u8> = 4..=11;
/// The version of the types in it that has a table of names.
const TYPES: u8 = 3;

/// A global that a script uses, with the members that are read of it at once: `os.getenv`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct GlobalUse {
    /// The line, from 1.
    pub line: u32,
    /// The global, then its member, and that one's.
    pub path: Vec<String>,
    /// It is assigned.
    pub is_write: bool,
}

/// The uses of globals, by line; nothing if the format is not known.
pub fn uses(bytecode: &[u8]) -> Option<BTreeSet<GlobalUse>> {
    let mut reader = Reader { left: bytecode };
    let version = reader.byte()?;
    if !VERSIONS.contains(&version) || reader.byte()? != TYPES {
        return None;
    }
    let count = reader.number()?;
    let strings = (0..count).map(|_| reader.text()).collect::<Option<Vec<_>>>()?;
    while reader.byte()? != 0 {
        reader.number()?;
    }
    let mut uses = BTreeSet::new();
    for _ in 0..reader.number()? {
        function(&mut reader, &strings, &mut uses)?;
    }
    Some(uses)
}

/// Reads a function.
fn function(
    reader: &mut Reader<'_>,
    strings: &[String],
    uses: &mut BTreeSet<GlobalUse>,
) -> Option<()> {
    // Its stack, parameters, upvalues, varargs and flags.
    reader.skip(5)?;
    let types = reader.number()?;
    reader.skip(types)?;
    let code = (0..reader.number()?).map(|_| reader.word()).collect::<Option<Vec<_>>>()?;
    let constants =
        (0..reader.number()?).map(|_| constant(reader, strings)).collect::<Option<Vec<_>>>()?;
    // The functions in it.
    for _ in 0..reader.number()? {
        reader.number()?;
    }
    // The line where it begins, and its name.
    reader.number()?;
    reader.number()?;
    let lines = lines(reader, code.len())?;
    // The names of locals and upvalues.
    if reader.byte()? != 0 {
        for _ in 0..reader.number()? {
            (0..3).try_for_each(|_| reader.number().map(drop))?;
            reader.byte()?;
        }
        for _ in 0..reader.number()? {
            reader.number()?;
        }
    }

    let name = |index: u32| constants.get(index as usize).cloned().flatten();
    let mut at = 0;
    while let Some(instruction) = code.get(at) {
        let operation = instruction.to_le_bytes()[0];
        let operand = code.get(at + 1).copied();
        let path = match operation {
            GET_GLOBAL | SET_GLOBAL => vec![name(operand?)],
            GET_IMPORT => {
                let ids = operand?;
                let count = ids >> 30;
                (0..count).map(|part| name(ids >> (20 - 10 * part) & 0x3ff)).collect()
            }
            _ => Vec::new(),
        };
        if let Some(path) = path.into_iter().collect::<Option<Vec<_>>>().filter(|it| !it.is_empty())
        {
            let line = lines.get(at).copied().unwrap_or_default();
            uses.insert(GlobalUse { line, path, is_write: operation == SET_GLOBAL });
        }
        at += if WITH_OPERAND.contains(&operation) { 2 } else { 1 };
    }
    Some(())
}

/// Reads a constant: its text if it is a string.
fn constant(reader: &mut Reader<'_>, strings: &[String]) -> Option<Option<String>> {
    match reader.byte()? {
        // nil
        0 => {}
        // A boolean.
        1 => reader.skip(1)?,
        // A number.
        2 => reader.skip(8)?,
        3 => return Some(strings.get(reader.number()?.checked_sub(1)?).cloned()),
        // An import.
        4 => reader.skip(4)?,
        // A table: its keys.
        5 => {
            for _ in 0..reader.number()? {
                reader.number()?;
            }
        }
        // A closure.
        6 => drop(reader.number()?),
        // A vector.
        7 => reader.skip(16)?,
        // A table with values.
        8 => {
            for _ in 0..reader.number()? {
                reader.number()?;
                reader.skip(4)?;
            }
        }
        // An integer.
        9 => {
            reader.skip(1)?;
            reader.number()?;
        }
        _ => return None,
    }
    Some(None)
}

/// Reads the lines of a function's instructions.
fn lines(reader: &mut Reader<'_>, count: usize) -> Option<Vec<u32>> {
    if reader.byte()? == 0 {
        return Some(Vec::new());
    }
    let gap = u32::from(reader.byte()?);
    let mut offset = 0_u8;
    let offsets = (0..count)
        .map(|_| {
            offset = offset.wrapping_add(reader.byte()?);
            Some(offset)
        })
        .collect::<Option<Vec<_>>>()?;
    let intervals = (count.checked_sub(1)?.checked_shr(gap)?) + 1;
    let mut line = 0_u32;
    let bases = (0..intervals)
        .map(|_| {
            line = line.wrapping_add(reader.word()?);
            Some(line)
        })
        .collect::<Option<Vec<_>>>()?;
    let line = |(at, offset): (usize, &u8)| Some(bases.get(at >> gap)? + u32::from(*offset));
    offsets.iter().enumerate().map(line).collect()
}

const GET_GLOBAL: u8 = 7;
const SET_GLOBAL: u8 = 8;
const GET_IMPORT: u8 = 12;
/// Instructions that a word follows.
const WITH_OPERAND: [u8; 30] = [
    GET_GLOBAL, SET_GLOBAL, GET_IMPORT, 15, 16, 20, 27, 28, 29, 30, 31, 32, 53, 55, 58, 60, 66, 74,
    75, 77, 78, 79, 80, 83, 84, 85, 86, 87, 88, 90,
];

/// What is left to be read.
struct Reader<'a> {
    left: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, left) = self.left.split_at_checked(count)?;
        self.left = left;
        Some(taken)
    }

    fn skip(&mut self, count: usize) -> Option<()> {
        self.take(count).map(drop)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn word(&mut self) -> Option<u32> {
        self.take(4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_le_bytes)
    }

    /// A number of seven bits a byte.
    fn number(&mut self) -> Option<usize> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return usize::try_from(number).ok();
            }
        }
        None
    }

    fn text(&mut self) -> Option<String> {
        let length = self.number()?;
        self.take(length).map(|bytes| String::from_utf8_lossy(bytes).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::super::ffi::compile;
    use super::*;

    fn used(source: &str) -> Vec<String> {
        let uses = uses(&compile(source).unwrap()).expect("the compiler's format is known");
        uses.into_iter()
            .map(|it| {
                let sign = if it.is_write { "=" } else { "" };
                format!("{}:{}{sign}", it.line, it.path.join("."))
            })
            .collect()
    }

    #[test]
    fn globals_are_those_that_are_read_and_written() {
        assert_eq!(used("print(1)"), ["1:print"]);
        assert_eq!(used("local print = 1\nreturn print"), [""; 0]);
        assert_eq!(used("x = 1\nreturn os.getenv('A')"), ["1:x=", "2:os.getenv"]);
        assert_eq!(
            used("local function f()\n  return prnt(a.b.c)\nend\nreturn f()"),
            ["2:a.b.c", "2:prnt"]
        );
        let line = "local t = { 1, 'a', b = 2.5, vector.create(1, 2, 3) }\n";
        let long = format!("{}last()", line.repeat(150));
        assert!(used(&long).contains(&"151:last".to_owned()));
    }

    #[test]
    fn every_part_of_the_format_is_read() {
        used(
            "local t = {a = 1, b = 'x', c = nil}\nfor k, v in pairs(t) do t[k] = function(...) \
             return v + 1, ... end end\nfor i = 1, 10 do t[i] = i // 2 end\nlocal s: string = `{t.a}`\n\
             if t.a == 1 and s ~= 'x' then t:m() end\nwhile true do break end\n\
             local big = 123456789012345\nreturn #s .. 'y', -big, not t, t.a >= 2, vector.create(1, 2, 3)",
        );
        for script in ["examples/report.luau", "examples/access-log.luau"] {
            let path = format!("{}/../{script}", env!("CARGO_MANIFEST_DIR"));
            assert!(!used(&std::fs::read_to_string(path).unwrap()).is_empty(), "{script}");
        }
    }

    #[test]
    fn broken_bytecode_has_no_answer() {
        let bytecode = compile("print(os.x, 'a', 1.5)\nreturn function() return y end").unwrap();
        for end in 0..bytecode.len().saturating_sub(1) {
            _ = uses(&bytecode[..end]);
        }
        assert_eq!(uses(&[]), None);
        assert_eq!(uses(&[99, 3]), None);
    }
}
