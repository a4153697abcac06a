//! The options of os-collect-config: on the command line, in the environment, in files (heat-protocol.md 1.3, 1.4).

use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use super::super::arguments::{Given, Switch, Takes};
use super::super::machine::{Machine, variable};
use crate::collect::{DEPLOYMENT_KEY, deployment_keys};
use crate::digest;
use crate::error::{Context, Error, Result};
use crate::files::{FileKind, READ_LIMIT};
use crate::settings::os_collect_config::OsCollectConfig;

/// Where the settings are looked for, the first one that is there.
const PLACES: [&str; 2] = ["~", "/etc"];
const NAME: &str = "os-collect-config";
const IGNORED: &str = "taken and ignored";

pub(super) const SWITCHES: &[Switch] = &[
    (Some('c'), "command", Takes::One, "run this on a change; without it, print what was collected and exit"),
    (None, "cachedir", Takes::One, "where what was collected is kept (/var/lib/os-collect-config)"),
    (None, "backup-cachedir", Takes::One, "where a copy of that is kept (/var/run/os-collect-config)"),
    (None, "config-file", Takes::One, "a file of settings; a later one counts more"),
    (None, "config-dir", Takes::One, "a directory whose *.conf are files of settings"),
    (None, "deployment-key", Takes::One, "a key of the metadata that lists deployments (deployments)"),
    (None, "force", Takes::Nothing, "run the command once, without any change too"),
    (None, "noforce", Takes::Nothing, "the opposite"),
    (None, "one-time", Takes::Nothing, "collect once and exit"),
    (None, "noone-time", Takes::Nothing, "the opposite"),
    (None, "print", Takes::Nothing, "print what was collected and exit; the command is not run"),
    (None, "noprint", Takes::Nothing, "the opposite"),
    (None, "print-cachedir", Takes::Nothing, "print where what was collected is kept, and exit"),
    (None, "noprint-cachedir", Takes::Nothing, "the opposite"),
    (None, "min-polling-interval", Takes::One, "seconds between polls after a change (1)"),
    (Some('i'), "polling-interval", Takes::One, "seconds between polls, at most (30)"),
    (None, "splay", Takes::One, "wait for a random time of at most so many seconds first (0)"),
    (None, "version", Takes::Nothing, "print the release that this follows and exit"),
    (None, "ec2-metadata-url", Takes::One, "where the metadata service of EC2 is"),
    (None, "ec2-timeout", Takes::One, "seconds for each of its answers (10)"),
    (None, "cfn-metadata-url", Takes::One, "where heat-api-cfn is"),
    (None, "cfn-heat-metadata-hint", Takes::One, "the file that names its host"),
    (None, "cfn-ca_certificate", Takes::One, "the CA of its certificate"),
    (None, "cfn-stack-name", Takes::One, "the stack"),
    (None, "cfn-path", Takes::One, "RESOURCE.Metadata; may be given several times"),
    (None, "cfn-access-key-id", Takes::One, "the key of the server"),
    (None, "cfn-secret-access-key", Takes::One, "its secret; everybody on this machine sees it here"),
    (None, "cfn-deployment-key", Takes::One, "as deployment-key, for this source"),
    (None, "cfn-timeout", Takes::One, "seconds for an answer (10)"),
    (None, "heat-user-id", Takes::One, "the user of the server"),
    (None, "heat-password", Takes::One, "its password; everybody on this machine sees it here"),
    (None, "heat-project-id", Takes::One, "its project"),
    (None, "heat-auth-url", Takes::One, "where Keystone is"),
    (None, "heat-stack-id", Takes::One, "NAME/UUID of the stack"),
    (None, "heat-resource-name", Takes::One, "the server's resource in it"),
    (None, "heat-region-name", Takes::One, "the region of Heat"),
    (None, "heat_local-path", Takes::One, "a file of metadata; may be given several times"),
    (None, "local-path", Takes::One, "a directory of files of metadata; may be given several times"),
    (None, "request-metadata-url", Takes::One, "where the metadata is"),
    (None, "request-timeout", Takes::One, "seconds for an answer (10)"),
    (None, "zaqar-user-id", Takes::One, "the user of the server"),
    (None, "zaqar-password", Takes::One, "its password; everybody on this machine sees it here"),
    (None, "zaqar-project-id", Takes::One, "its project"),
    (None, "zaqar-auth-url", Takes::One, "where Keystone is"),
    (None, "zaqar-queue-id", Takes::One, "the queue"),
    (None, "zaqar-region-name", Takes::One, "the region of Zaqar"),
    (None, "zaqar-ca-file", Takes::One, "a file of certificates that Zaqar's may be signed by"),
    (None, "zaqar-use-websockets", Takes::Nothing, IGNORED),
    (None, "zaqar-nouse-websockets", Takes::Nothing, IGNORED),
    (None, "zaqar-ssl-certificate-validation", Takes::Nothing, IGNORED),
    (None, "zaqar-nossl-certificate-validation", Takes::Nothing, IGNORED),
    (None, "keystone-cache_dir", Takes::One, IGNORED),
    (None, "keystone-cache_ttl", Takes::One, IGNORED),
    (Some('d'), "debug", Takes::Nothing, IGNORED),
    (None, "nodebug", Takes::Nothing, IGNORED),
    (None, "log-config-append", Takes::One, IGNORED),
    (None, "log-config", Takes::One, IGNORED),
    (None, "log_config", Takes::One, IGNORED),
    (None, "log-date-format", Takes::One, IGNORED),
    (None, "log-dir", Takes::One, IGNORED),
    (None, "logdir", Takes::One, IGNORED),
    (None, "log-file", Takes::One, IGNORED),
    (None, "logfile", Takes::One, IGNORED),
    (None, "syslog-log-facility", Takes::One, IGNORED),
    (None, "use-journal", Takes::Nothing, IGNORED),
    (None, "nouse-journal", Takes::Nothing, IGNORED),
    (None, "use-json", Takes::Nothing, IGNORED),
    (None, "nouse-json", Takes::Nothing, IGNORED),
    (None, "use-syslog", Takes::Nothing, IGNORED),
    (None, "nouse-syslog", Takes::Nothing, IGNORED),
];

/// Where something is collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Collector {
    HeatLocal,
    Ec2,
    Cfn,
    Heat,
    Request,
    Local,
    Zaqar,
}

impl Collector {
    /// All of them, in the order in which they are asked unless another one is given.
    const ALL: [Self; 7] = [Self::HeatLocal, Self::Ec2, Self::Cfn, Self::Heat, Self::Request, Self::Local, Self::Zaqar];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::HeatLocal => "heat_local",
            Self::Ec2 => "ec2",
            Self::Cfn => "cfn",
            Self::Heat => "heat",
            Self::Request => "request",
            Self::Local => "local",
            Self::Zaqar => "zaqar",
        }
    }
}

/// The values of options, wherever they are given.
pub(super) struct Values {
    given: Given,
    file: OsCollectConfig,
}

/// What is asked for, checked.
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own")]
pub(super) struct Options {
    pub(super) values: Values,
    /// Of the files of settings.
    pub(super) digest: String,
    /// An empty one is none.
    pub(super) command: Option<String>,
    /// As it is written: paths below it are printed so.
    pub(super) cachedir: String,
    pub(super) backup: String,
    /// In order, each once.
    pub(super) collectors: Vec<Collector>,
    pub(super) one_time: bool,
    pub(super) force: bool,
    pub(super) print: bool,
    pub(super) print_cachedir: bool,
    /// The first pause between polls, and the longest.
    pub(super) pauses: (Duration, Duration),
    pub(super) splay: Duration,
}

impl Options {
    /// Reads the files that the command line names, or those of the machine.
    ///
    /// # Errors
    /// If a file or a directory that is named is not there, a line of one is neither section nor setting, or a value is not of its type.
    pub(super) fn load(machine: &Machine, given: Given) -> Result<Self> {
        let (file, digest) = read_files(machine, &given)?;
        let values = Values { given, file };
        let force = values.is_set("force", ["force", "noforce"])?;
        let one_time = values.is_set("one_time", ["one-time", "noone-time"])? || force;
        // The library of the original calls this one otherwise in files and in the environment.
        let print = values.is_set("print_only", ["print", "noprint"])?;
        let print_cachedir = values.is_set("print_cachedir", ["print-cachedir", "noprint-cachedir"])?;
        let polling = |key: &str, usual: f64| values.seconds("DEFAULT", key, usual);
        Ok(Self {
            digest,
            command: values.text("command"),
            cachedir: values.text("cachedir").unwrap_or_else(|| default("cachedir")),
            backup: values.text("backup_cachedir").unwrap_or_else(|| default("backup_cachedir")),
            collectors: if print_cachedir { Vec::new() } else { values.collectors()? },
            one_time,
            force,
            print,
            print_cachedir,
            pauses: (polling("min_polling_interval", 1.0)?, polling("polling_interval", 30.0)?),
            splay: polling("splay", 0.0)?,
            values,
        })
    }
}

impl Values {
    /// The command line.
    pub(super) fn given(&self) -> &Given {
        &self.given
    }

    /// All values of an option that may have several: those of the files, or of the environment in their place, and behind them those of the
    /// command line, as the library of the original has it. None is empty (heat-protocol.md R5).
    pub(super) fn all(&self, group: &str, key: &str) -> Vec<String> {
        let name = format!("OS_{}__{}", group.to_uppercase(), key.to_uppercase());
        let mut values = match variable(&name) {
            Some(value) => vec![value],
            None => self.file.all(group, key).map(str::to_owned).collect(),
        };
        values.extend(self.given.in_order(&[&switch(group, key)]).map(|(_, value)| value.to_owned()));
        values.retain(|value| !value.is_empty());
        values
    }

    /// The value of an option for all sources. Only there, and in paths, are other options put in the place of `$name`: nobody means that
    /// by a password (heat-protocol.md R23).
    fn text(&self, key: &str) -> Option<String> {
        self.all("DEFAULT", key).pop().map(|value| self.expanded(&value))
    }

    /// The paths that an option names.
    pub(super) fn paths(&self, group: &str, usual: &str) -> Vec<String> {
        let paths: Vec<_> = self.all(group, "path").iter().map(|path| self.expanded(path)).collect();
        if paths.is_empty() { vec![usual.to_owned()] } else { paths }
    }

    /// The keys of lists of deployments for a source (heat-protocol.md R19).
    pub(super) fn deployment_keys(&self, source: &str) -> Vec<String> {
        deployment_keys(source, |section| self.all(section, DEPLOYMENT_KEY))
    }

    /// A number of seconds.
    ///
    /// # Errors
    /// If it is none.
    pub(super) fn seconds(&self, group: &str, key: &str, usual: f64) -> Result<Duration> {
        let Some(value) = self.all(group, key).pop() else { return Ok(Duration::from_secs_f64(usual)) };
        let seconds = f64::from_str(value.trim()).ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        seconds.ok_or_else(|| Error::permanent(format!("[{group}] {key} is no number of seconds")))
    }

    fn is_set(&self, key: &str, switches: [&'static str; 2]) -> Result<bool> {
        if let Some(given) = self.given.last_of(switches) {
            return Ok(given == switches[0]);
        }
        let Some(value) = self.all("DEFAULT", key).pop() else { return Ok(false) };
        match value.to_lowercase().as_str() {
            "true" | "1" | "on" | "yes" => Ok(true),
            "false" | "0" | "off" | "no" => Ok(false),
            _ => Err(Error::permanent(format!("[DEFAULT] {key} is neither true nor false"))),
        }
    }

    /// Those of the command line, else of the environment or the files, in any spelling of a list (heat-protocol.md R29).
    fn collectors(&self) -> Result<Vec<Collector>> {
        let words = match (self.given.words.is_empty(), variable("OS_DEFAULT__COLLECTORS")) {
            (false, _) => self.given.words.clone(),
            (true, Some(words)) => OsCollectConfig::parse(format!("[DEFAULT]\ncollectors = {words}\n").as_bytes()).collectors(),
            (true, None) => self.file.collectors(),
        };
        if words.is_empty() {
            return Ok(Collector::ALL.to_vec());
        }
        let mut collectors = Vec::new();
        for word in words {
            let known = Collector::ALL.into_iter().find(|collector| collector.as_str() == word);
            let all = || Collector::ALL.map(Collector::as_str).join(" ");
            let collector =
                known.ok_or_else(|| Error::permanent(format!("there is no collector {word:?}; there are {}", all())))?;
            if !collectors.contains(&collector) {
                collectors.push(collector);
            }
        }
        Ok(collectors)
    }

    /// With the values of other options in the place of their names. What names none stays as it is, where the original ends.
    fn expanded(&self, value: &str) -> String {
        let (mut out, mut rest) = (String::new(), value);
        while let Some((before, behind)) = rest.split_once('$') {
            // A backslash keeps it, as another dollar does.
            if let Some(before) = before.strip_suffix('\\') {
                out += before;
                out.push('$');
                rest = behind;
                continue;
            }
            out += before;
            if let Some(behind) = behind.strip_prefix('$') {
                out.push('$');
                rest = behind;
                continue;
            }
            let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let (name, left) = match behind.strip_prefix('{').and_then(|inner| inner.split_once('}')) {
                Some(braced) => braced,
                None => behind.split_at(behind.find(|c| !is_name(c)).unwrap_or(behind.len())),
            };
            let known = ["cachedir", "backup_cachedir"].contains(&name);
            let found = known.then(|| self.all("DEFAULT", name).pop().unwrap_or_else(|| default(name)));
            if let Some(found) = found {
                out += &found;
                rest = left;
            } else {
                out.push('$');
                rest = behind;
            }
        }
        out + rest
    }
}

fn default(key: &str) -> String {
    match key {
        "cachedir" => "/var/lib/os-collect-config",
        _ => "/var/run/os-collect-config",
    }
    .to_owned()
}

/// How an option is called on the command line.
fn switch(group: &str, key: &str) -> String {
    match (group, key) {
        ("DEFAULT", key) => key.replace('_', "-"),
        ("cfn", "ca_certificate") => "cfn-ca_certificate".to_owned(),
        (group, key) => format!("{group}-{}", key.replace('_', "-")),
    }
}

/// What the files say together, with the digest of all of them.
fn read_files(machine: &Machine, given: &Given) -> Result<(OsCollectConfig, String)> {
    let (mut whole, mut all) = (OsCollectConfig::default(), String::new());
    // The usual way to have none.
    for (path, is_named) in files(machine, given)?.into_iter().filter(|(path, _)| path != "/dev/null") {
        let Some(bytes) = machine.root.read(&machine.path(&path), READ_LIMIT)? else {
            if is_named {
                return Err(Error::permanent("there is no such file").context(format!("reading {path}")));
            }
            continue;
        };
        let read = OsCollectConfig::parse(&bytes);
        if let Some(line) = read.suspicious_lines.first() {
            return Err(
                Error::permanent(format!("line {line} is neither a section nor key = value")).context(format!("reading {path}"))
            );
        }
        whole.extend(read);
        all += &format!("{path}\0{}\0", digest::hex(&bytes));
    }
    Ok((whole, digest::hex(all.as_bytes())))
}

/// The files of settings, those that count least first, and whether somebody named them.
fn files(machine: &Machine, given: &Given) -> Result<Vec<(String, bool)>> {
    let places = PLACES.map(|place| match place {
        "~" => variable("HOME").unwrap_or_default(),
        place => place.to_owned(),
    });
    let usual = |end: &str, kind: FileKind| {
        let paths = places.iter().filter(|place| !place.is_empty()).map(|place| format!("{place}/{NAME}.{end}"));
        paths.into_iter().find(|path| machine.kind(path) == Some(kind))
    };
    let mut files = Vec::new();
    if !given.has("config-file") {
        files.extend(usual("conf", FileKind::File).map(|path| (path, false)));
    }
    if !given.has("config-dir")
        && let Some(directory) = usual("conf.d", FileKind::Directory)
    {
        files.extend(files_in(machine, &directory)?);
    }
    for (option, path) in given.in_order(&["config-file", "config-dir"]) {
        if option == "config-file" {
            files.push((path.to_owned(), true));
        } else if machine.kind(path) == Some(FileKind::Directory) {
            files.extend(files_in(machine, path)?);
        } else {
            return Err(Error::permanent(format!("there is no directory {path}")));
        }
    }
    Ok(files)
}

fn files_in(machine: &Machine, directory: &str) -> Result<Vec<(String, bool)>> {
    let names = machine.root.list(&machine.path(directory)).context(|| format!("looking for settings in {directory}"))?;
    let names = names
        .iter()
        .filter_map(|name| name.to_str())
        .filter(|name| Path::new(name).extension().is_some_and(|end| end == "conf") && !name.starts_with('.'));
    Ok(names.map(|name| (Path::new(directory).join(name).display().to_string(), false)).collect())
}

#[cfg(test)]
mod tests {
    use super::super::read;
    use super::*;

    fn load(text: &str, line: &[&str]) -> Result<Options> {
        let dir = tempfile::tempdir().unwrap();
        let tree = crate::files::Tree::open(dir.path()).unwrap();
        tree.write(Path::new("a.conf"), text.as_bytes(), crate::files::Attributes::mode(0o600)).unwrap();
        let file = dir.path().join("a.conf").display().to_string();
        Options::load(&Machine::new().unwrap(), read(&[&["--config-file", file.as_str()][..], line].concat()))
    }

    #[test]
    fn only_paths_and_the_command_take_the_values_of_others() {
        let text = "[DEFAULT]\ncachedir = /c\ncommand = x $cachedir ${backup_cachedir}/y $$ \\$HOME $(date) $HOME ${\n[local]\npath = $cachedir/l\n[heat]\npassword = $cachedir$$\n";
        let options = load(text, &[]).unwrap();
        assert_eq!(options.command.as_deref(), Some("x /c /var/run/os-collect-config/y $ $HOME $(date) $HOME ${"));
        assert_eq!(
            (options.values.paths("local", "/usual"), options.values.all("heat", "password")),
            (vec!["/c/l".to_owned()], vec!["$cachedir$$".to_owned()])
        );
        assert_eq!(options.values.paths("heat_local", "/usual"), ["/usual"]);
    }

    #[test]
    fn the_command_line_counts_more_than_the_file() {
        let text = "[DEFAULT]\nforce = yes\npolling_interval = 7\ncollectors = heat\ncollectors = cfn\ndeployment_key = k\n[cfn]\npath = a.Metadata\npath = b.Metadata\n";
        let options = load(text, &[]).unwrap();
        assert!(options.force && options.one_time && options.collectors == [Collector::Heat, Collector::Cfn]);
        assert_eq!((options.values.all("cfn", "path").len(), options.values.deployment_keys("cfn")), (2, vec!["k".to_owned()]));
        let line = ["--noforce", "-i3", "--cfn-path", "c.Metadata", "--cfn-deployment-key=own", "local", "heat", "local"];
        let options = load(text, &line).unwrap();
        assert!(!options.force && !options.one_time && options.collectors == [Collector::Local, Collector::Heat]);
        // Paths of both are asked, those of the file first.
        assert_eq!(options.values.all("cfn", "path"), ["a.Metadata", "b.Metadata", "c.Metadata"]);
        assert_eq!(options.values.deployment_keys("cfn"), ["own"]);
        assert_eq!(options.pauses, (Duration::from_secs(1), Duration::from_secs(3)));
    }

    #[test]
    fn what_is_not_of_its_type_is_named() {
        for (text, words) in [
            ("[DEFAULT]\nsplay = soon\n", "splay is no number"),
            ("[DEFAULT]\npolling_interval = -1\n", "polling_interval is no number"),
            ("[DEFAULT]\none_time = perhaps\n", "one_time is neither"),
            ("[DEFAULT]\ncollectors = nobody\n", "no collector \"nobody\""),
            ("[DEFAULT]\nnonsense\n", "line 2 is neither"),
        ] {
            let error = load(text, &[]).err().unwrap().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
