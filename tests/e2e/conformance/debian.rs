//! Programs that people use, from Debian's packages: what works in `docker run --network none` works in
//! a sandbox. Three of them for each commit, the others each night (`nightly` in `tests/lanes.toml`).

use serde_json::{Value, json};

use crate::engines::{Feature, has};
use crate::fixture::{Fixture, finish};
use crate::rootfs::{Debian, Provided};

/// Packages that many tests use, in one file system, with npm.
pub const TOOLS: &[&str] = &[
    "apt", "dash", "coreutils", "curl", "dpkg", "git", "gnupg", "grep", "gzip", "hostname",
    "iproute2", "nodejs", "openssh-client", "python3", "python3-pip", "redis-server", "sed", "tar",
    "util-linux", "wget",
];

/// A sandbox's flags, and what is in it.
struct Programs {
    place: Fixture,
    provided: Provided,
}

impl Programs {
    fn tools() -> Self {
        Self { place: Fixture::new(), provided: Debian::with_npm(TOOLS).provide() }
    }

    fn of(packages: &[&str]) -> Self {
        Self { place: Fixture::new(), provided: Debian::new(packages).provide() }
    }

    /// What a file prints that an interpreter runs, and that ends well.
    #[track_caller]
    fn prints(&self, flags: &[&str], interpreter: &[&str], content: &str) -> String {
        self.place.write("given/script", content);
        let mut command = self.place.command(["exec", "--in", "given/script"]);
        command.args(self.provided.args()).args(flags).arg("--").args(interpreter);
        let ended = finish(command);
        ended.assert_code(0);
        ended.stdout
    }

    #[track_caller]
    fn shell(&self, flags: &[&str], content: &str) -> String {
        self.prints(flags, &["sh", "/in/script"], &format!("set -e\n{content}"))
    }

    #[track_caller]
    fn python(&self, flags: &[&str], content: &str) -> String {
        self.prints(flags, &["python3", "/in/script"], content)
    }

    #[track_caller]
    fn node(&self, flags: &[&str], content: &str) -> Value {
        let printed = self.prints(flags, &["node", "/in/script"], content);
        serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{error}: {printed}"))
    }
}

/// gVisor's own kernel has no UNIX sockets for programs, and other limits.
fn is_other_kernel() -> bool {
    !has(Feature::SharedKernel)
}

#[test]
fn gpg_makes_a_key_signs_and_verifies() {
    if is_other_kernel() {
        return;
    }
    let script = "export GNUPGHOME=/tmp/keys
        mkdir -m 700 $GNUPGHOME
        gpg --batch --quiet --passphrase '' --quick-gen-key me@example.org default default never
        echo text >file
        gpg --batch --detach-sign file
        gpg --batch --verify file.sig file
        echo verified
        echo other >file
        gpg --batch --verify file.sig file || echo refused";
    assert_eq!(Programs::tools().shell(&[], script), "verified\nrefused\n");
}

#[test]
fn node_knows_its_interfaces_its_priority_and_its_memory() {
    if is_other_kernel() {
        return;
    }
    let script = "const os = require('os');
        os.setPriority(5);
        os.setPriority(process.pid, 6);
        console.log(JSON.stringify({
            interfaces: os.networkInterfaces(),
            priority: os.getPriority(),
            processors: os.cpus().length,
            memory: process.constrainedMemory(),
            heap: require('v8').getHeapStatistics().heap_size_limit,
        }));";
    let reported = Programs::tools().node(&["--memory", "512MiB"], script);
    let interfaces = reported["interfaces"].as_object().unwrap();
    assert_eq!(interfaces.keys().collect::<Vec<_>>(), ["lo"]);
    assert_eq!(reported["interfaces"]["lo"][0]["address"], "127.0.0.1");
    assert!([5, 6].map(Value::from).contains(&reported["priority"]), "{reported}");
    assert!(reported["processors"].as_u64() > Some(0), "{reported}");
    assert_eq!(reported["memory"], 512 << 20);
    assert!(reported["heap"].as_u64().unwrap() < 512 << 20, "{reported}");
}

/// Root of a sandbox has no capability: the owners of an archive's members are not restored, and all
/// else is.
#[test]
fn archives_of_others_are_unpacked_with_their_modes_and_times() {
    if is_other_kernel() {
        return;
    }
    let script = r##"
import io, json, os, shutil, subprocess, tarfile, zipfile

def add(archive, name, mode, content=None):
    member = tarfile.TarInfo(name)
    member.mode, member.uid, member.gid, member.mtime = mode, 1234, 1235, 1234567890
    member.type = tarfile.REGTYPE if content else tarfile.DIRTYPE
    member.size = len(content or b"")
    archive.addfile(member, io.BytesIO(content or b""))

with tarfile.open("a.tar", "w") as archive:
    add(archive, "d", 0o750)
    add(archive, "d/run", 0o755, b"#!/bin/sh\n")
    add(archive, "d/data", 0o640, b"data\n")

def run(*words):
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)

def extractall(folder):
    with tarfile.open("a.tar") as archive:
        archive.extractall(folder)

seen = {}
for name, unpack in {
    "tar": lambda folder: run("tar", "-xf", "a.tar", "-C", folder),
    "extractall": extractall,
    "unpack_archive": lambda folder: shutil.unpack_archive("a.tar", folder),
    "cp": lambda folder: run("cp", "-a", "tar/d", folder),
}.items():
    os.mkdir(name)
    unpack(name)
    stats = [os.stat(f"{name}/{path}") for path in ("d", "d/run", "d/data")]
    seen[name] = [[oct(it.st_mode)[-4:], int(it.st_mtime), it.st_uid == os.getuid()] for it in stats]

with tarfile.open("package.tgz", "w:gz") as archive:
    add(archive, "package", 0o755)
    add(archive, "package/package.json", 0o644, b'{"name": "six", "version": "1.0.0"}')
    add(archive, "package/index.js", 0o644, b"module.exports = 6")
npm = "/usr/lib/npm/package/bin/npm-cli.js"
run("node", npm, "install", "--offline", "--no-audit", "--no-fund", "./package.tgz")
seen["npm"] = int(subprocess.check_output(["node", "-p", "require('six')"]))

with zipfile.ZipFile("seven-1.0-py3-none-any.whl", "w") as wheel:
    about = "seven-1.0.dist-info"
    wheel.writestr("seven.py", "value = 7\n")
    wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: seven\nVersion: 1.0\n")
    wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr(f"{about}/RECORD", "")
run("python3", "-m", "pip", "install", "--quiet", "--no-index", "--target", "lib", "./seven-1.0-py3-none-any.whl")
seen["pip"] = int(subprocess.check_output(["python3", "-c", "import seven; print(seven.value)"], env={"PYTHONPATH": "lib"}))
print(json.dumps(seen))
"##;
    let printed = Programs::tools().python(&[], script);
    let seen: Value = serde_json::from_str(&printed).unwrap();
    let unpacked = json!([
        ["0750", 1_234_567_890, true],
        ["0755", 1_234_567_890, true],
        ["0640", 1_234_567_890, true],
    ]);
    for way in ["tar", "extractall", "unpack_archive", "cp"] {
        assert_eq!(seen[way], unpacked, "{way}");
    }
    assert_eq!((&seen["npm"], &seen["pip"]), (&json!(6), &json!(7)));
}

#[test]
fn ssh_agent_keeps_a_key() {
    if is_other_kernel() {
        return;
    }
    let script = "eval $(ssh-agent) >/dev/null
        ssh-keygen -q -t ed25519 -C of-a-sandbox -N '' -f /tmp/key
        ssh-add -q /tmp/key
        ssh-add -l | grep -o of-a-sandbox
        kill $SSH_AGENT_PID";
    assert_eq!(Programs::tools().shell(&[], script), "of-a-sandbox\n");
}

#[test]
fn interfaces_are_listed_by_all_usual_ways() {
    if is_other_kernel() {
        return;
    }
    let script = "ip -o -4 addr | grep -o '127.0.0.1/8'
        ip route
        hostname -I
        python3 -c 'import socket; print(socket.if_nameindex())'
        ip link set lo down 2>/dev/null || echo refused";
    let printed = Programs::tools().shell(&[], script);
    let lines: Vec<_> = printed.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    assert_eq!(lines, ["127.0.0.1/8", "[(1, 'lo')]", "refused"]);
}

#[test]
fn lscpu_counts_the_processors() {
    if is_other_kernel() {
        return;
    }
    let script = "there=$(grep -c ^processor /proc/cpuinfo)
        [ $(lscpu -p=cpu | grep -vc '^#') = $there ] && echo same
        [ $(lscpu | sed -n 's/^CPU(s): *//p') = $there ] && echo same";
    assert_eq!(Programs::tools().shell(&[], script), "same\nsame\n");
}

#[test]
fn redis_serves_and_saves() {
    if is_other_kernel() {
        return;
    }
    let script = "redis-server --daemonize yes --logfile log >/dev/null
        until redis-cli ping >/dev/null 2>&1; do sleep 0.1; done
        redis-cli set answer 42
        redis-cli bgsave >/dev/null
        redis-cli shutdown
        redis-server --daemonize yes --logfile log >/dev/null
        until redis-cli ping 2>/dev/null | grep -q PONG; do sleep 0.1; done
        redis-cli get answer
        redis-cli shutdown nosave";
    assert_eq!(Programs::tools().shell(&[], script), "OK\n42\n");
}

#[test]
fn python_has_processes_by_every_method_and_shares_memory_with_them() {
    if is_other_kernel() {
        return;
    }
    let script = r#"
import multiprocessing, os
from multiprocessing import shared_memory

def square(number):
    return number * number

def fill(name, at):
    block = shared_memory.SharedMemory(name)
    block.buf[at] = at
    block.close()

if __name__ == "__main__":
    for method in "fork", "spawn", "forkserver":
        context = multiprocessing.get_context(method)
        with context.Pool(4) as pool:
            assert pool.map(square, range(100)) == [number * number for number in range(100)]
        with context.Manager() as manager:
            shared = manager.dict(answer=42)
            assert shared["answer"] == 42
        block = shared_memory.SharedMemory(create=True, size=1 << 20)
        workers = [context.Process(target=fill, args=(block.name, at)) for at in range(4)]
        [worker.start() for worker in workers]
        [worker.join() for worker in workers]
        assert bytes(block.buf[:4]) == bytes(range(4))
        block.close()
        block.unlink()
        print(method)
"#;
    assert_eq!(Programs::tools().python(&[], script), "fork\nspawn\nforkserver\n");
}

#[test]
fn jupyter_kernel_runs_a_notebook() {
    if is_other_kernel() {
        return;
    }
    let programs = Programs::of(&["dash", "python3", "python3-ipykernel", "python3-nbclient"]);
    let script = r#"
import nbclient, nbformat
cells = [nbformat.v4.new_code_cell(text) for text in ("answer = 6 * 7", "print(answer)")]
book = nbformat.v4.new_notebook(cells=cells)
nbclient.NotebookClient(book, timeout=120, kernel_name="python3").execute()
print(book.cells[1].outputs[0].text)
"#;
    assert_eq!(programs.python(&[], script), "42\n\n");
}

/// Without its search for leaks, which traces the program.
#[test]
fn address_sanitizer_reports_a_use_after_free() {
    if is_other_kernel() {
        return;
    }
    let programs = Programs::of(&["dash", "coreutils", "gcc", "grep", "libasan8", "libc6-dev"]);
    let script = "cat >x.c <<'END'
#include <stdio.h>
#include <stdlib.h>
int main(int count, char **words) {
    char *memory = calloc(8, 1);
    if (count > 1) {
        free(memory);
        return memory[0];
    }
    puts(\"clean\");
    free(memory);
    return 0;
}
END
        gcc -fsanitize=address -g x.c -o x
        ./x
        ./x wrong 2>report || grep -o heap-use-after-free report | head -n 1";
    let flags = ["-e", "ASAN_OPTIONS=detect_leaks=0"];
    assert_eq!(programs.shell(&flags, script), "clean\nheap-use-after-free\n");
}

#[test]
fn postgres_runs_as_a_user_of_its_own() {
    if is_other_kernel() {
        return;
    }
    let programs = Programs::of(&["dash", "coreutils", "postgresql"]);
    let script = "bin=$(echo /usr/lib/postgresql/*/bin)
        $bin/initdb -D /tmp/db -E UTF8 --locale=C >/dev/null
        $bin/pg_ctl -D /tmp/db -o '-k /tmp' -l /tmp/log -w start >/dev/null
        $bin/psql -h /tmp -d postgres -Atqc 'create table t as select generate_series(1, 1000) n'
        $bin/psql -h 127.0.0.1 -d postgres -Atc 'select sum(n) from t'
        $bin/pg_ctl -D /tmp/db -w -m fast stop >/dev/null";
    let flags = ["-u", "1000:1000", "-w", "/tmp", "--tmpfs-size", "256MiB"];
    assert_eq!(programs.shell(&flags, script), "500500\n");
}

#[test]
fn chromium_renders_a_page() {
    if is_other_kernel() {
        return;
    }
    let programs = Programs::of(&["dash", "coreutils", "chromium"]);
    let script = "/usr/lib/chromium/chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage \
        --dump-dom 'data:text/html,<p id=x></p><script>x.textContent = 6 * 7</script>'";
    let page = programs.shell(&["--memory", "2GiB", "--tmpfs-size", "256MiB"], script);
    assert!(page.contains("<p id=\"x\">42</p>"), "{page}");
}

#[test]
fn jvm_takes_a_quarter_of_the_memory_of_its_sandbox() {
    if is_other_kernel() {
        return;
    }
    let programs = Programs::of(&["dash", "default-jre-headless", "grep"]);
    let java = "/usr/lib/jvm/default-java/bin/java";
    let script = format!("{java} -XX:+PrintFlagsFinal -version 2>/dev/null | grep ' MaxHeapSize '");
    for mib in [512_u64, 1024] {
        let printed = programs.shell(&["--memory", &format!("{mib}MiB")], &script);
        let reported = printed.split_whitespace().nth(3).unwrap();
        assert_eq!(reported.parse(), Ok(mib << 18), "{printed}");
    }
}
