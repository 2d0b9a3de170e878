//! `--learn`: asks a person, if there is one, for what no rule allows, and writes what was asked for as a rules
//! file.
//!
//! What is asked for comes from guests. Only what a person said yes to in the dialogue, which says that
//! it will be in the file, is a rule there; everything else is a comment
//! ([`merge`](crate::config::rules::merge)).

use std::io::{self, IsTerminal, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::termios::{QueueSelector, tcflush};
use sandbox_api::hosts::AllowRule;
use sandbox_api::{InjectRule, ToolEffect, ToolRule};
use sandbox_controller::permission::{Answer, Ask, Permission};
use serde_json::json;

use super::Context;
use crate::cli::allow::RulesArgs;
use crate::config::rules::{Learnt, List, Rules, Verdict, merge};
use crate::config::{Key, Settings};
use crate::error::Error;
use crate::lock;
use crate::output::Output;
use crate::render::{count, escaped_line};
use crate::target::{self, Place};

/// How many rules are recorded.
const MAX_RECORDED: usize = 1000;
/// How many characters of a tool's name, and of an argument's name and value, are recorded and shown.
const MAX_TEXT: usize = 80;
/// How many arguments of a call are shown.
const MAX_ARGUMENTS: usize = 10;
/// How often a question looks whether it is withdrawn.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// What allows something.
const YES: &[&str] = &["y", "yes"];
/// The same for what deserves a second thought.
const WHOLE_YES: &[&str] = &["yes"];

/// Whether a person can be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialogue {
    /// Where stdin and stderr are a terminal.
    Terminal,
    /// Never: what runs has the terminal, or a protocol is on stdin.
    Never,
}

/// What is learnt by one command.
#[derive(Debug)]
pub struct Learn(Option<Learning>);

#[derive(Debug)]
struct Learning {
    file: PathBuf,
    place: Place,
    /// What is in the file.
    text: String,
    heading: String,
    record: Record,
    /// The hosts to which credentials are added.
    credentials: Arc<[String]>,
    terminal: Option<Arc<Terminal>>,
}

/// What was asked for.
type Record = Arc<Mutex<Vec<Learnt>>>;

impl Learn {
    /// As the flags say. `title` is what runs, for people: without secrets.
    ///
    /// # Errors
    ///
    /// If the file is no rules file, cannot be written, or is where a run could change it.
    pub fn begin(
        context: &Context<'_>,
        args: &RulesArgs,
        settings: &Settings,
        io_dir: Option<&Path>,
        (title, dialogue): (&str, Dialogue),
    ) -> Result<Self, Error> {
        let rules = args.rules.as_deref();
        if let Some(file) = rules {
            target::refuse_in_io_dir("--rules", file, io_dir)?;
            let is_empty =
                |(rules, text): (Rules, String)| rules == Rules::default() && text.contains('#');
            if Rules::read(file)?.is_some_and(is_empty) {
                let file = file.display();
                context.output.notice(&format!("{file}: no rule in force: all are comments"));
            }
        }
        let Some(file) = &args.learn else { return Ok(Self(None)) };
        target::refuse_own("--learn", file, &context.controller(settings))?;
        context.output.ci().map_or(Ok(()), |ci| ci.check_file("--learn", file))?;
        let place = Place::outside("--learn", file, io_dir)?;
        let text = Rules::read(file)?.map(|(_, text)| text).unwrap_or_default();
        let asks = dialogue == Dialogue::Terminal
            && io::stdin().is_terminal()
            && io::stderr().is_terminal();
        let has_colour = context.output.stderr_has_colour || context.output.stdout_has_colour;
        let inject = settings.names(Key::Inject);
        let inject = inject.iter().filter_map(|rule| rule.parse::<InjectRule>().ok());
        let credentials: Arc<[String]> = inject.map(|rule| rule.target.host.to_string()).collect();
        let terminal = asks.then(|| {
            let file = file.display().to_string();
            Arc::new(Terminal {
                file,
                has_colour,
                credentials: credentials.clone(),
                turn: tokio::sync::Mutex::default(),
            })
        });
        let (file, heading) = (file.clone(), format!("{}, {title}", sandbox_api::time::now()));
        let record = Record::default();
        Ok(Self(Some(Learning { file, place, text, heading, record, credentials, terminal })))
    }

    /// Who is asked by the run: the terminal, if there is one.
    pub fn permission(&self) -> Option<Arc<dyn Permission>> {
        let Learning { record, credentials, terminal, .. } = self.0.as_ref()?;
        let (record, credentials) = (record.clone(), credentials.clone());
        let asker = terminal.clone().map(|terminal| terminal as Arc<dyn Permission>);
        Some(Arc::new(Recorder { record, credentials, asker, yes: Verdict::Listed }))
    }

    /// Writes the file, however the command ended.
    ///
    /// # Errors
    ///
    /// The error that ended the command, or else that of the file.
    pub fn finish<T>(self, output: &Output, ended: Result<T, Error>) -> Result<T, Error> {
        match (self.0.map_or(Ok(()), |learning| learning.write(output)), ended) {
            (Err(error), Ok(_)) => Err(error),
            (written, ended) => {
                written.unwrap_or_else(|error| output.error(&error));
                ended
            }
        }
    }
}

impl Learning {
    fn write(self, output: &Output) -> Result<(), Error> {
        let learnt = lock(&self.record);
        let text = merge(&self.text, &self.heading, &learnt)?;
        if text != self.text {
            let written = self.place.target().and_then(|target| target.write(text.as_bytes()));
            written.map_err(|error| Error::unusable("--learn", &self.file, &error))?;
        }
        let in_force = learnt.iter().filter(|it| it.verdict == Verdict::Listed).count();
        let (rules, review) = (count(in_force as u64, "rule", "rules"), learnt.len() - in_force);
        output.notice(&format!("{}: {rules} in force, {review} to review", self.file.display()));
        Ok(())
    }
}

/// Records what is asked for, and the answers.
#[derive(Debug)]
struct Recorder {
    record: Record,
    /// The hosts to which credentials are added: only a yes to one is recorded.
    credentials: Arc<[String]>,
    asker: Option<Arc<dyn Permission>>,
    /// What a yes means.
    yes: Verdict,
}

impl Recorder {
    fn record(&self, ask: &Ask<'_>, times: usize, verdict: Verdict) {
        let (list, rule, is_rule) = match ask {
            // Not the rule that a refusal suggests, which may be for two ports.
            Ask::Host { target, .. } => {
                let rule = target.to_string();
                (List::Hosts, rule.clone(), rule.parse::<AllowRule>().is_ok())
            }
            // A name with a star would be a pattern.
            Ask::Tool { tool, .. } => {
                let is_rule = tool.len() <= MAX_TEXT && ToolRule::suggested(tool).is_some();
                (List::Tools, tool.chars().take(MAX_TEXT).collect(), is_rule)
            }
        };
        let is_destructive = matches!(ask, Ask::Tool { effect: ToolEffect::Destructive, .. });
        let verdict = if is_rule { verdict } else { verdict.min(Verdict::AllowedThatTime) };
        let has_credentials = matches!(ask, Ask::Host { target, .. }
            if self.credentials.contains(&target.host.to_string()));
        // A reviewer of a comment does not see what its host is sent.
        let is_hidden = has_credentials && verdict != Verdict::Listed;
        let mut record = lock(&self.record);
        let is_full = record.len() >= MAX_RECORDED;
        match record.iter_mut().find(|it| it.list == list && it.rule == rule) {
            Some(known) => {
                known.times += times;
                known.verdict = known.verdict.max(verdict);
            }
            None if !is_full && !is_hidden => {
                let times = times.max(1);
                record.push(Learnt { list, rule, times, verdict, is_destructive });
            }
            None => {}
        }
    }
}

#[async_trait]
impl Permission for Recorder {
    async fn ask(&self, ask: &Ask<'_>) -> Answer {
        let Some(asker) = &self.asker else {
            self.record(ask, 1, Verdict::Unasked);
            return Answer::Refused;
        };
        // Before the answer, which may never come.
        self.record(ask, 1, Verdict::Unanswered);
        let answer = asker.ask(ask).await;
        self.record(ask, 0, if answer == Answer::Allowed { self.yes } else { Verdict::Refused });
        answer
    }

    fn with_asker(&self, asker: Arc<dyn Permission>) -> Arc<dyn Permission> {
        let (record, credentials) = (self.record.clone(), self.credentials.clone());
        // It does not say that its yes will be in the file.
        let yes = Verdict::AllowedThatTime;
        Arc::new(Self { record, credentials, asker: Some(asker), yes })
    }
}

/// Asks at the terminal, one question at a time.
#[derive(Debug)]
struct Terminal {
    /// The file in which a yes is.
    file: String,
    has_colour: bool,
    /// The hosts to which credentials are added.
    credentials: Arc<[String]>,
    turn: tokio::sync::Mutex<()>,
}

impl Terminal {
    /// The question, on one line, and what allows it.
    fn question(&self, ask: &Ask<'_>) -> (String, &'static [&'static str]) {
        let file = &self.file;
        let (question, yes) = match ask {
            Ask::Host { target, .. } if self.credentials.contains(&target.host.to_string()) => {
                let end = format!("type yes (it is also listed in {file}): ");
                (format!("allow {target}, to which credentials are added? {end}"), WHOLE_YES)
            }
            Ask::Host { .. } => {
                (format!("allow {ask}? yes/no (yes also lists it in {file}): "), YES)
            }
            Ask::Tool { arguments, effect, .. } => {
                // Each is shown, so that a long one does not hide the others.
                let all = arguments.iter().map(|(name, value)| format!("{}:{value}", json!(name)));
                let shown: Vec<_> = all.clone().take(MAX_ARGUMENTS).map(|it| cut(&it)).collect();
                let is_whole = all.eq(shown.iter().cloned());
                let (more, yes) = if is_whole { ("", YES) } else { (",…", WHOLE_YES) };
                let effect = if *effect == ToolEffect::Destructive { " (destructive)" } else { "" };
                let end = format!("(yes also lists it in {file}, for any arguments): ");
                let say = if is_whole { "yes/no" } else { "type yes" };
                let shown = shown.join(",");
                (format!("allow {ask}{effect} {{{shown}{more}}}? {say} {end}"), yes)
            }
        };
        (escaped_line(&question).into_owned(), yes)
    }
}

#[async_trait]
impl Permission for Terminal {
    async fn ask(&self, ask: &Ask<'_>) -> Answer {
        let _turn = self.turn.lock().await;
        let (question, yes) = self.question(ask);
        let reset = if self.has_colour { "\u{1b}[0m" } else { "" };
        let question = format!("{reset}\n{question}");
        // Dropped, it withdraws the question.
        let waiting = Arc::new(());
        let is_waited_for = Arc::downgrade(&waiting);
        let asked = tokio::task::spawn_blocking(move || {
            let answer = read_answer(&question, || is_waited_for.strong_count() > 0);
            allows(&answer.unwrap_or_default(), yes)
        });
        asked.await.unwrap_or(Answer::Refused)
    }
}

/// The beginning of a long text.
fn cut(text: &str) -> String {
    let shown: String = text.chars().take(MAX_TEXT).collect();
    if shown.len() < text.len() { shown + "…" } else { shown }
}

fn allows(answer: &str, yes: &[&str]) -> Answer {
    match yes.iter().any(|yes| answer.trim().eq_ignore_ascii_case(yes)) {
        true => Answer::Allowed,
        false => Answer::Refused,
    }
}

/// Asks, and reads a line. Whatever else is printed waits meanwhile: what a guest prints after the question
/// could look like another one.
fn read_answer(question: &str, is_waited_for: impl Fn() -> bool) -> io::Result<String> {
    let _stdout = io::stdout().lock();
    let mut stderr = io::stderr().lock();
    let stdin = rustix::stdio::stdin();
    // What was typed before is no answer.
    tcflush(stdin, QueueSelector::IFlush)?;
    stderr.write_all(question.as_bytes())?;
    let mut answer = [0; 256];
    while is_waited_for() {
        // A signal, such as that of a child's end, is no answer.
        let looked =
            retry_on_intr(|| poll(&mut [PollFd::new(&stdin, PollFlags::IN)], Some(&LOOK)))?;
        if looked > 0 {
            let length = retry_on_intr(|| rustix::io::read(stdin, &mut answer))?;
            return Ok(String::from_utf8_lossy(&answer[..length]).into_owned());
        }
    }
    stderr.write_all(b"no answer\n")?;
    Err(io::ErrorKind::TimedOut.into())
}

#[cfg(test)]
mod tests {
    use sandbox_api::hosts::Target;
    use serde_json::{Map, Value};

    use super::*;

    fn target(text: &str) -> Target {
        let (host, port) = text.rsplit_once(':').unwrap();
        Target { host: host.parse().unwrap(), port: port.parse().unwrap() }
    }

    /// Allows everything.
    #[derive(Debug)]
    struct Yes;

    #[async_trait]
    impl Permission for Yes {
        async fn ask(&self, _: &Ask<'_>) -> Answer {
            Answer::Allowed
        }
    }

    /// Refuses everything.
    #[derive(Debug)]
    struct No;

    #[async_trait]
    impl Permission for No {
        async fn ask(&self, _: &Ask<'_>) -> Answer {
            Answer::Refused
        }
    }

    async fn ask_all(recorder: &dyn Permission) {
        let arguments = Map::new();
        for host in ["b.example:443", "a.example:80", "b.example:443", "[2606:4700::1]:8443"] {
            let target = target(host);
            recorder.ask(&Ask::Host { target: &target, reason: "" }).await;
        }
        for tool in ["github.delete", "github.*", "a /repo=b", "a\nb"] {
            let effect = ToolEffect::Destructive;
            recorder.ask(&Ask::Tool { tool, arguments: &arguments, effect }).await;
        }
    }

    fn learnt(record: &Record) -> Vec<(String, usize, Verdict)> {
        lock(record).iter().map(|it| (it.rule.clone(), it.times, it.verdict)).collect()
    }

    #[tokio::test]
    async fn only_what_a_person_lists_in_the_dialogue_is_in_force() {
        let recorder = |asker, yes| Recorder {
            record: Record::default(),
            credentials: Arc::default(),
            asker,
            yes,
        };
        let unasked = recorder(None, Verdict::AllowedThatTime);
        ask_all(&unasked).await;
        let all = learnt(&unasked.record);
        assert!(all.iter().all(|(_, _, verdict)| *verdict == Verdict::Unasked), "{all:?}");
        assert_eq!((&*all[0].0, all[0].1, all.len()), ("b.example:443", 2, 7));
        // A client whose question does not name the file.
        let server = recorder(None, Verdict::Listed);
        let client = server.with_asker(Arc::new(Yes));
        ask_all(&*client).await;
        let all = learnt(&server.record);
        assert!(all.iter().all(|(_, _, verdict)| *verdict == Verdict::AllowedThatTime), "{all:?}");
        // A person who said yes to each: a name that would be a pattern or a condition is for review.
        let person = recorder(Some(Arc::new(Yes)), Verdict::Listed);
        ask_all(&person).await;
        let mut listed = learnt(&person.record);
        listed.retain(|it| it.2 == Verdict::Listed);
        let listed: Vec<_> = listed.iter().map(|it| &*it.0).collect();
        let expected = ["b.example:443", "a.example:80", "[2606:4700::1]:8443", "github.delete"];
        assert_eq!(listed, expected);
        let text = merge("", "now", &lock(&person.record)).unwrap();
        let rules = Rules::parse(Path::new("r"), &text).unwrap();
        assert_eq!((rules.allow.len(), rules.tools.len()), (3, 1));
    }

    #[tokio::test]
    async fn a_host_with_credentials_is_in_the_file_only_after_a_persons_yes() {
        let asked = async |asker: Option<Arc<dyn Permission>>, yes| {
            let credentials: Arc<[String]> = Arc::new(["b.example".to_owned()]);
            let recorder = Recorder { record: Record::default(), credentials, asker, yes };
            for host in ["b.example:443", "b.example:8443", "a.example:443", "b.example:443"] {
                let target = target(host);
                recorder.ask(&Ask::Host { target: &target, reason: "" }).await;
            }
            learnt(&recorder.record)
        };
        let one = |verdict| vec![("a.example:443".to_owned(), 1, verdict)];
        let unasked = asked(None, Verdict::AllowedThatTime).await;
        assert_eq!(unasked, one(Verdict::Unasked));
        // The question of a client does not name the file.
        let client = asked(Some(Arc::new(Yes)), Verdict::AllowedThatTime).await;
        assert_eq!(client, one(Verdict::AllowedThatTime));
        let refused = asked(Some(Arc::new(No)), Verdict::Listed).await;
        assert_eq!(refused, one(Verdict::Refused));
        let listed = |host: &str, times| (host.to_owned(), times, Verdict::Listed);
        assert_eq!(
            asked(Some(Arc::new(Yes)), Verdict::Listed).await,
            [listed("b.example:443", 2), listed("b.example:8443", 1), listed("a.example:443", 1)]
        );
    }

    #[test]
    fn question_is_one_line_without_control_characters_and_says_what_a_yes_does() {
        let terminal = Terminal {
            file: "rules.toml".to_owned(),
            has_colour: false,
            credentials: Arc::new(["api.example".to_owned()]),
            turn: tokio::sync::Mutex::default(),
        };
        let host = |text: &str| terminal.question(&Ask::Host { target: &target(text), reason: "" });
        assert_eq!(
            host("evil.example:443"),
            ("allow evil.example:443? yes/no (yes also lists it in rules.toml): ".to_owned(), YES)
        );
        assert_eq!(
            host("api.example:80"),
            (
                "allow api.example:80, to which credentials are added? type yes (it is also listed \
                 in rules.toml): "
                    .to_owned(),
                WHOLE_YES
            )
        );
        let tool = |arguments: &Value| {
            let tool = "github.delete\nallow good.example:443? yes/no";
            let (arguments, effect) = (arguments.as_object().unwrap(), ToolEffect::Destructive);
            terminal.question(&Ask::Tool { tool, arguments, effect })
        };
        let (question, yes) = tool(&json!({ "repo": "a\u{1b}[2K\r\n\u{202e}b", "sure": true }));
        assert!(!question.contains(|it: char| it.is_control() || it == '\u{202e}'), "{question}");
        assert!(question.starts_with("allow github.delete\\nallow good"), "{question}");
        let end = ",\"sure\":true}? yes/no (yes also lists it in rules.toml, for any arguments): ";
        assert!(
            question.contains(" (destructive) {\"repo\":\"a") && question.ends_with(end),
            "{question}"
        );
        assert_eq!(yes, YES);
        // Nothing hides behind a long argument, or behind many: it takes more than a y.
        let (question, yes) = tool(&json!({ "a": "x".repeat(1000), "path": "/home" }));
        assert!(question.contains("x…,\"path\":\"/home\",…}? type yes "), "{question}");
        assert_eq!(yes, WHOLE_YES);
        let many: Map<_, _> = (0..1000).map(|at| (format!("{at:03}"), json!(at))).collect();
        let (question, yes) = tool(&many.into());
        assert!(
            question.contains(",\"009\":9,…}? type yes ") && question.chars().count() < 300,
            "{question}"
        );
        assert_eq!(yes, WHOLE_YES);
    }

    #[test]
    fn only_yes_allows() {
        for (answer, usual, whole) in [
            ("yes", Answer::Allowed, Answer::Allowed),
            ("YES", Answer::Allowed, Answer::Allowed),
            ("y", Answer::Allowed, Answer::Refused),
            ("", Answer::Refused, Answer::Refused),
            ("no", Answer::Refused, Answer::Refused),
            ("yes please", Answer::Refused, Answer::Refused),
            ("\u{1b}[0n", Answer::Refused, Answer::Refused),
        ] {
            assert_eq!(allows(answer, YES), usual, "{answer:?}");
            assert_eq!(allows(answer, WHOLE_YES), whole, "{answer:?}");
        }
    }
}
