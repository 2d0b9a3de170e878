//! Turns a request into the start parameters of a command: lookup paths, arguments, environment,
//! working directory; and explains to people why a command did not start.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, OsString};
use std::fs::File;
use std::io::{self, Read as _};
use std::net::SocketAddr;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use sandbox_protocol::argv::IMAGE_VARIABLE;
use sandbox_protocol::message::{Command, Program};
use sandbox_protocol::path::GuestPath;
use sandbox_protocol::{ErrorKind, WireError};

use crate::proxy;

/// The default search path, if neither the image nor the caller sets one.
const PATH: &[u8] = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The default locale of commands: text is UTF-8, and nothing is translated.
const LANG: &[u8] = b"C.UTF-8";
/// A directory that commands can write to in any sandbox.
const TMPDIR: &[u8] = b"/tmp";
/// The name of a user whom the sandbox's files of users do not list.
const NAMELESS: &[u8] = b"sandbox";
/// The most that is read of them.
const MAX_PASSWD: u64 = 1 << 20;
/// Git refuses repositories with a different owner. A sandbox has one user, and a mount may belong
/// to another.
const GIT_CONFIG: [(&[u8], &[u8]); 3] = [
    (b"GIT_CONFIG_COUNT", b"1"),
    (b"GIT_CONFIG_KEY_0", b"safe.directory"),
    (b"GIT_CONFIG_VALUE_0", b"*"),
];
/// The shell of `command`.
const SHELL: &CStr = c"/bin/sh";

/// Values by name.
type Environment = BTreeMap<Vec<u8>, Vec<u8>>;

/// Start parameters that every command of a sandbox shares.
#[derive(Debug)]
pub struct Defaults {
    env: Environment,
    /// What `~` expands to in a working directory.
    home_path: Option<GuestPath>,
    cwd: GuestPath,
    /// What the controller adds when it configures the sandbox, before any command.
    added: OnceLock<Environment>,
}

impl Defaults {
    /// `inherited` is the environment of this process: what the engine sets, and under names of their
    /// own the variables of the image, which replace it. `home` is the io dir, if there is one.
    pub fn new(
        inherited: impl Iterator<Item = (OsString, OsString)>,
        home: Option<GuestPath>,
        cwd: GuestPath,
    ) -> Self {
        let inherited = inherited.map(|(name, value)| (name.into_vec(), value.into_vec()));
        let (mut env, mut of_image) = (Environment::new(), Environment::new());
        for (name, value) in inherited {
            match name.strip_prefix(IMAGE_VARIABLE.as_bytes()) {
                Some(name) => _ = of_image.insert(name.to_vec(), value),
                // An empty one is of the image, withheld from this process.
                None if value.is_empty() => {}
                None => _ = env.insert(name, value),
            }
        }
        env.append(&mut of_image);
        for (name, value) in [(&b"PATH"[..], PATH), (b"LANG", LANG)] {
            env.entry(name.to_vec()).or_insert_with(|| value.to_vec());
        }
        // Nothing else is writable, even if the image sets another value.
        let writable = home.as_ref().map_or(TMPDIR, GuestPath::as_bytes);
        for (name, value) in [(&b"HOME"[..], writable), (b"TMPDIR", TMPDIR)] {
            env.insert(name.to_vec(), value.to_vec());
        }
        Self { env, home_path: home, cwd, added: OnceLock::new() }
    }

    /// Sets what programs expect, unless the image does: the name of their user, output that appears
    /// when it is written, and repositories that Git opens.
    pub fn add_what_programs_expect(&mut self, user: &[u8]) {
        let user = self.env.get(&b"USER"[..]).cloned().unwrap_or_else(|| user.to_vec());
        for (name, value) in
            [(&b"USER"[..], &*user), (b"LOGNAME", &user), (b"PYTHONUNBUFFERED", b"1")]
        {
            self.env.entry(name.to_vec()).or_insert_with(|| value.to_vec());
        }
        if !self.env.contains_key(GIT_CONFIG[0].0) {
            self.env.extend(GIT_CONFIG.map(|(name, value)| (name.to_vec(), value.to_vec())));
        }
    }

    /// The value of a variable.
    pub fn variable(&self, name: &[u8]) -> Option<&[u8]> {
        self.env.get(name).map(Vec::as_slice)
    }

    /// Sets these in place of the image's own. Only the first call has an effect.
    pub fn add(&self, variables: impl Iterator<Item = (Vec<u8>, Vec<u8>)>) {
        _ = self.added.set(variables.collect());
    }

    /// Sets this address as the proxy of commands, in place of the image's own.
    pub fn set_proxy(&mut self, address: SocketAddr) {
        for (name, value) in proxy::environment(address) {
            self.env.insert(name.as_bytes().to_vec(), value.as_bytes().to_vec());
        }
        // Node does not read the others without it.
        self.env.entry(b"NODE_USE_ENV_PROXY".to_vec()).or_insert_with(|| b"1".to_vec());
    }
}

/// The name of this process's user, according to the sandbox's own file, which the image may have made.
pub fn own_name() -> Vec<u8> {
    let passwd = beginning_of(Path::new("/etc/passwd"), MAX_PASSWD).unwrap_or_default();
    let own = rustix::process::getuid().as_raw().to_string();
    name_of(&passwd, own.as_bytes()).unwrap_or(NAMELESS).to_vec()
}

/// The first bytes of a file of the image, at most `most`. Nothing is read of what is no regular file: it might
/// be a FIFO, whose reader would wait.
pub fn beginning_of(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let mut content = Vec::new();
    if file.metadata()?.is_file() {
        file.take(most).read_to_end(&mut content)?;
    }
    Ok(content)
}

/// The name of a user in a file of users.
fn name_of<'a>(passwd: &'a [u8], uid: &[u8]) -> Option<&'a [u8]> {
    passwd.split(|&byte| byte == b'\n').find_map(|line| {
        let mut fields = line.split(|&byte| byte == b':');
        let name = fields.next().filter(|name| !name.is_empty() && !name.contains(&0))?;
        (fields.nth(1)? == uid).then_some(name)
    })
}

/// A command, ready to start.
#[derive(Debug)]
pub struct Prepared {
    /// The requested command, for people.
    name: String,
    /// The paths to try.
    pub candidates: Vec<CString>,
    /// Its arguments, with its name first.
    pub args: Vec<CString>,
    /// Its environment.
    pub env: Vec<CString>,
    /// Its working directory.
    pub cwd: CString,
}

/// Why a command did not start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpawnError {
    /// No process could be created.
    Process(Errno),
    /// A step before the working directory failed.
    Step(&'static str, Errno),
    /// The working directory could not be entered.
    Cwd(Errno),
    /// The program could not be executed; the most informative error of the candidates.
    Program(usize, Errno),
}

impl Prepared {
    /// Parses a request: its command, its working directory as it was written, and names and values
    /// of variables.
    ///
    /// # Errors
    ///
    /// `invalid_request` and the errors of the path rules, naming the argument that is wrong.
    pub fn new(
        command: &Command,
        cwd: Option<&[u8]>,
        variables: &[(&[u8], &[u8])],
        defaults: &Defaults,
    ) -> Result<Self, WireError> {
        let mut env = defaults.env.clone();
        env.extend(defaults.added.get().cloned().unwrap_or_default());
        for (name, value) in variables {
            if name.is_empty() || name.contains(&b'=') {
                let name = String::from_utf8_lossy(name);
                return Err(WireError::invalid(format!("'{name}' is not the name of a variable")));
            }
            env.insert(name.to_vec(), value.to_vec());
        }
        let (program, args) = match command {
            Command::Program(Program { program, args }) => {
                let args = args.iter().map(|arg| c(arg.as_bytes(), "an argument"));
                (program.as_bytes(), args.collect::<Result<Vec<_>, _>>()?)
            }
            Command::Shell(line) => {
                (SHELL.to_bytes(), vec![c"-c".to_owned(), c(line.as_bytes(), "the command")?])
            }
        };
        let name = c(program, "the program's name")?;
        let path = env.get(&b"PATH"[..]).map_or(PATH, Vec::as_slice);
        let candidates = candidates(program, path).map(|path| c(&path, "a directory in PATH"));
        let cwd = match cwd {
            Some(cwd) => {
                GuestPath::resolve(cwd, &defaults.cwd, defaults.home_path.as_ref())
                    .map_err(|error| {
                        let cwd = String::from_utf8_lossy(cwd);
                        let message = format!("the working directory '{cwd}': {error}");
                        WireError::new(error.kind(), message)
                    })?
                    .path
            }
            None => defaults.cwd.clone(),
        };
        let variables = env.iter().map(|(name, value)| {
            c(&[name, &b"="[..], value].concat(), "a variable of the environment")
        });
        Ok(Self {
            name: String::from_utf8_lossy(program).into_owned(),
            candidates: candidates.collect::<Result<_, _>>()?,
            args: std::iter::once(name).chain(args).collect(),
            env: variables.collect::<Result<_, _>>()?,
            cwd: c(cwd.as_bytes(), "the working directory")?,
        })
    }

    /// Explains why it did not start.
    pub fn explain(&self, error: SpawnError) -> WireError {
        let name = &self.name;
        let (kind, message) = match error {
            SpawnError::Process(Errno::AGAIN) => {
                let message = "no process can be started: there are limits.pids of them, or more \
                               than the machine allows";
                (ErrorKind::Busy, message.to_owned())
            }
            SpawnError::Process(Errno::NOMEM) | SpawnError::Program(_, Errno::NOMEM) => {
                (ErrorKind::OutOfMemory, format!("cannot start '{name}': no memory is left"))
            }
            SpawnError::Process(errno) => {
                (ErrorKind::Internal, format!("no process can be started: {}", reason(errno)))
            }
            SpawnError::Step(step, errno) => {
                (ErrorKind::Internal, format!("cannot start '{name}': {step}: {}", reason(errno)))
            }
            SpawnError::Cwd(errno) => {
                let kind = match errno {
                    Errno::NOENT => ErrorKind::NotFound,
                    Errno::NOTDIR => ErrorKind::NotADirectory,
                    Errno::ACCESS => ErrorKind::PermissionDenied,
                    _ => ErrorKind::InvalidPath,
                };
                let cwd = self.cwd.to_string_lossy();
                (kind, format!("the working directory '{cwd}': {}", reason(errno)))
            }
            SpawnError::Program(place, errno) => return self.explain_program(place, errno),
        };
        WireError::new(kind, message)
    }

    fn explain_program(&self, place: usize, errno: Errno) -> WireError {
        let name = &self.name;
        let not_executable = |path: &str, why: &str| {
            WireError::new(ErrorKind::NotExecutable, format!("cannot execute '{path}': {why}"))
        };
        let tried = self.candidates.get(place).map(|path| path.to_string_lossy());
        let tried = tried.as_deref().unwrap_or(name);
        match errno {
            Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG => {
                // The file may exist; what is missing is the interpreter that its first line, or
                // its ELF header, names.
                match self.candidates.iter().find(|path| self.on_disk(path).is_file()) {
                    Some(found) => not_executable(
                        &found.to_string_lossy(),
                        "the interpreter that it names is not there",
                    ),
                    None => WireError::new(
                        ErrorKind::CommandNotFound,
                        format!("'{name}' was not found"),
                    ),
                }
            }
            Errno::ACCESS
                if self.candidates.get(place).is_some_and(|p| self.on_disk(p).is_dir()) =>
            {
                not_executable(tried, "it is a directory")
            }
            Errno::NOEXEC => not_executable(
                tried,
                "it is neither a program for this machine nor a script with a '#!' line",
            ),
            Errno::TOOBIG => WireError::invalid("the arguments and the environment are too long"),
            errno => not_executable(tried, &reason(errno)),
        }
    }

    /// The path of a candidate as seen from the agent.
    fn on_disk(&self, candidate: &CStr) -> PathBuf {
        let path = |text: &CStr| PathBuf::from(std::ffi::OsStr::from_bytes(text.to_bytes()));
        path(&self.cwd).join(path(candidate))
    }
}

/// The paths where a command may be, as `execve` takes them.
fn candidates(program: &[u8], path: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let is_path = program.contains(&b'/');
    let itself = is_path.then(|| program.to_vec());
    let looked_for = (!is_path && !program.is_empty()).then(|| {
        path.split(|&byte| byte == b':').map(|directory| match directory {
            // By convention, an empty entry is the working directory.
            b"" => program.to_vec(),
            _ => [directory, b"/", program].concat(),
        })
    });
    itself.into_iter().chain(looked_for.into_iter().flatten())
}

fn c(bytes: &[u8], what: &str) -> Result<CString, WireError> {
    CString::new(bytes).map_err(|_| WireError::invalid(format!("{what} has a NUL byte")))
}

/// The OS error's text, without its number.
fn reason(errno: Errno) -> String {
    let text = io::Error::from(errno).to_string();
    text.split(" (os error").next().unwrap_or_default().to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandbox_protocol::WireString;

    fn path(text: &str) -> GuestPath {
        GuestPath::new(text).unwrap()
    }

    fn defaults(inherited: &[(&str, &str)]) -> Defaults {
        let inherited = inherited.iter().map(|&(name, value)| (name.into(), value.into()));
        Defaults::new(inherited, Some(path("/io")), path("/io/sub"))
    }

    fn prepare(
        command: &Command,
        cwd: Option<&str>,
        env: &[(&str, &str)],
        defaults: &Defaults,
    ) -> Result<Prepared, WireError> {
        let env = env.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        let env: Vec<_> = env.collect();
        Prepared::new(command, cwd.map(str::as_bytes), &env, defaults)
    }

    fn program(name: &str) -> Command {
        Command::Program(Program {
            program: WireString::new(name),
            args: vec![WireString::new("a b")],
        })
    }

    fn text(strings: &[CString]) -> Vec<&str> {
        strings.iter().map(|string| string.to_str().unwrap()).collect()
    }

    #[test]
    fn a_name_is_looked_for_along_the_path_that_the_program_gets() {
        let image = defaults(&[("PATH", "/x:/y")]);
        let made = prepare(&program("tool"), None, &[], &image).unwrap();
        assert_eq!(text(&made.candidates), ["/x/tool", "/y/tool"]);
        assert_eq!(text(&made.args), ["tool", "a b"]);
        let made = prepare(&program("tool"), None, &[("PATH", ":/z")], &image).unwrap();
        assert_eq!(text(&made.candidates), ["tool", "/z/tool"]);
        let made = prepare(&program("./tool"), None, &[], &image).unwrap();
        assert_eq!(text(&made.candidates), ["./tool"]);
        assert!(prepare(&program(""), None, &[], &image).unwrap().candidates.is_empty());
        let made = prepare(&program("tool"), None, &[], &defaults(&[])).unwrap();
        assert_eq!(made.candidates.len(), 6);
    }

    #[test]
    fn a_line_is_the_shells() {
        let made =
            prepare(&Command::Shell(WireString::new("a | b")), None, &[], &defaults(&[])).unwrap();
        assert_eq!(text(&made.candidates), ["/bin/sh"]);
        assert_eq!(text(&made.args), ["/bin/sh", "-c", "a | b"]);
    }

    #[test]
    fn variables_of_the_image_come_under_names_that_mean_nothing_to_this_process() {
        let image = defaults(&[
            ("image:PATH", "/x"),
            ("PATH", ""),
            ("RUST_MIN_STACK", ""),
            ("image:RUST_MIN_STACK", "1"),
            ("image:EMPTY", ""),
            ("HOSTNAME", "sandbox"),
            ("image:image:A", "b"),
        ]);
        let made = prepare(&program("x"), None, &[], &image).unwrap();
        let mut env = text(&made.env);
        env.sort_unstable();
        assert_eq!(
            env,
            [
                "EMPTY=", "HOME=/io", "HOSTNAME=sandbox", "LANG=C.UTF-8", "PATH=/x",
                "RUST_MIN_STACK=1", "TMPDIR=/tmp", "image:A=b"
            ]
        );
    }

    #[test]
    fn the_environment_is_the_images_then_the_agents_then_the_callers() {
        let image =
            defaults(&[("A", "image"), ("LANG", "de"), ("HOME", "/root"), ("TMPDIR", "/v")]);
        let given = [("A", "1"), ("A", "2"), ("HOME", "/mine"), ("B", "")];
        let made = prepare(&program("x"), None, &given, &image).unwrap();
        let mut env = text(&made.env);
        env.sort_unstable();
        let path = format!("PATH={}", String::from_utf8_lossy(PATH));
        assert_eq!(env, ["A=2", "B=", "HOME=/mine", "LANG=de", &path, "TMPDIR=/tmp"]);
        let homeless = Defaults::new(std::iter::empty(), None, path_of_root());
        let made = prepare(&program("x"), None, &[("TMPDIR", "/io/t")], &homeless).unwrap();
        assert!(text(&made.env).contains(&"HOME=/tmp"));
        assert!(text(&made.env).contains(&"LANG=C.UTF-8"));
        assert!(text(&made.env).contains(&"TMPDIR=/io/t"));
    }

    fn path_of_root() -> GuestPath {
        GuestPath::root()
    }

    #[test]
    fn what_the_controller_adds_replaces_the_images_variables_and_a_commands_own_stay() {
        let image = (format!("{IMAGE_VARIABLE}SSL_CERT_FILE").into(), "/image.pem".into());
        let defaults = Defaults::new([image].into_iter(), None, GuestPath::root());
        let added = [("SSL_CERT_FILE", "/tmp/b.pem"), ("TOKEN", "placeholder")];
        defaults.add(added.into_iter().map(|(name, value)| (name.into(), value.into())));
        assert_eq!(defaults.variable(b"SSL_CERT_FILE"), Some(&b"/image.pem"[..]));
        let env = |given: &[(&str, &str)]| {
            let made = prepare(&program("x"), None, given, &defaults).unwrap();
            text(&made.env).into_iter().map(str::to_owned).collect::<Vec<_>>()
        };
        let usual = env(&[]);
        assert!(
            ["SSL_CERT_FILE=/tmp/b.pem", "TOKEN=placeholder"]
                .iter()
                .all(|it| usual.contains(&(*it).to_owned()))
        );
        let own = env(&[("TOKEN", "mine")]);
        assert!(
            own.contains(&"TOKEN=mine".to_owned())
                && !own.contains(&"TOKEN=placeholder".to_owned())
        );
    }

    #[test]
    fn what_programs_expect_is_set_unless_the_image_or_the_caller_sets_it() {
        let env = |image: &[(&str, &str)], given: &[(&str, &str)]| {
            let mut defaults = defaults(image);
            defaults.add_what_programs_expect(b"ann");
            defaults.set_proxy(([127, 0, 0, 1], 3128).into());
            let made = prepare(&program("x"), None, given, &defaults).unwrap();
            text(&made.env).into_iter().map(str::to_owned).collect::<Vec<_>>()
        };
        let expected = [
            "USER=ann",
            "LOGNAME=ann",
            "PYTHONUNBUFFERED=1",
            "NODE_USE_ENV_PROXY=1",
            "GIT_CONFIG_COUNT=1",
            "GIT_CONFIG_KEY_0=safe.directory",
            "GIT_CONFIG_VALUE_0=*",
        ];
        let plain = env(&[], &[]);
        assert!(expected.iter().all(|it| plain.contains(&(*it).to_owned())), "{plain:?}");
        let own = [
            ("USER", "bob"),
            ("PYTHONUNBUFFERED", ""),
            ("NODE_USE_ENV_PROXY", "0"),
            ("GIT_CONFIG_COUNT", "0"),
        ];
        let in_image = own.map(|(name, value)| (format!("{IMAGE_VARIABLE}{name}"), value));
        let in_image = in_image.each_ref().map(|(name, value)| (name.as_str(), *value));
        let of_image = env(&in_image, &[]);
        for set in [&of_image, &env(&[], &own)] {
            for it in
                ["USER=bob", "PYTHONUNBUFFERED=", "NODE_USE_ENV_PROXY=0", "GIT_CONFIG_COUNT=0"]
            {
                assert!(set.contains(&it.to_owned()), "{it}: {set:?}");
            }
        }
        assert!(of_image.contains(&"LOGNAME=bob".to_owned()), "{of_image:?}");
        assert!(!of_image.iter().any(|it| it.starts_with("GIT_CONFIG_KEY")), "{of_image:?}");
    }

    #[test]
    fn name_of_a_user_is_that_of_its_first_line() {
        let passwd = b"root:x:0:0:root:/root:/bin/sh\n:x:7:7::/:\nweb:x:33:33\n\
            ann:x:1000:1000::/h:/bin/sh\nbob:x:1000:1::/:\n\xff\0";
        for (uid, name) in [("0", Some("root")), ("33", Some("web")), ("1000", Some("ann"))] {
            assert_eq!(name_of(passwd, uid.as_bytes()), name.map(str::as_bytes), "{uid}");
        }
        assert_eq!(name_of(passwd, b"7"), None);
        assert_eq!(name_of(b"", b"1000"), None);
    }

    #[test]
    fn a_working_directory_is_any_of_the_image() {
        let at = |cwd| prepare(&program("x"), cwd, &[], &defaults(&[])).map(|made| made.cwd);
        assert_eq!(at(None).unwrap().as_c_str(), c"/io/sub");
        assert_eq!(at(Some("/usr/lib")).unwrap().as_c_str(), c"/usr/lib");
        assert_eq!(at(Some("a")).unwrap().as_c_str(), c"/io/sub/a");
        assert_eq!(at(Some("~/a")).unwrap().as_c_str(), c"/io/a");
        assert_eq!(at(Some("/")).unwrap().as_c_str(), c"/");
        assert_eq!(at(Some("")).unwrap_err().kind(), ErrorKind::InvalidPath);
        assert_eq!(at(Some("..")).unwrap_err().kind(), ErrorKind::PathEscape);
    }

    #[test]
    fn a_process_that_cannot_be_created_is_not_the_programs_fault() {
        let made = prepare(&program("x"), None, &[], &defaults(&[])).unwrap();
        for (error, kind) in [
            (SpawnError::Process(Errno::AGAIN), ErrorKind::Busy),
            (SpawnError::Process(Errno::NOMEM), ErrorKind::OutOfMemory),
            (SpawnError::Program(0, Errno::NOMEM), ErrorKind::OutOfMemory),
            (SpawnError::Program(0, Errno::TXTBSY), ErrorKind::NotExecutable),
            (SpawnError::Step("Landlock", Errno::PERM), ErrorKind::Internal),
        ] {
            assert_eq!(made.explain(error).kind(), kind, "{error:?}");
        }
    }

    #[test]
    fn invalid_program_arguments_are_named() {
        let kind = |command: &Command, env: &[(&str, &str)]| {
            prepare(command, None, env, &defaults(&[])).unwrap_err().kind()
        };
        for name in ["a\0b", "\0"] {
            assert_eq!(kind(&program(name), &[]), ErrorKind::InvalidRequest);
            assert_eq!(
                kind(&Command::Shell(WireString::new(name)), &[]),
                ErrorKind::InvalidRequest
            );
            assert_eq!(kind(&program("x"), &[(name, "")]), ErrorKind::InvalidRequest);
            assert_eq!(kind(&program("x"), &[("A", name)]), ErrorKind::InvalidRequest);
        }
        for name in ["", "A=B"] {
            assert_eq!(kind(&program("x"), &[(name, "")]), ErrorKind::InvalidRequest);
        }
    }
}
