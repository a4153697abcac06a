//! Reads what `org.freedesktop.DBus.Properties.GetAll` answers, as it lies in the message (D-Bus specification,
//! "Marshaling"). systemd sends some 300 properties of a unit and a dozen matter. zvariant's derive takes
//! five times as long, which a pass in which nothing changed cannot spare: see ARCHITECTURE.md, "Crates and our own code".

/// A value of a kind that is read. All other kinds are passed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PropertyValue<'a> {
    /// A string or an object path. The bus lets only UTF-8 through.
    Text(&'a [u8]),
    Unsigned(u32),
    Long(u64),
    Signed(i32),
    Flag(bool),
    /// A number and an object path, as systemd describes a job.
    Job(u32, &'a [u8]),
    /// The path of the first program of a list of command lines.
    Program(&'a [u8]),
}

/// As systemd describes `ExecStart=`: a list of path, words, whether a failure is ignored, and what became of it.
const COMMANDS: &[u8] = b"a(sasbttttuii)";

/// Containers in each other that D-Bus allows: 32 arrays and 32 structures.
const DEPTH: usize = 64;

/// Tells `take` the name and value of each property; `None` where the body is not as D-Bus asks for.
pub(super) fn read<'a>(body: &'a [u8], little_endian: bool, mut take: impl FnMut(&'a [u8], PropertyValue<'a>)) -> Option<()> {
    let mut reader = Reader { body, at: 0, little_endian };
    let length = reader.length()?;
    reader.align(8)?;
    let end = reader.at.checked_add(length)?;
    while reader.at < end {
        reader.align(8)?;
        let name = reader.text()?;
        match reader.signature()? {
            b"s" | b"o" => take(name, PropertyValue::Text(reader.text()?)),
            b"u" => take(name, PropertyValue::Unsigned(reader.u32()?)),
            b"t" => take(name, PropertyValue::Long(reader.u64()?)),
            b"i" => take(name, PropertyValue::Signed(reader.u32()?.cast_signed())),
            b"b" => take(name, PropertyValue::Flag(reader.u32()? != 0)),
            b"(uo)" => {
                reader.align(8)?;
                take(name, PropertyValue::Job(reader.u32()?, reader.text()?));
            }
            COMMANDS => {
                let length = reader.length()?;
                reader.align(8)?;
                let end = reader.at.checked_add(length)?;
                if length > 0 {
                    take(name, PropertyValue::Program(reader.text()?));
                }
                (reader.at <= end && end <= body.len()).then_some(())?;
                reader.at = end;
            }
            other => {
                let rest = reader.pass(other, DEPTH)?;
                rest.is_empty().then_some(())?;
            }
        }
    }
    (reader.at == end && end == body.len()).then_some(())
}

/// Where a reading is. Positions count from the body's begin, which D-Bus aligns to 8.
struct Reader<'a> {
    body: &'a [u8],
    at: usize,
    little_endian: bool,
}

impl<'a> Reader<'a> {
    fn align(&mut self, to: usize) -> Option<()> {
        self.at = self.at.checked_next_multiple_of(to)?;
        (self.at <= self.body.len()).then_some(())
    }

    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(count)?;
        let bytes = self.body.get(self.at..end)?;
        self.at = end;
        Some(bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.align(4)?;
        let bytes = self.bytes(4)?.try_into().ok()?;
        Some(if self.little_endian { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) })
    }

    fn u64(&mut self) -> Option<u64> {
        self.align(8)?;
        let bytes = self.bytes(8)?.try_into().ok()?;
        Some(if self.little_endian { u64::from_le_bytes(bytes) } else { u64::from_be_bytes(bytes) })
    }

    fn length(&mut self) -> Option<usize> {
        usize::try_from(self.u32()?).ok()
    }

    fn text(&mut self) -> Option<&'a [u8]> {
        let length = self.length()?;
        let text = self.bytes(length)?;
        self.bytes(1)?;
        Some(text)
    }

    fn signature(&mut self) -> Option<&'a [u8]> {
        let length = *self.bytes(1)?.first()?;
        let signature = self.bytes(usize::from(length))?;
        self.bytes(1)?;
        Some(signature)
    }

    /// Passes over one value of the first complete type of a signature, and gives the signature's rest.
    fn pass<'s>(&mut self, signature: &'s [u8], depth: usize) -> Option<&'s [u8]> {
        let (&kind, mut rest) = signature.split_first()?;
        let depth = depth.checked_sub(1)?;
        match kind {
            b'y' => drop(self.bytes(1)?),
            b'n' | b'q' | b'b' | b'i' | b'u' | b'h' | b'x' | b't' | b'd' => {
                let size = alignment(kind);
                self.align(size)?;
                self.bytes(size)?;
            }
            b's' | b'o' => drop(self.text()?),
            b'g' => drop(self.signature()?),
            b'v' => {
                let inner = self.signature()?;
                self.pass(inner, depth)?.is_empty().then_some(())?;
            }
            b'a' => {
                let length = self.length()?;
                self.align(alignment(*rest.first()?))?;
                self.bytes(length)?;
                rest = element(rest, depth)?;
            }
            b'(' => {
                self.align(8)?;
                while *rest.first()? != b')' {
                    rest = self.pass(rest, depth)?;
                }
                rest = rest.get(1..)?;
            }
            _ => return None,
        }
        Some(rest)
    }
}

fn alignment(kind: u8) -> usize {
    match kind {
        b'n' | b'q' => 2,
        b'b' | b'i' | b'u' | b'h' | b's' | b'o' | b'a' => 4,
        b'x' | b't' | b'd' | b'(' | b'{' => 8,
        _ => 1,
    }
}

/// What follows the first complete type of a signature.
fn element(signature: &[u8], depth: usize) -> Option<&[u8]> {
    let (&kind, mut rest) = signature.split_first()?;
    let depth = depth.checked_sub(1)?;
    match kind {
        b'a' => element(rest, depth),
        b'(' | b'{' => {
            while !matches!(*rest.first()?, b')' | b'}') {
                rest = element(rest, depth)?;
            }
            rest.get(1..)
        }
        _ => Some(rest),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap};

    use proptest::prelude::*;
    use zbus::zvariant::serialized::Context;
    use zbus::zvariant::{Endian, ObjectPath, OwnedValue, Signature, StructureBuilder, Value, to_bytes};

    use super::*;

    fn job() -> Value<'static> {
        let path = ObjectPath::try_from("/org/freedesktop/systemd1/job/7").unwrap();
        Value::from(StructureBuilder::new().add_field(7_u32).add_field(path).build().unwrap())
    }

    /// One value of each kind that systemd has, in shapes that need padding.
    fn any() -> BTreeMap<&'static str, Value<'static>> {
        let exec = vec![("/bin/sh".to_owned(), vec!["sh".to_owned(), "-c".to_owned()], true, 1_u64, -1_i32)];
        let limits: HashMap<String, Value<'_>> = HashMap::from([("a".into(), Value::from(3_u8)), ("b".into(), job())]);
        let nothing: Vec<(String, u64)> = Vec::new();
        BTreeMap::from([
            ("Byte", Value::from(1_u8)),
            ("Bytes", Value::from(vec![1_u8, 2, 3])),
            ("Short", Value::from(-2_i16)),
            ("UnsignedShort", Value::from(2_u16)),
            ("Long", Value::from(i64::MIN)),
            ("UnsignedLong", Value::from(u64::MAX)),
            ("Double", Value::from(0.5)),
            ("Kind", Value::from(Signature::try_from("a{sv}").unwrap())),
            ("Inner", Value::new(Value::from(vec!["one", "two"]))),
            ("Exec", Value::from(exec)),
            ("Limits", Value::from(limits)),
            ("Nothing", Value::from(nothing)),
            ("Id", Value::from("etcd.service")),
            ("Empty", Value::from("")),
            ("Following", Value::from(ObjectPath::try_from("/").unwrap())),
            ("MainPID", Value::from(4_000_000_000_u32)),
            ("ExecMainStatus", Value::from(-3_i32)),
            ("CanStart", Value::from(true)),
            ("Job", job()),
        ])
    }

    /// A list of command lines as systemd describes it.
    fn commands(programs: &[&str]) -> Value<'static> {
        let times = (1_u64, 2_u64, 3_u64, 4_u64);
        let one = |path: &str| {
            let words = vec![path.to_owned(), "--flag".to_owned()];
            (path.to_owned(), words, false, times.0, times.1, times.2, times.3, 7_u32, 1_i32, 203_i32)
        };
        Value::from(programs.iter().map(|path| one(path)).collect::<Vec<_>>())
    }

    #[test]
    fn the_program_of_a_command_line_is_reported() {
        for (programs, expected) in [(&["/usr/bin/etcd", "/bin/two"][..], Some("/usr/bin/etcd")), (&[], None)] {
            for pad in ["P", "PPP"] {
                let properties = BTreeMap::from([(pad, Value::from(true)), ("Q", commands(programs)), ("Z", Value::from("end"))]);
                for endian in [Endian::Little, Endian::Big] {
                    let body = body(&properties, endian);
                    let all = shown(&body, endian).unwrap();
                    assert_eq!(all.get(b"Q".as_slice()), expected.map(|path| PropertyValue::Program(path.as_bytes())).as_ref());
                    assert_eq!(all.get(b"Z".as_slice()), Some(&PropertyValue::Text(b"end")));
                }
            }
        }
    }

    fn body(properties: &BTreeMap<&str, Value<'_>>, endian: Endian) -> Vec<u8> {
        to_bytes(Context::new_dbus(endian, 0), properties).unwrap().to_vec()
    }

    fn shown(body: &[u8], endian: Endian) -> Option<BTreeMap<&[u8], PropertyValue<'_>>> {
        let mut all = BTreeMap::new();
        read(body, endian == Endian::Little, |name, value| {
            all.insert(name, value);
        })?;
        Some(all)
    }

    #[test]
    fn what_zvariant_wrote_is_read_in_either_byte_order() {
        for endian in [Endian::Little, Endian::Big] {
            let body = body(&any(), endian);
            let expected = BTreeMap::from([
                (b"Id".as_slice(), PropertyValue::Text(b"etcd.service")),
                (b"Empty", PropertyValue::Text(b"")),
                (b"Following", PropertyValue::Text(b"/")),
                (b"MainPID", PropertyValue::Unsigned(4_000_000_000)),
                (b"ExecMainStatus", PropertyValue::Signed(-3)),
                (b"CanStart", PropertyValue::Flag(true)),
                (b"Job", PropertyValue::Job(7, b"/org/freedesktop/systemd1/job/7")),
                (b"UnsignedLong", PropertyValue::Long(u64::MAX)),
            ]);
            assert_eq!(shown(&body, endian), Some(expected));
        }
    }

    #[test]
    fn each_kind_is_passed_over_to_its_end() {
        // Before a value that is read, at each alignment.
        for (name, value) in any() {
            for pad in ["P", "PP", "PPP", "PPPP", "PPPPP", "PPPPPP", "PPPPPPP", "PPPPPPPP"] {
                let value = OwnedValue::try_from(value.clone()).unwrap();
                let properties = BTreeMap::from([(pad, Value::from(value)), ("Z", Value::from("end"))]);
                let body = body(&properties, Endian::Little);
                let all = shown(&body, Endian::Little).unwrap();
                assert_eq!(all.get(b"Z".as_slice()), Some(&PropertyValue::Text(b"end")), "{name} {pad}");
            }
        }
    }

    #[test]
    fn a_body_that_is_cut_or_too_long_is_refused() {
        let whole = body(&any(), Endian::Little);
        for end in 0..whole.len() {
            assert_eq!(shown(&whole[..end], Endian::Little), None, "{end} of {}", whole.len());
        }
        let longer = [whole.as_slice(), b"\0"].concat();
        assert_eq!(shown(&longer, Endian::Little), None);
        let nested = [&200_u32.to_le_bytes()[..], &[0; 4], &1_u32.to_le_bytes(), b"N\0", &[150], &[b'('; 150], b"\0"].concat();
        assert_eq!(shown(&nested, Endian::Little), None);
    }

    proptest! {
        #[test]
        fn no_bytes_are_its_end(bytes: Vec<u8>, signature in "[ybnqiuxtdsogva(){}]{0,40}") {
            let _ = shown(&bytes, Endian::Little);
            let entry = [b"\0\0\0\0", &1_u32.to_le_bytes()[..], b"N\0", &[u8::try_from(signature.len()).unwrap()],
                signature.as_bytes(), b"\0", &bytes].concat();
            let length = u32::try_from(entry.len() - 4).unwrap().to_le_bytes();
            let _ = shown(&[&length[..], &entry].concat(), Endian::Little);
        }
    }
}
