//! Interprets what a Docker Engine reports about itself and its machine. Pure.

use std::time::{Duration, SystemTime};

use bollard::models::SystemInfo;
use sandbox_protocol::time::parse_rfc3339;

use crate::UserMapping;
use crate::error::EngineError;

/// A time with an offset, in Go's format.
pub(super) fn rfc3339(text: &str) -> Option<SystemTime> {
    let (seconds, nanos) = parse_rfc3339(text)?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::new(u64::try_from(seconds).ok()?, nanos))
}

/// `name=seccomp,profile=default` gives `seccomp`.
pub(super) fn security_names(system: &SystemInfo) -> Vec<String> {
    let options = system.security_options.iter().flatten();
    options
        .filter_map(|option| option.split(',').find_map(|part| part.strip_prefix("name=")))
        .map(str::to_owned)
        .collect()
}

/// Limits that the engine accepts without enforcing them.
pub(super) fn missing_limits(system: &SystemInfo) -> Vec<String> {
    [
        ("memory", system.memory_limit),
        ("swap", system.swap_limit),
        ("cpus", system.cpu_cfs_quota),
        ("pids", system.pids_limit),
    ]
    .into_iter()
    .filter(|&(_, has)| has == Some(false))
    .map(|(name, _)| name.to_owned())
    .collect()
}

pub(super) fn user_mapping(
    system: &SystemInfo,
    socket_owner: Option<u32>,
) -> Result<UserMapping, EngineError> {
    let security = security_names(system);
    let has = |name: &str| security.iter().any(|option| option == name);
    if has("rootless") {
        return match socket_owner {
            Some(owner) => Ok(UserMapping::Rootless { owner }),
            None => Err(EngineError::UnexpectedResponse(
                "a rootless engine over TCP: the user that runs it is unknown".to_owned(),
            )),
        };
    }
    if has("userns") {
        // The engine's directory is named after the first uid and gid of the mapping:
        // /var/lib/docker/100000.100000.
        let root = system.docker_root_dir.as_deref().unwrap_or_default();
        let ids = root.rsplit('/').next().and_then(|name| name.split_once('.'));
        return match ids.map(|(uid, gid)| (uid.parse(), gid.parse())) {
            Some((Ok(uid), Ok(gid))) => Ok(UserMapping::Remapped { uid, gid }),
            _ => Err(EngineError::UnexpectedResponse(format!(
                "user namespaces, and '{root}' does not name the first user of them"
            ))),
        };
    }
    Ok(UserMapping::Identity)
}

pub(super) fn unix_time(seconds: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn system(security: &[&str], root: &str) -> SystemInfo {
        SystemInfo {
            security_options: Some(security.iter().map(|&it| it.to_owned()).collect()),
            docker_root_dir: Some(root.to_owned()),
            ..SystemInfo::default()
        }
    }

    #[test]
    fn the_mapping_of_users_is_read_from_what_the_engine_says() {
        let mapping = |security: &[&str], root: &str, owner| {
            user_mapping(&system(security, root), owner).map_err(|error| error.to_string())
        };
        let plain = ["name=seccomp,profile=default", "name=apparmor"];
        assert_eq!(mapping(&plain, "/var/lib/docker", Some(0)), Ok(UserMapping::Identity));
        assert_eq!(
            mapping(&["name=rootless"], "/home/me/.local/share/docker", Some(1000)),
            Ok(UserMapping::Rootless { owner: 1000 })
        );
        assert!(mapping(&["name=rootless"], "/home/me/.local/share/docker", None).is_err());
        assert_eq!(
            mapping(&["name=userns"], "/var/lib/docker/165536.231072", Some(0)),
            Ok(UserMapping::Remapped { uid: 165_536, gid: 231_072 })
        );
        assert!(mapping(&["name=userns"], "/var/lib/docker", Some(0)).is_err());
    }

    #[test]
    fn times_with_and_without_an_offset_are_read() {
        let expected = humantime::parse_rfc3339("2026-11-21T22:00:00.5Z").ok();
        for text in [
            "2026-11-21T22:00:00.5Z",
            "2026-11-21T23:00:00.5+01:00",
            "2026-11-21T16:30:00.500000000-05:30",
        ] {
            assert_eq!(rfc3339(text), expected, "{text}");
        }
        for text in ["", "Z", "x+01:00", "2026-11-21T23:00:00", "€€€€€"] {
            assert_eq!(rfc3339(text), None, "{text}");
        }
    }

    #[test]
    fn limits_that_the_engine_lacks_are_named() {
        let mut system = system(&[], "");
        assert_eq!(missing_limits(&system), Vec::<String>::new());
        system.pids_limit = Some(false);
        assert_eq!(missing_limits(&system), ["pids"]);
    }
}
