//! The one reader of whole YAML documents from outside: templates and metadata that an operator hands to a command. It counts the
//! memory of what it reads as [`super::json`] does, and keeps the line of every value.
//!
//! Plain words become what Heat's own reader (PyYAML's safe loader, YAML 1.1) makes of them: `yes` is true, `1.10` the number 1.1,
//! `010` eight; a date stays text, as Heat has it. Tags are taken where they say one of these types. `<<` is merged. Where a
//! key is given twice the last one counts, and that is remembered.

use std::borrow::Cow;
use std::collections::BTreeMap;

use saphyr_parser::{Event, ScalarStyle, Tag};
use serde_json::{Map, Number, Value};

use super::yaml_events::YamlEvents;
pub use super::yaml_events::YamlRejection;
use super::{DEPTH, DOCUMENT_BYTES, DOCUMENT_MEMORY, json};

/// A value with the place where it begins.
#[derive(Clone, Debug, PartialEq)]
pub struct YamlNode {
    /// The line, counted from 1; 0 where it is not known: in JSON.
    pub line: usize,
    /// What it is.
    pub content: Content,
}

/// What a node is.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// Null, true or false, a number, a text.
    Scalar(Value),
    /// A list.
    List(Vec<YamlNode>),
    /// A map in the order of the document; each name once.
    Map(Vec<Member>),
}

/// A name with its value.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    /// The name as it is written.
    pub name: String,
    /// The line of the name.
    pub line: usize,
    /// The value.
    pub value: YamlNode,
}

/// A document.
#[derive(Debug, PartialEq)]
pub struct Document {
    /// The whole.
    pub root: YamlNode,
    /// Names that a map has twice, each with the line of the second one, which counts.
    pub twice: Vec<(String, usize)>,
}

impl YamlNode {
    /// A JSON value as a node without lines.
    #[must_use]
    pub fn of_json(value: Value) -> Self {
        let content = match value {
            Value::Array(items) => Content::List(items.into_iter().map(Self::of_json).collect()),
            Value::Object(members) => Content::Map(
                members.into_iter().map(|(name, value)| Member { name, line: 0, value: Self::of_json(value) }).collect(),
            ),
            scalar => Content::Scalar(scalar),
        };
        Self { line: 0, content }
    }

    /// The node as a JSON value.
    #[must_use]
    pub fn to_json(&self) -> Value {
        match &self.content {
            Content::Scalar(value) => value.clone(),
            Content::List(items) => Value::Array(items.iter().map(Self::to_json).collect()),
            Content::Map(members) => Value::Object(Map::from_iter(
                members.iter().map(|member| (member.name.clone(), member.value.to_json())).collect::<Vec<_>>(),
            )),
        }
    }

    /// The members, where it is a map.
    #[must_use]
    pub fn members(&self) -> Option<&[Member]> {
        if let Content::Map(members) = &self.content { Some(members) } else { None }
    }

    /// The items, where it is a list.
    #[must_use]
    pub fn items(&self) -> Option<&[YamlNode]> {
        if let Content::List(items) = &self.content { Some(items) } else { None }
    }

    /// The text, where it is one.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        if let Content::Scalar(Value::String(text)) = &self.content { Some(text) } else { None }
    }

    /// Whether nothing stands there.
    #[must_use]
    pub fn is_null(&self) -> bool {
        self.content == Content::Scalar(Value::Null)
    }

    /// The member of a name.
    #[must_use]
    pub fn member(&self, name: &str) -> Option<&Member> {
        self.members()?.iter().find(|member| member.name == name)
    }

    /// The value of a name; null counts as absent.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&YamlNode> {
        self.member(name).map(|member| &member.value).filter(|value| !value.is_null())
    }

    /// What it is, in words.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match &self.content {
            Content::List(_) => "a list",
            Content::Map(_) => "a map",
            Content::Scalar(Value::Null) => "null",
            Content::Scalar(Value::Bool(_)) => "true or false",
            Content::Scalar(Value::Number(_)) => "a number",
            Content::Scalar(_) => "a text",
        }
    }
}

/// A list or a map whose end has not come yet.
struct Open {
    line: usize,
    anchor: usize,
    content: Partial,
    /// Levels of lists and maps below it as yet.
    height: usize,
}

enum Partial {
    List(Vec<YamlNode>),
    /// With the name whose value comes next.
    Map(Vec<Member>, Option<(String, usize)>),
}

/// Reads the one document of a text.
///
/// # Errors
/// If it would take more memory than a document may, is not YAML, or has several documents, a tag of another type, or an alias
/// of what it is itself in.
pub fn read(text: &str) -> Result<Document, YamlRejection> {
    let (roots, twice) = documents(text, 1)?;
    let nothing = || YamlNode { line: 1, content: Content::Scalar(Value::Null) };
    Ok(Document { root: roots.into_iter().next().unwrap_or_else(nothing), twice })
}

/// Reads every document of a text, within the budget of one. No map may have a name twice.
///
/// # Errors
/// As [`read`], but for the number of documents.
pub fn read_all(text: &str) -> Result<Vec<YamlNode>, YamlRejection> {
    let (roots, twice) = documents(text, usize::MAX)?;
    match twice.into_iter().next() {
        Some((name, line)) => Err(YamlRejection::Yaml(line, format!("{name} is given twice"))),
        None => Ok(roots),
    }
}

/// Names that a map has twice, each with the line of the second one.
type NamesGivenTwice = Vec<(String, usize)>;

/// The documents of a text, of which there may be so many, and the names that a map has twice.
fn documents(text: &str, most: usize) -> Result<(Vec<YamlNode>, NamesGivenTwice), YamlRejection> {
    if text.len() > DOCUMENT_BYTES {
        return Err(YamlRejection::TooLarge);
    }
    let mut reader = Reader { left: DOCUMENT_MEMORY, anchors: BTreeMap::new(), open: Vec::new(), root: None, twice: Vec::new() };
    let (mut begun, mut roots) = (0, Vec::new());
    let mut events = YamlEvents::of(text);
    while let Some(event) = events.next(reader.left) {
        let (event, span) = event?;
        let line = span.start.line();
        if matches!(event, Event::DocumentStart(_)) {
            begun += 1;
            roots.extend(reader.root.take());
            reader.anchors.clear();
        }
        if begun > most {
            return Err(YamlRejection::Yaml(line, "a second document begins".to_owned()));
        }
        reader.take_event(event, line)?;
    }
    roots.extend(reader.root);
    Ok((roots, reader.twice))
}

/// The limit is that of JSON: what `verify` takes an agent takes too.
fn too_deep(line: usize) -> YamlRejection {
    YamlRejection::Yaml(line, format!("it is nested more than {DEPTH} levels deep, aliases included"))
}

struct Reader {
    /// Bytes that may still be taken.
    left: usize,
    /// Each with its levels of lists and maps.
    anchors: BTreeMap<usize, (YamlNode, usize)>,
    open: Vec<Open>,
    root: Option<YamlNode>,
    twice: Vec<(String, usize)>,
}

impl Reader {
    fn take_event(&mut self, event: Event<'_>, line: usize) -> Result<(), YamlRejection> {
        match event {
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentStart(_) | Event::DocumentEnd => Ok(()),
            Event::Scalar(word, style, anchor, tag) => {
                if let Some(Open { content: Partial::Map(_, name @ None), .. }) = self.open.last_mut() {
                    let bytes = json::weight_of_key(&word) + size_of::<Member>();
                    *name = Some((word.into_owned(), line));
                    return self.take(bytes);
                }
                self.take(json::weight_of_item(&word) + size_of::<YamlNode>())?;
                let value = scalar(word, style, tag.as_deref()).map_err(|what| YamlRejection::Yaml(line, what))?;
                self.put(YamlNode { line, content: Content::Scalar(value) }, anchor, 0)
            }
            Event::Alias(anchor) => {
                let Some((node, height)) = self.anchors.get(&anchor).cloned() else {
                    return Err(YamlRejection::Yaml(line, "an alias that refers to the value containing it".to_owned()));
                };
                if self.open.len() + height > DEPTH {
                    return Err(too_deep(line));
                }
                self.take(weight(&node))?;
                self.put(node, 0, height)
            }
            Event::SequenceStart(anchor, tag) => self.begin(Partial::List(Vec::new()), line, anchor, tag.as_deref(), "seq"),
            Event::MappingStart(anchor, tag) => self.begin(Partial::Map(Vec::new(), None), line, anchor, tag.as_deref(), "map"),
            Event::SequenceEnd | Event::MappingEnd => {
                let Some(Open { line, anchor, content, height }) = self.open.pop() else { return Ok(()) };
                let content = match content {
                    Partial::List(items) => Content::List(items),
                    Partial::Map(members, _) => Content::Map(self.merged(members)?),
                };
                self.put(YamlNode { line, content }, anchor, height + 1)
            }
        }
    }

    fn begin(&mut self, content: Partial, line: usize, anchor: usize, tag: Option<&Tag>, own: &str) -> Result<(), YamlRejection> {
        if let Some(tag) = tag.filter(|tag| !(tag.is_yaml_core_schema() && tag.suffix == own)) {
            return Err(YamlRejection::Yaml(line, format!("the tag {tag} has no place here")));
        }
        if let Some(Open { content: Partial::Map(_, None), .. }) = self.open.last() {
            return Err(YamlRejection::Yaml(line, "a list or a map in the place of a name".to_owned()));
        }
        if self.open.len() >= DEPTH {
            return Err(too_deep(line));
        }
        self.take(json::weight_of_item("") + size_of::<YamlNode>())?;
        self.open.push(Open { line, anchor, content, height: 0 });
        Ok(())
    }

    /// A whole value goes to where it belongs.
    fn put(&mut self, node: YamlNode, anchor: usize, height: usize) -> Result<(), YamlRejection> {
        if anchor > 0 {
            self.take(weight(&node))?;
            self.anchors.insert(anchor, (node.clone(), height));
        }
        if let Some(open) = self.open.last_mut() {
            open.height = open.height.max(height);
        }
        match self.open.last_mut().map(|open| &mut open.content) {
            None => self.root = Some(node),
            Some(Partial::List(items)) => items.push(node),
            Some(Partial::Map(members, name)) => match name.take() {
                Some((name, line)) => members.push(Member { name, line, value: node }),
                None => return Err(YamlRejection::Yaml(node.line, "an alias in the place of a name".to_owned())),
            },
        }
        Ok(())
    }

    /// Each name once: the last one counts. What `<<` brings counts least.
    fn merged(&mut self, members: Vec<Member>) -> Result<Vec<Member>, YamlRejection> {
        let mut places: BTreeMap<String, usize> = BTreeMap::new();
        let mut all: Vec<Member> = Vec::with_capacity(members.len());
        let mut brought = Vec::new();
        for member in members {
            if member.name == "<<" {
                brought.push(member);
                continue;
            }
            if let Some(before) = places.get(&member.name).and_then(|at| all.get_mut(*at)) {
                self.take(json::weight_of_key(&member.name))?;
                self.twice.push((member.name.clone(), member.line));
                *before = member;
            } else {
                places.insert(member.name.clone(), all.len());
                all.push(member);
            }
        }
        for Member { line, value, .. } in brought {
            let maps = match value.content {
                Content::List(items) => items,
                content => vec![YamlNode { line, content }],
            };
            for map in maps {
                let Content::Map(members) = map.content else {
                    return Err(YamlRejection::Yaml(line, "<< takes a map, or a list of maps".to_owned()));
                };
                for member in members {
                    if !places.contains_key(&member.name) {
                        places.insert(member.name.clone(), all.len());
                        all.push(member);
                    }
                }
            }
        }
        Ok(all)
    }

    fn take(&mut self, bytes: usize) -> Result<(), YamlRejection> {
        self.left = self.left.checked_sub(bytes).ok_or(YamlRejection::TooLarge)?;
        Ok(())
    }
}

/// What a node takes, in the measure of the reader.
fn weight(node: &YamlNode) -> usize {
    let own = size_of::<YamlNode>() + json::weight_of_item("");
    own + match &node.content {
        Content::Scalar(Value::String(text)) => text.len(),
        Content::Scalar(_) => 0,
        Content::List(items) => items.iter().map(weight).sum(),
        Content::Map(members) => {
            members.iter().map(|member| json::weight_of_key(&member.name) + size_of::<Member>() + weight(&member.value)).sum()
        }
    }
}

/// A scalar as its tag, else its style, else its word says.
fn scalar(word: Cow<'_, str>, style: ScalarStyle, tag: Option<&Tag>) -> Result<Value, String> {
    // A single `!` says nothing.
    let tag = match tag.filter(|tag| !(tag.handle.is_empty() && tag.suffix == "!")) {
        None if style == ScalarStyle::Plain => return Ok(plain(&word)),
        None => return Ok(Value::String(word.into_owned())),
        Some(tag) => tag,
    };
    let value = plain(&word);
    let fits = match tag.suffix.as_str() {
        _ if !tag.is_yaml_core_schema() => false,
        "str" | "timestamp" => return Ok(Value::String(word.into_owned())),
        "null" => return Ok(Value::Null),
        "bool" => value.is_boolean(),
        "int" => value.is_i64() || value.is_u64(),
        "float" => value.is_number(),
        _ => false,
    };
    if fits { Ok(value) } else { Err(format!("the tag {tag} has no place here")) }
}

/// What YAML 1.1 makes of a plain word.
fn plain(word: &str) -> Value {
    match word {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => return Value::Bool(true),
        "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => return Value::Bool(false),
        _ => {}
    }
    let number = whole(word).map(Number::from).or_else(|| fraction(word).and_then(Number::from_f64));
    number.map_or_else(|| Value::String(word.to_owned()), Value::Number)
}

/// A whole number; one that is beyond 64 bits stays the text that it is.
fn whole(word: &str) -> Option<i64> {
    let (sign, digits) = match word.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, word.strip_prefix('+').unwrap_or(word)),
    };
    let first = digits.chars().next().filter(char::is_ascii_digit)?;
    let plain: String = digits.chars().filter(|c| *c != '_').collect();
    let of = |digits: &str, base: u32| {
        let only = !digits.is_empty() && digits.chars().all(|c| c.is_digit(base));
        only.then(|| i64::from_str_radix(digits, base).ok()).flatten()
    };
    let number = match (first, plain.get(1..2)) {
        ('0', None) => Some(0),
        ('0', Some("b")) => of(plain.get(2..)?, 2),
        ('0', Some("x")) => of(plain.get(2..)?, 16),
        ('0', _) => of(plain.get(1..)?, 8),
        _ if plain.contains(':') => sexagesimal(&plain),
        _ => of(&plain, 10),
    };
    number.map(|number| sign * number)
}

/// `1:30` is ninety.
fn sexagesimal(word: &str) -> Option<i64> {
    let mut parts = word.split(':');
    let first: i64 = parts.next()?.parse().ok()?;
    parts.try_fold(first, |sum, part| {
        let fits = matches!(part.len(), 1 | 2) && part.bytes().all(|byte| byte.is_ascii_digit());
        let part: i64 = part.parse().ok().filter(|part| fits && *part < 60)?;
        sum.checked_mul(60)?.checked_add(part)
    })
}

/// A number with a point; its exponent has a sign.
fn fraction(word: &str) -> Option<f64> {
    let digits = word.strip_prefix(['-', '+']).unwrap_or(word);
    let (mantissa, exponent) = match digits.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (digits, None),
    };
    let (before, after) = mantissa.split_once('.')?;
    let only = |text: &str| text.chars().all(|c| c.is_ascii_digit() || c == '_');
    let begins = before.starts_with(|c: char| c.is_ascii_digit())
        || (before.is_empty() && after.starts_with(|c: char| c.is_ascii_digit()) && digits.len() == word.len());
    let exponent_fits = exponent.is_none_or(|exponent| {
        exponent
            .strip_prefix(['-', '+'])
            .is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
    });
    let fits = begins && only(before) && only(after) && exponent_fits;
    fits.then(|| word.replace('_', "").parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn value(text: &str) -> Value {
        read(text).unwrap_or_else(|rejection| panic!("{text}: {rejection:?}")).root.to_json()
    }

    /// The right-hand sides were printed by PyYAML's safe loader with Heat's one change: dates stay text.
    #[test]
    fn documents_of_one_text_share_a_budget_but_no_anchors() {
        let roots = read_all("a: 1\n---\n---\n- b\n...\n").unwrap();
        assert_eq!(roots.iter().map(YamlNode::to_json).collect::<Vec<_>>(), [json!({"a": 1}), json!(null), json!(["b"])]);
        assert_eq!(roots[2].line, 4);
        assert!(read_all("").unwrap().is_empty());
        assert!(matches!(read_all("a: 1\n---\nb: 1\nb: 2\n"), Err(YamlRejection::Yaml(4, what)) if what == "b is given twice"));
        assert!(matches!(read_all("a: &x 1\n---\nb: *x\n"), Err(YamlRejection::Yaml(3, _))));
        let many = "---\n{a: 1}\n".repeat(DOCUMENT_MEMORY / 200);
        assert!(matches!(read_all(&many), Err(YamlRejection::TooLarge)));
        assert!(matches!(read("a: 1\n---\nb: 1\n"), Err(YamlRejection::Yaml(2, what)) if what == "a second document begins"));
    }

    #[test]
    fn plain_words_are_what_heat_makes_of_them() {
        for (word, expected) in [
            ("yes", json!(true)),
            ("Off", json!(false)),
            ("y", json!("y")),
            ("~", json!(null)),
            ("", json!(null)),
            ("nULL", json!("nULL")),
            ("12", json!(12)),
            ("-12", json!(-12)),
            ("+1_000", json!(1000)),
            ("010", json!(8)),
            ("08", json!("08")),
            ("0o10", json!("0o10")),
            ("0x1F", json!(31)),
            ("0b11", json!(3)),
            ("1:30", json!(90)),
            ("1:99", json!("1:99")),
            ("01:30", json!("01:30")),
            ("1.10", json!(1.1)),
            ("1.", json!(1.0)),
            (".5", json!(0.5)),
            ("-.5", json!("-.5")),
            ("1.5e+3", json!(1500.0)),
            ("1.5e3", json!("1.5e3")),
            ("1e+3", json!("1e+3")),
            ("v1.28.9", json!("v1.28.9")),
            ("1.28.9", json!("1.28.9")),
            ("10.77.0.11", json!("10.77.0.11")),
            ("2016-10-14", json!("2016-10-14")),
            ("fd00::1", json!("fd00::1")),
            ("99999999999999999999", json!("99999999999999999999")),
            ("'010'", json!("010")),
            ("\"yes\"", json!("yes")),
            ("!!str 1.10", json!("1.10")),
            ("! 010", json!(8)),
            ("!!float 1", json!(1)),
        ] {
            assert_eq!(value(&format!("a: {word}\n")), json!({"a": expected}), "{word}");
        }
    }

    #[test]
    fn what_templates_are_written_with_is_read_with_its_lines() {
        let text = "# first\nheat_template_version: 2016-10-14\nresources:\n  a:\n    config: |\n      #!/bin/sh\n      echo \"$x: {y}\"\n\
                    \x20     # no comment\n    folded: >-\n      one\n      two\n    flow: {get_param: [x, 0],\n           'b c': \"d\\te\"}\n    \
                    list:\n    - {name: A}  # a comment\n    - name: B\n      value: *no\n"
            .replace("*no", "&mark [1, two]")
            + "    again: *mark\n    merged:\n      <<: {p: 1, q: 2}\n      q: 3\n    doubled: 1\n    doubled: 2\n";
        let document = read(&text).unwrap();
        assert_eq!(
            document.root.to_json(),
            json!({"heat_template_version": "2016-10-14", "resources": {"a": {
                "config": "#!/bin/sh\necho \"$x: {y}\"\n# no comment\n", "folded": "one two",
                "flow": {"get_param": ["x", 0], "b c": "d\te"}, "list": [{"name": "A"}, {"name": "B", "value": [1, "two"]}],
                "again": [1, "two"], "merged": {"q": 3, "p": 1}, "doubled": 2}}})
        );
        let resource = document.root.get("resources").unwrap().member("a").unwrap();
        assert_eq!(resource.line, 4);
        let member = |name: &str| resource.value.member(name).unwrap();
        assert_eq!((member("config").line, member("flow").line, member("list").line), (5, 12, 14));
        assert_eq!(member("list").value.items().unwrap()[1].line, 16);
        assert_eq!(document.twice, [("doubled".to_owned(), 23)]);
        let back = YamlNode::of_json(document.root.to_json());
        assert_eq!((back.to_json(), back.line), (document.root.to_json(), 0));
    }

    #[test]
    fn what_is_no_such_document_is_refused_with_its_line() {
        for (text, line, words) in [
            ("a: 1\nb: [1\n", 3, ""),
            ("a: 1\n---\nb: 2\n", 2, "second document"),
            ("a: !secret x\n", 1, "tag"),
            ("a: !!int x\n", 1, "tag"),
            ("a: !!set {x, y}\n", 1, "tag"),
            ("? [a, b]\n: 1\n", 1, "in the place of a name"),
            ("a: &x [*x]\n", 1, ""),
            ("a: *unknown\n", 1, ""),
            ("a:\n  <<: 3\n", 2, "takes a map"),
        ] {
            match read(text) {
                Err(YamlRejection::Yaml(found, what)) => {
                    assert!(found == line && what.contains(words), "{text:?}: {found} {what}");
                }
                other => panic!("{text:?}: {other:?}"),
            }
        }
        assert!(crate::error::Error::from(read("a: [").unwrap_err()).to_string().contains("is broken at line"));
        assert_eq!(value(""), json!(null));
    }

    /// Attack: what was nested 97 levels deep, or by aliases without limit, was verified and refused by the node.
    #[test]
    fn what_is_nested_more_deeply_than_json_may_be_is_not_read_either() {
        let nested = |open: &str, close: &str, levels: usize| format!("{}0{}", open.repeat(levels), close.repeat(levels));
        // Each text has as many levels in JSON as the number says.
        let chain = |of: usize, each: usize| {
            let links: String =
                (1..=of).map(|n| format!("a{n}: &a{n} {}*a{}{}\n", "[".repeat(each), n - 1, "]".repeat(each))).collect();
            (format!("a0: &a0 [0]\n{links}"), 2 + of * each)
        };
        let mut texts = vec![chain(47, 2), chain(95, 1), chain(10, 10), chain(400, 6)];
        for levels in [1, 95, 96, 97, 98, 127, 128] {
            texts.push((nested("[", "]", levels), levels));
            texts.push((nested("{\"a\": ", "}", levels), levels));
        }
        // An alias and what is around it, a merged map and what it is merged into, a list of those.
        for (anchor, levels) in [(1, 95), (94, 2), (47, 47), (47, 48), (47, 49), (47, 50), (90, 90)] {
            let alias = nested("[", "]", levels).replace('0', "*x");
            texts.push((format!("- &x {}\n- {alias}\n", nested("[", "]", anchor)), 1 + levels + anchor));
        }
        for (text, levels) in texts {
            let shown = text.get(..60).unwrap_or(&text);
            match read(&text) {
                Ok(document) => {
                    let json = document.root.to_json().to_string();
                    assert!(levels <= DEPTH && json::value(json.as_bytes(), DOCUMENT_MEMORY).is_ok(), "{levels}: {shown}");
                }
                Err(YamlRejection::Yaml(_, what)) => {
                    assert!(levels > DEPTH && what.contains("96 levels"), "{levels}: {shown}: {what}");
                }
                Err(other) => panic!("{levels}: {shown}: {other:?}"),
            }
        }
    }

    /// Each of these texts is small.
    #[test]
    fn what_takes_too_much_memory_is_not_read_however_it_is_made() {
        let laughs: String =
            (1..12).map(|n| format!("a{n}: &a{n} [{}]\n", vec![format!("*a{}", n - 1); 10].join(", "))).collect();
        let merges: String = (1..24).map(|n| format!("a{n}: &a{n}\n  x{n}: {{<<: *a{}, y: *a{}}}\n", n - 1, n - 1)).collect();
        let anchors = format!("a0: &a0 {}\n", "x".repeat(1000));
        for (name, text) in [
            ("laughs", format!("{anchors}{laughs}")),
            ("merges", format!("a0: &a0 {{x: {}}}\n{merges}", "x".repeat(1000))),
            ("zeros", format!("[{}0]", "0,".repeat(500_000))),
            ("lists", format!("[{}0]", "[],".repeat(500_000))),
            ("names", (0..200_000).map(|n| format!("{n}:\n")).collect()),
            ("bytes", format!("a: {}", "x".repeat(DOCUMENT_BYTES))),
        ] {
            assert!(matches!(read(&text), Err(YamlRejection::TooLarge)), "{name}");
        }
        for deep in ["[".repeat(5_000), "a: {".repeat(5_000), "- ".repeat(5_000)] {
            assert!(matches!(read(&deep), Err(YamlRejection::Yaml(1, _))), "{}", &deep[..4]);
        }
    }
}
