//! `check`: reports whether a script compiles. It needs no sandbox, so it runs on the host, under
//! limits of its own, because the VM's limits do not cover compilation.

use std::io::{Read as _, Write as _};

use sandbox_protocol::argv::{CheckReply, ConfinementPolicy, MAX_CHECK_WARNINGS};
use sandbox_protocol::limits::MAX_SOURCE_BYTES;

use crate::confine::landlock::Tenant;
use crate::{Exit, StartError, confine, luau, run, source};

pub(crate) fn main(policy: ConfinementPolicy) -> Result<Exit, StartError> {
    confine::limit_check()?;
    // It needs no file access. What is in force is not reported: the policy decides what is
    // required.
    confine::confine(Tenant::Scripts, policy, std::iter::empty())?;
    let mut script = Vec::new();
    let mut stdin = std::io::stdin().take(MAX_SOURCE_BYTES as u64 + 1);
    stdin.read_to_end(&mut script).map_err(StartError::Read)?;
    // The compiler recurses with the script's nesting, as the VM does.
    let check = std::thread::Builder::new().stack_size(run::STACK_BYTES).spawn(move || {
        match std::str::from_utf8(&script) {
            Ok(text) => source::prepare(text).and_then(luau::check),
            // Our limit may have split the last character.
            Err(_) if script.len() > MAX_SOURCE_BYTES => Err(source::too_large()),
            Err(error) => Err(source::syntax(
                &script[..error.valid_up_to()],
                r"the script is not UTF-8 text (write such bytes as \xNN)",
            )),
        }
    });
    let checked = check.map_err(StartError::Thread)?.join().expect("a panic ends the process");
    let reply = match checked {
        Ok(mut warnings) => {
            warnings.truncate(MAX_CHECK_WARNINGS);
            CheckReply { error: None, warnings }
        }
        Err(error) => CheckReply { error: Some(error), warnings: Vec::new() },
    };
    let reply = serde_json::to_string(&reply).expect("plain data");
    match writeln!(std::io::stdout(), "{reply}") {
        Ok(()) => Ok(Exit::Done),
        Err(_) => Ok(Exit::Lost),
    }
}
