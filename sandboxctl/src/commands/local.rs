//! This user's own service: started by the first command that needs it, and `local`.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use hyper::StatusCode;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::FdFlags;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use sandbox_api::Failure;
use sandbox_api::service::SandboxView;
use serde::Serialize;
use serde_json::json;

use super::sandbox::resolve::resolve;
use super::serve::own::{FIXED, PROTOCOL, Place, Record};
use super::{Context, block_on};
use crate::cli::root::LocalRootArgs;
use crate::cli::sandboxes::LocalCommand;
use crate::config::{Key, Layer, Settings};
use crate::error::Error;
use crate::remote::{Client, Error as RemoteError, SandboxQuery, ServerAddress};
use crate::render;

/// How often it is started for one command: it may end just as it is needed.
const STARTS: usize = 3;
/// How long it may take to answer before it is asked what it waits for.
const SILENCE: Duration = Duration::from_secs(1);
/// How long it may take until it has ended.
const END: Duration = Duration::from_secs(60);
/// What helps where it has other settings.
const STOP: &str = "`sandboxctl local stop` ends it, and keeps the files of its sandboxes; the next command \
                    starts it anew";

/// The client of the service, which is started if it does not run.
///
/// # Errors
///
/// If it cannot be started, or has other settings than those that are asked for.
pub async fn connect(context: &Context<'_>, root: &LocalRootArgs) -> Result<Client, Error> {
    let settings = context.settings()?;
    let root = root.absolute(&context.environment.working_directory);
    let place = Place::of(&context.environment);
    let mut starts = 0;
    loop {
        let client = client(&place);
        let answered = match place.is_served()? {
            true => answer(context, &place, client.is_alive()).await.map_err(Error::from),
            false => Err(failed(io::ErrorKind::NotFound.into())),
        };
        match answered {
            Ok(()) => {
                check(place.record(), &settings, &root)?;
                return Ok(client);
            }
            // It says itself why it did not come to its work.
            Err(error) if starts > 0 => match place.failure() {
                Some(failure) => {
                    let Failure { kind, message, hint, .. } = failure;
                    let status = StatusCode::SERVICE_UNAVAILABLE;
                    return Err(RemoteError::refusal(status, kind, message, hint).into());
                }
                None if starts == STARTS => {
                    let what = "the local service; `sandboxctl local logs` prints its log";
                    return Err(Error::system(what, error.message()));
                }
                None => {}
            },
            Err(_) => {}
        }
        tokio::task::block_in_place(|| start(context, &place, &root))?;
        starts += 1;
    }
}

/// Waits for an answer of the service. What it says meanwhile of why it does not come to its work is passed on.
async fn answer<T>(context: &Context<'_>, place: &Place, asked: impl Future<Output = T>) -> T {
    tokio::pin!(asked);
    let mut is_said = false;
    loop {
        match tokio::time::timeout(SILENCE, &mut asked).await {
            Ok(answer) => return answer,
            Err(_) => {
                if let Some(failure) = place.failure().filter(|_| !is_said) {
                    is_said = true;
                    context.output.notice(&failure.message);
                }
            }
        }
    }
}

/// The sandbox of the service that a word means, if the service runs and has one.
pub async fn sandbox_of(context: &Context<'_>, word: &str) -> Option<SandboxView> {
    let place = Place::of(&context.environment);
    if !place.is_served().unwrap_or(false) {
        return None;
    }
    let all = client(&place).sandboxes(&SandboxQuery::default()).await.ok()?;
    resolve(word, &all).ok().cloned()
}

fn failed(error: io::Error) -> Error {
    Error::system("the local service", error)
}

fn client(place: &Place) -> Client {
    Client::new(ServerAddress::Unix(place.socket()), None, None)
}

/// Refuses a service that has other settings than those of this command, its flags and its variables.
fn check(record: Option<Record>, settings: &Settings, root: &LocalRootArgs) -> Result<(), Error> {
    let Some(record) = record else { return Ok(()) };
    if record.protocol != PROTOCOL {
        let why = format!("the running local service is version {}", record.version);
        return Err(Error::usage("sandboxctl", why).with_hint(STOP));
    }
    for key in FIXED {
        let setting = settings.setting(key);
        let is_asked_for = matches!(setting.layer, Layer::Environment | Layer::Flag);
        let mine =
            settings.text(key).filter(|it| is_asked_for && (key, *it) != (Key::EngineKind, "auto"));
        let theirs = record.settings.get(&key.name()).map_or("the default", String::as_str);
        if let Some(mine) = mine
            && mine != theirs
        {
            let why = format!("the local service runs with {theirs}, and not with {mine}");
            return Err(Error::usage(settings.named(key), why).with_hint(STOP));
        }
    }
    for (flag, mine, theirs) in [
        ("--rootfs", &root.rootfs, &record.root.rootfs),
        ("--image-archive", &root.image_archive, &record.root.image_archive),
    ] {
        if mine.is_some() && mine != theirs {
            let theirs = theirs.as_ref().map_or("none".to_owned(), |it| it.display().to_string());
            let why = format!("the local service runs with another one: {theirs}");
            return Err(Error::usage(flag, why).with_hint(STOP));
        }
    }
    Ok(())
}

/// Binds its socket and starts it, unless another command was faster.
fn start(context: &Context<'_>, place: &Place, root: &LocalRootArgs) -> Result<(), Error> {
    place.create()?;
    let _lock = place.lock().map_err(failed)?;
    if place.is_served()? {
        return Ok(());
    }
    let listener = OwnedFd::from(place.bind().map_err(failed)?);
    let log = place.open_log().map_err(failed)?;
    let errors = log.try_clone().map_err(failed)?;
    keep_own_descriptors().map_err(failed)?;
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0("sandboxctl")
        .args(context.global.words(&context.environment.working_directory))
        .args(["serve", "--local"])
        .args(place.root(root)?.words())
        .current_dir("/")
        .stdin(Stdio::from(listener))
        .stdout(Stdio::from(log))
        .stderr(Stdio::from(errors));
    for variable in ["LISTEN_FDS", "LISTEN_PID", "NOTIFY_SOCKET"] {
        command.env_remove(variable);
    }
    let mut child = command.spawn().map_err(failed)?;
    // It outlives this process; if it does not, nothing is left of it.
    std::thread::spawn(move || child.wait());
    Ok(())
}

/// What this process was given by its own starter is not passed on: a pipe would never end, and a lock never
/// be free.
fn keep_own_descriptors() -> io::Result<()> {
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let Some(fd) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        if fd > 2 {
            // SAFETY: it is only marked. Those of this program are marked already, and no other code
            // here closes what the process was started with.
            let fd = unsafe { BorrowedFd::borrow_raw(fd) };
            _ = rustix::io::fcntl_setfd(fd, FdFlags::CLOEXEC);
        }
    }
    Ok(())
}

pub fn local(context: &Context<'_>, command: LocalCommand) -> Result<u8, Error> {
    let place = Place::of(&context.environment);
    match command {
        LocalCommand::Status { json } => status(context, &place, json),
        LocalCommand::Stop => stop(context, &place),
        LocalCommand::Logs => {
            let [log, older] = place.logs();
            for file in [older, log] {
                match std::fs::read(&file) {
                    Ok(text) => context.output.text(&String::from_utf8_lossy(&text))?,
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(source) => {
                        return Err(Error::Content { what: file.display().to_string(), source });
                    }
                }
            }
            Ok(0)
        }
        LocalCommand::Socket(root) => block_on(async {
            connect(context, &root).await?;
            let (version, socket) = (env!("CARGO_PKG_VERSION"), place.socket());
            let hello = json!({ "protocol": PROTOCOL, "version": version, "socket": socket });
            context.output.json_line(&hello).map(|()| 0)
        }),
    }
}

fn sandboxes(place: &Place) -> Result<Vec<SandboxView>, Error> {
    block_on(async { Ok(client(place).sandboxes(&SandboxQuery::default()).await?) })
}

/// What `status` prints.
#[derive(Serialize)]
struct Status {
    running: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    service: Option<Record>,
    sandboxes: usize,
    processes: u64,
}

fn status(context: &Context<'_>, place: &Place, json: bool) -> Result<u8, Error> {
    let record = if place.is_served()? { place.record() } else { None };
    let sandboxes = if record.is_some() { sandboxes(place)? } else { Vec::new() };
    let processes = sandboxes.iter().filter_map(|sandbox| sandbox.processes).sum();
    let status = Status {
        running: record.is_some(),
        service: record,
        sandboxes: sandboxes.len(),
        processes,
    };
    if json {
        return context.output.document(&status).map(|()| 0);
    }
    let Some(record) = &status.service else {
        return context
            .output
            .text("not running: the next `sandbox` command starts it\n")
            .map(|()| 0);
    };
    let engine = record.settings.get(&Key::EngineKind.name()).map_or("-", String::as_str);
    let lines = [
        ("pid", record.pid.to_string()),
        ("version", record.version.clone()),
        ("engine", engine.to_owned()),
        ("started", record.started_at.to_string()),
        ("listens", record.addresses.join(" ")),
        ("data", place.data_dir().display().to_string()),
        ("sandboxes", status.sandboxes.to_string()),
        ("processes", status.processes.to_string()),
    ];
    context.output.text(&render::facts(9, lines)).map(|()| 0)
}

fn stop(context: &Context<'_>, place: &Place) -> Result<u8, Error> {
    if !place.is_served()? {
        context.output.notice("the local service is not running");
        return Ok(0);
    }
    // One that has just been started says who it is as soon as it answers.
    let sandboxes = sandboxes(place);
    let Some(record) = place.record() else {
        let why = io::Error::other("it has not written its status file");
        return sandboxes.and(Err(failed(why)));
    };
    let pid = i32::try_from(record.pid).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| failed(io::ErrorKind::InvalidData.into()))?;
    let process = pidfd_open(pid, PidfdFlags::empty()).map_err(|error| failed(error.into()))?;
    pidfd_send_signal(&process, Signal::TERM).map_err(|error| failed(error.into()))?;
    let limit = Timespec { tv_sec: END.as_secs().cast_signed(), tv_nsec: 0 };
    let mut ended = [PollFd::new(&process, PollFlags::IN)];
    let count = rustix::io::retry_on_intr(|| poll(&mut ended, Some(&limit)));
    if count.map_err(|error| failed(error.into()))? == 0 {
        return Err(failed(io::ErrorKind::TimedOut.into()));
    }
    let engine = record.settings.get(&Key::EngineKind.name());
    if let (Ok([_, ..]), Some(engine)) = (sandboxes.as_deref(), engine) {
        context.output.notice(&format!(
            "its sandboxes keep their files, and need the engine {engine} again: --engine {engine} with the next \
             command, unless it is the default"
        ));
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use sandbox_api::service::Time;
    use sandbox_env::Environment;

    use super::*;
    use crate::config::{Flags, Value};

    fn record(engine: &str) -> Record {
        Record {
            protocol: PROTOCOL,
            version: "0.1.0".to_owned(),
            pid: 1,
            started_at: Time::now(),
            addresses: Vec::new(),
            settings: [("engine.kind".to_owned(), engine.to_owned())].into(),
            root: LocalRootArgs::default(),
        }
    }

    #[test]
    fn service_with_another_engine_is_refused_with_the_command_that_ends_it() {
        let folder = tempfile::tempdir().unwrap();
        let settings = |engine: Option<&str>| {
            let mut flags = Flags::default();
            flags.set(Key::EngineKind, engine.map(|it| Value::Text(it.to_owned())));
            Settings::load(&Environment::new(folder.path(), 1000, &[]), flags).unwrap()
        };
        let none = LocalRootArgs::default();
        for engine in [None, Some("auto"), Some("docker")] {
            assert!(check(Some(record("docker")), &settings(engine), &none).is_ok(), "{engine:?}");
        }
        let refused = check(Some(record("docker")), &settings(Some("embedded")), &none);
        let text = refused.unwrap_err().to_text();
        assert!(text.starts_with("--engine: the local service runs with docker"), "{text}");
        assert!(text.contains("sandboxctl local stop"), "{text}");
        let root = LocalRootArgs { rootfs: Some("/x".into()), image_archive: None };
        let refused =
            check(Some(record("embedded")), &settings(None), &root.absolute(Path::new("/")));
        assert!(refused.unwrap_err().to_text().starts_with("--rootfs: "));
        let older = Record { protocol: PROTOCOL + 1, ..record("docker") };
        assert!(check(Some(older), &settings(None), &none).is_err());
    }
}
