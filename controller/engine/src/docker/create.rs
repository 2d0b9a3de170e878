//! Translates a [`ContainerSpec`] into a Docker request: a pure function, so that every setting of
//! the hardening table can be tested separately.

use std::collections::HashMap;
use std::os::fd::AsRawFd as _;

use bollard::models::{
    ContainerCreateBody, HealthConfig, HostConfig, HostConfigCgroupnsModeEnum, HostConfigLogConfig,
    Mount, MountBindOptions, MountBindOptionsPropagationEnum, MountType, MountVolumeOptions,
    MountVolumeOptionsDriverConfig, ResourcesUlimits, RestartPolicy, RestartPolicyNameEnum,
};
use rustix::io::Errno;
use sandbox_protocol::syscalls::{PERSONALITIES, container_syscall_names};
use serde_json::{Value, json};

use super::agent_mount::BoundFile;
use crate::hardening::{
    ALLOWED_SYSCALLS, CLONE, CLONE_NAMESPACES, CLONE3, DEVICES, HOSTNAME, MASKED_PATHS,
    OOM_SCORE_ADJ, PROCESSOR_LISTS, READONLY_PATHS, SYSCTLS, SYSTEM_FILES,
};
use crate::image::variables_of_image;
use crate::{Bind, ContainerSpec, Programs, Ulimit};

/// The form of a request: the settings that Podman does not accept as Docker does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    /// With the seccomp profile of sandboxctl, which is smaller and faster to load than Docker's.
    Docker,
    /// With the engine's default profile, because Podman accepts another one only as a separate
    /// file, and without options of tmpfs that it does not know.
    Podman,
}

pub(super) const TMP: &str = "/tmp";

/// The options of a tmpfs that covers a directory, including the volumes that an image declares.
/// The engine would otherwise create those on the host's disk, writable: a read-only volume must
/// have a name, and so would outlive the container.
pub(super) const EMPTY: &str = "ro,nosuid,nodev,noexec,size=4k";

impl Dialect {
    /// The options of a directory that stays empty.
    fn empty(self) -> String {
        match self {
            Self::Docker => EMPTY.to_owned(),
            // Otherwise it copies the image's content into a tmpfs.
            Self::Podman => format!("{EMPTY},notmpcopyup"),
        }
    }

    /// The options of `/tmp`. Both engines may use the mode of the image's `/tmp` instead of the
    /// requested one. In case that denies writes to all but the owner, the user is made the owner.
    fn tmp(self, spec: &ContainerSpec, programs: &Programs) -> String {
        let (uid, gid) = (spec.user.uid(), spec.user.gid());
        let Programs { tmpfs_bytes, tmpfs_inodes, .. } = programs;
        let options = format!("exec,nosuid,nodev,size={tmpfs_bytes},mode=1777");
        match self {
            Self::Docker => format!("{options},nr_inodes={tmpfs_inodes},uid={uid},gid={gid}"),
            // Of files without content, only the container's memory limits the number.
            Self::Podman => format!("{options},U,notmpcopyup"),
        }
    }
}

/// The image of a container.
#[derive(Debug, Clone, Copy)]
pub(super) enum From<'a> {
    /// The sandbox image, by its id.
    SandboxImage(&'a str),
    /// A user's image, in which commands run, by its id.
    UserImage {
        image: &'a str,
        /// The volumes that the image declares.
        volumes: &'a [String],
        programs: &'a Programs,
        /// The files to mount into it: the agent, which is what starts, comes first.
        files: &'a [BoundFile],
    },
}

/// The body of the request that creates the container.
pub(super) fn body(
    spec: &ContainerSpec,
    from: From<'_>,
    runtime: Option<&str>,
    dialect: Dialect,
) -> ContainerCreateBody {
    let (image, profile): (_, fn() -> Value) = match from {
        From::SandboxImage(image) => (image, scripts_profile),
        From::UserImage { image, .. } => (image, programs_profile),
    };
    let masked = masked_paths(from, runtime);
    let mut security_opt = vec!["no-new-privileges".to_owned()];
    match dialect {
        Dialect::Docker => security_opt.push(format!("seccomp={}", profile())),
        // Podman ignores `MaskedPaths`, and accepts them in this form.
        Dialect::Podman => security_opt.push(format!("mask={}", masked.join(":"))),
    }
    let memory = i64::try_from(spec.memory).unwrap_or(i64::MAX);
    let texts = |list: &[&str]| Some(list.iter().map(|&text| text.to_owned()).collect());
    let body = ContainerCreateBody {
        image: Some(image.to_owned()),
        // The agent's arguments: the agent is the entrypoint.
        cmd: Some(spec.agent_args()),
        user: Some(spec.user.to_string()),
        // A terminal would turn the container's output into frame headers.
        tty: Some(false),
        // Stdin closes with the connection: the agent then exits.
        open_stdin: Some(true),
        stdin_once: Some(true),
        attach_stdin: Some(true),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        network_disabled: Some(true),
        stop_signal: Some("SIGKILL".to_owned()),
        env: Some(Vec::new()),
        labels: Some(spec.labels.iter().cloned().collect()),
        host_config: Some(HostConfig {
            network_mode: Some("none".to_owned()),
            readonly_rootfs: Some(true),
            privileged: Some(false),
            cap_drop: texts(&["ALL"]),
            security_opt: Some(security_opt),
            pids_limit: Some(spec.pids.into()),
            memory: Some(memory),
            memory_swap: Some(memory),
            nano_cpus: Some(spec.nano_cpus),
            ulimits: Some(spec.ulimits.iter().map(ulimit).collect()),
            ipc_mode: Some("none".to_owned()),
            cgroupns_mode: Some(HostConfigCgroupnsModeEnum::PRIVATE),
            mounts: Some(spec.mounts.iter().map(mount).collect()),
            tmpfs: (!spec.hidden.is_empty())
                .then(|| spec.hidden.iter().map(|path| (path.clone(), dialect.empty())).collect()),
            masked_paths: texts(&masked),
            readonly_paths: texts(READONLY_PATHS),
            // The guest's output is not logged to the host's disk.
            log_config: Some(HostConfigLogConfig {
                typ: Some("none".to_owned()),
                config: Some(HashMap::new()),
            }),
            oom_score_adj: Some(OOM_SCORE_ADJ.into()),
            restart_policy: Some(RestartPolicy {
                name: Some(RestartPolicyNameEnum::NO),
                maximum_retry_count: None,
            }),
            // The exit evidence must remain readable: the controller removes the container.
            auto_remove: Some(false),
            init: Some(false),
            runtime: runtime.map(str::to_owned),
            ..HostConfig::default()
        }),
        ..ContainerCreateBody::default()
    };
    match from {
        From::SandboxImage(_) => body,
        From::UserImage { volumes, programs, files, .. } => {
            with_programs(body, spec, volumes, programs, files, dialect)
        }
    }
}

/// The masked paths. Where commands run, an empty directory with the lists of processors replaces
/// the mask of devices, unless another runtime may have its own `/sys`.
fn masked_paths(from: From<'_>, runtime: Option<&str>) -> Vec<&'static str> {
    let shows_processors = matches!(from, From::UserImage { .. }) && runtime.is_none();
    let masked = MASKED_PATHS.iter().copied();
    masked.filter(|path| !(shows_processors && *path == DEVICES)).collect()
}

/// The additional settings of a container in which commands run: of the image's own settings only
/// the environment applies.
fn with_programs(
    mut body: ContainerCreateBody,
    spec: &ContainerSpec,
    volumes: &[String],
    programs: &Programs,
    files: &[BoundFile],
    dialect: Dialect,
) -> ContainerCreateBody {
    body.entrypoint = Some(files.iter().take(1).map(|agent| agent.target.clone()).collect());
    // The engine adds the image's variables, except those of a name that the request sets too.
    let name = |variable: &String| variable.split('=').next().unwrap_or_default().to_owned();
    let withheld = programs.env.iter().map(name).filter(|name| !name.is_empty());
    let withheld = withheld.map(|name| format!("{name}="));
    body.env = Some(withheld.chain(variables_of_image(&programs.env)).collect());
    // The image's may not exist, and would be created.
    body.working_dir = Some("/".to_owned());
    body.hostname = Some(HOSTNAME.to_owned());
    // It would run programs next to the agent.
    body.healthcheck =
        Some(HealthConfig { test: Some(vec!["NONE".to_owned()]), ..HealthConfig::default() });
    let host = body.host_config.get_or_insert_default();
    host.ipc_mode = Some("private".to_owned());
    host.shm_size = i64::try_from(programs.shm_bytes).ok();
    let tmp = (TMP.to_owned(), dialect.tmp(spec, programs));
    // Unless the request mounts something at that path.
    let is_ours = |path: &str| {
        path == TMP
            || spec.mounts.iter().any(|bind| bind.target == path)
            || files.iter().any(|it| it.target == path)
    };
    let volumes = volumes.iter().filter(|path| !is_ours(path));
    let volumes = volumes.map(|path| (path.clone(), dialect.empty()));
    host.tmpfs.get_or_insert_default().extend([tmp].into_iter().chain(volumes));
    host.sysctls = Some(SYSCTLS.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
    let is_masked = |paths: &Vec<String>| paths.iter().any(|path| path == DEVICES);
    let mounts = host.mounts.get_or_insert_default();
    if !host.masked_paths.as_ref().is_some_and(is_masked) {
        host.tmpfs.get_or_insert_default().insert(DEVICES.to_owned(), dialect.empty());
        mounts.extend(PROCESSOR_LISTS.map(|list| bind_mount(list, list)));
    }
    mounts.extend(files.iter().map(|it| bind_mount(&it.source, &it.target)));
    body
}

/// File systems of the kernel: a volume in one would hide what the agent reads from the kernel, and
/// a path through `/proc/1/root` leads to the sandbox's mounts by another name.
const OF_THE_KERNEL: [&str; 3] = ["/proc", "/sys", "/dev"];

/// Why a container with a volume at this path cannot be created; `None` if it can. The engine
/// creates mount points, and that must not happen inside one of the sandbox's mounts.
pub(super) fn refuse_volume(path: &str, spec: &ContainerSpec) -> Option<String> {
    let ours = spec.mounts.iter().map(|bind| &*bind.target);
    let system = SYSTEM_FILES.iter().map(|(path, _)| *path);
    let mut ours = ours.chain(system);
    let under = |path: &str, folder: &str| {
        folder == "/" || path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
    };
    let hit = ours.find(|&mount| under(path, mount) || under(mount, path)).or_else(|| {
        OF_THE_KERNEL.into_iter().find(|&kernel| path == kernel || under(path, kernel))
    })?;
    Some(format!("wants a volume at {path}, where the sandbox has its {hit}"))
}

/// The seccomp profile for commands in Docker's format.
fn programs_profile() -> Value {
    let personality = PERSONALITIES.map(|value| {
        json!({
            "names": ["personality"],
            "action": "SCMP_ACT_ALLOW",
            "args": [{"index": 0, "value": value, "valueTwo": 0, "op": "SCMP_CMP_EQ"}],
        })
    });
    let names: Vec<_> = container_syscall_names().filter(|name| *name != CLONE).collect();
    let all = json!({"names": names, "action": "SCMP_ACT_ALLOW"});
    let rules: Value = [all, clone_without_namespaces()].into_iter().chain(personality).collect();
    let mut profile = profile(rules);
    profile["defaultErrnoRet"] = Errno::NOSYS.raw_os_error().into();
    profile
}

/// The seccomp profile for scripts in Docker's format.
fn scripts_profile() -> Value {
    profile(json!([
        {"names": ALLOWED_SYSCALLS.concat(), "action": "SCMP_ACT_ALLOW"},
        clone_without_namespaces(),
        {"names": [CLONE3], "action": "SCMP_ACT_ERRNO", "errnoRet": Errno::NOSYS.raw_os_error()},
    ]))
}

fn clone_without_namespaces() -> Value {
    json!({
        "names": [CLONE],
        "action": "SCMP_ACT_ALLOW",
        "args": [{
            "index": 0, "value": CLONE_NAMESPACES, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ",
        }],
    })
}

fn profile(rules: Value) -> Value {
    json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "archMap": [
            {"architecture": "SCMP_ARCH_X86_64", "subArchitectures": []},
            {"architecture": "SCMP_ARCH_AARCH64", "subArchitectures": []},
        ],
        "syscalls": rules,
    })
}

fn ulimit(&Ulimit { name, soft, hard }: &Ulimit) -> ResourcesUlimits {
    ResourcesUlimits { name: Some(name.to_owned()), soft: Some(soft), hard: Some(hard) }
}

fn mount(bind: &Bind) -> Mount {
    let mount = match (&bind.source.overlay, &bind.source.device) {
        (Some(layers), _) => volume("overlay", "overlay", &layers.mount_options(), &bind.target),
        (None, Some(device)) => {
            // Not by its name: after the end of this process another image may have that.
            let device = format!("/proc/{}/fd/{}", std::process::id(), device.as_raw_fd());
            volume("ext4", &device, "nosuid,nodev", &bind.target)
        }
        (None, None) => bind_mount(&bind.source.path, &bind.target),
    };
    Mount { read_only: Some(bind.read_only), ..mount }
}

/// A file system of the controller's: as an anonymous volume, which the engine mounts when the
/// container is started, and removes together with it.
fn volume(kind: &str, device: &str, options: &str, target: &str) -> Mount {
    let options = [("type", kind), ("device", device), ("o", options)];
    Mount {
        typ: Some(MountType::VOLUME),
        target: Some(target.to_owned()),
        volume_options: Some(MountVolumeOptions {
            // Without copying the image's content.
            no_copy: Some(true),
            driver_config: Some(MountVolumeOptionsDriverConfig {
                name: Some("local".to_owned()),
                options: Some(options.map(|(name, value)| (name.into(), value.into())).into()),
            }),
            ..MountVolumeOptions::default()
        }),
        ..Mount::default()
    }
}

/// A read-only bind mount.
fn bind_mount(source: &str, target: &str) -> Mount {
    Mount {
        // Not `Binds`: that creates a missing source, and its `:ro` loses nosuid and nodev.
        typ: Some(MountType::BIND),
        source: Some(source.to_owned()),
        target: Some(target.to_owned()),
        read_only: Some(true),
        bind_options: Some(MountBindOptions {
            propagation: Some(MountBindOptionsPropagationEnum::RPRIVATE),
            non_recursive: Some(true),
            ..MountBindOptions::default()
        }),
        ..Mount::default()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::{AsRawFd as _, OwnedFd};
    use std::sync::Arc;

    use super::*;
    use crate::testing::spec;
    use crate::{Layers, ProgramRoot, Source};

    /// The request as sent, without unset fields.
    fn json() -> Value {
        fn strip(value: &mut Value) {
            if let Value::Object(map) = value {
                map.retain(|_, value| !value.is_null());
                map.values_mut().for_each(strip);
            }
        }
        let mut json = serde_json::to_value(body(
            &spec(),
            From::SandboxImage("sha256:1"),
            None,
            Dialect::Docker,
        ))
        .unwrap();
        strip(&mut json);
        json
    }

    #[test]
    fn overlay_is_a_volume_that_ends_with_its_container() {
        let directory = || Arc::new(OwnedFd::from(File::open("/").unwrap()));
        let (lower, upper, work) = (directory(), directory(), directory());
        let layers = Layers { lower, upper, work, trial: Arc::default(), root: Arc::default() };
        let source = Source { overlay: Some(layers.clone()), ..Source::from("/home/me/out") };
        let bind = Bind { source, target: "/io".into(), read_only: false };
        let sent = serde_json::to_value(mount(&bind)).unwrap();
        let mount = [&sent["Type"], &sent["Target"], &sent["ReadOnly"], &sent["Source"]];
        assert_eq!(mount, [&json!("volume"), &json!("/io"), &json!(false), &Value::Null]);
        let volume = &sent["VolumeOptions"];
        assert_eq!(volume["NoCopy"], json!(true));
        let driver = &volume["DriverConfig"];
        assert_eq!(
            (&driver["Name"], &driver["Options"]["type"]),
            (&json!("local"), &json!("overlay"))
        );
        let options = driver["Options"]["o"].as_str().unwrap();
        let layer = |fd: &OwnedFd| format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd());
        for option in [
            "nosuid",
            "nodev",
            &format!("lowerdir={}", layer(&layers.lower)),
            &format!("upperdir={}", layer(&layers.upper)),
            &format!("workdir={}", layer(&layers.work)),
        ] {
            assert!(options.split(',').any(|it| it == option), "{option}: {options}");
        }
    }

    #[test]
    fn bounded_directory_is_a_volume_by_a_path_that_ends_with_this_process() {
        let device = Arc::new(OwnedFd::from(File::open("/").unwrap()));
        let source = Source::private(device.clone(), Some(device.clone()));
        let bind = Bind { source, target: "/io".into(), read_only: false };
        let sent = serde_json::to_value(mount(&bind)).unwrap();
        assert_eq!((&sent["Type"], &sent["Source"]), (&json!("volume"), &Value::Null));
        let path = format!("/proc/{}/fd/{}", std::process::id(), device.as_raw_fd());
        let options = json!({"type": "ext4", "device": path, "o": "nosuid,nodev"});
        assert_eq!(sent["VolumeOptions"]["DriverConfig"]["Options"], options);
    }

    #[test]
    fn every_setting_of_the_hardening_table_is_sent() {
        let json = json();
        for (field, value) in [
            ("Image", json!("sha256:1")),
            ("Cmd", json!(["script", "--user", "1000:100", "--write", "/io"])),
            ("User", json!("1000:100")),
            ("Tty", json!(false)),
            ("OpenStdin", json!(true)),
            ("StdinOnce", json!(true)),
            ("AttachStdin", json!(true)),
            ("NetworkDisabled", json!(true)),
            ("StopSignal", json!("SIGKILL")),
            ("Env", json!([])),
            ("Labels", json!({"sandboxctl.sandbox": "1"})),
        ] {
            assert_eq!(json[field], value, "{field}");
        }
        let host = &json["HostConfig"];
        for (field, value) in [
            ("NetworkMode", json!("none")),
            ("ReadonlyRootfs", json!(true)),
            ("Privileged", json!(false)),
            ("CapDrop", json!(["ALL"])),
            ("PidsLimit", json!(64)),
            ("Memory", json!(256 << 20)),
            ("MemorySwap", json!(256 << 20)),
            ("NanoCpus", json!(1_500_000_000)),
            (
                "Ulimits",
                json!([
                    {"Name": "core", "Soft": 0, "Hard": 0},
                    {"Name": "nofile", "Soft": 128, "Hard": 1024},
                ]),
            ),
            ("MaskedPaths", json!(MASKED_PATHS)),
            ("ReadonlyPaths", json!(READONLY_PATHS)),
            ("IpcMode", json!("none")),
            ("CgroupnsMode", json!("private")),
            ("LogConfig", json!({"Type": "none", "Config": {}})),
            ("OomScoreAdj", json!(1000)),
            ("RestartPolicy", json!({"Name": "no"})),
            ("AutoRemove", json!(false)),
            ("Init", json!(false)),
            (
                "Mounts",
                json!([
                    {
                        "Type": "bind", "Source": "/home/me/out", "Target": "/io",
                        "ReadOnly": false,
                        "BindOptions": {"Propagation": "rprivate", "NonRecursive": true},
                    },
                    {
                        "Type": "bind", "Source": "/home/me/a", "Target": "/in/a",
                        "ReadOnly": true,
                        "BindOptions": {"Propagation": "rprivate", "NonRecursive": true},
                    },
                ]),
            ),
        ] {
            assert_eq!(host[field], value, "{field}");
        }
    }

    #[test]
    fn nothing_that_would_weaken_it_is_sent() {
        let json = json();
        for field in ["Binds", "CapAdd", "Devices", "GroupAdd", "Tmpfs", "PidMode", "UsernsMode"] {
            assert_eq!(json["HostConfig"][field], Value::Null, "{field}");
        }
        assert_eq!(json["Entrypoint"], Value::Null);
    }

    #[test]
    fn hidden_directory_is_covered_by_an_empty_one_beside_what_programs_have() {
        let spec = ContainerSpec { hidden: vec!["/in/a/state".into()], ..spec() };
        let tmpfs =
            |from| body(&spec, from, None, Dialect::Docker).host_config.unwrap().tmpfs.unwrap();
        let scripts = tmpfs(From::SandboxImage("x"));
        assert_eq!(scripts, HashMap::from([("/in/a/state".into(), EMPTY.into())]));
        let programs = programs();
        let from = From::UserImage { image: "x", volumes: &[], programs: &programs, files: &[] };
        let programs = tmpfs(from);
        assert_eq!(programs["/in/a/state"], EMPTY);
        assert!(programs.contains_key(TMP));
    }

    #[test]
    fn the_runtime_is_passed_through() {
        let host = body(&spec(), From::SandboxImage("x"), Some("runsc"), Dialect::Docker)
            .host_config
            .unwrap();
        assert_eq!(host.runtime.as_deref(), Some("runsc"));
    }

    #[test]
    fn without_our_seccomp_profile_there_is_the_engines_own() {
        let host =
            body(&spec(), From::SandboxImage("x"), None, Dialect::Podman).host_config.unwrap();
        let options = host.security_opt.unwrap();
        assert_eq!(options[0], "no-new-privileges");
        assert!(options[1].starts_with("mask=/proc/"), "{options:?}");
        assert_eq!(options.len(), 2);
    }

    #[test]
    fn the_seccomp_profile_allows_what_is_listed_and_denies_the_rest() {
        let json = json();
        let options = json["HostConfig"]["SecurityOpt"].as_array().unwrap();
        assert_eq!(options[0], "no-new-privileges");
        let profile = options[1].as_str().unwrap().strip_prefix("seccomp=").unwrap();
        let profile: Value = serde_json::from_str(profile).unwrap();
        assert_eq!(profile["defaultAction"], "SCMP_ACT_ERRNO");
        let [allowed, clone, clone3] = &profile["syscalls"].as_array().unwrap()[..] else {
            panic!("{profile:#}")
        };
        assert_eq!(allowed["action"], "SCMP_ACT_ALLOW");
        assert_eq!(allowed["names"], json!(ALLOWED_SYSCALLS.concat()));
        assert_eq!(clone["names"], json!(["clone"]));
        assert_eq!(clone["args"][0]["value"], 2_114_060_288_u64);
        assert_eq!(clone["args"][0]["op"], "SCMP_CMP_MASKED_EQ");
        assert_eq!(clone3["action"], "SCMP_ACT_ERRNO");
        assert_eq!(clone3["errnoRet"], 38);
    }

    fn programs() -> Programs {
        Programs {
            root: ProgramRoot::Image {
                id: "sha256:2".into(),
                reference: "x".into(),
                volumes: Vec::new(),
            },
            env: ["RUST_MIN_STACK=1", "A=b=c", "B"].map(str::to_owned).into(),
            tmpfs_bytes: 64 << 20,
            tmpfs_inodes: 1000,
            shm_bytes: 16 << 20,
        }
    }

    /// Like [`json`], for an image that declares these volumes.
    fn with_programs(volumes: &[&str]) -> Value {
        let volumes: Vec<String> = volumes.iter().map(|&path| path.to_owned()).collect();
        let (source, target) = ("/run/x/agent".to_owned(), "/.sandbox-0123".to_owned());
        let files = [BoundFile { source, target }];
        let from = From::UserImage {
            image: "sha256:2",
            volumes: &volumes,
            programs: &programs(),
            files: &files,
        };
        serde_json::to_value(body(&spec(), from, None, Dialect::Docker)).unwrap()
    }

    #[test]
    fn an_image_with_programs_gets_the_agent_and_nothing_of_its_settings_holds() {
        let json = with_programs(&[]);
        for (pointer, value) in [
            ("/Image", json!("sha256:2")),
            ("/Entrypoint", json!(["/.sandbox-0123"])),
            ("/Cmd", json!(["script", "--user", "1000:100", "--write", "/io"])),
            ("/User", json!("1000:100")),
            ("/WorkingDir", json!("/")),
            ("/Healthcheck/Test", json!(["NONE"])),
            ("/NetworkDisabled", json!(true)),
            ("/HostConfig/IpcMode", json!("private")),
            ("/HostConfig/ShmSize", json!(16 << 20)),
            ("/HostConfig/ReadonlyRootfs", json!(true)),
            ("/HostConfig/CapDrop", json!(["ALL"])),
            ("/HostConfig/Mounts/2/Source", json!("/sys/devices/system/cpu/online")),
            ("/HostConfig/Mounts/3/Target", json!("/sys/devices/system/cpu/possible")),
            ("/HostConfig/Mounts/3/ReadOnly", json!(true)),
            ("/HostConfig/Mounts/5/Source", json!("/run/x/agent")),
            ("/HostConfig/Mounts/5/Target", json!("/.sandbox-0123")),
            ("/HostConfig/Mounts/5/ReadOnly", json!(true)),
            (
                "/HostConfig/Sysctls",
                json!({
                    "net.ipv4.ip_unprivileged_port_start": "0",
                    "net.ipv4.ping_group_range": "0 2147483647",
                }),
            ),
        ] {
            assert_eq!(json.pointer(pointer), Some(&value), "{pointer}");
        }
        assert_eq!(
            json["HostConfig"]["Tmpfs"],
            json!({
                "/tmp": "exec,nosuid,nodev,size=67108864,mode=1777,nr_inodes=1000,uid=1000,gid=100",
                "/sys/devices": "ro,nosuid,nodev,noexec,size=4k",
            })
        );
    }

    #[test]
    fn devices_of_the_host_are_masked_or_covered_by_lists_of_processors() {
        let programs = programs();
        let from = From::UserImage { image: "x", volumes: &[], programs: &programs, files: &[] };
        for (from, runtime, is_masked) in [
            (From::SandboxImage("x"), None, true),
            (from, None, false),
            (from, Some("runsc"), true),
        ] {
            for dialect in [Dialect::Docker, Dialect::Podman] {
                let host = body(&spec(), from, runtime, dialect).host_config.unwrap();
                let masked = host.masked_paths.unwrap();
                assert_eq!(masked.iter().any(|path| path == DEVICES), is_masked);
                let covered = host.tmpfs.is_some_and(|tmpfs| tmpfs.contains_key(DEVICES));
                let lists = host
                    .mounts
                    .unwrap()
                    .iter()
                    .filter(|mount| {
                        mount.target.as_deref().is_some_and(|target| target.starts_with(DEVICES))
                    })
                    .count();
                assert_eq!((covered, lists), (!is_masked, if is_masked { 0 } else { 3 }));
                let others = masked.iter().filter(|path| *path != DEVICES).count();
                assert_eq!(others, MASKED_PATHS.len() - 1);
            }
        }
    }

    #[test]
    fn podman_gets_no_option_of_tmpfs_that_it_refuses() {
        let volumes = ["/data".to_owned()];
        let programs = programs();
        let from =
            From::UserImage { image: "x", volumes: &volumes, programs: &programs, files: &[] };
        let tmpfs = body(&spec(), from, None, Dialect::Podman).host_config.unwrap().tmpfs.unwrap();
        assert_eq!(tmpfs[TMP], "exec,nosuid,nodev,size=67108864,mode=1777,U,notmpcopyup");
        assert_eq!(tmpfs["/data"], "ro,nosuid,nodev,noexec,size=4k,notmpcopyup");
    }

    #[test]
    fn nothing_can_be_written_to_where_the_image_wants_volumes() {
        let json = with_programs(&["/var/lib/db", "/io", "/tmp", "/tmp/x"]);
        let mounts = json["HostConfig"]["Mounts"].as_array().unwrap();
        assert!(mounts.iter().all(|mount| mount["Type"] == "bind"), "{mounts:?}");
        let mut tmpfs = json["HostConfig"]["Tmpfs"].as_object().unwrap().clone();
        assert!(tmpfs.remove("/tmp").unwrap().as_str().unwrap().starts_with("exec,"));
        assert!(tmpfs.remove(DEVICES).is_some());
        let read_only = "ro,nosuid,nodev,noexec,size=4k";
        assert_eq!(Value::from(tmpfs), json!({"/var/lib/db": read_only, "/tmp/x": read_only}));
    }

    #[test]
    fn a_volume_that_overlaps_the_agents_mounts_is_refused() {
        let kernel = ["/proc/1/root/io/x", "/proc/sys/kernel/random", "/sys", "/dev/shm/x"];
        for path in ["/", "/io/x", "/in", "/in/a/b", "/etc"].into_iter().chain(kernel) {
            let reason = refuse_volume(path, &spec());
            assert!(reason.is_some_and(|reason| reason.contains(path)), "{path}");
        }
        for path in
            ["/io", "/iox", "/data", "/tmp", "/tmp/x", "/etc/mysql", "/etc/hosts", "/.sandbox"]
        {
            assert_eq!(refuse_volume(path, &spec()), None, "{path}");
        }
    }

    #[test]
    fn programs_are_allowed_what_their_list_says_and_the_rest_is_not_there() {
        let json = with_programs(&[]);
        assert_eq!(
            json["Env"],
            json!([
                "RUST_MIN_STACK=", "A=", "B=", "image:RUST_MIN_STACK=1", "image:A=b=c", "image:B"
            ])
        );
        let options = json["HostConfig"]["SecurityOpt"].as_array().unwrap();
        assert_eq!(options[0], "no-new-privileges");
        let profile = options[1].as_str().unwrap().strip_prefix("seccomp=").unwrap();
        let profile: Value = serde_json::from_str(profile).unwrap();
        assert_eq!(profile["defaultAction"], "SCMP_ACT_ERRNO");
        assert_eq!(profile["defaultErrnoRet"], 38);
        let [all, clone, personality @ ..] = &profile["syscalls"].as_array().unwrap()[..] else {
            panic!("{profile:#}")
        };
        let names = all["names"].as_array().unwrap();
        assert!(names.contains(&json!("socket")) && !names.contains(&json!("clone3")));
        assert!(!names.contains(&json!("clone")));
        assert_eq!(clone["args"][0]["op"], "SCMP_CMP_MASKED_EQ");
        assert_eq!(clone["args"][0]["value"], json!(CLONE_NAMESPACES));
        assert_eq!(personality.len(), PERSONALITIES.len());
        for (rule, value) in personality.iter().zip(PERSONALITIES) {
            assert_eq!(rule["names"], json!(["personality"]));
            assert_eq!(rule["args"][0]["value"], json!(value));
            assert_eq!(rule["args"][0]["op"], "SCMP_CMP_EQ");
        }
    }
}
