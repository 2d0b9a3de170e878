//! Prints the hosts that commands are refused.

use sandbox_api::{Network, RefusedHost};

use crate::output::Output;

/// How many refused hosts are printed for each script or command; further ones are mentioned.
const HOSTS_SHOWN: usize = 10;

/// Prints the refused hosts of what has ended.
pub fn print_all_refused(output: &Output, network: Option<&Network>) {
    let hosts = network.into_iter().flat_map(|network| &network.refused);
    hosts.enumerate().for_each(|(printed, host)| print(output, printed, host));
}

/// Prints a refused host, if not many were `printed` before.
pub fn print(output: &Output, printed: usize, host: &RefusedHost) {
    if printed < HOSTS_SHOWN {
        output.notice(&note(host));
    } else if printed == HOSTS_SHOWN {
        output.notice("more hosts were refused; --json and --audit FILE list them");
    }
}

fn note(RefusedHost { host, port, reason, allow }: &RefusedHost) -> String {
    let refused = format!("refused {host}:{port} ({reason})");
    if allow.is_empty() {
        return refused;
    }
    let flag = |rule: &String| match rule.contains(' ') {
        true => format!("--allow '{rule}'"),
        false => format!("--allow {rule}"),
    };
    let flags: Vec<_> = allow.iter().map(flag).collect();
    format!("{refused}; to allow it: {}", flags.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn note_of_a_refused_host_names_all_rules_that_it_needs() {
        let note = |allow: &[&str]| {
            let allow = allow.iter().map(|&rule| rule.to_owned()).collect();
            let (host, reason) = ("localhost".to_owned(), "loopback address".to_owned());
            note(&RefusedHost { host, port: 8098, reason, allow })
        };
        assert_eq!(note(&[]), "refused localhost:8098 (loopback address)");
        assert_eq!(
            note(&["127.0.0.1:8098", "[::1]:8098"]),
            "refused localhost:8098 (loopback address); to allow it: --allow 127.0.0.1:8098 --allow [::1]:8098"
        );
        assert_eq!(
            note(&["GET https://localhost:8098/a"]),
            "refused localhost:8098 (loopback address); to allow it: --allow 'GET https://localhost:8098/a'"
        );
    }
}
