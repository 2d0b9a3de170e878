//! What a request asks for, checked against what the service allows. Pure: everything that can be
//! refused at once is refused here, before anything is stored.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use sandbox_api::hosts::{AllowRule, Allowlist};
use sandbox_api::service::{
    CommandRequest, Content, ExecutionKind, ExecutionRequest, IoMode, IoRequest, KeptSpec,
    NetworkRequest, RequestSecrets,
};
use sandbox_api::{
    Bounds, Ceiling, ErrorKind, GuestPath, Input, Lifespan, Limits, LimitsRequest, Ports,
    ProcessCommand, ProcessRequest, Processes, RootFs, SandboxSpec, Workload, image_matches,
    is_image_reference,
};
use sandbox_dirfd::real_path;
use sandbox_protocol::limits::MAX_COMMAND_BYTES;
use sandbox_protocol::path::MAX_COMPONENT_BYTES;

use crate::config::{HostPolicy, IoPosture, ServiceConfig};
use crate::error::ServiceError;

/// The bytes of a sandbox's environment, as they count in each of its commands: half of what these have.
const MAX_ENV_BYTES: usize = MAX_COMMAND_BYTES / 2;
/// The longest name of an image.
const MAX_IMAGE_BYTES: usize = 512;

/// What is to run, and in which sandbox.
#[derive(Debug)]
pub(crate) struct Plan {
    /// The sandbox, where the execution has one of its own; its io dir is set by who launches it.
    pub spec: SandboxSpec,
    /// What runs in it.
    pub workload: Workload,
    /// Its files.
    pub io: PlannedIo,
}

/// Environment variables by name.
pub(crate) type Env = BTreeMap<String, Content>;

/// The files of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PlannedIo {
    /// None.
    Off,
    /// A private io dir, whose files are kept.
    Private,
    /// The shared directory.
    Shared,
}

/// Plans an execution with a sandbox of its own.
pub(crate) fn plan(
    request: ExecutionRequest,
    config: &ServiceConfig,
) -> Result<Plan, ServiceError> {
    let root = root(request.image.as_deref(), config)?;
    let Bounds { limits: usual, ceiling } = config.bounds(&root);
    let limits = limits(request.limits, usual, &ceiling)?;
    let allow = hosts(&request.network, &root, config)?;
    let mut request = request;
    let inputs = inputs(std::mem::take(&mut request.inputs), config)?;
    metadata(&request.metadata, config)?;
    let asked_io = std::mem::take(&mut request.io);
    let workload = Workload::of(request, config.request.stdin_bytes)?;
    if workload.kind() == ExecutionKind::Command && !root.supports_exec() {
        return Err(no_programs(config));
    }
    let io = io(&asked_io, workload.kind(), !inputs.is_empty(), config)?;
    let mut spec = config.sandbox.clone().root(root).limits(limits).allow(allow);
    spec.lifespan = Lifespan::OneRun;
    spec.inputs = inputs;
    // No rule of names can be enforced for commands, whose io dir is their own.
    if spec.supports_exec() {
        spec.protected = Vec::new();
    }
    paths(&mut spec, asked_io.mount_path, asked_io.workdir, io)?;
    if let Some(errors) = asked_io.errors {
        spec.io_errors = errors;
    }
    let spec = spec.title(match &workload {
        Workload::Script(_) => "script".to_owned(),
        Workload::Command(command) => String::from_utf8_lossy(command.program()).into_owned(),
    });
    Ok(Plan { spec, workload, io })
}

/// Plans an execution in a kept sandbox of this spec and environment, whose shape is fixed.
pub(crate) fn plan_in_sandbox(
    mut request: ExecutionRequest,
    spec: &SandboxSpec,
    env: &Env,
    config: &ServiceConfig,
) -> Result<Workload, ServiceError> {
    metadata(&request.metadata, config)?;
    if let Some(command) = &mut request.command {
        add_env(command, &request.secrets, env);
    }
    // Those of a sandbox hold, even if this service allows others for new ones.
    let limits = match request.limits == LimitsRequest::default() {
        true => spec.limits,
        false => limits(request.limits, spec.limits, &config.bounds(&spec.root).ceiling)?,
    };
    let workload =
        Workload::in_sandbox(request, &limits, &spec.limits, config.request.stdin_bytes)?;
    match &workload {
        Workload::Command(_) if !spec.supports_exec() => Err(no_programs(config)),
        _ => Ok(workload),
    }
}

/// Plans a process of a kept sandbox.
pub(crate) fn plan_process(
    mut request: ProcessRequest,
    spec: &SandboxSpec,
    env: &Env,
    config: &ServiceConfig,
) -> Result<ProcessCommand, ServiceError> {
    if !spec.supports_exec() {
        return Err(no_programs(config));
    }
    if spec.processes != Processes::Kept {
        return Err(ServiceError::keeps_no_processes());
    }
    add_env(&mut request.command, &request.secrets, env);
    // What is typed comes later.
    request.stdin |= request.pty.is_some();
    let scrollback = request.scrollback.unwrap_or(config.kept.scrollback);
    let process = ProcessCommand::of(request, config.request.stdin_bytes)?;
    let ceiling = config.bounds(&spec.root).ceiling;
    if let Some(stop_timeout) = process.command.stop_timeout
        && let Err(over) = (Limits { stop_timeout, ..ceiling.0 }).check(&ceiling)
    {
        return Err(ServiceError::over_ceiling("stop_timeout_ms", &over));
    }
    Ok(ProcessCommand { scrollback, ..process })
}

/// The environment of a sandbox is that of each of its commands, which may replace it.
fn add_env(command: &mut CommandRequest, secrets: &RequestSecrets, env: &Env) {
    for (name, value) in env {
        if !secrets.0.contains_key(name) {
            command.env.entry(name.clone()).or_insert_with(|| value.clone());
        }
    }
}

/// Checks the environment of a sandbox.
fn check_env(env: &Env) -> Result<(), ServiceError> {
    let invalid = |problem: String| Err(ServiceError::invalid("spec.env", problem));
    let is_word = |bytes: &[u8]| !bytes.contains(&0);
    for (name, value) in env {
        if name.is_empty() || name.contains('=') || !is_word(name.as_bytes()) {
            return invalid(format!("{name:?} is not the name of a variable"));
        }
        if !is_word(&value.0) {
            return invalid(format!("{name} has a NUL byte"));
        }
    }
    let bytes: usize = env.iter().map(|(name, value)| name.len() + value.0.len() + 16).sum();
    match bytes > MAX_ENV_BYTES {
        true => invalid(format!("longer than {MAX_ENV_BYTES} bytes")),
        false => Ok(()),
    }
}

/// Plans a kept sandbox. Its io dir is private, and set by who launches it, unless it is off: a sandbox
/// with programs is for commands, which have files in any case, and one without is for scripts alone.
pub(crate) fn plan_kept(
    spec: KeptSpec,
    config: &ServiceConfig,
) -> Result<SandboxSpec, ServiceError> {
    let root = root(spec.image.as_deref(), config)?;
    let Bounds { limits: usual, ceiling } = config.bounds(&root);
    let limits = limits(spec.limits, usual, &ceiling)?;
    let allow = hosts(&spec.network, &root, config)?;
    check_env(&spec.env)?;
    let needs_programs = spec.processes == Processes::Kept
        || !spec.env.is_empty()
        || spec.ports != Ports::default()
        || !spec.files.is_default();
    if needs_programs && !root.supports_exec() {
        return Err(no_programs(config));
    }
    let kind = match root.supports_exec() {
        true => ExecutionKind::Command,
        false => ExecutionKind::Script,
    };
    let io = io(&IoRequest::default(), kind, !spec.inputs.is_empty(), config)?;
    let inputs = inputs(spec.inputs, config)?;
    let mut planned = config.sandbox.clone().root(root).limits(limits).allow(allow);
    planned.lifespan = Lifespan::ManyRuns;
    planned.processes = spec.processes;
    planned.ports = spec.ports;
    planned.files = spec.files;
    planned.inputs = inputs;
    match spec.host_dir {
        // Its links were resolved when it was created: one that a guest has made since leads nowhere.
        Some(dir) => planned = planned.io_dir(host_dir(dir, io, config)?).no_symlinks(),
        None if planned.supports_exec() => planned.protected = Vec::new(),
        None => {}
    }
    paths(&mut planned, spec.mount_path, spec.workdir, io)?;
    Ok(if io == PlannedIo::Off { planned.no_io() } else { planned })
}

/// A directory of the host that a sandbox asks for.
fn host_dir(dir: String, io: PlannedIo, config: &ServiceConfig) -> Result<PathBuf, ServiceError> {
    let dir = PathBuf::from(dir);
    match (config.host_dirs, io) {
        (false, _) => {
            Err(ServiceError::forbidden("spec.host_dir", "no sandbox has directories of this host")
                .with_hint("write and read the files over HTTP"))
        }
        (true, PlannedIo::Off) => {
            Err(ServiceError::invalid("spec.host_dir", "a sandbox without files has no directory"))
        }
        (true, _) if !dir.is_absolute() => {
            Err(ServiceError::invalid("spec.host_dir", "it is not an absolute path"))
        }
        (true, _) => Ok(dir),
    }
}

/// Resolves the links of a directory of the host, so that each generation has the one of the creation.
pub(crate) async fn resolve_host_dir(
    spec: &mut KeptSpec,
    config: &ServiceConfig,
) -> Result<(), ServiceError> {
    // The plan refuses a directory that is not resolved here.
    let is_resolved = |dir: &&mut String| config.host_dirs && Path::new(dir.as_str()).is_absolute();
    let Some(dir) = spec.host_dir.as_mut().filter(is_resolved) else { return Ok(()) };
    let asked = PathBuf::from(&*dir);
    let invalid = |problem: String| ServiceError::invalid("spec.host_dir", problem);
    *dir = crate::blocking(move || {
        let resolved = real_path(&asked).map_err(|error| invalid(error.to_string()))?;
        let resolved = resolved.into_os_string().into_string();
        resolved.map_err(|_| invalid("its links lead to a path that is not UTF-8".to_owned()))
    })
    .await?;
    Ok(())
}

/// Metadata that is kept and given back.
pub(crate) fn metadata(
    metadata: &serde_json::Map<String, serde_json::Value>,
    config: &ServiceConfig,
) -> Result<(), ServiceError> {
    let most = config.request.metadata_bytes;
    match serde_json::to_vec(metadata) {
        Ok(json) if json.len() <= most => Ok(()),
        _ => Err(ServiceError::invalid("metadata", format!("longer than {most} bytes of JSON"))
            .with_kind(ErrorKind::TooLarge)),
    }
}

/// The embedded engine has no images that a request could name: the service itself has one then.
fn no_programs(config: &ServiceConfig) -> ServiceError {
    let by_request = match config.allowed_images.is_empty() {
        true => "`serve --allowed-image PATTERN` lets requests name one",
        false => "`image` names one with programs",
    };
    let by_service = match config.host_dirs {
        // A program's own service, which the program starts with what it names.
        true => "a rootfs or an image archive is one",
        false => "`serve --image-archive FILE` or `serve --rootfs DIR` is one for all",
    };
    ServiceError::invalid("command", "commands need an image")
        .with_hint(format!("{by_request}; on the embedded engine {by_service}"))
        .with_kind(ErrorKind::Usage)
}

/// These limits with those that a request asks for.
fn limits(
    asked: LimitsRequest,
    mut limits: Limits,
    ceiling: &Ceiling,
) -> Result<Limits, ServiceError> {
    asked.apply(&mut limits).map_err(|(name, error)| {
        ServiceError::invalid(&format!("limits.{name}"), error.to_string())
    })?;
    limits.check(ceiling)?;
    Ok(limits)
}

fn root(image: Option<&str>, config: &ServiceConfig) -> Result<RootFs, ServiceError> {
    let Some(image) = image else { return Ok(config.default_root.clone()) };
    if let Some(root) = config.roots.get(image) {
        return Ok(root.clone());
    }
    if image.len() > MAX_IMAGE_BYTES || !is_image_reference(image) {
        return Err(ServiceError::invalid("image", "not the name of an image"));
    }
    if !config.allowed_images.iter().any(|pattern| image_matches(pattern, image)) {
        return Err(ServiceError::forbidden("image", format!("'{image}' is not allowed here"))
            .with_hint("server.allowed_images in the server's configuration lists what is"));
    }
    Ok(RootFs::Image { reference: image.to_owned(), pull: config.pull })
}

fn hosts(
    network: &NetworkRequest,
    root: &RootFs,
    config: &ServiceConfig,
) -> Result<Allowlist, ServiceError> {
    let field = "network.allow";
    if network.allow.len() > config.request.hosts {
        let problem = format!("more than {} rules", config.request.hosts);
        return Err(ServiceError::invalid(field, problem).with_kind(ErrorKind::TooLarge));
    }
    if let (true, HostPolicy::Any { usual }) =
        (network.allow.is_empty() && root.supports_exec(), &config.hosts)
    {
        return Ok(usual.clone());
    }
    if !network.allow.is_empty() && !root.supports_exec() {
        return Err(ServiceError::invalid(field, "scripts have no network")
            .with_hint("`image` names an image whose commands have one"));
    }
    let rule = |text: &String| {
        let rule: AllowRule =
            text.parse().map_err(|error| ServiceError::invalid(field, format!("{error}")))?;
        let is_allowed = match &config.hosts {
            HostPolicy::Any { .. } => true,
            HostPolicy::Listed(list) => list.covers(&rule),
        };
        match is_allowed {
            true => Ok(rule),
            false => Err(ServiceError::forbidden(field, format!("'{rule}' is not allowed here"))
                .with_hint("network.allow in the server's configuration lists what is")),
        }
    };
    network.allow.iter().map(rule).collect()
}

fn inputs(
    inputs: BTreeMap<String, Content>,
    config: &ServiceConfig,
) -> Result<Vec<Input>, ServiceError> {
    let bounds = &config.request;
    let too_large = |problem: String| {
        Err(ServiceError::invalid("inputs", problem).with_kind(ErrorKind::TooLarge))
    };
    if inputs.len() > bounds.inputs {
        return too_large(format!("more than {}", bounds.inputs));
    }
    let bytes: u64 = inputs.values().map(|content| content.0.len() as u64).sum();
    if bytes > bounds.input_bytes.as_u64() {
        return too_large(format!("more than {}", bounds.input_bytes));
    }
    let input = |(name, content): (String, Content)| {
        let problem = match &*name {
            "" | "." | ".." => "not a file name",
            name if name.contains(['/', '\0']) => "a name has no '/' and no NUL",
            name if name.len() > MAX_COMPONENT_BYTES => "a name has at most 255 bytes",
            _ => return Ok(Input::bytes(name, content.0)),
        };
        Err(ServiceError::invalid("inputs", format!("{:?}: {problem}", OsStr::new(&name))))
    };
    inputs.into_iter().map(input).collect()
}

fn io(
    asked: &IoRequest,
    kind: ExecutionKind,
    has_inputs: bool,
    config: &ServiceConfig,
) -> Result<PlannedIo, ServiceError> {
    let forbidden = |problem: &str| {
        Err(ServiceError::forbidden("io", problem).with_hint(
            "`[io] enabled = true` in the service's configuration, or SANDBOXCTL_IO_ENABLED=true \
                 in its environment, allows it",
        ))
    };
    let io = match (asked.mode, kind, &config.io) {
        (None | Some(IoMode::Private), ExecutionKind::Command, _)
        | (None | Some(IoMode::Private), _, IoPosture::PrivatePerExecution)
        | (Some(IoMode::Private), _, IoPosture::Shared(_)) => PlannedIo::Private,
        (None | Some(IoMode::Shared), _, IoPosture::Shared(_)) => PlannedIo::Shared,
        (Some(IoMode::Off), _, _) | (None, ExecutionKind::Script, IoPosture::Off) => PlannedIo::Off,
        (Some(IoMode::Private), ExecutionKind::Script, IoPosture::Off) => {
            return forbidden("scripts have no files here");
        }
        (Some(IoMode::Shared), _, IoPosture::Off | IoPosture::PrivatePerExecution) => {
            return forbidden("this server shares no directory");
        }
    };
    match (io, has_inputs) {
        (PlannedIo::Off, true) if asked.mode.is_none() => forbidden("scripts have no inputs here"),
        (PlannedIo::Off, true) => {
            Err(ServiceError::invalid("inputs", "an execution without files has no inputs"))
        }
        _ => Ok(io),
    }
}

/// The guest paths of the io dir and the working directory.
fn paths(
    spec: &mut SandboxSpec,
    mount_path: Option<String>,
    workdir: Option<String>,
    io: PlannedIo,
) -> Result<(), ServiceError> {
    if io == PlannedIo::Off {
        return match mount_path.is_some() || workdir.is_some() {
            true => Err(ServiceError::invalid("io", "an execution without files has no paths")),
            false => Ok(()),
        };
    }
    if let Some(path) = mount_path {
        match GuestPath::new(&path) {
            Ok(guest) if guest != GuestPath::root() => spec.mount_path = path,
            Ok(_) => return Err(ServiceError::invalid("io.mount_path", "it is the root")),
            Err(error) => return Err(ServiceError::invalid("io.mount_path", error.to_string())),
        }
    }
    let Some(workdir) = workdir else { return Ok(()) };
    let invalid = |problem: String| ServiceError::invalid("io.workdir", problem);
    let mount = GuestPath::new(&spec.mount_path).map_err(|error| invalid(error.to_string()))?;
    let resolved = GuestPath::resolve(workdir.as_bytes(), &mount, Some(&mount))
        .map_err(|error| invalid(error.to_string()))?;
    if !resolved.path.is_under(&mount) {
        return Err(invalid("it is outside of the io dir".to_owned()));
    }
    spec.workdir = Some(workdir);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandbox_api::ProblemKind as Kind;
    use sandbox_protocol::limits::MAX_SOURCE_BYTES;

    fn config() -> ServiceConfig {
        ServiceConfig {
            allowed_images: vec!["debian:*".to_owned()],
            hosts: HostPolicy::Listed(["example.org:443".parse().unwrap()].into_iter().collect()),
            ..ServiceConfig::new("/nonexistent")
        }
    }

    fn planned(json: serde_json::Value, config: &ServiceConfig) -> Result<Plan, ServiceError> {
        plan(serde_json::from_value(json).unwrap(), config)
    }

    #[test]
    fn directory_of_the_host_is_for_a_service_of_one_program() {
        let kept =
            |json, config: &ServiceConfig| plan_kept(serde_json::from_value(json).unwrap(), config);
        let asked = serde_json::json!({ "host_dir": "/srv/a" });
        let error = kept(asked.clone(), &config()).unwrap_err();
        assert_eq!(error.problem().kind, Kind::Policy);
        let local = ServiceConfig {
            host_dirs: true,
            io: IoPosture::PrivatePerExecution,
            hosts: HostPolicy::Any {
                usual: ["a.example:443".parse().unwrap()].into_iter().collect(),
            },
            ..config()
        };
        let spec = kept(asked.clone(), &local).unwrap();
        assert_eq!((spec.io_dir, spec.no_symlinks), (Some("/srv/a".into()), true));
        for wrong in [serde_json::json!({ "host_dir": "a" }), serde_json::json!({ "host_dir": "" })]
        {
            assert_eq!(kept(wrong, &local).unwrap_err().problem().kind, Kind::Invalid);
        }
        let off = ServiceConfig { io: IoPosture::Off, ..local.clone() };
        assert_eq!(kept(asked, &off).unwrap_err().problem().kind, Kind::Invalid);
        let folder = tempfile::tempdir().unwrap();
        let real = folder.path().canonicalize().unwrap();
        std::os::unix::fs::symlink(&real, real.join("link")).unwrap();
        let linked = |config: &ServiceConfig| {
            let dir = real.join("link/new/a").into_os_string().into_string().unwrap();
            let mut spec = KeptSpec { host_dir: Some(dir), ..KeptSpec::default() };
            let runtime = tokio::runtime::Runtime::new().unwrap();
            runtime.block_on(resolve_host_dir(&mut spec, config)).map(|()| spec.host_dir)
        };
        let resolved = real.join("new/a").into_os_string().into_string().unwrap();
        assert_eq!(linked(&local).unwrap(), Some(resolved));
        std::fs::remove_file(real.join("link")).unwrap();
        std::os::unix::fs::symlink("nowhere", real.join("link")).unwrap();
        assert_eq!(linked(&local).unwrap_err().problem().kind, Kind::Invalid);
        // The hosts of a sandbox that asks for none are the user's usual ones.
        let usual = kept(serde_json::json!({ "image": "debian:13" }), &local).unwrap();
        assert_eq!(usual.allow.rules().len(), 1);
        let network = serde_json::json!({ "allow": ["x.example:80", "y.example:80"] });
        let own = serde_json::json!({ "image": "debian:13", "network": network });
        assert_eq!(kept(own, &local).unwrap().allow.rules().len(), 2);
        assert!(kept(serde_json::json!({}), &local).unwrap().allow.rules().is_empty());
    }

    /// The answer to a request that is refused, and the member that it names.
    fn refusal(json: serde_json::Value) -> (Kind, String) {
        let error = planned(json.clone(), &config()).expect_err(&json.to_string());
        let text = error.to_string();
        (error.problem().kind, text.split(':').next().unwrap_or_default().to_owned())
    }

    #[test]
    fn request_that_cannot_run_is_refused_with_the_member_that_is_wrong() {
        let shell = |more: serde_json::Value| {
            let mut json =
                serde_json::json!({ "command": { "shell": "true" }, "image": "debian:13" });
            json.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            json
        };
        let script = |more: serde_json::Value| {
            let mut json = serde_json::json!({ "script": "return 1" });
            json.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            json
        };
        let json = |text: &str| serde_json::from_str(text).unwrap();
        for (request, kind, field) in [
            (json("{}"), Kind::Invalid, "script"),
            (script(json(r#"{"command":{"shell":"x"}}"#)), Kind::Invalid, "script"),
            (json(r#"{"command":{"shell":"x"}}"#), Kind::Invalid, "command"),
            (json(r#"{"command":{}, "image":"debian:13"}"#), Kind::Invalid, "command.program"),
            (shell(json(r#"{"args":{"a":1}}"#)), Kind::Invalid, "command"),
            (shell(json(r#"{"image":"alpine"}"#)), Kind::Policy, "image"),
            (shell(json(r#"{"image":""}"#)), Kind::Invalid, "image"),
            (shell(json(r#"{"limits":{"memory_bytes":1}}"#)), Kind::Invalid, "limits.memory_bytes"),
            (
                shell(json(r#"{"limits":{"timeout_ms":86400000}}"#)),
                Kind::Invalid,
                "limits.timeout_ms",
            ),
            (shell(json(r#"{"inputs":{"a/b":"x"}}"#)), Kind::Invalid, "inputs"),
            (shell(json(r#"{"inputs":{"..":"x"}}"#)), Kind::Invalid, "inputs"),
            (
                shell(json(r#"{"network":{"allow":["example.org:80"]}}"#)),
                Kind::Policy,
                "network.allow",
            ),
            (shell(json(r#"{"network":{"allow":["https://x"]}}"#)), Kind::Invalid, "network.allow"),
            (
                script(json(r#"{"network":{"allow":["example.org:443"]}}"#)),
                Kind::Invalid,
                "network.allow",
            ),
            (script(json(r#"{"secrets":{"A-B":"value"}}"#)), Kind::Invalid, "secrets"),
            (script(json(r#"{"secrets":{"A":"x"}}"#)), Kind::Invalid, "secrets"),
            (script(json(r#"{"io":{"mode":"private"}}"#)), Kind::Policy, "io"),
            (script(json(r#"{"io":{"mode":"shared"}}"#)), Kind::Policy, "io"),
            (script(json(r#"{"inputs":{"a":"x"}}"#)), Kind::Policy, "io"),
            (shell(json(r#"{"io":{"mount_path":"../x"}}"#)), Kind::Invalid, "io.mount_path"),
            (shell(json(r#"{"io":{"workdir":"/etc"}}"#)), Kind::Invalid, "io.workdir"),
            (
                json(r#"{"image":"debian:13","command":{"program":"x","env":{"A=B":"c"}}}"#),
                Kind::Invalid,
                "command",
            ),
            (
                json(r#"{"image":"debian:13","command":{"program":"x","args":[{"b64":"AA=="}]}}"#),
                Kind::Invalid,
                "command",
            ),
        ] {
            assert_eq!(refusal(request.clone()), (kind, field.to_owned()), "{request}");
        }
        let long = "x".repeat(MAX_SOURCE_BYTES + 1);
        let error = planned(serde_json::json!({ "script": long }), &config()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::SourceTooLarge);
        let long = serde_json::json!({ "script": "", "metadata": { "a": "x".repeat(17 << 10) } });
        assert_eq!(planned(long, &config()).unwrap_err().kind(), ErrorKind::TooLarge);
    }

    #[test]
    fn command_without_an_image_is_refused_with_all_that_names_one() {
        let hint = |config: &ServiceConfig| {
            let command = serde_json::json!({ "command": { "program": "ls" } });
            planned(command, config).unwrap_err().problem().hint.clone().unwrap_or_default()
        };
        let named = hint(&config());
        assert!(named.starts_with("`image` names one"), "{named}");
        let none = hint(&ServiceConfig { allowed_images: Vec::new(), ..config() });
        assert!(none.starts_with("`serve --allowed-image PATTERN` lets"), "{none}");
        for hint in [named, none] {
            assert!(hint.contains("on the embedded engine `serve --image-archive FILE`"), "{hint}");
        }
        let private = hint(&ServiceConfig { host_dirs: true, ..config() });
        assert!(private.contains("on the embedded engine a rootfs"), "{private}");
    }

    #[test]
    fn command_has_a_private_io_dir_and_a_script_what_the_posture_gives() {
        let script = serde_json::json!({ "script": "return 1" });
        let command = serde_json::json!({
            "command": { "shell": "true" }, "image": "debian:13", "inputs": { "a": "x" },
        });
        for (posture, expected) in [
            (IoPosture::Off, PlannedIo::Off),
            (IoPosture::PrivatePerExecution, PlannedIo::Private),
            (IoPosture::Shared("/srv".into()), PlannedIo::Shared),
        ] {
            let config = ServiceConfig { io: posture.clone(), ..config() };
            assert_eq!(planned(script.clone(), &config).unwrap().io, expected, "{posture:?}");
            let io = planned(command.clone(), &config).unwrap().io;
            let shared = matches!(posture, IoPosture::Shared(_));
            assert_eq!(io, PlannedIo::Private, "{shared}");
        }
    }

    #[test]
    fn allowed_request_becomes_the_sandbox_that_it_describes() {
        let plan = planned(
            serde_json::json!({
                "command": { "program": "cat", "args": ["a"], "env": { "A": "b" }, "stdin": "x" },
                "image": "debian:13",
                "limits": { "timeout_ms": 5000, "memory_bytes": 33554432 },
                "inputs": { "a.txt": "text" },
                "network": { "allow": ["example.org:443"] },
                "secrets": { "TOKEN": "hunter2!" },
            }),
            &config(),
        )
        .unwrap();
        assert_eq!(plan.spec.limits.timeout.as_secs(), 5);
        assert_eq!(plan.spec.limits.memory.as_u64(), 32 << 20);
        assert_eq!(plan.spec.inputs, [Input::bytes("a.txt", b"text".to_vec())]);
        assert_eq!(plan.spec.allow.rules().len(), 1);
        assert!(
            matches!(&plan.spec.root, RootFs::Image { reference, .. } if reference == "debian:13")
        );
        let Workload::Command(command) = plan.workload else { panic!("it is a command") };
        assert_eq!(command.program(), b"cat");
        assert_eq!(command.secrets.iter().next().unwrap().0, "TOKEN");
    }

    #[test]
    fn sandbox_with_programs_has_their_limits_also_for_its_scripts() {
        let config = config();
        let limits = |json| planned(json, &config).unwrap().spec.limits;
        let command = serde_json::json!({ "command": { "program": "x" }, "image": "debian:13" });
        assert_eq!(limits(command.clone()), Limits::for_programs());
        let script = serde_json::json!({ "script": "return 1", "image": "debian:13" });
        assert_eq!(limits(script), Limits::for_programs());
        assert_eq!(limits(serde_json::json!({ "script": "return 1" })), Limits::default());
        let kept = |json| plan_kept(serde_json::from_value(json).unwrap(), &config).unwrap().limits;
        assert_eq!(kept(serde_json::json!({ "image": "debian:13" })), Limits::for_programs());
        assert_eq!(kept(serde_json::json!({})), Limits::default());
        // Ceilings that are set for all hold for programs too, unless those have their own.
        let mut config = config.clone();
        config.ceiling.0.memory = sandbox_api::ByteSize::b(64 << 20);
        let memory = |config: &ServiceConfig| {
            planned(command.clone(), config).unwrap().spec.limits.memory.as_u64()
        };
        assert_eq!(memory(&config), 64 << 20);
        config.programs = Some(Bounds::for_programs());
        assert_eq!(memory(&config), 1 << 30);
    }

    #[test]
    fn execution_in_a_kept_sandbox_sets_its_time_and_nothing_of_the_sandbox() {
        let config = config();
        let mut spec = config.sandbox.clone().limits(config.limits);
        spec.limits.timeout = std::time::Duration::from_secs(60);
        let env = Env::new();
        let plan =
            |json| plan_in_sandbox(serde_json::from_value(json).unwrap(), &spec, &env, &config);
        // The service's own default is not the sandbox's.
        let usual = u64::try_from(config.limits.timeout.as_millis()).unwrap();
        let script = serde_json::json!({ "script": "return 1", "limits": { "timeout_ms": usual } });
        assert_eq!(plan(script).unwrap().timeout(), Some(config.limits.timeout));
        let script =
            serde_json::json!({ "script": "return 1", "limits": { "timeout_ms": 60_000 } });
        assert_eq!(plan(script).unwrap().timeout(), None);
        let script = serde_json::json!({ "script": "return 1", "limits": { "timeout_ms": 70 } });
        let Workload::Script(script) = plan(script).unwrap() else { panic!("it is a script") };
        assert_eq!(script.timeout.unwrap().as_millis(), 70);
        for other in [
            serde_json::json!({ "script": "", "image": "debian:13" }),
            serde_json::json!({ "script": "", "limits": { "pids": 20 } }),
            serde_json::json!({ "script": "", "limits": { "stop_timeout_ms": 5 } }),
            serde_json::json!({ "script": "", "stop_signal": "INT" }),
            serde_json::json!({ "script": "", "inputs": { "a": "" } }),
            serde_json::json!({ "script": "", "io": { "mode": "off" } }),
        ] {
            assert_eq!(plan(other.clone()).unwrap_err().problem().kind, Kind::Invalid, "{other}");
        }
    }

    #[test]
    fn process_or_command_has_the_grace_of_its_sandbox_or_one_below_the_ceiling() {
        let config = config();
        let kept = serde_json::json!({ "image": "debian:13", "processes": "kept" });
        let spec = plan_kept(serde_json::from_value(kept).unwrap(), &config).unwrap();
        let grace = |more: serde_json::Value| {
            let mut request = serde_json::json!({ "command": { "shell": "sleep 1" } });
            request["stop_timeout_ms"] = more;
            let request = serde_json::from_value(request).unwrap();
            plan_process(request, &spec, &Env::new(), &config).map(|it| it.command.stop_timeout)
        };
        assert_eq!(grace(serde_json::Value::Null).unwrap(), None);
        for most in [0, 60_000] {
            let expected = std::time::Duration::from_millis(most);
            assert_eq!(grace(most.into()).unwrap(), Some(expected));
        }
        let error = grace(60_001.into()).unwrap_err();
        assert_eq!((error.kind(), error.problem().kind), (ErrorKind::Policy, Kind::Invalid));
        assert!(error.to_string().contains("stop_timeout_ms"), "{error}");
        let command = |limits| {
            let request = serde_json::json!({
                "command": { "shell": "sleep 1" }, "stop_signal": "INT", "limits": limits,
            });
            let request = serde_json::from_value(request).unwrap();
            plan_in_sandbox(request, &spec, &Env::new(), &config)
        };
        let own = command(serde_json::json!({ "stop_timeout_ms": 5 })).unwrap();
        let Workload::Command(own) = own else { panic!("it is a command") };
        let expected = Some(std::time::Duration::from_millis(5));
        assert_eq!((own.timeout, own.stop_timeout), (None, expected));
        assert_eq!(own.stop_signal, Some(sandbox_api::SignalName::Int));
        let error = command(serde_json::json!({ "stop_timeout_ms": 60_001 })).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Policy);
    }

    #[test]
    fn environment_of_a_sandbox_is_that_of_its_commands_unless_they_have_another() {
        let config = config();
        let kept = |json| {
            let spec: KeptSpec = serde_json::from_value(json).unwrap();
            plan_kept(spec.clone(), &config).map(|planned| (planned, spec.env))
        };
        let env = serde_json::json!({ "A": "1", "B": "1", "C": "1" });
        let json = serde_json::json!({ "image": "debian:13", "env": env, "processes": "kept" });
        let (spec, env) = kept(json).unwrap();
        let own = serde_json::json!({
            "command": { "shell": "env", "env": { "B": "2" } }, "secrets": { "C": "hidden" },
        });
        let expected = [("A", "1"), ("B", "2")];
        let expected = expected.map(|(name, value)| (name.as_bytes().to_vec(), Vec::from(value)));
        let run = serde_json::from_value(own.clone()).unwrap();
        let Workload::Command(command) = plan_in_sandbox(run, &spec, &env, &config).unwrap() else {
            panic!("it is a command")
        };
        assert_eq!(command.env, expected);
        let start = serde_json::from_value(own).unwrap();
        assert_eq!(plan_process(start, &spec, &env, &config).unwrap().command.env, expected);
        // Processes are kept only where that is asked for.
        let usual = SandboxSpec { processes: Processes::PerCommand, ..spec };
        let start: ProcessRequest =
            serde_json::from_value(serde_json::json!({ "command": { "shell": "env" } })).unwrap();
        let error = plan_process(start, &usual, &env, &config).unwrap_err();
        assert_eq!(error.problem().kind, Kind::Invalid);
        assert!(error.problem().hint.as_ref().unwrap().contains("kept"), "{error}");
        let large = "x".repeat(MAX_ENV_BYTES);
        for wrong in [
            serde_json::json!({ "image": "debian:13", "env": { "": "1" } }),
            serde_json::json!({ "image": "debian:13", "env": { "A=B": "1" } }),
            serde_json::json!({ "image": "debian:13", "env": { "A": "a\u{0}b" } }),
            serde_json::json!({ "image": "debian:13", "env": { "A": large } }),
            serde_json::json!({ "env": { "A": "1" } }),
            serde_json::json!({ "processes": "kept" }),
            serde_json::json!({ "ports": [8080] }),
            serde_json::json!({ "files": "all" }),
        ] {
            assert_eq!(kept(wrong).unwrap_err().problem().kind, Kind::Invalid);
        }
    }
}
