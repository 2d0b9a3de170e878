//! The user and the group of a sandbox in its `/etc/passwd` and `/etc/group`: programs look up the name
//! of their user, and some fail without one; and their home, which is where `HOME` is. Pure.

use sandbox_protocol::User;

/// The largest file of an image to which a line is added.
pub const MAX_BYTES: usize = 32 << 10;
/// The files, in the order of [`Accounts`].
pub const PATHS: [&str; 2] = ["/etc/passwd", "/etc/group"];

/// The contents of the two files in an image; `None` for one that is not plain text, or too large.
pub type Accounts = [Option<String>; 2];

/// The content of one of the files, if a line can be added to it. One that is missing is empty.
pub fn plain_text(content: Vec<u8>) -> Option<String> {
    let text = String::from_utf8(content).ok()?;
    let is_plain = |it: char| it == '\n' || it == '\t' || !it.is_control();
    (text.len() <= MAX_BYTES && text.chars().all(is_plain)).then_some(text)
}

/// The replacements of the files: path and content. None for a file that is right already.
///
/// A user of the image who has the sandbox's home is the sandbox's, whatever their number is there.
pub fn replacements(image: &Accounts, user: User, home: &str) -> Vec<(&'static str, String)> {
    let [passwd, group] = image.each_ref().map(Option::as_deref);
    let home = if home.contains([':', '\n']) { "/" } else { home };
    let (uid, gid) = (user.uid(), user.gid());
    let files = match passwd.and_then(|file| line_of_home(file, home)) {
        Some(own) => as_own([passwd, group], &own, user),
        None => {
            let line = |name: &str| format!("{name}:x:{uid}:{gid}:{name}:{home}:/bin/sh");
            let passwd = with_home(passwd, uid, home).or_else(|| with_line(passwd, uid, line));
            [passwd, with_line(group, gid, |name| format!("{name}:x:{gid}:"))]
        }
    };
    PATHS.into_iter().zip(files).filter_map(|(path, content)| Some((path, content?))).collect()
}

/// The fields of the image's user who has the sandbox's home.
fn line_of_home<'a>(passwd: &'a str, home: &str) -> Option<Vec<&'a str>> {
    let mut lines = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
    lines.find(|fields| fields.len() == 7 && fields[5] == home && home != "/")
}

/// The files with that user as the sandbox's own: the first line of an id has its name.
fn as_own([passwd, group]: [Option<&str>; 2], own: &[&str], user: User) -> Accounts {
    let (name, uid, gid) = (own[0], user.uid().to_string(), user.gid().to_string());
    let first = |file: Option<&str>, line: &str| {
        let file = file?;
        (file.lines().next() != Some(line)).then(|| format!("{line}\n{file}"))
    };
    let line = [name, own[1], &uid, &gid, own[4], own[5], own[6]].join(":");
    [first(passwd, &line), first(group, &format!("{name}:x:{gid}:"))]
}

/// The file with this home for its user of this number; `None` if it has no such user, or the user has this
/// home already. Java and SSH look here, not at `HOME`, and cannot write to the image's.
fn with_home(passwd: Option<&str>, uid: u32, home: &str) -> Option<String> {
    let file = passwd?;
    let mut lines = file.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let mut own = lines.find(|fields| fields.get(2).is_some_and(|it| it.parse() == Ok(uid)))?;
    if own.len() != 7 || own[5] == home {
        return None;
    }
    own[5] = home;
    Some(format!("{}\n{file}", own.join(":")))
}

/// The file with a line for this id; `None` if it has one, or cannot be changed.
fn with_line(file: Option<&str>, id: u32, line: impl FnOnce(&str) -> String) -> Option<String> {
    let file = file?;
    let fields = || file.lines().map(|line| line.split(':').collect::<Vec<_>>());
    if fields().any(|fields| fields.get(2).is_some_and(|it| it.parse() == Ok(id))) {
        return None;
    }
    let own = if id == 0 { "root" } else { "sandbox" };
    let is_taken = fields().any(|fields| fields.first() == Some(&own));
    let name = if is_taken { format!("sandbox{id}") } else { own.to_owned() };
    let end = if file.is_empty() || file.ends_with('\n') { "" } else { "\n" };
    Some(format!("{file}{end}{}\n", line(&name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(passwd: &str, group: &str) -> Accounts {
        [passwd, group].map(|text| plain_text(text.as_bytes().to_vec()))
    }

    fn replaced(image: &Accounts, uid: u32, home: &str) -> Vec<(&'static str, String)> {
        replacements(image, User::new(uid, uid).unwrap(), home)
    }

    #[test]
    fn user_without_a_name_gets_a_line_and_the_images_lines_stay() {
        let debian = image("root:x:0:0:root:/root:/bin/bash\n", "root:x:0:\nann:x:1000:");
        assert_eq!(
            replaced(&debian, 1000, "/io"),
            [(
                "/etc/passwd",
                "root:x:0:0:root:/root:/bin/bash\nsandbox:x:1000:1000:sandbox:/io:/bin/sh\n"
                    .to_owned()
            )]
        );
        assert_eq!(replaced(&debian, 0, "/root"), []);
        assert_eq!(
            replaced(&debian, 7, "/io")[1],
            ("/etc/group", "root:x:0:\nann:x:1000:\nsandbox:x:7:\n".to_owned())
        );
        let none = replaced(&image("", ""), 0, "/a:b");
        let lines = none.iter().map(|(_, text)| text.as_str()).collect::<Vec<_>>();
        assert_eq!(lines, ["root:x:0:0:root:/:/bin/sh\n", "root:x:0:\n"]);
        let taken = replaced(&image("sandbox:x:1:1::/:\n", "sandbox:x:7:\n"), 7, "/io");
        assert_eq!(taken.len(), 1);
        assert!(taken[0].1.ends_with("\nsandbox7:x:7:7:sandbox7:/io:/bin/sh\n"), "{taken:?}");
    }

    #[test]
    fn user_of_the_image_with_another_home_has_the_sandboxs() {
        let debian = image(
            "root:x:0:0:root:/root:/bin/bash\nann:x:1000:100::/home/ann:/bin/zsh\n",
            "root:x:0:\nann:x:1000:\n",
        );
        for (uid, line) in
            [(0, "root:x:0:0:root:/io:/bin/bash"), (1000, "ann:x:1000:100::/io:/bin/zsh")]
        {
            let [(path, content)] = &replaced(&debian, uid, "/io")[..] else { panic!("{uid}") };
            let of_image = debian[0].as_deref().unwrap();
            assert_eq!((*path, content.as_str()), ("/etc/passwd", &*format!("{line}\n{of_image}")));
        }
        assert_eq!(replaced(&image("root:x:0\n", "root:x:0:\n"), 0, "/io"), []);
    }

    #[test]
    fn user_of_the_image_with_the_sandboxs_home_is_the_sandboxs() {
        let of_image = image(
            "root:x:0:0:root:/root:/bin/bash\nuser:x:1000:1000::/home/user:/bin/bash\n",
            "root:x:0:\nuser:x:1000:\n",
        );
        for uid in [0, 60777] {
            let own = replaced(&of_image, uid, "/home/user");
            assert!(
                own[0].1.starts_with(&format!("user:x:{uid}:{uid}::/home/user:/bin/bash\nroot:"))
            );
            assert!(own[1].1.starts_with(&format!("user:x:{uid}:\nroot:")));
        }
        assert!(
            replaced(&of_image, 7, "/io")[0].1.ends_with("\nsandbox:x:7:7:sandbox:/io:/bin/sh\n")
        );
    }

    #[test]
    fn file_that_is_not_plain_text_is_left_alone() {
        for content in
            [b"\xff".to_vec(), b"a\0".to_vec(), b"\x1b[m".to_vec(), vec![b'a'; MAX_BYTES + 1]]
        {
            assert_eq!(plain_text(content), None);
        }
        assert_eq!(replaced(&[None, None], 1000, "/io"), []);
    }
}
