//! For tests: a PostgreSQL of Debian's packages on a free port, durable as in production.
//!
//! It is used by its own programs alone, so that it does not depend on what it tests.

use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// How long a server may take for a start or an end, on a busy machine too.
const PATIENCE: Duration = Duration::from_secs(120);
/// The user who runs it if root does.
const USER: &str = "postgres";
/// Separates the values of a row, and the rows.
const SEPARATORS: (char, char) = ('\u{1f}', '\u{1e}');
/// Options of every server: small, as durable as by default, and with its shared memory among its data,
/// where a server that is killed leaves it.
const OPTIONS: [&str; 9] = [
    "listen_addresses=127.0.0.1",
    "unix_socket_directories=",
    "fsync=on",
    "shared_buffers=32MB",
    "max_connections=500",
    "log_min_messages=log",
    "wal_level=replica",
    "hot_standby=on",
    "dynamic_shared_memory_type=mmap",
];

/// How a server is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Its connections end, and it writes everything down.
    Fast,
    /// It ends at once, and recovers from its log when it starts again.
    Immediate,
}

/// When a server ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lifetime {
    /// With the thread that started it.
    OfThread,
    /// When the run of `scripts/test` does.
    OfRun,
}

/// A PostgreSQL server. One that this process started ends with it.
#[derive(Debug)]
pub struct Postgres {
    directory: PathBuf,
    port: u16,
    /// `None` if it is another process's, or stopped.
    server: Option<Child>,
    lifetime: Lifetime,
    /// Removes the directory, if it is its own.
    owner: Option<TempDir>,
}

impl Postgres {
    /// A server of its own.
    ///
    /// # Panics
    ///
    /// If PostgreSQL is not installed, or does not start.
    #[must_use]
    pub fn start() -> Self {
        Self::new(Lifetime::OfThread)
    }

    fn new(lifetime: Lifetime) -> Self {
        let owner = new_directory();
        let directory = owner.path().to_owned();
        let data = directory.join("data");
        let mut initdb = program(&bin("initdb"), Lifetime::OfThread);
        initdb.args(["--no-sync", "--auth=trust", "--username=postgres", "--encoding=UTF8"]);
        initdb.args(["--locale=C.UTF-8", "--no-instructions", "--wal-segsize=4", "--pgdata"]);
        run(initdb.arg(&data));
        let mut server = Self { directory, port: 0, server: None, lifetime, owner: Some(owner) };
        server.start_again();
        server
    }

    /// The server that all tests of a run of `scripts/test` share, which ends it; one of its own without such a run.
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start).
    #[must_use]
    pub fn shared() -> Self {
        let Some(run) = std::env::var_os("SANDBOX_TEST_RUN").map(PathBuf::from) else {
            return Self::start();
        };
        // Its data are not below this directory, which its user may not enter.
        let known = run.join("postgres");
        let lock = File::create(run.join("postgres.lock")).expect("a lock");
        lock.lock().expect("the lock");
        let known_server = fs::read_to_string(&known).unwrap_or_default();
        if let Some((port, directory)) = known_server.trim().split_once(' ') {
            let port = port.parse().expect("a port");
            let directory = directory.into();
            return Self { directory, port, server: None, lifetime: Lifetime::OfRun, owner: None };
        }
        let mut server = Self::new(Lifetime::OfRun);
        let directory = server.owner.take().expect("its own directory").keep();
        fs::write(&known, format!("{} {}\n", server.port, directory.display())).expect("a note");
        server.server = None;
        server
    }

    /// The port that it listens on, at 127.0.0.1.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The address of one of its databases.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// The address of a new database, which is empty.
    ///
    /// # Panics
    ///
    /// If the server does not make it.
    #[must_use]
    pub fn database(&self) -> String {
        let name = format!("test_{}", sandbox_dirfd::random_hex::<8>());
        self.query("postgres", &format!("CREATE DATABASE {name}"));
        self.url(&name)
    }

    /// The rows of a statement's answer, as text; what is `NULL` is empty.
    ///
    /// # Panics
    ///
    /// If it fails.
    #[must_use]
    pub fn rows(&self, database: &str, statement: &str) -> Vec<Vec<String>> {
        let answer = self.query(database, statement);
        let rows = answer.trim_end_matches('\n').split(SEPARATORS.1);
        let rows = rows.filter(|row| !row.is_empty());
        rows.map(|row| row.split(SEPARATORS.0).map(str::to_owned).collect()).collect()
    }

    fn query(&self, database: &str, statement: &str) -> String {
        let mut psql = Command::new(bin("psql"));
        psql.args(["--no-psqlrc", "--quiet", "--no-align", "--tuples-only"]);
        psql.args(["--set", "ON_ERROR_STOP=1", "--host", "127.0.0.1", "--username", "postgres"]);
        psql.args(["--port", &self.port.to_string(), "--dbname", database]);
        psql.args(["--field-separator", &SEPARATORS.0.to_string()]);
        psql.args(["--record-separator", &SEPARATORS.1.to_string(), "--command", statement]);
        // No settings of this user's.
        psql.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        run(&mut psql)
    }

    /// Stops it.
    ///
    /// # Panics
    ///
    /// If it is not this process's, or does not end.
    pub fn stop(&mut self, how: Stop) {
        let mut server = self.server.take().expect("it runs, and is of this test");
        let signal = match how {
            Stop::Fast => Signal::INT,
            Stop::Immediate => Signal::QUIT,
        };
        kill_process(Pid::from_child(&server), signal).expect("its process");
        let ended = wait_until(|| server.try_wait().expect("its end").is_some());
        assert!(ended, "it does not stop: {}", self.log());
    }

    /// Kills it with all of its processes, as a machine that loses its power does.
    ///
    /// # Panics
    ///
    /// If it is not this process's, or stopped.
    pub fn kill(&mut self) {
        let mut server = self.server.take().expect("it runs, and is of this test");
        // Each has a process group of its own.
        let own = Pid::from_child(&server);
        let children = children(own);
        for pid in std::iter::once(own).chain(children) {
            // It may have ended with the first.
            _ = kill_process(pid, Signal::KILL);
        }
        server.wait().expect("its end");
    }

    /// Starts it again, on the same port.
    ///
    /// # Panics
    ///
    /// If it runs, or does not start.
    pub fn start_again(&mut self) {
        assert!(self.server.is_none(), "it runs");
        let since = Instant::now();
        loop {
            let port = match self.port {
                0 => free_port(),
                port => port,
            };
            if self.start_on(port) {
                self.port = port;
                return;
            }
            assert!(since.elapsed() < PATIENCE, "it does not start: {}", self.log());
        }
    }

    /// Whether it answers; not if it has ended, because somebody took the port.
    fn start_on(&mut self, port: u16) -> bool {
        let log = File::create(self.directory.join("log")).expect("a log");
        let mut command = program(&bin("postgres"), self.lifetime);
        command.arg("-D").arg(self.directory.join("data"));
        command.args(["-p", &port.to_string()]);
        for option in OPTIONS {
            command.args(["-c", option]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let mut server = command.spawn().expect("a server");
        let has_ended = |server: &mut Child| server.try_wait().expect("its state").is_some();
        let mut ready = Command::new(bin("pg_isready"));
        ready.args([
            "--quiet", "--host", "127.0.0.1", "--username", "postgres", "--dbname", "postgres",
        ]);
        ready.args(["--port", &port.to_string()]);
        let mut is_up = false;
        let decided = wait_until(|| {
            is_up = ready.status().expect("pg_isready").success();
            is_up || has_ended(&mut server)
        });
        assert!(decided, "it does not start: {}", self.log());
        // Another server may have answered.
        if is_up && !has_ended(&mut server) {
            self.server = Some(server);
            return true;
        }
        false
    }

    /// A synchronous standby: what is committed from now on is at both.
    ///
    /// # Panics
    ///
    /// If it does not start.
    #[must_use]
    pub fn standby(&self) -> Self {
        let owner = new_directory();
        let directory = owner.path().to_owned();
        let primary =
            format!("host=127.0.0.1 port={} user=postgres application_name=standby", self.port);
        let mut backup = program(&bin("pg_basebackup"), Lifetime::OfThread);
        backup.args(["--write-recovery-conf", "--wal-method=stream", "--checkpoint=fast"]);
        backup.args(["--no-sync", "--dbname", &primary, "--pgdata"]);
        run(backup.arg(directory.join("data")));
        let lifetime = Lifetime::OfThread;
        let mut standby = Self { directory, port: 0, server: None, lifetime, owner: Some(owner) };
        standby.start_again();
        self.query("postgres", "ALTER SYSTEM SET synchronous_standby_names = 'standby'");
        self.query("postgres", "SELECT pg_reload_conf()");
        let is_synchronous = || {
            let state = "SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'";
            !self.rows("postgres", state).is_empty()
        };
        assert!(wait_until(is_synchronous), "it does not follow: {}", standby.log());
        standby
    }

    /// Makes a standby the primary. It waits for no standby of its own.
    ///
    /// # Panics
    ///
    /// If it does not become one.
    pub fn promote(&self) {
        let promoted = self.rows("postgres", "SELECT pg_promote()");
        assert_eq!(promoted, [["t"]], "{}", self.log());
        self.query("postgres", "ALTER SYSTEM RESET synchronous_standby_names");
        self.query("postgres", "SELECT pg_reload_conf()");
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.join("log")).unwrap_or_default()
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // It holds nothing that anybody needs.
        if self.server.is_some() {
            self.kill();
        }
    }
}

/// A directory that the server's user may enter.
fn new_directory() -> TempDir {
    let directory =
        tempfile::Builder::new().prefix("sandboxctl-postgres-").tempdir().expect("a directory");
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).expect("its mode");
    let data = directory.path().join("data");
    fs::create_dir(&data).expect("a directory");
    fs::set_permissions(&data, fs::Permissions::from_mode(0o700)).expect("its mode");
    if rustix::process::geteuid().is_root() {
        run(Command::new("chown").arg(USER).arg(&data));
    }
    directory
}

/// The path of a program of the newest PostgreSQL that is installed. `initdb` and `postgres` are not in `PATH`.
fn bin(name: &str) -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let programs = versions.filter_map(|entry| {
        let version: u32 = entry.file_name().to_str()?.parse().ok()?;
        let program = entry.path().join("bin").join(name);
        program.exists().then_some((version, program))
    });
    let newest = programs.max_by_key(|&(version, _)| version);
    newest
        .expect(
            "PostgreSQL is not installed: ./scripts/test installs Debian's package `postgresql`",
        )
        .1
}

/// A program of the server's user.
fn program(path: &Path, lifetime: Lifetime) -> Command {
    let mut command = Command::new("setpriv");
    // Signals of a terminal or of who ends a test are not for it.
    command.process_group(0);
    if lifetime == Lifetime::OfThread {
        command.args(["--pdeathsig", "KILL"]);
    }
    if rustix::process::geteuid().is_root() {
        command.args([format!("--reuid={USER}"), format!("--regid={USER}")]).arg("--init-groups");
    }
    command.arg(path).current_dir("/");
    command
}

/// What a program prints.
fn run(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().expect("a program");
    assert!(
        output.status.success(),
        "{command:?}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// One below those that the kernel gives to outgoing connections and to who asks for any: a server that starts again
/// finds it free.
fn free_port() -> u16 {
    loop {
        let random = sandbox_dirfd::random_hex::<2>();
        let random = u16::from_str_radix(&random, 16).expect("16 bits");
        let port = 16_384 + random % 16_384;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// The processes that a process has started.
fn children(pid: Pid) -> Vec<Pid> {
    let pid = pid.as_raw_nonzero();
    let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    list.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
}

/// Whether it came to pass.
fn wait_until(mut done: impl FnMut() -> bool) -> bool {
    let since = Instant::now();
    while since.elapsed() < PATIENCE {
        if done() {
            return true;
        }
        thread::sleep(Duration::from_millis(10));
    }
    false
}
