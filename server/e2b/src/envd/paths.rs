//! Paths as a user writes them. Pure.

use sandbox_api::ErrorKind;
use sandbox_dirfd::clean;
use sandbox_service::ServiceError;

use crate::settings::{HOME, USER};

/// The home of the user `root`.
const ROOT_HOME: &str = "/root";
/// The longest path, in bytes.
const MAX_PATH: usize = 4096;
/// Whose files the kernel makes up.
const KERNELS: [&str; 3] = ["/proc", "/sys", "/dev"];
/// The tag of commands that read those: lists of processes leave them out.
pub(crate) const KERNEL_TAG: &str = "sandboxctl.kernel";

/// Whether an operation has refused a path because it is the kernel's.
pub(crate) fn is_kernels(path: &str, error: &ServiceError) -> bool {
    let is_in = |rest: &str| rest.is_empty() || rest.starts_with('/');
    error.kind() == ErrorKind::SpecialFile
        && KERNELS.iter().any(|top| path.strip_prefix(top).is_some_and(is_in))
}

/// Whose home a relative path is below. All act as the sandbox's one user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct User {
    name: &'static str,
    home: &'static str,
}

impl User {
    /// The user of this name; the sandbox's own without one.
    ///
    /// # Errors
    ///
    /// In words, if there is no such user.
    pub(crate) fn named(name: Option<&str>) -> Result<Self, String> {
        match name.unwrap_or_default() {
            "" | USER => Ok(Self { name: USER, home: HOME }),
            "root" => Ok(Self { name: "root", home: ROOT_HOME }),
            other => {
                let shown: String = other.chars().filter(|it| !it.is_control()).take(64).collect();
                Err(format!("error looking up user '{shown}': there are '{USER}' and 'root'"))
            }
        }
    }

    /// Its name.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// The absolute path that this is, without `.`, `..` and double slashes. Links in it are not looked at.
    ///
    /// # Errors
    ///
    /// In words, if it cannot be one.
    pub(crate) fn resolve(&self, written: &str) -> Result<String, String> {
        if written.len() > MAX_PATH || written.contains('\0') {
            return Err("the path is too long, or has a NUL byte".to_owned());
        }
        Ok(match written {
            "~" => self.home.to_owned(),
            path if path.starts_with('/') => clean(path),
            path => clean(&format!("{}/{}", self.home, path.strip_prefix("~/").unwrap_or(path))),
        })
    }
}

/// The last name of a path; `/` has itself.
pub(crate) fn name_of(path: &str) -> &str {
    match path.rsplit_once('/') {
        Some((_, "")) | None => path,
        Some((_, name)) => name,
    }
}

/// What a link at a path points to, as an absolute path.
pub(crate) fn target_of(link: &str, target: &str) -> String {
    match target.starts_with('/') {
        true => clean(target),
        false => clean(&format!("{link}/../{target}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_below_the_home_of_its_user_or_absolute() {
        let user = User::named(None).unwrap();
        let root = User::named(Some("root")).unwrap();
        assert_eq!(user, User::named(Some("user")).unwrap());
        assert!(User::named(Some("nobody")).is_err());
        for (written, path) in [
            ("a.txt", "/home/user/a.txt"),
            ("./a//b/", "/home/user/a/b"),
            ("~", "/home/user"),
            ("~/x", "/home/user/x"),
            ("~x", "/home/user/~x"),
            ("", "/home/user"),
            ("../../../etc/passwd", "/etc/passwd"),
            ("/tmp/../etc/.", "/etc"),
            ("/", "/"),
            ("/..", "/"),
        ] {
            assert_eq!(user.resolve(written).unwrap(), path, "{written}");
        }
        assert_eq!(root.resolve("hello.txt").unwrap(), "/root/hello.txt");
        assert!(user.resolve("a\0b").is_err());
        assert!(user.resolve(&"x".repeat(MAX_PATH + 1)).is_err());
    }

    #[test]
    fn a_link_points_from_where_it_is() {
        assert_eq!(target_of("/home/user/d/link", "a.txt"), "/home/user/d/a.txt");
        assert_eq!(target_of("/home/user/link", "../x"), "/home/x");
        assert_eq!(target_of("/home/user/link", "/etc/./x"), "/etc/x");
        assert_eq!((name_of("/a/b"), name_of("/")), ("b", "/"));
    }
}
