//! Names that a script may expect and that are not here: what they are called, and what to use.

use std::collections::BTreeSet;

use sandbox_protocol::argv::CheckWarning;

use super::bytecode::{self, GlobalUse};

/// The globals without members, or of which anything may be a member: those of `tools` the host knows. A test
/// holds that the VM has exactly these, and the tables.
const GLOBALS: &[&str] = &[
    "_G", "_VERSION", "args", "assert", "error", "getmetatable", "ipairs", "next", "pairs",
    "pcall", "policy", "print", "rawequal", "rawget", "rawlen", "rawset", "secrets", "select",
    "setmetatable", "tonumber", "tools", "tostring", "type", "typeof", "unpack", "warn", "xpcall",
];
/// The globals that are tables, and what is in them.
const TABLES: &[(&str, &str)] = &[
    (
        "bit32",
        "arshift band bnot bor btest bxor byteswap countlz countrz extract lrotate lshift replace \
         rrotate rshift",
    ),
    (
        "buffer",
        "copy create fill fromstring len readbits readf32 readf64 readi16 readi32 readi8 readstring \
         readu16 readu32 readu8 tostring writebits writef32 writef64 writei16 writei32 writei8 \
         writestring writeu16 writeu32 writeu8",
    ),
    ("coroutine", "close create isyieldable resume running status wrap yield"),
    ("debug", "info traceback"),
    ("fs", super::io::FS_NAMES),
    ("io", "lines list open type"),
    ("json", "array decode encode null"),
    (
        "math",
        "abs acos asin atan atan2 ceil clamp cos cosh deg e exp floor fmod frexp huge isfinite isinf \
         isnan ldexp lerp log log10 map max min modf nan noise phi pi pow rad random randomseed round \
         sign sin sinh sqrt sqrt2 tan tanh tau",
    ),
    ("os", "clock date difftime remove rename time"),
    ("process", "exec"),
    (
        "string",
        "byte char find format gmatch gsub len lower match pack packsize rep reverse split sub unpack \
         upper",
    ),
    (
        "table",
        "clear clone concat create find foreach foreachi freeze getn insert isfrozen maxn move pack \
         remove sort unpack",
    ),
    ("test", "case equal fail skip"),
    ("utf8", "char charpattern codepoint codes len offset"),
    (
        "vector",
        "abs angle ceil clamp create cross dot floor lerp magnitude max min normalize one sign zero",
    ),
];

const ARGS: &str = "a script has arguments, not variables: --arg NAME=VALUE gives args.NAME";
const EXEC: &str = "programs are run by process.exec, in a sandbox of an image: run --image IMAGE";
const INPUT: &str = "input is a file: --in FILE is /in/FILE, and --in -:NAME reads stdin";
const OUTPUT: &str = "print writes a line of the log, and return gives the result";
const CHUNK: &str = "a script is one chunk: it cannot load others";

/// What Lua has elsewhere and scripts do not have here, and what to use.
const ABSENT: &[(&str, &str)] = &[
    ("os.getenv os.setenv arg", ARGS),
    ("os.execute io.popen", EXEC),
    ("os.exit", "return ends the script, and error(message) makes it fail"),
    ("os.tmpname io.tmpfile", "every name in the io dir is free to be used"),
    ("os.setlocale", "there is one locale, C"),
    ("io.read io.stdin io.input", INPUT),
    ("io.write io.stdout io.output", OUTPUT),
    ("io.stderr", "warn writes a line of the log, marked as a warning"),
    ("io.close", "the file has it: file:close()"),
    ("io.flush", "the file has it: file:flush()"),
    ("require package module load loadstring loadfile dofile string.dump ffi jit", CHUNK),
    ("setfenv getfenv", "functions have no environment of their own here"),
    ("newproxy", "setmetatable({}, …) makes an object"),
    ("gcinfo collectgarbage", "the memory of the VM is bounded by --vm-memory"),
    ("debug.getinfo", "debug.info"),
    ("debug.sethook debug.getlocal", "debug.info and debug.traceback are all there is"),
    ("string.gfind", "string.gmatch"),
    ("string.trim", "string.match(text, \"^%s*(.-)%s*$\")"),
    ("table.setn", "a table has its own length: #t"),
    ("math.mod", "math.fmod, or a % b"),
    ("bit", "bit32"),
    ("task", "a script has one thread; coroutine is there"),
    ("wait sleep", "a script cannot wait"),
    ("console", "print"),
    ("printf", "print(string.format(…))"),
    ("null", "json.null, or nil"),
    ("None undefined", "nil"),
    ("True", "true"),
    ("False", "false"),
];

/// Most characters of a name that a message repeats.
const LONGEST: usize = 64;
/// The smallest likeness at which a name is suggested.
const LIKENESS: f64 = 0.7;

/// The names that a compiled script uses and that no script has.
pub fn unknown(bytecode: &[u8]) -> Vec<CheckWarning> {
    let uses = bytecode::uses(bytecode).unwrap_or_default();
    // A script may set globals, and members of the tables that it sets.
    let own: BTreeSet<String> =
        uses.iter().filter(|it| it.is_write).map(|it| it.path[0].clone()).collect();
    let reads = uses.iter().filter(|it| !it.is_write && !own.contains(&it.path[0]));
    let warning = |it: &GlobalUse| Some(CheckWarning { line: it.line, message: explain(it)? });
    let mut unknown: Vec<_> = reads.filter_map(warning).collect();
    unknown.dedup();
    unknown
}

/// What is wrong with a use, if its name is not there.
fn explain(used: &GlobalUse) -> Option<String> {
    let global = used.path[0].as_str();
    if GLOBALS.contains(&global) {
        return None;
    }
    let table = TABLES.iter().find(|(name, _)| *name == global);
    let (name, known_names): (String, Vec<&str>) = match (table, used.path.get(1)) {
        (None, _) => {
            let tables = TABLES.iter().map(|row| row.0);
            (global.to_owned(), GLOBALS.iter().copied().chain(tables).collect())
        }
        (Some(_), None) => return None,
        (Some((_, members)), Some(member)) => {
            let members: Vec<&str> = members.split(' ').collect();
            if members.contains(&member.as_str()) {
                return None;
            }
            (format!("{global}.{member}"), members)
        }
    };
    if let Some((_, instead)) = ABSENT.iter().find(|row| row.0.split(' ').any(|it| it == name)) {
        return Some(format!("there is no '{name}': {instead}"));
    }
    // A name may be as long as a script.
    let name: String = name.chars().take(LONGEST).collect();
    let last = name.rsplit('.').next().unwrap_or(&name);
    let nearest = nearest(last, &known_names);
    let what = if name == global { "global" } else { "function" };
    Some(match nearest {
        Some(known) => {
            let known = if name == global { known.to_owned() } else { format!("{global}.{known}") };
            format!("there is no {what} '{name}': did you mean '{known}'?")
        }
        None => format!("there is no {what} '{name}'"),
    })
}

/// The known name that is most like this one, if one is like it. Of those that take as few changes it is the one
/// with the most letters in their places, and then the first.
fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let likeness = |known: &str| {
        let changes = strsim::normalized_damerau_levenshtein(name, known);
        (changes, strsim::jaro_winkler(name, known))
    };
    let all = known.iter().map(|&known| (likeness(known), known));
    let nearest = all.filter(|((changes, _), _)| *changes >= LIKENESS).max_by(|one, other| {
        let (one_like, other_like) = (one.0, other.0);
        let by_changes = one_like.0.total_cmp(&other_like.0);
        by_changes.then(one_like.1.total_cmp(&other_like.1)).then(other.1.cmp(one.1))
    });
    nearest.map(|(_, known)| known)
}

/// Every known name, with its table.
#[cfg(test)]
pub(super) fn known() -> Vec<String> {
    let of = |(global, members): &(&str, &str)| {
        let members: Vec<_> =
            members.split(' ').map(|member| format!("{global}.{member}")).collect();
        [(*global).to_owned()].into_iter().chain(members)
    };
    GLOBALS.iter().map(|&global| global.to_owned()).chain(TABLES.iter().flat_map(of)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(source: &str) -> Vec<String> {
        let bytecode = super::super::ffi::compile(source).unwrap();
        unknown(&bytecode).into_iter().map(|it| format!("{}: {}", it.line, it.message)).collect()
    }

    #[test]
    fn unknown_names_get_a_suggestion() {
        assert_eq!(
            messages("prnt('x')\nlocal y = foo\nstring.trm('a')\nreturn math.flor(1)"),
            [
                "1: there is no global 'prnt': did you mean 'print'?",
                "2: there is no global 'foo'",
                "3: there is no function 'string.trm'",
                "4: there is no function 'math.flor': did you mean 'math.floor'?",
            ]
        );
        // Of those that are as near.
        assert_eq!(
            messages("local x = math.sine(1)\nreturn rawet(x)"),
            [
                "1: there is no function 'math.sine': did you mean 'math.sin'?",
                "2: there is no global 'rawet': did you mean 'rawget'?",
            ]
        );
        assert_eq!(
            messages("return os.getenv('HOME')"),
            [format!("1: there is no 'os.getenv': {ARGS}")]
        );
        assert_eq!(messages("return io.read()"), [format!("1: there is no 'io.read': {INPUT}")]);
        assert_eq!(messages("return require('x')"), [format!("1: there is no 'require': {CHUNK}")]);
    }

    #[test]
    fn names_that_a_script_defines_are_known() {
        for source in [
            "function f() return 1 end\nreturn f()",
            "x = { y = 1 }\nreturn x.y",
            "local g = 1\nreturn g",
            "return args.name, json.null, print, os.time()",
            "return _G.anything, args.a.b",
        ] {
            assert_eq!(messages(source), [""; 0], "{source}");
        }
    }

    #[test]
    fn absent_names_are_absent() {
        for name in ABSENT.iter().flat_map(|row| row.0.split(' ')) {
            let (global, member) = name.split_once('.').unwrap_or((name, ""));
            assert!(!GLOBALS.contains(&global), "{name}");
            match TABLES.iter().find(|row| row.0 == global) {
                Some((_, members)) => assert!(!members.split(' ').any(|it| it == member), "{name}"),
                None => assert!(member.is_empty(), "{name}"),
            }
        }
    }
}
