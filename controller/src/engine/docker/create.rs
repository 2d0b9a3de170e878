//! From a [`ContainerSpec`] to Docker's words: a pure function, so that every setting of the
//! hardening table is tested by itself.

use std::collections::HashMap;

use bollard::models::{
    ContainerCreateBody, HostConfig, HostConfigCgroupnsModeEnum, HostConfigLogConfig, Mount,
    MountBindOptions, MountBindOptionsPropagationEnum, MountType, ResourcesUlimits, RestartPolicy,
    RestartPolicyNameEnum,
};
use rustix::io::Errno;
use serde_json::{Value, json};

use crate::engine::hardening::{
    ALLOWED_SYSCALLS, CLONE, CLONE_NAMESPACES, CLONE3, MASKED_PATHS, OOM_SCORE_ADJ, READONLY_PATHS,
};
use crate::engine::{Bind, ContainerSpec};

/// Whose seccomp profile a container gets. There is no third way: never none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seccomp {
    /// Ours, which is smaller and quicker to load.
    Ours,
    /// The engine's default. Podman takes a profile only as a file of its own.
    EnginesDefault,
}

/// The body of the request that makes the container.
pub(super) fn body(
    spec: &ContainerSpec,
    image: &str,
    runtime: Option<&str>,
    seccomp: Seccomp,
) -> ContainerCreateBody {
    let mut security_opt = vec!["no-new-privileges".to_owned()];
    match seccomp {
        Seccomp::Ours => security_opt.push(format!("seccomp={}", seccomp_profile())),
        // Podman ignores `MaskedPaths`, and takes them so.
        Seccomp::EnginesDefault => security_opt.push(format!("mask={}", MASKED_PATHS.join(":"))),
    }
    let (uid, gid) = spec.user;
    let memory = i64::try_from(spec.memory).unwrap_or(i64::MAX);
    let texts = |list: &[&str]| Some(list.iter().map(|&text| text.to_owned()).collect());
    ContainerCreateBody {
        image: Some(image.to_owned()),
        // The image's entrypoint is the agent.
        cmd: Some(spec.args.clone()),
        user: Some(format!("{uid}:{gid}")),
        // A terminal would turn the container's bytes into the heads of frames.
        tty: Some(false),
        // Stdin ends with the connection: the agent's sign that its controller is gone.
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
            masked_paths: texts(MASKED_PATHS),
            readonly_paths: texts(READONLY_PATHS),
            // What the guest prints is not kept on the host's disk.
            log_config: Some(HostConfigLogConfig {
                typ: Some("none".to_owned()),
                config: Some(HashMap::new()),
            }),
            oom_score_adj: Some(OOM_SCORE_ADJ.into()),
            restart_policy: Some(RestartPolicy {
                name: Some(RestartPolicyNameEnum::NO),
                maximum_retry_count: None,
            }),
            // How it ended must be there to be read: we remove it ourselves.
            auto_remove: Some(false),
            init: Some(false),
            runtime: runtime.map(str::to_owned),
            ..HostConfig::default()
        }),
        ..ContainerCreateBody::default()
    }
}

/// Our system call filter in Docker's words.
fn seccomp_profile() -> Value {
    json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "archMap": [
            {"architecture": "SCMP_ARCH_X86_64", "subArchitectures": []},
            {"architecture": "SCMP_ARCH_AARCH64", "subArchitectures": []},
        ],
        "syscalls": [
            {"names": ALLOWED_SYSCALLS.concat(), "action": "SCMP_ACT_ALLOW"},
            {
                "names": [CLONE],
                "action": "SCMP_ACT_ALLOW",
                "args": [{
                    "index": 0, "value": CLONE_NAMESPACES, "valueTwo": 0,
                    "op": "SCMP_CMP_MASKED_EQ",
                }],
            },
            {"names": [CLONE3], "action": "SCMP_ACT_ERRNO", "errnoRet": Errno::NOSYS.raw_os_error()},
        ],
    })
}

fn ulimit(&(name, value): &(&'static str, i64)) -> ResourcesUlimits {
    ResourcesUlimits { name: Some(name.to_owned()), soft: Some(value), hard: Some(value) }
}

fn mount(bind: &Bind) -> Mount {
    Mount {
        // Not `Binds`: those make a missing source, and `:ro` there loses nosuid and nodev.
        typ: Some(MountType::BIND),
        source: Some(bind.source.path.clone()),
        target: Some(bind.target.clone()),
        read_only: Some(bind.read_only),
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
    use super::*;
    use crate::engine::testing::spec;

    /// What goes over the wire, without what is not set.
    fn json() -> Value {
        fn strip(value: &mut Value) {
            if let Value::Object(map) = value {
                map.retain(|_, value| !value.is_null());
                map.values_mut().for_each(strip);
            }
        }
        let mut json =
            serde_json::to_value(body(&spec(), "sha256:1", None, Seccomp::Ours)).unwrap();
        strip(&mut json);
        json
    }

    #[test]
    fn every_setting_of_the_hardening_table_is_sent() {
        let json = json();
        for (field, value) in [
            ("Image", json!("sha256:1")),
            ("Cmd", json!(["script", "--write", "/io"])),
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
                    {"Name": "nofile", "Soft": 128, "Hard": 128},
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
    fn the_runtime_is_passed_through() {
        let host = body(&spec(), "x", Some("runsc"), Seccomp::Ours).host_config.unwrap();
        assert_eq!(host.runtime.as_deref(), Some("runsc"));
    }

    #[test]
    fn without_our_seccomp_profile_there_is_the_engines_own() {
        let host = body(&spec(), "x", None, Seccomp::EnginesDefault).host_config.unwrap();
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
}
