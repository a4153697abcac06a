//! Command lines as Python's argparse reads them: unambiguous beginnings of long options, values behind `=` or as the next word, lists of
//! values, status 2 for a mistake.

use crate::error::Error;
use crate::output::{print, print_error};

/// The release of the replaced tools whose behaviour is provided: what `--version` prints first.
pub(super) const RELEASE: &str = "14.1.0";

/// What a tool ends with: its status, or why it could not do its work.
pub(super) type ToolResult = Result<u8, Wrong>;

/// How many values an option takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Takes {
    Nothing,
    One,
    /// Any number; given again, the last list counts.
    List,
}

/// An option: its letter, its long name, what it takes, and what the help says of it.
pub(super) type Switch = (Option<char>, &'static str, Takes, &'static str);

/// Why a tool ends without having done its work.
#[derive(Debug)]
pub(super) enum Wrong {
    /// The command line is wrong: status 2.
    Usage { usage: String, what: String },
    /// The work could not be done: this status.
    Failed(u8, Error),
}

impl From<Error> for Wrong {
    fn from(error: Error) -> Self {
        Self::Failed(1, error)
    }
}

/// What is on a command line.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Given {
    options: Vec<(&'static str, Vec<String>)>,
    /// Words that belong to no option.
    pub(super) words: Vec<String>,
}

impl Given {
    /// Whether an option is given.
    pub(super) fn has(&self, name: &str) -> bool {
        self.list(name).is_some()
    }

    /// The value of an option.
    pub(super) fn value(&self, name: &str) -> Option<&str> {
        self.list(name)?.first().map(String::as_str)
    }

    /// The values of an option, those that were given last.
    pub(super) fn list(&self, name: &str) -> Option<&[String]> {
        self.options.iter().rev().find(|(given, _)| *given == name).map(|(_, values)| values.as_slice())
    }

    /// What these options were given, all of it, in the order of the command line.
    pub(super) fn in_order(&self, names: &[&str]) -> impl Iterator<Item = (&'static str, &str)> {
        let given = self.options.iter().filter(|(given, _)| names.contains(given));
        given.flat_map(|(given, values)| values.iter().map(|value| (*given, value.as_str())))
    }

    /// Which of two options that are each other's opposite was given last; none where neither was.
    pub(super) fn last_of(&self, names: [&str; 2]) -> Option<&'static str> {
        self.options.iter().rev().map(|(given, _)| *given).find(|given| names.contains(given))
    }
}

/// Ends a tool: says what is wrong, and as what status.
pub(super) fn status(tool: &str, outcome: ToolResult) -> u8 {
    match outcome {
        Ok(status) => status,
        Err(Wrong::Usage { usage, what }) => {
            print_error(&Error::permanent(format!("{tool}: {what}")).remedy(usage));
            2
        }
        Err(Wrong::Failed(status, error)) => {
            print_error(&error.context(tool));
            status
        }
    }
}

/// Reads a command line. `None` where it only asked for help, which is printed then.
///
/// # Errors
/// If an option is unknown or ambiguous, or has too few or too many values; if the help cannot be printed.
pub(super) fn read(tool: &str, words: &str, switches: &[Switch], arguments: &[String]) -> Result<Option<Given>, Wrong> {
    let usage = format!("usage: {tool} [OPTIONS]{words}; {tool} --help lists them");
    let reader = Reader { switches, left: arguments.iter().map(String::as_str).collect(), at: 0 };
    match reader.read() {
        Err(what) => Err(Wrong::Usage { usage, what }),
        Ok(None) => {
            print(&help(tool, words, switches))?;
            Ok(None)
        }
        Ok(given) => Ok(given),
    }
}

fn help(tool: &str, words: &str, switches: &[Switch]) -> String {
    let mut text =
        format!("usage: {tool} [OPTIONS]{words}\n\nThe {tool} of heat-node-agent {}.\n\noptions:\n", env!("CARGO_PKG_VERSION"));
    let help = (Some('h'), "help", Takes::Nothing, "show this help and exit");
    for (letter, name, takes, what) in std::iter::once(&help).chain(switches) {
        let letter = letter.map_or(String::new(), |letter| format!("-{letter}, "));
        let value = match takes {
            Takes::Nothing => "",
            Takes::One => " VALUE",
            Takes::List => " [VALUE ...]",
        };
        text += &format!("  {:<36} {what}\n", format!("{letter}--{name}{value}"));
    }
    text
}

struct Reader<'a> {
    switches: &'a [Switch],
    left: Vec<&'a str>,
    at: usize,
}

impl<'a> Reader<'a> {
    fn read(mut self) -> Result<Option<Given>, String> {
        let mut given = Given::default();
        while let Some(word) = self.next() {
            if word == "--" {
                given.words.extend(self.left.get(self.at..).unwrap_or_default().iter().map(|&word| word.to_owned()));
                break;
            }
            if !is_option(word) {
                given.words.push(word.to_owned());
            } else if let Some(long) = word.strip_prefix("--") {
                let (name, value) = long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
                let Some(switch) = self.long(name)? else { return Ok(None) };
                self.take(switch, value, &mut given)?;
            } else if !self.letters(word, &mut given)? {
                return Ok(None);
            }
        }
        Ok(Some(given))
    }

    fn next(&mut self) -> Option<&'a str> {
        let word = self.left.get(self.at).copied();
        self.at += 1;
        word
    }

    /// `None` is the help.
    fn long(&self, name: &str) -> Result<Option<Switch>, String> {
        let names = || self.switches.iter().map(|switch| switch.1).chain(std::iter::once("help"));
        let mut matching: Vec<_> = names().filter(|known| *known == name).collect();
        if matching.is_empty() {
            matching = names().filter(|known| known.starts_with(name)).collect();
        }
        match matching.as_slice() {
            [] => Err(format!("unrecognized arguments: --{name}")),
            [known] => Ok(self.switches.iter().find(|switch| switch.1 == *known).copied()),
            [..] => Err(format!("ambiguous option: --{name} could match {}", matching.join(", "))),
        }
    }

    /// Letters behind one dash; `false` where one asks for help.
    fn letters(&mut self, word: &'a str, given: &mut Given) -> Result<bool, String> {
        let mut rest = word.get(1..).unwrap_or_default();
        while let Some(letter) = rest.chars().next() {
            rest = rest.get(letter.len_utf8()..).unwrap_or_default();
            if letter == 'h' {
                return Ok(false);
            }
            let Some(switch) = self.switches.iter().find(|switch| switch.0 == Some(letter)).copied() else {
                return Err(format!("unrecognized arguments: {word}"));
            };
            let value = (switch.2 != Takes::Nothing && !rest.is_empty()).then_some(rest);
            if value.is_some() {
                rest = "";
            }
            self.take(switch, value.map(|value| value.strip_prefix('=').unwrap_or(value)), given)?;
        }
        Ok(true)
    }

    fn take(&mut self, (_, name, takes, _): Switch, value: Option<&str>, given: &mut Given) -> Result<(), String> {
        let mut values: Vec<String> = value.map(str::to_owned).into_iter().collect();
        match (takes, value) {
            (Takes::Nothing, Some(_)) => return Err(format!("argument --{name}: it takes no value")),
            (Takes::Nothing, None) | (_, Some(_)) => {}
            (Takes::One, None) => match self.next().filter(|word| !is_option(word)) {
                Some(value) => values.push(value.to_owned()),
                None => return Err(format!("argument --{name}: expected one argument")),
            },
            (Takes::List, None) => {
                while let Some(word) = self.left.get(self.at).filter(|word| !is_option(word)) {
                    values.push((*word).to_owned());
                    self.at += 1;
                }
            }
        }
        given.options.push((name, values));
        Ok(())
    }
}

/// Whether a word is an option: no lone dash, no negative number, nothing with a blank in it.
fn is_option(word: &str) -> bool {
    word.len() > 1 && word.starts_with('-') && !word.contains(' ') && (word == "--" || word.parse::<f64>().is_err())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SWITCHES: &[Switch] = &[
        (Some('m'), "metadata", Takes::List, ""),
        (Some('v'), "validate", Takes::Nothing, ""),
        (Some('o'), "output", Takes::One, ""),
        (None, "key", Takes::One, ""),
        (None, "key-default", Takes::One, ""),
    ];

    fn read(line: &str) -> Result<Option<Given>, String> {
        let arguments: Vec<_> =
            line.split(' ').filter(|word| !word.is_empty()).map(|word| word.trim_matches('\'').to_owned()).collect();
        super::read("tool", "", SWITCHES, &arguments).map_err(|wrong| match wrong {
            Wrong::Usage { what, .. } => what,
            Wrong::Failed(_, error) => error.to_string(),
        })
    }

    #[test]
    fn command_lines_are_read_as_argparse_does() {
        for (line, option, values) in [
            ("-m a b -v", "metadata", &["a", "b"][..]),
            ("-m a -m b", "metadata", &["b"]),
            ("--meta a -v", "metadata", &["a"]),
            ("-m -v", "metadata", &[]),
            ("--output=x", "output", &["x"]),
            ("--output=-x", "output", &["-x"]),
            ("-vox", "output", &["x"]),
            ("-o=x", "output", &["x"]),
            ("--key k --key-default -5", "key-default", &["-5"]),
            ("--key-default ''", "key-default", &[""]),
            ("--key-d -", "key-default", &["-"]),
        ] {
            let given = read(line).unwrap().unwrap();
            assert_eq!(given.list(option).unwrap(), values, "{line}");
        }
        assert_eq!(read("a -v b -- -c").unwrap().unwrap().words, ["a", "b", "-c"]);
        for (line, what) in [
            ("--key", "argument --key: expected one argument"),
            ("--key -v", "argument --key: expected one argument"),
            ("--validate=1", "argument --validate: it takes no value"),
            ("--nothing", "unrecognized arguments: --nothing"),
            ("-x", "unrecognized arguments: -x"),
            ("--ke x", "ambiguous option: --ke could match key, key-default"),
        ] {
            assert_eq!(read(line).unwrap_err(), what, "{line}");
        }
        assert!(read("-vh").unwrap().is_none() && read("--help").unwrap().is_none());
    }
}
