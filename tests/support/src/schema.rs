//! A validator for the keywords of JSON Schema that our published schemas use.

use serde_json::Value;

/// Keywords without effect on validation.
const ANNOTATIONS: [&str; 4] = ["$schema", "$defs", "title", "description"];

/// The contradictions between `value` and `schema`, each with its place as a JSON pointer; none if it
/// conforms.
///
/// # Panics
/// For a keyword that this validator does not know, so that no part of a schema is ignored.
pub fn violations(schema: &Value, value: &Value) -> Vec<String> {
    let mut found = Vec::new();
    Validator { root: schema, found: &mut found }.check(schema, value, "");
    found
}

struct Validator<'a> {
    root: &'a Value,
    found: &'a mut Vec<String>,
}

impl Validator<'_> {
    fn check(&mut self, schema: &Value, value: &Value, at: &str) {
        for (keyword, argument) in schema.as_object().expect("a schema is an object") {
            match keyword.as_str() {
                "$ref" => {
                    let pointer =
                        argument.as_str().and_then(|r| r.strip_prefix('#')).expect("a local reference");
                    let root = self.root;
                    self.check(
                        root.pointer(pointer).unwrap_or_else(|| panic!("{pointer} exists")),
                        value,
                        at,
                    );
                }
                "anyOf" => {
                    let matches = |branch: &Value| {
                        let mut found = Vec::new();
                        Validator { root: self.root, found: &mut found }.check(branch, value, at);
                        found.is_empty()
                    };
                    let any = argument.as_array().expect("a list").iter().any(matches);
                    self.expect(any, at, "matches no branch of anyOf");
                }
                "properties" => self.properties(argument, value, at),
                "additionalProperties" => self.additional(schema, argument, value, at),
                "items" => {
                    for (i, item) in value.as_array().into_iter().flatten().enumerate() {
                        self.check(argument, item, &format!("{at}/{i}"));
                    }
                }
                "required" => {
                    for key in argument.as_array().expect("a list").iter().filter_map(Value::as_str) {
                        let present = !value.is_object() || value.get(key).is_some();
                        self.expect(present, at, &format!("lacks `{key}`"));
                    }
                }
                other => self.simple(other, argument, value, at),
            }
        }
    }

    fn simple(&mut self, keyword: &str, argument: &Value, value: &Value, at: &str) {
        let length = value.as_array().map(Vec::len);
        let (number, limit) = (value.as_f64(), argument.as_f64());
        let holds = match keyword {
            "type" => is_of_type(value, argument.as_str().expect("a type's name")),
            "enum" => argument.as_array().expect("a list").contains(value),
            "const" => argument == value,
            "minimum" => number.is_none_or(|number| number >= limit.expect("a number")),
            "maximum" => number.is_none_or(|number| number <= limit.expect("a number")),
            "minItems" => length.is_none_or(|length| length as f64 >= limit.expect("a number")),
            "maxItems" => length.is_none_or(|length| length as f64 <= limit.expect("a number")),
            annotation if ANNOTATIONS.contains(&annotation) => true,
            unknown => panic!("the keyword `{unknown}` is not supported"),
        };
        self.expect(holds, at, &format!("is {value}, but `{keyword}` is {argument}"));
    }

    fn properties(&mut self, properties: &Value, value: &Value, at: &str) {
        for (key, item) in value.as_object().into_iter().flatten() {
            if let Some(schema) = properties.get(key) {
                self.check(schema, item, &format!("{at}/{key}"));
            }
        }
    }

    fn additional(&mut self, schema: &Value, argument: &Value, value: &Value, at: &str) {
        for (key, item) in value.as_object().into_iter().flatten() {
            if schema.get("properties").is_some_and(|properties| properties.get(key).is_some()) {
                continue;
            }
            match argument {
                Value::Bool(allowed) => self.expect(*allowed, at, &format!("has the unknown key `{key}`")),
                schema => self.check(schema, item, &format!("{at}/{key}")),
            }
        }
    }

    fn expect(&mut self, holds: bool, at: &str, problem: &str) {
        if !holds {
            self.found.push(format!("{at}: {problem}"));
        }
    }
}

fn is_of_type(value: &Value, name: &str) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "number" => value.is_number(),
        "integer" => value.is_u64() || value.is_i64(),
        other => panic!("the type `{other}` is not supported"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn contradictions_are_found() {
        let schema = json!({
            "$defs": {"n": {"type": "integer", "minimum": 1, "maximum": 3}},
            "type": "object",
            "properties": {"a": {"$ref": "#/$defs/n"}, "b": {"type": "array", "items": {"enum": ["x"]}, "maxItems": 2},
                "c": {"anyOf": [{"type": "string"}, {"const": 4}]}},
            "required": ["a"],
            "additionalProperties": {"type": "boolean"},
        });
        let cases = [
            (json!({"a": 1, "b": ["x"], "c": 4, "d": true}), 0),
            (json!({"a": 0}), 1),
            (json!({"a": 1.5}), 1),
            (json!({"b": ["x", "y", "z"]}), 4),
            (json!({"a": 4, "c": 5, "d": 1}), 3),
            (json!([]), 1),
        ];
        for (value, expected) in cases {
            let found = violations(&schema, &value);
            assert_eq!(found.len(), expected, "{value}: {found:?}");
        }
    }

    #[test]
    #[should_panic(expected = "`pattern` is not supported")]
    fn unknown_keywords_are_refused() {
        violations(&json!({"pattern": "a"}), &json!("a"));
    }
}
