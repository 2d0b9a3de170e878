//! `database`: the tables that the nodes of a cluster share; and which database the settings name.

use sandbox_api::LimitValue;
use sandbox_auth::read_private;
use sandbox_env::Environment;
use sandbox_store::{DatabaseConfig, Initialized, Store};

use super::Context;
use crate::cli::cluster::{DatabaseArgs, DatabaseCommand};
use crate::config::{DATABASE_PASSWORD_VARIABLE, Key, Settings};
use crate::error::{Error, causes};

pub fn database(context: &Context<'_>, command: &DatabaseCommand) -> Result<u8, Error> {
    match command {
        DatabaseCommand::Init { lease, database } => {
            let Initialized { id, is_new, lease } =
                Store::initialize(&required(context, database)?, *lease)?;
            let lease = LimitValue::Time(lease);
            context.output.text(&format!("cluster {id}, lease {lease}\n"))?;
            context.output.notice(match is_new {
                true => "`sandboxctl token create` makes the first token",
                false => "the database has been a cluster's before: nothing was changed",
            });
        }
        DatabaseCommand::Migrate(database) => {
            let (from, to) = Store::migrate(&required(context, database)?)?;
            context.output.notice(&match from == to {
                true => format!("the tables have version {to} already"),
                false => format!("the tables had version {from}, and have {to} now"),
            });
        }
        DatabaseCommand::Restored(database) => {
            let interrupted = Store::restored(&required(context, database)?)?;
            context.output.notice(&format!(
                "{interrupted} executions waited or ran when the backup was made: they are not run again"
            ));
            context.output.caution(
                "tokens that were revoked since the backup are valid again: `sandboxctl token ls` lists them",
            );
        }
    }
    Ok(0)
}

/// The store in the database that the nodes of a cluster share.
pub fn open(context: &Context<'_>, args: &DatabaseArgs) -> Result<Store, Error> {
    Ok(Store::connect(&required(context, args)?)?)
}

/// The database that the command line or the configuration names.
pub fn required(context: &Context<'_>, args: &DatabaseArgs) -> Result<DatabaseConfig, Error> {
    let settings = context.settings_with(|flags| args.add_flags(flags))?;
    config(&context.environment, &settings)?.ok_or_else(|| {
        Error::usage("--database", "no database is named").with_hint(
            "--database postgres://USER@HOST/NAME, or [server] database, names that of the cluster",
        )
    })
}

/// The database that the settings name, if any, with its password.
pub fn config(
    environment: &Environment,
    settings: &Settings,
) -> Result<Option<DatabaseConfig>, Error> {
    let Some(url) = settings.text(Key::ServerDatabase) else { return Ok(None) };
    let variable = environment.variable(DATABASE_PASSWORD_VARIABLE);
    let password = match (settings.path_of(Key::ServerDatabasePasswordFile), variable) {
        (Some(file), _) => {
            let what = || settings.named(Key::ServerDatabasePasswordFile);
            let bytes = read_private(&file)
                .map_err(|error| Error::usage(what(), causes(&error)).with_hint_of(error.hint()))?;
            let text = String::from_utf8(bytes)
                .map_err(|_| Error::usage(what(), "the password is not UTF-8 text"))?;
            Some(text.strip_suffix('\n').unwrap_or(&text).to_owned())
        }
        (None, Some(password)) => {
            let text = password.to_str().ok_or_else(|| {
                Error::usage(DATABASE_PASSWORD_VARIABLE, "the password is not UTF-8 text")
            })?;
            Some(text.to_owned()).filter(|text| !text.is_empty())
        }
        (None, None) => None,
    };
    let database = DatabaseConfig::new(url);
    Ok(Some(DatabaseConfig {
        password,
        ca: settings.path_of(Key::ServerDatabaseCa),
        connections: settings.count(Key::ServerDatabaseConnections).unwrap_or(database.connections),
        listen: settings.is_on(Key::ServerDatabaseListen),
        ..database
    }))
}
