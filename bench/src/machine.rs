//! Where figures were measured.

use std::fmt;
use std::fs;
use std::time::SystemTime;

use serde::Serialize;

/// Where figures were measured, and when.
#[derive(Debug, Serialize)]
pub struct Machine {
    /// The processor's name.
    pub processor: String,
    /// How many of them this process may use.
    pub processors: usize,
    /// Bytes of memory.
    pub memory: u64,
    /// The kernel's release.
    pub kernel: String,
    /// The engine of the Docker scenarios, or nothing.
    pub docker: Option<String>,
    /// What `sandboxctl --version` says.
    pub sandboxctl: String,
    /// The load of the minute before.
    pub load: f64,
    /// RFC 3339, of the day.
    pub day: String,
}

impl Machine {
    /// This one.
    #[must_use]
    pub fn here(docker: Option<String>, sandboxctl: String) -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name));
            line.and_then(|line| Some(line.split_once(':')?.1.trim().to_owned()))
        };
        let memory = field(&read("/proc/meminfo"), "MemTotal")
            .and_then(|text| text.strip_suffix(" kB")?.parse::<u64>().ok());
        Self {
            processor: field(&read("/proc/cpuinfo"), "model name")
                .unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            processors: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            memory: memory.unwrap_or(0) << 10,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            docker,
            sandboxctl,
            load: read("/proc/loadavg")
                .split(' ')
                .next()
                .and_then(|load| load.parse().ok())
                .unwrap_or(f64::NAN),
            day: humantime::format_rfc3339_seconds(SystemTime::now()).to_string()[..10].to_owned(),
        }
    }

    /// One for tests.
    #[cfg(test)]
    pub fn made_up() -> Self {
        Self {
            processor: "Z80".to_owned(),
            processors: 2,
            memory: 4 << 30,
            kernel: "6.1".to_owned(),
            docker: None,
            sandboxctl: "sandboxctl 1".to_owned(),
            load: 0.5,
            day: "2026-01-01".to_owned(),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { processor, processors, kernel, day, load, .. } = self;
        let gib = self.memory >> 30;
        let docker = self.docker.as_deref().unwrap_or("no Docker");
        write!(
            formatter,
            "{day}, {processors} × {processor}, {gib} GiB, Linux {kernel}, {docker}, load {load:.1}"
        )
    }
}
