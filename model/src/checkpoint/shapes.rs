//! The facts about an architecture that follow from the shapes of its parameters.

use swinq_numerics::Size;

use super::checks;
use crate::arch::{SwinConfig, SwinVersion, Task, WindowPolicy};
use crate::params::depths;
use crate::tensor::StateDict;

/// Facts in the shapes of parameters under Microsoft's names.
pub(super) struct Shapes<'a> {
    tensors: &'a StateDict,
    version: SwinVersion,
    /// Blocks of each stage.
    depths: Vec<usize>,
}

impl<'a> Shapes<'a> {
    pub(super) fn of(tensors: &'a StateDict, version: SwinVersion) -> Shapes<'a> {
        Shapes { tensors, version, depths: depths(tensors.keys()) }
    }

    /// The shape of a parameter; empty if it is absent.
    fn shape(&self, name: &str) -> &'a [usize] {
        self.tensors.get(name).map_or(&[], |tensor| &tensor.shape)
    }

    fn of_block(&self, stage: usize, last: &str) -> &'a [usize] {
        self.shape(&format!("layers.{stage}.blocks.0.attn.{last}"))
    }

    fn heads(&self) -> Vec<usize> {
        let heads = |stage| match self.version {
            SwinVersion::V1 => self.of_block(stage, "relative_position_bias_table").get(1).copied(),
            SwinVersion::V2 => self.of_block(stage, "logit_scale").first().copied(),
        };
        (0..self.depths.len()).filter_map(heads).collect()
    }

    fn mlp_ratio(&self) -> Option<f64> {
        let fc1 = self.shape("layers.0.blocks.0.mlp.fc1.weight");
        fc1.first().zip(fc1.get(1)).map(|(&hidden, &dim)| hidden as f64 / dim as f64)
    }

    /// The facts in the keys of a configuration, and the keys of what is missing. `windows` are those that
    /// buffers tell, by stage.
    pub(super) fn facts(&self, windows: &[Option<Size>]) -> String {
        let window = match self.version {
            SwinVersion::V1 => checks::windows(self.tensors).first().copied().map(Size::square),
            SwinVersion::V2 => windows.first().copied().flatten(),
        };
        let key = |key: &str| format!("{}.{key}", self.version.section());
        let (patch, heads) = (self.shape("patch_embed.proj.weight"), self.heads());
        let facts = [
            ("MODEL.TYPE".to_owned(), (self.version == SwinVersion::V2).then(|| "swinv2".to_owned())),
            (key("EMBED_DIM"), patch.first().map(usize::to_string)),
            (key("PATCH_SIZE"), patch.last().map(usize::to_string)),
            (key("DEPTHS"), (!self.depths.is_empty()).then(|| format!("{:?}", self.depths))),
            (key("NUM_HEADS"), (!heads.is_empty()).then(|| format!("{heads:?}"))),
            (key("WINDOW_SIZE"), window.map(Size::short)),
            (key("MLP_RATIO"), self.mlp_ratio().map(|ratio| ratio.to_string())),
            ("MODEL.NUM_CLASSES".to_owned(), self.shape("head.weight").first().map(usize::to_string)),
        ];
        let facts = facts.into_iter().filter_map(|(key, value)| Some(format!("{key} {}", value?)));
        let missing = match (self.version, window) {
            (SwinVersion::V2, None) => "DATA.IMG_SIZE, MODEL.SWINV2.WINDOW_SIZE",
            _ => "DATA.IMG_SIZE",
        };
        let facts = facts.collect::<Vec<_>>().join(", ");
        format!("The shapes give {facts}; they do not give {missing} and the preprocessing")
    }

    /// The architecture `name` of a backbone, without its outputs, if the shapes tell all of it: they do for
    /// a Swin V1 whose stages have the same window, with a rule for windows by which no image changes it.
    /// `places` are those of an absolute position embedding, if it says more than their number: then they are
    /// taken for a square.
    pub(super) fn backbone(
        &self,
        name: &str,
        policy: WindowPolicy,
        places: Option<Size>,
    ) -> Option<SwinConfig> {
        let windows = checks::windows(self.tensors);
        let &window = windows.first().filter(|&first| windows.iter().all(|window| window == first))?;
        let &[embed_dim, in_chans, patch_size, _] = self.shape("patch_embed.proj.weight") else {
            return None;
        };
        let num_heads = self.heads();
        if self.version == SwinVersion::V2
            || windows.len() != self.depths.len()
            || num_heads.len() != windows.len()
        {
            return None;
        }
        let ape = self.tensors.contains_key("absolute_pos_embed");
        // The smallest image all of whose grids have whole windows.
        let smallest = Size::square(window.checked_mul(patch_size)?.checked_shl(windows.len() as u32 - 1)?);
        let square = || {
            let count = *self.shape("absolute_pos_embed").get(1)?;
            Some(Size::square(count.isqrt())).filter(|places| places.area() == count)
        };
        Some(SwinConfig {
            name: name.to_owned(),
            version: self.version,
            image_size: match ape {
                true => places.or_else(square)?.map(|side| side.saturating_mul(patch_size)),
                false => smallest,
            },
            in_chans,
            patch_size,
            task: Task::Features,
            outputs: Vec::new(),
            num_classes: 0,
            embed_dim,
            depths: self.depths.clone(),
            num_heads,
            window_size: Size::square(window).into(),
            mlp_ratio: self.mlp_ratio()?,
            qkv_bias: self.tensors.contains_key("layers.0.blocks.0.attn.qkv.bias"),
            qk_scale: None,
            ape,
            patch_norm: self.tensors.contains_key("patch_embed.norm.weight"),
            window_policy: policy,
            ..SwinConfig::default()
        })
    }
}
