//! The config of a deployment as a flat map: a map as it is, the JSON text of one, or YAML.

use std::borrow::Cow;
use std::cell::Cell;

use saphyr_parser::{Event, ScalarStyle, Tag};
use serde_json::{Map, Value};

use super::mistake::Mistake;
use super::table::find;
use crate::budgets::json::{self, JsonRejection};
use crate::budgets::yaml::YamlRejection;
use crate::budgets::yaml_events::YamlEvents;
use crate::budgets::{ANSWER_MEMORY, YAML_CONFIG_BYTES};

/// The config as a map.
pub(in crate::kubernetes) fn map(config: &Value) -> Result<Map<String, Value>, Mistake> {
    match config {
        Value::Null => Ok(Map::new()),
        Value::Object(map) => Ok(map.clone()),
        Value::String(text) if text.trim().is_empty() => Ok(Map::new()),
        // Not by YAML, which also reads JSON: serde_json says more exactly what is wrong.
        Value::String(text) if text.trim_start().starts_with('{') => match json::answer(text.as_bytes()) {
            Ok(Value::Object(map)) => Ok(map),
            Ok(_) => Err(bad("is not a map")),
            Err(JsonRejection::TooLarge(_)) => Err(bad("is too long")),
            Err(JsonRejection::TooDeep) => Err(bad("is nested too deeply")),
            Err(JsonRejection::Json(error)) => Err(bad(&format!("is not JSON: line {} column {}", error.line(), error.column()))),
        },
        Value::String(text) => yaml(text),
        _ => Err(bad("is neither a map nor text")),
    }
}

/// Keys with scalars or lists of scalars. What else YAML has (nesting, anchors, tags, several documents) has no place in
/// parameters and is not guessed at: it ends the reading where it begins, so that neither depth nor aliases take memory. What values
/// take is counted as for JSON.
fn yaml(text: &str) -> Result<Map<String, Value>, Mistake> {
    let left = Cell::new(ANSWER_MEMORY);
    let take = |bytes: usize| {
        left.set(left.get().checked_sub(bytes).ok_or_else(|| bad("is too long"))?);
        Ok(())
    };
    if text.len() > YAML_CONFIG_BYTES {
        return Err(bad("is too long"));
    }
    let mut map = Map::new();
    let mut place = ReaderState::Outside;
    let mut events = YamlEvents::of(text);
    while let Some(event) = events.next(left.get()) {
        let (event, span) = event.map_err(|rejection| match rejection {
            YamlRejection::TooLarge => bad("is too long"),
            YamlRejection::Yaml(line, what) => bad(&format!("is not YAML: line {line}: {what}")),
        })?;
        let line = span.start.line();
        let odd = |what: &str| bad(&format!("is not a flat map: line {line}: {what}"));
        place = match (place, event) {
            (place, Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd) => place,
            (ReaderState::Outside, Event::DocumentStart(_)) => ReaderState::Document,
            // A document of comments alone.
            (ReaderState::Document, Event::Scalar(word, ScalarStyle::Plain, 0, None)) if word.is_empty() || word == "~" => {
                ReaderState::End
            }
            (ReaderState::Document, Event::MappingStart(0, None)) => ReaderState::Key,
            (ReaderState::Key, Event::MappingEnd) => ReaderState::End,
            (ReaderState::Key, Event::Scalar(key, _, 0, None)) => {
                let key = key.into_owned();
                take(json::weight_of_key(&key))?;
                if map.contains_key(&key) {
                    let name = find(&key).map_or("a name", |parameter| parameter.name);
                    return Err(bad(&format!("has {name} twice: line {line}")));
                }
                ReaderState::Value(key)
            }
            (ReaderState::Value(key), Event::Scalar(word, style, 0, tag)) => {
                take(json::weight_of_item(&word))?;
                map.insert(key, scalar(word, style, tag.as_deref()).ok_or_else(|| odd("a tag"))?);
                ReaderState::Key
            }
            (ReaderState::Value(key), Event::SequenceStart(0, None)) => ReaderState::List(key, Vec::new()),
            (ReaderState::List(key, mut items), Event::Scalar(word, style, 0, tag)) => {
                take(json::weight_of_item(&word))?;
                items.push(scalar(word, style, tag.as_deref()).ok_or_else(|| odd("a tag"))?);
                ReaderState::List(key, items)
            }
            (ReaderState::List(key, items), Event::SequenceEnd) => {
                map.insert(key, Value::Array(items));
                ReaderState::Key
            }
            (ReaderState::End, Event::DocumentStart(_)) => return Err(odd("a second document")),
            (_, Event::Alias(_)) => return Err(odd("an alias")),
            (ReaderState::Document, _) => return Err(odd("no key with a value")),
            _ => return Err(odd("a nested value or an anchor")),
        };
    }
    Ok(map)
}

/// Where in the text the reader is.
enum ReaderState {
    Outside,
    Document,
    Key,
    Value(String),
    List(String, Vec<Value>),
    End,
}

/// Text, or null where YAML means it. Numbers and booleans stay the text that was written: a parameter's own rule reads it.
fn scalar(word: Cow<'_, str>, style: ScalarStyle, tag: Option<&Tag>) -> Option<Value> {
    let null = style == ScalarStyle::Plain && matches!(&*word, "" | "~" | "null" | "Null" | "NULL");
    match tag {
        None if null => Some(Value::Null),
        None => Some(Value::String(word.into_owned())),
        Some(_) => None,
    }
}

fn bad(problem: &str) -> Mistake {
    Mistake::general(
        "config",
        problem,
        "a map, its JSON text, or YAML of the form KEY: value",
        "give the parameters as inputs, or config in one of these forms",
    )
}
