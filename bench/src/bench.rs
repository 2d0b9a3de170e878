//! Measures programs and futures, interleaved, and cleans up.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use futures_util::future::LocalBoxFuture;
use sandbox_api::SandboxSpec;
use sandbox_controller::{Controller, Sandbox};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tempfile::TempDir;
use tokio::io::AsyncReadExt as _;
use tokio::process::{Child, Command};

use crate::container::Plain;
use crate::engines::{Engines, On, Usable};
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::peers::Peers;
use crate::report::{Row, Unit};

/// Longer than any measured program takes, but for workers.
const TIMEOUT: Duration = Duration::from_secs(120);

/// How often something is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Before the figures count.
    pub warm_up: usize,
    /// What counts.
    pub samples: usize,
}

/// What scenarios measure with.
pub struct Bench {
    /// Everything that is written is in here, or in the next one.
    place: TempDir,
    /// A user's runtime directory, which is in memory.
    runtime: TempDir,
    sandboxctl: PathBuf,
    /// Of what is ours elsewhere on the machine.
    name: String,
    interrupt: Interrupt,
    /// What there is to compare with.
    pub peers: Peers,
    /// How engines are reached.
    pub engines: Engines,
    /// Docker, or why it cannot be measured.
    pub docker: Result<Usable, String>,
    /// The embedded engine, or why it cannot be measured.
    pub embedded: Result<Usable, String>,
    /// Executions of the scenario that looks for leaks.
    pub executions: usize,
    /// Executions of the scenario that looks at what a service keeps.
    pub soak: usize,
}

/// One that takes part in a comparison, or cannot.
pub struct Entry<'a> {
    what: String,
    measure: Result<Measure<'a>, String>,
}

/// Something to measure, or why it is missing.
pub type Here<'a, T> = Result<&'a T, &'a str>;

fn here<T>(there: &Result<T, String>) -> Here<'_, T> {
    there.as_ref().map_err(String::as_str)
}

/// Measures once.
pub type Measure<'a> = Box<dyn Fn() -> LocalBoxFuture<'a, Result<f64, Error>> + 'a>;

impl<'a> Entry<'a> {
    /// One that is measured by `go`, which gives the figure.
    pub fn new<F>(what: impl Into<String>, go: impl Fn() -> F + 'a) -> Self
    where
        F: Future<Output = Result<f64, Error>> + 'a,
    {
        let measure: Measure<'a> = Box::new(move || go().boxed_local());
        Self { what: what.into(), measure: Ok(measure) }
    }

    /// One that cannot be measured, and why.
    pub fn missing(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self { what: what.into(), measure: Err(why.into()) }
    }
}

impl Bench {
    /// Looks at the machine, and makes a place to work in.
    pub async fn new(
        sandboxctl: PathBuf,
        interrupt: Interrupt,
        executions: usize,
        soak: usize,
    ) -> Result<Self, Error> {
        let place = folder_in(&std::env::temp_dir())?;
        let runtime = folder_in(&memory())?;
        let name = place.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
        // As the command line derives it, so that both know the same image.
        let state_dir = runtime.path().join("sandboxctl");
        let data_dir = place.path().join("engine");
        let mut engines = Engines { state_dir, data_dir, docker_host: None };
        let docker = engines.probe(On::Docker).await;
        engines.docker_host = docker.as_ref().ok().map(|docker| docker.endpoint.clone());
        let embedded = engines.probe(On::Embedded).await;
        let peers = Peers::find();
        Ok(Self {
            place,
            runtime,
            sandboxctl,
            name,
            interrupt,
            peers,
            engines,
            docker,
            embedded,
            executions,
            soak,
        })
    }

    /// A name that nothing else on this machine has.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A fresh folder.
    pub fn folder(&self, name: &str) -> Result<PathBuf, Error> {
        let path = self.place.path().join(name);
        fs::create_dir(&path).map_err(Error::file("make", &path))?;
        Ok(path)
    }

    /// The program that is measured.
    pub fn program(&self) -> &Path {
        &self.sandboxctl
    }

    /// An error where an end was asked for.
    pub fn check(&self) -> Result<(), Error> {
        self.interrupt.check()
    }

    /// Works with both engines, or with why one cannot be measured.
    pub async fn with_engines<T>(
        &self,
        work: impl AsyncFnOnce(Here<'_, Controller>, Here<'_, Controller>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut docker = self.docker.as_ref().map(|_| None).map_err(String::as_str);
        let mut embedded = self.embedded.as_ref().map(|_| None).map_err(String::as_str);
        let connected = async {
            for (kind, place) in [(On::Docker, &mut docker), (On::Embedded, &mut embedded)] {
                if let Ok(place) = place {
                    *place = Some(self.engines.connect(kind).await?);
                }
            }
            Ok(())
        };
        let done = match connected.await {
            Ok(()) => work(there(&docker), there(&embedded)).await,
            Err(error) => Err(error),
        };
        for controller in [docker, embedded].into_iter().flatten().flatten() {
            controller.close().await;
        }
        done
    }

    /// Calls the closure with a sandbox on each engine and a plain container, or with why one is
    /// missing. All have `folder`.
    pub async fn with_sandboxes<T>(
        &self,
        folder: &Path,
        work: impl AsyncFnOnce([(On, Here<'_, Sandbox>); 2], Here<'_, Plain<'_>>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let plain = Plain::start(self, folder).await?;
        let done = self
            .with_engines(async |docker, embedded| {
                let launch = async |engine: Here<'_, Controller>| match engine {
                    Ok(controller) => {
                        Ok(Ok(controller.launch(SandboxSpec::new().io_dir(folder)).await?))
                    }
                    Err(why) => Ok::<_, Error>(Err(why.to_owned())),
                };
                // One that is dropped is removed too, before its engine is left.
                let (docker, embedded) = (launch(docker).await?, launch(embedded).await?);
                let sandboxes = [(On::Docker, here(&docker)), (On::Embedded, here(&embedded))];
                let done = work(sandboxes, here(&plain)).await;
                for sandbox in [docker, embedded].into_iter().flatten() {
                    sandbox.close().await?;
                }
                done
            })
            .await;
        if let Ok(plain) = plain {
            plain.remove().await?;
        }
        done
    }

    /// Measures all entries by turns, each round in another order, and gives a row for each, the
    /// missing ones too.
    pub async fn by_turns(
        &self,
        counts: Counts,
        unit: Unit,
        entries: Vec<Entry<'_>>,
    ) -> Result<Vec<Row>, Error> {
        take_turns(counts, unit, entries, || self.check()).await
    }

    /// A command line of `sandboxctl` in this place: without user configuration, with separate
    /// state.
    pub fn sandboxctl<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = self.command(&self.sandboxctl, args);
        command
            .env_clear()
            .env("HOME", self.place.path())
            .env("XDG_RUNTIME_DIR", self.runtime.path())
            .env("SANDBOXCTL_ENGINE_DATA_DIR", &self.engines.data_dir)
            .envs(self.docker_host());
        command
    }

    /// The label of the benchmark's own containers, which no sandbox has.
    pub fn label(&self) -> String {
        format!("sandbox-bench={}", self.name)
    }

    /// The environment variable that points the Docker command line to the engine.
    pub fn docker_host(&self) -> Option<(&'static str, &str)> {
        self.engines.docker_host.as_deref().map(|host| ("DOCKER_HOST", host))
    }

    /// The command line `docker run` with the sandbox image, on the same engine.
    pub fn docker_run(&self, docker: &Path, image: &str, arg: &str) -> Command {
        let mut command = self.command(docker, ["run", "--rm", "--network", "none"]);
        command.args(["--log-driver", "none", "--label", &self.label(), image, arg]);
        command.envs(self.docker_host());
        command
    }

    /// A command line, run in this place.
    pub fn command<S: AsRef<OsStr>>(
        &self,
        program: &Path,
        args: impl IntoIterator<Item = S>,
    ) -> Command {
        let mut command = Command::new(program);
        command.args(args).current_dir(self.place.path());
        command
    }

    /// Runs a program to its end, which is to be a good one, and gives the seconds that it took. Its
    /// stdin is empty.
    pub async fn time(&self, command: Command) -> Result<f64, Error> {
        let mut process = self.process(command)?;
        process.command.stdin(Stdio::null()).stdout(Stdio::null());
        let started = Instant::now();
        let mut child = process.spawn()?;
        let over = tokio::time::sleep(TIMEOUT);
        let code = tokio::select! {
            biased;
            status = child.wait() => status.ok().and_then(|status| status.code()),
            () = self.interrupt.asked(2) => {
                _ = child.kill().await;
                return Err(Error::Interrupted);
            }
            () = over => {
                _ = child.kill().await;
                return Err(process.failed(&format!("did not end within {TIMEOUT:?}")));
            }
        };
        let took = started.elapsed();
        match code {
            Some(0) => Ok(took.as_secs_f64()),
            Some(code) => Err(process.failed(&format!("ended with exit code {code}"))),
            None => Err(process.failed("was killed")),
        }
    }

    /// Runs `job` of a scenario in a separate process of this program: then measurements of the
    /// process contain nothing else.
    pub async fn worker<T: DeserializeOwned>(
        &self,
        scenario: &'static str,
        job: &impl Serialize,
    ) -> Result<T, Error> {
        self.check()?;
        let own = std::env::current_exe().map_err(Error::file("find", "this program"))?;
        let work = Work { engines: self.engines.clone(), job };
        let work = serde_json::to_string(&work).map_err(Error::Worker)?;
        let command = self.command(&own, ["--worker", scenario, "--job", &work]);
        let mut process = self.process(command)?;
        process.command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = process.spawn()?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let end = async {
            let mut answer = Vec::new();
            if let Some(mut stdout) = stdout {
                _ = stdout.read_to_end(&mut answer).await;
            }
            (child.wait().await.ok().and_then(|status| status.code()), answer)
        };
        tokio::pin!(end);
        let (code, answer) = tokio::select! {
            biased;
            ended = &mut end => {
                // Until here: its end asks the worker to end.
                drop(stdin);
                ended
            }
            () = self.interrupt.asked(1) => {
                drop(stdin);
                tokio::select! {
                    _ = end => {}
                    () = self.interrupt.asked(2) => {}
                }
                return Err(Error::Interrupted);
            }
        };
        match code {
            Some(0) => serde_json::from_slice(&answer).map_err(Error::Worker),
            _ => Err(process.failed("failed")),
        }
    }

    fn process(&self, mut command: Command) -> Result<Process, Error> {
        let path = self.place.path().join("stderr");
        let stderr = fs::File::create(&path).map_err(Error::file("make", &path))?;
        // Of its own group: a signal of the terminal's is ours, and ends no measurement halfway.
        command.stderr(stderr).process_group(0).kill_on_drop(true);
        Ok(Process { command, stderr: path })
    }

    /// Removes what killed programs may have left.
    pub async fn tidy(self) -> Result<(), Error> {
        if let (Ok(docker), Ok(_)) = (self.peers.docker.path(), &self.docker) {
            let filter = format!("label={}", self.label());
            let mut list = self.command(docker, ["ps", "-aq", "--filter", &filter]);
            list.envs(self.docker_host());
            let start = |source| Error::Start { program: "docker".to_owned(), source };
            let listed = list.output().await.map_err(start)?;
            for id in String::from_utf8_lossy(&listed.stdout).split_whitespace() {
                let mut remove = self.command(docker, ["rm", "--force", id]);
                remove.envs(self.docker_host());
                remove.output().await.map_err(start)?;
            }
        }
        if let Ok(runc) = self.peers.runc.path() {
            let state = self.place.path().join("bundle/state");
            if state.join(&self.name).exists() {
                let mut delete = self.command(runc, ["--root"]);
                delete.arg(state).args(["delete", "--force", &self.name]);
                let start = |source| Error::Start { program: "runc".to_owned(), source };
                delete.output().await.map_err(start)?;
            }
        }
        // While the state directory is there, by which ours are known.
        let start = |source| Error::Start { program: "sandboxctl".to_owned(), source };
        self.sandboxctl(["gc"]).output().await.map_err(start)?;
        for place in [self.place, self.runtime] {
            let path = place.path().to_owned();
            place.close().map_err(Error::file("remove", path))?;
        }
        Ok(())
    }

    /// Whether an engine can be measured. If not, a row says why.
    pub fn can_use(&self, on: On, rows: &mut Vec<Row>) -> bool {
        let usable = match on {
            On::Docker => &self.docker,
            On::Embedded => &self.embedded,
        };
        rows.extend(usable.as_ref().err().map(|why| Row::missing(on.to_string(), why)));
        usable.is_ok()
    }
}

/// A fresh folder there, which goes with this value.
pub fn folder_in(folder: &Path) -> Result<TempDir, Error> {
    tempfile::Builder::new()
        .prefix("sandbox-bench-")
        .tempdir_in(folder)
        .map_err(Error::file("make a folder in", folder))
}

/// A folder in memory that every user may write to, if the machine has the usual one.
pub fn memory() -> PathBuf {
    const TMPFS: u64 = 0x0102_1994;
    let shared = Path::new("/dev/shm");
    let is_there = rustix::fs::statfs(shared).is_ok_and(|stat| stat.f_type as u64 == TMPFS);
    if is_there { shared.to_owned() } else { std::env::temp_dir() }
}

async fn take_turns(
    counts: Counts,
    unit: Unit,
    entries: Vec<Entry<'_>>,
    check: impl Fn() -> Result<(), Error>,
) -> Result<Vec<Row>, Error> {
    let mut series: Vec<Vec<f64>> = entries.iter().map(|_| Vec::new()).collect();
    let steps = steps(entries.len());
    for round in 0..counts.warm_up + counts.samples {
        // A heavy step leaves traces for the next one: rotate the order.
        let step = steps[round % steps.len()];
        for turn in 0..entries.len() {
            let index = (round + turn * step) % entries.len();
            if let Ok(measure) = &entries[index].measure {
                check()?;
                let figure = measure().await?;
                if round >= counts.warm_up {
                    series[index].push(figure);
                }
            }
        }
    }
    let row = |(Entry { what, measure }, samples)| match measure {
        Ok(_) => Row::figure(what, unit, samples),
        Err(why) => Row::missing(what, why),
    };
    Ok(entries.into_iter().zip(series).map(row).collect())
}

/// The steps by which each of `count` is met once on the way round.
fn steps(count: usize) -> Vec<usize> {
    const fn common(a: usize, b: usize) -> usize {
        if b == 0 { a } else { common(b, a % b) }
    }
    (1..=count.max(1)).filter(|step| common(*step, count) == 1).collect()
}

/// An engine that [`Bench::with_engines`] has connected to.
fn there<'a>(engine: &'a Result<Option<Controller>, &'a str>) -> Here<'a, Controller> {
    engine.as_ref().map(|it| it.as_ref().expect("it is connected to")).map_err(|why| *why)
}

/// A program that is to be started, and where its stderr goes.
struct Process {
    command: Command,
    stderr: PathBuf,
}

impl Process {
    fn spawn(&mut self) -> Result<Child, Error> {
        let program = self.command.as_std().get_program().to_string_lossy().into_owned();
        self.command.spawn().map_err(|source| Error::Start { program, source })
    }

    fn failed(&self, how: &str) -> Error {
        let command = self.command.as_std();
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let words: Vec<_> = words.map(OsStr::to_string_lossy).collect();
        let stderr = fs::read(&self.stderr).unwrap_or_default();
        Error::Command {
            command: words.join(" "),
            how: how.to_owned(),
            stderr: String::from_utf8_lossy(&stderr).into_owned(),
        }
    }
}

/// What a worker is given.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub struct Work<J> {
    /// How engines are reached.
    pub engines: Engines,
    /// The scenario's own.
    pub job: J,
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;
    use crate::report::Measurement;

    const COUNTS: Counts = Counts { warm_up: 1, samples: 2 };

    #[tokio::test]
    async fn all_take_turns_each_round_in_another_order_and_the_warm_up_does_not_count() {
        let order = RefCell::new(String::new());
        let one = |name: &'static str, figure: f64| {
            let order = &order;
            Entry::new(name, move || async move {
                order.borrow_mut().push_str(name);
                Ok(figure)
            })
        };
        let entries = vec![one("a", 1.0), Entry::missing("b", "not here"), one("c", 3.0)];
        let rows = take_turns(COUNTS, Unit::Count, entries, || Ok(())).await.unwrap();
        assert_eq!(*order.borrow(), "acacca");
        let found: Vec<String> = rows
            .iter()
            .map(|row| match &row.found {
                Measurement::Figure(figure) => format!("{}: {:?}", row.what, figure.samples),
                Measurement::Missing(why) => format!("{}: {why}", row.what),
            })
            .collect();
        assert_eq!(found, ["a: [1.0, 1.0]", "b: not here", "c: [3.0, 3.0]"]);
    }

    #[test]
    fn every_step_meets_all_and_several_have_their_turn_after_the_first() {
        for count in 1..=20 {
            for step in steps(count) {
                let met: std::collections::HashSet<usize> =
                    (0..count).map(|turn| turn * step % count).collect();
                assert_eq!(met.len(), count, "{step} of {count}");
            }
        }
        assert_eq!(steps(9), [1, 2, 4, 5, 7, 8]);
        assert_eq!((steps(1), steps(2)), (vec![1], vec![1]));
    }

    #[tokio::test]
    async fn an_end_that_is_asked_for_comes_between_two_measurements() {
        let measured = Cell::new(0);
        let entry = Entry::new("a", || {
            measured.set(measured.get() + 1);
            async { Ok(0.0) }
        });
        let check = || if measured.get() < 2 { Ok(()) } else { Err(Error::Interrupted) };
        let ended = take_turns(COUNTS, Unit::Count, vec![entry], check).await;
        assert!(matches!(ended, Err(Error::Interrupted)));
        assert_eq!(measured.get(), 2);
    }
}
