//! `token`: tokens in the store of a service, whether it runs or not.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sandbox_api::service::{Subject, Time};
use sandbox_auth::{Scope, Token};
use sandbox_controller::Config;
use sandbox_store::{DatabaseConfig, Durability, Rotated, Store, StoreError, TokenRecord};
use serde::Serialize;

use super::{Context, database};
use crate::cli::token::{Expiry, StoreArgs, TokenCommand};
use crate::config::{Key, Value};
use crate::error::Error;
use crate::render::{self, escaped_line};
use crate::target;
use crate::whole_file::MissingDirs;

pub fn token(context: &Context<'_>, command: TokenCommand) -> Result<u8, Error> {
    match command {
        TokenCommand::Create { subject, scopes, expires, e2b, store: args, json } => {
            let create = |store: &Store| create(store, subject, scopes, expires);
            let created = match place(context, &args)? {
                Place::Database(database) => create(&Store::connect(&database)?)?,
                Place::Directory(data_dir, config) => {
                    create_in(context, &data_dir, &config, create)?
                }
            };
            let spelling = if e2b { Token::expose_as_e2b } else { Token::expose };
            print(context, &created, spelling, json)?;
        }
        TokenCommand::Ls { store: args, json } => {
            let tokens = store(context, &args)?.tokens()?;
            let now = Time::now();
            let shown: Vec<_> = tokens.iter().map(|token| Shown::of(token, now)).collect();
            context.output.show(json, &shown, |width| listing(&tokens, now, width))?;
        }
        TokenCommand::Rotate { id, overlap, expires, store: args, json } => {
            let rotated = rotate(&store(context, &args)?, &id, overlap, expires)?;
            print(context, &rotated, Token::expose, json)?;
            if !json {
                let old = match overlap {
                    Some(time) => format!("valid until {} at the latest", Time::now().after(time)),
                    None => "revoked".to_owned(),
                };
                context.output.notice(&format!("the token {id} is {old}"));
            }
        }
        TokenCommand::Revoke { subject: Some(subject), store: args, .. } => {
            let store = store(context, &args)?;
            let revoked = store.revoke_tokens_of(&subject, Time::now())?;
            // Revoked before is revoked.
            if revoked == 0 && !store.tokens()?.iter().any(|token| token.subject == subject) {
                let error = Error::usage("--subject", "there is no token of this subject");
                return Err(error.with_hint("`sandboxctl token ls` lists them"));
            }
            let revoked = render::count(revoked, "token", "tokens");
            context.output.notice(&format!(
                "revoked {revoked}; those of an issuer of [server.jwt] are not its"
            ));
        }
        TokenCommand::Revoke { ids, store: args, .. } => {
            revoke(&store(context, &args)?, &ids)?;
        }
    }
    Ok(0)
}

/// Where a service stores what it must not lose.
pub enum Place {
    /// In its data directory. With the configuration of a controller.
    Directory(PathBuf, Box<Config>),
    /// In the database of a cluster.
    Database(DatabaseConfig),
}

/// Where the store of a service is: a directory that the command line names, or else the database of a cluster,
/// or else the data directory.
pub fn place(context: &Context<'_>, args: &StoreArgs) -> Result<Place, Error> {
    let settings = context.settings_with(|flags| args.add_flags(flags))?;
    if args.data_dir.is_none()
        && let Some(database) = database::config(&context.environment, &settings)?
    {
        return Ok(Place::Database(database));
    }
    let Some(Value::Path(data_dir)) = &settings.setting(Key::ServerDataDir).value else {
        let error = Error::usage("--data-dir", "it is not known where the service keeps its data");
        return Err(error.with_hint(
            "--data-dir DIR, or [server] data_dir, names it; --database URL the database of a cluster",
        ));
    };
    let data_dir = context.environment.working_directory.join(data_dir);
    Ok(Place::Directory(data_dir, Box::new(context.controller(&settings))))
}

/// The store of a service, which may have it open.
pub fn store(context: &Context<'_>, args: &StoreArgs) -> Result<Store, Error> {
    Ok(match place(context, args)? {
        Place::Directory(data_dir, _) => Store::attach(&data_dir)?,
        Place::Database(database) => Store::connect(&database)?,
    })
}

/// Makes something in the store of a data directory. The first token of a service may be made before its
/// first start.
fn create_in<T>(
    context: &Context<'_>,
    data_dir: &Path,
    config: &Config,
    create: impl FnOnce(&Store) -> Result<T, StoreError>,
) -> Result<T, Error> {
    target::refuse_served("--data-dir", data_dir, config)?;
    match Store::attach(data_dir) {
        Err(StoreError::Missing { .. }) => {
            let missing = MissingDirs::of(data_dir);
            let remove = |error: &StoreError| remove_new(data_dir, &missing, error);
            let store = Store::open(data_dir, Durability::Disk).inspect_err(remove)?;
            let created = create(&store).inspect_err(remove)?;
            let dir = data_dir.display().to_string();
            let shown = escaped_line(&dir);
            context.output.notice(&format!("no service has used {shown} yet: it was created"));
            Ok(created)
        }
        attached => Ok(create(&attached?)?),
    }
}

/// A token as it is printed, once.
#[derive(Serialize)]
struct Created<'a> {
    id: &'a str,
    token: &'a str,
    subject: &'a Subject,
    scopes: &'a [String],
    created_at: &'a Time,
    expires_at: &'a Option<Time>,
}

/// Removes the data directory of what could not be stored, if it was made for that and is no other's by
/// now.
pub fn remove_new(data_dir: &Path, missing: &MissingDirs, error: &StoreError) {
    if missing.is_some() && !matches!(error, StoreError::InUse { .. }) {
        _ = fs::remove_dir_all(data_dir);
        missing.remove();
    }
}

/// Makes a token, which is durable when this returns.
pub fn create(
    store: &Store,
    subject: Subject,
    mut scopes: Vec<Scope>,
    expires: Expiry,
) -> Result<(TokenRecord, Token), StoreError> {
    scopes.sort_unstable();
    scopes.dedup();
    let scopes = scopes.iter().map(ToString::to_string).collect();
    let (record, token) = new(subject, scopes, Time::now(), expires);
    // Durable before it is shown.
    store.create_token(record.clone())?;
    Ok((record, token))
}

fn new(subject: Subject, scopes: Vec<String>, now: Time, expires: Expiry) -> (TokenRecord, Token) {
    let token = Token::generate();
    let record = TokenRecord {
        id: token.id().to_owned(),
        hash: token.hash(),
        subject,
        scopes,
        created_at: now,
        expires_at: expires.0.map(|time| now.after(time)),
        revoked_at: None,
        last_used_at: None,
    };
    (record, token)
}

/// A token that replaces another one.
fn rotate(
    store: &Store,
    id: &str,
    overlap: Option<Duration>,
    expires: Option<Expiry>,
) -> Result<(TokenRecord, Token), Error> {
    let refuse = |why: &str| Error::usage(format!("ID '{id}'"), why);
    let missing = || refuse("there is no such token").with_hint("`sandboxctl token ls` lists them");
    let now = Time::now();
    let old = store.token(id)?.ok_or_else(missing)?;
    let lifetime = old.expires_at.map(|time| time.since(old.created_at));
    let expires = expires.unwrap_or(Expiry(lifetime));
    let (record, token) = new(old.subject, old.scopes, now, expires);
    let until = overlap.map(|time| now.after(time));
    match store.rotate_token(id, record.clone(), now, until)? {
        Rotated::Done => Ok((record, token)),
        Rotated::Missing => Err(missing()),
        Rotated::NotValid => Err(refuse("it is not valid any more")
            .with_hint("`sandboxctl token create` makes a token without an old one")),
    }
}

fn print(
    context: &Context<'_>,
    (record, token): &(TokenRecord, Token),
    spelling: fn(&Token) -> String,
    json: bool,
) -> Result<(), Error> {
    let token = &spelling(token);
    let TokenRecord { id, subject, scopes, created_at, expires_at, .. } = record;
    if json {
        let created = Created { id, token, subject, scopes, created_at, expires_at };
        return context.output.document(&created);
    }
    context.output.text(&format!("{token}\n"))?;
    let until = expires_at.map_or("until it is revoked".to_owned(), |time| format!("until {time}"));
    let (subject, scopes) = (escaped_line(subject.as_str()), scopes.join(", "));
    context.output.notice(&format!(
        "the token {id} of {subject} is valid {until}, for {scopes}; it is not shown again"
    ));
    Ok(())
}

/// Revokes all of them, or reports the invalid one.
fn revoke(store: &Store, ids: &[String]) -> Result<(), Error> {
    for id in ids {
        // Revoked before is revoked.
        if store.token(id)?.is_none() {
            let error = Error::usage(format!("ID '{id}'"), "there is no such token");
            return Err(error.with_hint("`sandboxctl token ls` lists them"));
        }
    }
    ids.iter().try_for_each(|id| Ok(store.revoke_token(id, Time::now()).map(drop)?))
}

/// Whether a token is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum TokenState {
    Valid,
    Expired,
    Revoked,
}

impl TokenState {
    fn of(token: &TokenRecord, now: Time) -> Self {
        match token {
            TokenRecord { revoked_at: Some(_), .. } => Self::Revoked,
            TokenRecord { expires_at: Some(time), .. } if *time <= now => Self::Expired,
            _ => Self::Valid,
        }
    }
}

/// A token as it is listed: without the digest of its secret.
#[derive(Serialize)]
struct Shown<'a> {
    id: &'a str,
    subject: &'a Subject,
    scopes: &'a [String],
    state: TokenState,
    created_at: &'a Time,
    expires_at: &'a Option<Time>,
    revoked_at: &'a Option<Time>,
    last_used_at: &'a Option<Time>,
}

impl<'a> Shown<'a> {
    fn of(token: &'a TokenRecord, now: Time) -> Self {
        let TokenRecord { id, subject, scopes, created_at, expires_at, .. } = token;
        let TokenRecord { revoked_at, last_used_at, .. } = token;
        let state = TokenState::of(token, now);
        Self { id, subject, scopes, state, created_at, expires_at, revoked_at, last_used_at }
    }
}

/// Tokens as a table of this width.
fn listing(tokens: &[TokenRecord], now: Time, width: Option<usize>) -> String {
    let row = |token: &TokenRecord| {
        let state = TokenState::of(token, now);
        let expires = match (state, token.expires_at) {
            (TokenState::Valid, Some(time)) => render::age(time.since(now)),
            (TokenState::Valid, None) => "never".to_owned(),
            _ => "-".to_owned(),
        };
        let used = token.last_used_at.map(|time| render::age(now.since(time)));
        [
            token.id.clone(),
            render::word(state),
            escaped_line(token.subject.as_str()).into_owned(),
            escaped_line(&token.scopes.join(",")).into_owned(),
            render::age(now.since(token.created_at)),
            expires,
            used.unwrap_or("never".to_owned()),
        ]
    };
    let headings = ["ID", "STATE", "SUBJECT", "SCOPES", "AGE", "EXPIRES IN", "LAST USED"];
    render::table(headings, tokens.iter().map(row), width)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(id: &str, subject: &str) -> TokenRecord {
        TokenRecord {
            id: id.to_owned(),
            hash: [7; 32],
            subject: Subject::new(subject).unwrap(),
            scopes: vec!["executions:write".to_owned(), "sandboxes".to_owned()],
            created_at: Time::from_unix_millis(0),
            expires_at: None,
            revoked_at: None,
            last_used_at: None,
        }
    }

    #[test]
    fn table_says_which_tokens_are_valid() {
        let (time, day) = (Time::from_unix_millis, 24 * 3600 * 1000);
        let tokens = [
            TokenRecord { last_used_at: Some(time(2 * day)), ..record("5f0c7a1be2d40586", "ci") },
            TokenRecord { expires_at: Some(time(5 * day)), ..record("0586e2d47a1b5f0c", "ops") },
            TokenRecord { expires_at: Some(time(day)), ..record("e2d405865f0c7a1b", "old") },
            TokenRecord { revoked_at: Some(time(1)), ..record("7a1b5f0ce2d40586", "lost") },
        ];
        insta::assert_snapshot!(listing(&tokens, time(3 * day), None), @r"
        ID                STATE    SUBJECT  SCOPES                      AGE  EXPIRES IN  LAST USED
        5f0c7a1be2d40586  valid    ci       executions:write,sandboxes  3d   never       1d
        0586e2d47a1b5f0c  valid    ops      executions:write,sandboxes  3d   2d          never
        e2d405865f0c7a1b  expired  old      executions:write,sandboxes  3d   -           never
        7a1b5f0ce2d40586  revoked  lost     executions:write,sandboxes  3d   -           never
        ");
    }

    #[test]
    fn json_of_a_list_has_no_digest() {
        let token = record("5f0c7a1be2d40586", "ci");
        let json = serde_json::to_value(Shown::of(&token, Time::from_unix_millis(1))).unwrap();
        let names: Vec<_> = json.as_object().unwrap().keys().cloned().collect();
        assert!(!names.contains(&"hash".to_owned()), "{names:?}");
        assert_eq!(json["state"], "valid");
    }

    #[test]
    fn token_is_replaced_by_one_for_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("data"), Durability::Disk).unwrap();
        let now = Time::now();
        let (day, hour) = (Duration::from_secs(24 * 3600), Duration::from_secs(3600));
        let old = TokenRecord {
            created_at: now.before(hour),
            expires_at: Some(now.before(hour).after(day)),
            ..record("5f0c7a1be2d40586", "ci")
        };
        store.create_token(old.clone()).unwrap();
        let id = &old.id;
        let (new, token) = rotate(&store, id, Some(hour), None).unwrap();
        assert_eq!((&new.subject, &new.scopes), (&old.subject, &old.scopes));
        assert_eq!(new.expires_at.unwrap().since(new.created_at), day);
        assert_eq!(Token::parse(&token.expose()).unwrap().id(), new.id);
        let left = store.token(&old.id).unwrap().unwrap().expires_at.unwrap();
        assert!(left <= Time::now().after(hour) && left > now, "{left}");
        let id = &new.id;
        let (newer, _) = rotate(&store, id, None, Some(Expiry(None))).unwrap();
        assert_eq!(newer.expires_at, None);
        let refused = rotate(&store, id, None, None).unwrap_err().to_text();
        assert!(refused.contains("it is not valid any more"), "{refused}");
        let none = "0000000000000000";
        let refused = rotate(&store, none, None, None).unwrap_err().to_text();
        assert!(refused.contains("there is no such token"), "{refused}");
    }

    #[test]
    fn only_tokens_that_exist_are_revoked() {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = dir.path().join("data");
        drop(Store::open(&data_dir, Durability::Disk).unwrap());
        let store = Store::attach(&data_dir).unwrap();
        store.create_token(record("5f0c7a1be2d40586", "ci")).unwrap();
        let ids = |ids: &[&str]| ids.iter().map(|id| id.parse().unwrap()).collect::<Vec<_>>();
        let error = revoke(&store, &ids(&["5f0c7a1be2d40586", "0000000000000000"])).unwrap_err();
        assert_eq!(
            error.to_text(),
            "ID '0000000000000000': there is no such token\nhint: `sandboxctl token ls` lists them"
        );
        // None of them was.
        assert_eq!(store.tokens().unwrap()[0].revoked_at, None);
        for _ in 0..2 {
            revoke(&store, &ids(&["5f0c7a1be2d40586"])).unwrap();
        }
        assert!(store.tokens().unwrap()[0].revoked_at.is_some());
    }
}
