//! Notes of a result: where something in the sandbox stood in the way of what did not end well, with the
//! flag that moves it. Pure.

use std::fmt;

use sandbox_protocol::ErrorKind;
use sandbox_protocol::message::Sign;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::disk::{Disk, DiskBound};
use crate::limits::{ByteSize, LimitKey, Limits};
use crate::network::Network;
use crate::outcome::{Exit, Outcome};

const SIGBUS: u8 = 7;
const SIGXFSZ: u8 = 25;
/// What a shell adds to a signal for its exit code.
const OF_SIGNALS: u8 = 128;

/// Something in the sandbox that stood in the way of a script or a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Note {
    /// What it was.
    pub kind: NoteKind,
    /// For people.
    pub message: String,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// In one line.
impl fmt::Display for Note {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.hint {
            Some(hint) => write!(formatter, "{}; {hint}", self.message),
            None => formatter.write_str(&self.message),
        }
    }
}

/// What stood in the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NoteKind {
    /// The kernel killed a process because memory ran out.
    OutOfMemory,
    /// A process or a thread could not be started.
    Processes,
    /// A file system of the sandbox was full.
    NoSpace,
    /// `/dev/shm` was full.
    SharedMemory,
    /// A file system was read-only.
    ReadOnly,
    /// A file was too large.
    FileSize,
    /// There was no network.
    NoNetwork,
    /// Only the proxy leads to the network.
    Proxy,
    /// A host that is allowed has no address, or cannot be connected to.
    UnreachedHost,
}

/// What the kernel counted in a sandbox while something ran there.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KernelEvents {
    /// Processes that it killed because memory ran out.
    pub oom_kills: u64,
    /// The name of the last of them, if the kernel reports it.
    pub oom_victim: Option<String>,
    /// How often it refused to start a process or a thread.
    pub refused_processes: u64,
}

/// What is known of what stood in the way.
#[derive(Debug)]
pub struct NoteEvidence<'a> {
    /// How it ended.
    pub outcome: &'a Outcome,
    /// Its limits.
    pub limits: &'a Limits,
    /// What the kernel counted.
    pub kernel: KernelEvents,
    /// What the agent saw.
    pub signs: &'a [Sign],
    /// The connections; `None` if no host is allowed.
    pub network: Option<&'a Network>,
    /// The guest path of its io dir, if it has one.
    pub io_dir: Option<String>,
    /// What bounds the disk space that programs take there.
    pub disk: Option<&'a Disk>,
}

impl NoteEvidence<'_> {
    /// The notes: none for what ended well, or was cancelled.
    pub fn notes(&self) -> Vec<Note> {
        if matches!(self.outcome, Outcome::Ok { .. } | Outcome::Cancelled { .. }) {
            return Vec::new();
        }
        let notes = [
            self.of_memory(),
            self.of_processes(),
            self.of_space(),
            self.of_shared_memory(),
            self.of_a_read_only_place(),
            self.of_a_large_file(),
            self.of_the_network(),
            self.of_unreached_hosts(),
        ];
        notes.into_iter().flatten().collect()
    }

    fn has(&self, sign: Sign) -> bool {
        self.signs.contains(&sign)
    }

    /// Whether a signal ended it, or ended what its shell ran last.
    fn is_ended_by(&self, signal: u8) -> bool {
        match self.outcome {
            Outcome::Exit(Exit::Signal(by)) => *by == signal,
            Outcome::Exit(Exit::Code(code)) => *code == OF_SIGNALS + signal,
            _ => false,
        }
    }

    fn of_memory(&self) -> Option<Note> {
        let KernelEvents { oom_kills, oom_victim, .. } = &self.kernel;
        // Its status says so.
        let is_reported =
            self.outcome.failure().is_some_and(|it| it.kind == ErrorKind::OutOfMemory);
        if *oom_kills == 0 || is_reported {
            return None;
        }
        let last = oom_victim.as_ref().map(|name| format!(", {name},")).unwrap_or_default();
        let killed = match oom_kills {
            1 => format!("a process{last} was killed"),
            count => format!("{count} processes{last} were killed"),
        };
        let (killed, memory) = (killed.trim_end_matches(','), self.limits.memory);
        let message = format!("memory ran out: {killed}, because the sandbox has {memory}");
        Some(note(NoteKind::OutOfMemory, message, LimitKey::Memory.hint()))
    }

    fn of_processes(&self) -> Option<Note> {
        let refused = self.kernel.refused_processes;
        let times = if refused == 1 { "time" } else { "times" };
        let message = format!(
            "no process or thread could be started, {refused} {times}: the sandbox has {} at most",
            self.limits.pids
        );
        (refused > 0).then(|| note(NoteKind::Processes, message, LimitKey::Pids.hint()))
    }

    fn of_space(&self) -> Option<Note> {
        let tmp = self.limits.tmpfs_bytes();
        // The smaller of the two bounds `/tmp`.
        let key = if tmp == self.limits.tmpfs { LimitKey::Tmpfs } else { LimitKey::Memory };
        let (message, key) = match () {
            () if self.has(Sign::TmpFull) => (format!("/tmp is full: it holds {tmp}"), key),
            () if self.has(Sign::IoFull) => {
                let disk = self.disk.map(|it| (ByteSize::b(it.bytes), it.entries));
                let (bytes, entries) =
                    disk.unwrap_or((self.limits.max_write, self.limits.entries.get().into()));
                let message = format!("the io dir is full: it holds {bytes}, and {entries} files");
                (message, LimitKey::MaxWrite)
            }
            () if self.has(Sign::NoSpace) && !self.has(Sign::ShmFull) => {
                let shm = self.limits.shm;
                let disk = self.disk.filter(|disk| disk.bound == DiskBound::Kernel);
                let io_dir =
                    disk.map(|disk| format!("the io dir holds {}, ", ByteSize::b(disk.bytes)));
                let io_dir = io_dir.unwrap_or_default();
                let message =
                    format!("no space was left: {io_dir}/tmp holds {tmp}, and /dev/shm {shm}");
                (message, if disk.is_some() { LimitKey::MaxWrite } else { key })
            }
            () => return None,
        };
        Some(note(NoteKind::NoSpace, message, key.hint()))
    }

    fn of_shared_memory(&self) -> Option<Note> {
        let shm = self.limits.shm;
        let message = match () {
            () if self.has(Sign::ShmFull) => format!("/dev/shm is full: it holds {shm}"),
            () if self.is_ended_by(SIGBUS) => {
                format!("a bus error may come from /dev/shm, which holds {shm}")
            }
            () => return None,
        };
        Some(note(NoteKind::SharedMemory, message, LimitKey::Shm.hint()))
    }

    fn of_a_read_only_place(&self) -> Option<Note> {
        let message = match &self.io_dir {
            Some(io_dir) => {
                format!("programs can write to {io_dir} and /tmp only: the rest is read-only")
            }
            None => "programs can write to /tmp only: the rest is read-only".to_owned(),
        };
        let hint = "--io-dir DIR gives it a directory of the host to write to";
        self.has(Sign::ReadOnly).then(|| note(NoteKind::ReadOnly, message, hint))
    }

    fn of_a_large_file(&self) -> Option<Note> {
        let largest = self.limits.max_write.max(self.limits.max_file_size);
        let message = format!("a file of a program can have {largest} at most");
        let is_one = self.has(Sign::FileTooLarge) || self.is_ended_by(SIGXFSZ);
        // What the kernel bounds is full before, and without an io dir it is all in memory.
        let is_watched = self.disk.is_some_and(|disk| disk.bound == DiskBound::Watched);
        (is_one && is_watched).then(|| note(NoteKind::FileSize, message, LimitKey::MaxWrite.hint()))
    }

    fn of_the_network(&self) -> Option<Note> {
        let (kind, message, hint) = match self.network {
            None => (NoteKind::NoNetwork, "it had no network", "--allow HOST lets it reach a host"),
            // What it said of the network is about these.
            Some(network) if !network.unreached.is_empty() => return None,
            Some(network) if network.refused.is_empty() => (
                NoteKind::Proxy,
                "names are resolved by the proxy alone, which not every program uses",
                "HTTPS_PROXY and ALL_PROXY have its address",
            ),
            // Each was reported when it was refused.
            Some(_) => return None,
        };
        self.has(Sign::NoNetwork).then(|| note(kind, message.to_owned(), hint))
    }

    /// The proxy has answered the program with the reason, which it may not have printed.
    fn of_unreached_hosts(&self) -> Option<Note> {
        let (first, others) = self.network?.unreached.split_first()?;
        let others = match others.len() {
            0 => String::new(),
            1 => ", and another host could not be reached".to_owned(),
            count => format!(", and {count} other hosts could not be reached"),
        };
        let hint = if first.starts_with("cannot speak TLS") {
            "certificates are verified where sandboxctl runs: network.ca_file or SSL_CERT_FILE names more authorities"
        } else {
            "names are resolved and hosts connected to where sandboxctl runs: does it answer there?"
        };
        Some(note(NoteKind::UnreachedHost, format!("{first}{others}"), hint))
    }
}

fn note(kind: NoteKind, message: String, hint: impl Into<String>) -> Note {
    Note { kind, message, hint: Some(hint.into()) }
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;

    use super::*;
    use crate::{CancelCause, DiskBackend, RefusedHost, failure};

    fn disk(bound: DiskBound, bytes: ByteSize, entries: u64) -> Disk {
        let backend = match bound {
            DiskBound::Kernel => DiskBackend::Ext4,
            DiskBound::Watched => DiskBackend::Directory,
        };
        Disk { bound, backend, bytes: bytes.as_u64(), entries, reason: None }
    }

    fn texts(outcome: &Outcome, kernel: KernelEvents, signs: &[Sign]) -> Vec<String> {
        let limits = Limits::for_programs();
        let io_dir = Some("/io".to_owned());
        let disk = disk(DiskBound::Watched, limits.max_write, limits.entries.get().into());
        let evidence = NoteEvidence {
            outcome,
            limits: &limits,
            kernel,
            signs,
            network: None,
            io_dir,
            disk: Some(&disk),
        };
        evidence.notes().iter().map(Note::to_string).collect()
    }

    fn counted(oom_kills: u64, victim: Option<&str>, refused_processes: u64) -> KernelEvents {
        KernelEvents { oom_kills, oom_victim: victim.map(str::to_owned), refused_processes }
    }

    #[test]
    fn what_ends_well_or_is_cancelled_has_no_note() {
        let well = Outcome::Ok { result: RawValue::NULL.to_owned() };
        let cancelled = Outcome::Cancelled { cause: CancelCause::Interrupt };
        for outcome in [well, cancelled] {
            assert_eq!(texts(&outcome, counted(1, None, 1), &Sign::ALL), [""; 0]);
        }
    }

    #[test]
    fn each_note_says_what_bit_and_names_its_flag() {
        let failed = Outcome::Exit(Exit::Code(1));
        let texts = |kernel, signs: &[Sign]| texts(&failed, kernel, signs);
        assert_eq!(texts(KernelEvents::default(), &[]), [""; 0]);
        assert_eq!(
            texts(counted(1, Some("python3"), 0), &[]),
            ["memory ran out: a process, python3, was killed, because the sandbox has 1GiB; \
              --memory raises the limit"]
        );
        assert_eq!(
            texts(counted(3, None, 2), &[]),
            [
                "memory ran out: 3 processes were killed, because the sandbox has 1GiB; \
                 --memory raises the limit",
                "no process or thread could be started, 2 times: the sandbox has 256 at most; \
                 --pids raises the limit",
            ]
        );
        for (sign, expected) in [
            (Sign::TmpFull, "/tmp is full: it holds 896MiB; --memory raises the limit"),
            (Sign::ShmFull, "/dev/shm is full: it holds 64MiB; --shm-size raises the limit"),
            (
                Sign::IoFull,
                "the io dir is full: it holds 1GiB, and 100000 files; --max-write raises the limit",
            ),
            (
                Sign::NoSpace,
                "no space was left: /tmp holds 896MiB, and /dev/shm 64MiB; --memory raises the limit",
            ),
            (
                Sign::ReadOnly,
                "programs can write to /io and /tmp only: the rest is read-only; --io-dir DIR gives \
                 it a directory of the host to write to",
            ),
            (
                Sign::FileTooLarge,
                "a file of a program can have 1GiB at most; --max-write raises the limit",
            ),
            (Sign::NoNetwork, "it had no network; --allow HOST lets it reach a host"),
        ] {
            assert_eq!(texts(KernelEvents::default(), &[sign]), [expected]);
        }
        let both = texts(KernelEvents::default(), &[Sign::ShmFull, Sign::NoSpace]);
        assert_eq!(both, ["/dev/shm is full: it holds 64MiB; --shm-size raises the limit"]);
    }

    #[test]
    fn no_space_is_where_the_kernel_bounds_it() {
        let disk = disk(DiskBound::Kernel, ByteSize::b(8 << 20), 10);
        let (outcome, limits) = (Outcome::Exit(Exit::Code(1)), Limits::for_programs());
        for (sign, expected) in [
            (Sign::IoFull, "the io dir is full: it holds 8MiB, and 10 files"),
            (Sign::NoSpace, "no space was left: the io dir holds 8MiB, /tmp holds"),
        ] {
            let evidence = NoteEvidence {
                outcome: &outcome,
                limits: &limits,
                kernel: KernelEvents::default(),
                // The space bounds the size of a file, not --max-write by itself.
                signs: &[sign, Sign::FileTooLarge],
                network: None,
                io_dir: None,
                disk: Some(&disk),
            };
            let [note] = &evidence.notes()[..] else { panic!("{evidence:?}") };
            assert!(note.message.starts_with(expected), "{note}");
        }
    }

    #[test]
    fn tmp_that_its_own_limit_bounds_names_that() {
        let limits = Limits { tmpfs: ByteSize::b(1 << 20), ..Limits::for_programs() };
        let outcome = Outcome::Exit(Exit::Code(1));
        let evidence = NoteEvidence {
            outcome: &outcome,
            limits: &limits,
            kernel: KernelEvents::default(),
            signs: &[Sign::TmpFull],
            network: None,
            io_dir: None,
            disk: None,
        };
        let [note] = &evidence.notes()[..] else { panic!("{evidence:?}") };
        assert_eq!(note.to_string(), "/tmp is full: it holds 1MiB; --tmpfs-size raises the limit");
    }

    #[test]
    fn signals_of_full_memory_and_large_files_are_known_from_a_shell_too() {
        for (signal, part) in [(SIGBUS, "/dev/shm"), (SIGXFSZ, "--max-write")] {
            for exit in [Exit::Signal(signal), Exit::Code(OF_SIGNALS + signal)] {
                let notes = texts(&Outcome::Exit(exit), KernelEvents::default(), &[]);
                assert_eq!(notes.len(), 1, "{notes:?}");
                assert!(notes[0].contains(part), "{notes:?}");
            }
        }
    }

    #[test]
    fn what_the_status_says_is_not_said_again() {
        let outcome = Outcome::Limit(failure(ErrorKind::OutOfMemory, "killed"));
        assert_eq!(texts(&outcome, counted(1, None, 0), &[]), [""; 0]);
    }

    #[test]
    fn hosts_that_could_not_be_reached_are_one_note() {
        let (outcome, limits) = (Outcome::Exit(Exit::Code(1)), Limits::for_programs());
        let mut network = Network::default();
        let text = |network: &Network| {
            let evidence = NoteEvidence {
                outcome: &outcome,
                limits: &limits,
                kernel: KernelEvents::default(),
                signs: &[],
                network: Some(network),
                io_dir: None,
                disk: None,
            };
            evidence.notes().iter().map(Note::to_string).collect::<Vec<_>>()
        };
        assert_eq!(text(&network), [""; 0]);
        for (name, others) in [
            ("a", "; names are resolved"),
            ("b", ", and another host could not be reached; "),
            ("c", ", and 2 other hosts could not be reached; "),
        ] {
            network.add_unreached(format!("{name}.example has no address: no such name"));
            let [note] = &text(&network)[..] else { panic!("{network:?}") };
            let expected = format!("a.example has no address: no such name{others}");
            assert!(note.starts_with(&expected), "{note}");
        }
    }

    #[test]
    fn program_that_does_not_use_the_proxy_gets_a_note() {
        let (outcome, limits) = (Outcome::Exit(Exit::Code(1)), Limits::for_programs());
        let kinds = |network: &Network| {
            let evidence = NoteEvidence {
                outcome: &outcome,
                limits: &limits,
                kernel: KernelEvents::default(),
                signs: &[Sign::NoNetwork],
                network: Some(network),
                io_dir: None,
                disk: None,
            };
            evidence.notes().iter().map(|note| note.kind).collect::<Vec<_>>()
        };
        let mut network = Network::default();
        assert_eq!(kinds(&network), [NoteKind::Proxy]);
        let mut unreached = Network::default();
        unreached.add_unreached("a.example has no address: no such name".to_owned());
        assert_eq!(kinds(&unreached), [NoteKind::UnreachedHost]);
        network.add_refused(RefusedHost {
            host: "example.org".to_owned(),
            port: 443,
            reason: "not on the list".to_owned(),
            allow: Vec::new(),
        });
        assert_eq!(kinds(&network), []);
    }
}
