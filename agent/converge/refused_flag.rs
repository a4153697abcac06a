//! Which flag a program refused, by what it said last: the words are those of pflag, which Kubernetes' programs use, and of Go's own
//! package flag, which flannel uses. Pure.

use crate::desired::Desired;
use crate::error::remedy::Remedy;

/// What stands right before the flag.
const BEFORE: [&str; 4] = ["unknown flag: ", "flag needs an argument: ", "flag provided but not defined: ", "bad flag syntax: "];
/// What begins a text that has the value first and the flag behind ` for `: `invalid argument "x" for "--v" flag: …` (older pflag:
/// `for --v=x: …`), `invalid value "x" for flag -v: …`.
const VALUE_FIRST: [&str; 2] = ["invalid argument ", "invalid value "];

/// The flag, without dashes, that the newest of these lines refuses.
pub(super) fn refused_flag(output: &[String]) -> Option<String> {
    output.iter().rev().find_map(|line| in_line(line))
}

fn in_line(line: &str) -> Option<String> {
    // klog quotes an error that stands in a field of a line.
    let line = line.replace("\\\"", "\"");
    let behind = |words: &str| line.split_once(words).map(|(_, rest)| rest);
    let named = BEFORE.iter().find_map(|words| behind(words)).and_then(flag_at);
    // The value may have any words, and the reason behind the flag too: the first that is followed by a flag counts.
    let after_value = || {
        let rest = VALUE_FIRST.iter().find_map(|words| behind(words))?;
        rest.match_indices(" for ").find_map(|(at, words)| flag_at(rest.get(at + words.len()..)?.trim_start_matches("flag ")))
    };
    named.or_else(after_value)
}

/// The name of the flag with which a text begins, perhaps in quotes; of a flag with a short form (`"-v, --v"`) the long one.
fn flag_at(text: &str) -> Option<String> {
    let text = text.trim_start_matches('"');
    let text = match text.split_once(", --") {
        Some((short, _)) if short.len() == 2 && short.starts_with('-') => text.get(4..)?,
        _ => text,
    };
    let name = text.strip_prefix("--").or_else(|| text.strip_prefix('-'))?;
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let name: String = name.chars().take_while(|c| is_of_name(*c)).collect();
    (!name.is_empty()).then(|| name.replace('_', "-"))
}

/// What to do about it, where a parameter gives this flag to the unit.
pub(super) fn remedy(desired: &Desired, unit: &str, flag: &str) -> Option<Remedy> {
    let given = desired.given_flags.iter().find(|given| given.unit == unit && given.names.contains(flag))?;
    let parameter = given.parameter;
    Some(Remedy::stack_update(format!(
        "correct --{flag} in {parameter} of the template, or take it out there, and update the stack"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::desired::GivenFlags;

    #[test]
    fn the_flag_is_found_in_the_words_of_each_release() {
        for (line, flag) in [
            (
                r#"E0101 00:00:00.000000       1 run.go:74] "command failed" err="failed to parse kubelet flag: unknown flag: --no-such-flag""#,
                "no-such-flag",
            ),
            ("unknown flag: --nonsense", "nonsense"),
            ("Error: unknown flag: --node_labels", "node-labels"),
            ("flag needs an argument: --v", "v"),
            ("flag provided but not defined: -iface-x", "iface-x"),
            (r#"Error: invalid argument "many" for "--v" flag: strconv.ParseInt: parsing "many": invalid syntax"#, "v"),
            (r#"err="failed to parse kubelet flag: invalid argument \"a for b\" for \"--node-labels\" flag: no""#, "node-labels"),
            (r#"invalid argument "x" for --max-pods=x: strconv.ParseInt: parsing "x": invalid syntax"#, "max-pods"),
            (r#"invalid argument "x" for "-v, --v" flag: no"#, "v"),
            (r#"invalid value "x" for flag -subnet-lease-renew-margin: parse error"#, "subnet-lease-renew-margin"),
            ("failed to run Kubelet: mountpoint for cpu not found", ""),
            ("invalid argument for this: no", ""),
            ("unknown flag: ", ""),
        ] {
            let found = refused_flag(&["Started kubelet.".to_owned(), line.to_owned()]);
            assert_eq!(found.unwrap_or_default(), flag, "{line}");
        }
    }

    #[test]
    fn its_parameter_is_named_where_it_is_of_one() {
        let names = ["no-such-flag".to_owned()].into();
        let given = GivenFlags { unit: "kubelet.service".to_owned(), parameter: "KUBELET_OPTIONS", names };
        let desired = Desired { given_flags: vec![given], ..Desired::default() };
        let of = |unit: &str, flag: &str| remedy(&desired, unit, flag).map(|remedy| remedy.to_string());
        let expected = "correct --no-such-flag in KUBELET_OPTIONS of the template, or take it out there, and update the stack";
        assert_eq!(of("kubelet.service", "no-such-flag").as_deref(), Some(expected));
        assert_eq!((of("kubelet.service", "v"), of("kube-proxy.service", "no-such-flag")), (None, None));
    }
}
