//! The source `zaqar`: a queue to which Heat posts the whole metadata at each change, read with a token of the server's user
//! (ZAQAR_MESSAGE, heat-protocol.md 2.7).
//!
//! The newest message is the document (which one that is: [`super::posting_order`]), and it stays in the queue until it expires, an hour after it was posted: so it is never taken before it is
//! stored (heat-protocol.md R17), a crash or a lost state costs nothing within that hour, and there is nothing to remember of it. What is older is
//! removed, for each message has everything. An empty queue says that what the source delivered last is still in force.

use std::time::Duration;

use serde_json::{Map, Value};

use super::document;
use super::poll::{FetchedDocument, PollCache, Tools, refusal};
use super::posting_order::PostedList;
use super::section::{DEPLOYMENT_KEY, Section};
use crate::budgets::json::{self, JsonRejection};
use crate::budgets::{KEYSTONE_ANSWER, MESSAGES_BYTES};
use crate::clock::{Stopwatch, Timestamp};
use crate::digest;
use crate::error::{Error, Result};
use crate::http::{Request, Response};
use crate::openstack::aws_signature::encode;
use crate::openstack::keystone::{Credentials, LARGE, Scope};
use crate::openstack::zaqar::{Queue, said};
use crate::settings::source_name::SourceName;

pub(super) const KEYS: &[&str] =
    &["auth_url", "user_id", "password", "project_id", "queue_id", "region_name", "ca_certificate", DEPLOYMENT_KEY];

/// Those that it cannot do without.
pub(super) const NEEDED: [&str; 5] = ["auth_url", "user_id", "password", "project_id", "queue_id"];

/// Messages of one answer: four of Zaqar's usual limit are half of [`MESSAGES_BYTES`]. Not one: Zaqar's driver for Redis begins anew behind the
/// first message of a queue.
const PAGE: usize = 4;

/// Answers that are read in one poll: a stack changes no server so often within the hour that a message lives.
const PAGES: usize = 25;

/// Messages that Zaqar deletes by one request.
const DELETED_AT_ONCE: usize = 20;

/// For one such request: a fresh answer waits for it.
const REMOVAL: Duration = Duration::from_secs(5);

/// Whom to ask for what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct QueueEndpoint {
    queue: Queue,
    pub(super) ca: Option<String>,
}

impl QueueEndpoint {
    pub(super) fn new(section: &Section) -> Result<Option<Self>> {
        // Heat leaves region_name where it takes the rest away.
        if ["user_id", "password", "queue_id"].iter().all(|key| section.get(key).is_none()) {
            return Ok(None);
        }
        let [auth_url, user_id, password, project, name] = section.complete(SourceName::Zaqar, NEEDED)?.map(str::to_owned);
        let region = section.get("region_name").map(str::to_owned);
        let credentials = Credentials { auth_url, user_id, password, scope: Scope::Project(project), region };
        Ok(Some(Self { queue: Queue { credentials, name }, ca: section.get("ca_certificate").map(str::to_owned) }))
    }

    /// Where tokens are asked for.
    pub(super) fn address(&self) -> &str {
        &self.queue.credentials.auth_url
    }

    /// The server's user.
    pub(super) fn user(&self) -> Credentials {
        self.queue.credentials.clone()
    }

    pub(super) fn place(&self) -> String {
        self.queue.shown("of")
    }

    pub(super) async fn fetch(&self, tools: &Tools, memory: &mut PollCache) -> Result<FetchedDocument> {
        let started = tools.http.clock().start();
        let (mut seen, mut marker, mut answer) = (Seen::default(), String::new(), None::<Response>);
        for _ in 0..PAGES {
            // The one before goes first: there is memory for one.
            drop(answer.take());
            let response = self.get(tools, &started, &format!("?echo=true&limit={PAGE}{marker}")).await?;
            let page = Page::read(&response)?;
            // Behind a message that is the first by now, Zaqar gives that one again with Redis.
            let is_further = page.messages.last().is_some_and(|last| seen.last != last.id);
            let is_full = page.messages.len() >= PAGE;
            answer = (is_further && seen.add(page.messages)).then_some(response);
            match page.next.filter(|_| is_further && is_full) {
                Some(next) => marker = format!("&marker={next}"),
                None => return self.newest(tools, &started, memory, seen, answer).await,
            }
        }
        drop(answer);
        // Which one is the newest is not known, but one that is older than another is not.
        self.delete(tools, &started, &seen.older()).await;
        Err(Error::transient(format!("the queue holds more than {} messages", PAGE * PAGES))
            .remedy("the agent removes the older ones and reads the rest at its next polls"))
    }

    /// Reads the newest of these messages, which is in the answer where there is one, and removes the others.
    async fn newest(
        &self,
        tools: &Tools,
        started: &Stopwatch,
        memory: &mut PollCache,
        seen: Seen,
        answer: Option<Response>,
    ) -> Result<FetchedDocument> {
        let Some(Message { id, .. }) = &seen.newest else {
            return if memory.held || memory.raw.is_some() { Ok(None) } else { Err(nothing_yet()) };
        };
        let answer = match answer {
            Some(answer) => answer,
            None => self.get(tools, started, &format!("/{}", encode(id))).await?,
        };
        let (raw, is_object) = in_message(&answer.body, id, &mut |body| (digest::hex(body.as_bytes()), body.starts_with('{')))?;
        // One that cannot be used takes nobody's place.
        if is_object {
            self.delete(tools, started, &seen.older()).await;
        }
        if memory.raw.as_ref() == Some(&raw) {
            return Ok(None);
        }
        memory.raw = Some(raw);
        let id = id.clone();
        Ok(Some(Box::new(move || in_message(&answer.body, &id, &mut metadata)?)))
    }

    async fn get(&self, tools: &Tools, started: &Stopwatch, below: &str) -> Result<Response> {
        let response = self.request(tools, started, "GET", below).await?;
        if response.status == 200 { Ok(response) } else { Err(self.refusal(&response)) }
    }

    /// Removes messages. What is still there is tried again at the next poll, or expires.
    async fn delete(&self, tools: &Tools, started: &Stopwatch, ids: &[&str]) {
        for some in ids.chunks(DELETED_AT_ONCE) {
            let some: Vec<_> = some.iter().map(|id| encode(id)).collect();
            let deleted = self.request(tools, started, "DELETE", &format!("?ids={}", some.join(","))).await;
            if !deleted.is_ok_and(|response| response.is_success() || response.status == 404) {
                return;
            }
        }
    }

    async fn request(&self, tools: &Tools, started: &Stopwatch, method: &str, below: &str) -> Result<Response> {
        let url = self.queue.messages(below);
        let left = tools.deadline.saturating_sub(started.elapsed());
        let mut request = Request::new(method, &url, left);
        if method == "GET" {
            (request.body_limit, request.large) = (0, Some((MESSAGES_BYTES, &LARGE)));
        } else {
            // The answer that is in hand waits for this, and has the memory for a large one.
            (request.body_limit, request.deadline) = (KEYSTONE_ANSWER, left.min(REMOVAL));
        }
        self.queue.request(&tools.http, &tools.keystone, request).await
    }

    fn refusal(&self, response: &Response) -> Error {
        let remedy = match response.status {
            403 => "project_id is not that of the user, or Zaqar's policy forbids its users to list messages: correct [zaqar] in os-collect-config.conf, or update the stack".to_owned(),
            429 | 502..=504 => "Zaqar or its load balancer is overloaded or down; the agent retries".to_owned(),
            status => self.queue.remedy(status),
        };
        refusal(response, "Zaqar", &said(&response.body), remedy)
    }
}

/// A message, without its body.
#[derive(Debug, PartialEq, Eq)]
struct Message {
    id: String,
    /// Of one that may be metadata.
    listed: Option<PostedList>,
}

/// What was read of a queue.
#[derive(Default)]
struct Seen {
    /// Of the last message.
    last: String,
    newest: Option<Message>,
    /// Of the others.
    ids: Vec<String>,
}

impl Seen {
    /// Takes what comes next in the queue, and says whether the newest message is among it.
    fn add(&mut self, messages: Vec<Message>) -> bool {
        let mut is_among = false;
        for message in messages {
            self.last.clone_from(&message.id);
            let newest = self.newest.as_ref().and_then(|newest| newest.listed.as_ref());
            if message.listed.as_ref().zip(newest).is_some_and(|(later, newest)| later.is_older_than(newest)) {
                self.ids.push(message.id);
            } else {
                is_among = true;
                self.ids.extend(self.newest.replace(message).map(|older| older.id));
            }
        }
        is_among
    }

    /// The ids of all but the newest, which may be there twice.
    fn older(&self) -> Vec<&str> {
        let newest = self.newest.as_ref().map(|newest| &newest.id);
        self.ids.iter().filter(|id| Some(*id) != newest).map(String::as_str).collect()
    }
}

/// What is asked of one list of messages.
#[derive(Debug, Default, PartialEq, Eq)]
struct Page {
    /// In the order in which they were posted.
    messages: Vec<Message>,
    /// What to ask for what is behind them.
    next: Option<String>,
}

impl Page {
    fn read(response: &Response) -> Result<Self> {
        Self::of(&response.body, response.date()).ok().flatten().ok_or_else(|| unlike(&response.body))
    }

    /// `now` is the server's time. Nothing of what is no list of messages.
    fn of(bytes: &[u8], now: Option<Timestamp>) -> std::result::Result<Option<Self>, JsonRejection> {
        // What is no UTF-8 is no JSON either.
        let text = std::str::from_utf8(bytes).unwrap_or_default();
        let (mut page, mut is_whole) = (Self::default(), true);
        let Some(messages) = json::member(text, "messages")?.filter(|list| list.starts_with('[')) else { return Ok(None) };
        json::items(messages, &mut |message| {
            let id = json::member(message, "id")?.and_then(|id| json::typed(id).ok());
            let (Some(id), Some(body)) = (id, json::member(message, "body")?) else {
                is_whole = false;
                return Ok(());
            };
            // Negative where the clocks of Zaqar's servers differ.
            let age = json::member(message, "age")?.and_then(|age| json::typed::<i64>(age).ok());
            let age = age.map(|age| Duration::from_secs(age.max(0).unsigned_abs()));
            let posted = now.zip(age).map(|(now, age)| now.before(age));
            let listed = body.starts_with('{').then(|| PostedList::read(body, posted).ok()).flatten();
            page.messages.push(Message { id, listed });
            Ok(())
        })?;
        let links = json::member(text, "links")?.filter(|list| list.starts_with('[')).unwrap_or("[]");
        json::items(links, &mut |link| {
            let href = json::member(link, "href")?.and_then(|href| json::typed::<String>(href).ok()).unwrap_or_default();
            let marker = href.split(['?', '&']).find_map(|part| part.strip_prefix("marker="));
            let is_plain = |marker: &&str| marker.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.~%".contains(&byte));
            page.next = page.next.take().or_else(|| marker.filter(is_plain).map(str::to_owned));
            Ok(())
        })?;
        Ok(Some(page).filter(|_| is_whole))
    }
}

/// Hands over the body of a message, as its text: of this one in a list, or of the one that was asked for.
fn in_message<T>(bytes: &[u8], id: &str, take: &mut dyn FnMut(&str) -> T) -> Result<T> {
    let text = std::str::from_utf8(bytes).unwrap_or_default();
    let mut taken = None;
    let read = || -> std::result::Result<(), JsonRejection> {
        let Some(messages) = json::member(text, "messages")? else {
            taken = json::member(text, "body")?.map(take);
            return Ok(());
        };
        json::items(messages, &mut |message| {
            if json::member(message, "id")?.is_some_and(|known| json::typed::<String>(known).is_ok_and(|known| known == id)) {
                taken = json::member(message, "body")?.map(&mut *take);
            }
            Ok(())
        })
    };
    read().ok().and(taken).ok_or_else(|| unlike(bytes))
}

/// The metadata in a message.
fn metadata(body: &str) -> Result<Map<String, Value>> {
    document::object(body.as_bytes()).map_err(|error| {
        if body.starts_with('{') {
            return error;
        }
        error.remedy("something else than Heat posts to this queue: stop it, then change the server's deployments or metadata by a stack update")
    })
}

/// Why an answer is none of Zaqar's.
fn unlike(bytes: &[u8]) -> Error {
    let other = Error::permanent("the answer is not a list of messages")
        .rule("Zaqar's API v2: GET /v2/queues/QUEUE/messages")
        .remedy("check that the messaging endpoint in Keystone's catalog leads to Zaqar's API");
    document::parse(bytes).err().unwrap_or(other)
}

fn nothing_yet() -> Error {
    Error::transient("the queue is empty, and nothing was ever read from it")
        .rule("Heat posts the metadata when the server is created and at each change of it; Zaqar keeps a message for an hour")
        .remedy("change the server's deployments or metadata by a stack update: Heat then posts all of it again")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_list_of_messages_is_said_and_what_is_odd_in_one_is_not_followed() {
        for (text, words) in [
            ("", "is empty, not JSON"),
            ("<html>", "is an HTML page, not JSON"),
            ("{\"messages\": [", "ends too early"),
            ("[]", "is not a list of messages"),
            ("7", "is not a list of messages"),
            ("{}", "is not a list of messages"),
            ("{\"messages\": {}}", "is not a list of messages"),
            ("{\"messages\": [7]}", "is not a list of messages"),
            ("{\"messages\": [{\"id\": 7, \"body\": {}}]}", "is not a list of messages"),
            ("{\"messages\": [{\"id\": \"a\"}]}", "is not a list of messages"),
        ] {
            assert!(!matches!(Page::of(text.as_bytes(), None), Ok(Some(_))), "{text}");
            let error = unlike(text.as_bytes());
            assert!(error.to_string().contains(words), "{text}: {error}");
        }
        let message = "{\"messages\": [{\"id\": \"a\", \"body\": 1e999}], \"links\": LINKS}";
        for (links, next) in [
            ("[{\"rel\": \"next\", \"href\": \"/v2/queues/q/messages?limit=4&marker=1%3A2\"}]", Some("1%3A2")),
            ("[{\"href\": \"/v2/queues/q/messages?marker=1/../x\"}]", None),
            ("[{\"href\": 7}, 8]", None),
            ("{}", None),
        ] {
            let page = Page::of(message.replace("LINKS", links).as_bytes(), None).unwrap().unwrap();
            let messages = vec![Message { id: "a".to_owned(), listed: None }];
            assert_eq!(page, Page { messages, next: next.map(str::to_owned) }, "{links}");
        }
        assert_eq!(Page::of(b"{\"messages\": [], \"links\": []}", None).unwrap().unwrap(), Page::default());
        let body = |text: &str| in_message(text.as_bytes(), "a", &mut str::to_owned).unwrap();
        assert_eq!(body("{\"messages\": [{\"id\": \"b\", \"body\": 1}, {\"id\": \"a\", \"body\": {\"a\": 2}}]}"), "{\"a\": 2}");
        assert_eq!(body("{\"id\": \"a\", \"body\": [1]}"), "[1]");
        for text in ["{\"messages\": []}", "{\"messages\": [{\"id\": \"b\", \"body\": 1}]}", "{}"] {
            assert!(in_message(text.as_bytes(), "a", &mut |_| ()).is_err(), "{text}");
        }
    }
}
