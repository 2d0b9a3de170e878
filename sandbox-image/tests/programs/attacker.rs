//! The agent without its virtual machine, for tests: native code that applies the agent's
//! confinement to itself, or one layer of it, then makes one system call that the agent must not be
//! able to make, and prints the outcome. Pointers are bad and numbers wrong wherever a call would
//! reach beyond the test's own folders, so that a call that succeeds is harmless.
//!
//! `attacker LAYERS UID ATTACK MOUNT INPUTS OUTSIDE PID PORT SOCKET`, see [`main`]; or, in the agent's
//! place in a sandbox, the agent's own arguments: see [`in_sandbox`].

mod fill;

use std::ffi::{CString, c_void};
use std::fs::File;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{c_int, c_long};
use sandbox_agent::Agent;
use sandbox_agent::confine::landlock::{Grant, GrantKind, ImageGrants, Tenant, layer, restrict};
use sandbox_agent::confine::{adopt, seal, seccomp};
use sandbox_protocol::argv::{AgentArgs, ConfinementPolicy, DiskSpace, Mode, Mount};
use sandbox_protocol::message::{Access, UnixSockets};
use sandbox_protocol::path::GuestPath;

/// A pointer that points nowhere.
const BAD: usize = 1;
/// Has what attacks in the agent's place leave its own confinement out.
const UNCONFINED: &str = "unconfined";
/// An owner that stays as it is.
const UNCHANGED: usize = u32::MAX as usize;
/// Not a descriptor.
const NO_FD: usize = usize::MAX;
const CWD: usize = libc::AT_FDCWD as usize;

/// What the attacks are aimed at.
struct Target {
    /// A mount that may be written to.
    mount: String,
    /// A mount that may not.
    inputs: String,
    /// No mount.
    outside: String,
    /// Another process of the same user.
    pid: usize,
    /// Where something listens on the loopback.
    port: u16,
    /// The name of an abstract socket on which something listens.
    socket: String,
}

/// What a system call gave, or its errno.
type SyscallResult = Result<usize, c_int>;

/// Confines itself by the layers that are named, makes the attack that is named, and prints `done`
/// or the errno.
fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    // The agent's begin with its mode.
    if matches!(args.first().map(String::as_str), Some("script" | "exec")) {
        return in_sandbox(args);
    }
    let [layers, uid, attack, mount, inputs, outside, pid, port, socket] = &args[..] else {
        panic!("nine arguments, or the agent's: {args:?}");
    };
    let target = Target {
        mount: mount.clone(),
        inputs: inputs.clone(),
        outside: outside.clone(),
        pid: pid.parse().expect("a pid"),
        port: port.parse().expect("a port"),
        socket: socket.clone(),
    };
    become_user(uid.parse().expect("a uid"));
    take(layers, &target);
    match strike(attack, &target) {
        Ok(_) => println!("done"),
        Err(errno) => println!("{errno}"),
    }
}

/// In the agent's place, with its arguments: confines itself as the agent does, makes the attacks
/// that the file `attacks` in the io dir names, a line each (the first may say [`UNCONFINED`]),
/// writes the outcomes to `report` next to it, and ends without a message to the controller.
fn in_sandbox(args: Vec<String>) {
    seal().expect("sealed");
    let args = AgentArgs::parse(args).expect("the agent's arguments");
    let io_dir = args.mounts.iter().find(|mount| mount.access == Access::Write);
    let target = Target {
        mount: io_dir.expect("an io dir").path.to_string(),
        inputs: "/in".to_owned(),
        outside: "/proc".to_owned(),
        pid: 1,
        port: 1,
        socket: "none".to_owned(),
    };
    let attacks = std::fs::read_to_string(format!("{}/attacks", target.mount)).expect("attacks");
    // Its descriptors stay open, as the agent's do.
    let confined = attacks.lines().next() != Some(UNCONFINED);
    let _agent = confined.then(|| Agent::prepare(&args).expect("confined"));
    let mut report = String::new();
    for attack in attacks.lines().filter(|attack| *attack != UNCONFINED) {
        let outcome = match strike(attack, &target) {
            Ok(_) => "done".to_owned(),
            Err(errno) => errno.to_string(),
        };
        report += &format!("{attack}: {outcome}\n");
    }
    std::fs::write(format!("{}/report", target.mount), report).expect("a report");
}

fn become_user(uid: u32) {
    let now = rustix::process::geteuid().as_raw();
    if uid == now {
        return;
    }
    // Groups first: a user that is not root cannot change them.
    let id = usize::try_from(uid).expect("64 bits");
    for (number, args) in [
        (libc::SYS_setgroups, [0, 0, 0]),
        (libc::SYS_setresgid, [id, id, id]),
        (libc::SYS_setresuid, [id, id, id]),
    ] {
        call(number, args).expect("root can become anybody");
    }
}

fn take(layers: &str, target: &Target) {
    match layers {
        "none" => {}
        "seal" => seal().expect("sealed"),
        "landlock" => {
            seal().expect("sealed");
            grant(target, |grants| {
                restrict(Tenant::Scripts, grants).expect("Landlock");
            });
        }
        "seccomp" => {
            seal().expect("sealed");
            seccomp::install(Tenant::Scripts).expect("the filter");
        }
        "landlock of programs" => {
            seal().expect("sealed");
            let around = ImageGrants::open().expect("an image");
            grant(target, |grants| {
                restrict(Tenant::Programs, grants.chain(around.grants())).expect("Landlock");
            });
            // As each program does once more.
            grant(target, |grants| {
                let rules = layer(grants.chain(around.grants())).expect("rules");
                let rules = usize::try_from(rules.as_raw_fd()).expect("a descriptor");
                call(libc::SYS_landlock_restrict_self, [rules, 0]).expect("Landlock");
            });
        }
        "seccomp of programs" => {
            seal().expect("sealed");
            filters_of_programs(UnixSockets::Supervised, DiskSpace::Watched);
        }
        // The filters answer what elsewhere the supervisor does, who is not here.
        "seccomp of unsupervised programs" => {
            seal().expect("sealed");
            filters_of_programs(UnixSockets::Landlock, DiskSpace::Watched);
        }
        "seccomp of programs with a bounded io dir" => {
            seal().expect("sealed");
            filters_of_programs(UnixSockets::Supervised, DiskSpace::Bounded);
        }
        "programs" => {
            take("landlock of programs", target);
            adopt().expect("children");
            take("seccomp of programs", target);
        }
        "all" => {
            seal().expect("sealed");
            let path = |path: &str| GuestPath::new(path).expect("a path");
            let agent = Agent::prepare(&AgentArgs {
                mode: Mode::Script,
                user: None,
                mounts: vec![
                    Mount { path: path(&target.mount), access: Access::Write },
                    Mount { path: path(&target.inputs), access: Access::Read },
                ],
                hidden: Vec::new(),
                home: None,
                workdir: None,
                confinement: ConfinementPolicy::Required,
                proxy: None,
                disk: DiskSpace::default(),
            });
            // Its descriptors stay open, as the agent's do.
            std::mem::forget(agent.expect("confined"));
        }
        other => panic!("no layers {other}"),
    }
}

fn filters_of_programs(unix_sockets: UnixSockets, disk: DiskSpace) {
    seccomp::install(Tenant::Programs).expect("the filters");
    let ids = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let of_commands = seccomp::programs::of_commands(unix_sockets, disk, ids);
    let of_a_command = seccomp::programs::of_a_command().expect("a filter");
    for filter in of_commands.expect("filters").iter().chain([&of_a_command]) {
        seccomp::apply(filter).expect("the filter");
    }
}

/// Gives the grants of the two mounts to `work`.
fn grant(target: &Target, work: impl FnOnce(std::array::IntoIter<Grant<'_>, 2>)) {
    let mount = File::open(&target.mount).expect("the mount");
    let inputs = File::open(&target.inputs).expect("the inputs");
    let kind = GrantKind::Directory;
    let grants = [
        Grant { fd: mount.as_fd(), access: Access::Write, kind },
        Grant { fd: inputs.as_fd(), access: Access::Read, kind },
    ];
    work(grants.into_iter());
}

fn strike(attack: &str, target: &Target) -> SyscallResult {
    let Target { mount, inputs, outside, pid, port, socket } = target;
    let at = |folder: &str, name: &str| c(&format!("{folder}/{name}"));
    let secret = at(outside, "secret");
    let made = at(outside, "made");
    let file = at(mount, "file");
    let new = at(mount, "new");
    let input = at(inputs, "file");
    let open =
        |path: &CString, flags: c_int| call(libc::SYS_openat, [CWD, ptr(path), bits(flags), 0o600]);
    let rename =
        |from: &CString, to: &CString| call(libc::SYS_renameat, [CWD, ptr(from), CWD, ptr(to)]);
    let rename_with = |from: &CString, to: &CString, flags: libc::c_uint| {
        let flags = usize::try_from(flags).expect("64 bits");
        call(libc::SYS_renameat2, [CWD, ptr(from), CWD, ptr(to), flags])
    };
    let mknod = |path: &CString, mode: libc::mode_t| {
        call(libc::SYS_mknodat, [CWD, ptr(path), usize::try_from(mode).expect("64 bits"), 0])
    };
    let create = libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY;
    let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let map = |protection: c_int| {
        call(libc::SYS_mmap, [0, 4096, bits(protection), bits(anonymous), NO_FD, 0])
    };
    let socket_of =
        |family: c_int, kind: c_int| call(libc::SYS_socket, [bits(family), bits(kind), 0]);
    let pair_of = |kind: c_int| {
        let mut pair = [0_i32; 2];
        let args = [bits(libc::AF_UNIX), bits(kind), 0, &raw mut pair as usize];
        call(libc::SYS_socketpair, args)
    };
    let new_process = |flags: c_int| child(call(libc::SYS_clone, [bits(flags | libc::SIGCHLD)]));
    let execute = c("execute");
    let zero = 0_i32;
    let zero = &raw const zero as usize;
    match attack {
        // Inside the mounts.
        "read the mount" => open(&file, libc::O_RDONLY),
        "write in the mount" => open(&file, libc::O_WRONLY | libc::O_TRUNC),
        "make a file in the mount" => open(&new, create),
        "make a folder in the mount" => call(libc::SYS_mkdirat, [CWD, ptr(&new), 0o755]),
        "rename in the mount" => rename(&file, &at(mount, "dir/moved")),
        "rename to nothing in the mount" => rename_with(&file, &new, libc::RENAME_NOREPLACE),
        "link in the mount" => call(libc::SYS_linkat, [CWD, ptr(&file), CWD, ptr(&new), 0]),
        "name a file without a name in the mount" => {
            let unnamed = open(&c(mount), libc::O_TMPFILE | libc::O_WRONLY)?;
            // Before Linux 6.10 that takes a capability: no file, but not for the filter.
            let flags = bits(libc::AT_EMPTY_PATH);
            match call(libc::SYS_linkat, [unnamed, ptr(&c("")), CWD, ptr(&new), flags]) {
                Err(libc::ENOENT) => Ok(0),
                linked => linked,
            }
        }
        "fill the mount by mappings" => {
            fill::fill(mount, fill::Kept::Mapped);
            Ok(0)
        }
        "fill the mount by halves" => {
            fill::fill(mount, fill::Kept::Halves);
            Ok(0)
        }
        "fill the mount by files in flight" => {
            fill::fill(mount, fill::Kept::InFlight);
            Ok(0)
        }
        "fill the mount by files beside many descriptors" => {
            fill::fill_among_descriptors(mount);
            Ok(0)
        }
        "fill the mount by files in calls" => {
            fill::fill_in_calls(mount, true);
            Ok(0)
        }
        "fill the mount by files in uncounted calls" => {
            fill::fill_in_calls(mount, false);
            Ok(0)
        }
        "reserve in the mount" => {
            let opened = open(&file, libc::O_WRONLY)?;
            call(libc::SYS_fallocate, [opened, bits(libc::FALLOC_FL_KEEP_SIZE), 0, 4096])
        }
        "change a mode in the mount" => {
            let opened = open(&file, libc::O_WRONLY)?;
            call(libc::SYS_fchmod, [opened, 0o600])
        }
        "remove in the mount" => call(libc::SYS_unlinkat, [CWD, ptr(&file), 0]),
        "list the mount" => open(&c(mount), libc::O_RDONLY | libc::O_DIRECTORY),
        "read the inputs" => open(&input, libc::O_RDONLY),
        "start a thread" => match std::thread::Builder::new().spawn(|| ()) {
            Ok(thread) => thread.join().map(|()| 0).map_err(|_| 0),
            Err(error) => Err(error.raw_os_error().unwrap_or(0)),
        },

        // To be attacked itself, until stdin ends.
        "wait" => {
            println!("ready");
            Ok(std::io::stdin().lines().count())
        }
        // To be ended by force, if it can be.
        "run-away" => run_away(),
        "multiply" => multiply(),
        "stop-everybody" => {
            println!("begun");
            loop {
                _ = call(libc::SYS_kill, [usize::MAX, bits(libc::SIGSTOP)]);
            }
        }
        // In a terminal.
        "type-into-stdin" => type_into(0, libc::TIOCSTI),
        "type-into-its-terminal" => type_into(open(&c("/dev/tty"), libc::O_RDWR)?, libc::TIOCSTI),
        "type-into-a-master" => {
            type_into(open(&c("/dev/ptmx"), libc::O_RDWR | libc::O_NOCTTY)?, libc::TIOCSTI)
        }
        "paste-into-stdin" => type_into(0, libc::TIOCLINUX),
        "read-environ-of-another" => open(&c(&format!("/proc/{pid}/environ")), libc::O_RDONLY),
        "list-descriptors-of-another" => {
            open(&c(&format!("/proc/{pid}/fd")), libc::O_RDONLY | libc::O_DIRECTORY)
        }

        "open-output-of-another" => {
            open(&c(&format!("/proc/{pid}/fd/1")), libc::O_WRONLY | libc::O_NONBLOCK)
        }

        "open-memory-of-another" => open(&c(&format!("/proc/{pid}/mem")), libc::O_RDWR),
        // More than there is.
        "open-until-refused" => loop {
            open(&c("/dev/null"), libc::O_RDONLY)?;
        },
        // As .NET does for the code that it makes.
        "reserve-2-tib" => {
            let memory = call(libc::SYS_memfd_create, [ptr(&c("code")), 0])?;
            call(libc::SYS_ftruncate, [memory, 2 << 40])
        }
        "allocate" => allocate(usize::MAX),
        "hold-all-processes" => {
            let mut forked = Ok(0);
            while forked.is_ok() {
                forked = call(libc::SYS_clone, [bits(libc::SIGCHLD)]);
                if forked == Ok(0) {
                    std::thread::park();
                }
            }
            println!("{forked:?}");
            std::thread::park();
            forked
        }
        // In a child that is never waited for, so that its time is counted nowhere.
        "burn-unseen" => {
            // SAFETY: it takes no pointer to memory.
            unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
            if call(libc::SYS_clone, [bits(libc::SIGCHLD)]) == Ok(0) {
                let mut used = libc::timespec { tv_sec: 0, tv_nsec: 0 };
                while used.tv_sec < 1 {
                    // SAFETY: the pointer is to a local variable.
                    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut used) };
                }
                std::process::exit(0);
            }
            // Until there is no child any more.
            // SAFETY: it takes no pointer to memory but none.
            unsafe { libc::wait(std::ptr::null_mut()) };
            Ok(0)
        }
        "allocate-in-many" => {
            // All of them more than there is. Others come as long as the first one lives, which has the
            // most: the kernel kills it in the end, whichever it kills before.
            println!("begun");
            // SAFETY: it takes no pointer to memory.
            unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
            let taken = std::hint::black_box(vec![1_u8; 65 << 20]);
            loop {
                if call(libc::SYS_clone, [bits(libc::SIGCHLD)]) == Ok(0) {
                    drop(taken);
                    return allocate(64 << 20);
                }
            }
        }

        // Files elsewhere.
        "read-etc-passwd" => open(&c("/etc/passwd"), libc::O_RDONLY),
        "read-outside" => open(&secret, libc::O_RDONLY),
        "read-proc-of-another" => open(&c(&format!("/proc/{pid}/cmdline")), libc::O_RDONLY),
        "list-root" => open(&c("/"), libc::O_RDONLY | libc::O_DIRECTORY),
        "list-outside" => open(&c(outside), libc::O_RDONLY | libc::O_DIRECTORY),
        "write-outside" => open(&secret, libc::O_WRONLY),
        "append-outside" => open(&secret, libc::O_WRONLY | libc::O_APPEND),
        "truncate-by-open" => open(&secret, libc::O_RDONLY | libc::O_TRUNC),
        "truncate-outside" => call(libc::SYS_truncate, [ptr(&secret), 0]),
        "make-outside" => open(&made, create),
        "mkdir-outside" => call(libc::SYS_mkdirat, [CWD, ptr(&made), 0o755]),
        "fifo-outside" => mknod(&made, libc::S_IFIFO | 0o600),
        "unix-socket-outside" => mknod(&made, libc::S_IFSOCK | 0o600),
        "symlink-outside" => call(libc::SYS_symlinkat, [ptr(&secret), CWD, ptr(&made)]),
        "link-outside" => call(libc::SYS_linkat, [CWD, ptr(&secret), CWD, ptr(&made), 0]),
        "link-in" => call(libc::SYS_linkat, [CWD, ptr(&secret), CWD, ptr(&new), 0]),
        "link-from-inputs" => call(libc::SYS_linkat, [CWD, ptr(&input), CWD, ptr(&new), 0]),
        "link-to-inputs" => {
            call(libc::SYS_linkat, [CWD, ptr(&file), CWD, ptr(&at(inputs, "new")), 0])
        }
        "rename-outside" => rename(&secret, &made),
        "rename-in" => rename(&secret, &new),
        "rename-out" => rename(&file, &made),
        "unlink-outside" => call(libc::SYS_unlinkat, [CWD, ptr(&secret), 0]),
        "rmdir-outside" => {
            call(libc::SYS_unlinkat, [CWD, ptr(&at(outside, "dir")), bits(libc::AT_REMOVEDIR)])
        }
        "write-inputs" => open(&input, libc::O_WRONLY),
        "write-fifo-of-inputs" => open(&at(inputs, "fifo"), libc::O_WRONLY | libc::O_NONBLOCK),
        "read-and-write-fifo-of-inputs" => {
            open(&at(inputs, "fifo"), libc::O_RDWR | libc::O_NONBLOCK)
        }
        "truncate-inputs" => call(libc::SYS_truncate, [ptr(&input), 0]),
        "make-in-inputs" => open(&at(inputs, "new"), create),
        "unlink-inputs" => call(libc::SYS_unlinkat, [CWD, ptr(&input), 0]),
        "rename-to-inputs" => rename(&file, &at(inputs, "new")),
        "rename-from-inputs" => rename(&input, &new),
        // A kind of device that anybody may make.
        "device-in-mount" => mknod(&new, libc::S_IFCHR),
        "execute-in-mount" => call(libc::SYS_execve, [ptr(&at(mount, "program")), 0, 0]),

        // Others, by way of the kernel.
        "connect-tcp" => connect_tcp(*port),
        "bind-tcp" => bind_tcp(0),
        "bind-low-port" => bind_tcp(80),
        "ping-oneself" => ping_oneself(),
        "connect-abstract" => connect_abstract(socket),
        "signal-another" => call(libc::SYS_kill, [*pid, 0]),

        // What the filter is for.
        "socket-inet" => socket_of(libc::AF_INET, libc::SOCK_STREAM),
        "socket-inet6" => socket_of(libc::AF_INET6, libc::SOCK_STREAM),
        "socket-unix" => socket_of(libc::AF_UNIX, libc::SOCK_STREAM),
        "socket-unix-datagram" => socket_of(libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC),
        "socket-unix-raw" => socket_of(libc::AF_UNIX, libc::SOCK_RAW),
        "pair-unix-stream" => pair_of(libc::SOCK_STREAM),
        "pair-unix-seqpacket" => pair_of(libc::SOCK_SEQPACKET),
        "pair-unix-datagram" => pair_of(libc::SOCK_DGRAM),
        "socket-netlink" => socket_of(libc::AF_NETLINK, libc::SOCK_RAW),
        "socket-netlink-diagnosis" => netlink_of(libc::NETLINK_INET_DIAG),
        "socket-netlink-firewall" => netlink_of(libc::NETLINK_NETFILTER),
        "socket-netlink-audit" => netlink_of(libc::NETLINK_AUDIT),
        "socket-netlink-events" => netlink_of(libc::NETLINK_KOBJECT_UEVENT),
        "socket-netlink-generic" => netlink_of(libc::NETLINK_GENERIC),
        "pair-netlink" => {
            let mut pair = [0_i32; 2];
            let kind = bits(libc::SOCK_RAW);
            call(libc::SYS_socketpair, [bits(libc::AF_NETLINK), kind, 0, &raw mut pair as usize])
        }
        // Of the namespace that it is in: for a sandbox alone.
        "netlink-list-devices" => ask_netlink(libc::RTM_GETLINK, libc::NLM_F_DUMP),
        "netlink-take-device-down" => ask_netlink(libc::RTM_NEWLINK, 0),
        "netlink-remove-device" => ask_netlink(libc::RTM_DELLINK, 0),
        "socket-packet" => socket_of(libc::AF_PACKET, libc::SOCK_RAW),
        "socket-vsock" => socket_of(libc::AF_VSOCK, libc::SOCK_STREAM),
        "socket-alg" => socket_of(libc::AF_ALG, libc::SOCK_SEQPACKET),
        "socket-raw" => {
            let protocol = bits(libc::IPPROTO_ICMP);
            call(libc::SYS_socket, [bits(libc::AF_INET), bits(libc::SOCK_RAW), protocol])
        }
        "socket-sctp" => {
            let protocol = bits(libc::IPPROTO_SCTP);
            call(libc::SYS_socket, [bits(libc::AF_INET), bits(libc::SOCK_STREAM), protocol])
        }
        "socket-smc" => {
            call(libc::SYS_socket, [bits(libc::AF_INET6), bits(libc::SOCK_STREAM), 256])
        }
        "socketpair" => call(libc::SYS_socketpair, [1, 1, 0, BAD]),
        "sendmsg" => call(libc::SYS_sendmsg, [NO_FD, BAD, 0]),
        "recvmsg" => call(libc::SYS_recvmsg, [NO_FD, BAD, 0]),
        "io_uring_setup" => call(libc::SYS_io_uring_setup, [1, BAD]),
        "io_uring_enter" => call(libc::SYS_io_uring_enter, [NO_FD, 0, 0, 0, 0, 0]),
        "io_uring_register" => call(libc::SYS_io_uring_register, [NO_FD, 0, 0, 0]),
        "io_setup" => call(libc::SYS_io_setup, [0, BAD]),
        "userfaultfd" => call(libc::SYS_userfaultfd, [NO_FD]),
        "ptrace" => call(libc::SYS_ptrace, [99, *pid, 0, 0]),
        "process_vm_readv" => call(libc::SYS_process_vm_readv, [*pid, BAD, 1, BAD, 1, 0]),
        "process_vm_writev" => call(libc::SYS_process_vm_writev, [*pid, BAD, 1, BAD, 1, 0]),
        "process_madvise" => call(libc::SYS_process_madvise, [NO_FD, BAD, 1, 0, 0]),
        "kcmp" => call(libc::SYS_kcmp, [*pid, *pid, 99, 0, 0]),
        "execve" => call(libc::SYS_execve, [BAD, 0, 0]),
        "execveat" => call(libc::SYS_execveat, [CWD, BAD, 0, 0, 0]),
        "memfd_create" => call(libc::SYS_memfd_create, [ptr(&execute), 0]),
        "fork" => new_process(0),
        "clone-untraced" => new_process(libc::CLONE_UNTRACED),
        "clone-with-memory" => call(libc::SYS_clone, [bits(libc::CLONE_SIGHAND)]),
        "clone-new-user" => new_process(libc::CLONE_NEWUSER),
        "clone-new-mount" => new_process(libc::CLONE_NEWNS),
        "clone-new-network" => new_process(libc::CLONE_NEWNET),
        "clone-new-pid" => new_process(libc::CLONE_NEWPID),
        "clone3" => call(libc::SYS_clone3, [BAD, 0]),
        "unshare-user" => call(libc::SYS_unshare, [bits(libc::CLONE_NEWUSER)]),
        "unshare-mount" => call(libc::SYS_unshare, [bits(libc::CLONE_NEWNS)]),
        "setns" => call(libc::SYS_setns, [NO_FD, 0]),
        "mount" => call(libc::SYS_mount, [BAD, BAD, BAD, 0, BAD]),
        "umount2" => call(libc::SYS_umount2, [BAD, 0]),
        "pivot_root" => call(libc::SYS_pivot_root, [BAD, BAD]),
        "chroot" => call(libc::SYS_chroot, [BAD]),
        "chdir" => call(libc::SYS_chdir, [BAD]),
        "fchdir" => call(libc::SYS_fchdir, [NO_FD]),
        "open_tree" => call(libc::SYS_open_tree, [CWD, BAD, 0]),
        "move_mount" => call(libc::SYS_move_mount, [NO_FD, BAD, NO_FD, BAD, 0]),
        "fsopen" => call(libc::SYS_fsopen, [BAD, 0]),
        "mount_setattr" => call(libc::SYS_mount_setattr, [CWD, BAD, 0, BAD, 0]),
        "bpf" => call(libc::SYS_bpf, [0, BAD, 0]),
        "perf_event_open" => call(libc::SYS_perf_event_open, [BAD, 0, 0, NO_FD, 0]),
        "keyctl" => call(libc::SYS_keyctl, [9999, 0, 0, 0, 0]),
        "add_key" => call(libc::SYS_add_key, [BAD, BAD, 0, 0, 0]),
        "request_key" => call(libc::SYS_request_key, [BAD, BAD, 0, 0]),
        "kill" => call(libc::SYS_kill, [*pid, 0]),
        "tkill" => call(libc::SYS_tkill, [*pid, 0]),
        "tgkill-another" => call(libc::SYS_tgkill, [*pid, *pid, 0]),
        "rt_sigqueueinfo" => call(libc::SYS_rt_sigqueueinfo, [*pid, 0, BAD]),
        "pidfd_open" => call(libc::SYS_pidfd_open, [*pid, 0]),
        "pidfd_getfd" => call(libc::SYS_pidfd_getfd, [NO_FD, 0, 0]),
        "pidfd_send_signal" => call(libc::SYS_pidfd_send_signal, [NO_FD, 0, 0, 0]),
        "open_by_handle_at" => call(libc::SYS_open_by_handle_at, [CWD, BAD, 0]),
        "name_to_handle_at" => call(libc::SYS_name_to_handle_at, [CWD, BAD, BAD, BAD, 0]),
        "prlimit64" => call(libc::SYS_prlimit64, [*pid, 7, BAD, 0]),
        "prlimit64-core-and-ask" => call(libc::SYS_prlimit64, [0, 4, BAD, BAD]),
        "prlimit64-core" => change(|| limit_of(libc::RLIMIT_CORE), || set_limit(libc::RLIMIT_CORE)),
        "prlimit64-mark" => {
            change(|| limit_of(libc::RLIMIT_LOCKS), || set_limit(libc::RLIMIT_LOCKS))
        }
        "prlimit64-files" => set_limit(libc::RLIMIT_NOFILE),
        "prlimit64-ask" => call(libc::SYS_prlimit64, [0, 4, 0, 0]),
        "prlimit64-ask-another" => call(libc::SYS_prlimit64, [*pid, 7, 0, 0]),
        "setrlimit-core" => {
            let lowest = [0_u64, 0];
            change(
                || limit_of(libc::RLIMIT_CORE),
                || call(libc::SYS_setrlimit, [4, lowest.as_ptr() as usize]),
            )
        }
        "setrlimit-mark" => {
            let lowest = [0_u64, 0];
            let set = || call(libc::SYS_setrlimit, [10, lowest.as_ptr() as usize]);
            change(|| limit_of(libc::RLIMIT_LOCKS), set)
        }
        "setrlimit" => call(libc::SYS_setrlimit, [7, BAD]),
        "sched_setaffinity" => call(libc::SYS_sched_setaffinity, [*pid, 8, BAD]),
        // To what it is already, or by a class that there is not.
        "fcntl-lease" => {
            call(libc::SYS_fcntl, [NO_FD, bits(libc::F_SETLEASE), bits(libc::F_WRLCK)])
        }
        "fcntl-direct" => call(libc::SYS_fcntl, [NO_FD, bits(libc::F_SETFL), bits(libc::O_DIRECT)]),
        "fcntl-notify" => call(libc::SYS_fcntl, [NO_FD, bits(libc::F_NOTIFY), 0]),
        "setpriority-of-another" => {
            let priority = || call(libc::SYS_getpriority, [0, *pid]);
            change(priority, || call(libc::SYS_setpriority, [0, *pid, lower(priority())]))
        }
        "setpriority-of-a-group" => {
            let priority = || call(libc::SYS_getpriority, [0, *pid]);
            let group = call(libc::SYS_getpgid, [*pid])?;
            change(priority, || call(libc::SYS_setpriority, [1, group, lower(priority())]))
        }
        // Of an unused user id: the call is what matters, and the machine is not slowed down.
        "setpriority-of-a-user" => call(libc::SYS_setpriority, [2, 4_000_000_000, 0]),
        "ioprio_set-of-another" => {
            let priority = || call(libc::SYS_ioprio_get, [1, *pid]);
            change(priority, || call(libc::SYS_ioprio_set, [1, *pid, lower_io(priority())]))
        }
        "ioprio_set-of-a-group" => {
            let priority = || call(libc::SYS_ioprio_get, [1, *pid]);
            let group = call(libc::SYS_getpgid, [*pid])?;
            change(priority, || call(libc::SYS_ioprio_set, [2, group, lower_io(priority())]))
        }
        "ioprio_set-of-everybody" => call(libc::SYS_ioprio_set, [3, 4_000_000_000, 7 << 13]),
        "sched_setscheduler-of-another" => {
            let batch = bits(libc::SCHED_BATCH);
            let policy = || call(libc::SYS_sched_getscheduler, [*pid]);
            change(policy, || call(libc::SYS_sched_setscheduler, [*pid, batch, zero]))
        }
        // Invalid values: a wrong size, a priority of a policy that has none.
        "sched_setparam-of-another" => {
            let one = 1_i32;
            call(libc::SYS_sched_setparam, [*pid, &raw const one as usize])
        }
        "sched_setattr-of-another" => call(libc::SYS_sched_setattr, [*pid, BAD, 0]),
        "own-priority" => {
            call(libc::SYS_setpriority, [0, 0, 19])?;
            call(libc::SYS_sched_setscheduler, [0, 0, zero])
        }
        "own-priority-by-id" => {
            let own = usize::try_from(std::process::id()).expect("64 bits");
            let priority = || call(libc::SYS_getpriority, [0, 0]);
            change(priority, || call(libc::SYS_setpriority, [0, own, lower(priority())]))
        }
        "write-control-group" => {
            let version_1 = c("/sys/fs/cgroup/memory/memory.limit_in_bytes");
            match open(&version_1, libc::O_WRONLY) {
                Err(libc::ENOENT) => open(&c("/sys/fs/cgroup/memory.max"), libc::O_WRONLY),
                opened => opened,
            }
        }
        "chown-to-another" => {
            let own = std::fs::metadata(format!("{mount}/file")).expect("the file");
            let owner = || owner_of(&format!("{mount}/file"));
            assert_ne!((own.uid(), own.gid()), (1, 1));
            change(owner, || call(libc::SYS_fchownat, [CWD, ptr(&file), 1, 1, 0]))
        }
        "chgrp-to-another" => {
            let owner = || owner_of(&format!("{mount}/file"));
            change(owner, || call(libc::SYS_fchownat, [CWD, ptr(&file), UNCHANGED, 1, 0]))
        }
        "fchown-to-another" => {
            let opened = open(&file, libc::O_WRONLY)?;
            let owner = || owner_of(&format!("{mount}/file"));
            change(owner, || call(libc::SYS_fchown, [opened, 1, 1]))
        }
        // To what it is: the kernel's own answer, which finds what is not there.
        "chown-to-oneself" => {
            let own = std::fs::metadata(format!("{mount}/file")).expect("the file");
            let [uid, gid] = [own.uid(), own.gid()].map(|id| usize::try_from(id).expect("64 bits"));
            call(libc::SYS_fchownat, [CWD, ptr(&file), uid, gid, 0])?;
            match call(libc::SYS_fchownat, [CWD, ptr(&new), uid, UNCHANGED, 0]) {
                Err(libc::ENOENT) => Ok(0),
                other => other.and(Err(libc::EEXIST)),
            }
        }
        "setpriority" => call(libc::SYS_setpriority, [99, 0, 0]),
        "personality" => call(libc::SYS_personality, [0xffff_ffff]),
        "fchmod-set-uid" => call(libc::SYS_fchmod, [NO_FD, 0o4755]),
        "fchmod-set-gid" => call(libc::SYS_fchmod, [NO_FD, 0o2755]),
        "fchmod-sticky" => call(libc::SYS_fchmod, [NO_FD, 0o1755]),
        "fchmodat2" => call(libc::SYS_fchmodat2, [CWD, ptr(&file), 0o4755, 0]),
        "fchmodat" => call(libc::SYS_fchmodat, [CWD, ptr(&file), 0o4755]),
        "fchown" => call(libc::SYS_fchown, [NO_FD, 0, 0]),
        "fchownat" => call(libc::SYS_fchownat, [CWD, BAD, 0, 0, 0]),
        "mknodat" => mknod(&new, libc::S_IFIFO | 0o600),
        "symlinkat" => call(libc::SYS_symlinkat, [ptr(&secret), CWD, ptr(&new)]),
        "linkat-follow-by-descriptor" => {
            let flags = bits(libc::AT_EMPTY_PATH | libc::AT_SYMLINK_FOLLOW);
            call(libc::SYS_linkat, [NO_FD, BAD, CWD, BAD, flags])
        }
        "renameat2-replace" => call(libc::SYS_renameat2, [CWD, BAD, CWD, BAD, 0]),
        "renameat2-exchange" => rename_with(&file, &at(mount, "dir"), libc::RENAME_EXCHANGE),
        "renameat2-whiteout" => rename_with(&file, &new, libc::RENAME_WHITEOUT),
        "openat2" => call(libc::SYS_openat2, [CWD, BAD, BAD, 24]),
        "openat-set-uid" => call(libc::SYS_openat, [CWD, ptr(&new), bits(create), 0o4755]),
        "openat-set-gid" => call(libc::SYS_openat, [CWD, ptr(&new), bits(create), 0o2755]),
        "openat-unnamed-set-uid" => {
            let unnamed = bits(libc::O_TMPFILE | libc::O_WRONLY);
            call(libc::SYS_openat, [CWD, ptr(&c(mount)), unnamed, 0o4755])
        }
        "openat-direct" => call(libc::SYS_openat, [CWD, BAD, bits(libc::O_DIRECT)]),
        "openat-no-mode" => call(libc::SYS_openat, [CWD, ptr(&file), 0, 0o6755]),
        "mknodat-set-uid" => {
            let mode = usize::try_from(libc::S_IFREG).expect("64 bits") | 0o4755;
            call(libc::SYS_mknodat, [CWD, ptr(&new), mode, 0])
        }
        "fchmodat-plain" => call(libc::SYS_fchmodat, [CWD, ptr(&file), 0o1755]),
        "mkdirat-set-gid" => call(libc::SYS_mkdirat, [CWD, ptr(&new), 0o2755]),
        "setxattr-capability" => {
            // Version 2, with one capability.
            let value = [0x0200_0001_u32, 1 << 13, 0, 0, 0];
            let name = c("security.capability");
            call(libc::SYS_setxattr, [ptr(&file), ptr(&name), value.as_ptr() as usize, 20, 0])
        }
        "setxattr" => call(libc::SYS_setxattr, [BAD, BAD, BAD, 0, 0]),
        "lsetxattr" => call(libc::SYS_lsetxattr, [BAD, BAD, BAD, 0, 0]),
        "fsetxattr" => call(libc::SYS_fsetxattr, [NO_FD, BAD, BAD, 0, 0]),
        "utimensat" => call(libc::SYS_utimensat, [CWD, BAD, BAD, 0]),
        "fallocate-grow" => call(libc::SYS_fallocate, [NO_FD, 0, 0, 1]),
        "fallocate-punch-hole" => {
            let flags = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            call(libc::SYS_fallocate, [NO_FD, bits(flags), 0, 1])
        }
        "fallocate-keep-size" => {
            call(libc::SYS_fallocate, [NO_FD, bits(libc::FALLOC_FL_KEEP_SIZE), 0, 1])
        }
        "fallocate-zero" => {
            call(libc::SYS_fallocate, [NO_FD, bits(libc::FALLOC_FL_ZERO_RANGE), 0, 1])
        }
        "ioctl-reserve" => call(libc::SYS_ioctl, [NO_FD, 0x4030_5828, BAD]),
        "ioctl-reserve-64" => call(libc::SYS_ioctl, [NO_FD, 0x4030_582a, BAD]),
        "ioctl-create-subvolume" => call(libc::SYS_ioctl, [NO_FD, 0x5000_940e, BAD]),
        "ioctl-snapshot" => call(libc::SYS_ioctl, [NO_FD, 0x5000_9417, BAD]),
        "ioctl-subvolume-flags" => call(libc::SYS_ioctl, [NO_FD, 0x4008_941a, BAD]),
        "ioctl-create-bcachefs-subvolume" => call(libc::SYS_ioctl, [NO_FD, 0x4020_bc10, BAD]),
        "ioctl-clone" => call(libc::SYS_ioctl, [NO_FD, 0x4004_9409, NO_FD]),
        "ioctl-extent-size-hint" => call(libc::SYS_ioctl, [NO_FD, 0x401c_5820, BAD]),
        "ioctl-set-flags" => call(libc::SYS_ioctl, [NO_FD, 0x4008_6602, BAD]),
        "ioctl-zero-range" => call(libc::SYS_ioctl, [NO_FD, 0x4030_5839, BAD]),
        "sendfile" => call(libc::SYS_sendfile, [NO_FD, NO_FD, 0, 1]),
        "splice" => call(libc::SYS_splice, [NO_FD, 0, NO_FD, 0, 1, 0]),
        "vmsplice" => call(libc::SYS_vmsplice, [NO_FD, BAD, 1, 0]),
        "pipe2" => call(libc::SYS_pipe2, [BAD, 0]),
        "dup3" => call(libc::SYS_dup3, [NO_FD, 9, 0]),
        "inotify_init1" => call(libc::SYS_inotify_init1, [0]),
        "fanotify_init" => call(libc::SYS_fanotify_init, [NO_FD, 0]),
        "map-executable" => map(libc::PROT_READ | libc::PROT_EXEC),
        "map-file" => {
            let fd = open(&file, libc::O_RDONLY).expect("the file");
            let kind = bits(libc::MAP_PRIVATE);
            call(libc::SYS_mmap, [0, 4096, bits(libc::PROT_READ), kind, fd, 0])
        }
        "map-shared" => {
            let kind = bits(libc::MAP_SHARED | libc::MAP_ANONYMOUS);
            call(libc::SYS_mmap, [0, 4096, bits(libc::PROT_READ), kind, NO_FD, 0])
        }
        "mprotect-executable" => {
            let page = map(libc::PROT_READ | libc::PROT_WRITE).expect("a page");
            call(libc::SYS_mprotect, [page, 4096, bits(libc::PROT_READ | libc::PROT_EXEC)])
        }
        "pkey_mprotect" => call(libc::SYS_pkey_mprotect, [BAD, 1, 0, NO_FD]),
        "shmget" => call(libc::SYS_shmget, [0, 0, 0]),
        "mq_open" => call(libc::SYS_mq_open, [BAD, 0, 0, 0]),
        "ioctl-type-into-terminal" => call(libc::SYS_ioctl, [NO_FD, 0x5412, BAD]),
        "ioctl-linux-console" => call(libc::SYS_ioctl, [NO_FD, 0x541c, BAD]),
        "fcntl-set-flags" => call(libc::SYS_fcntl, [1, bits(libc::F_SETFL), 0]),
        "fcntl-set-owner" => call(libc::SYS_fcntl, [NO_FD, bits(libc::F_SETOWN), 1]),
        "fcntl-duplicate" => call(libc::SYS_fcntl, [1, bits(libc::F_DUPFD), 9]),
        "prctl-dumpable" => call(libc::SYS_prctl, [bits(libc::PR_SET_DUMPABLE), 1, 0, 0, 0]),
        "prctl-death-signal" => call(libc::SYS_prctl, [bits(libc::PR_SET_PDEATHSIG), 0, 0, 0, 0]),
        "seccomp" => call(libc::SYS_seccomp, [99, 0, 0]),
        "landlock_create_ruleset" => call(libc::SYS_landlock_create_ruleset, [0, 0, 1]),
        "setuid" => call(libc::SYS_setresuid, [NO_FD, NO_FD, NO_FD]),
        "setgroups" => call(libc::SYS_setgroups, [usize::from(u16::MAX), BAD]),
        "capset" => call(libc::SYS_capset, [BAD, BAD]),
        "setpgid" => call(libc::SYS_setpgid, [NO_FD, 0]),
        "init_module" => call(libc::SYS_init_module, [BAD, 1, BAD]),
        "finit_module" => call(libc::SYS_finit_module, [NO_FD, BAD, 0]),
        "delete_module" => call(libc::SYS_delete_module, [BAD, 0]),
        "reboot" => call(libc::SYS_reboot, [0, 0, 0, 0]),
        "sethostname" => call(libc::SYS_sethostname, [BAD, NO_FD]),
        "syslog" => call(libc::SYS_syslog, [99, 0, 0]),
        "swapon" => call(libc::SYS_swapon, [BAD, 0]),
        "swapoff" => call(libc::SYS_swapoff, [BAD]),
        "quotactl" => call(libc::SYS_quotactl, [NO_FD, BAD, 0, BAD]),
        "acct" => call(libc::SYS_acct, [BAD]),
        "clock_settime" => call(libc::SYS_clock_settime, [NO_FD, BAD]),
        "adjtimex" => call(libc::SYS_adjtimex, [BAD]),
        #[cfg(target_arch = "x86_64")]
        other => x86::strike(other, [&secret, &file, &new]),
        #[cfg(not(target_arch = "x86_64"))]
        other => panic!("no attack {other}"),
    }
}

/// The calls and the numbers that this architecture alone has.
#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;

    use super::{BAD, CString, SyscallResult, answer, bits, call, child, ptr};

    pub fn strike(attack: &str, [secret, file, new]: [&CString; 3]) -> SyscallResult {
        match attack {
            // The older names of calls that are refused, or only allowed by the newer.
            "open" => call(libc::SYS_open, [ptr(secret), 0, 0]),
            "open-direct" => call(libc::SYS_open, [BAD, bits(libc::O_DIRECT)]),
            "creat" => call(libc::SYS_creat, [ptr(new), 0o600]),
            "mkdir" => call(libc::SYS_mkdir, [ptr(new), 0o755]),
            "mknod" => call(libc::SYS_mknod, [ptr(new), 0o010_600, 0]),
            "open-set-uid" => {
                let create = bits(libc::O_CREAT | libc::O_WRONLY);
                call(libc::SYS_open, [ptr(new), create, 0o4755])
            }
            "creat-set-gid" => call(libc::SYS_creat, [ptr(new), 0o2755]),
            "mknod-set-uid" => call(libc::SYS_mknod, [ptr(new), 0o104_755, 0]),
            "chmod" => call(libc::SYS_chmod, [ptr(file), 0o4755]),
            "chown" => call(libc::SYS_chown, [BAD, 0, 0]),
            "link" => call(libc::SYS_link, [ptr(file), ptr(new)]),
            "symlink" => call(libc::SYS_symlink, [ptr(secret), ptr(new)]),
            "unlink" => call(libc::SYS_unlink, [ptr(file)]),
            "rename" => call(libc::SYS_rename, [ptr(file), ptr(new)]),
            "fork-by-its-name" => child(call(libc::SYS_fork, [])),
            "vfork" => vfork(),
            "modify_ldt" => call(libc::SYS_modify_ldt, [99, 0, 0]),
            "arch_prctl" => call(libc::SYS_arch_prctl, [bits(0x1004), BAD]),
            "ioperm" => call(libc::SYS_ioperm, [usize::MAX, 1, 1]),
            "iopl" => call(libc::SYS_iopl, [99]),
            "kexec_load" => call(libc::SYS_kexec_load, [0, usize::MAX, 0, usize::MAX]),
            "x32" => call(0x4000_0000 | libc::SYS_getpid, []),
            "int-0x80" => int_0x80(),
            other => panic!("no attack {other}"),
        }
    }

    /// The child shares the stack, so it ends before it comes back.
    #[expect(unsafe_code, reason = "no function may return in the child")]
    fn vfork() -> SyscallResult {
        let mut result = libc::SYS_vfork;
        // SAFETY: the child leaves by exit (60) from the very next instructions and touches no
        // memory; the kernel clobbers what is named.
        unsafe {
            asm!(
                "syscall",
                "test rax, rax",
                "jnz 2f",
                "xor edi, edi",
                "mov eax, 60",
                "syscall",
                "2:",
                inout("rax") result,
                out("rdi") _, out("rcx") _, out("r11") _,
            );
        }
        answer(result)
    }

    /// `getpid`, by the 32-bit number and door.
    #[expect(unsafe_code, reason = "only an instruction goes through that door")]
    fn int_0x80() -> SyscallResult {
        let mut result: i64 = 20;
        // SAFETY: 32-bit getpid has no argument; the kernel clears r8 to r11.
        unsafe {
            asm!(
                "int 0x80",
                inout("rax") result,
                out("r8") _, out("r9") _, out("r10") _, out("r11") _,
            );
        }
        answer(result)
    }
}

/// A kernel's answer, as it is in the register.
#[cfg(target_arch = "x86_64")]
fn answer(register: c_long) -> SyscallResult {
    usize::try_from(register).map_err(|_| c_int::try_from(-register).expect("an errno"))
}

/// One system call.
#[expect(unsafe_code, reason = "attacks are system calls that nothing safe makes")]
fn call<const N: usize>(number: c_long, args: [usize; N]) -> SyscallResult {
    let at = |place: usize| args.get(place).copied().unwrap_or(0);
    // SAFETY: every pointer is to a string that outlives the call, or to no memory at all, which
    // the kernel answers with an error.
    let result = unsafe { libc::syscall(number, at(0), at(1), at(2), at(3), at(4), at(5)) };
    usize::try_from(result).map_err(|_| {
        std::io::Error::last_os_error().raw_os_error().expect("the errno of a system call")
    })
}

/// Makes a limit of its own as small as can be.
fn set_limit(limit: libc::__rlimit_resource_t) -> SyscallResult {
    let limit = usize::try_from(limit).expect("64 bits");
    let lowest = [0_u64, 0];
    call(libc::SYS_prlimit64, [0, limit, lowest.as_ptr() as usize, 0])
}

/// The most that a limit of its own may be.
fn limit_of(limit: libc::__rlimit_resource_t) -> SyscallResult {
    let limit = usize::try_from(limit).expect("64 bits");
    let mut now = [0_u64; 2];
    call(libc::SYS_prlimit64, [0, limit, 0, now.as_mut_ptr() as usize])?;
    Ok(usize::try_from(now[1]).expect("64 bits"))
}

/// One lower than that, as the kernel's answer has it: 20 minus what is set.
fn lower(priority: SyscallResult) -> usize {
    // A negative number, where these tests have a high priority.
    21_usize.wrapping_sub(priority.expect("a priority"))
}

/// The lowest of the usual class, or the one above.
fn lower_io(priority: SyscallResult) -> usize {
    let lowest = 2 << 13 | 7;
    if priority == Ok(lowest) { lowest - 1 } else { lowest }
}

fn owner_of(path: &str) -> SyscallResult {
    let owner = std::fs::metadata(path).expect("the file");
    Ok(usize::try_from(u64::from(owner.uid()) << 32 | u64::from(owner.gid())).expect("64 bits"))
}

/// Makes the call. `EALREADY` if that succeeded and what it is to change is as it was.
fn change(what: impl Fn() -> SyscallResult, make: impl FnOnce() -> SyscallResult) -> SyscallResult {
    let before = what();
    let result = make()?;
    if what() == before { Err(libc::EALREADY) } else { Ok(result) }
}

/// A socket of netlink's, of this protocol.
fn netlink_of(protocol: c_int) -> SyscallResult {
    call(libc::SYS_socket, [bits(libc::AF_NETLINK), bits(libc::SOCK_RAW), bits(protocol)])
}

/// Sends a request about the first device, which is `lo`, and gives the errno in the answer; `done` for an
/// answer that has another message.
fn ask_netlink(kind: u16, flags: c_int) -> SyscallResult {
    const REQUEST: u16 = 1;
    const ACKNOWLEDGE: u16 = 4;
    const LENGTH: u32 = 32;
    const IFF_UP: u32 = 1;
    let flags = REQUEST | ACKNOWLEDGE | u16::try_from(flags).expect("short");
    let (index, change, none) = (1_u32, IFF_UP, 0_u32);
    let mut message = [LENGTH.to_ne_bytes(), none.to_ne_bytes()].concat();
    message[4..6].copy_from_slice(&kind.to_ne_bytes());
    message[6..8].copy_from_slice(&flags.to_ne_bytes());
    for word in [none, none, none, index, none, change] {
        message.extend(word.to_ne_bytes());
    }
    let socket = netlink_of(libc::NETLINK_ROUTE)?;
    call(libc::SYS_sendto, [socket, message.as_ptr() as usize, message.len(), 0, 0, 0])?;
    let mut answer = [0_u8; 4096];
    let args = [socket, answer.as_mut_ptr() as usize, answer.len(), 0, 0, 0];
    let length = call(libc::SYS_recvfrom, args)?;
    let word = |at: usize| i32::from_ne_bytes(answer[at..at + 4].try_into().expect("four"));
    let is_error = answer[4..6] == u16::try_from(libc::NLMSG_ERROR).expect("short").to_ne_bytes();
    match word(16) {
        errno if is_error && errno < 0 => Err(-errno),
        _ => Ok(length),
    }
}

/// Ends the new process, if that is who comes here.
fn child(answer: SyscallResult) -> SyscallResult {
    if answer == Ok(0) {
        sandbox_agent::exit(sandbox_agent::Exit::Done);
    }
    answer
}

/// Restarts itself and exits, again and again, very quickly: a search finds where it was.
#[expect(unsafe_code, reason = "nothing safe begins a process in the same memory")]
fn run_away() -> SyscallResult {
    const STACK_BYTES: usize = 16 << 10;
    const STACKS: usize = 16;
    /// More zombies would leave other tests without process numbers.
    const QUICK: usize = 8192;
    static HOPS: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn hop(stacks: *mut c_void) -> c_int {
        loop {
            let hops = HOPS.fetch_add(1, Ordering::Relaxed);
            let place = hops % STACKS;
            if hops >= QUICK {
                let pause = libc::timespec { tv_sec: 0, tv_nsec: 10_000_000 };
                _ = call(libc::SYS_nanosleep, [&raw const pause as usize, 0]);
            }
            // SAFETY: the child's stack is unused: its last user has long ended. Both touch nothing
            // but that and the counter.
            let pid = unsafe {
                let top = stacks.cast::<u8>().add((place + 1) * STACK_BYTES);
                libc::clone(hop, top.cast(), libc::CLONE_VM | libc::SIGCHLD, stacks)
            };
            if pid > 0 {
                _ = call(libc::SYS_exit_group, [0]);
            }
        }
    }
    println!("begun");
    let stacks = vec![0_u128; STACKS * STACK_BYTES / size_of::<u128>()].leak();
    hop(stacks.as_mut_ptr().cast());
    Ok(0)
}

/// Takes so much memory, and keeps it.
fn allocate(most: usize) -> SyscallResult {
    const STEP: usize = 1 << 20;
    println!("begun");
    let mut taken = Vec::new();
    loop {
        if taken.len() * STEP < most {
            taken.push(vec![1_u8; STEP]);
        } else {
            std::thread::park();
        }
    }
}

/// Is two in the next moment, again and again, none of which stays.
fn multiply() -> SyscallResult {
    println!("begun");
    loop {
        let forked = call(libc::SYS_clone, [bits(libc::SIGCHLD)]);
        let again = forked.is_ok_and(|pid| pid > 0)
            && call(libc::SYS_clone, [bits(libc::SIGCHLD)]).is_ok_and(|pid| pid > 0);
        if again {
            sandbox_agent::exit(sandbox_agent::Exit::Done);
        }
    }
}

/// Types a character that ends whatever reads the terminal, or pastes what is selected.
fn type_into(terminal: usize, request: libc::Ioctl) -> SyscallResult {
    let byte = 3_u8;
    call(libc::SYS_ioctl, [terminal, request as usize, &raw const byte as usize])
}

fn c(text: &str) -> CString {
    CString::new(text).expect("no NUL")
}

fn ptr(text: &CString) -> usize {
    text.as_ptr() as usize
}

fn bits(flags: c_int) -> usize {
    usize::try_from(flags).expect("no flag is a sign")
}

/// A socket and its address, for `number`: bind or connect.
fn with_address(number: c_long, family: c_int, address: &[u8]) -> SyscallResult {
    let socket = call(libc::SYS_socket, [bits(family), bits(libc::SOCK_STREAM), 0])?;
    call(number, [socket, address.as_ptr() as usize, address.len()])
}

fn internet(port: u16) -> [u8; 16] {
    let mut address = [0; 16];
    let family = u16::try_from(libc::AF_INET).expect("short");
    address[..2].copy_from_slice(&family.to_ne_bytes());
    address[2..4].copy_from_slice(&port.to_be_bytes());
    address[4..8].copy_from_slice(&[127, 0, 0, 1]);
    address
}

fn connect_tcp(port: u16) -> SyscallResult {
    with_address(libc::SYS_connect, libc::AF_INET, &internet(port))
}

fn bind_tcp(port: u16) -> SyscallResult {
    with_address(libc::SYS_bind, libc::AF_INET, &internet(port))
}

/// An echo request to the loopback, and its answer.
fn ping_oneself() -> SyscallResult {
    // The kernel fills in the checksum and the id.
    let request = [8_u8, 0, 0, 0, 0, 0, 0, 1];
    let (kind, protocol) = (bits(libc::SOCK_DGRAM), bits(libc::IPPROTO_ICMP));
    let socket = call(libc::SYS_socket, [bits(libc::AF_INET), kind, protocol])?;
    let to = internet(0);
    let (request, to) =
        ((request.as_ptr() as usize, request.len()), (to.as_ptr() as usize, to.len()));
    call(libc::SYS_sendto, [socket, request.0, request.1, 0, to.0, to.1])?;
    let mut answer = [0_u8; 64];
    call(libc::SYS_recvfrom, [socket, answer.as_mut_ptr() as usize, answer.len(), 0, 0, 0])?;
    // An echo reply.
    if answer[0] == 0 { Ok(0) } else { Err(libc::EPROTO) }
}

fn connect_abstract(name: &str) -> SyscallResult {
    let family = u16::try_from(libc::AF_UNIX).expect("short");
    let address = [&family.to_ne_bytes()[..], &[0], name.as_bytes()].concat();
    with_address(libc::SYS_connect, libc::AF_UNIX, &address)
}
