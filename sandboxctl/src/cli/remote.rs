//! Where a service is: the flags of commands that can have it do their work.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, ValueHint};
use sandbox_env::Environment;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;

use super::values::text;
use crate::config::{CA_VARIABLE, SERVER_VARIABLE, TOKEN_VARIABLE};
use crate::error::Error;
use crate::input::{read_at_once, reason};
use crate::remote::{Client, MAX_TOKEN_BYTES, ServerAddress, Token};

/// The most bytes of a file with certificates: more than a whole machine trusts.
const MAX_CA_BYTES: u64 = 4 << 20;

/// A service: `--server`, `--token-file` and `--ca-file`.
#[derive(Debug, Args)]
#[command(next_help_heading = "Service")]
pub struct RemoteArgs {
    /// Service to use: http://HOST, https://HOST or unix:PATH [default: SANDBOXCTL_SERVER]
    #[arg(long, value_name = "URL", value_hint = ValueHint::Url, global = true,
        value_parser = text::<ServerAddress>())]
    server: Option<ServerAddress>,

    /// Read the token for the service from this file [default: SANDBOXCTL_TOKEN]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, global = true)]
    token_file: Option<PathBuf>,

    /// Trust the certificates in this file for the service, and no others: its own, or that of the
    /// authority that signed it, as PEM [default: SANDBOXCTL_CA_FILE, or those of this machine]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, global = true)]
    ca_file: Option<PathBuf>,

    /// The ids of all arguments of the command line.
    #[arg(skip)]
    pub(super) given: Vec<String>,
}

/// The ids of the arguments that the command line has for its command.
pub fn given(matches: &ArgMatches) -> Vec<String> {
    let Some((_, matches)) = matches.subcommand() else { return Vec::new() };
    let is_given = |id: &&str| matches.value_source(id) == Some(ValueSource::CommandLine);
    matches.ids().map(clap::Id::as_str).filter(is_given).map(str::to_owned).collect()
}

impl RemoteArgs {
    /// The service of this command line or environment, if one is named.
    ///
    /// # Errors
    ///
    /// If its address or its token is invalid.
    pub fn client(&self, environment: &Environment) -> Result<Option<Client>, Error> {
        let Some(address) = self.address(environment)? else { return Ok(None) };
        let token = self.token(environment)?;
        Ok(Some(Client::new(address, token, self.certificates(environment)?)))
    }

    /// The service, for commands that need one.
    ///
    /// # Errors
    ///
    /// As [`client`](Self::client), and if none is named.
    pub fn required_client(&self, environment: &Environment) -> Result<Client, Error> {
        self.client(environment)?.ok_or_else(|| {
            let hint = format!("--server URL or {SERVER_VARIABLE} names it: http://127.0.0.1:8470");
            Error::usage("--server", "no service is named").with_hint(hint)
        })
    }

    /// The token of the file, or else of the environment, if any. No message contains it.
    fn token(&self, environment: &Environment) -> Result<Option<Token>, Error> {
        let (what, text) = if let Some(file) = &self.token_file {
            let what = format!("--token-file {}", file.display());
            let mut text = Vec::with_capacity(MAX_TOKEN_BYTES + 2);
            File::open(file)
                .and_then(|it| it.take(MAX_TOKEN_BYTES as u64 + 2).read_to_end(&mut text))
                .map_err(|error| Error::usage(&*what, reason(&error)))?;
            (what, text)
        } else if let Some(token) = environment.variable(TOKEN_VARIABLE) {
            (TOKEN_VARIABLE.to_owned(), token.as_bytes().to_vec())
        } else {
            return Ok(None);
        };
        Token::parse(&text).map(Some).map_err(|why| Error::usage(what, why))
    }

    /// The certificates to trust; `None` for those of this machine.
    fn certificates(
        &self,
        environment: &Environment,
    ) -> Result<Option<Vec<CertificateDer<'static>>>, Error> {
        let (what, file) = match (&self.ca_file, environment.variable(CA_VARIABLE)) {
            (Some(file), _) => ("--ca-file", file.clone()),
            (None, Some(file)) => (CA_VARIABLE, environment.working_directory.join(file)),
            (None, None) => return Ok(None),
        };
        read_certificates(what, &file).map(Some)
    }

    fn address(&self, environment: &Environment) -> Result<Option<ServerAddress>, Error> {
        if let Some(address) = &self.server {
            return Ok(Some(address.clone()));
        }
        let Some(text) = environment.variable(SERVER_VARIABLE) else { return Ok(None) };
        let text =
            text.to_str().ok_or_else(|| Error::usage(SERVER_VARIABLE, "it is not UTF-8 text"))?;
        let address = text.parse::<ServerAddress>();
        address.map(Some).map_err(|error| Error::usage(SERVER_VARIABLE, error.to_string()))
    }
}

/// Reads the certificates to trust from the file that a flag or a variable names.
pub fn read_certificates(what: &str, file: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let refuse = |why: String| {
        let error = Error::usage(what, format!("{}: {why}", file.display()));
        error.with_hint("it has certificates as PEM: -----BEGIN CERTIFICATE-----")
    };
    let pem = read_at_once(file, MAX_CA_BYTES).map_err(|error| refuse(reason(&error)))?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match found {
        Ok(found) if found.is_empty() => Err(refuse("there is no certificate in it".to_owned())),
        Ok(found) => Ok(found),
        Err(error) => Err(refuse(error.to_string())),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::Path;

    use super::*;
    use crate::cli::{Cli, Command as Which};

    /// The arguments of `run` of a script.
    pub fn run(args: &[&str]) -> RemoteArgs {
        let all = ["sandboxctl", "run", "x.luau"].iter().chain(args);
        let Which::Run(args) = Cli::read(all).unwrap().command else { panic!("it is run") };
        args.0.remote
    }

    #[test]
    fn flag_overrides_the_variable_and_an_empty_variable_is_unset() {
        let environment =
            |server| Environment::new(Path::new("/"), 1000, &[(SERVER_VARIABLE, server)]);
        let server = |args: &[&str], variable| {
            let client = run(args).client(&environment(variable)).unwrap();
            client.map(|client| client.server())
        };
        let flag = ["--server", "http://127.0.0.1:1"];
        assert_eq!(server(&flag, "unix:/s").as_deref(), Some("http://127.0.0.1:1"));
        assert_eq!(server(&[], "unix:/s").as_deref(), Some("unix:/s"));
        assert_eq!(server(&[], ""), None);
        let refused = run(&[]).client(&environment("localhost")).unwrap_err().to_text();
        assert!(refused.starts_with("SANDBOXCTL_SERVER: expected http://HOST"), "{refused}");
        let none = run(&[]).required_client(&environment("")).unwrap_err();
        assert_eq!(none.exit_code(), 2);
        assert!(none.hint().is_some_and(|hint| hint.contains("--server URL")));
    }

    #[test]
    fn file_comes_before_the_variable() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, "from-file\n").unwrap();
        let environment =
            Environment::new(folder.path(), 1000, &[(TOKEN_VARIABLE, "from-variable")]);
        let args = |file: Option<&Path>| RemoteArgs {
            server: None,
            token_file: file.map(Path::to_owned),
            ca_file: None,
            given: Vec::new(),
        };
        let header = |file| args(file).token(&environment).unwrap().unwrap().header();
        assert_eq!(header(Some(&*file)), "Bearer from-file");
        assert_eq!(header(None), "Bearer from-variable");
        let none = Environment::new(folder.path(), 1000, &[]);
        assert!(args(None).token(&none).unwrap().is_none());
        assert!(args(Some(folder.path())).token(&none).is_err());
    }

    #[test]
    fn certificates_are_those_of_the_flag_or_of_the_variable() {
        let folder = tempfile::tempdir().unwrap();
        let pem = include_str!("../../../server/http/tests/api/tls/one.cert.pem");
        let file = |name: &str, content: &str| {
            std::fs::write(folder.path().join(name), content).unwrap();
            folder.path().join(name)
        };
        let (one, two) = (file("one", pem), pem.repeat(2));
        file("two", &two);
        let variable = Environment::new(folder.path(), 1000, &[(CA_VARIABLE, "two")]);
        let none = Environment::new(folder.path(), 1000, &[]);
        let args = |file: &Path| run(&["--ca-file", file.to_str().unwrap()]);
        let count = |args: &RemoteArgs, environment| {
            args.certificates(environment).unwrap().map(|found| found.len())
        };
        assert_eq!(count(&run(&[]), &none), None);
        assert_eq!(count(&run(&[]), &variable), Some(2));
        assert_eq!(count(&args(&one), &variable), Some(1));
        for (name, content) in [("empty", ""), ("key", "-----BEGIN PRIVATE KEY-----\n")] {
            let refused = args(&file(name, content)).certificates(&none).unwrap_err();
            assert!(refused.to_text().starts_with("--ca-file: "), "{}", refused.to_text());
            assert!(refused.to_text().contains("BEGIN CERTIFICATE"));
        }
    }
}
