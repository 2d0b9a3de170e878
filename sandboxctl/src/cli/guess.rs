//! What people type who know another tool, and what it is called here.

/// A guess: what was typed, and the tip. A word applies to every command, or after the name of one
/// command only to this; `sandboxctl` is the program itself.
type Guess = (&'static [&'static str], &'static str);

macro_rules! guesses {
    ($($($typed:literal)+ => $tip:literal;)*) => { &[$((&[$($typed),+], $tip)),*] };
}

/// Commands of other tools.
const COMMANDS: &[Guess] = guesses! {
    "create" "start" "up" "new" "init" "launch" "spawn" "sandboxes" =>
        "`run` and `exec` make a sandbox each; `sandbox create IMAGE` makes one for many commands";
    "stop" "kill" "rm" "down" "delete" "remove" "destroy" =>
        "`sandbox rm ID` removes a sandbox, and `sandbox kill ID NUMBER` ends a process in it; that of \
         `run` and `exec` ends with its command, at Ctrl-C too";
    "restart" => "a sandbox that was stopped starts again at its next use: `sandbox run ID COMMAND`";
    "pause" "unpause" "freeze" "thaw" "sandbox unpause" "sandbox freeze" "sandbox thaw" =>
        "`sandbox pause ID` freezes a sandbox, and `sandbox resume ID` thaws it";
    "logs" "events" "follow" =>
        "`sandbox logs -f ID NUMBER` prints the output of a process in a sandbox; `run` and `exec` print \
         it as it comes";
    "attach" "wait" => "`sandbox attach ID NUMBER` shows a process in a sandbox until it ends";
    "shell" "sh" "bash" "ssh" "console" "repl" "connect" "enter" "session" "terminal" =>
        "`exec -it IMAGE bash` in a fresh sandbox, `sandbox shell ID` in one that is there; a line of Luau \
         is `run -c 'CODE'`";
    "python" "python3" "node" "deno" "bun" "ruby" "perl" "php" "go" "cargo" "pip" "npm" "npx" "uv" "uvx"
    "make" =>
        "programs are those of an image: `exec IMAGE PROGRAM`, and --in FILE shows a file of yours, as in \
         `exec --in x.py python:3.13-slim python3 /in/x.py`";
    "eval" => "`run -c 'CODE'`";
    "version" => "`--version`";
    "cp" "copy" =>
        "`sandbox cp FILE ID:PATH` copies into a sandbox, `fs cp FILE :PATH` into an io dir; --in FILE \
         shows a file to a run";
    "sandbox start" => "`sandbox run ID COMMAND` starts a stopped sandbox";
    "sandbox stop" => "`sandbox pause ID` freezes it, and `sandbox rm ID` removes it";
    "sandbox inspect" "sandbox info" => "`sandbox ls --json` has all of it";
    "ls" "cat" "read" "write" "grep" "glob" "find" "edit" "files" "mkdir" =>
        "`fs ls`, `fs read FILE`, `fs grep PATTERN`: `fs --help` lists all";
    "watch" "dev" => "a tool such as entr runs it again: ls *.luau | entr sandboxctl run main.luau";
    "pull" "images" "build" "load" "save" "push" =>
        "`exec` fetches an image by itself where there is none (--pull says when); `image` is for the \
         scripts' own";
    "template" "templates" =>
        "an image is what is called a template elsewhere: `exec IMAGE COMMAND`, `run --image IMAGE`";
    "deploy" "publish" =>
        "there is nothing to deploy: `run FILE` runs a script, and `serve` lets other programs submit some";
    "daemon" "server start" "server run" "server serve" "server up" =>
        "`serve` is the service, and `mcp` what a client of AI agents starts";
    "inspect" "status" "top" "stats" "list" => "`ps` lists sandboxes, and `doctor` checks";
    "info" => "`doctor` says what there is, and `config show` what is set";
    "health" "healthcheck" "ping" "diagnose" =>
        "`doctor` checks this machine; a service answers at /healthz and /readyz";
    "port" "ports" "expose" "tunnel" "proxy" =>
        "`sandbox port ID PORT` forwards a port of a sandbox that was made with `sandbox create --port 8080`";
    "volume" "volumes" "mount" =>
        "`exec --volume SRC:DST` mounts a directory; --io-dir DIR is the one that can be written";
    "network" "networks" "net" "firewall" "allow" =>
        "there is no network but the hosts of `exec --allow HOST`; `config show network.allow` says what \
         is always allowed";
    "snapshot" "snapshots" "checkpoint" "commit" "diff" "changes" =>
        "`exec --diff` and `run --diff` show what changed; --commit WHEN decides whether it is kept, and \
         `artifacts` keeps copies";
    "prune" "clean" "cleanup" "purge" "cache" "system" "image prune" "image clean" =>
        "`gc` removes leftovers, `image rm --stale` sandbox images of other versions, and `image rm \
         --programs --all` unpacked image archives";
    "rmi" => "`image rm ID` removes a sandbox image, and with --programs an unpacked image archive";
    "lint" "compile" "fmt" "validate" => "`check` compiles a script without running it";
    "docs" "api" => "`types` prints the script API, and `man` the manual";
    "secret" "secrets" => "`exec --secret NAME=SOURCE`, and `run --secret NAME=SOURCE`";
    "login" "logout" "auth" "account" "whoami" =>
        "there is no account: `exec` uses the engine's own credentials (docker login), and `token create` \
         makes a token of a service";
    "upgrade" "update" "install" "self" =>
        "what installed it replaces it: install.sh, apt, pip, npm, or cargo install --path sandboxctl";
    "uninstall" =>
        "`gc --all`, `image rm --all` and `image rm --programs --all` remove what it made; then what \
         installed it removes it";
    "mcp list" "mcp ls" "mcp status" "mcp get" =>
        "the client lists its servers; `mcp install --client NAME --print` shows the entry of one";
    "mcp serve" "mcp start" "mcp run" "mcp stdio" => "`mcp` alone serves, on stdin and stdout";
    "mcp tools" => "`mcp --tools GLOB` offers some of them; `tools --list` lists others'";
};

/// Flags of other tools.
const FLAGS: &[Guess] = guesses! {
    "sandboxctl -c" "sandboxctl -e" "sandboxctl --eval" => "`run -c 'CODE'`";
    "sandbox exec -t" "sandbox exec --tty" =>
        "`sandbox shell ID` and `sandbox run -it ID COMMAND` have a terminal";
    "-t" "--tty" "-it" "-ti" => "a script has no terminal; `exec -it IMAGE COMMAND` gives a command one";
    "--secret" "--env-file" =>
        "exec -e NAME passes a variable of yours on, without its value on the command line";
    "-e" "--env" =>
        "a script has arguments, not variables: --arg NAME=VALUE, and `run -c 'CODE'` runs code; a command \
         has variables: `exec -e NAME=VALUE`";
    "-i" "--interactive" "--shell" =>
        "run takes Luau scripts; for a command in an image: exec IMAGE COMMAND…, with -i for its stdin";
    "-v" "--volume" "--mount" =>
        "--io-dir DIR is the writable directory, and --in SRC[:NAME] shows one read-only";
    "gc --archives" "gc --images" "gc --programs" "image rm --archives" =>
        "`image rm --programs --all` removes unpacked image archives";
    "serve --port" "serve -p" "serve --bind" "serve --address" "serve -l" =>
        "--listen ADDRESS:PORT, such as --listen 127.0.0.1:8080";
    "-p" "--publish" "--expose" "--port" =>
        "`sandbox port ID PORT` forwards a port of a sandbox that was made with `sandbox create --port 8080`";
    "--privileged" "--cap-add" "--device" "--security-opt" "--pid" "--ipc" =>
        "a sandbox has no privileges, and no flag gives it some";
    "--entrypoint" => "the entrypoint of an image is not used: the command is executed directly";
    "-d" "--detach" =>
        "`sandbox create IMAGE` makes a sandbox that stays, and `sandbox run -d ID COMMAND` runs a command \
         in it";
    "ps -a" "ps --all" =>
        "`ps` lists all containers there are; `sandbox ls` lists sandboxes that stay, stopped ones too";
    "--name" =>
        "`sandbox create --name NAME IMAGE` makes a sandbox that stays; that of `run` and `exec` needs no \
         name";
    "--hostname" "-h" => "sandboxes have ids, which `ps` lists; nothing needs one";
    "--gpus" "--gpu" "--ulimit" "--init" "--dns" "--add-host" "--platform" "--restart" "--group-add"
    "--userns" "--cgroupns" "--isolation" =>
        "a sandbox has nothing like it: `exec --help` lists what it has";
    "-m" "--mem" "--memory-limit" "--memory-swap" => "--memory SIZE";
    "--cpu" "--cpuset-cpus" "--vcpus" => "--cpus NUMBER";
    "--pids-limit" => "--pids NUMBER";
    "--ttl" "--max-time" "--deadline" "--timeout-ms" => "--timeout TIME, such as --timeout 90s";
    "--tmpfs" => "/tmp is in memory; --tmpfs-size SIZE sets its size";
    "--read-only" "--readonly" => "only the io dir and /tmp are writable; -v SRC:DST:ro mounts read-only";
    "--with" "--package" "--packages" "--requirements" "--deps" =>
        "an image has the packages: `run --image IMAGE` gives a script its programs, and `exec IMAGE \
         COMMAND` runs one";
    "-f" "--file" => "the script is an argument: run FILE";
    "--eval" "--command" => "run -c 'CODE'";
    "--allow-net" "--network" "--net" => "--allow HOST[:PORT], for programs";
    "--no-network" "--no-net" "--offline" => "there is no network without --allow: leave it out";
    "--allow-read" => "--in SRC[:NAME] shows a file or directory read-only";
    "--allow-write" => "--io-dir DIR";
    "--allow-run" => "run --image IMAGE gives a script the image's programs";
    "--allow-env" => "--arg NAME=VALUE";
    "-A" "--allow-all" => "each is allowed by itself: --in, --io-dir, --allow, --image";
    "--output-dir" "--out" "--out-dir" => "--io-dir DIR";
    "--upload" "--input" "--input-file" "--copy" => "--in SRC[:NAME]";
    "mcp --dir" "mcp --directory" "mcp --path" "mcp --root" => "--io-dir DIR";
    "mcp --in" => "an agent has the files of one directory: --io-dir DIR";
    "fs grep -r" "fs grep -R" "fs grep --recursive" => "`fs grep` searches a directory with all below it";
    "--cwd" "--chdir" "--dir" "-C" => "--workdir DIR";
    "--ro" => "--in SRC[:NAME]";
    "--debug" "--log-level" "--trace" => "--verbose prints more, and twice still more";
    "serve --insecure" "serve --no-auth" => "--insecure-no-auth";
    "--ca" "--cacert" "--ca-cert" "--cert" => "--ca-file FILE, with --server";
    "--insecure" "-k" "--no-verify" "--tls-skip-verify" =>
        "the certificate of a service is always checked: --ca-file FILE trusts one, with --server";
};

/// The tip for a command that there is not. `path` is the command whose subcommand it would be.
pub fn command(path: &str, typed: &str) -> Option<&'static str> {
    let own = look_up(COMMANDS, &format!("{path} {typed}"));
    own.or_else(|| look_up(COMMANDS, typed).filter(|_| path.is_empty()))
}

/// The tip for a flag that a command does not have. `path` is the command.
pub fn flag(path: &str, typed: &str) -> Option<&'static str> {
    let name = typed.split(['=', ' ']).next().unwrap_or(typed);
    let path = if path.is_empty() { "sandboxctl" } else { path };
    look_up(FLAGS, &format!("{path} {name}")).or_else(|| look_up(FLAGS, name))
}

fn look_up(guesses: &[Guess], typed: &str) -> Option<&'static str> {
    guesses.iter().find(|(words, _)| words.contains(&typed)).map(|(_, tip)| *tip)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli;
    use clap::Command;

    #[test]
    fn no_guess_is_a_command_and_each_stands_once() {
        let whole = cli::parse::command();
        for guesses in [COMMANDS, FLAGS] {
            let words: Vec<_> = guesses.iter().flat_map(|guess| guess.0).collect();
            for (at, word) in words.iter().enumerate() {
                assert!(!words[..at].contains(word), "{word}");
                let mut path = word.split(' ').filter(|part| *part != "sandboxctl").peekable();
                let mut command = &whole;
                while let Some(part) = path.next() {
                    match command.find_subcommand(part) {
                        Some(found) => {
                            assert!(path.peek().is_some(), "{word} is a command");
                            command = found;
                        }
                        None => assert!(path.peek().is_none(), "{word}"),
                    }
                }
                let is_flag = has(command, word.rsplit(' ').next().unwrap());
                assert!(command.get_name() == "sandboxctl" || !is_flag, "{word} is a flag");
            }
        }
    }

    /// Whether a command has this flag.
    fn has(command: &Command, flag: &str) -> bool {
        command.get_arguments().any(|arg| {
            let long = arg.get_long_and_visible_aliases().unwrap_or_default();
            let is_long = long.iter().any(|long| flag == format!("--{long}"));
            is_long || arg.get_short().is_some_and(|short| flag == format!("-{short}"))
        })
    }

    /// A command, and all that it has.
    fn all(command: &Command) -> Vec<&Command> {
        std::iter::once(command).chain(command.get_subcommands().flat_map(all)).collect()
    }

    #[test]
    fn tip_works_when_it_is_followed_word_for_word() {
        let whole = cli::parse::command();
        let every = all(&whole);
        for (words, tip) in COMMANDS.iter().chain(FLAGS) {
            // Other programs'.
            let own = tip.replace("cargo install --path sandboxctl", "");
            for flag in own.split(|char: char| !char.is_ascii_alphanumeric() && char != '-') {
                if !flag.starts_with('-') || ["--help", "--version"].contains(&flag) {
                    continue;
                }
                let is_group = flag.len() > 2 && !flag.starts_with("--");
                let single = flag.chars().skip(1).map(|letter| format!("-{letter}"));
                let single: Vec<String> =
                    if is_group { single.collect() } else { vec![flag.to_owned()] };
                let has_all = |it: &&&Command| single.iter().all(|flag| has(it, flag));
                assert!(every.iter().any(|it| has_all(&it)), "{words:?}: {flag} in {tip}");
            }
            assert_eq!(cli::tests::named::mistakes(&whole, &own), [] as [String; 0], "{words:?}");
        }
    }
}
