//! The parts of a dialect's table.

use super::{ClassOrder, Dialect, pattern};
use crate::arch::{PositionSizes, SwinVersion, WindowPolicy};
use crate::family::Family;
use crate::pixels::Orientation;

/// A naming convention. Its rows are read both ways: a stored name to the parameter, and the parameter to the
/// stored name.
///
/// A name that no row has keeps its name, so Microsoft's table has only what its own files have beside
/// parameters.
pub(crate) struct Table {
    /// The dialect.
    pub dialect: Dialect,
    /// Its names for users; the program prints the first and writes it into files.
    pub names: &'static [&'static str],
    /// The beginning of all names in files that are detected as this dialect; empty if nothing tells.
    pub within: &'static [&'static str],
    /// The module whose parameters every file has and no other network has: the projection of patches,
    /// without the trunk.
    pub anchor: &'static str,
    /// Patterns of names, without the trunk, that tell this dialect from others with the same anchor. Without
    /// any, the anchor tells it.
    pub marks: &'static [&'static str],
    /// The attributes that hold the layers in a whole classifier: the names of [`Place::Trunk`] follow one of
    /// them, those of [`Place::Root`] do not. Files without the attribute are read too. Both versions are
    /// listed, also if the library has only one of them.
    pub trunks: &'static [(SwinVersion, &'static str)],
    /// Renamed parameters.
    pub groups: &'static [Group],
    /// Parameters that only backbones have, beside those of `groups`: the norms `norm{s}` of their outputs.
    pub backbone: &'static [Group],
    /// Patterns of tensors that are no parameters, beside the buffers of all dialects: names with the trunk,
    /// if there is one.
    pub dropped: &'static [&'static str],
    /// The rule of the original code for windows, for Swin V1 and V2.
    pub window_policies: [WindowPolicy; 2],
    /// Rules that a description of the model may state instead.
    pub other_policies: &'static [WindowPolicy],
    /// The rules of the libraries that read files as backbones, for the first reader of which the file has a
    /// mark.
    pub readers: &'static [Reader],
    /// The original code's addend for the logits of masked tokens, for Swin V1 and V2.
    pub mask: [f64; 2],
    /// The image sizes that a learned absolute position embedding fits, for Swin V1 and V2, if its places are
    /// a square.
    pub position_sizes: [PositionSizes; 2],
    /// Whether the library that reads images for these networks turns them, for classifiers and for
    /// backbones.
    pub orientations: [Orientation; 2],
    /// The library's order of the class folders of a data set.
    pub class_order: ClassOrder,
    /// The family whose preprocessing the library has for its published models, if it is one of ours.
    pub preprocessing: Option<Family>,
}

/// A library that reads files of a dialect as backbones.
pub(crate) struct Reader {
    /// Patterns of names, with the trunk if there is one, of which the files have at least one. Empty for all
    /// other files.
    pub marks: &'static [&'static str],
    /// Its rule for windows, for Swin V1 and V2.
    pub window_policies: [WindowPolicy; 2],
}

impl Table {
    /// The library that reads a file with the tensors `names`, which lack the root, as a backbone.
    pub(crate) fn reader(&self, names: &[&str]) -> &'static Reader {
        let marked = |mark: &&str| names.iter().any(|name| pattern::matches(mark, name, 0).is_some());
        let mut readers = self.readers.iter();
        let found = readers.find(|reader| reader.marks.is_empty() || reader.marks.iter().any(marked));
        found.expect("the last reader takes all files")
    }
}

/// The only reader of a dialect, with the rules `window_policies`.
pub(crate) const fn reader(window_policies: [WindowPolicy; 2]) -> Reader {
    Reader { marks: &[], window_policies }
}

/// Rows with the same beginning.
pub(crate) struct Group {
    /// Where their names begin.
    pub place: Place,
    /// The version whose files have these names; `None` for both.
    pub version: Option<SwinVersion>,
    /// Beginning of the parameters, in the patterns of [`super::pattern`]. Those of blocks begin with
    /// `layers.{s}.blocks.{b}.`, from which the last stage of a file is known.
    pub ours: &'static str,
    /// Beginning of the stored names.
    pub theirs: &'static str,
    /// The rows, tried in order. The thirds of a parameter stand together: query, key, value.
    pub rows: &'static [Row],
}

/// Where in a classifier a name begins.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// In the network without the classifier's head.
    Trunk,
    /// In the classifier.
    Root,
}

/// A parameter and a name that it has in files.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    /// The parameter.
    pub ours: &'static str,
    /// Its stored name.
    pub theirs: &'static str,
    /// How the stored values become the parameter's.
    pub values: Values,
    /// Whether some files have this name beside those of the other rows; messages do not use it.
    pub alias: bool,
}

/// How stored values become a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// They are the parameter's.
    Whole,
    /// They are one third of the parameter's rows: the query (0), key (1) or value (2).
    Third(usize),
    /// The columns are those of a merge by `torch.nn.Unfold`: channel by channel the tokens (0, 0), (0, 1),
    /// (1, 0), (1, 1). Ours are token by token, (0, 0), (1, 0), (0, 1), (1, 1).
    Unfolded,
    /// A value of each channel at each place, `[1, channels, height, width]` or, as ours,
    /// `[1, height * width, channels]`.
    Map,
}

/// A renamed parameter.
pub(crate) const fn row(ours: &'static str, theirs: &'static str) -> Row {
    Row { ours, theirs, values: Values::Whole, alias: false }
}

/// A parameter under the same name.
pub(crate) const fn same(name: &'static str) -> Row {
    row(name, name)
}

/// A third of a parameter.
pub(crate) const fn third(index: usize, ours: &'static str, theirs: &'static str) -> Row {
    Row { values: Values::Third(index), ..row(ours, theirs) }
}

impl Row {
    /// The row as a name that only some files have.
    pub(crate) const fn alias(self) -> Row {
        Row { alias: true, ..self }
    }

    /// The row with a value at each place.
    pub(crate) const fn map(self) -> Row {
        Row { values: Values::Map, ..self }
    }

    /// The row with columns in the order of `torch.nn.Unfold`.
    pub(crate) const fn unfolded(self) -> Row {
        Row { values: Values::Unfolded, ..self }
    }
}

/// The bias of queries and values of a Swin V2, where it is stored in two parts: keys have none.
pub(crate) const SPLIT_BIAS: Group = Group {
    place: Place::Trunk,
    version: Some(SwinVersion::V2),
    ours: "layers.{s}.blocks.{b}.attn.",
    theirs: "layers.{s}.blocks.{b}.attn.",
    rows: &[third(0, "qkv.bias", "q_bias"), third(2, "qkv.bias", "v_bias")],
};

/// A head that stands in a `Sequential` behind modules without parameters, such as `Dropout`.
pub(crate) const SEQUENTIAL_HEAD: Group = Group {
    place: Place::Root,
    version: None,
    ours: "",
    theirs: "",
    rows: &[row("head.{*}", "head.{b}.{*}").alias()],
};

/// Networks whose layers stand at the root.
pub(crate) const NO_TRUNK: &[(SwinVersion, &str)] = &[(SwinVersion::V1, ""), (SwinVersion::V2, "")];
