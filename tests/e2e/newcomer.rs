//! What someone types first who knows Docker, Deno or a CI system, and what they must see.
//!
//! A row is a line for the shell, its exit code, and texts of its output. `IMAGE` stands for what
//! names an image: on the embedded engine a directory, which the engine has in place of images.

use std::process::Command;

use crate::engine::{Engine, engine};
use crate::fixture::{Fixture, finish, sandboxctl};
use crate::rootfs::{Provided, Rootfs};

/// What is typed, the exit code, and what must be seen.
type Row = (&'static str, i32, &'static [&'static str]);

/// A directory with the files that a newcomer has.
fn place() -> Fixture {
    let place = Fixture::new();
    place.write("hello.luau", "print('hello')\nreturn { answer = 42 }");
    place.write("text.luau", "print('a log line')\nreturn 'plain text'");
    place.write("bad.luau", "error('it went wrong')");
    place.write("args.luau", "return args");
    place.write("job.py", "import os\nprint(os.getcwd())\n");
    place.write("job.sh", "#!/bin/sh\nif [ -f x ]; then echo x; fi\n");
    place.write("data.csv", "a,b\n1,2\n");
    place.write("src/main.txt", "text\n");
    place
}

/// Types each row into a shell, and says which ones were not answered as they must be.
fn type_in(place: &Fixture, image: Option<&Provided>, rows: &[Row]) {
    let image = image.map(|image| match (engine(), image.args().as_slice()) {
        (Engine::Docker, [_, name]) => name.clone(),
        (_, args) => format!("{} --", args.join(" ")),
    });
    let folder = sandboxctl().parent().unwrap().to_owned();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path =
        std::env::join_paths(std::iter::once(folder).chain(std::env::split_paths(&path))).unwrap();
    let mut wrong = Vec::new();
    for (line, code, seen) in rows {
        let typed = line.replace("IMAGE", image.as_deref().unwrap_or("IMAGE"));
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(format!("exec 2>&1; {typed}"));
        place.equip(&mut shell);
        shell.env("PATH", &path);
        let ended = finish(shell);
        let missing: Vec<_> = seen.iter().filter(|text| !ended.stdout.contains(**text)).collect();
        if ended.code != *code || !missing.is_empty() {
            wrong.push(format!(
                "$ {line}\n{}exit code {}, not seen: {missing:?}\n",
                ended.stdout, ended.code
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn newcomer_runs_scripts() {
    type_in(
        &place(),
        None,
        &[
            ("sandboxctl run hello.luau", 0, &["hello\n", "\"answer\": 42"]),
            ("sandboxctl run -c 'return 6 * 7'", 0, &["42\n"]),
            ("echo 'return 6 * 7' | sandboxctl run -", 0, &["42\n"]),
            (
                "sandboxctl run --verbose hello.luau",
                0,
                &["connecting to the ", "greeting the agent: ", "running the script: "],
            ),
            ("sandboxctl run --rm hello.luau", 0, &["hello"]),
            ("sandboxctl run --network none hello.luau", 0, &["hello"]),
            ("sandboxctl run --memory 512m --cpus 1 hello.luau", 0, &["hello"]),
            ("sandboxctl run --memory 1G --timeout 30 hello.luau", 0, &["hello"]),
            ("sandboxctl run --user 1000 -c 'return 1'", 0, &["1"]),
            ("sandboxctl run hello.luau -o json", 0, &["\"schema\":\"sandboxctl.result/1\""]),
            ("sandboxctl run hello.luau --output json", 0, &["\"status\":\"ok\""]),
            ("sandboxctl run hello.luau --format=json", 0, &["\"answer\":42"]),
            ("sandboxctl run args.luau --arg name=World", 0, &["\"name\": \"World\""]),
            ("test \"$(sandboxctl run -r text.luau 2>/dev/null)\" = 'plain text'", 0, &[]),
            ("sandboxctl run --result-only hello.luau 2>/dev/null", 0, &["{\"answer\":42}\n"]),
            (
                "sandboxctl run hello.luau text.luau",
                0,
                &["running hello.luau", "\"answer\": 42", "running text.luau", "plain text"],
            ),
            ("sandboxctl run bad.luau hello.luau -j 2", 1, &["it went wrong", "\"answer\": 42"]),
            ("sandboxctl run hello.luau text.luau -j2 --json | wc -l", 0, &["2\n"]),
            ("sandboxctl run -c 'return fs.read(\"/in/data.csv\")' --in data.csv", 0, &["1,2"]),
            ("sandboxctl run -c 'return fs.read(\"/d.csv\")' -v ./data.csv:/d.csv:ro", 0, &["1,2"]),
            (
                "sandboxctl run -c 'fs.write(\"out.txt\", \"x\")' -v ./made:/work && ls made",
                0,
                &["out.txt"],
            ),
            ("sandboxctl run -c 'while true do end' --timeout 1", 124, &["time", "--timeout"]),
            ("sandboxctl run bad.luau", 1, &["bad.luau:1", "it went wrong"]),
            ("sandboxctl check hello.luau", 0, &[]),
            ("sandboxctl run busybox echo hi", 2, &["sandboxctl exec busybox COMMAND"]),
            ("sandboxctl run -it busybox sh", 2, &["exec IMAGE COMMAND"]),
            ("sandboxctl run -o json job.py", 2, &["\"hint\":\"sandboxctl exec --in job.py"]),
            ("sandboxctl run -c 'import os'", 1, &["python3 -c CODE"]),
            ("sandboxctl run - < job.py", 1, &["it looks like Python"]),
            ("echo 'print(1)' > p.py; sandboxctl run p.py", 2, &["p.py is Python by its name"]),
            ("echo 'print(1)' > p.js; sandboxctl run p.js", 2, &["--in p.js node:24-slim node"]),
            ("sandboxctl check job.py", 2, &["sandboxctl exec --in job.py"]),
            ("sandboxctl run hello.luau < data.csv", 0, &["--in -:NAME shows it to a script"]),
            ("sandboxctl run - < hello.luau", 0, &["\"answer\": 42"]),
            ("sandboxctl exec python3 -c 'print(1)'", 2, &["exec IMAGE python3 -c"]),
            (
                "sandboxctl run job.py",
                2,
                &["is Python by its name", "sandboxctl exec --in job.py python:3.13-slim python3"],
            ),
            ("sandboxctl run job.sh", 2, &["is a shell script by its name", "debian:13 sh /in"]),
        ],
    );
}

#[test]
fn newcomer_runs_commands() {
    let image = Rootfs::busybox().provide();
    type_in(
        &place(),
        Some(&image),
        &[
            ("sandboxctl exec IMAGE echo hello", 0, &["hello\n"]),
            ("sandboxctl exec IMAGE ls -la /", 0, &["bin"]),
            ("sandboxctl exec --rm -i IMAGE cat < data.csv", 0, &["1,2"]),
            ("sandboxctl exec -e A=1 -e B=2 IMAGE env", 0, &["A=1", "B=2"]),
            ("sandboxctl exec -w /tmp IMAGE pwd", 0, &["/tmp\n"]),
            ("sandboxctl exec -u 1000:1000 IMAGE id", 0, &["uid=1000"]),
            ("sandboxctl exec -u 1000 IMAGE id", 0, &["uid=1000", "gid=1000"]),
            ("sandboxctl exec --in data.csv IMAGE cat /in/data.csv", 0, &["1,2"]),
            ("sandboxctl exec -v ./src:/work IMAGE ls", 0, &["main.txt"]),
            ("sandboxctl exec -v \"$PWD/src:/work:ro\" IMAGE cat /work/main.txt", 0, &["text"]),
            ("sandboxctl exec -v ./src:/work:ro IMAGE touch /work/x", 1, &["Read-only"]),
            (
                "sandboxctl exec --mount type=bind,source=./src,target=/work,readonly IMAGE ls /work",
                0,
                &["main.txt"],
            ),
            ("sandboxctl exec -v ./src:/a -v ./src:/b:ro IMAGE ls /b", 0, &["main.txt"]),
            ("sandboxctl exec --network none IMAGE true", 0, &[]),
            ("sandboxctl exec --memory 64m --cpus 0.5 --pids 64 IMAGE true", 0, &[]),
            ("sandboxctl exec IMAGE sh -c 'exit 7'", 7, &[]),
            ("sandboxctl exec IMAGE sh -c 'kill -9 $$'", 137, &["ended by signal 9 (SIGKILL)"]),
            ("sandboxctl exec IMAGE no-such-program", 127, &["was not found"]),
            ("sandboxctl exec IMAGE 'ls | wc -l'", 127, &["--shell 'ls | wc -l'"]),
            ("sandboxctl exec --shell 'ls / | wc -l' IMAGE", 0, &[]),
            ("sandboxctl exec IMAGE cat data.csv", 1, &["--in data.csv shows it at /in/data.csv"]),
            ("sandboxctl exec IMAGE ./job.sh", 127, &["--in ./job.sh shows it at /in/job.sh"]),
            ("sandboxctl exec IMAGE touch kept", 0, &["discarded; --io-dir DIR keeps it"]),
            ("sandboxctl exec --io-dir out IMAGE touch kept && ls out", 0, &["kept"]),
            ("sandboxctl exec -o json IMAGE true", 0, &["\"schema\":\"sandboxctl.exec/1\""]),
            ("sandboxctl exec --timeout 1 IMAGE sleep 30", 124, &["--timeout"]),
            ("sandboxctl exec -i IMAGE wc -l < data.csv", 0, &["2\n"]),
            ("sandboxctl exec IMAGE wc -l < data.csv", 0, &["0\n", "not passed on: -i passes it"]),
            ("echo 5 | sandboxctl exec IMAGE wc -l", 0, &["0\n", "-i passes it to the command"]),
            ("test -z \"$(sandboxctl exec IMAGE true </dev/null 2>&1)\"", 0, &[]),
            ("test -z \"$(sandboxctl exec --in -:x IMAGE true < data.csv 2>&1)\"", 0, &[]),
            ("sandboxctl exec --timeout 5m IMAGE yes | head -1", 0, &["y\n"]),
            (
                "bash -o pipefail -c 'sandboxctl exec --timeout 5m IMAGE yes 2>err | head -1'; code=$?
                test ! -s err; exit $((code - $?))",
                141,
                &["y\n"],
            ),
        ],
    );
}

#[test]
fn newcomer_gets_the_command_to_type() {
    type_in(
        &place(),
        None,
        &[
            ("sandboxctl", 2, &["Usage: sandboxctl", "Commands:"]),
            ("sandboxctl --version", 0, &["sandboxctl 0"]),
            ("sandboxctl run", 2, &["SCRIPT"]),
            ("sandboxctl run none.luau", 2, &["none.luau: No such file"]),
            ("sandboxctl exec", 2, &["IMAGE", "exec IMAGE COMMAND"]),
            ("sandboxctl exec debian:13", 2, &["COMMAND: it is missing"]),
            ("sandboxctl exec debian:13 --timeout 5 ls", 2, &["stand before the image"]),
            (
                "sandboxctl exec -it debian:13 bash",
                2,
                &["the input device is not a TTY", "-i passes stdin on"],
            ),
            ("sandboxctl exec -v cache:/cache debian:13 ls", 2, &["a directory is ./cache"]),
            ("sandboxctl exec -v ./src debian:13 ls", 2, &["expected SRC:DST"]),
            (
                "sandboxctl exec -v ./src:/a -v ./out:/b debian:13 ls",
                2,
                &["one writable directory", "--volume ./out:/b:ro"],
            ),
            (
                "sandboxctl run hello.luau -v ./src:/etc/x:ro",
                2,
                &["--volume", "the sandbox has its own /etc", "-v SRC:DST:ro"],
            ),
            (
                "sandboxctl run hello.luau -v ./src:/in/x:ro -v ./src:/in/x/y:ro",
                2,
                &["its own /in"],
            ),
            ("sandboxctl run hello.luau -vv", 2, &["more output is --verbose"]),
            ("sandboxctl run hello.luau -e X=1", 2, &["--arg NAME=VALUE"]),
            ("sandboxctl run hello.luau --network host", 2, &["--allow HOST"]),
            ("sandboxctl run hello.luau --allow-net", 2, &["--allow HOST"]),
            ("sandboxctl run hello.luau --allow-read=.", 2, &["--in SRC"]),
            ("sandboxctl run hello.luau --secret KEY", 2, &["env:VARIABLE, file:PATH or -"]),
            ("sandboxctl run hello.luau -d", 2, &["sandbox run -d ID COMMAND"]),
            ("sandboxctl run hello.luau -p 80:80", 2, &["sandbox port ID PORT"]),
            ("sandboxctl run hello.luau --privileged", 2, &["no privileges"]),
            ("sandboxctl run hello.luau --name x", 2, &["sandbox create --name NAME IMAGE"]),
            ("sandboxctl run hello.luau --seed x", 2, &["0 to 4294967295"]),
            ("HOME=/dev/null sandboxctl check hello.luau", 0, &[]),
            ("sandboxctl artifacts verify src", 2, &["it has no manifest.json\n"]),
            ("sandboxctl serve --pool 1000", 2, &["'1000' is too many: at most 64"]),
            (
                "sandboxctl token create --data-dir new --subject a --scope sandboxes",
                0,
                &["new yet: it was created"],
            ),
            ("sandboxctl run hello.luau --memory 512", 2, &["is not a size with a unit"]),
            ("sandboxctl run hello.luau --timout 5s", 2, &["--timeout"]),
            ("sandboxctl run hello.luau -o yaml", 2, &["possible values: json"]),
            (
                "sandboxctl run hello.luau --allow all",
                2,
                &["none allows all hosts", "--allow HOST"],
            ),
            ("sandboxctl run hello.luau --allow '*'", 2, &["--allow '*.example.org'"]),
            ("sandboxctl run hello.luau --allow a.x,b.x", 2, &["--allow a.x --allow b.x"]),
            (
                "sandboxctl exec --allow 127.0.0.1:8080 debian:13 ls",
                2,
                &["needs no rule", "--allow host.sandbox.internal:PORT"],
            ),
            ("sandboxctl run hello.luau --timeout 0", 2, &["is not a limit", "is at most 10m"]),
            ("sandboxctl run hello.luau --timeout none", 2, &["is at most 10m"]),
            ("sandboxctl run hello.luau --memory 0", 2, &["is at most 4GiB"]),
            ("sandboxctl run hello.luau --user nobody", 2, &["--user 0 is root", "--user 1000"]),
            ("sandboxctl create", 2, &["`sandbox create IMAGE` makes one"]),
            ("sandboxctl connect x", 2, &["exec -it IMAGE bash", "sandbox shell ID"]),
            ("sandboxctl python x.py", 2, &["exec --in x.py python:3.13-slim python3 /in/x.py"]),
            ("sandboxctl run --with pandas hello.luau", 2, &["an image has the packages"]),
            ("sandboxctl -c 'print(1)'", 2, &["`run -c 'CODE'`"]),
            ("sandboxctl -e 'print(1)'", 2, &["`run -c 'CODE'`"]),
            ("sandboxctl version", 2, &["`--version`"]),
            ("sandboxctl ps -a", 2, &["`ps` lists all"]),
            ("sandboxctl dev", 2, &["entr"]),
            ("sandboxctl port x 80", 2, &["sandbox port ID PORT"]),
            ("sandboxctl volume ls", 2, &["`exec --volume SRC:DST`"]),
            ("sandboxctl network ls", 2, &["`exec --allow HOST`"]),
            ("sandboxctl snapshot x", 2, &["`exec --diff`"]),
            ("sandboxctl auth login", 2, &["there is no account", "`token create`"]),
            ("sandboxctl self update", 2, &["cargo install --path sandboxctl"]),
            ("sandboxctl uninstall", 2, &["`image rm --all`"]),
            ("sandboxctl template list", 2, &["an image is what is called a template"]),
            ("sandboxctl deploy", 2, &["`serve`"]),
            ("sandboxctl health", 2, &["`doctor` checks this machine"]),
            ("sandboxctl mcp list", 2, &["`mcp install --client NAME --print`"]),
            ("sandboxctl serve --port 8080", 2, &["--listen 127.0.0.1:8080"]),
            ("sandboxctl exec --gpu all debian:13 ls", 2, &["nothing like it"]),
            ("sandboxctl exec -d debian:13 ls", 2, &["sandbox run -d ID COMMAND"]),
            ("sandboxctl exec --detach debian:13 ls", 2, &["sandbox run -d ID COMMAND"]),
            ("sandboxctl exec --name x debian:13 ls", 2, &["sandbox create --name NAME IMAGE"]),
            ("sandboxctl exec --ca x.pem debian:13 ls", 2, &["--ca-file FILE"]),
            ("sandboxctl exec --insecure debian:13 ls", 2, &["always checked", "--ca-file FILE"]),
            ("! sandboxctl exec --xyz debian:13 ls 2>&1 | grep tip:", 0, &[]),
            ("sandboxctl start", 2, &["`sandbox create IMAGE` makes one"]),
            ("sandboxctl stop x", 2, &["`sandbox rm ID`", "`sandbox kill ID NUMBER`"]),
            ("sandboxctl logs", 2, &["as it comes"]),
            ("sandboxctl shell", 2, &["exec -it IMAGE bash", "sandbox shell ID"]),
            ("sandboxctl repl", 2, &["run -c 'CODE'"]),
            ("sandboxctl cp a b", 2, &["fs cp FILE :PATH"]),
            ("sandboxctl ls", 2, &["`fs ls`"]),
            ("sandboxctl watch", 2, &["entr"]),
            ("sandboxctl pull debian", 2, &["fetches an image by itself"]),
            ("sandboxctl prune", 2, &["`gc`", "image rm --stale"]),
            ("sandboxctl cache clean", 2, &["`image rm --programs --all`"]),
            ("sandboxctl image prune", 2, &["`image rm --programs --all`"]),
            ("sandboxctl gc --archives", 2, &["`image rm --programs --all`"]),
            ("sandboxctl rum hello.luau", 2, &["'run'"]),
            ("sandboxctl rnu hello.luau", 2, &["'run'"]),
            ("sandboxctl fs delete a", 2, &["'rm'"]),
            ("sandboxctl run -h", 0, &["Examples:\n  sandboxctl run"]),
            ("sandboxctl check -h", 0, &["Global options: `sandboxctl --help`"]),
            ("sandboxctl types | head -5", 0, &["--"]),
        ],
    );
}

#[test]
fn newcomer_looks_around() {
    type_in(
        &place(),
        None,
        &[
            ("sandboxctl doctor", 0, &["\nready"]),
            ("sandboxctl ps", 0, &["ID", "STATE", "AGE", "RUNS", "IMAGE", "IO DIR"]),
            ("sandboxctl ps -q", 0, &[]),
            ("sandboxctl ps --format json", 0, &["["]),
            ("sandboxctl config show", 0, &["limits.timeout = \"30s\""]),
            ("sandboxctl gc", 0, &["removed 0 containers"]),
            (
                "sandboxctl fs write a.txt --content hello && sandboxctl fs read a.txt",
                0,
                &["hello"],
            ),
            ("sandboxctl fs rm -r .", 1, &[".: the io dir itself cannot be removed"]),
            ("sandboxctl fs ls -o json", 0, &["\"success\":true"]),
            ("sandboxctl config show limits.timeout exec.pids", 0, &["exec.pids = 256"]),
            ("sandboxctl config show limits.timeuot", 2, &["did you mean 'limits.timeout'?"]),
            ("sandboxctl completions bash | grep complete", 0, &["_sandboxctl"]),
            (
                "bash -c 'source <(sandboxctl completions bash); COMP_CWORD=3 COMP_TYPE=9
                COMP_WORDS=(sandboxctl config show limits.pid)
                _clap_complete_sandboxctl sandboxctl limits.pid; echo \"${COMPREPLY[@]}\"'",
                0,
                &["limits.pids\n"],
            ),
            ("sandboxctl man | head -3", 0, &["sandboxctl"]),
        ],
    );
}
