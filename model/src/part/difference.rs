//! The first difference of two JSON documents, for messages.

use serde_json::Value;

/// Longest text of a value in a message, in characters.
const LONGEST: usize = 80;

/// A value that differs: its path, such as `recipe.rules[2].calibrator`, and the two values.
type Difference = (String, String, String);

/// The first difference of two documents; one of settings goes before one of hashes, because a user's setting
/// says more than a hash. `None` if the documents are equal.
pub fn first_difference(a: &Value, b: &Value) -> Option<Difference> {
    let mut all = Vec::new();
    collect(String::new(), a, b, &mut all);
    let stated =
        all.iter().position(|(path, value, _)| !path.ends_with("sha256") && !value.starts_with("xxh3-"));
    (!all.is_empty()).then(|| all.swap_remove(stated.unwrap_or(0)))
}

/// Adds the differences of the values at `path` to `all`.
fn collect(path: String, a: &Value, b: &Value, all: &mut Vec<Difference>) {
    if a == b {
        return;
    }
    match (a, b) {
        (Value::Object(left), Value::Object(right)) => {
            let keys = left.keys().chain(right.keys().filter(|key| !left.contains_key(*key)));
            for key in keys {
                let (a, b) = (left.get(key).unwrap_or(&Value::Null), right.get(key).unwrap_or(&Value::Null));
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                collect(path, a, b, all);
            }
        }
        (Value::Array(left), Value::Array(right)) if left.len() == right.len() => {
            for (i, (a, b)) in left.iter().zip(right).enumerate() {
                collect(format!("{path}[{i}]"), a, b, all);
            }
        }
        _ => all.push((path, shown(a), shown(b))),
    }
}

fn shown(value: &Value) -> String {
    let text = match value {
        Value::Null => "not set".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_first_difference_is_named() {
        let base = json!({"model": "a", "recipe": {"rules": [{"match": "x"}, {"match": "y"}]}});
        assert_eq!(first_difference(&base, &base), None);
        let mut other = base.clone();
        other["recipe"]["rules"][1]["ptq"] = json!("basic");
        let (path, a, b) = first_difference(&base, &other).unwrap();
        assert_eq!((&*path, &*a, &*b), ("recipe.rules[1].ptq", "not set", "basic"));
        let (path, a, b) = first_difference(&json!({"n": 8}), &json!({"n": 16})).unwrap();
        assert_eq!((&*path, &*a, &*b), ("n", "8", "16"));
        let (a, b) = (
            json!({"a_sha256": "1", "b": "xxh3-128:1", "c": 1}),
            json!({"a_sha256": "2", "b": "xxh3-128:2"}),
        );
        assert_eq!(first_difference(&a, &b).unwrap().0, "c");
        let (path, _, b) = first_difference(&json!({"n": [1]}), &json!({"n": ["x".repeat(99)]})).unwrap();
        assert_eq!((&*path, b.len()), ("n[0]", LONGEST + 3));
    }
}
