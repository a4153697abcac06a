//! Mustache as os-apply-config's templates have it: what pystache 0.6 makes of them (heat-protocol.md 6.3), not what the
//! specification of mustache says. Nothing is escaped for HTML, values that are no text become JSON, a section that is never closed
//! is rendered without what stands before it, and a name that is missing is empty.

use serde_json::Value;

use crate::error::{Error, Result};
use crate::metadata::python_json;

/// So deep may sections and partials be nested: CPython ends at a depth of about this order, and so must we at one.
const DEPTH: usize = 120;
/// So many bytes may come of one template: partials and lists multiply.
const OUTPUT_BYTES: usize = 16 * 1024 * 1024;

/// The text of a partial by its name; `None` where there is none.
pub(super) type Partials<'a> = &'a dyn Fn(&str) -> Result<Option<String>>;

#[derive(Debug, PartialEq)]
enum Node {
    Text(String),
    Variable(String),
    Partial { name: String, indent: String },
    Section { name: String, inverted: bool, nodes: Vec<Node> },
}

/// A tag and where it stands.
struct Tag<'t> {
    kind: char,
    key: &'t str,
    /// From the blanks before it …
    start: usize,
    /// … of which there are so many bytes …
    blanks: usize,
    /// … to behind it.
    end: usize,
}

/// What a template becomes with these values.
///
/// # Errors
/// If a section ends that did not begin, a tag sets no pair of delimiters, sections and partials are nested too deeply, or more than
/// 16 MiB come of it; where a partial cannot be read.
pub(super) fn render(template: &str, values: &Value, partials: Partials<'_>) -> Result<String> {
    let mut renderer = Renderer { stack: vec![values], partials, out: String::new() };
    renderer.template(template, 0)?;
    Ok(renderer.out)
}

struct Renderer<'v, 'p> {
    /// What names are looked up in, the innermost last.
    stack: Vec<&'v Value>,
    partials: Partials<'p>,
    out: String,
}

impl<'v> Renderer<'v, '_> {
    fn template(&mut self, template: &str, depth: usize) -> Result<()> {
        self.nodes(&parse(template)?, depth)
    }

    fn nodes(&mut self, nodes: &[Node], depth: usize) -> Result<()> {
        if depth > DEPTH {
            return Err(Error::permanent(format!("sections and partials are nested more than {DEPTH} levels deep")));
        }
        for node in nodes {
            match node {
                Node::Text(text) => self.out.push_str(text),
                Node::Variable(name) => match self.look_up(name) {
                    None | Some(Value::Null) => {}
                    Some(Value::String(text)) => self.out.push_str(text),
                    Some(other) => self.out.push_str(&python_json(other)),
                },
                Node::Partial { name, indent } => {
                    if let Some(text) = (self.partials)(name)? {
                        self.template(&indented(&text, indent), depth + 1)?;
                    }
                }
                Node::Section { name, inverted, nodes } => {
                    let value = self.look_up(name).filter(|value| is_true(value));
                    match value {
                        None if *inverted => self.nodes(nodes, depth + 1)?,
                        Some(Value::Array(items)) if !inverted => {
                            for item in items {
                                self.within(item, nodes, depth + 1)?;
                            }
                        }
                        Some(value) if !inverted => self.within(value, nodes, depth + 1)?,
                        None | Some(_) => {}
                    }
                }
            }
            if self.out.len() > OUTPUT_BYTES {
                return Err(Error::permanent(format!("more than {} MiB come of it", OUTPUT_BYTES >> 20)));
            }
        }
        Ok(())
    }

    fn within(&mut self, value: &'v Value, nodes: &[Node], depth: usize) -> Result<()> {
        self.stack.push(value);
        let done = self.nodes(nodes, depth);
        self.stack.pop();
        done
    }

    /// The first part of a dotted name is looked for from the innermost object outwards, the others below what was found. A list has no
    /// members.
    fn look_up(&self, name: &str) -> Option<&'v Value> {
        if name == "." {
            return self.stack.last().copied();
        }
        let mut parts = name.split('.');
        let first = parts.next()?;
        let found = self.stack.iter().rev().find_map(|value| value.as_object()?.get(first))?;
        parts.try_fold(found, |value, part| value.as_object()?.get(part))
    }
}

/// As Python decides it.
fn is_true(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(is_true) => *is_true,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(members) => !members.is_empty(),
    }
}

/// Each line that is not empty, behind these blanks.
fn indented(text: &str, indent: &str) -> String {
    if indent.is_empty() {
        return text.to_owned();
    }
    text.split_inclusive('\n').map(|line| if line == "\n" { line.to_owned() } else { format!("{indent}{line}") }).collect()
}

/// What is still open while a template is read.
struct Open {
    inverted: bool,
    name: Option<String>,
    nodes: Vec<Node>,
}

fn parse(template: &str) -> Result<Vec<Node>> {
    let mut delimiters = ("{{".to_owned(), "}}".to_owned());
    let (mut at, mut name, mut nodes, mut open) = (0, None::<String>, Vec::new(), Vec::<Open>::new());
    while let Some(tag) = next_tag(template, at, &delimiters.0, &delimiters.1) {
        let (mut text_end, mut end, mut indent) = (tag.start, tag.end, "");
        let ends_line = |at: usize, byte: u8| template.as_bytes().get(at) == Some(&byte);
        let begins = tag.start == 0 || ends_line(tag.start - 1, b'\n') || ends_line(tag.start - 1, b'\r');
        let ends = end == template.len() || ends_line(end, b'\n') || ends_line(end, b'\r');
        if begins && ends && !matches!(tag.kind, ' ' | '&') {
            // Alone on its line, it takes the line with it.
            end += usize::from(ends_line(end, b'\r'));
            end += usize::from(ends_line(end, b'\n'));
            indent = template.get(tag.start..tag.start + tag.blanks).unwrap_or_default();
        } else {
            text_end += tag.blanks;
        }
        if let Some(text) = template.get(at..text_end).filter(|text| !text.is_empty()) {
            nodes.push(Node::Text(text.to_owned()));
        }
        at = end;
        let key = tag.key.to_owned();
        match tag.kind {
            '#' | '^' => {
                open.push(Open { inverted: tag.kind == '^', name: name.replace(key), nodes: std::mem::take(&mut nodes) });
            }
            '/' => match open.pop() {
                Some(outer) if name.as_deref() == Some(tag.key) => {
                    let section = Node::Section { name: key, inverted: outer.inverted, nodes };
                    (name, nodes) = (outer.name, outer.nodes);
                    nodes.push(section);
                }
                _ => {
                    let expected = name.map_or("no section is open".to_owned(), |name| format!("{name} is open"));
                    return Err(Error::permanent(format!("the section {key} ends, and {expected}")));
                }
            },
            '=' => {
                let mut words = tag.key.split(is_blank).filter(|word| !word.is_empty());
                let (Some(before), Some(behind)) = (words.next(), words.next()) else {
                    return Err(Error::permanent("a tag sets delimiters and has no two of them"));
                };
                delimiters = (before.to_owned(), behind.to_owned());
            }
            '!' => {}
            '>' => nodes.push(Node::Partial { name: key, indent: indent.to_owned() }),
            _ => nodes.push(Node::Variable(key)),
        }
    }
    if let Some(text) = template.get(at..).filter(|text| !text.is_empty()) {
        nodes.push(Node::Text(text.to_owned()));
    }
    Ok(nodes)
}

/// The first tag from a place on.
fn next_tag<'t>(template: &'t str, from: usize, before: &str, behind: &str) -> Option<Tag<'t>> {
    let mut at = from;
    loop {
        let found = at + template.get(at..)?.find(before)?;
        let text = template.get(from..found)?;
        let blanks = text.len() - text.trim_end_matches([' ', '\t']).len();
        if let Some((kind, key, end)) = inside(template, found + before.len(), behind) {
            return Some(Tag { kind, key, start: found - blanks, blanks, end });
        }
        at = found + template.get(found..)?.chars().next()?.len_utf8();
    }
}

/// What stands between the delimiters, its kind first, and where the tag ends. A name has at least one character, so that one of blanks
/// alone or the end of another tag may be in it: blanks before it are given back one by one until it fits.
fn inside<'t>(template: &'t str, from: usize, behind: &str) -> Option<(char, &'t str, usize)> {
    // Without an end there is nothing to try.
    template.get(from..)?.find(behind)?;
    for start in starts(template, from) {
        let next = template.get(start..)?.chars().next();
        for (open, close, kind) in [('=', "=", '='), ('{', "}", '&')] {
            if next == Some(open)
                && let Some((key, end)) = starts(template, start + 1).find_map(|at| closed(template, at, close, behind))
            {
                return Some((kind, key, end));
            }
        }
        if let Some(kind) = next.filter(|c| "!>&/#^".contains(*c))
            && let Some((key, end)) = starts(template, start + 1).find_map(|at| named(template, at, behind))
        {
            return Some((kind, key, end));
        }
        if let Some((key, end)) = starts(template, start).find_map(|at| named(template, at, behind)) {
            return Some((' ', key, end));
        }
    }
    None
}

/// The ends of the blanks from a place on, the last one first.
fn starts(template: &str, from: usize) -> impl Iterator<Item = usize> {
    let text = template.get(from..).unwrap_or_default();
    let blanks = text.len() - text.trim_start_matches(is_blank).len();
    let places: Vec<_> = text.get(..blanks).unwrap_or_default().char_indices().map(|(at, _)| from + at).collect();
    std::iter::once(from + blanks).chain(places.into_iter().rev())
}

/// A name from a place on, up to the first end behind its first character; blanks before the end are not part of it.
fn named<'t>(template: &'t str, at: usize, behind: &str) -> Option<(&'t str, usize)> {
    let first = template.get(at..)?.chars().next()?.len_utf8();
    let end = at + first + template.get(at + first..)?.find(behind)?;
    let key = template.get(at + first..end)?.trim_end_matches(is_blank).len();
    Some((template.get(at..at + first + key)?, end + behind.len()))
}

/// A name in one line that a character of its own closes before the end of the tag.
fn closed<'t>(template: &'t str, at: usize, close: &str, behind: &str) -> Option<(&'t str, usize)> {
    let text = template.get(at..)?;
    let first = text.chars().next().filter(|c| *c != '\n')?.len_utf8();
    let mut places = text.get(first..)?.match_indices(close).map(|(found, _)| first + found);
    places.find_map(|found| {
        let key = text.get(..found)?;
        // What is no part of the name may be in other lines.
        let name = key.get(..first)?.len() + key.get(first..)?.trim_end_matches(is_blank).len();
        let name = key.get(..name)?;
        let rest = text.get(found + close.len()..)?;
        let trimmed = rest.trim_start_matches(is_blank);
        (!name.contains('\n') && trimmed.starts_with(behind))
            .then(|| (name, at + found + close.len() + rest.len() - trimmed.len() + behind.len()))
    })
}

/// What Python's `\s` takes.
fn is_blank(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn shown(template: &str, values: &Value) -> String {
        let partials = |name: &str| {
            Ok(match name {
                "p" => Some("<{{a}}>\n\nz\n".to_owned()),
                "again" => Some("{{>again}}".to_owned()),
                _ => None,
            })
        };
        render(template, values, &partials).unwrap_or_else(|error| format!("ERROR {error}"))
    }

    #[test]
    fn templates_become_what_pystache_makes_of_them() {
        let values = json!({
            "a": "<&\"x\">", "n": 3, "f": 1.0, "t": true, "no": false, "nil": null, "zero": 0, "empty": "", "none": [], "void": {},
            "l": ["x", 2, null, {"a": "in"}], "o": {"a": "inner", "p": {"q": [1, {"é": 1}]}}, "k.d": 1, "": {"": "e"},
        });
        // The right-hand sides were printed by pystache.
        for (template, text) in [
            ("{{a}}{{{a}}}{{&a}}{{ & a }}", "<&\"x\"><&\"x\"><&\"x\"><&\"x\">"),
            ("{{n}} {{f}} {{t}} {{no}} [{{nil}}{{gone}}]", "3 1.0 true false []"),
            ("{{l}} {{o.p}} {{o.p.q.0}}|{{k.d}}", "[\"x\", 2, null, {\"a\": \"in\"}] {\"q\": [1, {\"\\u00e9\": 1}]} |"),
            ("{{#l}}({{.}}:{{a}}){{/l}}", "(x:<&\"x\">)(2:<&\"x\">)(:<&\"x\">)({\"a\": \"in\"}:in)"),
            ("{{#o}}{{a}}{{n}}{{p.q}}{{/o}}", "inner3[1, {\"\\u00e9\": 1}]"),
            ("{{#n}}{{.}}{{/n}}{{#a}}{{.}}{{/a}}{{#t}}{{.}}{{/t}}", "3<&\"x\">true"),
            (
                "{{#gone}}1{{/gone}}{{#no}}2{{/no}}{{#nil}}3{{/nil}}{{#zero}}4{{/zero}}{{#empty}}5{{/empty}}{{#none}}6{{/none}}{{#void}}7{{/void}}",
                "",
            ),
            ("{{^gone}}1{{/gone}}{{^no}}2{{/no}}{{^zero}}4{{/zero}}{{^n}}5{{/n}}{{^l}}6{{/l}}", "124"),
            ("x\n  {{#t}}  \n y\n{{/t}}\nz", "x\n    \n y\nz"),
            ("x\n  {{#t}}\n y\n  {{/t}}\nz\n", "x\n y\nz\n"),
            ("x\r\n{{#t}}\r\ny\r\n{{/t}}\r\n", "x\r\ny\r\n"),
            ("a {{! b {{ c }} d }}\n{{! alone }}\ne", "a  d }}\ne"),
            ("{{=<% %>=}}<%a%> {{a}} <%={{ }}=%>{{n}}", "<&\"x\"> {{a}} 3"),
            ("  {{>p}}\n{{>p}}x{{>gone}}", "  <<&\"x\">>\n\n  z\n<<&\"x\">>\n\nz\nx"),
            ("a {{#t}} b", " b"),
            ("a {{#t}} b {{#no}} c", " c"),
            ("{{a", "{{a"),
            ("{{}} {{n}}", ""),
            ("{{ }}", ""),
            ("{{{a}} {{{ n }}}", ""),
            ("{{{{n}}}}", "}"),
            ("{{#}}", ""),
            ("{{\n n\n}}", "3"),
            ("{{..}}", ""),
        ] {
            assert_eq!(shown(template, &values), text, "{template}");
        }
        for template in ["{{/a}}", "{{#a}}{{/b}}", "{{#a}}{{#b}}{{/a}}{{/b}}", "{{= x =}}", "{{>again}}"] {
            assert!(shown(template, &values).starts_with("ERROR "), "{template}");
        }
    }

    #[test]
    fn what_multiplies_has_an_end() {
        let many = json!({"l": vec![1; 3000]});
        let error = render("{{#l}}{{#l}}xxxxxxxxxxxx{{/l}}{{/l}}", &many, &|_| Ok(None)).unwrap_err();
        assert_eq!(error.cause(), "more than 16 MiB come of it");
    }

    proptest! {
        #[test]
        fn a_text_without_tags_stays_as_it_is(text in "([^{]|\\{[^{])*") {
            prop_assert_eq!(shown(&text, &json!({})), text);
        }

        #[test]
        fn a_value_stands_where_its_name_stood(before in "[a-z \n]*", value in "\\PC*", behind in "[a-z \n]*") {
            let text = shown(&format!("{before}{{{{v}}}}{behind}"), &json!({"v": value}));
            prop_assert_eq!(text, format!("{before}{value}{behind}"));
        }

        #[test]
        fn sections_repeat_and_inverted_ones_are_their_opposite(count in 0_usize..5, inner in "[a-z]{1,8}") {
            let values = json!({"l": vec![0; count]});
            let wanted = if count == 0 { "-".to_owned() } else { inner.repeat(count) };
            prop_assert_eq!(shown(&format!("{{{{#l}}}}{inner}{{{{/l}}}}{{{{^l}}}}-{{{{/l}}}}"), &values), wanted);
        }

        #[test]
        fn whatever_is_written_ends(template in "[{}#^/=!>& a\n]{0,60}") {
            let _ = shown(&template, &json!({"a": [1, {"a": []}]}));
        }
    }
}
