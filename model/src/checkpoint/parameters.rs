//! The parameters that stored tensors are.

use std::collections::BTreeMap;

use swinq_numerics::Size;

use super::dialect::{Target, Values};
use super::network::Network;
use crate::arch::SwinVersion;
use crate::error::ModelError;
use crate::tensor::{HostTensor, StateDict};

/// A stored tensor that is a parameter, or a part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredParameter {
    /// Its stored name.
    pub name: String,
    /// The parameter, in the names of [`parameters`](crate::params::parameters).
    pub parameter: String,
    /// How its values become the parameter's.
    pub values: Values,
}

/// The stored tensors of `network` that are parameters.
pub(super) fn stored(network: &Network<'_>) -> Vec<StoredParameter> {
    let root = &network.naming.root;
    let parameter = |name: &String| match network.naming.target(name) {
        Target::Parameter(parameter, values) => {
            Some(StoredParameter { name: format!("{root}{name}"), parameter, values })
        }
        Target::Dropped => None,
    };
    network.tensors.keys().filter_map(parameter).collect()
}

/// The parameters of `network` in f32 and in our names; q, k and v are joined. The bias of the keys of a Swin
/// V2 becomes zeros: most files have none, and torchvision does not use the one that it stores.
///
/// # Errors
/// [`ModelError::Tensor`] for a parameter that is not a float tensor, occurs twice, or lacks a third.
pub(super) fn read(network: &Network<'_>) -> Result<StateDict, ModelError> {
    let is_bias = |name: &str| network.naming.version == SwinVersion::V2 && name.ends_with(".attn.qkv.bias");
    let mut whole = StateDict::new();
    let mut thirds: BTreeMap<String, [Option<HostTensor>; 3]> = BTreeMap::new();
    for (name, tensor) in &network.tensors {
        let Target::Parameter(ours, values) = network.naming.target(name) else { continue };
        let mut tensor = tensor.to_f32().map_err(|problem| ModelError::tensor(name, problem))?;
        let known = match values {
            Values::Third(index) => thirds.entry(ours).or_default()[index].replace(tensor).is_some(),
            Values::Unfolded => whole.insert(ours, token_by_token(tensor)).is_some(),
            Values::Map => whole.insert(ours, by_place(tensor)).is_some(),
            Values::Whole => {
                if is_bias(&ours) && tensor.shape.len() == 1 {
                    let third = tensor.data.len() / 3;
                    tensor.data[third..2 * third].fill(0.0);
                }
                whole.insert(ours, tensor).is_some()
            }
        };
        if known {
            let problem = match network.naming.is_of_head(name) {
                true => {
                    "the classifier's head has several layers with parameters; swinq runs heads of one linear layer, and \
                     `swinq features` the backbone without its head"
                }
                false => "is in the checkpoint twice: two of its names are one parameter",
            };
            return Err(ModelError::tensor(name, problem));
        }
    }
    for (name, mut parts) in thirds {
        if let ([Some(q), None, _], true) = (&parts, is_bias(&name)) {
            parts[1] = Some(HostTensor::new(q.shape.clone(), vec![0.0; q.data.len()]));
        }
        let joined = concatenate(&name, parts).map_err(|error| network.with_stored_name(error))?;
        if whole.insert(name.clone(), joined).is_some() {
            return Err(ModelError::tensor(
                name,
                "is in the checkpoint twice: once whole and once split into q, k and v",
            ));
        }
    }
    Ok(whole)
}

/// The values of [`Values::Unfolded`] in our order: column `c * 4 + k` becomes column `part * channels + c`.
/// A row that is not four tokens long is left alone: its shape is refused later.
fn token_by_token(tensor: HostTensor) -> HostTensor {
    /// For each of our tokens (0, 0), (1, 0), (0, 1), (1, 1), its place among those of `torch.nn.Unfold`.
    const PLACES: [usize; 4] = [0, 2, 1, 3];
    let columns = tensor.shape.last().copied().unwrap_or(0);
    if columns == 0 || !columns.is_multiple_of(4) {
        return tensor;
    }
    let row = |row: &[f32]| {
        PLACES.iter().flat_map(|&place| row[place..].iter().step_by(4).copied()).collect::<Vec<f32>>()
    };
    let data = tensor.data.chunks_exact(columns).flat_map(row).collect();
    HostTensor::new(tensor.shape, data)
}

/// The values of [`Values::Map`] in our order, `[1, places, channels]`.
fn by_place(tensor: HostTensor) -> HostTensor {
    let &[1, channels, height, width] = tensor.shape.as_slice() else { return tensor };
    let places = height * width;
    let place = |place: usize| tensor.data.iter().skip(place).step_by(places.max(1)).copied();
    HostTensor::new([1, places, channels], (0..places).flat_map(place).collect())
}

/// The places of the absolute position embedding, if there is one with places in rows and columns.
pub(super) fn stored_places(network: &Network<'_>) -> Option<Size> {
    let is = |name: &String| network.naming.renamed(name).0 == "absolute_pos_embed";
    let (_, tensor) = network.tensors.iter().find(|(name, _)| is(name))?;
    match *tensor.shape() {
        [1, _, height, width] => Some(Size::new(height, width)),
        _ => None,
    }
}

/// Query, key and value rows, one under the other.
fn concatenate(name: &str, parts: [Option<HostTensor>; 3]) -> Result<HostTensor, ModelError> {
    let missing = ["query", "key", "value"].into_iter().zip(&parts).find(|(_, part)| part.is_none());
    let missing = missing.map_or("", |(name, _)| name);
    let [Some(q), Some(k), Some(v)] = parts else {
        return Err(ModelError::tensor(name, format!("its {missing} part is missing in the checkpoint")));
    };
    if q.shape.is_empty() || q.shape != k.shape || q.shape != v.shape {
        let problem =
            format!("its query, key and value have shapes {:?}, {:?}, {:?}", q.shape, k.shape, v.shape);
        return Err(ModelError::tensor(name, problem));
    }
    let mut shape = q.shape;
    shape[0] *= 3;
    Ok(HostTensor::new(shape, [q.data, k.data, v.data].concat()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_parameters_need_their_three_parts() {
        let part = |v: f32| Some(HostTensor::new([1, 2], vec![v, v]));
        let joined = concatenate("w", [part(1.0), part(2.0), part(3.0)]).unwrap();
        assert_eq!((joined.shape, joined.data), (vec![3, 2], vec![1.0, 1.0, 2.0, 2.0, 3.0, 3.0]));
        assert!(concatenate("w", [part(1.0), None, part(3.0)]).is_err());
        let odd = Some(HostTensor::new([2], vec![0.0; 2]));
        assert!(concatenate("w", [part(1.0), odd, part(3.0)]).is_err());
    }

    #[test]
    fn columns_of_a_merge_by_unfold_become_tokens() {
        // The values say token and channel: 10 * token + channel, tokens in the order of rows.
        let unfolded = [0.0, 10.0, 20.0, 30.0, 1.0, 11.0, 21.0, 31.0];
        let ours = token_by_token(HostTensor::new([1, 8], unfolded.to_vec()));
        assert_eq!(ours.data, [0.0, 1.0, 20.0, 21.0, 10.0, 11.0, 30.0, 31.0]);
        let norm = token_by_token(HostTensor::new([8], unfolded.to_vec()));
        assert_eq!(norm.data, ours.data);
        let odd = HostTensor::new([2, 3], vec![0.0; 6]);
        assert_eq!(token_by_token(odd.clone()), odd);
        assert_eq!(token_by_token(HostTensor::new([2, 0], vec![])).shape, [2, 0]);
    }
}
