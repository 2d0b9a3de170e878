//! The tools of other MCP servers that scripts are given: by flags, and by the configuration.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use hyper::header::HeaderValue;
use sandbox_api::service::{BySubject, Subject};
use sandbox_controller::host_tools::{Destructive, ToolGrant};
use sandbox_controller::permission::Permission;
use sandbox_env::Environment;
use sandbox_upstream::{Credentials, Target, Upstream, Upstreams};

use super::Context;
use crate::cli::secret::Source;
use crate::cli::upstream::UpstreamArgs;
use crate::config::{Key, Settings};
use crate::error::Error;

/// What a program has of our own environment: tokens are for whom they are given to.
const VARIABLES: [&str; 4] = ["HOME", "LANG", "PATH", "TMPDIR"];

/// The servers of a command, `chosen` and those that flags name, and what its scripts are given of their
/// tools; `None` if there is no server.
///
/// # Errors
///
/// If a flag names none, or a value cannot be read.
pub fn of_command(
    context: &Context<'_>,
    args: &UpstreamArgs,
    settings: &Settings,
    mut chosen: BTreeMap<String, Upstream>,
) -> Result<Option<(Upstreams, ToolGrant)>, Error> {
    let known = settings.upstreams(Key::McpUpstream);
    refuse_twice(args)?;
    for flag in &args.upstreams {
        let here = || context.environment.working_directory.clone();
        let upstream = match (&flag.upstream, known.get(&flag.name)) {
            (Some(given), _) if given.url.is_some() => given.clone(),
            (Some(given), _) => Upstream { cwd: Some(here()), ..given.clone() },
            (None, Some(known)) => known.clone(),
            (None, None) => {
                let why = format!("there is no server '{}' in the configuration", flag.name);
                return Err(Error::usage("--upstream", why)
                    .with_hint("NAME=COMMAND or NAME=URL describes one"));
            }
        };
        chosen.insert(flag.name.clone(), upstream);
    }
    if chosen.is_empty() {
        let flag = match (args.tool_rules.is_empty(), args.allow_destructive) {
            (true, false) => return Ok(None),
            (true, true) => "--allow-destructive",
            (false, _) => "--tool",
        };
        return Err(Error::usage(flag, "there is no server whose tools it could give")
            .with_hint("--upstream NAME=COMMAND or NAME=URL names one"));
    }
    let read = |(name, upstream): (String, Upstream)| {
        let setting = format!("{}.{name}", Key::McpUpstream.name());
        let target = target(&context.environment, &setting, &upstream, &Credentials::default())?;
        Ok((name, target))
    };
    let targets = chosen.into_iter().map(read).collect::<Result<Vec<_>, Error>>()?;
    let upstreams = Upstreams::new(targets);
    let mut rules = args.tool_rules.clone();
    rules.extend(settings.rules_of_tools(Key::McpToolRules));
    // What was learnt adds to what holds without a rule: it was learnt beside that.
    let added = settings.tool_rules.clone();
    let destructive = destructive(args.allow_destructive);
    let tools = Arc::new(upstreams.clone());
    let grant = ToolGrant { rules, added, destructive, ..ToolGrant::new(tools) };
    Ok(Some((upstreams, grant)))
}

/// Refuses two servers of one name: one of them would not be there.
fn refuse_twice(args: &UpstreamArgs) -> Result<(), Error> {
    let mut names = HashSet::new();
    match args.upstreams.iter().find(|flag| !names.insert(&*flag.name)) {
        None => Ok(()),
        Some(twice) => Err(Error::usage("--upstream", format!("'{}' is there twice", twice.name))
            .with_hint("each server has a name of its own: NAME=COMMAND or NAME=URL")),
    }
}

/// The same where rules are learnt, with who is asked about all that is not given.
pub fn asking(grant: ToolGrant, permission: Option<Arc<dyn Permission>>) -> ToolGrant {
    ToolGrant { learner: permission.clone(), permission, ..grant }
}

/// The servers of a service by its subjects.
///
/// # Errors
///
/// If a subject's name is not valid, or a value cannot be read.
pub fn of_service(
    environment: &Environment,
    settings: &Settings,
) -> Result<BySubject<Upstreams>, Error> {
    let (mut others, mut by_subject) = (Vec::new(), HashMap::<Subject, Vec<_>>::new());
    for (name, upstream) in settings.upstreams(Key::ServerUpstream) {
        let setting = format!("{}.{name}", Key::ServerUpstream.name());
        let target = |shown: &Credentials| target(environment, &setting, &upstream, shown);
        if upstream.subjects.is_empty() {
            others.push((name, target(&Credentials::default())?));
            continue;
        }
        for (subject, shown) in &upstream.subjects {
            let subject = Subject::new(subject.clone())
                .map_err(|error| Error::usage(setting.clone(), error.to_string()))?;
            by_subject.entry(subject).or_default().push((name.clone(), target(shown)?));
        }
    }
    let others = Upstreams::new(others);
    let own = |(subject, targets)| (subject, others.with(Upstreams::new(targets)));
    Ok(BySubject { own: by_subject.into_iter().map(own).collect(), others })
}

/// What the scripts of a service's subjects are given of them.
pub fn tools_of_service(
    upstreams: &BySubject<Upstreams>,
    settings: &Settings,
) -> BySubject<Option<ToolGrant>> {
    let rules = settings.rules_of_tools(Key::ServerToolRules);
    let destructive = destructive(settings.is_on(Key::ServerAllowDestructive));
    let grant = |tools: &Upstreams| {
        let grant = ToolGrant::new(Arc::new(tools.clone()));
        (!tools.is_empty()).then(|| ToolGrant { rules: rules.clone(), destructive, ..grant })
    };
    let own = upstreams.own.iter().map(|(subject, tools)| (subject.clone(), grant(tools)));
    BySubject { own: own.collect(), others: grant(&upstreams.others) }
}

const fn destructive(is_allowed: bool) -> Destructive {
    if is_allowed { Destructive::Allowed } else { Destructive::Refused }
}

/// A server with the values of what it is shown.
fn target(
    environment: &Environment,
    setting: &str,
    upstream: &Upstream,
    shown: &Credentials,
) -> Result<Target, Error> {
    let value =
        |name: &str, written: &str| value(environment, &format!("{setting}.{name}"), written);
    let Some(url) = &upstream.url else {
        let own = VARIABLES.iter().filter_map(|name| {
            Some(((*name).to_owned(), environment.variable(name)?.to_str()?.to_owned()))
        });
        let mut env: BTreeMap<String, String> = own.collect();
        for (name, written) in upstream.env.iter().chain(&shown.env) {
            env.insert(name.clone(), value(name, written)?);
        }
        let home = || environment.path("HOME").unwrap_or_else(|| "/".into());
        let cwd = upstream.cwd.clone().unwrap_or_else(home);
        return Ok(Target::Command { command: upstream.command.clone(), env, cwd });
    };
    let mut headers = HashMap::new();
    for (name, written) in upstream.headers.iter().chain(&shown.headers) {
        let refused = || Error::usage(format!("{setting}.{name}"), "it cannot be a header");
        let mut value = HeaderValue::try_from(value(name, written)?).map_err(|_| refused())?;
        value.set_sensitive(true);
        headers.insert(name.parse().map_err(|_| refused())?, value);
    }
    Ok(Target::Url { url: url.clone(), headers })
}

/// A value whose last word may be `env:NAME` or `file:PATH`, which stands for what is there.
fn value(environment: &Environment, setting: &str, written: &str) -> Result<String, Error> {
    let at = written.rfind(' ').map_or(0, |at| at + 1);
    match Source::parse(&written.as_bytes()[at..]) {
        None | Some(Source::Stdin) => Ok(written.to_owned()),
        Some(source) => {
            let secret = source.read(setting, environment)?;
            let secret = str::from_utf8(secret.as_bytes())
                .map_err(|_| Error::usage(setting, "it is not UTF-8 text"))?;
            Ok(format!("{}{secret}", &written[..at]))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_servers_have_two_names() {
        let args = |flags: &[&str]| UpstreamArgs {
            upstreams: flags.iter().map(|flag| flag.parse().unwrap()).collect(),
            tool_rules: Vec::new(),
            allow_destructive: false,
        };
        assert!(refuse_twice(&args(&["a=x", "b=x"])).is_ok());
        let error = refuse_twice(&args(&["a=x", "b=x", "a"])).unwrap_err().to_text();
        assert!(error.starts_with("--upstream: 'a' is there twice\nhint: "), "{error}");
    }

    #[test]
    fn values_are_read_where_they_are_named() {
        let environment = Environment::new("/w".as_ref(), 0, &[("TOKEN", "t0k"), ("PATH", "/bin")]);
        let read = |written| value(&environment, "mcp.upstream.a.X", written);
        assert_eq!(read("Bearer env:TOKEN").unwrap(), "Bearer t0k");
        assert_eq!(read("env:TOKEN").unwrap(), "t0k");
        for plain in ["plain", "", "-", "env:TOKEN and more", "a -"] {
            assert_eq!(read(plain).unwrap(), plain);
        }
        let error = read("env:NONE").unwrap_err().to_text();
        assert!(error.contains("mcp.upstream.a.X") && error.contains("NONE"), "{error}");

        let mut upstream = Upstream { command: vec!["a".to_owned()], ..Upstream::default() };
        upstream.env.insert("A".to_owned(), "env:TOKEN".to_owned());
        let shown = Credentials::default();
        let target = target(&environment, "x", &upstream, &shown).unwrap();
        let Target::Command { env, cwd, .. } = target else { panic!("a command") };
        assert_eq!(
            env.into_iter().collect::<Vec<_>>(),
            [("A".to_owned(), "t0k".to_owned()), ("PATH".to_owned(), "/bin".to_owned())]
        );
        assert_eq!(cwd, std::path::Path::new("/"));
    }
}
