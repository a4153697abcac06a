//! The one reader of JSON from outside: it counts the memory that the values will take while it reads them, and stops where
//! they would take more than they may.
//!
//! `[0,0,…]` takes 36 times the memory of its text. So neither a limit on bytes nor one on depth bounds memory; this does.
//!
//! What comes from outside is nested at most [`DEPTH`] levels deep. The agent writes it into files of its own, a few levels deeper, and must
//! be able to read those again: there serde_json's own limit of 127 levels holds.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeOwned, DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserializer, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Number, Value};

use super::{ANSWER_MEMORY, DEPTH, DOCUMENT_MEMORY, STATE_FILE_MEMORY};
use crate::error::Error;

/// A value in its parent.
const SLOT: usize = size_of::<Value>();
/// A member of an object: hash, key, value, and its place in the index.
const MEMBER: usize = 8 + size_of::<String>() + SLOT + 16;
/// A member while its object is read: the list of members grows by doubling.
const MEMBER_READ: usize = 2 * (size_of::<String>() + SLOT);
/// What the allocator adds to a piece of memory.
const PIECE: usize = 24;

/// Why a text is not taken.
#[derive(Debug)]
pub enum JsonRejection {
    /// It would take more memory than it may, in bytes.
    TooLarge(usize),
    /// Its lists and objects are nested deeper than [`DEPTH`].
    TooDeep,
    /// It is not JSON, or not of the form that is wanted.
    Json(serde_json::Error),
}

impl JsonRejection {
    /// The error for an operator: which budget, and by which rule.
    #[must_use]
    pub fn over(budget: usize) -> Error {
        Error::permanent(format!("the JSON would take more than {} KiB of memory", budget / 1024))
            .rule("the agent limits the size of its input to bound its memory")
            .remedy("list fewer deployments for this server, or fewer inputs")
    }
}

impl From<JsonRejection> for Error {
    fn from(rejection: JsonRejection) -> Self {
        match rejection {
            JsonRejection::TooLarge(budget) => JsonRejection::over(budget),
            JsonRejection::TooDeep => Self::permanent(format!("the JSON is nested more than {DEPTH} levels deep"))
                .rule("the agent limits the depth of its input, so that it can store it and read it again")
                .remedy("give the deepest part as a text that holds JSON"),
            JsonRejection::Json(error) => Self::permanent(error),
        }
    }
}

/// Reads a value that takes at most `budget` bytes of memory.
///
/// # Errors
/// If it would take more, or is not JSON.
pub fn value(bytes: &[u8], budget: usize) -> Result<Value, JsonRejection> {
    read(bytes, budget, DEPTH, true)
}

/// An answer or a text within another one: `None` where it is not JSON, or too large to be what is meant.
#[must_use]
pub fn small(bytes: &[u8]) -> Option<Value> {
    answer(bytes).ok()
}

/// An answer of another service, or a text that may hold JSON.
///
/// # Errors
/// If it would take more than an answer may, or is not JSON.
pub fn answer(bytes: &[u8]) -> Result<Value, JsonRejection> {
    value(bytes, ANSWER_MEMORY)
}

/// An answer or text from outside, read into a type: its values are counted before one of them is kept.
///
/// # Errors
/// If it would take more than an answer may, is not JSON, or is not what the type wants.
pub fn typed<T: DeserializeOwned>(text: impl AsRef<[u8]>) -> Result<T, JsonRejection> {
    counted(text.as_ref(), ANSWER_MEMORY)
}

/// What one of the agent's own types is as JSON. By way of its text: `serde_json::to_value` would compile each type a second time.
///
/// # Errors
/// If it would take more than a file of the state may, or has maps with names that are no texts.
pub fn of(own: &impl Serialize) -> Result<Value, Error> {
    let text = serde_json::to_vec(own).map_err(Error::permanent)?;
    Ok(value(&text, STATE_FILE_MEMORY)?)
}

/// A file of the agent's own state, read into a type.
///
/// # Errors
/// If it would take more than such a file may, is not JSON, or is not what the type wants.
pub fn state<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, JsonRejection> {
    counted(bytes, STATE_FILE_MEMORY)
}

#[expect(clippy::disallowed_methods, reason = "this is the one reader of JSON; the values are counted before")]
fn counted<T: DeserializeOwned>(bytes: &[u8], budget: usize) -> Result<T, JsonRejection> {
    check(bytes, budget)?;
    serde_json::from_slice(bytes).map_err(JsonRejection::Json)
}

/// Whether a text can be read into any type within the budget.
fn check(bytes: &[u8], budget: usize) -> Result<(), JsonRejection> {
    // A value has at least two bytes of text: what is short cannot be too large.
    if bytes.len() / 2 * MEMBER_READ < budget {
        return Ok(());
    }
    read(bytes, budget, usize::MAX, false).map(drop)
}

/// The members of one object, each with the text of its value. That is JSON; whether it can be taken is not decided yet.
///
/// # Errors
/// If it is not a single object, or its names alone would take more than an answer may.
#[expect(clippy::disallowed_methods, reason = "this is the one reader of JSON, and it counts")]
pub fn members(text: &str) -> Result<Vec<(String, &str)>, JsonRejection> {
    let meter = Meter::new(ANSWER_MEMORY);
    let mut from = serde_json::Deserializer::from_str(text);
    let members = from.deserialize_map(Members { meter: &meter }).and_then(|members| from.end().map(|()| members));
    members.map_err(
        |error| if meter.over.get().is_some() { JsonRejection::TooLarge(ANSWER_MEMORY) } else { JsonRejection::Json(error) },
    )
}

/// The text of a member's value, of several of one name the last; nothing of what is no object.
///
/// # Errors
/// As [`members`], of an object.
pub fn member<'a>(text: &'a str, name: &str) -> Result<Option<&'a str>, JsonRejection> {
    if !text.trim_start().starts_with('{') {
        return Ok(None);
    }
    Ok(members(text)?.into_iter().rfind(|(known, _)| known == name).map(|(_, value)| value))
}

/// Walks through the items of one list, each as its text, and keeps none of them.
///
/// # Errors
/// If it is not a single list, and what `each` says.
#[expect(clippy::disallowed_methods, reason = "this is the one reader of JSON; nothing is kept")]
pub fn items(text: &str, each: &mut dyn FnMut(&str) -> Result<(), JsonRejection>) -> Result<(), JsonRejection> {
    let mut rejection = None;
    let mut from = serde_json::Deserializer::from_str(text);
    let walked = from.deserialize_seq(Items { each, rejection: &mut rejection }).and_then(|()| from.end());
    walked.map_err(|error| rejection.unwrap_or(JsonRejection::Json(error)))
}

/// For `#[serde(deserialize_with)]`: the document of a cache.
///
/// # Errors
/// As [`value`].
pub fn document<'de, D: Deserializer<'de>>(from: D) -> Result<Map<String, Value>, D::Error> {
    let meter = Meter::new(DOCUMENT_MEMORY);
    match (Seed { meter: &meter, left: DEPTH, keep: true }).deserialize(from)? {
        Value::Object(map) => Ok(map),
        _ => Err(D::Error::custom("not an object")),
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the one reader of JSON, and it counts")]
fn read(bytes: &[u8], budget: usize, depth: usize, keep: bool) -> Result<Value, JsonRejection> {
    let meter = Meter::new(budget);
    let mut text = serde_json::Deserializer::from_slice(bytes);
    let value = Seed { meter: &meter, left: depth, keep }.deserialize(&mut text).and_then(|value| text.end().map(|()| value));
    value.map_err(|error| match meter.over.get() {
        Some(LimitExceeded::Memory) => JsonRejection::TooLarge(budget),
        Some(LimitExceeded::Depth) => JsonRejection::TooDeep,
        None => JsonRejection::Json(error),
    })
}

/// The memory that a member of an object takes while it is read, without its value, in the same measure.
#[must_use]
pub fn weight_of_key(key: &str) -> usize {
    MEMBER + MEMBER_READ + key.len() + PIECE
}

/// The memory that a text takes as an item of a list that is read.
#[must_use]
pub fn weight_of_item(text: &str) -> usize {
    2 * SLOT + text.len() + PIECE
}

/// The memory that a value takes, in the same measure.
#[must_use]
pub fn weight(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len() + PIECE,
        Value::Array(items) => items.iter().map(|item| SLOT + weight(item)).sum::<usize>() + PIECE,
        Value::Object(members) => weight_of(members),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}

/// The memory that the members of an object take.
#[must_use]
pub fn weight_of(members: &Map<String, Value>) -> usize {
    members.iter().map(|(key, item)| MEMBER + key.len() + PIECE + weight(item)).sum::<usize>() + 2 * PIECE
}

struct Meter {
    left: Cell<usize>,
    over: Cell<Option<LimitExceeded>>,
}

/// The limit that was exceeded.
#[derive(Clone, Copy)]
enum LimitExceeded {
    Memory,
    Depth,
}

impl Meter {
    fn new(budget: usize) -> Self {
        Self { left: Cell::new(budget), over: Cell::new(None) }
    }

    fn take<E: serde::de::Error>(&self, bytes: usize) -> Result<(), E> {
        let Some(left) = self.left.get().checked_sub(bytes) else {
            self.over.set(Some(LimitExceeded::Memory));
            return Err(E::custom("it exceeds its memory limit"));
        };
        self.left.set(left);
        Ok(())
    }

    fn give_back(&self, bytes: usize) {
        self.left.set(self.left.get() + bytes);
    }
}

/// One value; with `keep` unset only its memory is counted, and nothing of it is kept.
#[derive(Clone, Copy)]
struct Seed<'a> {
    meter: &'a Meter,
    /// How many levels of lists and objects it may have.
    left: usize,
    keep: bool,
}

impl Seed<'_> {
    /// For what a list or an object holds.
    fn within<E: serde::de::Error>(self) -> Result<Self, E> {
        let Some(left) = self.left.checked_sub(1) else {
            self.meter.over.set(Some(LimitExceeded::Depth));
            return Err(E::custom("it exceeds its limit of depth"));
        };
        Ok(Self { left, ..self })
    }
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Value, E> {
        self.meter.take(text.len() + PIECE)?;
        Ok(if self.keep { Value::String(text.to_owned()) } else { Value::Null })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Value, A::Error> {
        self.meter.take(PIECE)?;
        let within = self.within()?;
        let mut items = Vec::new();
        let mut count = 0;
        while let Some(item) = from.next_element_seed(within)? {
            // The list grows by doubling, and is cut to its length at its end.
            self.meter.take(2 * SLOT)?;
            count += 1;
            if self.keep {
                items.push(item);
            }
        }
        items.shrink_to_fit();
        self.meter.give_back(count * SLOT);
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Value, A::Error> {
        self.meter.take(2 * PIECE)?;
        let within = self.within()?;
        let mut members: Vec<(String, Value)> = Vec::new();
        let mut count = 0;
        while let Some(key) = from.next_key::<String>()? {
            self.meter.take(weight_of_key(&key))?;
            count += 1;
            let item = from.next_value_seed(within)?;
            if self.keep {
                members.push((key, item));
            }
        }
        // Of exactly the size that it needs: one that grows may be twice as large.
        let mut map = Map::with_capacity(members.len());
        map.extend(members);
        self.meter.give_back(count * MEMBER_READ);
        Ok(Value::Object(map))
    }
}

struct Items<'a> {
    each: &'a mut dyn FnMut(&str) -> Result<(), JsonRejection>,
    rejection: &'a mut Option<JsonRejection>,
}

impl<'de> Visitor<'de> for Items<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<(), A::Error> {
        while let Some(item) = from.next_element::<&RawValue>()? {
            if let Err(rejection) = (self.each)(item.get()) {
                *self.rejection = Some(rejection);
                return Err(A::Error::custom("an item is not taken"));
            }
        }
        Ok(())
    }
}

struct Members<'a> {
    meter: &'a Meter,
}

impl<'de> Visitor<'de> for Members<'_> {
    type Value = Vec<(String, &'de str)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Self::Value, A::Error> {
        let mut members = Vec::new();
        while let Some((name, value)) = from.next_entry::<String, &RawValue>()? {
            self.meter.take(weight_of_key(&name))?;
            members.push((name, value.get()));
        }
        Ok(members)
    }
}

#[cfg(test)]
mod tests {
    use serde::de::IgnoredAny;
    use serde_json::json;

    use super::*;

    #[test]
    fn what_fits_is_read_as_serde_json_reads_it() {
        for text in [
            "null",
            "[1, -2, 3.5, true, \"a\\u00e9\\n\", {}, []]",
            "{\"b\": {\"c\": [null]}, \"a\": 1, \"b\": 2}",
            "18446744073709551615",
            "\"\\ud83d\\ude00\"",
        ] {
            let read = value(text.as_bytes(), DOCUMENT_MEMORY).unwrap();
            assert_eq!(read.to_string(), text.parse::<Value>().unwrap().to_string());
        }
        for text in ["", "{", "[1,]", "{} x", "nul"] {
            assert!(matches!(value(text.as_bytes(), DOCUMENT_MEMORY), Err(JsonRejection::Json(_))), "{text}");
        }
    }

    #[test]
    fn what_takes_too_much_memory_is_not_read_however_it_is_made() {
        let of = |item: &str, count: usize| format!("[{}0]", format!("{item},").repeat(count));
        let wide = format!("{{{}\"x\": 0}}", (0..100_000).map(|n| format!("\"{n}\":0,")).collect::<String>());
        let deep = of(&format!("{}0{}", "{\"a\":".repeat(60), "}".repeat(60)), 3_000);
        for (name, text) in [("zeros", of("0", 500_000)), ("lists", of("[]", 500_000)), ("wide", wide), ("deep", deep)] {
            assert!(text.len() < 2 << 20, "{name}");
            assert!(matches!(value(text.as_bytes(), DOCUMENT_MEMORY), Err(JsonRejection::TooLarge(_))), "{name}");
            assert!(matches!(typed::<IgnoredAny>(&text), Err(JsonRejection::TooLarge(_))), "{name}");
            assert!(matches!(state::<IgnoredAny>(text.as_bytes()), Err(JsonRejection::TooLarge(_))), "{name}");
        }
        let long = json!("x".repeat(DOCUMENT_MEMORY)).to_string();
        assert!(matches!(value(long.as_bytes(), DOCUMENT_MEMORY), Err(JsonRejection::TooLarge(_))));
        assert!(small(long.as_bytes()).is_none());
    }

    #[test]
    fn a_list_is_walked_through_until_an_item_is_not_taken() {
        let walk = |text: &str| {
            let mut seen = Vec::new();
            let walked = items(text, &mut |item| {
                seen.push(item.to_owned());
                if item == "3" { Err(JsonRejection::TooDeep) } else { Ok(()) }
            });
            (seen.join("|"), walked)
        };
        assert!(matches!(walk(r#"[1, {"a": [2]}, null]"#), (seen, Ok(())) if seen == r#"1|{"a": [2]}|null"#));
        assert!(matches!(walk("[1, 3, 4]"), (seen, Err(JsonRejection::TooDeep)) if seen == "1|3"));
        for text in ["{}", "[1", "[] 2", "7", ""] {
            assert!(matches!(walk(text).1, Err(JsonRejection::Json(_))), "{text}");
        }
    }

    /// Attack: a hook's answer of 124 levels was written into a file that nobody could read again.
    #[test]
    fn what_is_taken_from_outside_can_be_stored_some_levels_deeper_and_read_again() {
        let nested = |open: &str, close: &str, levels: usize| format!("{}0{}", open.repeat(levels), close.repeat(levels));
        for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
            let kept = value(nested(open, close, DEPTH).as_bytes(), DOCUMENT_MEMORY).unwrap();
            let mut stored = kept;
            for _ in 0..24 {
                stored = json!({"frame": stored});
            }
            assert_eq!(state::<Value>(stored.to_string().as_bytes()).unwrap(), stored);
            for levels in [DEPTH + 1, 127] {
                let rejection = value(nested(open, close, levels).as_bytes(), DOCUMENT_MEMORY);
                assert!(matches!(rejection, Err(JsonRejection::TooDeep)), "{levels}: {rejection:?}");
            }
        }
        // What was stored is only counted, however deep it is.
        assert!(state::<IgnoredAny>(nested("[", "]", 120).as_bytes()).is_ok());
    }

    #[test]
    fn the_count_is_near_what_the_values_weigh_and_never_below() {
        let entry =
            json!({"id": "b1a6a2f0", "inputs": [{"name": "a", "value": "b"}, {"name": "c", "value": [1, 2, 3]}], "x": null});
        let text = json!(vec![entry; 50]).to_string();
        let budget = (0..10_000).map(|n| n * 512).find(|budget| value(text.as_bytes(), *budget).is_ok()).unwrap();
        let weighed = weight(&text.parse().unwrap());
        assert!((weighed..weighed * 13 / 10).contains(&budget), "{weighed} {budget}");
    }
}
