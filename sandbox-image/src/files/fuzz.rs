//! Properties that hold for every path that a script writes, before the kernel sees it.

use std::path::Path;
use std::sync::LazyLock;

use sandbox_protocol::message::{Access, AllowedPath, FileScope, IoErrors, Policy};
use sandbox_protocol::path::{GuestPath, MAX_COMPONENT_BYTES, MAX_PATH_BYTES, PathError};
use sandbox_protocol::{ErrorKind, WireString, argv};

use super::mounts::{Mount, MountTarget};
use super::{Mounts, PathPolicy};

const ALLOWED: [(&str, Access); 4] = [
    ("/io", Access::Write),
    ("/io/keep", Access::Read),
    ("/io/keep/out", Access::Write),
    ("/in", Access::Read),
];
const PROTECTED: [&str; 2] = [".git/hooks", ".bashrc"];

fn path(text: &str) -> GuestPath {
    GuestPath::new(text).expect("a path")
}

/// A path as a script wrote it. The first byte says whether there is a home, the second where a
/// prefix ends that is used as the working directory.
pub fn paths(data: &[u8]) {
    let [choice, cut, written @ ..] = data else { return };
    let workdir = &written[..usize::from(*cut).min(written.len())];
    let workdir = GuestPath::new(workdir).unwrap_or_else(|_| path("/io/work"));
    let home = (choice % 2 == 0).then(|| path("/io"));
    resolved(written, &workdir, home.as_ref());
    located(written);
}

/// The pure rules.
fn resolved(written: &[u8], workdir: &GuestPath, home: Option<&GuestPath>) {
    let names = |bytes: &[u8]| -> Vec<Vec<u8>> {
        let names = bytes.split(|&byte| byte == b'/');
        names.filter(|name| !matches!(*name, b"" | b".")).map(<[u8]>::to_vec).collect()
    };
    let (base, rest) = match written {
        [b'/', ..] => (None, written),
        [b'~'] | [b'~', b'/', ..] => (home, &written[1..]),
        _ => (Some(workdir), written),
    };
    let resolved = match GuestPath::resolve(written, workdir, home) {
        Ok(resolved) => resolved,
        Err(error) => {
            let there_is = match &error {
                PathError::Empty => written.is_empty(),
                PathError::Nul => written.contains(&0),
                PathError::Parent => names(written).iter().any(|name| name == b".."),
                PathError::NoHome => home.is_none() && written[0] == b'~',
                PathError::ComponentTooLong => {
                    names(written).iter().any(|name| name.len() > MAX_COMPONENT_BYTES)
                }
                PathError::TooLong => written.len() + workdir.as_bytes().len() + 1 > MAX_PATH_BYTES,
                other => panic!("a reason that no written path has: {other}"),
            };
            assert!(there_is, "refused without reason: {error}");
            assert!(matches!(error.kind(), ErrorKind::PathEscape | ErrorKind::InvalidPath));
            return;
        }
    };
    let path = resolved.path;
    // Exactly the components that were written, below the base: none is dropped, none goes up.
    let mut expected = base.map(|base| names(base.as_bytes())).unwrap_or_default();
    expected.extend(names(rest));
    assert_eq!(path.components().map(<[u8]>::to_vec).collect::<Vec<_>>(), expected);
    assert!(base.is_none_or(|base| path.is_under(base)));
    assert!(path.as_bytes().starts_with(b"/") && path.as_bytes().len() <= MAX_PATH_BYTES);
    for name in path.components() {
        assert!(name.len() <= MAX_COMPONENT_BYTES && name != b".." && !name.contains(&0));
    }
    let ends_as_directory = written.ends_with(b"/") || written.ends_with(b"/.") || written == b".";
    assert_eq!(resolved.wants_directory, ends_as_directory);

    // Normalised: parsed again it is the same, both directly and over the wire.
    assert_eq!(GuestPath::new(path.as_bytes()).as_ref(), Ok(&path));
    let wire = serde_json::to_string(&WireString::new(path.as_bytes()))
        .expect("it is a string or an object");
    let wire: WireString = serde_json::from_str(&wire).expect("it was just written");
    assert_eq!(GuestPath::new(wire.as_bytes()).as_ref(), Ok(&path));

    // Joining the components one by one gives the path again.
    let mut above = self::path("/");
    for name in path.components() {
        let rest = path.strip_prefix(&above).expect("a prefix");
        assert!(rest.starts_with(name));
        above = above.join(name).expect("a legal name");
    }
    assert_eq!(above, path);
    assert_eq!(path.strip_prefix(&path), Some(&b""[..]));
    assert_eq!(path.name(), expected.last().map(Vec::as_slice).unwrap_or_default());
}

/// The mount that a path belongs to, and the policy for it.
fn located(written: &[u8]) {
    // It does not matter which directory is mounted: nothing is opened beneath it.
    static MOUNTS: LazyLock<Mounts> = LazyLock::new(|| {
        let mounts = ["/io", "/in/a", "/in/ab"].map(|at| {
            let mount = argv::Mount { path: path(at), access: Access::Write };
            Mount::open(&mount, Path::new("/")).expect("the root is there")
        });
        Mounts::new(mounts.into(), Some(path("/io")), path("/io/work"))
    });
    static POLICY: LazyLock<PathPolicy> = LazyLock::new(|| {
        let allowed = ALLOWED.map(|(path, access)| AllowedPath { path: path.into(), access });
        PathPolicy::new(&Policy {
            io: true,
            io_errors: IoErrors::Raise,
            allowed_paths: allowed.into(),
            protected: PROTECTED.map(str::to_owned).into(),
            files: FileScope::Io,
        })
        .expect("the paths are paths")
    });

    let located = match MOUNTS.locate(written) {
        Ok(located) => located,
        Err(error) => {
            let kinds = [ErrorKind::PathEscape, ErrorKind::InvalidPath, ErrorKind::NotFound];
            assert!(kinds.contains(&error.kind), "{error}");
            return;
        }
    };
    let MountTarget::Beneath(_, relative) = &located.target else {
        panic!("a directory is mounted")
    };
    let mount = &located.mount.path;
    assert_eq!(located.path.strip_prefix(mount), Some(relative.as_slice()));
    assert!(!relative.starts_with(b"/") && !relative.ends_with(b"/"));
    if !relative.is_empty() {
        let (parent, name) = sandbox_dirfd::split(relative);
        assert!(!name.is_empty() && !name.contains(&b'/') && name != b".." && name != b".");
        let joined = [parent, if parent.is_empty() { b"" } else { b"/" }, name].concat();
        assert_eq!(joined, *relative);
        for name in relative.split(|&byte| byte == b'/') {
            assert!(!matches!(name, b"" | b"." | b"..") && !name.contains(&0));
        }
    }

    // The longest rule applies, by component; a name is protected in any directory and any
    // spelling.
    let rule = ALLOWED.iter().filter(|(rule, _)| located.path.is_under(&path(rule)));
    let longest = rule.max_by_key(|(rule, _)| rule.len()).map(|&(_, access)| access);
    assert_eq!(POLICY.access(&located.path), longest);
    let lower = located.path.as_bytes().to_ascii_lowercase();
    let lower = [&lower[..], b"/"].concat();
    let protected = PROTECTED.iter().any(|name| {
        let name = format!("/{name}/").into_bytes();
        lower.windows(name.len()).any(|window| window == name)
    });
    let pinned = protected || lower.ends_with(b"/.git/");
    let names = || located.path.components();
    let is_plain =
        located.path.as_bytes().iter().all(|byte| byte.is_ascii() && !b"~:".contains(byte))
            && names().all(|name| !name.ends_with(b".") && !name.ends_with(b" "));
    for (found, expected) in
        [(POLICY.is_protected(&located.path), protected), (POLICY.is_pinned(&located.path), pinned)]
    {
        // Other spellings of a name are also protected.
        assert!(found == expected || (found && !is_plain));
    }
    assert!(!POLICY.is_protected_end(names().rev()) || POLICY.is_protected(&located.path));
}
