//! Patterns of tensor names, which are read both ways.
//!
//! | placeholder | stands for |
//! | --- | --- |
//! | `{s}`, or with a factor and an offset: `{s+1}`, `{2s+1}` | the number of a stage from 0, or a number that depends on it |
//! | `{b}` | the number of a block in its stage |
//! | `{last}` | the number of the last stage |
//! | `{*}` | any text that is not empty |

/// The values of a pattern's placeholders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Captures<'a> {
    /// The stage; 0 without a placeholder for one.
    pub stage: usize,
    block: usize,
    text: &'a str,
}

/// The values of the placeholders of `pattern` in `name`, if the whole name follows it. `last` is the last
/// stage.
pub(super) fn matches<'a>(pattern: &str, name: &'a str, last: usize) -> Option<Captures<'a>> {
    follow(pattern, name, last, Captures::default())
}

/// `pattern` with its placeholders replaced; `None` if a number would be too large.
pub(super) fn fill(pattern: &str, captures: Captures<'_>, last: usize) -> Option<String> {
    let mut name = String::new();
    let mut rest = pattern;
    while let Some((literal, placeholder, after)) = split(rest) {
        name += literal;
        name += &match placeholder {
            "*" => captures.text.to_owned(),
            "b" => captures.block.to_string(),
            "last" => last.to_string(),
            stage => {
                let (factor, offset) = linear(stage);
                captures.stage.checked_mul(factor)?.checked_add(offset)?.to_string()
            }
        };
        rest = after;
    }
    Some(name + rest)
}

fn follow<'a>(pattern: &str, name: &'a str, last: usize, captures: Captures<'a>) -> Option<Captures<'a>> {
    let Some((literal, placeholder, after)) = split(pattern) else {
        return (pattern == name).then_some(captures);
    };
    let name = name.strip_prefix(literal)?;
    if placeholder == "*" {
        let mut ends = name.char_indices().skip(1).map(|(end, _)| end).chain([name.len()]);
        return ends.find_map(|end| {
            let (text, rest) = name.split_at(end);
            follow(after, rest, last, Captures { text, ..captures }).filter(|_| !text.is_empty())
        });
    }
    let (number, rest) = number(name)?;
    let captures = match placeholder {
        "b" => Captures { block: number, ..captures },
        "last" => (number == last).then_some(captures)?,
        stage => {
            let (factor, offset) = linear(stage);
            let scaled = number.checked_sub(offset).filter(|scaled| scaled.is_multiple_of(factor))?;
            Captures { stage: scaled / factor, ..captures }
        }
    };
    follow(after, rest, last, captures)
}

/// The text before the first placeholder of `pattern`, the placeholder, and the text after it.
fn split(pattern: &str) -> Option<(&str, &str, &str)> {
    let (literal, rest) = pattern.split_once('{')?;
    let (placeholder, after) = rest.split_once('}')?;
    Some((literal, placeholder, after))
}

/// Factor and offset of the placeholder `[factor]s[+offset]`.
fn linear(placeholder: &str) -> (usize, usize) {
    let (factor, offset) = placeholder.split_once('s').unwrap_or(("", ""));
    let number = |text: &str| text.trim_start_matches('+').parse().ok();
    (number(factor).unwrap_or(1), number(offset).unwrap_or(0))
}

/// The decimal number at the start of `name`, written as a program writes it, and the rest.
fn number(name: &str) -> Option<(usize, &str)> {
    let digits = name.bytes().take_while(u8::is_ascii_digit).count();
    let (text, rest) = name.split_at(digits);
    let number: usize = text.parse().ok()?;
    (number.to_string() == text).then_some((number, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_read_both_ways() {
        let cases = [
            (
                "features.{2s+1}.{b}.attn.{*}",
                "features.5.11.attn.qkv.bias",
                "layers.2.blocks.11.attn.qkv.bias",
            ),
            (
                "layers.{s+1}.downsample.{*}",
                "layers.1.downsample.norm.bias",
                "layers.0.blocks.0.attn.norm.bias",
            ),
            ("norm{last}.{*}", "norm3.weight", "layers.0.blocks.0.attn.weight"),
        ];
        for (pattern, name, ours) in cases {
            let captures = matches(pattern, name, 3).unwrap();
            assert_eq!(fill(pattern, captures, 3).unwrap(), name);
            let filled = fill("layers.{s}.blocks.{b}.attn.{*}", captures, 3).unwrap();
            assert_eq!(filled, ours);
        }
        assert_eq!(matches("{*}_quantizer.{*}", "a.b_quantizer._amax", 0).unwrap().text, "_amax");
        assert_eq!(matches("norm.{*}", "norm.ä.weight.x_", 0).unwrap().text, "ä.weight.x_");
    }

    #[test]
    fn other_names_do_not_follow_a_pattern() {
        let cases = [
            ("features.{2s+1}.{b}.{*}", "features.2.0.norm.weight"),
            ("layers.{s+1}.downsample.{*}", "layers.0.downsample.norm.bias"),
            ("layers.{s}.blocks.{b}.{*}", "layers.01.blocks.0.norm1.bias"),
            ("layers.{s}.blocks.{b}.{*}", "layers.0.blocks.0."),
            ("layers.{s}.blocks.{b}.{*}", "layers.99999999999999999999999.blocks.0.x"),
            ("norm{last}.{*}", "norm2.weight"),
            ("norm.{*}_x", "norm.ä.weight.x_"),
            ("head", "head.weight"),
        ];
        for (pattern, name) in cases {
            assert_eq!(matches(pattern, name, 3), None, "{pattern} {name}");
        }
        let large = Captures { stage: usize::MAX, ..Captures::default() };
        assert_eq!(fill("features.{2s+1}", large, 0), None);
    }
}
