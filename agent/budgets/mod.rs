//! The one table of what the agent may take: memory, disk, and the sizes of what comes from outside.
//!
//! A limit on each item alone does not add up: 500 signals of 1 MiB are half a gibibyte. So every number that bounds
//! memory or disk stands here, with the reason, and the tests add them up. `status --json` shows them beside what is used.
//!
//! In: a need for memory or disk, or a JSON or YAML text from outside. Out: its limit, or the text as a value that fits its budget, or
//! which limit it exceeds. Never: a text from outside that is read without being counted.

pub mod json;
pub mod python_json;
pub mod yaml;
pub(crate) mod yaml_events;

/// Bytes in a kibibyte.
const KIB: usize = 1024;
/// Bytes in a mebibyte.
const MIB: usize = 1024 * KIB;

/// What the agent takes at most, whatever it is given (design.md 8). The unit's `MemoryMax=` is four times as much.
pub const MEMORY: usize = 64 * MIB;

/// The process at rest, with the system's CA certificates loaded: 7 MiB measured, and the largest entries of a node's generations
/// ([`NODE_ENTRY_MEMORY`]) in the place of the usual ones.
pub const AT_REST: usize = 9 * MIB;

/// Bytes of one document as it is delivered: three times what Heat takes as a template and its files
/// (`max_json_body_size` = 1 MiB), and 3,000 deployments of a few lines.
pub const DOCUMENT_BYTES: usize = 3 * MIB;

/// Memory of a document while it is read, as [`json`] counts it: a document of [`DOCUMENT_BYTES`] as Heat writes it takes six
/// times its size. One document is read at a time.
pub const DOCUMENT_MEMORY: usize = 18 * MIB;

/// Bytes of the objects of one add-on, as JSON: the largest that clusters are given, the definitions of calico's resources, take half of it.
/// They are held as texts while the add-on is applied.
pub const ADD_ON_BYTES: usize = MIB;

/// Bytes of an object as the API of a cluster answers it: etcd takes requests of 1.5 MiB at most (`--max-request-bytes`).
pub const OBJECT_BYTES: usize = 2 * MIB;

/// Memory of an object of the API while it is compared with the one that is wanted. What is wanted is at most half as large, and both
/// together take what a document may: neither is held while another answer or document is read.
pub const OBJECT_MEMORY: usize = DOCUMENT_MEMORY / 3 * 2;

/// Deployments of one document.
pub const DEPLOYMENTS: usize = 2_500;

/// Memory of everything in a document but its deployments: settings of sources and what the operator's templates add.
pub const METADATA_MEMORY: usize = 2 * MIB;

/// Memory of what all sources said last. Deployments are held as text.
pub const HELD_MEMORY: usize = 8 * MIB;

/// Bytes of the boot copies, and of the operator's local data. User data has at most 64 KiB.
pub const LOCAL_BYTES: usize = 256 * KIB;

/// Memory of each of the two: they are looked at at each poll, and so are kept beside the sources.
pub const LOCAL_MEMORY: usize = MIB;

/// Memory of any other JSON from outside: answers of Keystone, Magnum, etcd, error pages.
pub const ANSWER_MEMORY: usize = 2 * MIB;

/// Bytes of a node's parameters as YAML: ten times those of a master with all its certificates. Whatever the parser's scanner may be
/// made to keep of so much (130 bytes for each) has the place of a document that is read.
pub const YAML_CONFIG_BYTES: usize = 128 * KIB;

/// Levels of lists and objects in JSON from outside: serde_json reads 127, and what the agent stores of it lies up to 24 levels deeper.
pub const DEPTH: usize = 96;

/// Memory of one file of the agent's own state while it is read. Only records of versions that kept outputs in them come near.
pub const STATE_FILE_MEMORY: usize = 20 * MIB;

/// Memory of a node's deployment: the parameters of a master with all its certificates take a tenth of it. Up to three of them, those of
/// the newest generation and of the ones before it, lie in one file of the state.
pub const NODE_ENTRY_MEMORY: usize = 512 * KIB;

/// Memory of the records of deployments that the metadata does not list any more; the oldest go first, and those last of which Heat has no
/// result. What is listed is bounded by [`DOCUMENT_BYTES`].
pub const RECORDS_MEMORY: usize = 2 * MIB;

/// A result of more bytes than this is kept on disk alone: the record in memory has its status and reason.
pub const RESULT_IN_MEMORY: usize = KIB;

/// Bytes of a result, as JSON in its longest form: far more than Heat takes (1 MiB), and far less than what is read of any file. What a
/// job's runner keeps of a program's outputs is bounded by it while they are read.
pub const RESULT_BYTES: usize = 4 * MIB;

/// Bytes of the texts by which a script may show the secret inputs of its deployment, each form of them: 20 keys of 4 KiB in three forms.
pub const SECRET_TEXTS: usize = 256 * KIB;

/// Bytes of the secrets of all documents, each in every form, that commands mask in journals by their values. The search for them takes 35
/// times as much memory; where there are more, journals are withheld.
pub const KNOWN_SECRETS: usize = 512 * KIB;

/// Bytes of what Heat makes the reason of a failure: its column `status_reason` is a TEXT of 64 KiB in MySQL, with the resource's words around.
pub const STATUS_REASON: usize = 48 * 1024;

/// Outputs of one result.
pub const OUTPUTS: usize = 1_000;

/// Bytes of what `verify` reports at most: several hundred mistakes. Further ones are counted.
pub const VERIFY_BYTES: usize = 512 * KIB;

/// The status document, as values and as text, and the one before.
pub const STATUS_MEMORY: usize = 4 * MIB;

/// Bytes of bodies of signals that are on their way at one time; each is there up to four times (text, value, request, socket).
pub const SIGNALS_IN_FLIGHT: usize = MIB;

/// Bytes by which a request that carries a signal counts to [`SIGNALS_IN_FLIGHT`] beside its body, so that four are on their way at one time
/// at most: the head of an answer (816 KiB at worst: hyper looks for 408 between two reads), [`KEYSTONE_ANSWER`] and [`ENDPOINTS_MEMORY`]
/// are together less than four times as much.
pub const REQUEST_IN_FLIGHT: usize = 256 * KIB;

/// Bytes of Keystone's answer to a request for a token that any number of requests may have at one time: five regions
/// of a cloud with all services.
pub const KEYSTONE_ANSWER: usize = 128 * KIB;

/// Bytes of a larger one, which one request at a time may have. It is walked through piece by piece, and so has the place of
/// [`ANSWER_MEMORY`].
pub const LARGE_KEYSTONE_ANSWER: usize = 2 * MIB;

/// Bytes of a list of Zaqar's messages, of which one request at a time may have one: in the place of a large answer of Keystone's.
pub const MESSAGES_BYTES: usize = LARGE_KEYSTONE_ANSWER;

/// Bytes of a file of CAs, or of a certificate or key, that requests are made with: five times what browsers trust. It is there several times
/// while it is read (text, DER, the TLS library's own).
pub const CA_FILE: u64 = MIB as u64;

/// Memory of the endpoints that are kept of one catalog: those of two services, in 150 regions.
pub const ENDPOINTS_MEMORY: usize = 64 * KIB;

/// Memory of the tokens that are kept with their endpoints; those not used for longest go first.
pub const SESSIONS_MEMORY: usize = MIB;

/// Bytes on disk of what jobs left: outputs, results. The oldest of ended deployments go first.
pub const JOBS_DISK: usize = 128 * MIB;

/// Bytes on disk of the signals not yet delivered to Heat: 50 of the largest. While it is full, what ends waits where its job left it.
pub const OUTBOX_DISK: usize = 48 * MIB;

/// Bytes on disk of the states of other instances; the newest is kept however large it is, which is at most what this one's is.
pub const ASIDE_DISK: usize = 128 * MIB;

/// Small files that say to the replaced tools, and to the agent once the record is pruned, that a deployment was run. Those of
/// deployments that are long gone from the metadata are removed beyond this: two whole lists of Heat's may be away and come back.
pub const LEGACY_MARKS: usize = 2 * DEPLOYMENTS;

/// Bytes on disk of a mark.
pub const MARK: usize = 512;

/// Bytes on disk of the result beside a mark, where the record was removed before Heat had it: the usual script's, and of a longer one the
/// status and the reason.
pub const LEFT_RESULT: usize = 3 * KIB;

/// Files of the state that could not be understood, of which so many are kept in each directory.
pub const UNREADABLE_FILES: usize = 5;

/// Bytes on disk of those files, all directories together. The newest of each directory stays however large it is.
pub const UNREADABLE_DISK: usize = 32 * MIB;

/// What may be in memory at the same time, and how much of it.
pub const MEMORY_PARTS: [(&str, usize); 12] = [
    ("the process at rest", AT_REST),
    // cfn, heat and request may be asked side by side.
    ("answers on their way", 3 * DOCUMENT_BYTES),
    ("the document that is read", DOCUMENT_MEMORY),
    ("what the sources said", HELD_MEMORY),
    ("the boot copies and local data", 2 * LOCAL_MEMORY),
    ("the merged metadata", METADATA_MEMORY),
    ("records", 2 * RECORDS_MEMORY),
    ("the status document", STATUS_MEMORY),
    ("signals on their way", 4 * SIGNALS_IN_FLIGHT),
    ("an answer of another service", ANSWER_MEMORY),
    ("the objects of an add-on", ADD_ON_BYTES),
    ("Keystone's tokens", SESSIONS_MEMORY),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_add_up_to_no_more_than_the_whole() {
        let sum: usize = MEMORY_PARTS.iter().map(|(_, bytes)| bytes).sum();
        assert!(sum <= MEMORY, "{} KiB", sum / KIB);
        // 816 KiB: what hyper reads of a head at worst.
        const { assert!(KEYSTONE_ANSWER + ENDPOINTS_MEMORY + 816 * KIB <= 4 * REQUEST_IN_FLIGHT) };
        const { assert!(LARGE_KEYSTONE_ANSWER <= ANSWER_MEMORY) };
        // Read, each takes up to twice as much.
        const { assert!(3 * 2 * NODE_ENTRY_MEMORY + METADATA_MEMORY <= STATE_FILE_MEMORY) };
        // While the state is read nothing else is there.
        let opening = [AT_REST, STATE_FILE_MEMORY, 16 * MIB, RECORDS_MEMORY];
        assert!(opening.iter().sum::<usize>() <= MEMORY);
    }

    #[test]
    fn state_on_disk_is_bounded_in_sum() {
        // The newest state that was set aside is as large as this one's at most.
        let caches = 3 * DOCUMENT_BYTES;
        // Beside the replaced tools' record and, for ids that are no file names, in the state.
        let marks = 2 * LEGACY_MARKS * (MARK + LEFT_RESULT);
        let own = JOBS_DISK + OUTBOX_DISK + caches + UNREADABLE_DISK + marks;
        assert!(own + ASIDE_DISK.max(own) <= 512 * MIB, "{} MiB", (own + ASIDE_DISK.max(own)) / MIB);
    }
}
