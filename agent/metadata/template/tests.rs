//! Templates, and what is known of them.

use serde_json::json;

use super::*;
use crate::budgets::yaml;

fn template(text: &str) -> Template {
    read(&yaml::read(text).unwrap_or_else(|rejection| panic!("{rejection:?}")))
}

/// A template with these parameters, resources, and properties of a deployment of the config `config`.
fn with(parameters: &str, config: &str, deployment: &str) -> Template {
    let indented = |text: &str, by: usize| text.lines().map(|line| format!("{}{line}\n", " ".repeat(by))).collect::<String>();
    template(&format!(
        "heat_template_version: rocky\nparameters:\n{}resources:\n  config:\n    type: OS::Heat::SoftwareConfig\n    properties:\n\
         {}  deployment:\n    type: OS::Heat::SoftwareDeployment\n    properties:\n      config: {{get_resource: config}}\n      server: \
         {{get_resource: server}}\n{}  server: {{type: 'OS::Heat::DeployedServer'}}\n",
        indented(parameters, 2),
        indented(config, 6),
        indented(deployment, 6)
    ))
}

const NODE: &str = "group: kubernetes-node";

fn problems(template: &Template) -> Vec<String> {
    let of = |problem: &TemplateProblem| {
        format!(
            "{}{}:{} {}: {}",
            if problem.warns { "note " } else { "" },
            problem.location.resource,
            problem.location.line,
            problem.key,
            problem.problem
        )
    };
    template.problems.iter().map(of).collect()
}

fn value(template: &Template, name: &str) -> Value {
    let inputs = template.planned[0].entry["inputs"].as_array().unwrap();
    inputs.iter().find(|input| input["name"] == name).unwrap_or_else(|| panic!("{name} in {inputs:?}"))["value"].clone()
}

#[test]
fn each_value_is_known_or_named_as_not_known() {
    let parameters = "given: {type: string}\nrole: {type: string, default: master}\nempty: {type: string, default: ''}\n\
                      many: {type: comma_delimited_list, default: 'a, b'}\nmap: {type: json, default: {x: [1, {y: deep}]}}\n\
                      text: {type: json, default: '{\"x\": 1}'}";
    for (written, expected) in [
        ("literal", Some(json!("literal"))),
        ("yes", Some(json!(true))),
        ("{get_param: role}", Some(json!("master"))),
        ("{get_param: given}", None),
        ("{get_param: empty}", None),
        ("{get_param: many}", Some(json!(["a", "b"]))),
        ("{get_param: [map, x, 1, y]}", Some(json!("deep"))),
        ("{get_param: [map, z]}", None),
        ("{get_param: text}", None),
        ("{get_param: 'OS::stack_id'}", None),
        ("{get_param: [given, {get_param: role}]}", None),
        ("{get_attr: [server, name]}", None),
        ("{get_resource: server}", None),
        ("{str_replace: {template: a, params: {a: b}}}", None),
        ("{get_file: x.sh}", None),
        ("{if: [yes, a, b]}", None),
        ("{'Fn::Select': [0, [a]]}", None),
        ("{map_merge: [{a: 1}, {a: {get_param: role}}]}", Some(json!({"a": "master"}))),
        ("{map_merge: [{a: 1}, {get_param: given}]}", None),
        ("[a, {get_param: role}]", Some(json!(["a", "master"]))),
        ("[a, {get_param: given}]", None),
        ("{url: x, get_param: y}", Some(json!({"url": "x", "get_param": "y"}))),
    ] {
        let read = with(parameters, &format!("{NODE}\ninputs: [{{name: X}}]"), &format!("input_values: {{X: {written}}}"));
        assert_eq!(problems(&read), Vec::<String>::new(), "{written}");
        let [planned] = &read.planned[..] else { panic!("{written}") };
        assert_eq!(planned.unknown.contains("X"), expected.is_none(), "{written}");
        assert_eq!(value(&read, "X"), expected.unwrap_or_default(), "{written}");
        assert!(!planned.open && planned.server.as_deref() == Some("server"));
    }
}

#[test]
fn the_whole_of_the_values_may_come_from_functions() {
    let parameters = "given: {type: json}\nmap: {type: json, default: {A: 1, B: 2}}";
    let inputs = format!("{NODE}\ninputs: [{{name: A, default: 0}}, {{name: B}}, {{name: C}}]");
    for (values, a, b, open) in [
        ("{A: 3, B: 4}", json!(3), json!(4), false),
        ("{get_param: map}", json!(1), json!(2), false),
        ("{map_merge: [{get_param: map}, {B: 5}]}", json!(1), json!(5), false),
        ("{map_merge: [{get_param: given}, {B: 5}]}", json!(0), json!(5), true),
        ("{map_merge: [{map_merge: [{A: 7}]}, {B: {get_param: given}}]}", json!(7), json!(null), false),
        ("{get_param: given}", json!(0), json!(null), true),
        ("{yaql: {expression: x, data: {}}}", json!(0), json!(null), true),
        ("", json!(0), json!(null), false),
    ] {
        let read = with(parameters, &inputs, &format!("input_values: {values}"));
        assert_eq!((value(&read, "A"), value(&read, "B"), read.planned[0].open), (a, b, open), "{values}");
        assert!(value(&read, "C").is_null() && problems(&read).is_empty(), "{values}: {:?}", problems(&read));
        let names: Vec<_> = read.planned[0].entry["inputs"].as_array().unwrap().iter().map(|one| one["name"].clone()).collect();
        assert_eq!(names, ["A", "B", "C", "deploy_action"], "no function is taken for a name");
    }
}

#[test]
fn what_heat_would_not_take_is_named_with_its_line() {
    for (config, deployment, expected) in [
        ("inputs: {a: b}", "", "config:8 inputs: is a map, not a list"),
        ("inputs:\n- name: a\n- type: Number", "", "config:10 inputs[1]: has no name"),
        ("inputs: [a]", "", "config:8 inputs[0]: is a text, not a map"),
        ("inputs: [{name: 3}]", "", "config:8 inputs[0]: its name is not a text"),
        ("inputs:\n- {name: a, type: string}", "", "config:9 a: type is \"string\""),
        ("inputs:\n- {name: a, value: 3}", "", "config:9 inputs.a: value: is no property of this type"),
        ("outputs:\n- {name: a}\n- []", "", "config:10 outputs[1]: is a list, not a map"),
        ("outputs:\n- {name: a, error_output: maybe}", "", "config:9 a: error_output is a text"),
        ("outputs: a", "", "config:8 outputs: is a text, not a list"),
        ("config: {a: b}", "", "config:8 config: is a map"),
        ("input: []", "", "config:8 input: is no property of this type"),
        ("group: [script]", "", "config:8 group: is a list"),
        ("", "input_values: [a]", "deployment:13 input_values: is a list"),
        ("", "signal_transport: SMOKE_SIGNAL", "deployment:13 signal_transport: is \"SMOKE_SIGNAL\""),
        ("", "servers: {}", "deployment:13 servers: is no property of this type"),
        (
            "inputs: [{name: a}]",
            "input_values:\n  a: {get_param: nothing}",
            "deployment:15 get_param: the template has no parameter \"nothing\"",
        ),
        (
            "inputs: [{name: a}]",
            "input_values:\n  a: {get_resource: nothing}",
            "deployment:15 get_resource: the template has no resource \"nothing\"",
        ),
        (
            "inputs: [{name: a}]",
            "input_values:\n  a: {list_join: ['', [{get_attr: [gone, x]}]]}",
            "deployment:15 get_attr: the template has no resource \"gone\"",
        ),
        ("inputs: [{name: a}]", "input_values:\n  a: 1\n  b: 2", "note deployment:16 b: is not declared in the inputs of config"),
        ("", "input_values:\n  a: 1\n  b: 2", "note deployment:14 input_values: 2 inputs are not declared: a …"),
        ("", "name: a\nname: b", "note :14 name: is given twice"),
    ] {
        assert_eq!(problems(&with("x: {type: string}", config, deployment)), [expected], "{config} {deployment}");
    }
    for (text, expected) in [
        ("resources: [a]", ":2 resources: is a list"),
        ("resources:\n  a: {properties: {}}", "a:3 type: is missing"),
        ("resources:\n  a: {type: 'OS::Heat::SoftwareDeployment'}", "a:3 config: is missing"),
        (
            "resources:\n  a: {type: 'OS::Heat::SoftwareDeployment', properties: {config: {get_resource: b}}}",
            "a:3 get_resource: the template has no resource \"b\"",
        ),
        (
            "resources:\n  a: {type: 'OS::Heat::SoftwareDeployment', properties: {config: {get_param: b}}}\nparameters: {b: {type: string}}",
            "note a:3 config: is not a software config of this template, so the deployment is not checked",
        ),
        ("resources:\n  a: {type: master.yaml}", "note a:3 type: master.yaml is a template of its own, which is not looked into"),
    ] {
        assert_eq!(problems(&template(&format!("heat_template_version: rocky\n{text}\n"))), [expected], "{text}");
    }
}

#[test]
fn groups_are_walked_and_their_numbers_known() {
    let read = template(
        "heat_template_version: rocky\nresources:\n  config:\n    type: OS::Heat::SoftwareConfig\n    properties: {group: kubernetes-node, inputs: \
         [{name: INSTANCE_NAME}]}\n  nodes:\n    type: OS::Heat::ResourceGroup\n    properties:\n      count: 3\n      resource_def:\n        \
         type: OS::Heat::SoftwareDeployment\n        properties:\n          config: {get_resource: config}\n          server: {get_param: s}\n          \
         input_values:\n            INSTANCE_NAME: minion-%index%\n  inner:\n    type: OS::Heat::AutoScalingGroup\n    properties:\n      resource:\n        \
         type: OS::Heat::ResourceGroup\n        properties:\n          index_var: '#'\n          resource_def:\n            type: \
         OS::Heat::SoftwareDeploymentGroup\n            properties: {config: {get_resource: config}, servers: {}, input_values: {INSTANCE_NAME: 'n#'}}\n",
    );
    let found: Vec<_> = read
        .planned
        .iter()
        .map(|one| (one.location.resource.as_str(), one.location.line, one.entry["inputs"][0]["value"].clone()))
        .collect();
    assert_eq!(found, [("nodes.resource_def", 10, json!("minion-0")), ("inner.resource.resource_def", 24, json!("n0"))]);
    assert_eq!(read.planned[0].locations["INSTANCE_NAME"], Location { resource: "nodes.resource_def".into(), line: 16 });
    assert!(problems(&read).is_empty(), "{:?}", problems(&read));
}

#[test]
fn values_of_other_resources_and_structured_configs_are_followed() {
    let read = template(
        "heat_template_version: rocky\nresources:\n  all: {type: 'OS::Heat::Value', properties: {type: json, value: {map_merge: [{A: 1}, {B: 2}]}}}\n  \
         loop: {type: 'OS::Heat::Value', properties: {value: [{get_attr: [loop, value]}, {get_attr: [loop, value]}]}}\n  \
         config:\n    type: OS::Heat::StructuredConfig\n    properties:\n      group: kubernetes-node\n      inputs: [{name: A}, {name: L}, {name: N}]\n      \
         config:\n        FROM: {get_input: A}\n        NONE: {get_input: N}\n        OPEN: {get_input: L}\n        DEEP: [{x: {get_input: A}}]\n  \
         d:\n    type: OS::Heat::StructuredDeployment\n    properties:\n      config: {get_resource: config}\n      input_values: {map_merge: [{get_attr: [all, value]}, {L: {get_attr: [loop, value]}}]}\n",
    );
    let [planned] = &read.planned[..] else { panic!("{read:?}") };
    assert_eq!(planned.entry["config"], json!({"FROM": 1, "NONE": null, "OPEN": null, "DEEP": [{"x": 1}]}));
    assert_eq!(planned.unknown, BTreeSet::from(["L".to_owned(), "OPEN".to_owned()]));
    assert_eq!(planned.locations["FROM"], Location { resource: "config".into(), line: 11 });
    assert_eq!(problems(&read), ["note d:3 B: is not declared in the inputs of config"]);
}

/// A config of its own is looked at too: its inputs may be wrong.
#[test]
fn components_and_configs_without_a_deployment_are_planned() {
    let read = template(
        "heat_template_version: rocky\nresources:\n  c:\n    type: OS::Heat::SoftwareComponent\n    properties:\n      configs:\n      - {actions: [CREATE], tool: script, \
         config: {get_file: x}}\n  unused:\n    type: OS::Heat::SoftwareConfig\n    properties: {group: kubernetes-node, inputs: [{name: ROLE, default: x}]}\n",
    );
    let [component, unused] = &read.planned[..] else { panic!("{read:?}") };
    assert_eq!(component.entry["config"], json!({"configs": [{"actions": ["CREATE"], "tool": "script", "config": ""}]}));
    assert!(component.open && unused.open);
    assert_eq!((unused.location.resource.as_str(), &unused.entry["inputs"][0]["value"]), ("unused", &json!("x")));
}

/// Attack: small templates whose values grow with each reference.
#[test]
fn what_is_resolved_is_bounded_in_sum() {
    let values: String = (1..30)
        .map(|n| {
            let before = vec![format!("{{get_attr: [v{}, value]}}", n - 1); 8].join(", ");
            format!("  v{n}: {{type: 'OS::Heat::Value', properties: {{value: [{before}]}}}}\n")
        })
        .collect();
    let grows = format!(
        "heat_template_version: rocky\nresources:\n  v0: {{type: 'OS::Heat::Value', properties: {{value: abcdefgh}}}}\n{values}  c: {{type: 'OS::Heat::SoftwareConfig', properties: {{group: \
         script, inputs: [{{name: x, default: {{get_attr: [v29, value]}}}}]}}}}\n"
    );
    let many: String = (0..2_600)
        .map(|n| format!("  d{n}: {{type: 'OS::Heat::SoftwareDeployment', properties: {{config: {{get_resource: c}}}}}}\n"))
        .collect();
    let many = format!(
        "heat_template_version: rocky\nresources:\n  c: {{type: 'OS::Heat::SoftwareConfig', properties: {{config: {}}}}}\n{many}",
        "x".repeat(20_000)
    );
    for text in [grows, many] {
        let read = template(&text);
        assert!(
            problems(&read)[0].starts_with(":0 heat_template_version: the template takes more than"),
            "{:?}",
            problems(&read)
        );
        let sum: usize = read.planned.iter().map(|one| budget::weight(&one.entry)).sum();
        assert!(sum <= DOCUMENT_MEMORY, "{sum}");
    }
}
