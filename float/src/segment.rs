//! The parts of a network between which only the residual stream is alive.

use swinq_model::arch::SwinConfig;
use swinq_model::site::{BlockId, Branch, Linear};

/// A part of the network that reads and returns one tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Segment {
    /// Patch embedding, with its norm and position embedding: normalised images
    /// `[n, channels, height, width]`, or their patches `[n * tokens, channels * patch^2]`, to tokens
    /// `[n * tokens, c]`. A network of tokens has none of that: its patches are the tokens.
    Embed,
    /// One of a block's two branches, and its addition to the residual stream `[n * tokens, c]`.
    Branch(BlockId, Branch),
    /// The patch merging that ends a stage: `[n * tokens, c]` to `[n * tokens / 4, 2 c]`.
    Merge(usize),
    /// The last norm, the mean over tokens, and the classifier: `[n * tokens, c]` to logits `[n, classes]`.
    Head,
}

impl Segment {
    /// Every segment of `config`, in forward order.
    pub fn all(config: &SwinConfig) -> Vec<Segment> {
        let mut segments = vec![Segment::Embed];
        for (stage, &depth) in config.depths.iter().enumerate() {
            for block in 0..depth {
                let id = BlockId { stage, block };
                segments.extend([Segment::Branch(id, Branch::Attn), Segment::Branch(id, Branch::Mlp)]);
            }
            if stage + 1 < config.depths.len() {
                segments.push(Segment::Merge(stage));
            }
        }
        if !config.is_backbone() {
            segments.push(Segment::Head);
        }
        segments
    }

    /// The index of the output of a backbone that the result of the segment is, before its norm. A stage has
    /// one at most.
    pub fn output(self, config: &SwinConfig) -> Option<usize> {
        let (stage, blocks) = match self {
            Segment::Branch(BlockId { stage, block }, Branch::Mlp) => (stage, block + 1),
            // Merging behind the blocks of a network of tokens.
            Segment::Merge(stage) => (stage + 1, 0),
            _ => return None,
        };
        let last = blocks == config.depths[stage];
        config.outputs.iter().position(|output| last && output.stage == stage)
    }

    /// The linear layers of the segment of `config`, in forward order.
    pub fn linears(self, config: &SwinConfig) -> Vec<Linear> {
        match self {
            Segment::Embed if config.takes_tokens() => Vec::new(),
            Segment::Embed => vec![Linear::PatchEmbed],
            Segment::Branch(block, Branch::Attn) => vec![Linear::Qkv(block), Linear::Proj(block)],
            Segment::Branch(block, Branch::Mlp) => vec![Linear::Fc1(block), Linear::Fc2(block)],
            Segment::Merge(stage) => vec![Linear::Reduction(stage)],
            Segment::Head => vec![Linear::Head],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use swinq_model::StageOutput;
    use swinq_model::site::all_linears;

    #[test]
    fn the_segments_contain_every_layer_in_forward_order() {
        let classifier = SwinConfig::default();
        let backbone = classifier.clone().into_backbone(vec![StageOutput::of_stage(3, true)]);
        for config in [classifier, backbone] {
            let segments = Segment::all(&config).into_iter();
            let linears: Vec<Linear> = segments.flat_map(|segment| segment.linears(&config)).collect();
            assert_eq!(linears, all_linears(&config));
        }
    }
}
