//! What people type who know another tool, and what it is called here.

/// A guess: what was typed, and the tip.
type Guess = (&'static [&'static str], &'static str);

/// Commands of other tools.
const COMMANDS: &[Guess] = &[
    (
        &["create", "start", "up", "new", "init"],
        "a sandbox is made for each `run` and `exec`; one for many calls is `tools --stdio`",
    ),
    (
        &["stop", "kill", "rm", "down", "restart", "pause"],
        "a sandbox ends with its command: send Ctrl-C or SIGTERM to its sandboxctl; `gc` removes what \
         a killed one left",
    ),
    (
        &["logs", "attach", "wait", "events"],
        "`run` and `exec` print the output as it comes; --json gives it in one document, and \
         --audit FILE keeps a line of each operation",
    ),
    (
        &["shell", "sh", "bash", "ssh", "console", "repl"],
        "there is no interactive session; a line for the shell is \
         `exec IMAGE --shell 'LINE'`, and a line of Luau `run -c 'CODE'`",
    ),
    (&["eval"], "`run -c 'CODE'`"),
    (&["cp", "copy"], "`fs cp FILE :PATH` and `fs cp :PATH FILE`; --in FILE shows a file to a run"),
    (
        &["ls", "cat", "read", "write", "grep", "glob", "find", "edit"],
        "`fs ls`, `fs read FILE`, `fs grep PATTERN`: `fs --help` lists all",
    ),
    (&["watch"], "a tool such as entr runs it again: ls *.luau | entr sandboxctl run main.luau"),
    (
        &["pull", "images", "rmi", "build", "load", "save"],
        "`exec` fetches an image by itself where there is none (--pull says when); `image` is for \
         the scripts' own",
    ),
    (&["inspect", "status", "top", "stats", "list"], "`ps` lists sandboxes, and `doctor` checks"),
    (&["info"], "`doctor` says what there is, and `config show` what is set"),
    (
        &["prune", "clean", "cleanup"],
        "`gc` removes leftovers, and `image rm --stale` sandbox images of other versions",
    ),
    (&["lint", "compile", "fmt"], "`check` compiles a script without running it"),
    (&["docs", "api"], "`types` prints the script API, and `man` the manual"),
    (&["login"], "`exec` uses the engine's own credentials: docker login"),
    (&["upgrade", "update", "install"], "cargo installs it: cargo install --path sandboxctl"),
];

/// Flags of other tools.
const FLAGS: &[Guess] = &[
    (
        &["-t", "--tty"],
        "there is no terminal in a sandbox; -i passes stdin on, and --shell 'LINE' runs a line",
    ),
    (
        &["--secret", "--env-file"],
        "exec -e NAME passes a variable of yours on, without its value on the command line",
    ),
    (
        &["-e", "--env"],
        "a script has arguments, not variables: --arg NAME=VALUE; a command has: exec -e NAME=VALUE",
    ),
    (
        &["-i", "-it", "-ti", "--interactive", "--shell"],
        "run takes Luau scripts; for a command in an image: exec IMAGE COMMAND…, with -i for its stdin",
    ),
    (
        &["-v", "--volume", "--mount"],
        "--io-dir DIR is the writable directory, and --in SRC[:NAME] shows one read-only",
    ),
    (
        &["-p", "--publish", "--expose"],
        "nothing reaches into a sandbox; what it gives is its output and its files",
    ),
    (
        &["--privileged", "--cap-add", "--device", "--security-opt", "--pid", "--ipc"],
        "a sandbox has no privileges, and no flag gives it some",
    ),
    (&["--entrypoint"], "the entrypoint of an image is not used: the command is executed directly"),
    (&["-d", "--detach"], "a sandbox lives as long as its command; the shell's & runs it beside"),
    (&["--name", "--hostname", "-h"], "sandboxes have ids, which `ps` lists; nothing needs one"),
    (
        &["--gpus", "--ulimit", "--init", "--dns", "--add-host", "--platform", "--restart"],
        "a sandbox has nothing like it: `exec --help` lists what it has",
    ),
    (&["-m", "--mem", "--memory-limit"], "--memory SIZE"),
    (&["--cpu", "--cpuset-cpus"], "--cpus NUMBER"),
    (&["--pids-limit"], "--pids NUMBER"),
    (&["--tmpfs"], "/tmp is in memory; --tmpfs-size SIZE sets its size"),
    (
        &["--read-only", "--readonly"],
        "only the io dir and /tmp are writable; -v SRC:DST:ro mounts read-only",
    ),
    (&["-f", "--file"], "the script is an argument: run FILE"),
    (&["--eval", "--command"], "run -c 'CODE'"),
    (&["--allow-net", "--network", "--net"], "--allow HOST[:PORT], for programs"),
    (&["--allow-read"], "--in SRC[:NAME] shows a file or directory read-only"),
    (&["--allow-write"], "--io-dir DIR"),
    (&["--allow-run"], "run --image IMAGE gives a script the image's programs"),
    (&["--allow-env"], "--arg NAME=VALUE"),
    (&["-A", "--allow-all"], "each is allowed by itself: --in, --io-dir, --allow, --image"),
    (&["--output-dir", "--out", "--out-dir"], "--io-dir DIR"),
    (&["--cwd", "--chdir"], "--workdir DIR"),
    (&["--ro"], "--in SRC[:NAME]"),
];

/// The tip for a command that there is not.
pub fn command(typed: &str) -> Option<&'static str> {
    look_up(COMMANDS, typed)
}

/// The tip for a flag that a command does not have.
pub fn flag(typed: &str) -> Option<&'static str> {
    let name = typed.split(['=', ' ']).next().unwrap_or(typed);
    look_up(FLAGS, name)
}

fn look_up(guesses: &[Guess], typed: &str) -> Option<&'static str> {
    guesses.iter().find(|(words, _)| words.contains(&typed)).map(|(_, tip)| *tip)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli;

    #[test]
    fn no_guess_is_a_command_and_each_stands_once() {
        let command = cli::parse::command();
        for guesses in [COMMANDS, FLAGS] {
            let words: Vec<_> = guesses.iter().flat_map(|guess| guess.0).collect();
            for (at, word) in words.iter().enumerate() {
                assert!(!words[..at].contains(word), "{word}");
                assert!(command.find_subcommand(word).is_none(), "{word}");
            }
        }
    }
}
